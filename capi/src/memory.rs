//! Memory of devices.

use std::ffi::{c_int, c_void};
use std::sync::{PoisonError, RwLock};

use tegula_runtime::{Device, Tensor};

use crate::{bytes_of, give, guarded, refer, take};

/// `tegula_memory` of the header. Threads may share it: writing takes turns with writing and reading.
pub struct Memory {
    bytes: RwLock<Tensor<u8>>,
    address: u64,
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_memory_new(
    device: *const Device,
    bytes: usize,
    out: *mut *mut Memory,
) -> c_int {
    let body = || {
        // SAFETY: as the header asks.
        let bytes =
            unsafe { refer(device, "the device") }?.zeros::<u8>(&[bytes]).map_err(|e| e.to_string())?;
        let address = bytes.view().device_address();
        Ok(Memory { bytes: RwLock::new(bytes), address })
    };
    // SAFETY: as the header asks.
    unsafe { give(out, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_memory_address(memory: *const Memory) -> u64 {
    // SAFETY: as the header asks.
    unsafe { memory.as_ref() }.map_or(0, |memory| memory.address)
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_memory_write(
    memory: *const Memory,
    from: *const c_void,
    bytes: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: as the header asks.
        let (memory, from) =
            unsafe { (refer(memory, "the memory")?, bytes_of(from, bytes, "what is to be written")?) };
        let mut memory = memory.bytes.write().unwrap_or_else(PoisonError::into_inner);
        // Kernels that were launched with the address are not known to the memory: all are waited for, so that none reads what comes after it.
        memory.view().device().synchronize().map_err(|e| e.to_string())?;
        let part = memory.view_mut().slice(0, ..bytes).map_err(|e| e.to_string());
        part?.copy_from_slice(from).map_err(|e| e.to_string())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_memory_read(memory: *const Memory, to: *mut c_void, bytes: usize) -> c_int {
    guarded(|| {
        // SAFETY: as the header asks.
        let memory = unsafe { refer(memory, "the memory") }?;
        if to.is_null() && bytes > 0 {
            return Err("the place to read to is null".to_owned());
        }
        let part = {
            let memory = memory.bytes.read().unwrap_or_else(PoisonError::into_inner);
            // As for writing.
            memory.view().device().synchronize().map_err(|e| e.to_string())?;
            memory.view().slice(0, ..bytes).and_then(|part| part.to_vec()).map_err(|e| e.to_string())?
        };
        if bytes > 0 {
            // SAFETY: as the header asks; not null, and another place than a new vector.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), to.cast::<u8>(), bytes) };
        }
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_memory_free(memory: *mut Memory) {
    // SAFETY: as the header asks.
    unsafe { take(memory) }
}
