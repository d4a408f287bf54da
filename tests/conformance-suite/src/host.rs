//! The host engine: the tile interpreter.

use tegula_ir::interp::{Arg, Launch, Memory, Options, run};

use crate::case::{Case, Engine, HostArg, Outputs};

/// Runs cases on the tile interpreter.
#[derive(Default)]
pub struct HostEngine {
    /// Report programs that store to the same byte.
    pub check_races: bool,
}

impl Engine for HostEngine {
    fn run(&mut self, case: &Case) -> Result<Outputs, String> {
        let memory = Memory::new();
        let mut allocations = Vec::new();
        for buffer in &case.buffers {
            let size = buffer.element_size();
            let allocation = memory.allocate(buffer.initial.len() * size).map_err(|e| e.to_string())?;
            let bytes: Vec<u8> =
                buffer.initial.iter().flat_map(|bits| bits.to_le_bytes().into_iter().take(size)).collect();
            allocation.write(0, &bytes);
            allocations.push(allocation);
        }
        let address = |buffer: usize, offset: usize| {
            allocations[buffer].address() + (offset * case.buffers[buffer].element_size()) as u64
        };
        let args: Vec<Arg> = case
            .args
            .iter()
            .map(|arg| match arg {
                HostArg::Scalar { elem, bits } => Arg::Scalar { elem: *elem, bits: *bits },
                HostArg::Ptr { buffer, offset } => Arg::Ptr { address: address(*buffer, *offset) },
                HostArg::View { buffer, offset, dims, strides } => Arg::View {
                    address: address(*buffer, *offset),
                    dims: dims.iter().copied().collect(),
                    strides: strides.iter().copied().collect(),
                },
            })
            .collect();
        let options = Options { check_races: self.check_races, print: &|_| {}, ..Options::default() };
        run(&case.kernel, &Launch { grid: case.grid }, &args, &memory, &options)
            .map_err(|e| e.to_string())?;
        let mut outputs = Vec::new();
        for (buffer, allocation) in case.buffers.iter().zip(&allocations) {
            let size = buffer.element_size();
            let mut bytes = vec![0; buffer.initial.len() * size];
            allocation.read(0, &mut bytes);
            let pattern =
                |chunk: &[u8]| chunk.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte));
            outputs.push(bytes.chunks(size).map(pattern).collect());
        }
        Ok(outputs)
    }
}
