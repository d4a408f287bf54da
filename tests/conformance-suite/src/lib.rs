//! The conformance suite: what every operation of tile IR must give, on every device.
//!
//! `tests/conformance/*.toml` lists operations, element types, shapes, inputs and tolerances, one file a family. This crate expands
//! them into [`Case`]s: a kernel in tile IR, seeded inputs, and the expected outputs from a plain scalar reference
//! ([`mod@number`], `reference/`), which shares no code with the interpreter or the code generator: it is what they are checked
//! against. An [`Engine`] runs a case on a device and [`check`] compares; [`HostEngine`] is the tile interpreter. What runs on a GPU
//! is in `tests/conformance-gpu`.
//!
//! Kernels take sizes at run time, so one kernel serves many shapes; outputs start as a poison pattern and inputs must
//! come back unchanged, so a store outside its place is an error of the case.
//!
//! Rejected: taking expected values from the interpreter (a shared mistake would pass), and storing them in files (nobody could
//! review them).

mod case;
mod draft;
mod families;
mod host;
mod inputs;
pub mod number;
mod place;
mod reference;
mod sink;
mod spec;

pub use case::{Case, Engine, Expected, HostArg, HostBuffer, Outputs, Rule, check};
pub use host::HostEngine;

/// The environment variable that selects cases: those whose name contains one of its comma-separated parts.
pub const FILTER_VARIABLE: &str = "TEGULA_CONFORMANCE";

/// The data files: their names, and what they hold.
const FILES: &[(&str, &str)] = &[
    ("atomic", include_str!("../../conformance/atomic.toml")),
    ("cast", include_str!("../../conformance/cast.toml")),
    ("dot", include_str!("../../conformance/dot.toml")),
    ("elementwise", include_str!("../../conformance/elementwise.toml")),
    ("fold", include_str!("../../conformance/fold.toml")),
    ("maths", include_str!("../../conformance/maths.toml")),
    ("pointer", include_str!("../../conformance/pointer.toml")),
    ("program", include_str!("../../conformance/program.toml")),
    ("shape", include_str!("../../conformance/shape.toml")),
    ("view", include_str!("../../conformance/view.toml")),
];

/// All cases that [`FILTER_VARIABLE`] selects, in a stable order.
///
/// # Panics
/// If a data file is wrong, with the file and the entry: that is a mistake in the suite.
pub fn cases() -> Vec<Case> {
    cases_matching(&std::env::var(FILTER_VARIABLE).unwrap_or_default())
}

/// All cases whose name contains one of these comma-separated parts; all, if there are none.
///
/// # Panics
/// As [`cases`].
pub fn cases_matching(filter: &str) -> Vec<Case> {
    let mut sink = sink::Sink::new(filter);
    for (file, text) in FILES {
        if let Err(message) = spec::expand(file, text, &mut sink) {
            panic!("tests/conformance/{file}.toml: {message}");
        }
    }
    sink.into_cases()
}

#[cfg(test)]
mod tests;
