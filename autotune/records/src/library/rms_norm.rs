//! Records of RMSNorm.

use tegula_kernels::DeviceClass;
use tegula_kernels::rms_norm::config::Config as Typed;

use super::Library;
use crate::bucket::Dim;
use crate::fields::{Config, Shape};

/// [`tegula_kernels::rms_norm`](fn@tegula_kernels::rms_norm).
pub struct RmsNorm;

impl Library for RmsNorm {
    type Typed = Typed;
    const NAME: &'static str = "rms_norm";
    const SPACE: u32 = 1;
    const DIMS: &'static [Dim] = &[Dim::bucketed("rows"), Dim::exact("cols"), Dim::exact("bits")];

    fn to_config(typed: &Typed, _: &Shape) -> Config {
        Config::new()
            .with("rows", typed.rows)
            .with("block", typed.block)
            .with("one_block", typed.one_block)
            .with("num_warps", typed.num_warps)
    }

    fn from_config(config: &Config, _: &Shape) -> Result<Typed, String> {
        Ok(Typed {
            rows: config.number("rows")?,
            block: config.number("block")?,
            one_block: config.flag("one_block")?,
            num_warps: config.number("num_warps")?,
        })
    }

    fn check(typed: &Typed, shape: &Shape, device: DeviceClass) -> Result<(), String> {
        typed.check(shape.extent("cols"), device)
    }
}
