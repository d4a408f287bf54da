//! Times of another library on the same GPU, as the GPU bench writes them (`gpu-bench --gemm --json`).

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::Shape;

#[derive(Deserialize)]
struct Precision {
    device: String,
    #[serde(rename = "type")]
    name: String,
    shapes: Vec<Product>,
}

#[derive(Deserialize)]
struct Product {
    m: u64,
    n: u64,
    k: u64,
    peer: String,
    peer_ms: f64,
}

/// What a peer takes for a product.
#[derive(Clone, Debug, PartialEq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Microseconds.
    pub us: f64,
}

/// By device, and m, n and k.
#[derive(Debug, Default, PartialEq)]
pub struct Peers(BTreeMap<(String, [u64; 3]), Peer>);

impl Peers {
    /// Reads a file.
    ///
    /// # Errors
    /// If it is not what the bench writes.
    pub fn read(path: &Path) -> Result<Peers> {
        let text = std::fs::read_to_string(path);
        text.map_err(anyhow::Error::from)
            .and_then(|text| Peers::parse(&text))
            .with_context(|| format!("cannot read {}", path.display()))
    }

    fn parse(text: &str) -> Result<Peers> {
        let all: Vec<Precision> = serde_json::from_str(text)?;
        let half = all.into_iter().filter(|precision| precision.name == "bf16");
        let peers = half.flat_map(|precision| {
            let device = precision.device;
            precision.shapes.into_iter().map(move |product| {
                let Product { m, n, k, peer, peer_ms } = product;
                ((device.clone(), [m, n, k]), Peer { name: peer, us: peer_ms * 1e3 })
            })
        });
        Ok(Peers(peers.collect()))
    }

    /// The peer of a kernel at a shape, if there is one.
    pub fn of(&self, kernel: &str, device: &str, shape: &Shape) -> Option<&Peer> {
        let extent = |name| shape.get(name).copied();
        let at = [extent("m")?, extent("n")?, extent("k")?];
        self.0.get(&(device.to_owned(), at)).filter(|_| kernel == "gemm" && extent("bits") == Some(16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_bench_writes_is_found_by_shape() {
        let text = r#"[
{"device": "NVIDIA H200", "type": "bf16", "shapes": [
  {"m": 16, "n": 6144, "k": 4096, "config": "c", "ms": 0.014, "peer": "cublasLt", "peer_ms": 0.0155, "ratio": 1.1, "tflops": 1.0, "gbps": 1.0, "best": null}
], "means": [], "failures": 0},
{"device": "NVIDIA H200", "type": "f8e4m3", "shapes": [
  {"m": 1, "n": 6144, "k": 4096, "config": "c", "ms": 0.014, "peer": "cublasLt", "peer_ms": 0.0155, "ratio": 1.1, "tflops": 1.0, "gbps": 1.0, "best": null}
], "means": [], "failures": 0}]"#;
        let peers = Peers::parse(text).unwrap();
        let shape = |m: u64| Shape::of(&["m", "n", "k", "bits"], &[m, 6144, 4096, 16]);
        let us = |kernel, device, m| peers.of(kernel, device, &shape(m)).map(|peer| peer.us);
        assert_eq!(us("gemm", "NVIDIA H200", 16), Some(15.5));
        assert_eq!([us("gemm", "NVIDIA H100", 16), us("other", "NVIDIA H200", 16)], [None, None]);
        assert_eq!(us("gemm", "NVIDIA H200", 1), None, "of another precision");
        assert!(Peers::parse("{}").is_err());
    }
}
