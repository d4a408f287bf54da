//! Types of tile IR: element types, shapes, tiles and views.
//!
//! A *scalar is a rank-0 tile*: there is one kind of value for data, and `i32` is only the short spelling of a tile
//! without dimensions. Pointers are elements too, so a tile of pointers is a tile like any other.

use std::fmt;
use std::str::FromStr;

use crate::kernel::LayoutRef;

/// The most dimensions that a tile or a view can have.
pub const MAX_RANK: usize = 8;

/// The most elements that one tile can have (as in Triton: beyond it a kernel no longer fits a GPU's registers).
pub const MAX_TILE_ELEMENTS: u64 = 1 << 20;

/// The type of one element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Elem {
    /// A truth value, stored as one byte in memory.
    I1,
    /// Signed 4-bit integer; only in packed storage.
    I4,
    /// Unsigned 4-bit integer; only in packed storage.
    U4,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 64-bit integer.
    U64,
    /// OCP FP4 with 2 exponent bits and 1 mantissa bit; only in packed storage.
    F4E2M1,
    /// OCP FP8, 4 exponent and 3 mantissa bits, no infinity, largest 448 (the `fn` variant).
    F8E4M3,
    /// OCP FP8, 5 exponent and 2 mantissa bits, with infinity, largest 57344.
    F8E5M2,
    /// OCP MX scale: a power of two, no sign; 0xff is NaN.
    F8E8M0,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    BF16,
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
}

impl Elem {
    /// Every element type.
    pub const ALL: [Elem; 19] = [
        Elem::I1,
        Elem::I4,
        Elem::U4,
        Elem::I8,
        Elem::U8,
        Elem::I16,
        Elem::U16,
        Elem::I32,
        Elem::U32,
        Elem::I64,
        Elem::U64,
        Elem::F4E2M1,
        Elem::F8E4M3,
        Elem::F8E5M2,
        Elem::F8E8M0,
        Elem::F16,
        Elem::BF16,
        Elem::F32,
        Elem::F64,
    ];

    /// The name used in text, in keys and in errors.
    pub const fn name(self) -> &'static str {
        match self {
            Elem::I1 => "i1",
            Elem::I4 => "i4",
            Elem::U4 => "u4",
            Elem::I8 => "i8",
            Elem::U8 => "u8",
            Elem::I16 => "i16",
            Elem::U16 => "u16",
            Elem::I32 => "i32",
            Elem::U32 => "u32",
            Elem::I64 => "i64",
            Elem::U64 => "u64",
            Elem::F4E2M1 => "f4e2m1",
            Elem::F8E4M3 => "f8e4m3",
            Elem::F8E5M2 => "f8e5m2",
            Elem::F8E8M0 => "f8e8m0",
            Elem::F16 => "f16",
            Elem::BF16 => "bf16",
            Elem::F32 => "f32",
            Elem::F64 => "f64",
        }
    }

    /// Width of the value in bits (`i1` is 1).
    pub const fn bits(self) -> u32 {
        match self {
            Elem::I1 => 1,
            Elem::I4 | Elem::U4 | Elem::F4E2M1 => 4,
            Elem::I8 | Elem::U8 | Elem::F8E4M3 | Elem::F8E5M2 | Elem::F8E8M0 => 8,
            Elem::I16 | Elem::U16 | Elem::F16 | Elem::BF16 => 16,
            Elem::I32 | Elem::U32 | Elem::F32 => 32,
            Elem::I64 | Elem::U64 | Elem::F64 => 64,
        }
    }

    /// Bytes of one element in memory; `None` for the 4-bit types, which exist only packed in pairs.
    pub const fn size_of(self) -> Option<usize> {
        match self.bits() {
            4 => None,
            1 => Some(1),
            b => Some(b as usize / 8),
        }
    }

    /// Floating point of any width?
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            Elem::F4E2M1
                | Elem::F8E4M3
                | Elem::F8E5M2
                | Elem::F8E8M0
                | Elem::F16
                | Elem::BF16
                | Elem::F32
                | Elem::F64
        )
    }

    /// A float that arithmetic is defined on (f16 and wider); the narrower ones only load, store and cast.
    pub const fn is_arith_float(self) -> bool {
        matches!(self, Elem::F16 | Elem::BF16 | Elem::F32 | Elem::F64)
    }

    /// An integer, signed or not; `i1` is a truth value and not counted.
    pub const fn is_int(self) -> bool {
        !self.is_float() && !matches!(self, Elem::I1)
    }

    /// An integer that arithmetic is defined on (8 bits and wider).
    pub const fn is_arith_int(self) -> bool {
        self.is_int() && self.bits() >= 8
    }

    /// A signed integer?
    pub const fn is_signed(self) -> bool {
        matches!(self, Elem::I4 | Elem::I8 | Elem::I16 | Elem::I32 | Elem::I64)
    }
}

