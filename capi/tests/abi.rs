//! The functions as C calls them: what they give out when they fail, what they refuse, and what threads may do at the same time.

mod common;

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use common::{bundle, scale_bundle};
// For its symbols: the functions are declared here as in the header.
use tegula_rt as _;

type Handle = *mut c_void;

#[repr(C)]
#[derive(Clone, Copy)]
struct Argument {
    kind: u32,
    rank: u32,
    ty: *const c_char,
    value: u64,
    shape: *const usize,
    strides: *const usize,
}

#[repr(C)]
struct Parameter {
    name: *const c_char,
    ty: *const c_char,
    kind: u32,
    rank: u32,
}

#[repr(C)]
struct Info {
    name: *const c_char,
    types: *const c_char,
    config: *const c_char,
    count: usize,
    parameters: *const Parameter,
}

unsafe extern "C" {
    fn tegula_abi_version() -> u32;
    fn tegula_version() -> *const c_char;
    fn tegula_last_error() -> *const c_char;
    fn tegula_device_open(name: *const c_char, device: *mut Handle) -> c_int;
    fn tegula_device_close(device: Handle);
    fn tegula_device_synchronize(device: Handle) -> c_int;
    fn tegula_bundle_open(path: *const c_char, bundle: *mut Handle) -> c_int;
    fn tegula_bundle_open_memory(
        bytes: *const c_void,
        size: usize,
        name: *const c_char,
        bundle: *mut Handle,
    ) -> c_int;
    fn tegula_bundle_close(bundle: Handle);
    fn tegula_bundle_count(bundle: Handle, count: *mut usize) -> c_int;
    fn tegula_kernel_find(
        bundle: Handle,
        name: *const c_char,
        types: *const c_char,
        config: *const c_char,
        kernel: *mut Handle,
    ) -> c_int;
    fn tegula_kernel_at(bundle: Handle, number: usize, kernel: *mut Handle) -> c_int;
    fn tegula_kernel_describe(kernel: Handle) -> *const Info;
    fn tegula_kernel_close(kernel: Handle);
    fn tegula_stream_wrap(device: Handle, stream: u64, wrapped: *mut Handle) -> c_int;
    fn tegula_stream_close(stream: Handle);
    fn tegula_kernel_launch(
        kernel: Handle,
        device: Handle,
        stream: Handle,
        grid: *const [u32; 3],
        arguments: *const Argument,
        count: usize,
    ) -> c_int;
    fn tegula_memory_new(device: Handle, bytes: usize, memory: *mut Handle) -> c_int;
    fn tegula_memory_address(memory: Handle) -> u64;
    fn tegula_memory_write(memory: Handle, from: *const c_void, bytes: usize) -> c_int;
    fn tegula_memory_read(memory: Handle, to: *mut c_void, bytes: usize) -> c_int;
    fn tegula_memory_free(memory: Handle);
}

fn string(text: *const c_char) -> String {
    assert!(!text.is_null());
    // SAFETY: the library gives out strings.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
}

fn last_error() -> String {
    // SAFETY: it asks for nothing.
    string(unsafe { tegula_last_error() })
}

/// What a function gives out, or its message; then it must have given out nothing.
fn made(call: impl FnOnce(*mut Handle) -> c_int) -> Result<Handle, String> {
    let mut unlikely = 0u8;
    let mut out: Handle = (&raw mut unlikely).cast();
    match call(&raw mut out) {
        0 => {
            assert!(!out.is_null() && out != (&raw mut unlikely).cast());
            Ok(out)
        }
        status => {
            assert_eq!((status, out), (-1, null_mut()), "{}", last_error());
            Err(last_error())
        }
    }
}

fn c(text: &str) -> CString {
    CString::new(text).unwrap()
}

fn open(bytes: &[u8]) -> Result<Handle, String> {
    // SAFETY: the bytes are there.
    made(|out| unsafe { tegula_bundle_open_memory(bytes.as_ptr().cast(), bytes.len(), c"b".as_ptr(), out) })
}

