//! Shapes and strides of tensors in memory.

use tegula_ir::types::MAX_RANK;

use crate::error::Error;

/// Extents and strides (in elements) of up to [`MAX_RANK`] dimensions, and where element 0 is (in elements from the start of the
/// buffer). Every element of it lies inside the buffer it was made for: constructors check, and sub-views only shrink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    rank: u8,
    dims: [usize; MAX_RANK],
    strides: [usize; MAX_RANK],
    pub(crate) offset: usize,
}

fn shape_error<T>(message: String) -> Result<T, Error> {
    Err(Error::Shape(message))
}

/// Number of elements of a shape, if addressable.
pub(crate) fn count(shape: &[usize]) -> Result<usize, Error> {
    // Offsets are signed 64-bit in kernels.
    let n = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).filter(|&n| n < 1 << 59);
    n.map_or_else(|| shape_error(format!("the shape {shape:?} has too many elements")), Ok)
}

impl Layout {
    /// Row-major: the last dimension is contiguous.
    pub(crate) fn row_major(shape: &[usize]) -> Result<Layout, Error> {
        let mut strides = [0; MAX_RANK];
        let mut stride = 1usize;
        count(shape)?;
        check_rank(shape.len())?;
        for axis in (0..shape.len()).rev() {
            strides[axis] = stride;
            // With an extent of 0 elsewhere the product may be anything; it is not used to address.
            stride = stride.saturating_mul(shape[axis].max(1));
        }
        Layout::new(shape, &strides[..shape.len()], 0)
    }

    /// Any strides.
    pub(crate) fn new(shape: &[usize], strides: &[usize], offset: usize) -> Result<Layout, Error> {
        check_rank(shape.len())?;
        if shape.len() != strides.len() {
            return shape_error(format!("the shape {shape:?} and the strides {strides:?} differ in rank"));
        }
        let mut l = Layout { rank: shape.len() as u8, dims: [0; MAX_RANK], strides: [0; MAX_RANK], offset };
        l.dims[..shape.len()].copy_from_slice(shape);
        l.strides[..shape.len()].copy_from_slice(strides);
        if l.span_checked().is_none() || strides.iter().any(|&s| s >= 1 << 59) {
            return shape_error(format!("the shape {shape:?} with strides {strides:?} is not addressable"));
        }
        Ok(l)
    }

    /// Extents and strides of up to three dimensions, filled up with zeros; `None` of more.
    #[inline]
    pub(crate) fn first_three(&self) -> Option<([usize; 3], [usize; 3])> {
        let first = |all: &[usize; MAX_RANK]| [all[0], all[1], all[2]];
        (self.rank <= 3).then(|| (first(&self.dims), first(&self.strides)))
    }

    #[inline]
    pub(crate) fn rank(&self) -> usize {
        self.rank as usize
    }

    #[inline]
    pub(crate) fn dims(&self) -> &[usize] {
        &self.dims[..self.rank()]
    }

    #[inline]
    pub(crate) fn strides(&self) -> &[usize] {
        &self.strides[..self.rank()]
    }

    pub(crate) fn count(&self) -> usize {
        self.dims().iter().product()
    }

    /// One more than the largest offset of an element from element 0; 0 without elements.
    pub(crate) fn span(&self) -> usize {
        self.span_checked().unwrap_or(0)
    }

    fn span_checked(&self) -> Option<usize> {
        if self.dims().contains(&0) {
            return Some(0);
        }
        self.dims()
            .iter()
            .zip(self.strides())
            .try_fold(1usize, |n, (&d, &s)| n.checked_add((d - 1).checked_mul(s)?))
            .filter(|&n| n < 1 << 59)
    }

