//! A launch, worked out: what all clusters of it need to know.

use super::frame::{FULL, Frame, Lanes};
use super::warp::{Fragment, LOCAL_START, Warp};
use crate::decode::{Constant, Program, Special};
use crate::launch::Options;
use crate::memory::window::{RANK_SHIFT, SHARED_START};
use crate::memory::{ByteMemory, GlobalMemory};
use crate::observe::LaunchState;

/// A launch.
#[derive(Debug)]
pub struct Job<'a> {
    /// The program.
    pub program: &'a Program,
    /// Which of its functions.
    pub kernel: u32,
    /// CTAs.
    pub grid: [u32; 3],
    /// Threads a CTA.
    pub block: [u32; 3],
    /// CTAs a cluster.
    pub cluster: [u32; 3],
    /// Warps a CTA.
    pub warps: u32,
    /// The bytes of its parameters.
    pub params: Vec<u8>,
    /// Device memory.
    pub memory: &'a GlobalMemory,
    /// The constant bank, with addresses filled in.
    pub constants: Vec<u8>,
    /// Addresses of global variables.
    pub globals: Vec<u64>,
    /// Addresses of shared variables in a CTA of rank 0; `None` for those of other kernels.
    pub shared: Vec<Option<u32>>,
    /// Bytes of shared memory, dynamic ones included.
    pub shared_bytes: u32,
    /// Bytes of dynamic shared memory.
    pub dynamic_bytes: u32,
    /// What observers of its clusters share.
    pub observed: LaunchState,
    /// What the caller wants.
    pub options: &'a Options,
}

/// `a[0] · a[1] · a[2]`
pub fn volume(a: [u32; 3]) -> u64 {
    a.iter().map(|&n| u64::from(n)).product()
}

