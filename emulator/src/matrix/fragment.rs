//! Which element of a matrix a lane's register holds (PTX ISA, "Matrix Fragments for mma.m16n8kX", "… for wgmma").
//!
//! All `mma.sync` shapes but Volta's m8n8k4 over f16 follow one pattern, and `wgmma` repeats it a warp. With g = lane / 4, t = lane % 4 and
//! E elements a register:
//!
//! | | rows (columns of B) | k |
//! |---|---|---|
//! | A | g, and g + 8 for odd registers of a 16-row shape | E·t + e, then 4E further every (second) register |
//! | B | g | E·t + e, then 4E further every register |
//!
//! C and D hold pairs of columns: 8·j + 2t and the next, rows g then (in a 16-row shape) g + 8; an f16 pair shares a register.

use super::Element;

/// The places of a fragment's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fragment {
    /// The A operand of an instruction with `rows` (8 or 16) rows a warp.
    A {
        /// Rows a warp.
        rows: u32,
        /// Elements a register.
        per_register: u32,
    },
    /// The B operand, 8 columns wide.
    B {
        /// Elements a register.
        per_register: u32,
    },
    /// C or D with `rows` (8 or 16) rows a warp.
    Accumulator {
        /// Rows a warp.
        rows: u32,
        /// 1, or 2 for f16.
        per_register: u32,
    },
}

impl Fragment {
    /// The A fragment of `element`.
    pub const fn a(rows: u32, element: Element) -> Self {
        Fragment::A { rows, per_register: element.per_register() }
    }

    /// The B fragment of `element`.
    pub const fn b(element: Element) -> Self {
        Fragment::B { per_register: element.per_register() }
    }

    /// Elements a register.
    pub const fn per_register(self) -> u32 {
        match self {
            Fragment::A { per_register, .. }
            | Fragment::B { per_register }
            | Fragment::Accumulator { per_register, .. } => per_register,
        }
    }

    /// Where element `e` of register `register` in `lane` stands: (row, k) of A, (k, column) of B, (row, column) of an accumulator.
    pub const fn position(self, lane: u32, register: u32, e: u32) -> (u32, u32) {
        let (g, t) = (lane / 4, lane % 4);
        match self {
            Fragment::A { rows, per_register } => {
                let halves = rows / 8;
                (g + 8 * (register % halves), per_register * t + e + 4 * per_register * (register / halves))
            }
            Fragment::B { per_register } => (per_register * t + e + 4 * per_register * register, g),
            Fragment::Accumulator { rows, per_register } => {
                // In units of pairs: first the row halves, then the next 8 columns.
                let flat = register * per_register + e;
                let (pair, odd) = (flat / 2, flat % 2);
                let halves = rows / 8;
                (g + 8 * (pair % halves), 8 * (pair / halves) + 2 * t + odd)
            }
        }
    }

    /// Registers that hold a matrix of `count` elements a warp.
    pub const fn registers(self, count: u32) -> u32 {
        count / (32 * self.per_register())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element of the matrix is held exactly once.
    fn is_bijection(fragment: Fragment, rows: u32, columns: u32) {
        let mut seen = vec![false; (rows * columns) as usize];
        for register in 0..fragment.registers(rows * columns) {
            for lane in 0..32 {
                for e in 0..fragment.per_register() {
                    let (r, c) = fragment.position(lane, register, e);
                    assert!(r < rows && c < columns, "{fragment:?} lane {lane} register {register}: {r},{c}");
                    assert!(!std::mem::replace(&mut seen[(r * columns + c) as usize], true));
                }
            }
        }
        assert!(seen.iter().all(|&s| s));
    }

    #[test]
    fn fragments_hold_each_element_once() {
        for per_register in [1, 2, 4, 8, 32] {
            for steps in [1, 2] {
                let k = 4 * per_register * steps;
                is_bijection(Fragment::A { rows: 16, per_register }, 16, k);
                is_bijection(Fragment::A { rows: 8, per_register }, 8, k);
                is_bijection(Fragment::B { per_register }, k, 8);
            }
        }
        for n in [8, 16, 256] {
            is_bijection(Fragment::Accumulator { rows: 16, per_register: 1 }, 16, n);
            is_bijection(Fragment::Accumulator { rows: 16, per_register: 2 }, 16, n);
        }
        is_bijection(Fragment::Accumulator { rows: 8, per_register: 1 }, 8, 8);
    }

    /// Entries read off the figures of the PTX ISA, one a figure.
    #[test]
    fn places_are_those_of_the_isa() {
        let f16 = Fragment::a(16, Element::F16);
        // m16n8k16: a0 T5 = (1, 2); a2 (register 1) = row + 8; a4 (register 2) = k + 8; a7 of T31 = (15, 15).
        assert_eq!(f16.position(5, 0, 0), (1, 2));
        assert_eq!(f16.position(5, 1, 1), (9, 3));
        assert_eq!(f16.position(5, 2, 0), (1, 10));
        assert_eq!(f16.position(31, 3, 1), (15, 15));
        // m16n8k8 tf32: a1 = row + 8, a2 = k + 4.
        let tf32 = Fragment::a(16, Element::Tf32);
        assert_eq!((tf32.position(6, 1, 0), tf32.position(6, 2, 0)), ((9, 2), (1, 6)));
        // m16n8k32 s8: a4 = row + 8, a8 = k + 16; b4 = k + 16.
        let s8 = Fragment::a(16, Element::S8);
        assert_eq!((s8.position(7, 1, 2), s8.position(7, 2, 0)), ((9, 14), (1, 28)));
        assert_eq!(Fragment::b(Element::S8).position(7, 1, 3), (31, 1));
        // m8n8k4 f64: a0 = (g, t), b0 = (t, g), c1 = (g, 2t + 1).
        assert_eq!(Fragment::a(8, Element::F64).position(9, 0, 0), (2, 1));
        assert_eq!(Fragment::b(Element::F64).position(9, 0, 0), (1, 2));
        assert_eq!(Fragment::Accumulator { rows: 8, per_register: 1 }.position(9, 1, 0), (2, 3));
        // C of m16n8: c2 = row + 8; as f16, register 1 has it. wgmma: d4 starts the next 8 columns.
        let c = Fragment::Accumulator { rows: 16, per_register: 1 };
        assert_eq!((c.position(13, 2, 0), c.position(13, 5, 0)), ((11, 2), (3, 11)));
        assert_eq!(Fragment::Accumulator { rows: 16, per_register: 2 }.position(13, 1, 1), (11, 3));
    }
}