    /// Are the elements, in row-major order, consecutive in memory?
    pub(crate) fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for axis in (0..self.rank()).rev() {
            if self.dims[axis] == 0 {
                return true;
            }
            if self.dims[axis] != 1 && self.strides[axis] != expected {
                return false;
            }
            expected *= self.dims[axis];
        }
        true
    }

    /// Offsets of the elements from element 0, in row-major order.
    pub(crate) fn offsets(&self) -> impl Iterator<Item = usize> + '_ {
        let mut index = [0usize; MAX_RANK];
        let mut offset = 0;
        (0..self.count()).map(move |_| {
            let here = offset;
            for axis in (0..self.rank()).rev() {
                index[axis] += 1;
                offset += self.strides[axis];
                if index[axis] < self.dims[axis] {
                    break;
                }
                offset -= self.strides[axis] * self.dims[axis];
                index[axis] = 0;
            }
            here
        })
    }

    fn check_axis(&self, axis: usize) -> Result<(), Error> {
        if axis >= self.rank() {
            return shape_error(format!("there is no axis {axis} in the shape {:?}", self.dims()));
        }
        Ok(())
    }

    pub(crate) fn slice(&self, axis: usize, start: usize, end: usize) -> Result<Layout, Error> {
        self.check_axis(axis)?;
        if start > end || end > self.dims[axis] {
            return shape_error(format!(
                "the range {start}..{end} is not inside axis {axis} of the shape {:?}",
                self.dims()
            ));
        }
        let mut l = *self;
        l.dims[axis] = end - start;
        // An empty view addresses nothing; its start must not leave the buffer either.
        l.offset += if start < end { start * self.strides[axis] } else { 0 };
        Ok(l)
    }

    pub(crate) fn select(&self, axis: usize, index: usize) -> Result<Layout, Error> {
        self.check_axis(axis)?;
        if index >= self.dims[axis] {
            return shape_error(format!(
                "index {index} is outside axis {axis} of the shape {:?}",
                self.dims()
            ));
        }
        let mut l = self.slice(axis, index, index + 1)?;
        l.dims.copy_within(axis + 1.., axis);
        l.strides.copy_within(axis + 1.., axis);
        l.rank -= 1;
        Ok(l)
    }

    pub(crate) fn permute(&self, perm: &[usize]) -> Result<Layout, Error> {
        let mut l = *self;
        let mut seen = [false; MAX_RANK];
        let whole = perm.len() == self.rank()
            && perm.iter().all(|&p| p < self.rank() && !std::mem::replace(&mut seen[p], true));
        if !whole {
            return shape_error(format!(
                "{perm:?} is no permutation of the axes of the shape {:?}",
                self.dims()
            ));
        }
        for (to, &from) in perm.iter().enumerate() {
            l.dims[to] = self.dims[from];
            l.strides[to] = self.strides[from];
        }
        Ok(l)
    }

    pub(crate) fn transpose(&self, a: usize, b: usize) -> Result<Layout, Error> {
        self.check_axis(a)?;
        self.check_axis(b)?;
        let mut l = *self;
        l.dims.swap(a, b);
        l.strides.swap(a, b);
        Ok(l)
    }

    pub(crate) fn reshape(&self, shape: &[usize]) -> Result<Layout, Error> {
        if !self.is_contiguous() {
            return shape_error(format!(
                "a view of shape {:?} with strides {:?} is not contiguous, so it cannot be reshaped in place: copy it first",
                self.dims(),
                self.strides()
            ));
        }
        if count(shape)? != self.count() {
            return shape_error(format!(
                "the shapes {:?} and {shape:?} differ in their number of elements",
                self.dims()
            ));
        }
        Ok(Layout { offset: self.offset, ..Layout::row_major(shape)? })
    }

    /// Stretches dimensions of extent 1 (stride 0), adding leading ones where needed.
    pub(crate) fn broadcast(&self, shape: &[usize]) -> Result<Layout, Error> {
        let lead = shape.len().checked_sub(self.rank());
        let fits = lead.is_some_and(|lead| {
            self.dims().iter().zip(&shape[lead..]).all(|(&from, &to)| from == to || from == 1)
        });
        let (Some(lead), true) = (lead, fits) else {
            return shape_error(format!("the shape {:?} does not broadcast to {shape:?}", self.dims()));
        };
        check_rank(shape.len())?;
        let mut strides = [0; MAX_RANK];
        for axis in 0..self.rank() {
            strides[lead + axis] = if self.dims[axis] == shape[lead + axis] { self.strides[axis] } else { 0 };
        }
        Layout::new(shape, &strides[..shape.len()], self.offset)
    }
}

fn check_rank(rank: usize) -> Result<(), Error> {
    if rank > MAX_RANK {
        return shape_error(format!("{rank} dimensions are more than the {MAX_RANK} that a tensor can have"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(l: &Layout) -> Vec<usize> {
        l.offsets().map(|o| o + l.offset).collect()
    }

    #[test]
    fn sub_views_address_what_they_say() {
        let l = Layout::row_major(&[2, 3, 4]).unwrap();
        assert_eq!(l.strides(), [12, 4, 1]);
        assert_eq!(offsets(&l), (0..24).collect::<Vec<_>>());
        assert_eq!(offsets(&l.select(1, 2).unwrap()), [8, 9, 10, 11, 20, 21, 22, 23]);
        let s = l.slice(2, 1, 3).unwrap().slice(0, 1, 2).unwrap();
        assert_eq!(offsets(&s), [13, 14, 17, 18, 21, 22]);
        assert!(!s.is_contiguous());
        assert_eq!(offsets(&l.select(0, 1).unwrap().transpose(0, 1).unwrap())[..4], [12, 16, 20, 13]);
        assert_eq!(l.permute(&[2, 0, 1]).unwrap().dims(), [4, 2, 3]);
        assert_eq!(offsets(&Layout::row_major(&[1, 2]).unwrap().broadcast(&[2, 3, 2]).unwrap()).len(), 12);
        assert_eq!(l.reshape(&[6, 4]).unwrap().strides(), [4, 1]);
    }

    #[test]
    fn bad_requests_are_errors() {
        let l = Layout::row_major(&[2, 3]).unwrap();
        for (e, part) in [
            (l.slice(1, 2, 4), "2..4"),
            (l.slice(2, 0, 0), "no axis 2"),
            (l.select(0, 2), "index 2"),
            (l.permute(&[0, 0]), "no permutation"),
            (l.permute(&[0]), "no permutation"),
            (l.transpose(0, 1).unwrap().reshape(&[6]), "not contiguous"),
            (l.reshape(&[7]), "number of elements"),
            (l.broadcast(&[3]), "does not broadcast"),
            (Layout::row_major(&[usize::MAX, 2]), "too many"),
            (Layout::row_major(&[1; 9]), "9 dimensions"),
            (Layout::new(&[2, 2], &[usize::MAX, 1], 0), "not addressable"),
        ] {
            assert!(e.as_ref().is_err_and(|e| e.to_string().contains(part)), "{e:?} should say {part}");
        }
    }

    #[test]
    fn empty_views_stay_inside() {
        let l = Layout::row_major(&[4, 0]).unwrap();
        assert_eq!((l.count(), l.span()), (0, 0));
        let l = Layout::row_major(&[4]).unwrap().slice(0, 4, 4).unwrap();
        assert_eq!((l.offset, l.span()), (0, 0));
    }
}
