//! Kernels of bundles, launched from C and whatever calls C: `include/tegula_rt.h` is the documentation of the interface, and every function here has its counterpart there.
//!
//! **Contract.** No panic crosses the border: it becomes an error, as everything else that is wrong, and the message is kept for the thread that called. Null pointers are refused
//! where they make no sense; other wrong pointers are the caller's fault, as everywhere in C.

#![allow(
    clippy::missing_safety_doc,
    reason = "the header says what callers promise, for all functions at once"
)]

mod argument;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tegula_runtime::bundle::Label;
use tegula_runtime::{Bundle, BundledKernel, Device, Stream, Tensor};

use argument::Argument;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs `body`; keeps the message of what went wrong.
fn guarded(body: impl FnOnce() -> Result<(), String>) -> c_int {
    let message = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(message)) => message,
        Err(panic) => {
            let words =
                panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            format!("tegula_rt is at fault: {}", words.unwrap_or("a panic"))
        }
    };
    let message = CString::new(message.replace('\0', "?")).unwrap_or_default();
    LAST.with(|last| *last.borrow_mut() = message);
    -1
}

/// What is behind a pointer.
///
/// # Safety
/// The pointer is null or what this library gave out and nobody closed.
unsafe fn refer<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, String> {
    // SAFETY: passed on.
    unsafe { pointer.as_ref() }.ok_or_else(|| format!("{what} is null"))
}

/// The text behind a pointer.
///
/// # Safety
/// The pointer is null or a string that ends in a zero byte.
unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, String> {
    if pointer.is_null() {
        return Err(format!("{what} is null"));
    }
    // SAFETY: passed on.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| format!("{what} is not UTF-8"))
}

/// Gives an object to the caller.
///
/// # Safety
/// The pointer is null or may be written to.
unsafe fn give<T>(out: *mut *mut T, object: Result<T, String>) -> Result<(), String> {
    if out.is_null() {
        return Err("the place for the result is null".to_owned());
    }
    let object = Box::into_raw(Box::new(object?));
    // SAFETY: passed on.
    unsafe { out.write(object) };
    Ok(())
}

