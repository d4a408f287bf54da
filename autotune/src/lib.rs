//! The autotuner: finds the fastest config of each kernel for the shapes that are served, and keeps it as a record that a team can review and deploy.

pub mod cost;
pub mod device;
pub mod kernel;
pub mod shapes;

pub use kernel::{Config, Fault, Instance, Purpose, Shape, Tunable};
pub use tegula_records::{Dim, Problem};
