//! Memory for the partial sums of tiles that several programs share.

use tegula::runtime::{Device, Error, Tensor, TensorViewMut};

/// Partial sums and counters, kept from call to call; it grows when it has to, which takes time that [`Workspace::reserve`] spares a call. One that several streams
/// use is right (memory orders streams), but makes them wait for each other. A recorded graph keeps the memory that it was recorded with.
#[derive(Debug, Default)]
pub struct Workspace {
    partials: Option<Tensor<f32>>,
    /// Zeros between launches: the last program that a tile has sets its counter back.
    arrivals: Option<Tensor<i32>>,
}

impl Workspace {
    /// Without memory yet.
    pub fn new() -> Workspace {
        Workspace::default()
    }

    /// Makes room for so many partial sums, and for counters of so many tiles.
    ///
    /// # Errors
    /// If the device has no memory left.
    pub fn reserve(&mut self, device: &Device, sums: usize, tiles: usize) -> Result<(), Error> {
        if self.partials.as_ref().is_none_or(|t| t.device() != device || t.len() < sums) {
            self.partials = Some(device.alloc(&[sums])?);
        }
        if self.arrivals.as_ref().is_none_or(|t| t.device() != device || t.len() < tiles) {
            self.arrivals = Some(device.zeros(&[tiles])?);
        }
        Ok(())
    }

    /// Views of it: `[slots, rows, columns]` partial sums and `[tiles]` counters.
    pub(super) fn views(
        &mut self,
        device: &Device,
        partials: [usize; 3],
        tiles: usize,
    ) -> Result<(TensorViewMut<'_, f32>, TensorViewMut<'_, i32>), Error> {
        let sums = partials.iter().product();
        self.reserve(device, sums, tiles)?;
        let (Some(all), Some(arrivals)) = (&mut self.partials, &mut self.arrivals) else {
            unreachable!("both were reserved");
        };
        Ok((all.view_mut().slice(0, ..sums)?.reshape(&partials)?, arrivals.view_mut().slice(0, ..tiles)?))
    }
}
