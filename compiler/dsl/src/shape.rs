//! Shapes and axes as kernels write them, and the operations that change a tile's shape.

use std::panic::Location;

use tegula_ir::element::Element;
use tegula_ir::types::{MAX_RANK, MAX_TILE_ELEMENTS};
use tegula_ir::{Opcode, Shape, Type, Value};

use crate::broadcast::{shape_of, stretch, with_origins};
use crate::diagnostic::Diagnostic;
use crate::session::{self, emit_value};
use crate::tile::Tile;

/// A tile's shape: an array of extents, as `[128, 64]`, or a [`Shape`].
pub trait IntoShape {
    /// The extents.
    fn extents(&self) -> Vec<usize>;
}

impl<const N: usize> IntoShape for [usize; N] {
    fn extents(&self) -> Vec<usize> {
        self.to_vec()
    }
}

impl IntoShape for &[usize] {
    fn extents(&self) -> Vec<usize> {
        self.to_vec()
    }
}

impl IntoShape for Vec<usize> {
    fn extents(&self) -> Vec<usize> {
        self.clone()
    }
}

impl IntoShape for Shape {
    fn extents(&self) -> Vec<usize> {
        self.dims().iter().map(|&d| d as usize).collect()
    }
}

/// A dimension of a tile, counted from 0, or from the end with −1.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an axis",
    label = "expected the number of a dimension, as a `usize` or an `i32`",
    note = "`x.max(axis)`, `x.min(axis)` and `x.sum(axis)` reduce along a dimension; element by element it is `max(x, y)`, `min(x, y)`"
)]
pub trait IntoAxis {
    /// As a signed number.
    fn axis(self) -> i64;
}

impl IntoAxis for usize {
    fn axis(self) -> i64 {
        self as i64
    }
}

impl IntoAxis for i32 {
    fn axis(self) -> i64 {
        self as i64
    }
}

/// Checks a shape that a kernel asks for. A shape that no tile can have is reported, and the nearest legal one is the error.
#[track_caller]
pub(crate) fn check_shape(operation: &str, shape: &impl IntoShape) -> Result<Shape, Shape> {
    let asked = shape.extents();
    let elements = asked.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64));
    let odd = asked.iter().position(|d| !d.is_power_of_two());
    let fault = if asked.len() > MAX_RANK {
        Some(Diagnostic::at(
            format!("a tile of {} dimensions; at most {MAX_RANK} are possible", asked.len()),
            Location::caller(),
        ))
    } else if let Some(axis) = odd {
        let extent = asked[axis];
        let fault = Diagnostic::at(
            format!("{extent} is no power of two, as extents of tiles must be"),
            Location::caller(),
        );
        Some(match extent {
            0 => fault,
            _ => fault.help(format!(
                "use {} and let the view's bounds, or a mask, cut off the rest",
                extent.next_power_of_two()
            )),
        })
    } else if elements.is_none_or(|n| n > MAX_TILE_ELEMENTS) {
        let fault = Diagnostic::at(
            format!("a tile of shape {asked:?} has more than {MAX_TILE_ELEMENTS} elements"),
            Location::caller(),
        );
        Some(fault.help("loop over smaller tiles"))
    } else {
        None
    };
    let Some(fault) = fault else {
        return Ok(Shape::new(&asked.iter().map(|&d| d as u32).collect::<Vec<u32>>()));
    };
    session::report(&[], fault.label(format!("{operation} of shape {asked:?}")));
    let legal = |&d: &usize| d.clamp(1, 1 << 16).next_power_of_two() as u32;
    Err(Shape::new(&asked.iter().take(MAX_RANK).map(legal).collect::<Vec<u32>>()))
}

/// Checks an axis of a value with `rank` dimensions (of the result, for `expand`).
#[track_caller]
pub(crate) fn check_axis(
    operation: &str,
    axis: impl IntoAxis,
    rank: usize,
    about: &[Value],
) -> Option<usize> {
    let asked = axis.axis();
    let found = if asked < 0 { asked + rank as i64 } else { asked };
    if (0..rank as i64).contains(&found) {
        return Some(found as usize);
    }
    let fault = Diagnostic::at(format!("there is no axis {asked}"), Location::caller());
    let fault = match (about.first().map(|&v| shape_of(v)), rank) {
        (Some(shape), 0) => fault.label(format!("{operation} of a scalar (shape {shape})")),
        (Some(shape), _) => fault
            .label(format!("{operation} of a tile of shape {shape}"))
            .note(format!("axes are 0 to {}, or -1 to -{rank} from the end", rank - 1)),
        (None, _) => fault,
    };
    session::report(about, fault);
    None
}

