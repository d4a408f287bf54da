//! Views of memory, and streams, that other libraries own.

use tegula_ir::element::Element;

use crate::device::Device;
use crate::error::Error;
use crate::stream::Stream;
use crate::tensor::{TensorView, TensorViewMut};

impl Device {
    /// A stream that another library owns: `handle` is the value of its `CUstream` (`torch.cuda.Stream.cuda_stream`); 0 is the default stream. Dropping what is returned waits
    /// for the stream and does not destroy it.
    ///
    /// # Safety
    /// The handle must be a stream of the primary context of this GPU for as long as this stream or a clone of it lives.
    ///
    /// # Errors
    /// On devices that are no GPU; with more streams than a device can have.
    pub unsafe fn stream_from_raw(&self, handle: u64) -> Result<Stream, Error> {
        self.stream_over(self.0.backend.stream_over_handle(handle)?.into())
    }
}

impl<'a, T: Element> TensorView<'a, T> {
    /// A view of somebody else's memory: element 0 is at the device address `address`; shape and strides are in elements.
    ///
    /// # Safety
    /// All elements must be valid memory of `device` for as long as work that was given the view may run. Such work is ordered on
    /// the streams it is launched on only: order the owner's work behind it, and it behind the owner's, with events.
    ///
    /// # Errors
    /// If shape and strides do not agree or are not addressable.
    pub unsafe fn from_raw_parts(
        address: u64,
        shape: &[usize],
        strides: &[usize],
        device: &'a Device,
    ) -> Result<TensorView<'a, T>, Error> {
        TensorView::raw(device, address, shape, strides)
    }
}

impl<'a, T: Element> TensorViewMut<'a, T> {
    /// A view of somebody else's memory that may be stored to.
    ///
    /// # Safety
    /// As for [`TensorView::from_raw_parts`]; and nobody else may read or write the elements meanwhile, nor may two elements be at one place.
    ///
    /// # Errors
    /// If shape and strides do not agree or are not addressable.
    pub unsafe fn from_raw_parts(
        address: u64,
        shape: &[usize],
        strides: &[usize],
        device: &'a Device,
    ) -> Result<TensorViewMut<'a, T>, Error> {
        TensorViewMut::raw(device, address, shape, strides)
    }
}
