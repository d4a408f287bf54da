//! Tensors: typed, shaped device memory; and views, the borrowed parts of them that kernels take.
//!
//! A tensor owns its memory; `&Tensor` and `&mut Tensor` are the arguments of kernels, so that the borrow checker keeps a kernel's outputs
//! apart from its inputs. Operations without a stream argument use the device's main stream and return when they are done.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use tegula_ir::element::Element;

use crate::device::Device;
use crate::error::Error;
use crate::launch::facts::Facts;
use crate::layout::{Layout, count};
use crate::memory::{Access, Buffer, Use, order, order_and_wait};
use crate::stream::Stream;

/// Device memory with a shape. Row-major when made; [`Tensor::view`] gives strided parts.
pub struct Tensor<T: Element> {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) layout: Layout,
    pub(crate) facts: Facts,
    element: PhantomData<T>,
}

/// A part of a tensor, to be read.
pub struct TensorView<'a, T: Element> {
    pub(crate) source: Source<'a>,
    pub(crate) layout: Layout,
    pub(crate) facts: Facts,
    element: PhantomData<&'a [T]>,
}

/// A part of a tensor, to be read and written.
pub struct TensorViewMut<'a, T: Element> {
    pub(crate) source: Source<'a>,
    pub(crate) layout: Layout,
    pub(crate) facts: Facts,
    element: PhantomData<&'a mut [T]>,
}

/// Whose memory a view shows.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// A tensor's.
    Buffer(&'a Arc<Buffer>),
    /// A tensor's that was split: see [`Use::part`].
    Part(&'a Arc<Buffer>),
    /// Somebody else's: the device and the address of element 0. Ordering work on it is their business.
    Raw(&'a Device, u64),
}

impl<'a> Source<'a> {
    #[inline]
    pub(crate) fn device(self) -> &'a Device {
        match self {
            Source::Buffer(b) | Source::Part(b) => b.device(),
            Source::Raw(d, _) => d,
        }
    }

    /// The address of the layout's element 0.
    #[inline]
    pub(crate) fn address(self, layout: &Layout, element_bytes: usize) -> u64 {
        let base = match self {
            Source::Buffer(b) | Source::Part(b) => b.address(),
            Source::Raw(_, address) => address,
        };
        base + (layout.offset * element_bytes) as u64
    }

    /// The same memory, of which others may hold another part.
    fn split(self) -> Source<'a> {
        match self {
            Source::Buffer(b) | Source::Part(b) => Source::Part(b),
            Source::Raw(..) => self,
        }
    }

    fn used(self, access: Access, what: &str) -> Result<Use<'a>, Error> {
        match self {
            Source::Buffer(buffer) => Ok(Use { buffer, access, part: false }),
            Source::Part(buffer) => Ok(Use { buffer, access, part: true }),
            Source::Raw(..) => Err(Error::Unsupported(format!(
                "{what} a view made from a raw pointer is not possible: use the owner's means"
            ))),
        }
    }
}

impl Device {
    /// Memory with unspecified content. (On the host device, a kernel that reads an element before it is written is reported.)
    pub fn alloc<T: Element>(&self, shape: &[usize]) -> Result<Tensor<T>, Error> {
        let layout = Layout::row_major(shape)?;
        let bytes = layout.count().saturating_mul(size_of::<T::Storage>());
        let facts = Facts::of_layout(&layout, size_of::<T::Storage>());
        Ok(Tensor {
            buffer: Buffer::alloc(self, bytes, &self.stream())?,
            layout,
            facts,
            element: PhantomData,
        })
    }

    /// Zeros.
    pub fn zeros<T: Element>(&self, shape: &[usize]) -> Result<Tensor<T>, Error> {
        let mut tensor = self.alloc(shape)?;
        tensor.fill_zero(&self.stream())?;
        Ok(tensor)
    }

    /// A copy of `values`, in row-major order.
    ///
    /// # Errors
    /// If the shape has another number of elements.
    pub fn from_slice<T: Element>(&self, values: &[T], shape: &[usize]) -> Result<Tensor<T>, Error> {
        let n = count(shape)?;
        if n != values.len() {
            return Err(Error::Shape(format!(
                "{} values do not fill the shape {shape:?}, which has {n} elements",
                values.len()
            )));
        }
        let mut tensor = self.alloc(shape)?;
        tensor.copy_from_slice(values)?;
        Ok(tensor)
    }

    /// As [`Device::from_slice`].
    pub fn from_vec<T: Element>(&self, values: Vec<T>, shape: &[usize]) -> Result<Tensor<T>, Error> {
        self.from_slice(&values, shape)
    }
}

