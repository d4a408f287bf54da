//! Linear algebra over F2 on columns packed in `u64`: addition is XOR, a matrix is a list of columns.
//!
//! Everything here is Gaussian elimination on a handful of words, so there are no clever data
//! structures: an [`Echelon`] is a short inline list scanned from the front.

use smallvec::SmallVec;

/// The columns of a matrix: entry `i` is the image of input bit `i`. Inline up to 24 input bits, which is
/// every layout of up to 512 registers, 32 lanes, 32 warps and 16 blocks.
pub type Columns = SmallVec<[u64; 24]>;

/// The image of `input` under the matrix with these columns: the XOR of the columns its bits select.
#[inline]
#[must_use]
pub fn apply_columns(columns: &[u64], input: u64) -> u64 {
    let mut bits = input;
    let mut image = 0;
    while bits != 0 {
        image ^= columns[bits.trailing_zeros() as usize];
        bits &= bits - 1;
    }
    image
}

/// An incrementally built basis that remembers how each vector was made from the inserted ones.
///
/// Vectors are inserted with a *label*, itself a vector (usually the unit vector of a column's index).
/// [`solve`](Self::solve) writes a vector as a sum of inserted ones and returns the sum of their labels.
/// A vector already in the span is not kept; so with unit labels the answer uses only columns that were
/// independent of the ones before them, which is the numerically smallest of all solutions.
#[derive(Clone, Debug, Default)]
pub struct Echelon {
    // Invariant: no vector has a 1 in the leading bit of an earlier one. Reducing in insertion order
    // therefore clears each leading bit for good.
    rows: SmallVec<[(u64, u64); 24]>,
}

impl Echelon {
    /// The empty basis.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The basis of `columns`, labelled with their indices' unit vectors.
    #[must_use]
    pub fn of(columns: &[u64]) -> Self {
        let mut basis = Self::new();
        for (i, &column) in columns.iter().enumerate() {
            basis.insert(column, 1 << i);
        }
        basis
    }

    /// Adds `vector`; returns whether it was independent of the vectors before it.
    pub fn insert(&mut self, vector: u64, label: u64) -> bool {
        let (rest, made) = self.reduce(vector, self.rows.len());
        if rest != 0 {
            self.rows.push((rest, made ^ label));
        }
        rest != 0
    }

    /// Adds `vector` with no label.
    pub fn add(&mut self, vector: u64) -> bool {
        self.insert(vector, 0)
    }

    /// The dimension of the span.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rows.len()
    }

    /// Whether `vector` is in the span.
    #[must_use]
    pub fn contains(&self, vector: u64) -> bool {
        self.reduce(vector, self.rows.len()).0 == 0
    }

    /// The sum of the labels of the inserted vectors that sum to `vector`; `None` outside the span.
    #[must_use]
    pub fn solve(&self, vector: u64) -> Option<u64> {
        self.solve_within(vector, self.rows.len())
    }

    /// Like [`solve`](Self::solve), with only the first `rank` independent vectors.
    #[must_use]
    pub fn solve_within(&self, vector: u64, rank: usize) -> Option<u64> {
        let (rest, made) = self.reduce(vector, rank);
        (rest == 0).then_some(made)
    }

    /// What remains of `vector` when the first `rank` basis vectors are taken out, and the labels used.
    fn reduce(&self, vector: u64, rank: usize) -> (u64, u64) {
        let (mut rest, mut made) = (vector, 0);
        for &(row, label) in &self.rows[..rank] {
            if rest ^ row < rest {
                rest ^= row;
                made ^= label;
            }
        }
        (rest, made)
    }
}

/// A basis of the intersection of two spans (Zassenhaus).
pub(super) fn intersection(a: &[u64], b: &[u64]) -> Columns {
    // A vector of b that is a sum of a's and earlier b's gives a relation; the b part of that relation
    // is a common vector. Labels carry the b part itself, and 0 for a's vectors.
    let mut basis = Echelon::new();
    for &v in a {
        basis.insert(v, 0);
    }
    let mut common = Columns::new();
    for &v in b {
        if let Some(made) = basis.solve(v) {
            if made ^ v != 0 {
                common.push(made ^ v);
            }
        } else {
            basis.insert(v, v);
        }
    }
    common
}