fn find(bundle: Handle, name: &str, types: &str, config: &str) -> Result<Handle, String> {
    let [name, types, config] = [name, types, config].map(c);
    // SAFETY: strings and a bundle.
    made(|out| unsafe { tegula_kernel_find(bundle, name.as_ptr(), types.as_ptr(), config.as_ptr(), out) })
}

fn device() -> Handle {
    // SAFETY: a string.
    made(|out| unsafe { tegula_device_open(c"emulated:sm_80".as_ptr(), out) }).unwrap()
}

fn memory(device: Handle, bytes: usize) -> Handle {
    // SAFETY: a device.
    made(|out| unsafe { tegula_memory_new(device, bytes, out) }).unwrap()
}

#[test]
fn versions() {
    let header = include_str!("../include/tegula_rt.h");
    // SAFETY: they ask for nothing.
    let (abi, version) = unsafe { (tegula_abi_version(), string(tegula_version())) };
    assert!(header.contains(&format!("#define TEGULA_ABI_VERSION {abi}\n")));
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    let python = include_str!("../examples/scale.py");
    assert!(python.contains(&format!("\nABI_VERSION = {abi}\n")));
}

type Failing = Box<dyn Fn(*mut Handle) -> c_int>;

/// Every function that gives something out, on each way it can fail.
#[test]
fn what_fails_gives_out_null() {
    let (device, bundle) = (device(), open(&scale_bundle()).unwrap());
    let (scale, f32, config, path) =
        (c"scale".as_ptr(), c"f32".as_ptr(), c"128".as_ptr(), c"/nowhere/k.tegula".as_ptr());
    let none = null_mut();
    let (not_utf8, toaster) = (c"\xff".as_ptr(), c"toaster".as_ptr());
    let garbage = [1u8; 100];
    // SAFETY: handles, strings and bytes as the header asks, or null.
    let failures: Vec<(Failing, &str)> = unsafe {
        vec![
            (Box::new(move |out| tegula_device_open(null(), out)), "the device's name is null"),
            (Box::new(move |out| tegula_device_open(not_utf8, out)), "not UTF-8"),
            (Box::new(move |out| tegula_device_open(toaster, out)), "no device `toaster`"),
            (Box::new(move |out| tegula_bundle_open(null(), out)), "the path is null"),
            (Box::new(move |out| tegula_bundle_open(path, out)), "/nowhere/k.tegula"),
            (Box::new(move |out| tegula_bundle_open(c"/dev/zero".as_ptr(), out)), "not a file"),
            (
                Box::new(move |out| tegula_bundle_open_memory(null(), 9, null(), out)),
                "the bundle is null, but has 9 bytes",
            ),
            (
                Box::new(move |out| tegula_bundle_open_memory(null(), 0, null(), out)),
                "bundle in memory: it is not a bundle",
            ),
            (
                Box::new(move |out| tegula_bundle_open_memory(garbage.as_ptr().cast(), 100, scale, out)),
                "bundle scale: it is not",
            ),
            (
                Box::new(move |out| tegula_bundle_open_memory(garbage.as_ptr().cast(), 100, not_utf8, out)),
                "not UTF-8",
            ),
            (Box::new(move |out| tegula_kernel_find(none, scale, f32, config, out)), "the bundle is null"),
            (Box::new(move |out| tegula_kernel_find(bundle, null(), f32, config, out)), "the name is null"),
            (
                Box::new(move |out| tegula_kernel_find(bundle, scale, null(), config, out)),
                "the types is null",
            ),
            (Box::new(move |out| tegula_kernel_find(bundle, scale, f32, null(), out)), "the config is null"),
            (
                Box::new(move |out| tegula_kernel_find(bundle, scale, f32, f32, out)),
                "there is no kernel scale (f32) f32",
            ),
            (Box::new(move |out| tegula_kernel_at(none, 0, out)), "the bundle is null"),
            (Box::new(move |out| tegula_kernel_at(bundle, 1, out)), "there is no kernel 1, but 1"),
            (Box::new(move |out| tegula_stream_wrap(none, 0, out)), "the device is null"),
            (Box::new(move |out| tegula_stream_wrap(device, 0, out)), "stream"),
            (Box::new(move |out| tegula_memory_new(none, 8, out)), "the device is null"),
            (Box::new(move |out| tegula_memory_new(device, usize::MAX, out)), ""),
        ]
    };
    for (call, words) in failures {
        let message = made(&call).unwrap_err();
        assert!(message.contains(words) && !message.is_empty(), "{message}");
        assert_eq!(call(null_mut()), -1);
        assert!(last_error().contains("the place for the result is null"), "{}", last_error());
    }
    let mut count = 77;
    // SAFETY: as above.
    unsafe {
        assert_eq!((tegula_bundle_count(none, &raw mut count), count), (-1, 0));
        assert_eq!(tegula_bundle_count(bundle, null_mut()), -1);
        assert_eq!(tegula_memory_address(none), 0);
        assert!(tegula_kernel_describe(none).is_null());
        assert_eq!(tegula_device_synchronize(none), -1);
        let close = [
            tegula_device_close,
            tegula_bundle_close,
            tegula_kernel_close,
            tegula_stream_close,
            tegula_memory_free,
        ];
        close.iter().for_each(|close| close(none));
        tegula_bundle_close(bundle);
        tegula_device_close(device);
    }
}

