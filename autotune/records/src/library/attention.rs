//! Records of attention: of prompts, causally, and of decoding.

use tegula_kernels::DeviceClass;
use tegula_kernels::attention::decode::config::{DecodeConfig, DecodeShape};
use tegula_kernels::attention::forward::config::ForwardConfig;
use tegula_kernels::tuned::{TunedDecode, TunedForward};

use super::Library;
use crate::bucket::Dim;
use crate::fields::{Config, Shape};

/// [`tegula_kernels::attention::forward`](mod@tegula_kernels::attention::forward), causal.
pub struct Forward;

/// [`tegula_kernels::attention::decode`](mod@tegula_kernels::attention::decode).
pub struct Decode;

const DIMS: &[Dim] = &[
    Dim::bucketed("queries"),
    Dim::bucketed("keys"),
    Dim::bucketed("sequences"),
    Dim::exact("group"),
    Dim::exact("head_dim"),
    Dim::exact("bits"),
];

/// As tiles have it.
fn padded(dim: usize) -> usize {
    dim.next_power_of_two().max(16)
}

#[derive(Clone, Copy, PartialEq)]
enum Algorithm {
    Hopper,
    General,
}

const ALGORITHMS: [(&str, Algorithm); 2] = [("hopper", Algorithm::Hopper), ("general", Algorithm::General)];

impl Library for Forward {
    type Typed = TunedForward;
    const NAME: &'static str = "attention_forward";
    const SPACE: u32 = 1;
    const DIMS: &'static [Dim] = DIMS;

    fn to_config(typed: &TunedForward, _: &Shape) -> Config {
        match typed {
            TunedForward::Hopper => Config::new().with("algorithm", "hopper"),
            TunedForward::General(config) => Config::new()
                .with("algorithm", "general")
                .with("block_q", config.block_q)
                .with("block_kv", config.block_kv)
                .with("num_warps", config.num_warps)
                .with("num_stages", config.num_stages),
        }
    }

    fn from_config(config: &Config, shape: &Shape) -> Result<TunedForward, String> {
        if config.word("algorithm", &ALGORITHMS)? == Algorithm::Hopper {
            return Ok(TunedForward::Hopper);
        }
        let dim = padded(shape.extent("head_dim"));
        Ok(TunedForward::General(ForwardConfig {
            block_q: config.number("block_q")?,
            block_kv: config.number("block_kv")?,
            head_dim: dim,
            value_dim: dim,
            num_warps: config.number("num_warps")?,
            num_stages: config.number("num_stages")?,
        }))
    }

    fn check(typed: &TunedForward, shape: &Shape, device: DeviceClass) -> Result<(), String> {
        let (dim, bits) = (shape.extent("head_dim"), shape.extent("bits"));
        match typed {
            TunedForward::Hopper if device.is_hopper() && bits == 16 => Ok(()),
            TunedForward::Hopper => {
                Err("the kernel for Hopper, on another device or wider elements".to_owned())
            }
            TunedForward::General(config) => config.check(dim, dim, bits / 8, device),
        }
    }
}

/// The shape that the choice for decoding is made by.
pub fn decode_shape(shape: &Shape) -> DecodeShape {
    let dim = shape.extent("head_dim");
    DecodeShape {
        queries: shape.extent("queries"),
        group: shape.extent("group"),
        keys: shape.extent("keys"),
        head_dim: dim,
        value_dim: dim,
        bytes: shape.extent("bits") / 8,
    }
}

impl Library for Decode {
    type Typed = TunedDecode;
    const NAME: &'static str = "attention_decode";
    const SPACE: u32 = 1;
    const DIMS: &'static [Dim] = DIMS;

    fn to_config(typed: &TunedDecode, _: &Shape) -> Config {
        let TunedDecode { config, splits } = typed;
        Config::new()
            .with("block_queries", config.block_queries)
            .with("block_group", config.block_group)
            .with("block_kv", config.block_kv)
            .with("num_warps", config.num_warps)
            .with("num_stages", config.num_stages)
            .with("splits", *splits)
    }

    fn from_config(config: &Config, shape: &Shape) -> Result<TunedDecode, String> {
        let dim = padded(shape.extent("head_dim"));
        let splits = config.number("splits")?;
        let config = DecodeConfig {
            block_queries: config.number("block_queries")?,
            block_group: config.number("block_group")?,
            block_kv: config.number("block_kv")?,
            head_dim: dim,
            value_dim: dim,
            num_warps: config.number("num_warps")?,
            num_stages: config.number("num_stages")?,
        };
        Ok(TunedDecode { config, splits })
    }

    fn check(typed: &TunedDecode, shape: &Shape, device: DeviceClass) -> Result<(), String> {
        typed.config.check(decode_shape(shape), typed.splits, device)
    }
}
