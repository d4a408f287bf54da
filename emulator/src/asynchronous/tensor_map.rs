//! Tensor maps: what `cuTensorMapEncodeTiled` describes, and which bytes a tiled `cp.async.bulk.tensor` moves.
//!
//! NVIDIA's 128 bytes are not documented, so ours are our own (checked by a magic number: a map that some other program encoded is refused
//! rather than misread). [`TensorMapBuilder`] takes the parameters of `cuTensorMapEncodeTiled` and makes its checks, so that what the
//! driver would refuse is refused here, too.
//!
//! Tiled mode, no interleaving: the box starts at the given coordinates, which may be negative. Along dimension i ≥ 1 every
//! `element_strides[i]`-th coordinate is taken (dimension 0 takes all, as the driver's documentation says). Box rows (dimension 0) stand in shared
//! memory one after the other, then go through the swizzle by address bits. What lies outside of the tensor is filled on loads, left alone on
//! stores; it counts as transferred all the same.

use crate::matrix::Swizzle;

/// Bytes of a tensor map.
pub const TENSOR_MAP_BYTES: usize = 128;

/// First bytes of our encoding.
const MAGIC: [u8; 4] = *b"TgTM";

/// `CUtensorMapDataType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the types")]
pub enum TensorDataType {
    U8 = 0,
    U16 = 1,
    U32 = 2,
    S32 = 3,
    U64 = 4,
    S64 = 5,
    F16 = 6,
    F32 = 7,
    F64 = 8,
    Bf16 = 9,
    F32Ftz = 10,
    Tf32 = 11,
    Tf32Ftz = 12,
}

impl TensorDataType {
    const ALL: [TensorDataType; 13] = {
        use TensorDataType::*;
        [U8, U16, U32, S32, U64, S64, F16, F32, F64, Bf16, F32Ftz, Tf32, Tf32Ftz]
    };

    /// The type with the value of `CUtensorMapDataType`.
    pub fn from_driver(value: u32) -> Option<Self> {
        Self::ALL.get(value as usize).copied()
    }

    /// Bytes of an element.
    pub const fn bytes(self) -> u32 {
        use TensorDataType::*;
        match self {
            U8 => 1,
            U16 | F16 | Bf16 => 2,
            U32 | S32 | F32 | F32Ftz | Tf32 | Tf32Ftz => 4,
            U64 | S64 | F64 => 8,
        }
    }

    const fn is_float(self) -> bool {
        use TensorDataType::*;
        !matches!(self, U8 | U16 | U32 | S32 | U64 | S64)
    }
}

/// `CUtensorMapFloatOOBfill`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Fill {
    /// Zeros.
    #[default]
    Zero,
    /// `NAN_REQUEST_ZERO_FMA`: NaN, all bits below the sign set.
    Nan,
}

/// A decoded tensor map of tiled mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    rank: usize,
    data_type: TensorDataType,
    address: u64,
    dims: [u64; 5],
    /// Bytes from one index to the next; `strides[0]` is the element size.
    strides: [u64; 5],
    boxes: [u32; 5],
    element_strides: [u32; 5],
    swizzle: Swizzle,
    fill: Fill,
}

/// The parameters of `cuTensorMapEncodeTiled`; dimension 0 is the innermost.
#[derive(Clone, Debug)]
pub struct TensorMapBuilder {
    data_type: TensorDataType,
    address: u64,
    dims: Vec<u64>,
    strides: Vec<u64>,
    boxes: Vec<u32>,
    element_strides: Vec<u32>,
    swizzle: Swizzle,
    fill: Fill,
}

