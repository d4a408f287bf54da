//! Metadata that changes what a model computes in ways that we do not follow: a file that has it is refused, not run wrong.

use crate::error::{Fault, quoted};
use crate::gguf::GgufFile;

/// Keys behind the architecture's name, and the value beside 0 that means the same as no such key.
const NEUTRAL: &[(&str, f64)] = &[
    ("expert_count", 0.0),
    ("expert_used_count", 0.0),
    ("logit_scale", 1.0),
    ("residual_scale", 1.0),
    ("embedding_scale", 1.0),
    ("attention.scale", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("rope.scaling.attn_factor", 1.0),
];

/// Is there nothing of the kind? `context`: the longest sequence.
pub(super) fn refuse(file: &GgufFile, architecture: &str, context: usize) -> Result<(), Fault> {
    let fault = |key: &str, value: f64| {
        Fault::new(format!("metadata {}", quoted(key)), format!("is {value}, which is not supported"))
    };
    for (suffix, neutral) in NEUTRAL {
        let key = format!("{architecture}.{suffix}");
        if let Some(value) = file.float(&key)?.filter(|value| *value != 0.0 && value != neutral) {
            return Err(fault(&key, value));
        }
    }
    // A window as long as the context is none.
    let key = format!("{architecture}.attention.sliding_window");
    match file.float(&key)? {
        Some(window) if window != 0.0 && window < context as f64 => Err(fault(&key, window)),
        _ => Ok(()),
    }
}
