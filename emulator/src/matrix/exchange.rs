//! `ldmatrix`, `stmatrix`, `movmatrix`: 8×8 matrices of 16-bit elements between rows in shared memory and fragments (PTX ISA 9.7.14.5.14–16).
//!
//! The `.b8` shapes (m16n16, m8n16, m16n8) exist from sm_100a on, which is not a target here.

/// Lanes of a warp.
pub const LANES: usize = 32;

/// `.x1`, `.x2`, `.x4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixCount {
    /// `.x1`: lanes 0–7 have the row addresses.
    X1 = 1,
    /// `.x2`: lanes 0–15.
    X2 = 2,
    /// `.x4`: all lanes.
    X4 = 4,
}

/// One 8×8 matrix: 8 rows of 16 bytes.
pub type Rows = [[u8; 16]; 8];

/// `ldmatrix`: what lane `lane` gets of a matrix whose rows have been read.
pub fn gather_rows(rows: &Rows, transposed: bool) -> [u32; LANES] {
    let element = |r: usize, c: usize| u16::from_le_bytes([rows[r][2 * c], rows[r][2 * c + 1]]);
    std::array::from_fn(|lane| {
        let (g, t) = (lane / 4, lane % 4);
        let (low, high) = if transposed {
            (element(2 * t, g), element(2 * t + 1, g))
        } else {
            (element(g, 2 * t), element(g, 2 * t + 1))
        };
        low as u32 | (high as u32) << 16
    })
}

/// `stmatrix`: the rows that the lanes' registers make.
pub fn scatter_rows(registers: &[u32; LANES], transposed: bool) -> Rows {
    let mut rows = [[0; 16]; 8];
    for (lane, &word) in registers.iter().enumerate() {
        let (g, t) = (lane / 4, lane % 4);
        for (e, value) in [word as u16, (word >> 16) as u16].into_iter().enumerate() {
            let (r, c) = if transposed { (2 * t + e, g) } else { (g, 2 * t + e) };
            rows[r][2 * c..2 * c + 2].copy_from_slice(&value.to_le_bytes());
        }
    }
    rows
}

/// `movmatrix.sync.aligned.m8n8.trans.b16`: the transpose, in registers.
pub fn movmatrix(registers: &[u32; LANES]) -> [u32; LANES] {
    gather_rows(&scatter_rows(registers, false), true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Element (r, c) is 8r + c.
    fn counted() -> Rows {
        std::array::from_fn(|r| std::array::from_fn(|b| if b % 2 == 0 { (8 * r + b / 2) as u8 } else { 0 }))
    }

    #[test]
    fn a_lane_gets_a_pair_of_its_row() {
        let plain = gather_rows(&counted(), false);
        let transposed = gather_rows(&counted(), true);
        // Lane 6: row 1, columns 4 and 5; transposed: column 1, rows 4 and 5.
        assert_eq!(plain[6], 12 | 13 << 16);
        assert_eq!(transposed[6], 33 | 41 << 16);
    }

    #[test]
    fn stores_undo_loads() {
        for transposed in [false, true] {
            assert_eq!(scatter_rows(&gather_rows(&counted(), transposed), transposed), counted());
        }
    }

    #[test]
    fn movmatrix_transposes() {
        assert_eq!(movmatrix(&gather_rows(&counted(), false)), gather_rows(&counted(), true));
    }
}