/// What the driver would answer with `CUDA_ERROR_INVALID_VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "`Display` says each")]
pub enum TensorMapError {
    Rank {
        rank: usize,
    },
    Lengths {
        rank: usize,
        strides: usize,
        boxes: usize,
        element_strides: usize,
    },
    Address {
        address: u64,
    },
    Dimension {
        index: usize,
        extent: u64,
    },
    Stride {
        index: usize,
        stride: u64,
    },
    Box {
        index: usize,
        extent: u32,
    },
    InnerBox {
        bytes: u32,
    },
    SwizzleSpan {
        bytes: u32,
        span: u32,
    },
    ElementStride {
        index: usize,
        stride: u32,
    },
    Fill {
        data_type: TensorDataType,
    },
    /// Not bytes that [`TensorMap::encode`] wrote.
    NotAMap,
}

impl std::fmt::Display for TensorMapError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use TensorMapError::*;
        match self {
            Rank { rank } => write!(f, "a tensor map has 1 to 5 dimensions, not {rank}"),
            Lengths { rank, strides, boxes, element_strides } => write!(
                f,
                "rank {rank} wants {} strides, {rank} box extents and element strides; there are {strides}, {boxes} and {element_strides}",
                rank - 1
            ),
            Address { address } => write!(f, "the tensor's address {address:#x} is not a multiple of 16"),
            Dimension { index, extent } => write!(f, "dimension {index} has extent {extent}, not 1 to 2^32"),
            Stride { index, stride } => {
                write!(
                    f,
                    "the stride of dimension {index}, {stride} bytes, is not a multiple of 16 below 2^40"
                )
            }
            Box { index, extent } => {
                write!(f, "the box has extent {extent} in dimension {index}, not 1 to 256")
            }
            InnerBox { bytes } => {
                write!(f, "the box is {bytes} bytes wide in dimension 0, not a multiple of 16")
            }
            SwizzleSpan { bytes, span } => {
                write!(f, "the box is {bytes} bytes wide in dimension 0, more than the swizzle's {span}")
            }
            ElementStride { index, stride } => {
                write!(f, "the element stride of dimension {index} is {stride}, not 1 to 8")
            }
            Fill { data_type } => {
                write!(f, "only floating-point elements can be filled with NaN, not {data_type:?}")
            }
            NotAMap => f.write_str(
                "these 128 bytes are no tensor map of the emulator's: encode it with `TensorMapBuilder`",
            ),
        }
    }
}

impl std::error::Error for TensorMapError {}

impl TensorMapBuilder {
    /// A tensor at `address` with extents `dims` (innermost first), `strides` in bytes of dimensions 1…, and the box that copies move.
    /// No swizzle, zero fill, element strides 1.
    pub fn new(
        data_type: TensorDataType,
        address: u64,
        dims: &[u64],
        strides: &[u64],
        boxes: &[u32],
    ) -> Self {
        TensorMapBuilder {
            data_type,
            address,
            dims: dims.to_vec(),
            strides: strides.to_vec(),
            boxes: boxes.to_vec(),
            element_strides: vec![1; dims.len()],
            swizzle: Swizzle::None,
            fill: Fill::Zero,
        }
    }

    /// Sets the swizzle.
    #[must_use]
    pub fn swizzle(mut self, swizzle: Swizzle) -> Self {
        self.swizzle = swizzle;
        self
    }

    /// Sets what fills elements outside of the tensor.
    #[must_use]
    pub fn fill(mut self, fill: Fill) -> Self {
        self.fill = fill;
        self
    }

    /// Sets the traversal strides, in elements.
    #[must_use]
    pub fn element_strides(mut self, strides: &[u32]) -> Self {
        self.element_strides = strides.to_vec();
        self
    }

