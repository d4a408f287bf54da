//! Workers: where candidates run. A candidate may do anything (trap, hang, take its process along); what it does to a worker is an answer, and the next candidate gets a
//! worker as good as new.
//!
//! [`Worker`] is what the search talks to; [`child::Child`] is a process with a watchdog, [`session::Session`] does the work in it, and by itself is a worker without that
//! protection, for tests.

pub mod child;
pub mod compile;
pub mod gpu;
pub mod measure;
pub mod session;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::trial::{Failure, Timing};
use crate::{Config, Shape};

/// What is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// Build it, without running.
    Compile,
    /// Is its result right?
    Verify,
    /// How long does it take?
    Time {
        /// The config to measure it beside.
        default: Config,
        /// Pairs of measurements, at most.
        pairs: u32,
        /// The best ratio that is known: what is certainly worse need not be measured further.
        best: f64,
    },
}

/// A question about a config.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The kernel's name.
    pub kernel: String,
    /// The shape.
    pub shape: Shape,
    /// The config.
    pub config: Config,
    /// The question.
    pub question: Question,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// It is built; its result is right.
    Fine,
    /// It takes so long.
    Timed(Timing),
    /// It is no good.
    Failed(Failure),
    /// It is no good, and its process is not either any more: after a trap, a GPU's context answers nothing.
    Broken(Failure),
    /// The worker itself cannot work: no device, no memory.
    Unable(String),
}

/// Something that answers.
pub trait Worker {
    /// Answers, within the time: [`crate::trial::Kind::Hang`] is the answer if it does not.
    fn ask(&mut self, request: &Request, limit: Duration) -> Reply;
}