/// What a bundle lists, as `name (types) config: parameter kind type rank, …`, and the handles.
fn listed(bundle: Handle) -> Vec<(String, Handle)> {
    let mut count = 0;
    // SAFETY: a bundle; numbers below the count; what is described lives as long as its kernel.
    unsafe {
        assert_eq!(tegula_bundle_count(bundle, &raw mut count), 0);
        (0..count)
            .map(|number| {
                let kernel = made(|out| tegula_kernel_at(bundle, number, out)).unwrap();
                let info = &*tegula_kernel_describe(kernel);
                let params = std::slice::from_raw_parts(info.parameters, info.count);
                let params: Vec<String> = params
                    .iter()
                    .map(|p| format!("{} {} {} {}", string(p.name), p.kind, string(p.ty), p.rank))
                    .collect();
                let [name, types, config] = [info.name, info.types, info.config].map(string);
                (format!("{name} ({types}) {config}: {}", params.join(", ")), kernel)
            })
            .collect()
    }
}

#[test]
fn kernels_are_listed() {
    const SCALE: &str = "scale (f32) 128: x 0 f32 1, y 1 f32 1, by 4 f32 0";
    for (warps, expected) in [(&[][..], vec![]), (&[4], vec![SCALE]), (&[4, 8, 2], vec![SCALE; 3])] {
        let bundle = open(&bundle(warps)).unwrap();
        let (texts, kernels): (Vec<_>, Vec<_>) = listed(bundle).into_iter().unzip();
        assert_eq!(texts, expected);
        // SAFETY: each is closed once.
        unsafe {
            kernels.into_iter().for_each(|kernel| tegula_kernel_close(kernel));
            tegula_bundle_close(bundle);
        }
    }
}

#[test]
fn a_name_of_two_kernels_is_refused_and_both_can_be_had() {
    let merged = open(&bundle(&[4, 8])).unwrap();
    let message = find(merged, "scale", "f32", "128").unwrap_err();
    let hashes: BTreeSet<&str> = message
        .split([' ', ',', '.'])
        .filter(|w| w.len() == 16 && w.bytes().all(|b| b.is_ascii_hexdigit()))
        .collect();
    assert!(
        hashes.len() == 2 && message.contains("scale (f32) 128") && message.contains("merge again"),
        "{message}"
    );
    let device = device();
    for (_, kernel) in listed(merged) {
        assert_eq!(scale(kernel, device, &Call::new(device, 100)), Ok(vec![2.0; 100]));
    }
}

