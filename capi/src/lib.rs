//! Kernels of bundles, launched from C and whatever calls C: `include/tegula_rt.h` is the documentation of the interface, and every function here has its counterpart there.
//!
//! **Contract.** No panic crosses the border: it becomes an error, as everything else that is wrong, and the message is kept for the thread that called. Null pointers are refused
//! where they make no sense; other wrong pointers are the caller's fault, as everywhere in C. What a function gives out through a pointer is null or 0 if it fails, so that a
//! program that does not look closes null, or launches it and is told so. Handles are shared references here, whatever C calls them: threads may use one at the same time.

#![allow(
    clippy::missing_safety_doc,
    reason = "the header says what callers promise, for all functions at once"
)]

mod argument;
mod kernel;
mod memory;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tegula_runtime::{Bundle, Device, Stream};

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

/// The bytes behind a pointer.
///
/// # Safety
/// The pointer is null or so many bytes can be read.
unsafe fn bytes_of<'a>(pointer: *const c_void, size: usize, what: &str) -> Result<&'a [u8], String> {
    match size {
        0 => Ok(&[]),
        _ if pointer.is_null() => Err(format!("{what} is null, but has {size} bytes")),
        // SAFETY: passed on; not null.
        _ => Ok(unsafe { std::slice::from_raw_parts(pointer.cast(), size) }),
    }
}

/// Runs `body` and writes what it returns; if it fails, `nothing`.
///
/// # Safety
/// The pointer is null or may be written to.
unsafe fn answer<T: Copy>(out: *mut T, nothing: T, body: impl FnOnce() -> Result<T, String>) -> c_int {
    guarded(|| {
        if out.is_null() {
            return Err("the place for the result is null".to_owned());
        }
        // SAFETY: passed on. First, so that it is there however `body` ends.
        unsafe { out.write(nothing) };
        let result = body()?;
        // SAFETY: passed on.
        unsafe { out.write(result) };
        Ok(())
    })
}

/// Runs `body` and gives the object that it makes to the caller.
///
/// # Safety
/// As for [`answer`].
unsafe fn give<T>(out: *mut *mut T, body: impl FnOnce() -> Result<T, String>) -> c_int {
    // SAFETY: passed on.
    unsafe { answer(out, std::ptr::null_mut(), || Ok(Box::into_raw(Box::new(body()?)))) }
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

/// `TEGULA_ABI_VERSION` of the header: changes when programs that were compiled with the header before would not work with this library.
const ABI_VERSION: u32 = 1;

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn tegula_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn tegula_abi_version() -> u32 {
    ABI_VERSION
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
    unsafe { give(out, || Device::open(text(name, "the device's name")?).map_err(|e| e.to_string())) }
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
    unsafe { give(out, || Bundle::open(text(path, "the path")?).map_err(|e| e.to_string())) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_bundle_open_memory(
    bytes: *const c_void,
    size: usize,
    name: *const c_char,
    out: *mut *mut Bundle,
) -> c_int {
    let body = || {
        let name = if name.is_null() {
            "in memory"
        } else {
            // SAFETY: as the header asks.
            unsafe { text(name, "the bundle's name") }?
        };
        // SAFETY: as the header asks.
        let bytes = unsafe { bytes_of(bytes, size, "the bundle") }?;
        Bundle::from_bytes(name, bytes.to_vec()).map_err(|e| e.to_string())
    };
    // SAFETY: as the header asks.
    unsafe { give(out, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_bundle_count(bundle: *const Bundle, out: *mut usize) -> c_int {
    // SAFETY: as the header asks.
    unsafe { answer(out, 0, || refer(bundle, "the bundle")?.label_count().map_err(|e| e.to_string())) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_bundle_close(bundle: *mut Bundle) {
    // SAFETY: as the header asks.
    unsafe { take(bundle) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_stream_wrap(
    device: *const Device,
    stream: u64,
    out: *mut *mut Stream,
) -> c_int {
    // SAFETY: as the header asks, also of the stream.
    unsafe { give(out, || refer(device, "the device")?.stream_from_raw(stream).map_err(|e| e.to_string())) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_stream_close(stream: *mut Stream) {
    // SAFETY: as the header asks.
    unsafe { take(stream) }
}
