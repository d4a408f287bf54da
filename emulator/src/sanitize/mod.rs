//! Sanitizers that are [`crate::observe::Observer`]s.

mod barriers;
mod proxy;

pub use barriers::BarrierMemory;
pub use proxy::ProxyHazards;

use crate::observe::Factory;

/// All of them, for [`crate::Options::observers`].
pub fn all() -> Vec<Factory> {
    vec![
        std::sync::Arc::new(|watched| Box::new(ProxyHazards::new(watched))),
        std::sync::Arc::new(|_| Box::new(BarrierMemory::default())),
    ]
}
