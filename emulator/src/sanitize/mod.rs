//! Sanitizers that are [`crate::observe::Observer`]s.

mod proxy;

pub use proxy::ProxyHazards;

use crate::observe::Factory;

/// All of them, for [`crate::Options::observers`].
pub fn all() -> Vec<Factory> {
    vec![std::sync::Arc::new(|watched| Box::new(ProxyHazards::new(watched)))]
}
