//! Quantised weights on a device, repacked from GGUF blocks once, when they are loaded.
//!
//! A block mixes a scale with codes, and rows of blocks start at odd addresses: nothing in it can be read in 16-byte pieces. So codes,
//! scales and minimums become planes of their own, and a plane consists of *panels*: 64 rows of the matrix, turned so that what is
//! consecutive in memory are the rows of one position along K.
//!
//! | plane | shape | type |
//! |---|---|---|
//! | codes | `[N / 64, K / 32, bytes of a group, 64]` | u8 (Q8_0: the bits of i8) |
//! | scales | `[N / 64, K / 32, 64]` | f16, as they were |
//! | minimums | `[N / 64, K / 32, 64]` | f16, as they were |
//!
//! What that is good for:
//! * A program works on a panel, or on some columns of one. It reads one stretch of memory from its start to its end, in 16-byte pieces whatever K
//!   is, and a tile takes any number of groups without waste.
//! * A byte's two 4-bit codes belong to one column of the output and one group, so that unpacking is a mask and a shift: nothing
//!   changes threads.
//! * A scale applies to a run of rows of the tile, an activation to one row: both broadcast without being stored stretched.
//! * A dequantised tile is `[K, N]`, what a dot takes as its right-hand side.
//!
//! Rejected: turning the whole matrix, without panels. Rows of a tile are then N bytes apart, each in a page of its own, which address
//! translation and prefetching are worst at.
//!
//! N is padded to whole panels with weights of 0.

use tegula::prelude::f16;
use tegula::runtime::{Device, Tensor, TensorView};

use super::format::{Format, GROUP};
use crate::Error;
use crate::check::Check;

/// Rows of a panel.
pub const PANEL: usize = 64;

/// A matrix `[N, K]` of quantised weights on a device.
pub struct QuantizedMatrix {
    format: Format,
    n: usize,
    k: usize,
    pub(crate) codes: Tensor<u8>,
    pub(crate) scales: Tensor<f16>,
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
        let Planes { codes, scales, mins } = planes;
        let (panels, groups) = (n.div_ceil(PANEL), k / GROUP);
        let upload = |plane: &[f16]| check.done(device.from_slice(plane, &[panels, groups, PANEL]));
        Ok(QuantizedMatrix {
            format,
            n,
            k,
            codes: check.done(device.from_vec(codes, &[panels, groups, format.code_bytes(), PANEL]))?,
            scales: upload(&scales)?,
            mins: if format.has_mins() { Some(upload(&mins)?) } else { None },
        })
    }

    /// A matrix without contents.
    pub(crate) fn blank(
        format: Format,
        [n, k]: [usize; 2],
        device: &Device,
    ) -> Result<QuantizedMatrix, tegula::runtime::Error> {
        let (panels, groups) = (n.div_ceil(PANEL), k / GROUP);
        let plane = || device.alloc(&[panels, groups, PANEL]);
        Ok(QuantizedMatrix {
            format,
            n,
            k,
            codes: device.alloc(&[panels, groups, format.code_bytes(), PANEL])?,
            scales: plane()?,
            mins: if format.has_mins() { Some(plane()?) } else { None },
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

    /// The minimums, or anything of their type where the format has none: what kernels take.
    pub(crate) fn mins(&self) -> TensorView<'_, f16> {
        self.mins.as_ref().unwrap_or(&self.scales).view()
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
        let (groups, bytes) = (self.k / GROUP, self.format.code_bytes());
        let mut weights = Vec::with_capacity(self.n * self.k);
        for row in 0..self.n {
            for column in 0..self.k {
                let (group, within) = (column / GROUP, column % GROUP);
                let block = row / PANEL * groups + group;
                let byte = codes[(block * bytes + within % bytes) * PANEL + row % PANEL];
                let at = block * PANEL + row % PANEL;
                let min = mins.as_ref().map_or(0.0, |mins| mins[at].to_f64());
                let code = self.format.code(byte, within);
                weights.push(self.format.weight(scales[at].to_f64(), min, code));
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
    codes: Vec<u8>,
    scales: Vec<f16>,
    /// Empty for formats without.
    mins: Vec<f16>,
}

impl Planes {
    /// Takes blocks apart and turns them, from the rows of the matrix in order.
    fn turn<'a>(format: Format, n: usize, k: usize, rows: impl Iterator<Item = &'a [u8]>) -> Planes {
        let (groups, bytes) = (k / GROUP, format.code_bytes());
        let scales = n.div_ceil(PANEL) * groups * PANEL;
        let mut planes = Planes {
            codes: vec![0; scales * bytes],
            scales: vec![f16::ZERO; scales],
            mins: vec![f16::ZERO; if format.has_mins() { scales } else { 0 }],
        };
        let rows: Vec<&[u8]> = rows.collect();
        for (panel, rows) in rows.chunks(PANEL).enumerate() {
            for group in 0..groups {
                let start = (panel * groups + group) * PANEL;
                for (i, row) in rows.iter().enumerate() {
                    let block = &row[group * format.block_bytes()..][..format.block_bytes()];
                    planes.scales[start + i] = f16::from_le_bytes([block[0], block[1]]);
                    if format.has_mins() {
                        planes.mins[start + i] = f16::from_le_bytes([block[2], block[3]]);
                    }
                    let codes = block[format.codes_at()..].iter().enumerate();
                    codes.for_each(|(j, &code)| planes.codes[start * bytes + j * PANEL + i] = code);
                }
            }
        }
        planes
    }
}