impl<T: Element> Tensor<T> {
    /// All of it, to be read.
    #[inline]
    pub fn view(&self) -> TensorView<'_, T> {
        let source = Source::Buffer(&self.buffer);
        TensorView { source, layout: self.layout, facts: self.facts, element: PhantomData }
    }

    /// All of it, to be read and written.
    #[inline]
    pub fn view_mut(&mut self) -> TensorViewMut<'_, T> {
        let source = Source::Buffer(&self.buffer);
        TensorViewMut { source, layout: self.layout, facts: self.facts, element: PhantomData }
    }

    /// The same elements in the same order under another shape.
    pub fn reshape(self, shape: &[usize]) -> Result<Tensor<T>, Error> {
        let layout = self.layout.reshape(shape)?;
        Ok(Tensor { layout, facts: Facts::of_layout(&layout, size_of::<T::Storage>()), ..self })
    }

    /// The elements, in row-major order.
    pub fn to_vec(&self) -> Result<Vec<T>, Error> {
        self.view().to_vec()
    }

    /// Overwrites all elements, in row-major order.
    pub fn copy_from_slice(&mut self, values: &[T]) -> Result<(), Error> {
        self.view_mut().copy_from_slice(values)
    }

    /// Overwrites all elements by zeros, on a stream.
    pub fn fill_zero(&mut self, stream: &Stream) -> Result<(), Error> {
        self.view_mut().fill_zero(stream)
    }

    /// Overwrites all elements by those of a view of the same shape and device, on a stream. Both must be contiguous.
    pub fn copy_from(&mut self, from: &TensorView<'_, T>, stream: &Stream) -> Result<(), Error> {
        self.view_mut().copy_from(from, stream)
    }
}

/// What tensors and views have in common.
macro_rules! common {
    ($type:ty, $this:ident => $source:expr) => {
        impl<T: Element> $type {
            pub(crate) fn source(&self) -> Source<'_> {
                let $this = self;
                $source
            }

            /// The extents.
            pub fn shape(&self) -> &[usize] {
                self.layout.dims()
            }

            /// The extent of an axis.
            ///
            /// # Panics
            /// Without such an axis.
            #[track_caller]
            pub fn dim(&self, axis: usize) -> usize {
                let dims = self.layout.dims();
                match dims.get(axis) {
                    Some(&dim) => dim,
                    None => {
                        panic!("axis {axis} of a tensor of shape {dims:?}, which has {} axes", dims.len())
                    }
                }
            }

            /// The strides, in elements.
            pub fn strides(&self) -> &[usize] {
                self.layout.strides()
            }

            /// The number of elements.
            pub fn len(&self) -> usize {
                self.layout.count()
            }

            /// Has it no elements?
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Are the elements, in row-major order, consecutive in memory?
            pub fn is_contiguous(&self) -> bool {
                self.layout.is_contiguous()
            }

            /// The device.
            pub fn device(&self) -> &Device {
                self.source().device()
            }

            /// The device address of element 0, for other libraries. They must order their work behind this
            /// crate's by themselves, and the other way round.
            pub fn device_address(&self) -> u64 {
                self.source().address(&self.layout, size_of::<T::Storage>())
            }
        }
        impl<T: Element> fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?} of {} on {}", self.shape(), T::ELEM, self.device().name())
            }
        }
    };
}
common!(Tensor<T>, t => Source::Buffer(&t.buffer));
common!(TensorView<'_, T>, v => v.source);
common!(TensorViewMut<'_, T>, v => v.source);

/// Parts of views. A part borrows what the view borrows.
macro_rules! parts {
    ($name:ident) => {
        impl<'a, T: Element> $name<'a, T> {
            fn new(source: Source<'a>, layout: Layout) -> $name<'a, T> {
                let facts = Facts::of_layout(&layout, size_of::<T::Storage>());
                $name { source, layout, facts, element: PhantomData }
            }

            fn with(self, layout: Result<Layout, Error>) -> Result<$name<'a, T>, Error> {
                Ok($name::new(self.source, layout?))
            }

            /// A view without elements, of extents 0: what a kernel gets for an argument that a launch does not use. Nothing is allocated.
            ///
            /// # Errors
            /// If views do not have so many dimensions.
            pub fn empty(device: &'a Device, rank: usize) -> Result<$name<'a, T>, Error> {
                // Strides that are multiples of everything: an argument that is not used keeps no launch from running code for the usual ones.
                let mut strides = vec![0; rank];
                if let Some(last) = strides.last_mut() {
                    *last = 1;
                }
                Ok($name::new(Source::Raw(device, 0), Layout::new(&vec![0; rank], &strides, 0)?))
            }

            /// The part with indices `range` along `axis`.
            pub fn slice(self, axis: usize, range: impl RangeBounds<usize>) -> Result<$name<'a, T>, Error> {
                let start = match range.start_bound() {
                    Bound::Included(&s) => s,
                    Bound::Excluded(&s) => s.saturating_add(1),
                    Bound::Unbounded => 0,
                };
                let end = match range.end_bound() {
                    Bound::Included(&e) => e.saturating_add(1),
                    Bound::Excluded(&e) => e,
                    Bound::Unbounded => self.layout.dims().get(axis).copied().unwrap_or(0),
                };
                let layout = self.layout.slice(axis, start, end);
                self.with(layout)
            }

            /// The part with index `index` along `axis`, without that axis.
            pub fn select(self, axis: usize, index: usize) -> Result<$name<'a, T>, Error> {
                let layout = self.layout.select(axis, index);
                self.with(layout)
            }

            /// With two axes exchanged; nothing is copied.
            pub fn transpose(self, a: usize, b: usize) -> Result<$name<'a, T>, Error> {
                let layout = self.layout.transpose(a, b);
                self.with(layout)
            }

            /// With axis `i` of the result being axis `perm[i]`; nothing is copied.
            pub fn permute(self, perm: &[usize]) -> Result<$name<'a, T>, Error> {
                let layout = self.layout.permute(perm);
                self.with(layout)
            }

            /// The same elements under another shape.
            ///
            /// # Errors
            /// If the view is not contiguous, or the number of elements differs.
            pub fn reshape(self, shape: &[usize]) -> Result<$name<'a, T>, Error> {
                let layout = self.layout.reshape(shape);
                self.with(layout)
            }

            /// The elements, in row-major order.
            pub fn to_vec(&self) -> Result<Vec<T>, Error> {
                read_view(self.source, &self.layout)
            }
        }
    };
}
parts!(TensorView);
parts!(TensorViewMut);

