//! In what order diverged lanes should go, so that they meet again soonest.
//!
//! Lanes of a warp that stand at different pcs are executed in turns, those with the lowest *rank* first. With ranks in topological order the
//! lanes that are behind catch up, and wait where the paths join. Loops have no topological order as such: their blocks get consecutive
//! ranks, with what is after the loop behind them, so that lanes which left a loop wait for those still in it. So ranks come from the
//! strongly connected components, and inside of one from its components without the edges back to its first block, and so on.
//! It is a heuristic for speed; correctness does not rest on it (see `machine::fragment`).

use super::Function;
use super::op::Op;

/// Deeper loop nests than this are ranked as they stand in the text.
const MAX_NESTING: u32 = 24;

/// The rank of each pc.
pub(super) fn order(f: &Function) -> Vec<u32> {
    let blocks = Blocks::new(f);
    let all: Vec<u32> = (0..blocks.starts.len() as u32).collect();
    let mut sequence = Vec::with_capacity(all.len());
    let mut scratch = Scratch::new(all.len());
    blocks.arrange(&all, None, 0, &mut scratch, &mut sequence);
    let mut ranks = vec![0; f.code.len()];
    let mut next = 0;
    for block in sequence {
        let start = blocks.starts[block as usize];
        let end = blocks.starts.get(block as usize + 1).copied().unwrap_or(f.code.len() as u32);
        for pc in start..end {
            ranks[pc as usize] = next;
            next += 1;
        }
    }
    ranks
}

struct Blocks {
    /// First pc of each.
    starts: Vec<u32>,
    /// Where each goes.
    next: Vec<Vec<u32>>,
}

impl Blocks {
    fn new(f: &Function) -> Blocks {
        let n = f.code.len();
        let mut leader = vec![false; n + 1];
        leader[0] = true;
        for (pc, inst) in f.code.iter().enumerate() {
            for_each_target(f, &inst.op, |t| leader[(t as usize).min(n)] = true);
            if ends_block(&inst.op) {
                leader[pc + 1] = true;
            }
        }
        let starts: Vec<u32> = (0..n as u32).filter(|&pc| leader[pc as usize]).collect();
        let block_of = |pc: u32| starts.partition_point(|&s| s <= pc) as u32 - 1;
        let mut next = vec![vec![]; starts.len()];
        for (block, targets) in next.iter_mut().enumerate() {
            let end = starts.get(block + 1).copied().unwrap_or(n as u32);
            let inst = &f.code[end as usize - 1];
            for_each_target(f, &inst.op, |t| {
                if (t as usize) < n {
                    targets.push(block_of(t));
                }
            });
            let unconditional = inst.guard == super::op::PredIn::TRUE;
            if (end as usize) < n && !(unconditional && ends_block(&inst.op)) {
                targets.push(block_of(end));
            }
        }
        Blocks { starts, next }
    }

    /// Appends `nodes` to `out` in order; edges into `header` do not count.
    fn arrange(
        &self,
        nodes: &[u32],
        header: Option<u32>,
        depth: u32,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) {
        if nodes.len() <= 1 || depth >= MAX_NESTING {
            out.extend_from_slice(nodes);
            return;
        }
        for component in self.components(nodes, header, scratch) {
            match component.as_slice() {
                [one] => out.push(*one),
                // A component's blocks come in the order of a depth-first search: the first is where it is entered.
                several => self.arrange(several, Some(several[0]), depth + 1, scratch, out),
            }
        }
    }

    /// Strongly connected components of the subgraph, in topological order (Tarjan's algorithm, with an explicit stack).
    fn components(&self, nodes: &[u32], header: Option<u32>, s: &mut Scratch) -> Vec<Vec<u32>> {
        s.epoch += 1;
        let epoch = s.epoch;
        for &n in nodes {
            s.inside[n as usize] = epoch;
            s.index[n as usize] = u32::MAX;
        }
        let (mut counter, mut stack, mut components) = (0u32, vec![], vec![]);
        let mut work: Vec<(u32, usize)> = vec![];
        for &root in nodes {
            if s.index[root as usize] != u32::MAX {
                continue;
            }
            work.push((root, 0));
            while let Some(&mut (node, ref mut edge)) = work.last_mut() {
                let v = node as usize;
                if *edge == 0 && s.index[v] == u32::MAX {
                    (s.index[v], s.low[v]) = (counter, counter);
                    counter += 1;
                    s.on_stack[v] = true;
                    stack.push(node);
                }
                if let Some(&to) = self.next[v].get(*edge) {
                    *edge += 1;
                    let t = to as usize;
                    if s.inside[t] != epoch || header == Some(to) {
                        continue;
                    }
                    if s.index[t] == u32::MAX {
                        work.push((to, 0));
                    } else if s.on_stack[t] {
                        s.low[v] = s.low[v].min(s.index[t]);
                    }
                    continue;
                }
                work.pop();
                if let Some(&(parent, _)) = work.last() {
                    s.low[parent as usize] = s.low[parent as usize].min(s.low[v]);
                }
                if s.low[v] == s.index[v] {
                    let at = stack.iter().rposition(|&n| n == node).expect("it was pushed when first seen");
                    let mut component: Vec<u32> = stack.split_off(at);
                    component.iter().for_each(|&n| s.on_stack[n as usize] = false);
                    component.sort_by_key(|&n| s.index[n as usize]);
                    components.push(component);
                }
            }
        }
        components.reverse();
        components
    }
}

struct Scratch {
    epoch: u32,
    inside: Vec<u32>,
    index: Vec<u32>,
    low: Vec<u32>,
    on_stack: Vec<bool>,
}

impl Scratch {
    fn new(n: usize) -> Scratch {
        Scratch { epoch: 0, inside: vec![0; n], index: vec![0; n], low: vec![0; n], on_stack: vec![false; n] }
    }
}

fn ends_block(op: &Op) -> bool {
    matches!(op, Op::Branch { .. } | Op::BranchIndexed { .. } | Op::Ret | Op::Exit | Op::Trap)
}

fn for_each_target(f: &Function, op: &Op, mut visit: impl FnMut(u32)) {
    match *op {
        Op::Branch { target } => visit(target),
        Op::BranchIndexed { start, len, .. } => {
            f.targets[start as usize..(start + len) as usize].iter().for_each(|&t| visit(t));
        }
        _ => {}
    }
}