impl Job<'_> {
    /// `%tid` of a thread by its number in the CTA.
    pub fn thread(&self, linear: u32) -> [u32; 3] {
        let [x, y, _] = self.block;
        [linear % x, linear / x % y, linear / x / y]
    }

    /// Threads a CTA.
    pub fn threads(&self) -> u32 {
        volume(self.block) as u32
    }

    /// Clusters along each axis.
    pub fn clusters(&self) -> [u32; 3] {
        std::array::from_fn(|i| self.grid[i] / self.cluster[i])
    }

    /// `%clusterid` of a cluster by its number in the grid.
    pub fn cluster_id(&self, number: u64) -> [u32; 3] {
        let [x, y, _] = self.clusters().map(u64::from);
        [(number % x) as u32, (number / x % y) as u32, (number / x / y) as u32]
    }

    /// The number of a cluster in the grid.
    pub fn cluster_number(&self, id: [u32; 3]) -> u64 {
        let [x, y, _] = self.clusters().map(u64::from);
        let [i, j, k] = id.map(u64::from);
        i + x * (j + y * k)
    }

    /// CTAs a cluster.
    pub fn ctas(&self) -> u32 {
        volume(self.cluster) as u32
    }

    /// `%ctaid` of a CTA of a cluster.
    pub fn cta_id(&self, cluster: [u32; 3], rank: u32) -> [u32; 3] {
        let at = self.rank_id(rank);
        std::array::from_fn(|i| cluster[i] * self.cluster[i] + at[i])
    }

    fn rank_id(&self, rank: u32) -> [u32; 3] {
        let [x, y, _] = self.cluster;
        [rank % x, rank / x % y, rank / x / y]
    }

    /// A warp at the beginning of the kernel.
    pub fn warp(&self, cluster: [u32; 3], rank: u32, index: u32) -> Warp {
        let threads = self.threads().saturating_sub(index * 32).min(32);
        let live = if threads == 32 { FULL } else { (1 << threads) - 1 };
        let mut warp = Warp {
            cta: rank,
            index,
            id: rank * self.warps + index,
            live,
            fragments: vec![],
            frames: vec![],
            local: ByteMemory::default(),
            local_stride: 0,
            copy_group: [1; 32],
            executed: 0,
        };
        let frame = self.push_frame(&mut warp, cluster, self.kernel, live, None);
        warp.fragments.push(Fragment { frame, pc: 0, lanes: live, wait: None, resumed: false });
        warp
    }

    /// Makes an activation of `function` by `lanes`: its index.
    pub fn push_frame(
        &self,
        warp: &mut Warp,
        cluster: [u32; 3],
        function: u32,
        lanes: u32,
        caller: Option<(u32, u32)>,
    ) -> u32 {
        let f = &self.program.functions[function as usize];
        let mut frame = Frame::new(function, f.slots, f.preds);
        frame.caller = caller;
        frame.lanes = lanes;
        let below = caller.map_or(LOCAL_START, |(index, _)| {
            let caller = &warp.frames[index as usize];
            caller.local_base + self.program.functions[caller.function as usize].local_bytes
        });
        // Variables are at most that aligned.
        frame.local_base = below.next_multiple_of(256);
        let top = frame.local_base - LOCAL_START + f.local_bytes;
        if f.local_bytes > 0 {
            warp.reserve_local(top);
            let start = (frame.local_base - LOCAL_START) as usize;
            for lane in super::frame::lanes_of(lanes) {
                warp.local.forget(lane * warp.local_stride as usize + start, f.local_bytes as usize);
            }
        }
        for &(slot, constant) in &f.constants {
            let values = self.constant(constant, warp, cluster, frame.local_base);
            frame.write(slot, FULL, &values);
        }
        match warp.frames.iter().position(|f| f.lanes == 0) {
            Some(free) => {
                warp.frames[free] = frame;
                free as u32
            }
            None => {
                warp.frames.push(frame);
                warp.frames.len() as u32 - 1
            }
        }
    }

    fn constant(&self, constant: Constant, warp: &Warp, cluster: [u32; 3], local_base: u32) -> Lanes {
        let all = |value: u64| [value; 32];
        match constant {
            Constant::Bits(bits) => all(bits),
            Constant::FrameBase => all(u64::from(local_base)),
            Constant::Global(index) => all(self.globals[index as usize]),
            Constant::Shared(index) => {
                let start = self.shared[index as usize].unwrap_or(SHARED_START);
                all(u64::from(warp.cta) << RANK_SHIFT | u64::from(start))
            }
            Constant::Special(special) => self.special(special, warp, cluster),
        }
    }

    fn special(&self, special: Special, warp: &Warp, cluster: [u32; 3]) -> Lanes {
        let all = |value: u32| [u64::from(value); 32];
        let by_lane = |f: &dyn Fn(u32) -> u32| std::array::from_fn(|lane| u64::from(f(lane as u32)));
        let axis = |a: [u32; 3], i: u8| a[usize::from(i)];
        let cta = self.cta_id(cluster, warp.cta);
        let clusters = self.clusters();
        match special {
            Special::Tid(i) => by_lane(&|lane| axis(self.thread(warp.index * 32 + lane), i)),
            Special::Ntid(i) => all(axis(self.block, i)),
            Special::Ctaid(i) => all(axis(cta, i)),
            Special::Nctaid(i) => all(axis(self.grid, i)),
            Special::LaneId => by_lane(&|lane| lane),
            Special::WarpId => all(warp.index),
            Special::NWarpId => all(64),
            // Each CTA has a multiprocessor of its own, of as many as an H100 has.
            Special::SmId => {
                let [x, y, z] = cta.map(u64::from);
                let [nx, ny, _] = self.grid.map(u64::from);
                all(((x + nx * (y + ny * z)) % 132) as u32)
            }
            Special::NSmId => all(132),
            Special::GridId => all(1),
            Special::LanemaskEq => by_lane(&|lane| 1 << lane),
            Special::LanemaskLe => by_lane(&|lane| (2u64 << lane).wrapping_sub(1) as u32),
            Special::LanemaskLt => by_lane(&|lane| (1u32 << lane) - 1),
            Special::LanemaskGe => by_lane(&|lane| u32::MAX << lane),
            Special::LanemaskGt => by_lane(&|lane| !((2u64 << lane).wrapping_sub(1) as u32)),
            Special::ClusterId(i) => all(axis(cluster, i)),
            Special::NClusterId(i) => all(axis(clusters, i)),
            Special::ClusterCtaId(i) => all(axis(self.rank_id(warp.cta), i)),
            Special::ClusterNCtaId(i) => all(axis(self.cluster, i)),
            Special::ClusterCtaRank => all(warp.cta),
            Special::ClusterNCtaRank => all(self.ctas()),
            Special::DynamicSharedSize => all(self.dynamic_bytes),
            Special::TotalSharedSize => all(self.shared_bytes),
        }
    }
}

impl Warp {
    /// Gives each lane at least `bytes` bytes of local memory.
    fn reserve_local(&mut self, bytes: u32) {
        if bytes <= self.local_stride {
            return;
        }
        // Lanes lie behind one another: growing moves them.
        let (old, new) = (self.local_stride as usize, bytes.next_power_of_two() as usize);
        let mut grown = ByteMemory::new(new * 32);
        for lane in 0..32 {
            for at in 0..old {
                if self.local.is_written(lane * old + at, 1) {
                    grown.store(lane * new + at, 1, self.local.load(lane * old + at, 1));
                }
            }
        }
        self.local = grown;
        self.local_stride = new as u32;
    }
}
