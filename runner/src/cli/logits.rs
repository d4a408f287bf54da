//! `tegula-runner logits`: numbers to compare with those of other programs.

use std::io::Write as _;

use serde::Serialize;
use tegula_runner::Fault;

use super::load::ModelArgs;
use super::{Failure, Written};

/// Arguments of `tegula-runner logits`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The text
    #[arg(long, short, required_unless_present = "tokens")]
    prompt: Option<String>,
    /// Instead, token ids, separated by commas
    #[arg(long, value_delimiter = ',', conflicts_with = "prompt", value_name = "IDS")]
    tokens: Vec<u32>,
    /// Print so many of the most probable next tokens
    #[arg(long, default_value_t = 5, value_name = "K")]
    top: usize,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    tokens: Vec<u32>,
    /// The largest logits after the last token, with their tokens.
    top: Vec<(u32, f32)>,
    /// Of the tokens after the first, in nats; `null` for a single one.
    mean_nll: Option<f64>,
}

/// Runs `tegula-runner logits`.
pub fn main(args: &Args) -> Result<(), Failure> {
    let source = args.model.open()?;
    let tokenizer = source.tokenizer()?;
    let tokens = match (&args.prompt, &tokenizer) {
        (None, _) => args.tokens.clone(),
        (Some(prompt), Some(tokenizer)) => tokenizer.encode(prompt)?,
        (Some(prompt), None) => prompt.bytes().map(u32::from).collect(),
    };
    if tokens.is_empty() {
        return Err(Fault::new("the prompt", "has no tokens").into());
    }
    source.weights().config().check_ids(&tokens)?;
    let mut engine = args.model.load(&source, tokens.len(), tokens.len())?;
    let scores = engine.score(&tokens)?;
    let mut ranked: Vec<_> = (0u32..).zip(engine.logits()?).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    ranked.truncate(args.top);
    let mean_nll = (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64);
    let report = Report { tokens, top: ranked, mean_nll };

    let mut out = std::io::stdout().lock();
    if args.json {
        let line = serde_json::to_string(&report).unwrap_or_default();
        return writeln!(out, "{line}").written();
    }
    writeln!(out, "tokens   {:?}", report.tokens).written()?;
    for (token, logit) in &report.top {
        let text = tokenizer.as_ref().map(|tokenizer| format!("{:?}", tokenizer.decode(&[*token])));
        writeln!(out, "{token:>8} {logit:>10.4}  {}", text.unwrap_or_default()).written()?;
    }
    match report.mean_nll {
        Some(nll) => writeln!(out, "mean NLL {nll:.4} nats a token").written(),
        None => Ok(()),
    }
}