/// [`Tile::expand`], also of pointers.
#[track_caller]
pub(crate) fn expand(value: Value, axis: impl IntoAxis) -> Value {
    let (ty, shape) = (session::ty(value), shape_of(value));
    if shape.rank() == MAX_RANK {
        let fault = Diagnostic::at(format!("a tile has at most {MAX_RANK} dimensions"), Location::caller());
        session::report(&[value], fault.label(format!("`expand` of shape {shape}")));
        return session::poison(ty);
    }
    match check_axis("`expand`", axis, shape.rank() + 1, &[value]) {
        Some(axis) => {
            let ty = ty.with_shape(shape.insert(axis, 1));
            emit_value(Opcode::Expand { axis: axis as u8 }, &[value], ty)
        }
        None => session::poison(ty.with_shape(shape.insert(shape.rank(), 1))),
    }
}

/// [`Tile::broadcast_to`], also of pointers.
#[track_caller]
pub(crate) fn broadcast_to(value: Value, shape: impl IntoShape) -> Value {
    let (ty, from) = (session::ty(value), shape_of(value));
    let to = match check_shape("`broadcast_to`", &shape) {
        Ok(to) => to,
        Err(nearest) => return session::poison(ty.with_shape(nearest)),
    };
    if from.broadcast(&to) == Some(to) {
        return stretch(value, to);
    }
    let fault = Diagnostic::at(format!("shape {from} does not stretch to {to}"), Location::caller())
        .label(format!("`broadcast_to` of shape {from}"))
        .note("shapes are aligned at their last dimension; only extents of 1 stretch");
    session::report(&[value], fault);
    session::poison(ty.with_shape(to))
}

impl<T: Element> Tile<T> {
    #[track_caller]
    fn poison_of(self, shape: Shape) -> Tile<T> {
        Tile::from_value(session::poison(Type::tile(T::ELEM, shape)))
    }

    /// Inserts a dimension of extent 1 before dimension `axis` (at the end for `axis == rank`, or −1): `[128]` with `.expand(1)` is `[128, 1]`.
    #[track_caller]
    pub fn expand(self, axis: impl IntoAxis) -> Tile<T> {
        Tile::from_value(expand(self.value(), axis))
    }

    /// The same elements, in row-major order, under another shape of as many elements.
    #[track_caller]
    pub fn reshape(self, shape: impl IntoShape) -> Tile<T> {
        let from = self.shape();
        let to = match check_shape("`reshape`", &shape) {
            Ok(to) => to,
            Err(nearest) => return self.poison_of(nearest),
        };
        if from.num_elements() != to.num_elements() {
            let fault = Diagnostic::at(format!("shape {from} cannot become {to}"), Location::caller())
                .label(format!("{} elements become {}", from.num_elements(), to.num_elements()));
            session::report(&[self.value()], fault);
            return self.poison_of(to);
        }
        Tile::from_value(emit_value(Opcode::Reshape, &[self.value()], Type::tile(T::ELEM, to)))
    }

    /// Stretches to `shape`: dimensions of extent 1, and missing leading ones.
    #[track_caller]
    pub fn broadcast_to(self, shape: impl IntoShape) -> Tile<T> {
        Tile::from_value(broadcast_to(self.value(), shape))
    }

    /// Reorders dimensions: dimension `i` of the result is dimension `order[i]` of this tile.
    #[track_caller]
    pub fn permute<const N: usize>(self, order: [usize; N]) -> Tile<T> {
        let shape = self.shape();
        let mut sorted = order;
        sorted.sort_unstable();
        if N != shape.rank() || !sorted.iter().copied().eq(0..N) {
            let fault = Diagnostic::at(
                format!("{order:?} is no order of the {} dimensions of shape {shape}", shape.rank()),
                Location::caller(),
            );
            session::report(&[self.value()], fault.label("each dimension must be named once"));
            return self.poison_of(shape);
        }
        let perm: tegula_ir::op::Dims = order.iter().map(|&d| d as u32).collect();
        let ty = Type::tile(T::ELEM, shape.permute(&perm));
        Tile::from_value(emit_value(Opcode::Permute { perm }, &[self.value()], ty))
    }

