//! The matrix product.

use tegula::prelude::*;
use tegula::runtime::{Device, Stream};
use tegula_kernels::gemm::config::{Algorithm, Config as Typed};
use tegula_kernels::gemm::{GemmOptions, Workspace, gemm_with};
use tegula_records::library::Library;
use tegula_records::library::gemm::{Gemm as Records, problem};

use super::pool::{Outputs, Pool, sets};
use super::{BF16, Expected, F32, as_in_records, spread, words};
use crate::cost::{Plan, Work};
use crate::device::DeviceInfo;
use crate::shapes::{Demand, Workload, layers};
use crate::{Config, Fault, Instance, Purpose, Shape, Tunable};

/// [`tegula_kernels::gemm`](fn@tegula_kernels::gemm).
pub struct Gemm;

impl Tunable for Gemm {
    as_in_records!(Records);

    fn shapes(&self, workload: &Workload) -> Result<Demand, String> {
        layers::gemm(workload)
    }

    fn space(&self, shape: &Shape, device: &DeviceInfo) -> Vec<Config> {
        let typed = Typed::candidates(&problem(shape), device.class());
        typed.iter().map(|config| Records::to_config(config, shape)).collect()
    }

    fn default_config(&self, shape: &Shape, device: &DeviceInfo) -> Config {
        Records::to_config(&Typed::choose(&problem(shape), true, device.class()), shape)
    }

    fn work(&self, shape: &Shape) -> Work {
        let [m, n, k] = ["m", "n", "k"].map(|name| shape.extent(name) as f64);
        Work { flops: 2.0 * m * n * k, bytes: 2.0 * (m * k + n * k + m * n) }
    }

    fn plan(&self, shape: &Shape, config: &Config, device: &DeviceInfo) -> Option<Plan> {
        let typed = Records::from_config(config, shape).ok()?;
        let problem = problem(shape);
        let [m, n, k] = [problem.m, problem.n, problem.k];
        let programs = typed.programs(1, [m, n, k], device.multiprocessors.max(1) as usize);
        let tiles = typed.tiles(m, n) as f64;
        let steps = k.div_ceil(typed.block_k) as f64;
        // Of a CTA, of which a program may have several.
        let rows = typed.rows / (typed.cluster as usize).max(1);
        let operands = 2.0 * ((rows + typed.width()) * typed.block_k) as f64;
        let products = 2.0 * (rows * typed.width() * typed.block_k) as f64;
        let own = tiles * steps / programs.max(1) as f64;
        // Of those that stay, the longest counts.
        let own = match typed.algorithm {
            Algorithm::Persistent => (tiles / programs.max(1) as f64).ceil() * steps,
            _ => own,
        };
        let sums = rows * typed.width() / (32 * typed.num_warps as usize).max(1);
        let specialized = typed.warp_specialize != WarpSpecialize::Off;
        let groups = if typed.warp_specialize == WarpSpecialize::PingPong { 2 } else { 1 };
        let (threads, shared) = match specialized {
            true => (
                32 * typed.num_warps as usize * groups + 128,
                typed.shared_bytes(problem.form, problem.class),
            ),
            false => (32 * typed.num_warps as usize, (operands * f64::from(typed.num_stages)) as usize),
        };
        let gemv = typed.algorithm == Algorithm::Gemv;
        Some(Plan {
            programs,
            threads,
            shared: if gemv { 0 } else { shared },
            registers: if gemv { 64 } else { 48 + sums },
            // Products without tensor cores take ten times as long.
            flops: products * own * if gemv { 10.0 } else { 1.0 },
            bytes: operands * own,
            overhead: if typed.algorithm == Algorithm::StreamK { 5e-6 } else { 2e-6 },
        })
    }

    fn emulated_shape(&self, shape: &Shape) -> Shape {
        let mut small = shape.clone();
        for (name, most) in [("m", 128), ("n", 256), ("k", 2048)] {
            small.set(name, shape.get(name).copied().unwrap_or(1).min(most));
        }
        small
    }

    fn instance(
        &self,
        shape: &Shape,
        device: &Device,
        purpose: Purpose,
    ) -> Result<Box<dyn Instance>, String> {
        let extents @ [m, n, k] = ["m", "n", "k"].map(|name| shape.extent(name));
        let sets = sets(purpose, 2 * (m * k + n * k + m * n));
        Ok(Box::new(Product {
            shape: shape.clone(),
            extents,
            sets,
            x: Pool::new(device, [sets, m * k], 1, 1.0, purpose)?,
            w: Pool::new(device, [sets, n * k], 2, 1.0, purpose)?,
            y: Outputs::new(device, [sets, m * n], n)?,
            workspace: Workspace::new(),
            expected: vec![],
        }))
    }
}

struct Product {
    shape: Shape,
    extents: [usize; 3],
    sets: usize,
    x: Pool,
    w: Pool,
    y: Outputs,
    workspace: Workspace,
    /// Of sampled rows.
    expected: Vec<(usize, Vec<Expected>)>,
}

impl Product {
    fn exact(&self) -> Vec<(usize, Vec<Expected>)> {
        let [m, n, k] = self.extents;
        let element = |row: usize, col: usize| {
            let (sum, size) = self.x.dot(row * k, &self.w, col * k, k);
            // γ(K) of sums in f32, whose order is not known, and one rounding.
            let computed = size * (k as f64 + 4.0) * F32;
            Expected { at: col, exact: sum, bound: computed + (sum.abs() + computed) * BF16 }
        };
        let row = |row| (row, spread(n, 40).into_iter().map(|col| element(row, col)).collect());
        spread(m, 8).into_iter().map(row).collect()
    }
}

impl Instance for Product {
    fn launch(&mut self, config: &Config, call: usize, stream: &Stream) -> Result<(), String> {
        let config = Records::from_config(config, &self.shape)?;
        let ([m, n, k], set) = (self.extents, call % self.sets);
        let (x, w) = (self.x.view(set, &[m, k])?, self.w.view(set, &[n, k])?);
        let y = self.y.view_mut(set, &[m, n])?;
        gemm_with(x, w, y, GemmOptions::new(), config, &mut self.workspace, stream).map_err(words)
    }

    fn verify(&mut self, config: &Config, stream: &Stream) -> Result<(), Fault> {
        if self.expected.is_empty() {
            self.expected = self.exact();
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
