//! Options that say which model runs where, and loading it under a progress bar.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Instant;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use tegula::runtime::Device;
use tegula_records::Trace;
use tegula_runner::config::{Config, Pairs, Rope, Scaling};
use tegula_runner::format::Format;
use tegula_runner::model::{ActivationType, Options, load};
use tegula_runner::random::RandomWeights;
use tegula_runner::{Checkpoint, Engine, Error, Fault, ModelWeights, Tokenizer};

use super::note;

/// Which model, and where.
#[derive(Args)]
pub struct ModelArgs {
    /// The model: a GGUF file, or a folder with config.json, tokenizer.json and safetensors files
    #[arg(long, short, value_name = "MODEL", required_unless_present = "random")]
    model: Option<PathBuf>,
    /// Instead, a small model with random weights, which writes nonsense: to see the runner work where no model is at hand
    #[arg(long, conflicts_with = "model")]
    random: bool,
    /// Where to run: host, or cuda (cuda:1, …), which takes a GPU and a build with the feature `jit`
    #[arg(long, default_value = "host", value_name = "DEVICE")]
    device: String,
    /// What activations are made of [default: f32 on the host, bf16 on a GPU]
    #[arg(long)]
    dtype: Option<DtypeArg>,
    /// Tokens that the KV cache has room for [default: what the command needs, at most what the model was made for]
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,
    /// Take kernels' configs from the tuning records in this folder (`tegula-autotune`), where they fit
    #[arg(long, value_name = "FOLDER")]
    records: Option<PathBuf>,
    /// Append the shapes that were launched, with counts, to this file: for `tegula-autotune tune --from-trace`
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// What is traced, and where to.
static TRACE: OnceLock<(Trace, PathBuf)> = OnceLock::new();

/// Writes what was traced, if anything is.
pub fn finish_trace() -> Result<(), Error> {
    match TRACE.get() {
        Some((trace, path)) => {
            let written = trace.append(path);
            written.map_err(|error| {
                Fault::new(path.display().to_string(), format!("cannot be written to: {error}")).into()
            })
        }
        None => Ok(()),
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum DtypeArg {
    F32,
    F16,
    Bf16,
}

/// A model's files, opened and checked.
pub enum Source {
    Files(Box<Checkpoint>),
    Random(RandomWeights),
}

impl Source {
    pub fn weights(&self) -> &dyn ModelWeights {
        match self {
            Source::Files(checkpoint) => &**checkpoint,
            Source::Random(weights) => weights,
        }
    }

    /// The model's tokenizer; `None` for a random model.
    pub fn tokenizer(&self) -> Result<Option<Tokenizer>, Error> {
        match self {
            Source::Files(checkpoint) => checkpoint.tokenizer().map(Some),
            Source::Random(_) => Ok(None),
        }
    }
}

impl ModelArgs {
    /// Opens the files.
    pub fn open(&self) -> Result<Source, Error> {
        match &self.model {
            Some(path) => Ok(Source::Files(Box::new(Checkpoint::open(path)?))),
            None => Ok(Source::Random(RandomWeights::new(random_config(), Format::Q4_1, 1)?)),
        }
    }

    /// Loads the model with room for `wanted` tokens if it can have that many, or as many as `--context` says; `needed` tokens have to fit, which is
    /// found out before anything is loaded.
    pub fn load(&self, source: &Source, needed: usize, wanted: usize) -> Result<Box<dyn Engine>, Error> {
        let device = self.device()?;
        self.tuned(&device)?;
        let dtype = match self.dtype {
            None => ActivationType::default_for(&device),
            Some(DtypeArg::F32) => ActivationType::F32,
            Some(DtypeArg::F16) => ActivationType::F16,
            Some(DtypeArg::Bf16) => ActivationType::BF16,
        };
        let most = source.weights().config().context;
        let capacity = self.context.unwrap_or(wanted.clamp(1, most));
        if needed > capacity {
            let problem = format!("{needed} tokens do not fit its {capacity} positions");
            return Err(Fault::new("the context", problem).into());
        }
        let start = Instant::now();
        // Drawn only if standard error is a terminal.
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("loading {bar:40} {pos}/{len} layers") {
            bar.set_style(style);
        }
        let engine = load(source.weights(), &device, Options { dtype, capacity }, &mut |done, all| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        })?;
        bar.finish_and_clear();
        note(format_args!(
            "loaded in {:.1} s: {dtype} on {}\n",
            start.elapsed().as_secs_f64(),
            device.properties().model
        ));
        Ok(engine)
    }

    /// Installs records, and begins to trace.
    fn tuned(&self, device: &Device) -> Result<(), Error> {
        if let Some(folder) = &self.records {
            let installed = tegula_records::install(folder, device)
                .map_err(|error| Fault::new(folder.display().to_string(), error.to_string()))?;
            for problem in &installed.refused {
                note(format_args!("tuning record refused: {problem}\n"));
            }
            note(format_args!(
                "{} tuning records, and {} of kernels as they were\n",
                installed.used, installed.stale
            ));
        }
        if let Some(path) = &self.trace {
            let trace = Trace::start().map_err(|error| Fault::new("--trace", error.to_string()))?;
            let _ = TRACE.set((trace, path.clone()));
        }
        Ok(())
    }

    fn device(&self) -> Result<Device, Error> {
        let device = tegula::device(&self.device)?;
        // Said here and not at the first launch, after minutes of loading.
        if device.properties().target.is_some() && device.compiler().is_none() {
            let problem = "needs kernels to be compiled, which this build cannot: build with the feature `jit` (the default)";
            return Err(Fault::new(format!("the device {}", self.device), problem).into());
        }
        Ok(device)
    }
}

/// A model whose tokens are bytes.
fn random_config() -> Config {
    Config {
        architecture: "llama".into(),
        layers: 4,
        hidden: 256,
        intermediate: 512,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        vocab: 256,
        context: 2048,
        norm_eps: 1e-5,
        rope: Rope { base: 10_000.0, dims: 64, pairs: Pairs::Half, scaling: Scaling::None },
        qkv_bias: false,
        tied: Some(false),
    }
}