/// Takes an object back.
///
/// # Safety
/// As for [`refer`]; nobody uses the pointer any more.
unsafe fn take<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: made by `give`, taken once.
        let object = unsafe { Box::from_raw(pointer) };
        guarded(move || {
            drop(object);
            Ok(())
        });
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn tegula_last_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_device_open(name: *const c_char, out: *mut *mut Device) -> c_int {
    // SAFETY: as the header asks.
    guarded(|| unsafe {
        give(out, Device::open(text(name, "the device's name")?).map_err(|e| e.to_string()))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_device_close(device: *mut Device) {
    // SAFETY: as the header asks.
    unsafe { take(device) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_device_synchronize(device: *const Device) -> c_int {
    // SAFETY: as the header asks.
    guarded(|| unsafe { refer(device, "the device") }?.synchronize().map_err(|e| e.to_string()))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_bundle_open(path: *const c_char, out: *mut *mut Bundle) -> c_int {
    // SAFETY: as the header asks.
    guarded(|| unsafe { give(out, Bundle::open(text(path, "the path")?).map_err(|e| e.to_string())) })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_bundle_close(bundle: *mut Bundle) {
    // SAFETY: as the header asks.
    unsafe { take(bundle) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_kernel_find(
    bundle: *const Bundle,
    name: *const c_char,
    types: *const c_char,
    config: *const c_char,
    out: *mut *mut BundledKernel,
) -> c_int {
    guarded(|| {
        // SAFETY: as the header asks.
        let bundle = unsafe { refer(bundle, "the bundle") }?;
        // SAFETY: as the header asks.
        let [name, types, config] =
            unsafe { [text(name, "the name"), text(types, "the types"), text(config, "the config")] };
        let label = Label { name: name?.to_owned(), types: types?.to_owned(), config: config?.to_owned() };
        let found = BundledKernel::find(bundle, &label).map_err(|e| e.to_string())?;
        let absent = || {
            let Label { name, types, config } = &label;
            format!(
                "bundle {}: there is no kernel {name} ({types}) {config}; `tegula bundle list` shows all",
                bundle.name()
            )
        };
        // SAFETY: as the header asks.
        unsafe { give(out, found.ok_or_else(absent)) }
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_kernel_close(kernel: *mut BundledKernel) {
    // SAFETY: as the header asks.
    unsafe { take(kernel) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_stream_wrap(
    device: *const Device,
    stream: u64,
    out: *mut *mut Stream,
) -> c_int {
    guarded(|| {
        // SAFETY: as the header asks, also of the stream.
        unsafe { give(out, refer(device, "the device")?.stream_from_raw(stream).map_err(|e| e.to_string())) }
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_stream_close(stream: *mut Stream) {
    // SAFETY: as the header asks.
    unsafe { take(stream) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_kernel_launch(
    kernel: *const BundledKernel,
    device: *const Device,
    stream: *const Stream,
    grid: *const [u32; 3],
    arguments: *const Argument,
    count: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: as the header asks.
        let (kernel, device) = unsafe { (refer(kernel, "the kernel")?, refer(device, "the device")?) };
        // SAFETY: as the header asks.
        let grid = *unsafe { refer(grid, "the grid") }?;
        let arguments = match count {
            0 => &[],
            // SAFETY: as the header asks; not null.
            _ => unsafe { std::slice::from_raw_parts(refer(arguments, "the list of arguments")?, count) },
        };
        let values = arguments.iter().enumerate().map(|(index, argument)| {
            // SAFETY: as the header asks of addresses, shapes and strides.
            unsafe { argument.value(device) }.map_err(|e| format!("argument {index}: {e}"))
        });
        let values = values.collect::<Result<Vec<_>, String>>()?;
        let own;
        // SAFETY: as the header asks.
        let stream = match unsafe { stream.as_ref() } {
            Some(stream) => stream,
            None => {
                own = device.stream();
                &own
            }
        };
        // SAFETY: as the header asks of the arguments.
        unsafe { kernel.launch(&values, grid, stream) }.map_err(|e| e.to_string())
    })
}

/// Memory that the caller may read and write.
pub struct Memory(Tensor<u8>);

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_memory_new(
    device: *const Device,
    bytes: usize,
    out: *mut *mut Memory,
) -> c_int {
    guarded(|| {
        // SAFETY: as the header asks.
        let memory = unsafe { refer(device, "the device") }?.zeros::<u8>(&[bytes]);
        // SAFETY: as the header asks.
        unsafe { give(out, memory.map(Memory).map_err(|e| e.to_string())) }
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_memory_address(memory: *const Memory) -> u64 {
    // SAFETY: as the header asks.
    unsafe { memory.as_ref() }.map_or(0, |memory| memory.0.view().device_address())
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_memory_write(
    memory: *mut Memory,
    from: *const c_void,
    bytes: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: as the header asks.
        let memory = unsafe { memory.as_mut() }.ok_or("the memory is null")?;
        if from.is_null() && bytes > 0 {
            return Err("what is to be written is null".to_owned());
        }
        let from = match bytes {
            0 => &[],
            // SAFETY: as the header asks; not null.
            _ => unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) },
        };
        let part = memory.0.view_mut().slice(0, ..bytes).map_err(|e| e.to_string());
        part?.copy_from_slice(from).map_err(|e| e.to_string())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_memory_read(memory: *const Memory, to: *mut c_void, bytes: usize) -> c_int {
    guarded(|| {
        // SAFETY: as the header asks.
        let memory = unsafe { refer(memory, "the memory") }?;
        // Kernels that were launched with the address are not known to the memory: all are waited for.
        memory.0.view().device().synchronize().map_err(|e| e.to_string())?;
        let part =
            memory.0.view().slice(0, ..bytes).and_then(|part| part.to_vec()).map_err(|e| e.to_string())?;
        if to.is_null() && bytes > 0 {
            return Err("the place to read to is null".to_owned());
        }
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