    /// Exchanges the last two dimensions.
    #[track_caller]
    pub fn trans(self) -> Tile<T> {
        let shape = self.shape();
        let rank = shape.rank();
        if rank < 2 {
            let fault = Diagnostic::at("`trans` needs two dimensions to exchange", Location::caller())
                .label(format!("this tile has shape {shape}"))
                .help("insert `.expand(0)` or `.expand(1)` before");
            session::report(&[self.value()], fault);
            return self;
        }
        let mut perm: tegula_ir::op::Dims = (0..rank as u32).collect();
        perm.swap(rank - 2, rank - 1);
        let ty = Type::tile(T::ELEM, shape.permute(&perm));
        Tile::from_value(emit_value(Opcode::Permute { perm }, &[self.value()], ty))
    }

    /// Takes a last dimension of extent 2 apart: the inverse of [`join`].
    #[track_caller]
    pub fn split(self) -> (Tile<T>, Tile<T>) {
        let shape = self.shape();
        if shape.dims().last() != Some(&2) {
            let fault = Diagnostic::at("`split` needs a last dimension of extent 2", Location::caller())
                .label(format!("this tile has shape {shape}"))
                .help("`.reshape` it so that its last dimension is 2");
            session::report(&[self.value()], fault);
            let half = if shape.rank() == 0 { shape } else { shape.remove(shape.rank() - 1) };
            return (self.poison_of(half), self.poison_of(half));
        }
        let ty = Type::tile(T::ELEM, shape.remove(shape.rank() - 1));
        let both = session::emit(Opcode::Split, &[self.value()], &[ty, ty]);
        (Tile::from_value(both[0]), Tile::from_value(both[1]))
    }

    /// Takes elements along `axis`: `result[.., i, ..] = self[.., index[.., i, ..], ..]`. Other extents agree. An index outside is
    /// undefined.
    #[track_caller]
    pub fn gather<I: tegula_ir::element::Int>(self, index: Tile<I>, axis: impl IntoAxis) -> Tile<T> {
        let (from, at) = (self.shape(), index.shape());
        let about = [self.value(), index.value()];
        let Some(axis) = check_axis("`gather`", axis, from.rank(), &about) else {
            return self.poison_of(at);
        };
        if from.rank() != at.rank() || from.remove(axis) != at.remove(axis) {
            let fault = Diagnostic::at(
                format!("`gather` along axis {axis} from shape {from} with indices of shape {at}"),
                Location::caller(),
            );
            session::report(
                &about,
                with_origins(fault.label("all extents but that of the axis must agree"), &about),
            );
            return self.poison_of(at);
        }
        let ty = Type::tile(T::ELEM, at);
        Tile::from_value(emit_value(Opcode::Gather { axis: axis as u8 }, &about, ty))
    }
}

/// Puts two tiles side by side in a new last dimension of extent 2; they broadcast together.
#[track_caller]
pub fn join<T: Element>(a: Tile<T>, b: Tile<T>) -> Tile<T> {
    let both = crate::broadcast::unify("`join`", &[a.value(), b.value()]);
    let shape = shape_of(both[0]);
    if shape.rank() == MAX_RANK {
        let fault = Diagnostic::at(format!("a tile has at most {MAX_RANK} dimensions"), Location::caller());
        session::report(&both, fault.label(format!("`join` of shape {shape}")));
        return a;
    }
    let ty = Type::tile(T::ELEM, shape.insert(shape.rank(), 2));
    Tile::from_value(emit_value(Opcode::Join, &both, ty))
}

/// Puts `b` after `a` along `axis`; both have one shape, because the result's extent is a power of two.
#[track_caller]
pub fn cat<T: Element>(a: Tile<T>, b: Tile<T>, axis: impl IntoAxis) -> Tile<T> {
    let (shape, other) = (a.shape(), b.shape());
    let about = [a.value(), b.value()];
    let Some(axis) = check_axis("`cat`", axis, shape.rank(), &about) else { return a };
    if shape != other {
        let fault = Diagnostic::at(format!("`cat` of shapes {shape} and {other}"), Location::caller());
        session::report(&about, with_origins(fault.label("both must have one shape"), &about));
        return Tile::from_value(session::poison(session::ty(a.value())));
    }
    // [.., n, .., 2] → [.., 2, n, ..] → [.., 2n, ..]
    let rank = shape.rank();
    let mut perm: tegula_ir::op::Dims = (0..rank as u32).collect();
    perm.insert(axis, rank as u32);
    let pair = Type::tile(T::ELEM, shape.insert(axis, 2));
    let moved = emit_value(Opcode::Permute { perm }, &[join(a, b).value()], pair);
    let mut extents = shape.extents();
    extents[axis] *= 2;
    Tile::<T>::from_value(moved).reshape(extents)
}