    /// Makes the driver's checks.
    ///
    /// # Errors
    /// The first parameter that the driver would refuse.
    pub fn build(&self) -> Result<TensorMap, TensorMapError> {
        let rank = self.dims.len();
        if !(1..=5).contains(&rank) {
            return Err(TensorMapError::Rank { rank });
        }
        let lengths = (self.strides.len(), self.boxes.len(), self.element_strides.len());
        if lengths != (rank - 1, rank, rank) {
            let (strides, boxes, element_strides) = lengths;
            return Err(TensorMapError::Lengths { rank, strides, boxes, element_strides });
        }
        if !self.address.is_multiple_of(16) {
            return Err(TensorMapError::Address { address: self.address });
        }
        let mut map = TensorMap {
            rank,
            data_type: self.data_type,
            address: self.address,
            dims: [1; 5],
            strides: [self.data_type.bytes() as u64; 5],
            boxes: [1; 5],
            element_strides: [1; 5],
            swizzle: self.swizzle,
            fill: self.fill,
        };
        for (index, &extent) in self.dims.iter().enumerate() {
            if !(1..=1 << 32).contains(&extent) {
                return Err(TensorMapError::Dimension { index, extent });
            }
            map.dims[index] = extent;
        }
        for (index, &stride) in self.strides.iter().enumerate() {
            if !stride.is_multiple_of(16) || stride >= 1 << 40 {
                return Err(TensorMapError::Stride { index: index + 1, stride });
            }
            map.strides[index + 1] = stride;
        }
        for (index, &extent) in self.boxes.iter().enumerate() {
            if !(1..=256).contains(&extent) {
                return Err(TensorMapError::Box { index, extent });
            }
            map.boxes[index] = extent;
        }
        let bytes = map.row_bytes();
        if !bytes.is_multiple_of(16) {
            return Err(TensorMapError::InnerBox { bytes });
        }
        if self.swizzle != Swizzle::None && bytes > self.swizzle.span() {
            return Err(TensorMapError::SwizzleSpan { bytes, span: self.swizzle.span() });
        }
        for (index, &stride) in self.element_strides.iter().enumerate() {
            if !(1..=8).contains(&stride) {
                return Err(TensorMapError::ElementStride { index, stride });
            }
            map.element_strides[index] = stride;
        }
        if self.fill == Fill::Nan && !self.data_type.is_float() {
            return Err(TensorMapError::Fill { data_type: self.data_type });
        }
        Ok(map)
    }
}

/// One row of a box: `TensorMap::row_bytes` bytes along dimension 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoxRow {
    /// Where the row stands in the shared image, before the swizzle.
    pub offset: u32,
    /// The bytes of the row that lie inside of the tensor; empty where none does.
    pub inside: std::ops::Range<u32>,
    /// The global address of byte `inside.start`.
    pub address: u64,
}

impl TensorMap {
    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Element type.
    pub fn data_type(&self) -> TensorDataType {
        self.data_type
    }

    /// The swizzle of the shared image.
    pub fn swizzle(&self) -> Swizzle {
        self.swizzle
    }

    /// Bytes of a row of the box.
    pub fn row_bytes(&self) -> u32 {
        self.boxes[0] * self.data_type.bytes()
    }

    /// Bytes of the shared image: what the copy counts as transferred.
    pub fn box_bytes(&self) -> u32 {
        (1..self.rank).fold(self.row_bytes(), |bytes, i| bytes * self.taken(i))
    }

    /// The pattern of an element outside of the tensor, repeated.
    pub fn fill_bytes(&self) -> [u8; 8] {
        match self.fill {
            Fill::Zero => [0; 8],
            Fill::Nan => {
                let mut bytes = [0xFF; 8];
                let size = self.data_type.bytes() as usize;
                bytes.iter_mut().skip(size - 1).step_by(size).for_each(|top| *top = 0x7F);
                bytes
            }
        }
    }

    /// Indices of dimension i ≥ 1 that the box takes.
    fn taken(&self, i: usize) -> u32 {
        self.boxes[i].div_ceil(self.element_strides[i])
    }

