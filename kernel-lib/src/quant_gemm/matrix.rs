//! Quantised weights on a device, repacked from GGUF blocks once, when they are loaded.
//!
//! A block mixes a scale with codes, and rows of blocks start at odd addresses: nothing in it can be read in 16-byte pieces. So codes,
//! scales and minimums become planes of their own, and each plane is turned so that *rows of the matrix are what is consecutive*:
//!
//! | plane | shape | type |
//! |---|---|---|
//! | codes | `[K / 32, bytes of a group, N]` | u8 (Q8_0: the bits of i8) |
//! | scales | `[K / 32, N]` | f16, as they were |
//! | minimums | `[K / 32, N]` | f16, as they were |
//!
//! What that is good for:
//! * A tile of codes takes any number of groups and columns of the output without waste, and its rows are read in 16-byte pieces whatever K is.
//! * A byte's two 4-bit codes belong to one column and one group, so that unpacking is a mask and a shift: nothing changes threads.
//! * A scale applies to a run of rows of the tile, an activation to one row: both broadcast without being stored stretched.
//! * A dequantised tile is `[K, N]`, what a dot takes as its right-hand side.
//!
//! N is padded to a multiple of 32 with weights of 0, which keeps every row of a plane aligned.

use tegula::prelude::f16;
use tegula::runtime::{Device, Tensor};

use super::format::{Format, GROUP};
use crate::Error;
use crate::check::Check;

/// What N is padded to.
const ALIGNMENT: usize = 32;
/// Rows that are turned at a time: their blocks of one group and the lines of the planes that they go to stay in the cache.
const TURNED: usize = 64;

/// A matrix `[N, K]` of quantised weights on a device.
pub struct QuantizedMatrix {
    format: Format,
    n: usize,
    k: usize,
    pub(super) codes: Tensor<u8>,
    pub(super) scales: Tensor<f16>,
    pub(super) mins: Option<Tensor<f16>>,
}

impl QuantizedMatrix {
    /// Packs a matrix `[n, k]` from GGUF blocks, row after row, and uploads it.
    ///
    /// # Errors
    /// If `k` is no positive multiple of 32, if `blocks` has not the bytes of `n` rows, or for lack of memory.
    pub fn from_gguf(
        format: Format,
        [n, k]: [usize; 2],
        blocks: &[u8],
        device: &Device,
    ) -> Result<QuantizedMatrix, Error> {
        QuantizedMatrix::stacked(format, k, &[(n, blocks)], device)
    }

    /// Packs several matrices of one K as one, the rows of the first on top: one product then computes them all, as for the queries, keys
    /// and values of an attention layer. Each part is its number of rows and its blocks.
    ///
    /// # Errors
    /// As [`QuantizedMatrix::from_gguf`].
    pub fn stacked(
        format: Format,
        k: usize,
        parts: &[(usize, &[u8])],
        device: &Device,
    ) -> Result<QuantizedMatrix, Error> {
        let check = Check::of("QuantizedMatrix");
        if k == 0 || !k.is_multiple_of(GROUP) {
            let problem = format!(
                "K is {k}, but a positive multiple of {GROUP} is needed: a block of {format} holds {GROUP} weights"
            );
            return Err(check.refuse("k", problem, ""));
        }
        let row_bytes = k / GROUP * format.block_bytes();
        for &(rows, blocks) in parts {
            if rows.checked_mul(row_bytes) != Some(blocks.len()) {
                let problem = format!(
                    "{} bytes, but {rows} rows of {row_bytes} bytes are needed: {k} weights in {format} each",
                    blocks.len()
                );
                return Err(check.refuse("blocks", problem, ""));
            }
        }
        let n = parts.iter().map(|part| part.0).sum();
        check.rank("blocks", &[n, k], ["N", "K"])?;
        let planes = Planes::turn(format, n, k, parts.iter().flat_map(|part| part.1.chunks_exact(row_bytes)));
        let Planes { padded, codes, scales, mins } = planes;
        let groups = k / GROUP;
        let upload = |plane: &[f16]| check.done(device.from_slice(plane, &[groups, padded]));
        Ok(QuantizedMatrix {
            format,
            n,
            k,
            codes: check.done(device.from_vec(codes, &[groups, format.code_bytes(), padded]))?,
            scales: upload(&scales)?,
            mins: if format.has_mins() { Some(upload(&mins)?) } else { None },
        })
    }

