//! Asynchronous dots that are one product: the same rows, and columns that lie beside each other in shared memory.
//!
//! A tile is as wide as a power of two, but a tensor core's instruction as any multiple of 8 columns. Where successive dots have an operand A in common, one instruction
//! can compute them all, if their operands B lie one behind the other: it reads A once, and is not slowed by how little a narrow one does beside reading A.
//! [`plan_shared_memory`](crate::transform::plan_shared_memory) places their rings so, slot by slot; the code generator makes the instructions.

use std::collections::HashMap;

use crate::kernel::{Block, Kernel, Op, Value};
use crate::layout::SlotForm;
use crate::op::Opcode;

use super::wgmma;

/// All asynchronous dots of a kernel, in groups of one size that is at least 2; none if not all of them have companions. (Waits count dots: so there must be as many in each product.)
#[must_use]
pub fn of(kernel: &Kernel) -> Vec<Vec<Op>> {
    let mut dots = 0;
    let mut blocks = vec![kernel.body];
    kernel.walk(kernel.body, &mut |op| {
        dots += usize::from(matches!(kernel.ops[op].opcode, Opcode::AsyncDot { .. }));
        blocks.extend(&kernel.ops[op].regions);
    });
    if dots < 2 {
        return Vec::new();
    }
    let groups: Vec<Vec<Op>> = blocks.into_iter().flat_map(|block| in_block(kernel, block)).collect();
    let size = groups.first().map_or(0, Vec::len);
    let of_one_size = groups.iter().all(|group| group.len() == size) && groups.len() * size == dots;
    if size < 2 || !of_one_size || !are_placeable(kernel, &groups) {
        return Vec::new();
    }
    groups
}

/// The rings of B, one behind the other.
pub fn rings<'k>(kernel: &'k Kernel, group: &'k [Op]) -> impl Iterator<Item = Value> + 'k {
    group.iter().map(|&dot| kernel.ops[dot].operands[2])
}

/// Successive dots of a block that have companions.
fn in_block(kernel: &Kernel, block: Block) -> Vec<Vec<Op>> {
    let mut groups: Vec<Vec<Op>> = Vec::new();
    let mut before: Option<Op> = None;
    for &op in &kernel.blocks[block].ops {
        let is_dot = matches!(kernel.ops[op].opcode, Opcode::AsyncDot { .. });
        if let Some(before) = before.filter(|_| is_dot)
            && let Some(group) = groups.last_mut()
            && group.last() == Some(&before)
            && are_companions(kernel, group[0], op)
            && !group.iter().any(|&dot| kernel.ops[op].operands.contains(&kernel.result(dot)))
            && rings(kernel, group).all(|ring| ring != kernel.ops[op].operands[2])
            && width(kernel, group).saturating_add(columns(kernel, op)) <= wgmma::MAX_COLUMNS
        {
            group.push(op);
        } else if is_dot {
            groups.push(vec![op]);
        }
        before = is_dot.then_some(op);
    }
    groups
}

fn columns(kernel: &Kernel, dot: Op) -> u32 {
    kernel.ty(kernel.result(dot)).shape().map_or(u32::MAX, |shape| shape.dims()[1])
}

fn width(kernel: &Kernel, group: &[Op]) -> u32 {
    group.iter().map(|&dot| columns(kernel, dot)).sum()
}

/// Are these two dots of the same rows of the same slot, by slots of B of one kind with one number?
fn are_companions(kernel: &Kernel, first: Op, other: Op) -> bool {
    let (a, b) = (&kernel.ops[first], &kernel.ops[other]);
    // Both operands in slots: ring and slot of A, of B, and the sum.
    let (&[a_ring, a_slot, a_b, a_b_slot, a_sum], &[b_ring, b_slot, b_b, b_b_slot, b_sum]) =
        (&a.operands[..], &b.operands[..])
    else {
        return false;
    };
    let elem = |sum: Value| kernel.ty(sum).as_tile().map(|tile| tile.elem);
    a.opcode == b.opcode
        && (a_ring, a_slot, a_b_slot) == (b_ring, b_slot, b_b_slot)
        && elem(a_sum) == elem(b_sum)
        && form(kernel, first, a_b).is_some_and(|form| Some(form) == self::form(kernel, other, b_b))
}

