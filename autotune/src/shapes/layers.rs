//! What the kernel library's functions meet in a decoder's layers.
//!
//! Windowed layers are taken as if they saw everything: the library has no window yet. Latent attention is not derived, since no kernel of the library computes it.

use tegula_records::Shape;

use super::{Demand, Workload};

/// Extents of `gemm`, in their order.
pub const GEMM: [&str; 4] = ["m", "n", "k", "bits"];
/// Extents of `rms_norm`.
pub const RMS_NORM: [&str; 3] = ["rows", "cols", "bits"];
/// Extents of `attention_forward`; `sequences` counts pairs of a sequence and a head.
pub const FORWARD: [&str; 6] = ["queries", "keys", "sequences", "group", "head_dim", "bits"];
/// Extents of `attention_decode`; `sequences` counts pairs of a sequence and a KV head, `queries` new tokens of each.
pub const DECODE: [&str; 6] = ["queries", "keys", "sequences", "group", "head_dim", "bits"];

fn shape<const N: usize>(names: [&str; N], values: [usize; N]) -> Shape {
    Shape::of(&names, &values.map(|value| value as u64))
}

/// Matrix products: each weight with each number of tokens; lm_head with the last token of each sequence alone.
///
/// # Errors
/// If the model cannot be divided among so many devices.
pub fn gemm(workload: &Workload) -> Result<Demand, String> {
    let mut demand = Demand::default();
    let layers = workload.model.layers as f64;
    for weights in workload.model.weights(workload.tp)? {
        let head = weights.name == "lm_head";
        let tokens: Vec<usize> = if head { workload.batches.clone() } else { workload.tokens().collect() };
        for tokens in tokens {
            let at = [weights.rows(tokens), weights.n, weights.k, workload.bits];
            demand.add(shape(GEMM, at), if head { 1.0 } else { layers });
        }
    }
    Ok(demand)
}

/// Norms: two a layer over the hidden dimension, and over heads where queries and keys are normalised.
pub fn rms_norm(workload: &Workload) -> Demand {
    let (model, mut demand) = (&workload.model, Demand::default());
    let (heads, kv_heads) = model.heads(workload.tp);
    for tokens in workload.tokens() {
        let layers = model.layers as f64;
        demand.add(shape(RMS_NORM, [tokens, model.hidden, workload.bits]), 2.0 * layers);
        if model.qk_norm {
            for heads in [heads, kv_heads] {
                demand.add(shape(RMS_NORM, [tokens * heads, model.head_dim, workload.bits]), layers);
            }
        }
    }
    demand
}

/// Attention of prompts, one sequence at a time.
pub fn forward(workload: &Workload) -> Demand {
    let (model, mut demand) = (&workload.model, Demand::default());
    if model.latent.is_some() {
        return demand;
    }
    let (heads, kv_heads) = model.heads(workload.tp);
    for &tokens in &workload.prefill {
        let at = [tokens, tokens, heads, heads / kv_heads, model.head_dim, workload.bits];
        demand.add(shape(FORWARD, at), model.layers as f64);
    }
    demand
}

/// The most memory that a KV cache of one layer may take.
const MOST_CACHE: usize = 8 << 30;

/// Attention of one new token of each sequence, for all batches and contexts whose cache fits.
pub fn decode(workload: &Workload) -> Demand {
    let (model, mut demand) = (&workload.model, Demand::default());
    if model.latent.is_some() {
        return demand;
    }
    let (heads, kv_heads) = model.heads(workload.tp);
    for &batch in &workload.batches {
        for &keys in &workload.contexts {
            if batch * keys * kv_heads * model.head_dim * 2 * workload.bits / 8 <= MOST_CACHE {
                let at = [1, keys, batch * kv_heads, heads / kv_heads, model.head_dim, workload.bits];
                demand.add(shape(DECODE, at), model.layers as f64);
            }
        }
    }
    demand
}

#[cfg(test)]
mod tests {
    use super::super::Model;
    use super::*;

    fn lines(demand: &Demand) -> Vec<String> {
        demand.iter().map(|(shape, count)| format!("{count} × {shape}")).collect()
    }

    #[test]
    fn shapes_of_a_small_workload() {
        let mut workload = Workload::new(Model::load("qwen3-8b").unwrap());
        workload.batches = vec![8];
        workload.prefill = vec![512];
        workload.contexts = vec![4096];
        let gemm = lines(&gemm(&workload).unwrap());
        assert_eq!(gemm.len(), 2 * 4 + 1);
        assert!(gemm.contains(&"36 × m=8 n=6144 k=4096 bits=16".to_owned()), "{gemm:?}");
        assert!(gemm.contains(&"1 × m=8 n=151936 k=4096 bits=16".to_owned()), "{gemm:?}");
        assert!(!gemm.iter().any(|line| line.contains("m=512 n=151936")), "one token of each is looked at");
        assert_eq!(
            lines(&rms_norm(&workload)),
            [
                "72 × rows=8 cols=4096 bits=16",
                "36 × rows=64 cols=128 bits=16",
                "36 × rows=256 cols=128 bits=16",
                "72 × rows=512 cols=4096 bits=16",
                "36 × rows=4096 cols=128 bits=16",
                "36 × rows=16384 cols=128 bits=16",
            ]
        );
        assert_eq!(
            lines(&forward(&workload)),
            ["36 × queries=512 keys=512 sequences=32 group=4 head_dim=128 bits=16"]
        );
        assert_eq!(
            lines(&decode(&workload)),
            ["36 × queries=1 keys=4096 sequences=64 group=4 head_dim=128 bits=16"]
        );
    }

    #[test]
    fn caches_that_no_device_has_are_left_out() {
        let workload = Workload::new(Model::load("llama3-8b").unwrap());
        let largest = decode(&workload).iter().map(|(s, _)| s.extent("keys") * s.extent("sequences")).max();
        // 8 GiB of keys and values of 128 elements of 2 bytes.
        assert_eq!(largest, Some(1 << 24));
    }
}
