//! How many slots the rings have.

use std::collections::HashSet;

use super::Depth;
use super::plan::{Channel, Map, blocks};
use crate::kernel::{Block, Kernel};
use crate::op::Opcode;
use crate::target::GpuFeatures;

/// Shared memory kept for barriers and for small exchanges between threads.
const RESERVE: u32 = 2048;

/// What else takes shared memory.
pub(super) struct Taken {
    /// Bytes of the rings of stores, and of those that the consumers fill.
    pub staging: u32,
    /// Are there such ones?
    pub stages: bool,
}

/// Gives the rings of inner loops as many slots as are asked for and fit, those of outer loops two if there is room for them, all others one. Gives the bytes that are left.
pub(super) fn choose(
    kernel: &Kernel,
    gpu: &GpuFeatures,
    map: &Map,
    channels: &mut [Channel],
    Taken { staging, stages }: Taken,
    depth: Depth,
    accumulating: &HashSet<Block>,
) -> Option<u32> {
    let wanted = |c: &Channel| {
        let Opcode::For(hints) = kernel.ops[map.parent.get(&c.block)?.0].opcode else { return None };
        Some(hints.stages.unwrap_or(kernel.hints.num_stages).min(depth.most))
    };
    let holds_others = |block: Block| {
        kernel.blocks[block].ops.iter().any(|&op| {
            matches!(kernel.ops[op].opcode, Opcode::For(_))
                && blocks(kernel, kernel.ops[op].regions[0])
                    .iter()
                    .any(|b| channels.iter().any(|c| c.block == *b))
        })
    };
    let deep: Vec<bool> =
        channels.iter().map(|c| map.parent.contains_key(&c.block) && !holds_others(c.block)).collect();
    let rings = channels.iter().map(|c| c.ring).max().map_or(0, |r| r + 1);
    let (mut fixed, mut one) = (0, 0);
    let mut slots = vec![1; rings];
    for (ring, wanted_slots) in slots.iter_mut().enumerate() {
        let of_ring = || channels.iter().zip(&deep).filter(move |(c, _)| c.ring == ring);
        let bytes = of_ring().next().map_or(0, |(c, _)| c.bytes());
        match of_ring().find(|(_, deep)| **deep) {
            Some((channel, _)) => {
                *wanted_slots = wanted(channel)?;
                one += bytes;
            }
            None => fixed += bytes,
        }
    }
    let room = gpu.max_shared_bytes.checked_sub(fixed + staging + RESERVE)?;
    let fit = room / one.max(1);
    let is_inner =
        |channels: &[Channel], ring| channels.iter().zip(&deep).any(|(c, deep)| c.ring == ring && *deep);
    let mut left = room;
    for ring in (0..rings).filter(|&ring| is_inner(channels, ring)) {
        if fit == 0 && slots[ring] > 1 {
            return None;
        }
        slots[ring] = slots[ring].min(fit.max(1));
        let bytes = channels.iter().find(|c| c.ring == ring).map_or(0, Channel::bytes);
        left = left.saturating_sub(slots[ring] * bytes);
    }
    // A ring that is filled several times an iteration has as many slots for each of them, if there is room.
    for ring in (0..rings).filter(|&ring| stages && is_inner(channels, ring)) {
        let of_ring = |block: Block| channels.iter().filter(|c| c.ring == ring && c.block == block).count();
        let fills = channels.iter().filter(|c| c.ring == ring).map(|c| of_ring(c.block)).max().unwrap_or(1);
        let bytes = channels.iter().find(|c| c.ring == ring).map_or(0, Channel::bytes);
        let more = (fills as u32 - 1) * slots[ring];
        if slots[ring] > 1 && more * bytes <= left {
            left -= more * bytes;
            slots[ring] += more;
        }
    }
    // What is left goes to the rings of outer loops: what the next tile begins with is loaded under the end of this one.
    for ring in (0..rings).filter(|&ring| depth.ahead && !is_inner(channels, ring)) {
        let in_loop = |c: &&Channel| c.ring == ring && map.parent.contains_key(&c.block);
        if let Some(bytes) = channels.iter().find(in_loop).map(Channel::bytes).filter(|&bytes| bytes <= left)
        {
            slots[ring] = 2;
            left -= bytes;
        }
    }
    for channel in channels.iter_mut() {
        channel.slots = slots[channel.ring];
        // An accumulating loop gives a slot back an iteration late.
        let least = if accumulating.contains(&channel.block) { 2 } else { 1 };
        if channel.slots < least {
            return None;
        }
        for load in &mut channel.loads {
            load.ring.slots = channel.copies * channel.slots;
            if let Some(turned) = &mut load.turned {
                turned.slots = channel.slots;
            }
        }
    }
    Some(left)
}
