//! Sanitizers that are [`crate::observe::Observer`]s.

mod barriers;
mod grid;
mod races;

pub use barriers::BarrierMemory;
pub use grid::GridRaces;
pub use races::Races;

use crate::observe::Factory;

/// All of them, for [`crate::Options::observers`].
pub fn all() -> Vec<Factory> {
    vec![
        std::sync::Arc::new(|watched| Box::new(Races::new(watched))),
        std::sync::Arc::new(|watched| Box::new(GridRaces::new(watched))),
        std::sync::Arc::new(|_| Box::new(BarrierMemory::default())),
    ]
}
