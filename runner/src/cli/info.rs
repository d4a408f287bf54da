//! `tegula-runner info`: what a model file contains.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;

use tegula_runner::config::{Config, Pairs};
use tegula_runner::error::printable;
use tegula_runner::gguf::GgufFile;
use tegula_runner::{Checkpoint, Error, ModelWeights};

use super::{Failure, Written};

/// Arguments of `tegula-runner info`.
#[derive(clap::Args)]
pub struct Args {
    /// The model: a GGUF file, or a folder with config.json and safetensors files
    model: PathBuf,
    /// List every tensor: name, format, shape
    #[arg(long)]
    tensors: bool,
}

/// Runs `tegula-runner info`. A file that is whole but that we cannot run is described as far as that goes, and then refused.
pub fn main(args: &Args) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let is_gguf = !args.model.is_dir() && args.model.extension().is_none_or(|e| e != "safetensors");
    if is_gguf {
        let file = GgufFile::open(&args.model)?;
        out.write_all(describe(&file, args.tensors)?.as_bytes()).written()?;
    }
    let checkpoint = Checkpoint::open(&args.model)?;
    if args.tensors && !is_gguf {
        for name in checkpoint.weights().names() {
            let shape =
                checkpoint.weights().find(name)?.map(|w| format!("{} {:?}", w.format.name(), w.shape));
            writeln!(out, "{}  {}", printable(name), shape.unwrap_or_default()).written()?;
        }
    }
    out.write_all(describe_config(checkpoint.config()).as_bytes()).written()?;
    checkpoint.verify()?;
    let tokenizer = checkpoint.tokenizer()?;
    let chat = if tokenizer.chat_template().is_some() { "with" } else { "without" };
    let stops: Vec<_> = tokenizer.stops().iter().filter_map(|&id| tokenizer.token(id)).collect();
    writeln!(
        out,
        "tokenizer    {} tokens, {chat} chat template, stops at {}",
        tokenizer.vocab(),
        printable(&stops.join(" "))
    )
    .written()?;
    writeln!(out, "all weights are there").written()
}

fn describe(file: &GgufFile, tensors: bool) -> Result<String, Error> {
    let text = |key: &str| file.string(key).ok().flatten().map(printable);
    let mut lines =
        vec![format!("file         GGUF version {}, {:.1} MB", file.version(), file.size() as f64 / 1e6)];
    let named = [("name", "general.name"), ("size", "general.size_label"), ("licence", "general.license")];
    for (label, key) in named {
        lines.extend(text(key).map(|text| format!("{label:<12} {text}")));
    }
    let mut formats: BTreeMap<String, usize> = BTreeMap::new();
    for (name, tensor) in file.tensors() {
        *formats.entry(tensor.type_name()).or_default() += 1;
        if tensors {
            lines.push(format!("{}  {} {:?}", printable(name), tensor.type_name(), tensor.shape));
        }
    }
    let formats: Vec<_> = formats.iter().map(|(name, n)| format!("{n} in {name}")).collect();
    lines.push(format!("tensors      {}", formats.join(", ")));
    Ok(lines.join("\n") + "\n")
}

fn describe_config(config: &Config) -> String {
    let Config { layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, context, .. } = config;
    let pairs = match config.rope.pairs {
        Pairs::Half => "half",
        Pairs::Interleaved => "interleaved",
    };
    format!(
        "architecture {}: {layers} layers, hidden {hidden}, intermediate {intermediate}\n\
         attention    {heads} heads over {kv_heads} of keys and values, {head_dim} wide\n\
         rotary       base {}, {} dimensions, pairs {pairs}\n\
         vocabulary   {vocab} tokens, context {context}\n",
        config.architecture, config.rope.base, config.rope.dims
    )
}