impl fmt::Display for Elem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Elem {
    type Err = UnknownElem;
    fn from_str(s: &str) -> Result<Elem, UnknownElem> {
        Elem::ALL.into_iter().find(|e| e.name() == s).ok_or_else(|| UnknownElem(s.to_owned()))
    }
}

/// A name that is no element type.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "unknown element type `{0}` (known: i1 i4 u4 i8 u8 i16 u16 i32 u32 i64 u64 f4e2m1 f8e4m3 f8e5m2 f8e8m0 f16 bf16 f32 f64)"
)]
pub struct UnknownElem(pub String);

/// The extents of a tile. Copied freely: it is a few words.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [u32; MAX_RANK],
    rank: u8,
}

impl Shape {
    /// The shape of a scalar.
    pub const SCALAR: Shape = Shape { dims: [0; MAX_RANK], rank: 0 };

    /// A shape with these extents.
    ///
    /// # Panics
    /// With more than [`MAX_RANK`] dimensions; callers that take shapes from outside check first.
    pub fn new(extents: &[u32]) -> Shape {
        assert!(extents.len() <= MAX_RANK, "a tile has at most {MAX_RANK} dimensions");
        let mut dims = [0; MAX_RANK];
        dims[..extents.len()].copy_from_slice(extents);
        Shape { dims, rank: extents.len() as u8 }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// The extents.
    pub fn dims(&self) -> &[u32] {
        &self.dims[..self.rank as usize]
    }

    /// Number of elements (1 for a scalar).
    pub fn num_elements(&self) -> u64 {
        self.dims().iter().map(|&d| d as u64).product()
    }

    /// This shape with `extent` inserted before dimension `axis`.
    pub fn insert(&self, axis: usize, extent: u32) -> Shape {
        let mut d = self.dims().to_vec();
        d.insert(axis, extent);
        Shape::new(&d)
    }

    /// This shape without dimension `axis`.
    pub fn remove(&self, axis: usize) -> Shape {
        let mut d = self.dims().to_vec();
        d.remove(axis);
        Shape::new(&d)
    }

    /// This shape with its dimensions reordered: result dimension `i` is dimension `perm[i]` of `self`.
    pub fn permute(&self, perm: &[u32]) -> Shape {
        let d: Vec<u32> = perm.iter().map(|&p| self.dims[p as usize]).collect();
        Shape::new(&d)
    }

    /// The shape that both broadcast to (NumPy's rule: align at the last dimension, 1 stretches), or `None`.
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        let rank = self.rank().max(other.rank());
        let mut out = [0u32; MAX_RANK];
        for (i, extent) in out.iter_mut().enumerate().take(rank) {
            let at = |s: &Shape| if i + s.rank() >= rank { s.dims[i + s.rank() - rank] } else { 1 };
            *extent = match (at(self), at(other)) {
                (a, b) if a == b => a,
                (1, b) => b,
                (a, 1) => a,
                _ => return None,
            };
        }
        Some(Shape::new(&out[..rank]))
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Shape {
    /// As in messages: `[128, 64]`, `[]` for a scalar.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.dims()).finish()
    }
}

/// What a tile holds: values, or pointers to values in global memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ElemType {
    /// Values of this type.
    Value(Elem),
    /// 64-bit addresses of values of this type.
    Ptr(Elem),
}

impl ElemType {
    /// The element type if these are values.
    pub fn value(self) -> Option<Elem> {
        match self {
            ElemType::Value(e) => Some(e),
            ElemType::Ptr(_) => None,
        }
    }

    /// The pointee type if these are pointers.
    pub fn pointee(self) -> Option<Elem> {
        match self {
            ElemType::Value(_) => None,
            ElemType::Ptr(e) => Some(e),
        }
    }

    /// Bits that one element takes in a register.
    pub fn bits(self) -> u32 {
        match self {
            ElemType::Value(e) => e.bits(),
            ElemType::Ptr(_) => 64,
        }
    }
}

