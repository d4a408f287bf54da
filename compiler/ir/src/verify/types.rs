//! Which types exist, and small questions about them.

use super::{Check, ensure};
use crate::kernel::Kernel;
use crate::layout::{LinearLayout, Space};
use crate::types::{Elem, ElemType, MAX_RANK, MAX_TILE_ELEMENTS, Shape, TileType, Type, ViewType};

/// Checks a type by itself; its layout is looked at by [`super::verify`], which has the table.
pub fn check_type(ty: Type) -> Check {
    match ty {
        Type::Tile(tile) => {
            check_shape(&tile.shape)?;
            if let ElemType::Ptr(pointee) = tile.elem {
                check_addressable(pointee)?;
            }
            ensure!(
                tile.layout.is_none() || tile.shape.rank() > 0,
                "a scalar has no layout: every thread holds it"
            );
            Ok(())
        }
        Type::View(view) => {
            ensure!(
                (1..=MAX_RANK).contains(&(view.rank as usize)),
                "a view has 1 to {MAX_RANK} dimensions, not {}",
                view.rank
            );
            check_addressable(view.elem)
        }
        Type::Shared(shared) => {
            ensure!(shared.slots >= 1, "a shared buffer has at least one slot");
            check_shape(&shared.shape)?;
            check_addressable(shared.elem)
        }
        Type::Channel(channel) => {
            ensure!(channel.slots >= 1, "a channel has at least one slot");
            ensure!((1..=16).contains(&channel.ctas), "a cluster has 1 to 16 CTAs");
            ensure!((1..=3).contains(&channel.groups), "there are 1 to 3 groups of consumers");
            Ok(())
        }
        Type::Ring(ring) => {
            check_shape(&ring.shape)?;
            check_addressable(ring.elem)
        }
        Type::Slot => Ok(()),
    }
}

fn check_shape(shape: &Shape) -> Check {
    for extent in shape.dims() {
        ensure!(extent.is_power_of_two(), "the extents of a tile are powers of two: {shape}");
    }
    // Saturating, since eight 32-bit extents can pass 64 bits.
    let elements = shape.dims().iter().fold(1u64, |n, &d| n.saturating_mul(u64::from(d)));
    ensure!(
        elements <= MAX_TILE_ELEMENTS,
        "a tile has at most {MAX_TILE_ELEMENTS} elements, {shape} has more"
    );
    Ok(())
}

fn check_addressable(elem: Elem) -> Check {
    ensure!(elem.size_of().is_some(), "{elem} exists in memory only packed, so it cannot be addressed");
    Ok(())
}

/// Checks that a type's layout is in the table, places every element and is of the right kind.
pub(super) fn check_layout(kernel: &Kernel, ty: Type) -> Check {
    let (layout, shape, in_memory) = match ty {
        Type::Tile(t) => (t.layout, t.shape, false),
        Type::Shared(s) => (Some(s.layout), s.shape, true),
        Type::View(_) | Type::Channel(_) | Type::Ring(_) | Type::Slot => (None, Shape::SCALAR, false),
    };
    let Some(reference) = layout else { return Ok(()) };
    let layout: &LinearLayout =
        kernel.layouts.get(reference).ok_or_else(|| format!("layout {reference} does not exist"))?;
    let dims = layout.dims();
    let same_shape =
        dims.rank() == shape.rank() && shape.dims().iter().enumerate().all(|(d, &e)| dims.extent(d) == e);
    ensure!(same_shape, "layout {reference} is not of shape {shape}");
    ensure!(layout.is_surjective(), "layout {reference} does not place every element of {shape}");
    let threads = [Space::Register, Space::Lane, Space::Warp, Space::Block];
    let foreign =
        if in_memory { threads.iter().any(|&s| layout.bits(s) > 0) } else { layout.bits(Space::Offset) > 0 };
    let wanted = if in_memory { "offsets in shared memory" } else { "registers, lanes and warps" };
    ensure!(!foreign, "layout {reference} does not map {wanted}");
    Ok(())
}

/// The tile type, or the complaint that there should be one.
pub(super) fn tile(ty: Type, what: &str) -> Result<TileType, String> {
    ty.as_tile().ok_or_else(|| format!("{what} is a tile, not `{ty}`"))
}

/// The tile's element type, if it is one of values.
pub(super) fn values(ty: Type, what: &str) -> Result<Elem, String> {
    ty.value_elem().ok_or_else(|| format!("{what} is a tile of values, not `{ty}`"))
}

/// The pointee of a tile of pointers.
pub(super) fn pointers(ty: Type, what: &str) -> Result<Elem, String> {
    let pointee = ty.as_tile().and_then(|t| t.elem.pointee());
    pointee.ok_or_else(|| format!("{what} is a tile of pointers, not `{ty}`"))
}

pub(super) fn view(ty: Type, what: &str) -> Result<ViewType, String> {
    ty.as_view().ok_or_else(|| format!("{what} is a view, not `{ty}`"))
}

pub(super) fn integer_scalar(ty: Type, what: &str) -> Check {
    let ok = ty.is_scalar() && ty.value_elem().is_some_and(Elem::is_arith_int);
    ensure!(ok, "{what} is an integer scalar, not `{ty}`");
    Ok(())
}

pub(super) fn scalar_of(ty: Type, elem: Elem, what: &str) -> Check {
    ensure!(ty.is_scalar_of(elem), "{what} is a scalar `{elem}`, not `{ty}`");
    Ok(())
}

/// The two are one type.
pub(super) fn same(a: Type, b: Type, what: &str) -> Check {
    ensure!(a == b, "{what}: `{a}` and `{b}`");
    Ok(())
}
