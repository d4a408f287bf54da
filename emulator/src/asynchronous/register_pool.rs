//! `setmaxnreg` (PTX ISA 9.7.20.5): a CTA's registers as a pool that warps give to and take from.
//!
//! The pool is what the launch allocates: registers a thread × threads. `.dec` gives back at once; `.inc` waits until enough are free. A kernel
//! whose counts do not add up compiles and hangs on hardware, so a wait that nobody can end is reported with this account.

/// A CTA's registers.
#[derive(Clone, Debug)]
pub struct RegisterPool {
    /// Registers a thread that each warp has now.
    per_thread: Vec<u32>,
    free: u32,
}

/// Misuse of `setmaxnreg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolFault {
    /// Not a multiple of 8 from 24 to 256.
    Count {
        /// The immediate.
        count: u32,
    },
    /// `.dec` to more than the warp has, or `.inc` to fewer.
    Direction {
        /// What the warp has a thread.
        has: u32,
        /// The immediate.
        count: u32,
    },
}

impl std::fmt::Display for PoolFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PoolFault::Count { count } => write!(f, "{count} registers: not a multiple of 8 from 24 to 256"),
            PoolFault::Direction { has, count } => {
                write!(f, "{count} registers asked for in the wrong direction: the warp has {has} a thread")
            }
        }
    }
}

/// Lanes that registers are counted for.
const WARP: u32 = 32;

impl RegisterPool {
    /// A CTA of `warps` warps with `per_thread` registers a thread.
    pub fn new(warps: u32, per_thread: u32) -> Self {
        RegisterPool { per_thread: vec![per_thread; warps as usize], free: 0 }
    }

    /// The registers a thread that a launch of `threads` threads gets where the kernel states no `.maxnreg`: an equal share of the register
    /// file, as whole allocation units of 8, at most 248 (ptxas allocates no more than 255).
    pub fn launch_count(threads: u32) -> u32 {
        const FILE: u32 = 65536;
        (FILE / threads.next_multiple_of(4 * WARP).max(1)).min(255) & !7
    }

    /// `setmaxnreg.dec` by `warp`.
    ///
    /// # Errors
    /// See [`PoolFault`].
    pub fn decrease(&mut self, warp: u32, count: u32) -> Result<(), PoolFault> {
        check(count)?;
        let has = &mut self.per_thread[warp as usize];
        if count > *has {
            return Err(PoolFault::Direction { has: *has, count });
        }
        self.free += (*has - count) * WARP;
        *has = count;
        Ok(())
    }

    /// `setmaxnreg.inc` by `warp`; false where it has to wait.
    ///
    /// # Errors
    /// See [`PoolFault`].
    pub fn increase(&mut self, warp: u32, count: u32) -> Result<bool, PoolFault> {
        check(count)?;
        let has = &mut self.per_thread[warp as usize];
        if count < *has {
            return Err(PoolFault::Direction { has: *has, count });
        }
        let need = (count - *has) * WARP;
        if need > self.free {
            return Ok(false);
        }
        self.free -= need;
        *has = count;
        Ok(true)
    }

    /// What a warp has, registers a thread. (A warp that exits keeps them: hardware does not refill the pool at exit.)
    pub fn has(&self, warp: u32) -> u32 {
        self.per_thread[warp as usize]
    }

    /// Free registers.
    pub fn free(&self) -> u32 {
        self.free
    }
}

fn check(count: u32) -> Result<(), PoolFault> {
    if count.is_multiple_of(8) && (24..=256).contains(&count) {
        Ok(())
    } else {
        Err(PoolFault::Count { count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one warpgroup's warps `dec`, the others `inc`; whether all got theirs.
    fn fits(warpgroups: u32, dec: u32, inc: u32) -> bool {
        let warps = warpgroups * 4;
        let mut pool = RegisterPool::new(warps, RegisterPool::launch_count(warps * 32));
        (0..4).for_each(|w| pool.decrease(w, dec).unwrap());
        (4..warps).all(|w| pool.increase(w, inc).unwrap())
    }

    #[test]
    fn counts_that_hardware_takes_fit_and_those_that_hang_do_not() {
        assert_eq!(RegisterPool::launch_count(384), 168);
        assert!(fits(3, 40, 232) && fits(3, 24, 240));
        assert!(!fits(3, 40, 240));
        // 240 + 240 + 32 of 168 · 3 hangs on an H200.
        assert!(!fits(3, 32, 240));
        assert!(fits(4, 32, 160));
    }

    #[test]
    fn misuse_is_told() {
        let mut pool = RegisterPool::new(4, 168);
        assert_eq!(pool.decrease(0, 100), Err(PoolFault::Count { count: 100 }));
        assert_eq!(pool.decrease(0, 176), Err(PoolFault::Direction { has: 168, count: 176 }));
        assert_eq!(pool.increase(0, 160), Err(PoolFault::Direction { has: 168, count: 160 }));
    }
}
