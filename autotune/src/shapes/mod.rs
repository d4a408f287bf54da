//! Which shapes to tune: from a model's dimensions, from a log of what was served, or named one by one.
//!
//! A kernel says what it needs of a [`Workload`] ([`crate::Tunable::shapes`]); what several sources ask for is merged, and counts add up: by them a run's time
//! is shared out.

pub mod layers;
pub mod model;
pub mod trace;

use std::collections::BTreeMap;

pub use model::Model;
use tegula_records::Shape;

/// A model on some devices, and the batches that it serves.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// What it runs.
    pub model: Model,
    /// Devices that share each layer.
    pub tp: usize,
    /// Bits of an activation and a weight.
    pub bits: usize,
    /// Sequences that are decoded together.
    pub batches: Vec<usize>,
    /// Tokens of a prompt, or of a part of it.
    pub prefill: Vec<usize>,
    /// Lengths of the sequences that are decoded.
    pub contexts: Vec<usize>,
}

/// Batches of decoding.
pub const BATCHES: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Lengths of prompts.
pub const PREFILL: [usize; 6] = [512, 1024, 2048, 4096, 8192, 16384];
/// Lengths of contexts.
pub const CONTEXTS: [usize; 4] = [1024, 4096, 16384, 65536];

impl Workload {
    /// A model on one device, in 16 bits, with the usual batches.
    pub fn new(model: Model) -> Workload {
        Workload {
            model,
            tp: 1,
            bits: 16,
            batches: BATCHES.into(),
            prefill: PREFILL.into(),
            contexts: CONTEXTS.into(),
        }
    }

    /// Numbers of tokens that go through a layer at a time.
    pub fn tokens(&self) -> impl Iterator<Item = usize> {
        self.batches.iter().chain(&self.prefill).copied()
    }
}

/// Shapes of one kernel, with how much each counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Demand(BTreeMap<Shape, f64>);

impl Demand {
    /// Asks for a shape once more.
    pub fn add(&mut self, shape: Shape, count: f64) {
        *self.0.entry(shape).or_default() += count;
    }

    /// Shapes in their order, each once.
    pub fn iter(&self) -> impl Iterator<Item = (&Shape, f64)> {
        self.0.iter().map(|(shape, &count)| (shape, count))
    }

    /// Is nothing asked for?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The same, with every shape replaced by the one that stands for it.
    #[must_use]
    pub fn mapped(&self, by: impl Fn(&Shape) -> Shape) -> Demand {
        let mut mapped = Demand::default();
        self.iter().for_each(|(shape, count)| mapped.add(by(shape), count));
        mapped
    }
}
