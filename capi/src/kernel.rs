//! Kernels: found, listed, described, launched.

use std::ffi::{CString, c_char, c_int};

use tegula_ir::Elem;
use tegula_runtime::bundle::{Label, ParamKind, ParamRecord};
use tegula_runtime::{Bundle, BundledKernel, Device, Stream};

use crate::argument::{self, Argument};
use crate::{give, guarded, refer, take, text};

/// `tegula_kernel` of the header.
pub struct Kernel {
    code: BundledKernel,
    info: Info,
    /// What `info` points to; neither is changed.
    _params: Box<[Parameter]>,
    _texts: Vec<CString>,
}

/// `tegula_kernel_info` of the header.
#[repr(C)]
pub struct Info {
    name: *const c_char,
    types: *const c_char,
    config: *const c_char,
    count: usize,
    parameters: *const Parameter,
}

/// `tegula_parameter` of the header.
#[repr(C)]
pub struct Parameter {
    name: *const c_char,
    ty: *const c_char,
    kind: u32,
    rank: u32,
}

impl Kernel {
    fn new(code: BundledKernel) -> Kernel {
        let mut texts = Vec::new();
        let mut keep = |text: &str| {
            // The text stays where it is when the list of texts grows. (A zero byte can only be in a file that no tool of ours wrote.)
            texts.push(CString::new(text.replace('\0', "?")).unwrap_or_default());
            texts.last().map_or(std::ptr::null(), |text| text.as_ptr())
        };
        let Label { name, types, config } = code.label();
        let [name, types, config] = [name, types, config].map(|text| keep(text));
        let params: Box<[Parameter]> =
            code.params().iter().map(|param| Parameter::new(param, &mut keep)).collect();
        let info = Info { name, types, config, count: params.len(), parameters: params.as_ptr() };
        Kernel { code, info, _params: params, _texts: texts }
    }

    /// What is wrong with an argument, with its name.
    #[cold]
    fn about_argument(&self, index: usize, what: &str) -> String {
        let kernel = &self.code.label().name;
        match self.code.params().get(index) {
            Some(param) => format!("kernel `{kernel}`: argument {index}, `{}`: {what}", param.name),
            None => format!("kernel `{kernel}`: argument {index}: {what}"),
        }
    }
}

impl Parameter {
    fn new(
        ParamRecord { name, kind }: &ParamRecord,
        keep: &mut impl FnMut(&str) -> *const c_char,
    ) -> Parameter {
        let mut of =
            |elem: Elem, kind, rank| Parameter { name: keep(name), ty: keep(elem.name()), kind, rank };
        match *kind {
            ParamKind::View { elem, rank, mutable: false } => of(elem, argument::VIEW, rank.into()),
            ParamKind::View { elem, rank, mutable: true } => of(elem, argument::VIEW_MUT, rank.into()),
            ParamKind::Pointer { elem } => of(elem, argument::POINTER, 0),
            ParamKind::Scalar { elem } => of(elem, argument::SCALAR, 0),
        }
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_kernel_find(
    bundle: *const Bundle,
    name: *const c_char,
    types: *const c_char,
    config: *const c_char,
    out: *mut *mut Kernel,
) -> c_int {
    let body = || {
        // SAFETY: as the header asks.
        let bundle = unsafe { refer(bundle, "the bundle") }?;
        // SAFETY: as the header asks.
        let [name, types, config] =
            unsafe { [text(name, "the name"), text(types, "the types"), text(config, "the config")] };
        let label = Label { name: name?.to_owned(), types: types?.to_owned(), config: config?.to_owned() };
        let found = BundledKernel::find(bundle, &label).map_err(|e| e.to_string())?;
        found.map(Kernel::new).ok_or_else(|| {
            format!("bundle {}: there is no kernel {label}; `tegula bundle list` shows all", bundle.name())
        })
    };
    // SAFETY: as the header asks.
    unsafe { give(out, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_kernel_at(
    bundle: *const Bundle,
    number: usize,
    out: *mut *mut Kernel,
) -> c_int {
    let body = || {
        // SAFETY: as the header asks.
        let bundle = unsafe { refer(bundle, "the bundle") }?;
        let found = BundledKernel::at(bundle, number).map_err(|e| e.to_string())?;
        let count = || bundle.label_count().unwrap_or_default();
        let absent = || format!("bundle {}: there is no kernel {number}, but {}", bundle.name(), count());
        found.map(Kernel::new).ok_or_else(absent)
    };
    // SAFETY: as the header asks.
    unsafe { give(out, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_kernel_describe(kernel: *const Kernel) -> *const Info {
    // SAFETY: as the header asks.
    unsafe { kernel.as_ref() }.map_or(std::ptr::null(), |kernel| &raw const kernel.info)
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_kernel_close(kernel: *mut Kernel) {
    // SAFETY: as the header asks.
    unsafe { take(kernel) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tegula_kernel_launch(
    kernel: *const Kernel,
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
            unsafe { argument.value(device) }.map_err(|e| kernel.about_argument(index, &e))
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
        unsafe { kernel.code.launch(&values, grid, stream) }.map_err(|e| e.to_string())
    })
}