/// What slots of B must have in common: the element's bits, the swizzle, and their number; `None` if those of one behind the other are not as those of one that is higher: each row must
/// be a row of the swizzle, and K the rows' dimension.
fn form(kernel: &Kernel, dot: Op, ring: Value) -> Option<(u32, u32, u32)> {
    let Opcode::AsyncDot { transpose_b, .. } = kernel.ops[dot].opcode else { return None };
    let ring = kernel.ty(ring).as_shared()?;
    let bits = ring.elem.bits();
    let k_dim = usize::from(transpose_b);
    let slot = SlotForm::of(&kernel.layouts[ring.layout], bits)?;
    let row = ring.shape.dims()[k_dim] * bits / 8;
    let rows = ring.shape.dims()[1 - k_dim];
    (slot.fastest == k_dim && row == slot.mode.bytes() && rows > 8).then_some((bits, row, ring.slots))
}

/// Is each ring of B allocated by the kernel, and in groups of the same rings only?
fn are_placeable(kernel: &Kernel, groups: &[Vec<Op>]) -> bool {
    let mut companions: HashMap<Value, Vec<Value>> = HashMap::new();
    groups.iter().all(|group| {
        let all: Vec<Value> = rings(kernel, group).collect();
        all.iter().all(|&ring| {
            let is_alloc = kernel.def_opcode(ring) == Some(&Opcode::SharedAlloc);
            is_alloc && *companions.entry(ring).or_insert_with(|| all.clone()) == all
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::op::Opcode;
    use crate::target::GpuFeatures;
    use crate::text;
    use crate::transform::schedule;
    use crate::types::Elem;

    /// Two products a step: of the same rows, or the second one of rows of its own.
    fn kernel(elem: Elem, widths: [u32; 2], same_rows: bool) -> String {
        let [n, m] = widths;
        let depth = 128 * 8 / elem.bits();
        let facts = "{align = 16, dim_divisible = [16, 16], stride_divisible = [16, 1], unit_stride = 1, small, tensor_map}";
        let (rows, load) = match same_rows {
            true => ("%x", String::new()),
            false => ("%x2", format!("%x2 = view_load %a[%s, %i] : tile<64x{depth}x{elem}>")),
        };
        format!(
            "
kernel @wide(%a: view<?x?x{elem}> {facts}, %b: view<?x?x{elem}> {facts}, %c: view_mut<?x?xf32> {facts}, %n: i32) hints {{num_warps = 4, num_stages = 3, warp_specialize = cooperative}} {{
  %z = const 0 : i32
  %s = const {depth} : i32
  %zero = const 0.0 : tile<64x{n}xf32>
  %zero2 = const 0.0 : tile<64x{m}xf32>
  %sum, %sum2 = for %i = %z to %n step %s carry(%acc = %zero, %acc2 = %zero2) : tile<64x{n}xf32>, tile<64x{m}xf32> {{
    %x = view_load %a[%z, %i] : tile<64x{depth}x{elem}>
    %y = view_load %b[%z, %i] : tile<{n}x{depth}x{elem}>
    %yt = permute {{perm = [1, 0]}} %y : tile<{depth}x{n}x{elem}>
    %d = dot %x, %yt, %acc : tile<64x{n}xf32>
    {load}
    %y2 = view_load %b[%s, %i] : tile<{m}x{depth}x{elem}>
    %yt2 = permute {{perm = [1, 0]}} %y2 : tile<{depth}x{m}x{elem}>
    %d2 = dot {rows}, %yt2, %acc2 : tile<64x{m}xf32>
    yield %d, %d2
  }}
  view_store %c[%z, %z], %sum
  view_store %c[%z, %s], %sum2
}}"
        )
    }

    /// How many dots are one, and of each ring of B its offset in the first one's slots and the distance of its slots.
    fn placed(text: &str) -> (Vec<usize>, Vec<(u32, u32)>) {
        let kernel = text::parse(text).unwrap().pop().unwrap();
        let scheduled = schedule::run(&kernel, &GpuFeatures::SM_90).unwrap();
        let (kernel, plan) = (&scheduled.kernel, &scheduled.plan);
        let mut rings = Vec::new();
        kernel.walk(kernel.body, &mut |op| {
            if matches!(kernel.ops[op].opcode, Opcode::AsyncDot { .. }) {
                let ring = kernel.ops[op].operands[2];
                let (at, _) = plan.buffers[&kernel.def_op(ring).unwrap()];
                rings.push((at, plan.slot_stride(kernel, ring)));
            }
        });
        let first = rings[0].0;
        let rings = rings.into_iter().map(|(at, stride)| (at.abs_diff(first), stride)).collect();
        (plan.wide_dots.iter().map(Vec::len).collect(), rings)
    }

    #[test]
    fn columns_of_the_same_rows_lie_behind_each_other() {
        for elem in [Elem::BF16, Elem::F8E4M3] {
            let (wide, rings) = placed(&kernel(elem, [64, 32], true));
            assert_eq!(wide, [2]);
            assert_eq!(rings, [(0, 96 * 128), (64 * 128, 96 * 128)]);
        }
    }

    /// An instruction has one A, and at most 256 columns; and a slot of 8 rows does not say how far apart more would lie.
    #[test]
    fn others_have_rings_of_their_own() {
        let others = [([64, 32], false), ([256, 32], true), ([8, 16], true)];
        for (widths, same_rows) in others {
            let (wide, rings) = placed(&kernel(Elem::BF16, widths, same_rows));
            assert!(wide.is_empty(), "{widths:?}");
            let strides: Vec<u32> = rings.iter().map(|ring| ring.1).collect();
            assert_eq!(strides, widths.map(|rows| rows * 128));
        }
    }

    /// What adds to a companion's sums comes behind it.
    #[test]
    fn a_chain_is_no_companion() {
        let kernel = |last: &str| {
            format!(
                "
#0 = [64,64]{{offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[0,32],[1,8],[2,16],[4,32],[8,0],[16,0],[32,0]]}}
#1 = [64,64]{{reg=[[0,1],[8,0],[0,8],[0,16],[0,32]], lane=[[0,2],[0,4],[1,0],[2,0],[4,0]], warp=[[16,0],[32,0]]}}
kernel @chain() hints {{num_warps = 4, num_stages = 2, warp_specialize = cooperative}} {{
  %a = shared_alloc : shared<2 x 64x64xbf16, #0>
  %b = shared_alloc : shared<2 x 64x64xbf16, #0>
  %c = shared_alloc : shared<2 x 64x64xbf16, #0>
  %d = shared_alloc : shared<2 x 64x64xbf16, #0>
  warp_specialize {{consumers = 1}} {{
    yield
  }} {{
    %z = const 0 : i32
    %none = const 0.0 : tile<64x64xf32, #1>
    %x = async_dot {{transpose_b}} %a[%z], %b[%z], %none : tile<64x64xf32, #1>
    %y = async_dot {{transpose_b}} %a[%z], %c[%z], %none : tile<64x64xf32, #1>
    %w = async_dot {{transpose_b}} %a[%z], %d[%z], {last} : tile<64x64xf32, #1>
    %p, %q, %r = async_dot_wait 0 %x, %y, %w : tile<64x64xf32, #1>, tile<64x64xf32, #1>, tile<64x64xf32, #1>
    yield
  }}
}}"
            )
        };
        let groups = |last: &str| super::of(&text::parse(&kernel(last)).unwrap().pop().unwrap());
        assert_eq!(groups("%none").iter().map(Vec::len).collect::<Vec<_>>(), [3]);
        assert!(groups("%y").is_empty());
    }
}