    /// How the weights are coded.
    pub fn format(&self) -> Format {
        self.format
    }

    /// N: rows, columns of a product.
    pub fn n(&self) -> usize {
        self.n
    }

    /// K: columns.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        let halves = self.scales.len() + self.mins.as_ref().map_or(0, Tensor::len);
        self.codes.len() + halves * size_of::<f16>()
    }

    /// The weights, exactly, row after row: read back from the device and computed in f64, for tests.
    ///
    /// # Errors
    /// If the device fails.
    pub fn dequantize(&self) -> Result<Vec<f64>, Error> {
        let check = Check::of("QuantizedMatrix::dequantize");
        let codes = check.done(self.codes.to_vec())?;
        let scales = check.done(self.scales.to_vec())?;
        let mins = self.mins.as_ref().map(|mins| check.done(mins.to_vec())).transpose()?;
        let (padded, bytes) = (self.scales.dim(1), self.format.code_bytes());
        let mut weights = Vec::with_capacity(self.n * self.k);
        for row in 0..self.n {
            for column in 0..self.k {
                let (group, within) = (column / GROUP, column % GROUP);
                let byte = codes[(group * bytes + within % bytes) * padded + row];
                let at = group * padded + row;
                let d = scales[at].to_f64();
                let nibble = f64::from(if within < bytes { byte & 15 } else { byte >> 4 });
                weights.push(match self.format {
                    Format::Q4_0 => d * (nibble - 8.0),
                    Format::Q4_1 => d * nibble + mins.as_ref().map_or(0.0, |mins| mins[at].to_f64()),
                    Format::Q8_0 => d * f64::from(byte as i8),
                });
            }
        }
        Ok(weights)
    }
}

impl std::fmt::Debug for QuantizedMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{}, {}] of {} on {}", self.n, self.k, self.format, self.codes.device().name())
    }
}

/// The planes, before they are uploaded.
struct Planes {
    /// N and its padding.
    padded: usize,
    codes: Vec<u8>,
    scales: Vec<f16>,
    /// Empty for formats without.
    mins: Vec<f16>,
}

impl Planes {
    /// Takes blocks apart and turns them, from the rows of the matrix in order.
    fn turn<'a>(format: Format, n: usize, k: usize, rows: impl Iterator<Item = &'a [u8]>) -> Planes {
        let (groups, bytes) = (k / GROUP, format.code_bytes());
        let padded = n.next_multiple_of(ALIGNMENT);
        let mut planes = Planes {
            padded,
            codes: vec![0; groups * bytes * padded],
            scales: vec![f16::ZERO; groups * padded],
            mins: vec![f16::ZERO; if format.has_mins() { groups * padded } else { 0 }],
        };
        let rows: Vec<&[u8]> = rows.collect();
        for (chunk, rows) in rows.chunks(TURNED).enumerate() {
            let first = chunk * TURNED;
            for group in 0..groups {
                let at = group * format.block_bytes();
                let blocks = rows.iter().map(|row| &row[at..at + format.block_bytes()]);
                for (i, block) in blocks.enumerate() {
                    let to = group * padded + first + i;
                    planes.scales[to] = f16::from_le_bytes([block[0], block[1]]);
                    if format.has_mins() {
                        planes.mins[to] = f16::from_le_bytes([block[2], block[3]]);
                    }
                    for (j, &code) in block[format.codes_at()..].iter().enumerate() {
                        planes.codes[(group * bytes + j) * padded + first + i] = code;
                    }
                }
            }
        }
        planes
    }
}
