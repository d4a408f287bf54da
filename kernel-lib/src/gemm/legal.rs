//! Which configs are legal for which product, and why not: asked before anything is compiled.

use tegula::ir::analysis::wgmma;
use tegula::ir::target::GpuFeatures;
use tegula::prelude::WarpSpecialize;

use super::config::{Algorithm, Config, Form, Problem};
use super::element::Class;
use crate::DeviceClass;

/// Why a config is refused, and what to do instead (or nothing).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Illegal {
    /// What is wrong, with the figures.
    pub problem: String,
    /// What would be right.
    pub help: &'static str,
}

fn illegal(problem: String, help: &'static str) -> Result<(), Illegal> {
    Err(Illegal { problem, help })
}

/// Shared memory for barriers, as the compiler keeps it free.
const BARRIERS: usize = 2048;
/// A warpgroup stores through two buffers of 64 rows of 128 bytes.
const STAGING: usize = 2 * 64 * 128;

/// Steps along K of all tiles together: 2³¹ by 1024 programs.
const MAX_UNITS: usize = 1 << 21;

impl Config {
    /// Is the config legal for a product on a device? Whatever passes compiles, and is right.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(&self, problem: &Problem, device: DeviceClass) -> Result<(), Illegal> {
        let extents = [("rows", self.rows), ("block_n", self.block_n), ("block_k", self.block_k)];
        if matches!(self.algorithm, Algorithm::Persistent | Algorithm::StreamK)
            && !self.block_n.is_multiple_of(8)
        {
            let problem = format!("block_n is {}, but tensor cores take columns by 8", self.block_n);
            return illegal(problem, "");
        }
        for (name, extent) in extents {
            if !extent.is_power_of_two() {
                return illegal(
                    format!("{name} is {extent}, but tiles have extents that are powers of two"),
                    "",
                );
            }
        }
        let whole = match problem.form {
            Form::Single => None,
            Form::Batched(_) => (self.algorithm == Algorithm::StreamK).then_some("a batch"),
            Form::Gated => (self.algorithm != Algorithm::Persistent).then_some("two matrices of weights"),
            Form::Split => (self.algorithm != Algorithm::Persistent).then_some("several outputs"),
        };
        if let Some(whole) = whole {
            let problem = format!("there is no {:?} of {whole}", self.algorithm);
            return illegal(problem, "use `Algorithm::Persistent`");
        }
        self.check_beside(problem)?;
        self.check_cluster(problem, device)?;
        match self.algorithm {
            Algorithm::Gemv if self.rows < problem.m => illegal(
                format!("{} rows a program, but `x` has {} rows", self.rows, problem.m),
                "use `Algorithm::Tiled`",
            ),
            Algorithm::StreamK => {
                self.check_stream_k(problem)?;
                self.check_persistent(problem, device)
            }
            Algorithm::Persistent => self.check_persistent(problem, device),
            Algorithm::Gemv | Algorithm::Tiled => Ok(()),
        }
    }

    /// What a tile has beside its first part is narrower, and has the same kind of instructions.
    fn check_beside(&self, problem: &Problem) -> Result<(), Illegal> {
        if self.beside == 0 {
            return Ok(());
        }
        if !self.beside.is_multiple_of(8) || self.beside >= self.block_n {
            let problem = format!("{} columns beside {}", self.beside, self.block_n);
            return illegal(problem, "use a multiple of 8 below block_n, or 0");
        }
        let single = matches!(problem.form, Form::Single | Form::Batched(_));
        if self.algorithm != Algorithm::Persistent || self.swap || !single {
            let problem = format!(
                "{} columns beside {}, which only `Algorithm::Persistent` of one matrix of weights has, not swapped",
                self.beside, self.block_n
            );
            return illegal(problem, "use 0");
        }
        Ok(())
    }

    /// Clusters have 1 to 8 CTAs on every GPU that has them, and each CTA a multiprocessor.
    fn check_cluster(&self, problem: &Problem, device: DeviceClass) -> Result<(), Illegal> {
        let cluster = self.cluster;
        if !(cluster.is_power_of_two() && cluster <= 8) {
            return illegal(format!("a cluster of {cluster} CTAs, but there are 1, 2, 4 or 8"), "");
        }
        if cluster == 1 {
            return Ok(());
        }
        if self.algorithm != Algorithm::Persistent
            || self.warp_specialize == WarpSpecialize::Off
            || !matches!(problem.form, Form::Single | Form::Batched(_))
        {
            let problem =
                format!("a cluster of {cluster} CTAs, which only specialised `Algorithm::Persistent` has");
            return illegal(problem, "use a cluster of 1");
        }
        match device {
            // Without them the tile is one CTA's, and no CTA has room for it.
            DeviceClass::Gpu { .. } if !device.is_hopper() => {
                illegal(format!("a cluster of {cluster} CTAs, which only Hopper has"), "use a cluster of 1")
            }
            DeviceClass::Gpu { multiprocessors, .. } if multiprocessors < cluster => {
                let problem = format!("a cluster of {cluster} CTAs on {multiprocessors} multiprocessors");
                illegal(problem, "use a cluster that divides them")
            }
            _ => Ok(()),
        }
    }

    /// Steps are numbered by i32, and multiplied by the number of programs; and there is at least one.
    fn check_stream_k(&self, problem: &Problem) -> Result<(), Illegal> {
        let steps = problem.k.div_ceil(self.block_k);
        let units = self.tiles(problem.m, problem.n).saturating_mul(steps);
        if units == 0 || units > MAX_UNITS {
            let problem = format!("{units} steps along K in all, but 1 to {MAX_UNITS} are possible");
            return illegal(problem, "use `Algorithm::Persistent`");
        }
        if self.warp_specialize == WarpSpecialize::PingPong {
            let problem = "two groups in turns, which takes as many steps for each tile".to_owned();
            return illegal(problem, "use `WarpSpecialize::Cooperative`");
        }
        Ok(())
    }

    fn check_persistent(&self, problem: &Problem, device: DeviceClass) -> Result<(), Illegal> {
        let tiles = self.tiles(problem.m, problem.n).saturating_mul(problem.form.batch());
        if tiles > i32::MAX as usize / 2 {
            return illegal(format!("{tiles} tiles, but they are numbered by an i32"), "use larger tiles");
        }
        // What follows are rules of the hardware that the specialised kernel runs on; without it the kernel is one like others.
        if self.warp_specialize == WarpSpecialize::Off || !device.is_hopper() {
            return Ok(());
        }
        if !self.num_warps.is_multiple_of(4) {
            let problem = format!("{} warps, but tensor cores are driven by groups of 4", self.num_warps);
            return illegal(problem, "");
        }
        let least_rows = 16 * (self.num_warps * self.cluster) as usize;
        if !self.rows.is_multiple_of(least_rows) {
            let problem =
                format!("{} rows for {} warps, each of which takes 16 at a time", self.rows, least_rows / 16);
            return illegal(problem, "use more rows or fewer warps");
        }
        let bytes = problem.class.bits() as usize / 8;
        if !problem.tensor_copies {
            let problem = "operands that tensor copies do not bring: starts and rows of multiples of 16 bytes are needed, along K but for 16-bit types".to_owned();
            return illegal(problem, "use `Algorithm::Tiled`");
        }
        // The least swizzle is 32 bytes wide.
        if self.swap && problem.x_by_columns && self.block_n * bytes < 32 {
            let problem =
                format!("{} rows of x, which lie by columns: tensor copies are of 16", self.block_n);
            return illegal(problem, "use a larger block_n");
        }
        let sums = self.sums(problem.form);
        if sums > wgmma::MAX_SUMS as usize {
            let problem = format!("{sums} sums a thread, but there are registers for {}", wgmma::MAX_SUMS);
            return illegal(problem, "use smaller tiles or more warps");
        }
        if !(self.block_k * bytes).is_multiple_of(32) {
            let problem = format!("block_k is {}, but an instruction takes {}", self.block_k, 32 / bytes);
            return illegal(problem, "");
        }
        let (needed, most) =
            (self.shared_bytes(problem.form, problem.class), GpuFeatures::SM_90.max_shared_bytes as usize);
        if needed > most {
            let problem = format!("{needed} bytes of shared memory, but a CTA can have {most}");
            return illegal(problem, "use fewer stages or smaller tiles");
        }
        if self.num_stages < 2 {
            return illegal(format!("{} stages, but a ring has at least 2", self.num_stages), "");
        }
        if problem.k < self.num_stages as usize * self.block_k {
            let problem =
                format!("{} stages of {} along K, but K is {}", self.num_stages, self.block_k, problem.k);
            return illegal(problem, "use fewer stages, or `Algorithm::Tiled`");
        }
        Ok(())
    }

    /// Sums of a thread.
    pub(super) fn sums(&self, form: Form) -> usize {
        form.matrices() * self.rows * self.width() / (32 * (self.num_warps * self.cluster) as usize)
    }

    /// Bytes of the operands of a step along K, of a CTA.
    pub(super) fn stage_bytes(&self, form: Form, class: Class) -> usize {
        let (matrices, own) = (form.matrices(), self.rows / self.cluster as usize);
        let rows = if self.swap { matrices * own + self.block_n } else { own + matrices * self.width() };
        rows * self.block_k * class.bits() as usize / 8
    }

    /// Bytes of shared memory of the specialised kernel on such operands.
    pub fn shared_bytes(&self, form: Form, class: Class) -> usize {
        let groups = if self.warp_specialize == WarpSpecialize::PingPong { 2 } else { 1 };
        let warpgroups = groups * self.num_warps as usize / 4;
        // A narrower part has buffers of its own.
        let narrow = if (1..64).contains(&self.beside) { STAGING / 2 } else { 0 };
        self.num_stages as usize * self.stage_bytes(form, class) + warpgroups * (STAGING + narrow) + BARRIERS
    }
}