/// What functions over views take: `x: impl Into<TensorView<'a, T>>` is a tensor or a view, as for kernels.
impl<'a, T: Element> From<&'a Tensor<T>> for TensorView<'a, T> {
    fn from(tensor: &'a Tensor<T>) -> Self {
        tensor.view()
    }
}

impl<'a, T: Element> From<&TensorView<'a, T>> for TensorView<'a, T> {
    fn from(view: &TensorView<'a, T>) -> Self {
        *view
    }
}

impl<'a, T: Element> From<&'a TensorViewMut<'_, T>> for TensorView<'a, T> {
    fn from(view: &'a TensorViewMut<'_, T>) -> Self {
        view.as_view()
    }
}

impl<'a, T: Element> From<&'a mut Tensor<T>> for TensorViewMut<'a, T> {
    fn from(tensor: &'a mut Tensor<T>) -> Self {
        tensor.view_mut()
    }
}

impl<'a, T: Element> From<&'a mut TensorViewMut<'_, T>> for TensorViewMut<'a, T> {
    fn from(view: &'a mut TensorViewMut<'_, T>) -> Self {
        view.reborrow()
    }
}

impl<T: Element> Clone for TensorView<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Element> Copy for TensorView<'_, T> {}

impl<'a, T: Element> TensorView<'a, T> {
    /// Repeats axes of extent 1, and adds leading ones, so that the shape becomes `shape`; nothing is copied.
    pub fn broadcast(self, shape: &[usize]) -> Result<TensorView<'a, T>, Error> {
        let layout = self.layout.broadcast(shape);
        self.with(layout)
    }

    pub(crate) fn raw(
        device: &'a Device,
        address: u64,
        shape: &[usize],
        strides: &[usize],
    ) -> Result<TensorView<'a, T>, Error> {
        Ok(TensorView::new(Source::Raw(device, address), Layout::new(shape, strides, 0)?))
    }
}

