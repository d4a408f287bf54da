//! The facts that kernels are compiled under ahead of time, when no arguments are there to have any.
//!
//! A bundle's variant runs where all of its facts hold for the launch (`tegula_bundle::facts`), so a set should hold for nearly all launches and give nearly all
//! of the speed. What decides speed is wide memory access: addresses aligned, rows of consecutive elements, strides and row lengths multiples of 16. Row *counts* are
//! what varies (batch, tokens, heads), and masks on them cost little, so no set but [`FactSet::Full`] asks anything of them.

use serde::{Deserialize, Serialize};
use tegula_ir::artifact::TENSOR_MAP_RANK;
use tegula_ir::kernel::{Kernel, ParamFacts};
use tegula_ir::types::{Type, ViewType};

/// A set of facts for all arguments of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FactSet {
    /// As `Usual`, and every extent a multiple of 16.
    Full,
    /// Addresses are multiples of 16 bytes; the last axis has stride 1, the other strides are multiples of 16 elements; views have less than 2 GB; a tensor map can describe
    /// them. The last extent is a multiple of 16, but of vectors of integers (positions, ids), which have an element a row.
    Usual,
    /// As `Usual`, but nothing of the extents of vectors: of a scale a row there are as many as rows.
    Counted,
    /// As `Usual`, of any size: for tables and caches of 2 GB and more.
    Large,
    /// Views that are read have aligned addresses and rows of consecutive elements; those of three and more dimensions (heads, caches) have rows and strides of multiples of 16. Nothing of tables
    /// and vectors beyond that, nor of what is written to: what decoding asks of a cache, so that it is read by whole vectors.
    Rows,
    /// Views that are read have aligned addresses and rows of consecutive elements, and a tensor map can describe them; nothing of those that are written to, nor of
    /// extents: what Hopper's products and attention ask of their operands before they are chosen.
    Mapped,
    /// Nothing: every launch has them.
    None,
}

impl FactSet {
    /// The sets that are compiled if nothing is said: one for speed and one so that every legal launch finds code.
    pub const DEFAULT: [FactSet; 2] = [FactSet::Usual, FactSet::None];

    /// The kernel with these facts.
    pub fn apply(self, mut kernel: Kernel) -> Kernel {
        for index in 0..kernel.params.len() {
            let ty = kernel.ty(kernel.params[index].value);
            kernel.params[index].facts = match ty {
                _ if self == FactSet::None => ParamFacts::default(),
                Type::View(view) if self == FactSet::Mapped => FactSet::mapped(view),
                Type::View(view) if self == FactSet::Rows => FactSet::rows(view),
                Type::View(view) => self.of_view(view),
                Type::Tile(t) if t.elem.pointee().is_some() => {
                    ParamFacts { align: 16, ..ParamFacts::default() }
                }
                _ => ParamFacts::default(),
            };
        }
        kernel
    }

    fn mapped(view: ViewType) -> ParamFacts {
        let bytes = view.elem.size_of().map_or(1, |bytes| bytes as u32);
        let rank = u32::from(view.rank);
        if view.mutable || !(1..=TENSOR_MAP_RANK as u32).contains(&rank) {
            return ParamFacts::default();
        }
        ParamFacts {
            align: 16,
            unit_stride: Some(view.rank - 1),
            stride_divisible: (1..=rank).map(|axis| if axis == rank { 1 } else { 16 / bytes }).collect(),
            tensor_map: true,
            ..ParamFacts::default()
        }
    }

    fn rows(view: ViewType) -> ParamFacts {
        let rank = u32::from(view.rank);
        if view.mutable || rank == 0 {
            return ParamFacts::default();
        }
        let multiples = |last: u32, others: u32| {
            (1..=rank).map(|axis| if axis == rank { last } else { others }).collect()
        };
        let wide = rank >= 3;
        ParamFacts {
            align: 16,
            unit_stride: Some(view.rank - 1),
            stride_divisible: multiples(1, if wide { 16 } else { 1 }),
            dim_divisible: multiples(if wide { 16 } else { 1 }, 1),
            ..ParamFacts::default()
        }
    }

    fn of_view(self, view: ViewType) -> ParamFacts {
        let rank = u32::from(view.rank);
        let last = rank.saturating_sub(1);
        let counts_rows = rank == 1 && (view.elem.is_int() || self == FactSet::Counted);
        let divisible = |axis: u32| self == FactSet::Full || axis == last && !counts_rows;
        let small = self != FactSet::Large;
        ParamFacts {
            align: 16,
            unit_stride: Some(last as u8),
            stride_divisible: (0..rank).map(|axis| if axis == last { 1 } else { 16 }).collect(),
            dim_divisible: (0..rank).map(|axis| if divisible(axis) { 16 } else { 1 }).collect(),
            small,
            // Strides of all but matrices' rows may be long (a cache's batches): taking one for long that is not is right, too.
            long_strides: if small { (0..rank.saturating_sub(2)).collect() } else { Default::default() },
            tensor_map: (1..=TENSOR_MAP_RANK as u32).contains(&rank),
            ..ParamFacts::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tegula_bundle::facts::imply;
    use tegula_ir::Elem;

    fn facts(set: FactSet) -> Vec<ParamFacts> {
        let mut kernel = Kernel::new("k");
        kernel.add_param("x", Type::view(Elem::BF16, 3, false));
        kernel.add_param("ids", Type::view(Elem::I32, 1, false));
        kernel.add_param("weight", Type::view(Elem::F32, 1, false));
        kernel.add_param("scale", Type::scalar(Elem::F32));
        set.apply(kernel).params.into_iter().map(|param| param.facts).collect()
    }

    #[test]
    fn sets_from_the_strongest_to_the_weakest() {
        assert!(imply(&facts(FactSet::Usual), &facts(FactSet::Counted)));
        assert_eq!(facts(FactSet::Counted)[2].dim_divisible[..], [1]);
        let [full, usual, large, rows, mapped, none] =
            [FactSet::Full, FactSet::Usual, FactSet::Large, FactSet::Rows, FactSet::Mapped, FactSet::None]
                .map(facts);
        assert!(imply(&large, &rows) && imply(&rows, &none) && !imply(&mapped, &rows));
        assert_eq!((&rows[0].dim_divisible[..], &rows[2].dim_divisible[..]), (&[1, 1, 16][..], &[1][..]));
        assert!(imply(&full, &usual) && imply(&usual, &large) && imply(&large, &none));
        assert!(imply(&large, &mapped) && imply(&mapped, &none) && !imply(&mapped, &large));
        assert_eq!(mapped[0].stride_divisible[..], [8, 8, 1], "16 bytes of bf16");
        assert!(!imply(&usual, &full) && !imply(&large, &usual) && !imply(&none, &large));
        assert_eq!(usual[0].dim_divisible[..], [1, 1, 16]);
        assert_eq!((&usual[1].dim_divisible[..], &usual[2].dim_divisible[..]), (&[1][..], &[16][..]));
        assert_eq!(usual[0].long_strides[..], [0]);
    }
}
