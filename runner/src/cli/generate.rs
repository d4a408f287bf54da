//! `tegula-runner generate`: continues a prompt, or chats.

use std::io::Write as _;
use std::ops::ControlFlow;

use tegula_runner::generate::{Request, Summary};
use tegula_runner::tokenizer::Message;
use tegula_runner::{Engine, Error, Fault, Sampling, Tokenizer, generate};

use super::load::ModelArgs;
use super::{Failure, Written, chat, note};

/// Arguments of `tegula-runner generate`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The text to continue; with --chat, what you say
    #[arg(long, short, required_unless_present = "chat")]
    prompt: Option<String>,
    /// Write prompts by the model's chat template; without --prompt, turn by turn from standard input
    #[arg(long)]
    chat: bool,
    /// With --chat: what the model is told in advance [default: what its template says]
    #[arg(long, requires = "chat", value_name = "TEXT")]
    system: Option<String>,
    /// Generate at most so many tokens (each turn, in a chat)
    #[arg(long, short = 'n', default_value_t = 256, value_name = "N")]
    max_tokens: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// How tokens are chosen.
#[derive(clap::Args)]
pub struct SamplingArgs {
    /// 0 takes the most probable token each time; higher is more varied
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Choose among the K most probable tokens only; 0: all
    #[arg(long, default_value_t = 0, value_name = "K")]
    top_k: usize,
    /// Choose among the most probable tokens that have this probability together
    #[arg(long, default_value_t = 1.0, value_name = "P")]
    top_p: f32,
    /// The same seed gives the same text
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl SamplingArgs {
    fn sampling(&self) -> Sampling {
        let SamplingArgs { temperature, top_k, top_p, seed } = *self;
        Sampling { temperature, top_k, top_p, seed }
    }
}

/// Runs `tegula-runner generate`.
pub fn main(args: &Args) -> Result<(), Failure> {
    let sampling = args.sampling.sampling();
    sampling.check()?;
    let source = args.model.open()?;
    let tokenizer = source.tokenizer()?;
    let system = args.system.iter().map(|text| Message::new("system", text));
    let mut messages: Vec<_> = system.collect();
    let speaker = Speaker { tokenizer: tokenizer.as_ref(), max_tokens: args.max_tokens, sampling };
    let Some(prompt) = &args.prompt else {
        let context = source.weights().config().context;
        let mut engine = args.model.load(&source, 0, context.min(chat::USUAL_CONTEXT))?;
        return chat::run(&mut *engine, &speaker, messages);
    };
    let tokens = if args.chat {
        messages.push(Message::new("user", prompt));
        speaker.tokenizer()?.encode_chat(&messages)?
    } else {
        match &tokenizer {
            Some(tokenizer) => tokenizer.encode(prompt)?,
            None => prompt.bytes().map(u32::from).collect(),
        }
    };
    if tokens.is_empty() {
        return Err(Fault::new("the prompt", "has no tokens").into());
    }
    source.weights().config().check_ids(&tokens)?;
    let mut engine = args.model.load(&source, tokens.len(), tokens.len().saturating_add(args.max_tokens))?;
    if !args.chat && tokenizer.is_some() {
        write!(std::io::stdout().lock(), "{prompt}").written()?;
    }
    let (_, summary) = speaker.say(&mut *engine, &tokens)?;
    report(&summary);
    Ok(())
}

/// What turns tokens into printed text.
pub struct Speaker<'a> {
    /// `None`: the model has no text, its tokens are printed as numbers.
    tokenizer: Option<&'a Tokenizer>,
    max_tokens: usize,
    sampling: Sampling,
}

impl Speaker<'_> {
    /// The tokenizer of a model that has one.
    pub fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        self.tokenizer.ok_or_else(|| Fault::new("the chat", "a random model has no chat template").into())
    }

    /// Generates behind `tokens`, and prints the text as it comes. Returns the new tokens.
    pub fn say(&self, engine: &mut dyn Engine, tokens: &[u32]) -> Result<(Vec<u32>, Summary), Failure> {
        let mut out = std::io::stdout().lock();
        let mut text = self.tokenizer.map(Tokenizer::stream);
        let mut said = Vec::new();
        let mut written = Ok(());
        let request = Request {
            prompt: tokens,
            max_tokens: self.max_tokens,
            sampling: self.sampling,
            stops: self.tokenizer.map_or(&[], Tokenizer::stops),
        };
        let summary = generate(engine, request, |token| {
            said.push(token);
            let piece = text.as_mut().map_or_else(|| format!("{token} "), |text| text.push(token));
            written = out.write_all(piece.as_bytes()).and_then(|()| out.flush());
            if written.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        written.written()?;
        let rest = text.as_mut().map(|text| text.finish()).unwrap_or_default();
        writeln!(out, "{rest}").written()?;
        Ok((said, summary))
    }
}

/// Speed, for whoever watches.
pub fn report(summary: &Summary) {
    note(format_args!(
        "prompt: {} tokens, {:.1} tokens/s; generated: {} tokens, {:.1} tokens/s\n",
        summary.prompt_tokens,
        summary.prompt_rate(),
        summary.tokens,
        summary.decode_rate()
    ));
}