    /// Calls `f` for each row of the box at `coordinates` (innermost first; as many as the rank).
    pub fn for_each_row(&self, coordinates: &[i32], mut f: impl FnMut(BoxRow)) {
        assert_eq!(coordinates.len(), self.rank, "the decoder checks it");
        let (row_bytes, size) = (self.row_bytes(), self.data_type.bytes() as i64);
        // Along dimension 0: from the first to behind the last byte inside.
        let first = coordinates[0] as i64;
        let (start, end) = ((-first).max(0), (self.dims[0] as i64 - first).min(self.boxes[0] as i64));
        let inner = if start < end { (start * size) as u32..(end * size) as u32 } else { 0..0 };
        let mut index = [0u32; 5];
        let mut offset = 0;
        loop {
            let mut inside = inner.clone();
            let mut address =
                self.address.wrapping_add((first.wrapping_mul(size)) as u64).wrapping_add(inner.start as u64);
            for (i, &at) in coordinates.iter().enumerate().skip(1) {
                let coordinate = at as i64 + (index[i] * self.element_strides[i]) as i64;
                if !(0..self.dims[i] as i64).contains(&coordinate) {
                    inside = 0..0;
                }
                address = address.wrapping_add((coordinate as u64).wrapping_mul(self.strides[i]));
            }
            f(BoxRow { offset, inside, address });
            offset += row_bytes;
            // The next row: an odometer over dimensions 1….
            let Some(i) = (1..self.rank).find(|&i| index[i] + 1 < self.taken(i)) else { return };
            index[i] += 1;
            index[1..i].fill(0);
        }
    }

    /// The 128 bytes that a kernel takes as parameter.
    pub fn encode(&self) -> [u8; TENSOR_MAP_BYTES] {
        let mut bytes = [0; TENSOR_MAP_BYTES];
        let mut writer = Writer { bytes: &mut bytes, at: 0 };
        writer.put(&MAGIC);
        let swizzle = self.swizzle.span().trailing_zeros() as u8;
        writer.put(&[self.rank as u8, self.data_type as u8, swizzle, (self.fill == Fill::Nan) as u8]);
        writer.put(&self.address.to_le_bytes());
        // 2^32 is a legal extent; less one, extents fit 32 bits.
        self.dims.iter().for_each(|&d| writer.put(&((d - 1) as u32).to_le_bytes()));
        self.strides[1..].iter().for_each(|&s| writer.put(&s.to_le_bytes()));
        self.boxes.iter().for_each(|&b| writer.put(&(b as u16).to_le_bytes()));
        self.element_strides.iter().for_each(|&s| writer.put(&[s as u8]));
        bytes
    }

    /// Reads what [`TensorMap::encode`] wrote, with all checks of the builder.
    ///
    /// # Errors
    /// Bytes that are no map of ours, or one that has been damaged.
    pub fn decode(bytes: &[u8; TENSOR_MAP_BYTES]) -> Result<TensorMap, TensorMapError> {
        let mut reader = Reader { bytes, at: 0 };
        if reader.take::<4>() != MAGIC {
            return Err(TensorMapError::NotAMap);
        }
        let [rank, data_type, swizzle, fill] = reader.take();
        let swizzle = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128]
            .into_iter()
            .find(|s| s.span().trailing_zeros() as u8 == swizzle)
            .ok_or(TensorMapError::NotAMap)?;
        let data_type = TensorDataType::from_driver(data_type as u32).ok_or(TensorMapError::NotAMap)?;
        let address = u64::from_le_bytes(reader.take());
        let dims: [u64; 5] = std::array::from_fn(|_| u32::from_le_bytes(reader.take()) as u64 + 1);
        let strides: [u64; 4] = std::array::from_fn(|_| u64::from_le_bytes(reader.take()));
        let boxes: [u32; 5] = std::array::from_fn(|_| u16::from_le_bytes(reader.take()) as u32);
        let element_strides: [u32; 5] = std::array::from_fn(|_| reader.take::<1>()[0] as u32);
        let rank = rank as usize;
        if !(1..=5).contains(&rank) || fill > 1 {
            return Err(TensorMapError::NotAMap);
        }
        TensorMapBuilder::new(data_type, address, &dims[..rank], &strides[..rank - 1], &boxes[..rank])
            .element_strides(&element_strides[..rank])
            .swizzle(swizzle)
            .fill(if fill == 1 { Fill::Nan } else { Fill::Zero })
            .build()
    }
}