impl fmt::Display for ElemType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ElemType::Value(e) => write!(f, "{e}"),
            ElemType::Ptr(e) => write!(f, "ptr<{e}>"),
        }
    }
}

impl From<Elem> for ElemType {
    fn from(e: Elem) -> ElemType {
        ElemType::Value(e)
    }
}

/// A tile: `shape` elements of one type. After `assign_layouts` it also says which thread holds which element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TileType {
    /// What it holds.
    pub elem: ElemType,
    /// Its extents; each a power of two.
    pub shape: Shape,
    /// Where its elements live among the registers, lanes and warps of a CTA; `None` until layouts are assigned,
    /// and for scalars, which every thread holds.
    pub layout: Option<LayoutRef>,
}

/// A view: a rectangle of global memory with shape and strides (in elements) known at run time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ViewType {
    /// Type of the elements.
    pub elem: Elem,
    /// Number of dimensions, 1 to [`MAX_RANK`].
    pub rank: u8,
    /// May it be stored to?
    pub mutable: bool,
}

/// A buffer in shared memory, made by the scheduling passes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SharedType {
    /// Type of the elements.
    pub elem: Elem,
    /// Extents of one slot.
    pub shape: Shape,
    /// Number of slots (a ring of buffers for pipelined loops; 1 otherwise).
    pub slots: u32,
    /// Maps offsets inside a slot to coordinates.
    pub layout: LayoutRef,
}

/// The barriers that hand the slots of rings from a producer to consumers and back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ChannelType {
    /// Number of slots, that of the rings.
    pub slots: u32,
    /// CTAs whose consumers read what fills a slot: 1, or all of a cluster.
    pub ctas: u32,
    /// Groups of consumers that read what fills a slot: 1, or all.
    pub groups: u32,
}

/// One tile of every slot of a channel (at the explicit level).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RingType {
    /// Type of the elements.
    pub elem: Elem,
    /// Extents of the tile.
    pub shape: Shape,
}

/// The type of a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Type {
    /// A tile; a scalar if its rank is 0.
    Tile(TileType),
    /// A view of global memory.
    View(ViewType),
    /// A ring of shared buffers.
    Shared(SharedType),
    /// The barriers of a ring: made by warp specialisation, or written by the programmer.
    Channel(ChannelType),
    /// One tile of every slot of a channel.
    Ring(RingType),
    /// A slot of a channel, acquired or waited for.
    Slot,
}

impl Type {
    /// A scalar of this element type.
    pub fn scalar(elem: Elem) -> Type {
        Type::tile(elem, Shape::SCALAR)
    }

    /// A tile of values without a layout.
    pub fn tile(elem: impl Into<ElemType>, shape: Shape) -> Type {
        Type::Tile(TileType { elem: elem.into(), shape, layout: None })
    }

    /// A scalar pointer.
    pub fn ptr(elem: Elem) -> Type {
        Type::tile(ElemType::Ptr(elem), Shape::SCALAR)
    }

    /// A view.
    pub fn view(elem: Elem, rank: usize, mutable: bool) -> Type {
        Type::View(ViewType { elem, rank: rank as u8, mutable })
    }

    /// The tile type, if it is one.
    pub fn as_tile(self) -> Option<TileType> {
        match self {
            Type::Tile(t) => Some(t),
            _ => None,
        }
    }

    /// The view type, if it is one.
    pub fn as_view(self) -> Option<ViewType> {
        match self {
            Type::View(v) => Some(v),
            _ => None,
        }
    }

    /// The shared-buffer type, if it is one.
    pub fn as_shared(self) -> Option<SharedType> {
        match self {
            Type::Shared(s) => Some(s),
            _ => None,
        }
    }

    /// The channel type, if it is one.
    pub fn as_channel(self) -> Option<ChannelType> {
        match self {
            Type::Channel(c) => Some(c),
            _ => None,
        }
    }

    /// The type of a channel's tile, if it is one.
    pub fn as_ring(self) -> Option<RingType> {
        match self {
            Type::Ring(r) => Some(r),
            _ => None,
        }
    }

    /// The element type if this is a tile of values (or a scalar).
    pub fn value_elem(self) -> Option<Elem> {
        self.as_tile().and_then(|t| t.elem.value())
    }

