//! The tensors of a Llama-family model, whatever a file calls them, and where they come from: [`ModelWeights`].

use crate::config::Config;
use crate::error::Error;
use crate::weights::Weight;

/// A tensor's part in a Llama-family model; of a layer where it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// `[vocab, hidden]`.
    Embedding,
    /// `[hidden]`.
    OutputNorm,
    /// `[vocab, hidden]`.
    Output,
    /// Factors by which rotary frequencies are divided, `[rope.dims / 2]` (GGUF only).
    RopeFactors,
    /// `[hidden]`, of a layer.
    AttentionNorm(usize),
    /// `[q_width, hidden]`, of a layer.
    Query(usize),
    /// `[kv_width, hidden]`, of a layer.
    Key(usize),
    /// `[kv_width, hidden]`, of a layer.
    Value(usize),
    /// `[q_width]`, of a layer; only if [`Config::qkv_bias`].
    QueryBias(usize),
    /// `[kv_width]`, of a layer; only if [`Config::qkv_bias`].
    KeyBias(usize),
    /// `[kv_width]`, of a layer; only if [`Config::qkv_bias`].
    ValueBias(usize),
    /// `[hidden, q_width]`, of a layer.
    AttentionOutput(usize),
    /// `[hidden]`, of a layer.
    FeedForwardNorm(usize),
    /// `[intermediate, hidden]`, of a layer.
    Gate(usize),
    /// `[intermediate, hidden]`, of a layer.
    Up(usize),
    /// `[hidden, intermediate]`, of a layer.
    Down(usize),
}

/// A model's config and tensors: of files ([`Checkpoint`](crate::Checkpoint)), or random ([`RandomWeights`](crate::random::RandomWeights)).
pub trait ModelWeights {
    /// What the model looks like.
    fn config(&self) -> &Config;

    /// The tensor of a part, if there is one, of whatever shape.
    ///
    /// # Errors
    /// If its elements are of a type that we do not know.
    fn find(&self, part: Part) -> Result<Option<Weight<'_>>, Error>;

    /// The error that says what is wrong with a part's tensor, and where it is.
    fn fault(&self, part: Part, problem: String) -> Error;

    /// Is every tensor that there is a part's, or known not to matter? One that was left out would change the result.
    ///
    /// # Errors
    /// Names the first that is not.
    fn check_others(&self) -> Result<(), Error> {
        Ok(())
    }

    /// The tensor of a part, of the shape that the config asks for, if there is one.
    ///
    /// # Errors
    /// If it has another shape, or elements of a type that we do not know.
    fn optional(&self, part: Part) -> Result<Option<Weight<'_>>, Error> {
        let Some(weight) = self.find(part)? else { return Ok(None) };
        let (shape, why) = part.shape(self.config());
        if weight.shape == shape {
            return Ok(Some(weight));
        }
        let found = weight.shape;
        Err(self
            .fault(part, format!("has shape {found:?}, but the model's config asks for {shape:?} ({why})")))
    }

    /// The tensor of a part, of the shape that the config asks for.
    ///
    /// # Errors
    /// If it is missing, has another shape, or elements of a type that we do not know.
    fn weight(&self, part: Part) -> Result<Weight<'_>, Error> {
        let missing =
            || self.fault(part, "is missing: the file is incomplete, or of another kind of model".to_owned());
        self.optional(part)?.ok_or_else(missing)
    }

    /// The output projection, if it is not the embedding table.
    ///
    /// # Errors
    /// See [`ModelWeights::weight`].
    fn output(&self) -> Result<Option<Weight<'_>>, Error> {
        match self.config().tied {
            Some(true) => Ok(None),
            Some(false) => self.weight(Part::Output).map(Some),
            None => self.optional(Part::Output),
        }
    }

    /// Is every tensor there that the model needs, of the right shape and of a type that we know, and none besides? Reads none of their elements.
    ///
    /// # Errors
    /// For the first that is not.
    fn verify(&self) -> Result<(), Error> {
        self.weight(Part::Embedding)?;
        self.weight(Part::OutputNorm)?;
        self.output()?;
        self.optional(Part::RopeFactors)?;
        for layer in 0..self.config().layers {
            for part in Part::of_layer(layer, self.config().qkv_bias) {
                self.weight(part)?;
            }
        }
        self.check_others()
    }
}

impl Part {
    /// The tensors of a layer.
    pub fn of_layer(layer: usize, biases: bool) -> impl Iterator<Item = Part> {
        use Part::*;
        let weights: [fn(usize) -> Part; 9] =
            [AttentionNorm, Query, Key, Value, AttentionOutput, FeedForwardNorm, Gate, Up, Down];
        let biases: &[fn(usize) -> Part] = if biases { &[QueryBias, KeyBias, ValueBias] } else { &[] };
        weights.into_iter().chain(biases.iter().copied()).map(move |part| part(layer))
    }

    /// All tensors of a model, those included that it may have.
    pub fn all(config: &Config) -> impl Iterator<Item = Part> {
        let biases = config.qkv_bias;
        [Part::Embedding, Part::OutputNorm, Part::Output, Part::RopeFactors]
            .into_iter()
            .chain((0..config.layers).flat_map(move |layer| Part::of_layer(layer, biases)))
    }

    /// Is it added instead of multiplied?
    pub fn is_bias(self) -> bool {
        matches!(self, Part::QueryBias(_) | Part::KeyBias(_) | Part::ValueBias(_))
    }

    /// The shape that a config asks for, and its extents in words.
    pub fn shape(self, config: &Config) -> (Vec<usize>, &'static str) {
        let Config { hidden, intermediate, vocab, .. } = *config;
        match self {
            Part::Embedding | Part::Output => (vec![vocab, hidden], "vocabulary, hidden"),
            Part::OutputNorm | Part::AttentionNorm(_) | Part::FeedForwardNorm(_) => (vec![hidden], "hidden"),
            Part::RopeFactors => (vec![config.rope.dims / 2], "half of the rotary dimensions"),
            Part::Query(_) => (vec![config.q_width(), hidden], "heads · head width, hidden"),
            Part::Key(_) | Part::Value(_) => {
                (vec![config.kv_width(), hidden], "key-value heads · head width, hidden")
            }
            Part::QueryBias(_) => (vec![config.q_width()], "heads · head width"),
            Part::KeyBias(_) | Part::ValueBias(_) => {
                (vec![config.kv_width()], "key-value heads · head width")
            }
            Part::AttentionOutput(_) => (vec![hidden, config.q_width()], "hidden, heads · head width"),
            Part::Gate(_) | Part::Up(_) => (vec![intermediate, hidden], "intermediate, hidden"),
            Part::Down(_) => (vec![hidden, intermediate], "hidden, intermediate"),
        }
    }
}