impl<'a, T: Element> TensorViewMut<'a, T> {
    /// The same part, to be read.
    pub fn as_view(&self) -> TensorView<'_, T> {
        TensorView { source: self.source, layout: self.layout, facts: self.facts, element: PhantomData }
    }

    /// The same part, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> TensorViewMut<'_, T> {
        TensorViewMut { source: self.source, layout: self.layout, facts: self.facts, element: PhantomData }
    }

    /// Two parts that share no element: indices below `middle` along `axis`, and the others.
    pub fn split_at(
        self,
        axis: usize,
        middle: usize,
    ) -> Result<(TensorViewMut<'a, T>, TensorViewMut<'a, T>), Error> {
        let left = self.layout.slice(axis, 0, middle)?;
        let right = self.layout.slice(axis, middle, self.layout.dims()[axis])?;
        let source = self.source.split();
        Ok((TensorViewMut::new(source, left), TensorViewMut::new(source, right)))
    }

    pub(crate) fn raw(
        device: &'a Device,
        address: u64,
        shape: &[usize],
        strides: &[usize],
    ) -> Result<TensorViewMut<'a, T>, Error> {
        Ok(TensorViewMut::new(Source::Raw(device, address), Layout::new(shape, strides, 0)?))
    }

    /// Overwrites all elements, in row-major order.
    ///
    /// # Errors
    /// If the number of values differs, or the view is not contiguous.
    pub fn copy_from_slice(&mut self, values: &[T]) -> Result<(), Error> {
        let target = self.source.used(Access::Write, "writing to")?;
        self.expect_contiguous("copying into")?;
        if values.len() != self.len() {
            return Err(Error::Shape(format!("{} values do not fill {self:?}", values.len())));
        }
        let Some(raw) = target.buffer.raw().filter(|_| !values.is_empty()) else { return Ok(()) };
        let offset = self.layout.offset * size_of::<T::Storage>();
        let stored: Vec<T::Storage> = values.iter().map(|v| v.to_storage()).collect();
        let stream = self.device().stream();
        let _turn = order_and_wait(&stream, target)?;
        self.device().0.backend.write(raw, offset, bytemuck::cast_slice(&stored), &*stream.0.raw)
    }

    /// Overwrites all elements by zeros, on a stream.
    ///
    /// # Errors
    /// If the view is not contiguous.
    pub fn fill_zero(&mut self, stream: &Stream) -> Result<(), Error> {
        let target = self.source.used(Access::Write, "filling")?;
        self.expect_contiguous("filling")?;
        stream.device().expect_same(self.device(), "the tensor")?;
        let Some(raw) = target.buffer.raw().filter(|_| !self.is_empty()) else { return Ok(()) };
        let (offset, bytes) =
            (self.layout.offset * size_of::<T::Storage>(), self.len() * size_of::<T::Storage>());
        let _turn = order(stream, std::iter::once(target))?;
        self.device().0.backend.fill(raw, offset, bytes, 0, &*stream.0.raw)
    }

    /// Overwrites all elements by those of a view of the same shape and device, on a stream. Both must be contiguous.
    pub fn copy_from(&mut self, from: &TensorView<'_, T>, stream: &Stream) -> Result<(), Error> {
        let to = self.source.used(Access::Write, "copying into")?;
        let source = from.source.used(Access::Read, "copying from")?;
        if self.shape() != from.shape() {
            return Err(Error::Shape(format!("{from:?} cannot be copied into {self:?}: the shapes differ")));
        }
        self.expect_contiguous("copying into")?;
        if !from.is_contiguous() {
            return Err(not_contiguous("copying from", &from.layout));
        }
        stream.device().expect_same(self.device(), "the target")?;
        stream.device().expect_same(from.device(), "the source")?;
        let (Some(source_raw), Some(to_raw), false) = (source.buffer.raw(), to.buffer.raw(), self.is_empty())
        else {
            return Ok(());
        };
        let _turn = order(stream, [source, to].into_iter())?;
        let at = |l: &Layout| l.offset * size_of::<T::Storage>();
        let backend = &stream.device().0.backend;
        backend.copy(
            (source_raw, at(&from.layout)),
            (to_raw, at(&self.layout)),
            self.len() * size_of::<T::Storage>(),
            &*stream.0.raw,
        )
    }

    fn expect_contiguous(&self, what: &str) -> Result<(), Error> {
        if self.is_contiguous() { Ok(()) } else { Err(not_contiguous(what, &self.layout)) }
    }
}

fn not_contiguous(what: &str, layout: &Layout) -> Error {
    Error::Shape(format!(
        "{what} a view of shape {:?} with strides {:?} needs a contiguous one: use a kernel",
        layout.dims(),
        layout.strides()
    ))
}

/// Copies a view to the host: its span in one piece, then picked apart if it is strided.
fn read_view<T: Element>(source: Source<'_>, layout: &Layout) -> Result<Vec<T>, Error> {
    let source = source.used(Access::Read, "reading")?;
    let Some(raw) = source.buffer.raw().filter(|_| layout.count() > 0) else { return Ok(Vec::new()) };
    let mut span = vec![T::Storage::default(); layout.span()];
    let device = source.buffer.device();
    let offset = layout.offset * size_of::<T::Storage>();
    let stream = device.stream();
    let turn = order_and_wait(&stream, source)?;
    device.0.backend.read(raw, offset, bytemuck::cast_slice_mut(&mut span), &*stream.0.raw)?;
    drop(turn);
    if layout.is_contiguous() {
        return Ok(span.into_iter().map(T::from_storage).collect());
    }
    Ok(layout.offsets().map(|o| T::from_storage(span[o])).collect())
}
