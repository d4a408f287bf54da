//! RMSNorm.

use tegula::prelude::*;
use tegula::runtime::{Device, Stream};
use tegula_kernels::rms_norm::config::Config as Typed;
use tegula_kernels::rms_norm::rms_norm_with;
use tegula_records::library::Library;
use tegula_records::library::rms_norm::RmsNorm as Records;

use super::pool::{Outputs, Pool, sets};
use super::{BF16, Expected, F32, as_in_records, spread, words};
use crate::cost::{Plan, Work};
use crate::device::DeviceInfo;
use crate::shapes::{Demand, Workload, layers};
use crate::{Config, Fault, Instance, Purpose, Shape, Tunable};

/// [`tegula_kernels::rms_norm`](fn@tegula_kernels::rms_norm).
pub struct RmsNorm;

const EPS: f32 = 1e-6;

fn extents(shape: &Shape) -> [usize; 2] {
    ["rows", "cols"].map(|name| shape.extent(name))
}

impl Tunable for RmsNorm {
    as_in_records!(Records);

    fn shapes(&self, workload: &Workload) -> Result<Demand, String> {
        Ok(layers::rms_norm(workload))
    }

    fn space(&self, shape: &Shape, device: &DeviceInfo) -> Vec<Config> {
        let [rows, cols] = extents(shape);
        let typed = Typed::candidates(rows, cols, device.class());
        typed.iter().map(|config| Records::to_config(config, shape)).collect()
    }

    fn default_config(&self, shape: &Shape, device: &DeviceInfo) -> Config {
        let [rows, cols] = extents(shape);
        Records::to_config(&Typed::choose(rows, cols, device.class()), shape)
    }

    fn work(&self, shape: &Shape) -> Work {
        let [rows, cols] = extents(shape).map(|extent| extent as f64);
        // Counted as operations of tensor cores these are few; bytes bound it.
        Work { flops: 4.0 * rows * cols, bytes: 2.0 * (2.0 * rows * cols + cols) }
    }

    fn plan(&self, shape: &Shape, config: &Config, _: &DeviceInfo) -> Option<Plan> {
        let typed = Records::from_config(config, shape).ok()?;
        let [rows, cols] = extents(shape);
        let blocks = cols.div_ceil(typed.block);
        let reads = if typed.one_block { 1 } else { 2 };
        let elements = typed.rows * typed.block * blocks;
        Some(Plan {
            programs: rows.div_ceil(typed.rows),
            threads: 32 * typed.num_warps as usize,
            shared: 4 * typed.num_warps as usize * typed.rows,
            registers: 24 + 2 * typed.rows * typed.block / (32 * typed.num_warps as usize).max(1),
            flops: 40.0 * elements as f64,
            bytes: 2.0 * (elements * (reads + 1)) as f64,
            overhead: 2e-6,
        })
    }

    fn emulated_shape(&self, shape: &Shape) -> Shape {
        let mut small = shape.clone();
        small.set("rows", shape.get("rows").copied().unwrap_or(1).min(64));
        small
    }

    fn instance(
        &self,
        shape: &Shape,
        device: &Device,
        purpose: Purpose,
    ) -> Result<Box<dyn Instance>, String> {
        let [rows, cols] = extents(shape);
        let sets = sets(purpose, 4 * rows * cols);
        Ok(Box::new(Norm {
            shape: shape.clone(),
            extents: [rows, cols],
            sets,
            x: Pool::new(device, [sets, rows * cols], 3, 1.0, purpose)?,
            weight: Pool::new(device, [1, cols], 4, 1.0, purpose)?,
            y: Outputs::new(device, [sets, rows * cols], cols)?,
            expected: vec![],
        }))
    }
}

struct Norm {
    shape: Shape,
    extents: [usize; 2],
    sets: usize,
    x: Pool,
    weight: Pool,
    y: Outputs,
    /// Of sampled rows.
    expected: Vec<(usize, Vec<Expected>)>,
}

impl Norm {
    fn exact(&self, row: usize) -> Vec<Expected> {
        let cols = self.extents[1];
        let x = self.x.run(row * cols, cols);
        let mean = x.iter().map(|x| x * x).sum::<f64>() / cols as f64;
        let inverse = (mean + f64::from(EPS)).sqrt().recip();
        let element = |(at, (x, weight)): (usize, (&f64, &f64))| {
            let exact = x * inverse * weight;
            // The sum of squares is off by γ(cols), its root by half of that; then a few operations, of which the root has 2 ulp.
            let computed = exact.abs() * (0.5 * cols as f64 + 8.0) * F32;
            Expected { at, exact, bound: computed + (exact.abs() + computed) * BF16 }
        };
        x.iter().zip(self.weight.run(0, cols)).enumerate().map(element).collect()
    }
}

impl Instance for Norm {
    fn launch(&mut self, config: &Config, call: usize, stream: &Stream) -> Result<(), String> {
        let config = Records::from_config(config, &self.shape)?;
        let (set, [rows, cols]) = (call % self.sets, self.extents);
        let (x, weight) = (self.x.view(set, &[rows, cols])?, self.weight.view(0, &[cols])?);
        let y = self.y.view_mut(set, &[rows, cols])?;
        rms_norm_with::<bf16, bf16>(x, weight, y, EPS, config, stream).map_err(words)
    }

    fn verify(&mut self, config: &Config, stream: &Stream) -> Result<(), Fault> {
        if self.expected.is_empty() {
            let rows = spread(self.extents[0], 16);
            self.expected = rows.into_iter().map(|row| (row, self.exact(row))).collect();
        }
        for (row, _) in &self.expected {
            self.y.poison(*row, stream)?;
        }
        self.launch(config, 0, stream)?;
        stream.synchronize().map_err(words)?;
        for (row, expected) in &self.expected {
            let y = self.y.row(*row)?;
            for element in expected {
                element.compare(|| format!("y[{row}, {}]", element.at), &y)?;
            }
        }
        Ok(())
    }
}