/// Arguments for `scale`: x is ones, and `by` two.
struct Call {
    x: Handle,
    y: Handle,
    shape: [usize; 1],
    stride: [usize; 1],
    arguments: [Argument; 3],
}

impl Call {
    fn new(device: Handle, count: usize) -> Box<Call> {
        let [x, y] = [(); 2].map(|()| memory(device, count.max(1) * 4));
        let ones = vec![1f32; count];
        // SAFETY: so many bytes are there.
        unsafe { assert_eq!(tegula_memory_write(x, ones.as_ptr().cast(), count * 4), 0) };
        let none =
            Argument { kind: 4, rank: 0, ty: c"f32".as_ptr(), value: 0, shape: null(), strides: null() };
        let mut call = Box::new(Call { x, y, shape: [count], stride: [1], arguments: [none; 3] });
        let (shape, strides) = (call.shape.as_ptr(), call.stride.as_ptr());
        // SAFETY: memory.
        let [x, y] = [x, y].map(|memory| unsafe { tegula_memory_address(memory) });
        let view = |kind, value| Argument { kind, rank: 1, value, shape, strides, ..none };
        call.arguments = [view(0, x), view(1, y), Argument { value: 2f32.to_bits().into(), ..none }];
        call
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // SAFETY: each is closed once.
        unsafe {
            tegula_memory_free(self.x);
            tegula_memory_free(self.y);
        }
    }
}

fn scale(kernel: Handle, device: Handle, call: &Call) -> Result<Vec<f32>, String> {
    let mut y = vec![0f32; call.shape[0]];
    let grid = [call.shape[0].div_ceil(128).max(1) as u32, 1, 1];
    // SAFETY: what the library must refuse is in the arguments on purpose; the rest is as the header asks.
    unsafe {
        let status =
            tegula_kernel_launch(kernel, device, null_mut(), &raw const grid, call.arguments.as_ptr(), 3);
        if status != 0 {
            return Err(last_error());
        }
        assert_eq!(tegula_memory_read(call.y, y.as_mut_ptr().cast(), y.len() * 4), 0);
    }
    Ok(y)
}

#[test]
fn arguments_that_a_kernel_would_fault_on_are_refused() {
    let (device, bundle) = (device(), open(&scale_bundle()).unwrap());
    let kernel = find(bundle, "scale", "f32", "128").unwrap();
    let refused = |change: &dyn Fn(&mut [Argument; 3]), words: &[&str]| {
        let mut call = Call::new(device, 1000);
        change(&mut call.arguments);
        let message = scale(kernel, device, &call).expect_err(words[0]);
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
        assert!(message.contains("scale"), "{message}");
    };
    let (zero, three, most) = ([0usize], [3usize, 2], [usize::MAX; 9]);
    let square = [4usize, 4];
    let diagonal = [1usize, 1];
    refused(&|a| a[0].value = 0, &["argument 0, `x`", "null", "[1000]"]);
    refused(&|a| a[1].value = 0, &["argument 1, `y`", "null"]);
    refused(&|a| a[0].value += 1, &["argument 0, `x`", "4 bytes"]);
    refused(&|a| a[1].value += 2, &["argument 1, `y`", "4 bytes"]);
    refused(&|a| a[1].strides = zero.as_ptr(), &["argument 1, `y`", "one place", "[1000]", "[0]"]);
    refused(
        &|a| (a[1].rank, a[1].shape, a[1].strides) = (2, square.as_ptr(), diagonal.as_ptr()),
        &["argument 1, `y`", "one place"],
    );
    refused(&|a| (a[0].kind, a[0].value) = (2, 0), &["argument 0, `x`", "its address is null"]);
    refused(&|a| (a[0].kind, a[0].value) = (3, 5), &["argument 0, `x`", "0x5", "4 bytes"]);
    // And what was refused before, now with its name.
    refused(&|a| a[0].shape = null(), &["argument 0, `x`", "rank 1"]);
    refused(&|a| a[2].ty = c"f23".as_ptr(), &["argument 2, `by`", "no element type `f23`"]);
    refused(&|a| a[2].ty = null(), &["argument 2, `by`", "its type is null"]);
    refused(&|a| a[1].kind = 5, &["argument 1, `y`", "no kind 5"]);
    refused(
        &|a| (a[0].rank, a[0].shape, a[0].strides) = (2, three.as_ptr(), three.as_ptr()),
        &["`x`", "view<f32, 1>"],
    );
    refused(
        &|a| (a[0].rank, a[0].shape, a[0].strides) = (9, most.as_ptr(), most.as_ptr()),
        &["argument 0, `x`"],
    );

    // What is read may have all elements at one place.
    let mut call = Call::new(device, 1000);
    call.arguments[0].strides = zero.as_ptr();
    assert!(scale(kernel, device, &call).is_ok());
    // Without elements there is no address: PyTorch's empty tensors have null. And a stride says nothing of one element.
    let mut call = Call::new(device, 0);
    (call.arguments[0].value, call.arguments[1].value) = (0, 0);
    call.arguments[1].strides = zero.as_ptr();
    assert_eq!(scale(kernel, device, &call), Ok(vec![]));
    let mut call = Call::new(device, 1);
    call.arguments[1].strides = zero.as_ptr();
    assert_eq!(scale(kernel, device, &call), Ok(vec![2.0]));
    // Nothing of all this has harmed the device.
    assert_eq!(scale(kernel, device, &Call::new(device, 300)), Ok(vec![2.0; 300]));
}