    /// The tile's shape.
    pub fn shape(self) -> Option<Shape> {
        self.as_tile().map(|t| t.shape)
    }

    /// Is it a rank-0 tile?
    pub fn is_scalar(self) -> bool {
        self.as_tile().is_some_and(|t| t.shape.rank() == 0)
    }

    /// Is it a scalar of this element type?
    pub fn is_scalar_of(self, elem: Elem) -> bool {
        self.is_scalar() && self.value_elem() == Some(elem)
    }

    /// The same tile with another element type; anything else is returned as it is.
    pub fn with_elem(self, elem: impl Into<ElemType>) -> Type {
        match self {
            Type::Tile(t) => Type::Tile(TileType { elem: elem.into(), ..t }),
            other => other,
        }
    }

    /// The same tile with another shape and no layout; anything else is returned as it is.
    pub fn with_shape(self, shape: Shape) -> Type {
        match self {
            Type::Tile(t) => Type::Tile(TileType { shape, layout: None, ..t }),
            other => other,
        }
    }

    /// The same tile with this layout; anything else is returned as it is.
    pub fn with_layout(self, layout: Option<LayoutRef>) -> Type {
        match self {
            Type::Tile(t) => Type::Tile(TileType { layout, ..t }),
            other => other,
        }
    }
}

impl fmt::Display for Type {
    /// `f32`, `tile<128x64xf32>`, `tile<128xptr<bf16>, #2>`, `view<?x?xbf16>`, `view_mut<?xf32>`,
    /// `shared<3 x 128x64xbf16, #4>`, `channel<3>` (`channel<3, 2>` of two CTAs, `channel<3, 1, 2>` of two groups), `ring<128x64xbf16>`, `slot`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims =
            |f: &mut fmt::Formatter<'_>, s: &Shape| s.dims().iter().try_for_each(|d| write!(f, "{d}x"));
        match self {
            Type::Tile(t) if t.shape.rank() == 0 => write!(f, "{}", t.elem),
            Type::Tile(t) => {
                f.write_str("tile<")?;
                dims(f, &t.shape)?;
                write!(f, "{}", t.elem)?;
                if let Some(l) = t.layout {
                    write!(f, ", {l}")?;
                }
                f.write_str(">")
            }
            Type::View(v) => {
                f.write_str(if v.mutable { "view_mut<" } else { "view<" })?;
                (0..v.rank).try_for_each(|_| f.write_str("?x"))?;
                write!(f, "{}>", v.elem)
            }
            Type::Shared(s) => {
                write!(f, "shared<{} x ", s.slots)?;
                dims(f, &s.shape)?;
                write!(f, "{}, {}>", s.elem, s.layout)
            }
            Type::Channel(c) if c.groups > 1 => {
                write!(f, "channel<{}, {}, {}>", c.slots, c.ctas, c.groups)
            }
            Type::Channel(c) if c.ctas > 1 => write!(f, "channel<{}, {}>", c.slots, c.ctas),
            Type::Channel(c) => write!(f, "channel<{}>", c.slots),
            Type::Ring(r) => {
                f.write_str("ring<")?;
                dims(f, &r.shape)?;
                write!(f, "{}>", r.elem)
            }
            Type::Slot => f.write_str("slot"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for e in Elem::ALL {
            assert_eq!(e.name().parse::<Elem>(), Ok(e));
        }
        assert!("f31".parse::<Elem>().unwrap_err().to_string().contains("f31"));
    }

    #[test]
    fn broadcasting_follows_numpy() {
        let s = Shape::new;
        assert_eq!(s(&[4, 1]).broadcast(&s(&[8])), Some(s(&[4, 8])));
        assert_eq!(Shape::SCALAR.broadcast(&s(&[2, 2])), Some(s(&[2, 2])));
        assert_eq!(s(&[4]).broadcast(&s(&[8])), None);
    }

    #[test]
    fn types_print_as_documented() {
        assert_eq!(Type::scalar(Elem::F32).to_string(), "f32");
        assert_eq!(Type::tile(Elem::BF16, Shape::new(&[128, 64])).to_string(), "tile<128x64xbf16>");
        assert_eq!(Type::view(Elem::F16, 2, true).to_string(), "view_mut<?x?xf16>");
        assert_eq!(Type::tile(ElemType::Ptr(Elem::I8), Shape::new(&[2])).to_string(), "tile<2xptr<i8>>");
    }
}
