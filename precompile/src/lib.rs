//! Compiles kernels ahead of time into bundles.
//!
//! A [`Plan`] says which kernels, for which targets, under which facts of their arguments; running it with a compiler gives a bundle. For kernels of one's own, in a
//! `build.rs` or a program beside the one that is shipped:
//!
//! ```ignore
//! let compiler = tegula_codegen::compile::PtxCompiler::default();
//! let plan = Plan::new().target("sm_90a", CodeKind::Cubin).kernel("scale", "f32", 128, || scale::<f32>::stage(128));
//! write_file("kernels.tegula".as_ref(), &plan.run(&compiler, None, &|_| ())?.bundle)?;
//! ```
//!
//! In a `build.rs`, [`build_script`] does the same, and without a compiler takes a bundle that lies with the sources.
//!
//! For the kernel library, a [`Manifest`] selects from its registry; the programme `tegula-precompile` (feature `jit`) reads one and writes the bundle.
//!
//! **What a launch finds.** It is looked for by the tile IR that the launch stages: types, meta-parameters and hints have to be those of a kernel in the plan. Of its variants the
//! one with most facts that hold runs: see [`FactSet`] for what the sets ask.

mod facts;
mod launched;
mod manifest;
mod plan;
mod records;
mod script;
mod table;

pub use facts::FactSet;
pub use launched::{Coverage, h200, known, launched};
pub use manifest::{Calls, Manifest, Selection};
pub use plan::{CodeKind, Error, Failure, Outcome, Plan, Progress, Row};
pub use records::Records;
pub use script::{Script, UPDATE, build_script};
pub use table::table;
pub use tegula_bundle::{Bundle, replaceable, write_file};
