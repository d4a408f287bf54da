//! Operations on whole tiles: moving elements about, and folding along a dimension.

use tegula_ir::op::Rounding;

use crate::number;
use crate::sink::Array;

/// The coordinates of an element by its row-major position.
pub fn coordinates(mut position: usize, dims: &[u32]) -> Vec<usize> {
    let mut out = vec![0; dims.len()];
    for (c, &d) in out.iter_mut().zip(dims).rev() {
        *c = position % d as usize;
        position /= d as usize;
    }
    out
}

/// The row-major position of an element.
pub fn position(coordinates: &[usize], dims: &[u32]) -> usize {
    coordinates.iter().zip(dims).fold(0, |p, (&c, &d)| p * d as usize + c)
}

/// An array of these extents whose element at each place is that of `from` at `source(place)`, or `outside`.
pub fn rearranged(
    from: &Array,
    dims: &[u32],
    outside: u64,
    source: impl Fn(&[usize]) -> Vec<usize>,
) -> Array {
    let pick = |p: usize| {
        let at = source(&coordinates(p, dims));
        let inside = at.iter().zip(&from.dims).all(|(&c, &d)| c < d as usize);
        if inside { from.bits[position(&at, &from.dims)] } else { outside }
    };
    Array { elem: from.elem, dims: dims.to_vec(), bits: (0..Array::count(dims)).map(pick).collect() }
}

/// The tile that a load of this shape at the origin gives.
pub fn padded(array: &Array, tile: &[u32], padding: u64) -> Array {
    rearranged(array, tile, padding, |at| at.to_vec())
}

/// A combination of two groups of values.
pub type Combine<'a> = dyn Fn(&[u64], &[u64]) -> Vec<u64> + 'a;

/// Folds a dimension away, from its first element to its last.
pub fn reduce(inputs: &[Array], axis: usize, combine: &Combine<'_>) -> Vec<Array> {
    let mut dims = inputs[0].dims.clone();
    let extent = dims.remove(axis) as usize;
    let scanned = scan(inputs, axis, false, combine);
    let last = |a: &Array| {
        rearranged(a, &dims, 0, |at| {
            let mut at = at.to_vec();
            at.insert(axis, extent - 1);
            at
        })
    };
    scanned.iter().map(last).collect()
}

/// Combines prefixes along a dimension; suffixes if `reverse`.
pub fn scan(inputs: &[Array], axis: usize, reverse: bool, combine: &Combine<'_>) -> Vec<Array> {
    let dims = inputs[0].dims.clone();
    let mut out = inputs.to_vec();
    let extent = dims[axis] as usize;
    for p in 0..Array::count(&dims) {
        // In the order of positions, an element comes after its predecessor along any dimension; backwards, before it.
        let p = if reverse { Array::count(&dims) - 1 - p } else { p };
        let mut at = coordinates(p, &dims);
        let before = match (reverse, at[axis]) {
            (false, 0) => continue,
            (false, i) => i - 1,
            (true, i) if i + 1 == extent => continue,
            (true, i) => i + 1,
        };
        at[axis] = before;
        let q = position(&at, &dims);
        let running: Vec<u64> = out.iter().map(|a| a.bits[q]).collect();
        let element: Vec<u64> = inputs.iter().map(|a| a.bits[p]).collect();
        for (array, bits) in out.iter_mut().zip(combine(&running, &element)) {
            array.bits[p] = bits;
        }
    }
    out
}

/// The array converted to f64 (floats only): exact.
pub fn widened(array: &Array) -> Array {
    let widen = |&bits: &u64| number::float(array.elem, bits).to_bits();
    Array {
        elem: tegula_ir::types::Elem::F64,
        dims: array.dims.clone(),
        bits: array.bits.iter().map(widen).collect(),
    }
}

/// The f64 array rounded to another float type.
pub fn narrowed(array: &Array, elem: tegula_ir::types::Elem) -> Array {
    let narrow = |&bits: &u64| number::from_float(elem, f64::from_bits(bits), Rounding::Default);
    Array { elem, dims: array.dims.clone(), bits: array.bits.iter().map(narrow).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tegula_ir::types::Elem;

    fn array(dims: &[u32], bits: &[u64]) -> Array {
        Array { elem: Elem::I32, dims: dims.to_vec(), bits: bits.to_vec() }
    }

    #[test]
    fn folds_go_along_the_dimension() {
        let a = array(&[2, 3], &[1, 2, 3, 4, 5, 6]);
        let sum: &Combine<'_> = &|a, b| vec![a[0] + b[0]];
        assert_eq!(reduce(std::slice::from_ref(&a), 0, sum)[0].bits, [5, 7, 9]);
        assert_eq!(reduce(std::slice::from_ref(&a), 1, sum)[0].bits, [6, 15]);
        assert_eq!(scan(std::slice::from_ref(&a), 1, false, sum)[0].bits, [1, 3, 6, 4, 9, 15]);
        assert_eq!(scan(std::slice::from_ref(&a), 0, true, sum)[0].bits, [5, 7, 9, 4, 5, 6]);
    }

    #[test]
    fn padding_surrounds() {
        let a = array(&[1, 3], &[1, 2, 3]);
        assert_eq!(padded(&a, &[2, 4], 9).bits, [1, 2, 3, 9, 9, 9, 9, 9]);
    }
}
