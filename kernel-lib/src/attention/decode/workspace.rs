//! Memory for the partial results of splits.

use tegula::runtime::{Device, Error, Tensor, TensorViewMut};

use super::config::most_splits;
use crate::DeviceClass;

/// Partial results and counters, kept from call to call. It grows when it has to, which takes time that a call can be spared by
/// [`DecodeWorkspace::reserve_for`]. One that several streams use is right (memory orders streams), but makes them wait for each other. A recorded graph keeps the memory
/// that it was recorded with, even if this one grows afterwards.
#[derive(Debug, Default)]
pub struct DecodeWorkspace {
    partials: Option<Tensor<f32>>,
    stats: Option<Tensor<f32>>,
    /// Zeros between launches: the last program of a task sets its counter back.
    arrivals: Option<Tensor<i32>>,
}

/// What a launch is given of it.
pub(super) struct Partials<'a> {
    pub partials: TensorViewMut<'a, f32>,
    pub stats: TensorViewMut<'a, f32>,
    pub arrivals: TensorViewMut<'a, i32>,
}

impl Partials<'_> {
    /// Where nothing is split.
    pub fn none(device: &Device) -> Result<Partials<'_>, Error> {
        Ok(Partials {
            partials: TensorViewMut::empty(device, 5)?,
            stats: TensorViewMut::empty(device, 5)?,
            arrivals: TensorViewMut::empty(device, 1)?,
        })
    }
}

impl DecodeWorkspace {
    /// Without memory yet.
    pub fn new() -> DecodeWorkspace {
        DecodeWorkspace::default()
    }

    /// Makes room for so many partial results (splits × batch × queries × heads) of heads of `value_dim` elements, of so many tasks (sequences × KV heads × parts of a group).
    ///
    /// # Errors
    /// If the device has no memory left.
    pub fn reserve(
        &mut self,
        device: &Device,
        states: usize,
        value_dim: usize,
        tasks: usize,
    ) -> Result<(), Error> {
        for (tensor, elements) in [(&mut self.partials, states * value_dim), (&mut self.stats, 2 * states)] {
            if tensor.as_ref().is_none_or(|t| t.device() != device || t.len() < elements) {
                *tensor = Some(device.alloc(&[elements])?);
            }
        }
        if self.arrivals.as_ref().is_none_or(|t| t.device() != device || t.len() < tasks) {
            self.arrivals = Some(device.zeros(&[tasks])?);
        }
        Ok(())
    }

    /// Makes room for what [`decode`](fn@super::decode) can need whose options leave the number of splits to it: for up to so many sequences, queries of each and
    /// slots of the cache.
    ///
    /// # Errors
    /// If the device has no memory left.
    pub fn reserve_for(
        &mut self,
        device: &Device,
        batch: usize,
        queries: usize,
        keys: usize,
        heads: usize,
        value_dim: usize,
    ) -> Result<(), Error> {
        // Fewer sequences are split into more parts, but not into more in all.
        let class = DeviceClass::of(device);
        let most = (1..=batch).map(|batch| most_splits(batch, keys, class) * batch).max().unwrap_or(0);
        match most_splits(1, keys, class) {
            1 => Ok(()),
            _ => self.reserve(device, most * queries * heads, value_dim, batch * heads),
        }
    }

    /// Views of it for partial results `[batch, splits, queries, heads, value_dim]` and so many tasks.
    pub(super) fn views(
        &mut self,
        device: &Device,
        shape: [usize; 5],
        tasks: usize,
    ) -> Result<Partials<'_>, Error> {
        let [batch, splits, queries, heads, value_dim] = shape;
        let states = batch * splits * queries * heads;
        self.reserve(device, states, value_dim, tasks)?;
        let (Some(partials), Some(stats), Some(arrivals)) =
            (&mut self.partials, &mut self.stats, &mut self.arrivals)
        else {
            unreachable!("all were reserved");
        };
        let stats_shape = [2, batch, splits, queries, heads];
        Ok(Partials {
            partials: partials.view_mut().slice(0, ..states * value_dim)?.reshape(&shape)?,
            stats: stats.view_mut().slice(0, ..2 * states)?.reshape(&stats_shape)?,
            arrivals: arrivals.view_mut().slice(0, ..tasks)?,
        })
    }
}