struct Writer<'a> {
    bytes: &'a mut [u8; TENSOR_MAP_BYTES],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, part: &[u8]) {
        self.bytes[self.at..self.at + part.len()].copy_from_slice(part);
        self.at += part.len();
    }
}

struct Reader<'a> {
    bytes: &'a [u8; TENSOR_MAP_BYTES],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        self.at += N;
        std::array::from_fn(|i| self.bytes[self.at - N + i])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> TensorMapBuilder {
        TensorMapBuilder::new(TensorDataType::Bf16, 0x1000, &[64, 10, 3], &[256, 4096], &[64, 4, 2])
            .swizzle(Swizzle::B128)
    }

    #[test]
    fn maps_survive_the_round_trip() {
        let map = base().element_strides(&[1, 3, 1]).fill(Fill::Nan).build().unwrap();
        assert_eq!(TensorMap::decode(&map.encode()), Ok(map));
        let one = TensorMapBuilder::new(TensorDataType::U8, 16, &[1 << 32], &[], &[256]).build().unwrap();
        assert_eq!(TensorMap::decode(&one.encode()), Ok(one));
        assert_eq!(TensorMap::decode(&[7; 128]), Err(TensorMapError::NotAMap));
        let mut damaged = map.encode();
        damaged[4] = 9;
        assert!(TensorMap::decode(&damaged).is_err());
    }

    #[test]
    fn what_the_driver_refuses_is_refused() {
        use TensorMapError::*;
        let new = TensorMapBuilder::new;
        let t = TensorDataType::Bf16;
        let cases = [
            (new(t, 16, &[], &[], &[]), Rank { rank: 0 }),
            (new(t, 8, &[64], &[], &[64]), Address { address: 8 }),
            (new(t, 16, &[0], &[], &[64]), Dimension { index: 0, extent: 0 }),
            (new(t, 16, &[64, 2], &[136], &[64, 1]), Stride { index: 1, stride: 136 }),
            (new(t, 16, &[64, 2], &[1 << 40], &[64, 1]), Stride { index: 1, stride: 1 << 40 }),
            (new(t, 16, &[64, 300], &[128], &[64, 257]), Box { index: 1, extent: 257 }),
            (new(t, 16, &[64], &[], &[12]), InnerBox { bytes: 24 }),
            (new(t, 16, &[128], &[], &[128]).swizzle(Swizzle::B128), SwizzleSpan { bytes: 256, span: 128 }),
            (new(t, 16, &[64], &[], &[32]).swizzle(Swizzle::B32), SwizzleSpan { bytes: 64, span: 32 }),
            (new(t, 16, &[64], &[], &[64]).element_strides(&[9]), ElementStride { index: 0, stride: 9 }),
            (
                new(TensorDataType::U8, 16, &[64], &[], &[64]).fill(super::Fill::Nan),
                Fill { data_type: TensorDataType::U8 },
            ),
        ];
        for (builder, want) in cases {
            assert_eq!(builder.build(), Err(want));
        }
        assert!(matches!(new(t, 16, &[64, 2], &[], &[64, 1]).build(), Err(Lengths { .. })));
    }

    /// What one might take for errors; an H200 with driver 580 made maps of all of them.
    #[test]
    fn what_the_driver_takes_is_taken() {
        let new = |dims: &[u64], strides: &[u64], boxes: &[u32]| {
            TensorMapBuilder::new(TensorDataType::Bf16, 1 << 20, dims, strides, boxes)
        };
        let row = new(&[64, 64], &[128], &[64, 64]);
        for builder in [
            new(&[64, 64], &[0], &[64, 64]),
            new(&[64, 64], &[16], &[64, 64]),
            new(&[64, 64, 4], &[0, 128], &[64, 8, 1]),
            new(&[64, 8, 8], &[1024, 128], &[64, 4, 4]),
            new(&[64, 1], &[0], &[64, 1]),
            new(&[1 << 32, 2], &[128], &[64, 2]),
            new(&[64, 1 << 32], &[128], &[64, 2]),
            new(&[64, 2], &[(1 << 40) - 16], &[64, 2]),
            new(&[1], &[], &[64]),
            new(&[64, 2], &[128], &[32, 2]).swizzle(Swizzle::B128),
            TensorMapBuilder { address: 0, ..row },
        ] {
            assert!(builder.build().is_ok(), "{builder:?}");
        }
        // Strides are checked where no index uses them, too.
        let unused = |stride| new(&[64, 1], &[stride], &[64, 1]).build();
        assert_eq!(unused(24), Err(TensorMapError::Stride { index: 1, stride: 24 }));
        assert_eq!(unused(1 << 40), Err(TensorMapError::Stride { index: 1, stride: 1 << 40 }));
        assert!(new(&[(1 << 32) + 1, 2], &[128], &[64, 2]).build().is_err());
    }

    /// Rows against the definition, evaluated element by element over all coordinates.
    #[test]
    fn rows_are_those_of_the_definition() {
        let (dims, strides, boxes) = ([24u64, 7, 5, 3, 2], [64u64, 512, 4096, 16384], [16u32, 4, 3, 2, 2]);
        for rank in 1..=5 {
            for element_strides in [[1, 1, 1, 1, 1], [1, 2, 1, 3, 1], [1, 3, 2, 1, 2]] {
                let map = TensorMapBuilder::new(
                    TensorDataType::U16,
                    0x10000,
                    &dims[..rank],
                    &strides[..rank - 1],
                    &boxes[..rank],
                )
                .element_strides(&element_strides[..rank])
                .build()
                .unwrap();
                for start in [[0, 0, 0, 0, 0], [-3, -1, 2, -1, 1], [20, 5, 4, 2, -1], [30, 0, 0, 0, 0]] {
                    let mut got = Vec::new();
                    map.for_each_row(&start[..rank], |row| {
                        for byte in (0..map.row_bytes()).step_by(2) {
                            let inside = row.inside.contains(&byte);
                            let address = row.address + byte as u64;
                            got.push(inside.then(|| address - row.inside.start as u64));
                        }
                        assert_eq!(row.offset as usize * 2, (got.len() - 16) * 4);
                    });
                    let mut want = Vec::new();
                    let range = |i: usize| {
                        let step = if i == 0 { 1 } else { element_strides[i] };
                        (0..if i < rank { boxes[i] as i64 } else { 1 }).step_by(step as usize)
                    };
                    for x4 in range(4) {
                        for x3 in range(3) {
                            for x2 in range(2) {
                                for x1 in range(1) {
                                    for x0 in range(0) {
                                        let at = [x0, x1, x2, x3, x4];
                                        let mut address = Some(0x10000u64);
                                        for i in 0..rank {
                                            let c = at[i] + start[i] as i64;
                                            let stride = if i == 0 { 2 } else { strides[i - 1] };
                                            address = address
                                                .filter(|_| c >= 0 && c < dims[i] as i64)
                                                .map(|a| a + c as u64 * stride);
                                        }
                                        want.push(address);
                                    }
                                }
                            }
                        }
                    }
                    assert_eq!(got, want, "rank {rank} {element_strides:?} at {start:?}");
                    assert_eq!(map.box_bytes() as usize, want.len() * 2);
                }
            }
        }
    }

    #[test]
    fn fills_are_zeros_or_nan() {
        assert_eq!(base().build().unwrap().fill_bytes(), [0; 8]);
        let nan = base().fill(Fill::Nan).build().unwrap().fill_bytes();
        assert_eq!(nan, [0xFF, 0x7F, 0xFF, 0x7F, 0xFF, 0x7F, 0xFF, 0x7F]);
    }
}