#[test]
fn bytes_of_a_bundle_are_copied() {
    let mut bytes = scale_bundle();
    let bundle = open(&bytes).unwrap();
    bytes.fill(0);
    drop(bytes);
    let kernel = find(bundle, "scale", "f32", "128").unwrap();
    // SAFETY: nobody uses it any more; the kernel outlives it.
    unsafe { tegula_bundle_close(bundle) };
    let device = device();
    assert_eq!(scale(kernel, device, &Call::new(device, 10)), Ok(vec![2.0; 10]));
}

/// A handle for another thread: the header lets them share it.
#[derive(Clone, Copy)]
struct Shared(Handle);
// SAFETY: that is what is tested.
unsafe impl Send for Shared {}

impl Shared {
    fn handle(self) -> Handle {
        self.0
    }
}

#[test]
fn threads_share_memory() {
    const BYTES: usize = 1 << 16;
    let device = device();
    let shared = Shared(memory(device, BYTES));
    // SAFETY: buffers of so many bytes, and memory that lives longer than the threads.
    unsafe {
        let write = |value: u8| tegula_memory_write(shared.handle(), [value; BYTES].as_ptr().cast(), BYTES);
        assert_eq!(write(1), 0);
        let threads: Vec<_> = (1..=4u8)
            .map(|value| {
                std::thread::spawn(move || {
                    for _ in 0..50 {
                        let mut seen = vec![0u8; BYTES];
                        let memory = shared.handle();
                        assert_eq!(tegula_memory_write(memory, [value; BYTES].as_ptr().cast(), BYTES), 0);
                        assert_eq!(tegula_memory_read(memory, seen.as_mut_ptr().cast(), BYTES), 0);
                        assert!(
                            (1..=4).contains(&seen[0]) && seen.iter().all(|byte| *byte == seen[0]),
                            "one write at a time"
                        );
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // What fails leaves what it was to fill.
        let mut seen = [7u8; 4];
        assert_eq!(tegula_memory_read(shared.handle(), seen.as_mut_ptr().cast(), BYTES + 1), -1);
        assert_eq!((seen, tegula_memory_read(shared.handle(), null_mut(), 4)), ([7; 4], -1));
        assert_eq!(tegula_memory_write(shared.handle(), null(), 4), -1);
        assert_eq!(tegula_memory_write(shared.handle(), null(), 0), 0);
        tegula_memory_free(shared.handle());
        tegula_device_close(device);
    }
}
