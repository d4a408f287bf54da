//! How an array lies in memory: dense, padded, transposed, strided, misaligned; and what a launch would know of it.

use smallvec::SmallVec;
use tegula_ir::kernel::ParamFacts;

use crate::case::{HostArg, Rule};
use crate::draft::dense;
use crate::sink::{Array, Call, poison};

/// A way to lay an array out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    /// Row-major, and the kernel knows nothing of it.
    Row,
    /// Row-major, aligned, and the kernel knows.
    Dense,
    /// Row-major with each row starting at a multiple of 16 elements, and the kernel knows: what asynchronous copies ask for.
    Aligned,
    /// Column-major: the first dimension is contiguous.
    Column,
    /// No dimension is contiguous.
    Strided,
    /// Row-major from element 1 on.
    Misaligned,
}

impl Place {
    /// The place of this name.
    pub fn parse(name: &str) -> Result<Place, String> {
        Ok(match name {
            "row" => Place::Row,
            "dense" => Place::Dense,
            "aligned" => Place::Aligned,
            "column" => Place::Column,
            "strided" => Place::Strided,
            "misaligned" => Place::Misaligned,
            _ => return Err(format!("there is no place `{name}`")),
        })
    }

    /// What the kernel knows of a view of this rank.
    pub fn facts(self, rank: usize) -> ParamFacts {
        match self {
            Place::Dense => dense(rank),
            Place::Aligned => {
                let mut divisible: SmallVec<[u32; 4]> = SmallVec::from_elem(16, rank);
                divisible[rank - 1] = 1;
                ParamFacts { stride_divisible: divisible, ..dense(rank) }
            }
            _ => ParamFacts::default(),
        }
    }

    /// Offset of the first element, strides, and elements of the buffer.
    pub fn layout(self, dims: &[u32]) -> (usize, Vec<i64>, usize) {
        let mut order: Vec<usize> = (0..dims.len()).rev().collect();
        if self == Place::Column {
            order.reverse();
        }
        let mut strides = vec![0; dims.len()];
        let mut next = if self == Place::Strided { 3 } else { 1 };
        for (step, &axis) in order.iter().enumerate() {
            strides[axis] = next;
            next *= i64::from(dims[axis]).max(1);
            if self == Place::Aligned && step == 0 {
                next = (next + 15) / 16 * 16;
            }
        }
        let offset = usize::from(self == Place::Misaligned);
        (offset, strides, offset + next as usize)
    }

    /// Positions in the buffer of the array's elements, in row-major order.
    fn positions(self, dims: &[u32]) -> Vec<usize> {
        let (offset, strides, _) = self.layout(dims);
        let position = |p| {
            let at = crate::reference::tile::coordinates(p, dims);
            offset + at.iter().zip(&strides).map(|(&c, &s)| c * s as usize).sum::<usize>()
        };
        (0..Array::count(dims)).map(position).collect()
    }

    /// Passes an array as input.
    pub fn input(self, call: &mut Call, array: &Array) {
        let content = self.spread(array, poison(array.elem));
        let buffer = call.input(array.elem, content);
        self.view(call, buffer, &array.dims);
    }

    /// Passes an array as output.
    pub fn output(self, call: &mut Call, array: &Array, rule: Rule) {
        let wanted = self.spread(array, poison(array.elem));
        let rule = match rule {
            Rule::Within(bounds) => {
                let mut spread = vec![0.0; wanted.len()];
                self.positions(&array.dims).into_iter().zip(bounds).for_each(|(p, b)| spread[p] = b);
                Rule::Within(spread)
            }
            other => other,
        };
        let buffer = call.output(array.elem, wanted, rule, Vec::new());
        self.view(call, buffer, &array.dims);
    }

    /// Passes an array that must become another one.
    pub fn update(self, call: &mut Call, before: &Array, after: &Array) {
        let [initial, wanted] = [before, after].map(|array| self.spread(array, poison(array.elem)));
        let buffer = call.update(after.elem, initial, wanted, Rule::Exact, Vec::new());
        self.view(call, buffer, &after.dims);
    }

    fn spread(self, array: &Array, between: u64) -> Vec<u64> {
        let mut content = vec![between; self.layout(&array.dims).2];
        self.positions(&array.dims).into_iter().zip(&array.bits).for_each(|(p, &b)| content[p] = b);
        content
    }

    fn view(self, call: &mut Call, buffer: usize, dims: &[u32]) {
        let (offset, strides, _) = self.layout(dims);
        let dims = dims.iter().map(|&d| d.into()).collect();
        call.args.push(HostArg::View { buffer, offset, dims, strides });
    }
}
