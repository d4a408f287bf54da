//! Launches through a driver that does nothing (`stub/driver.c`, built here with `cc`): what Tegula adds to the driver's own time, and what it asks
//! of the driver. Skipped where there is no C compiler. Children are this binary, started again for the test `child`.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use common::{Counting, scale};
use tegula_ir::artifact::{AbiSlot, CompileError, CompiledKernel, Compiler, TensorMapSpec};
use tegula_ir::{Elem, Kernel, Type};
use tegula_runtime::{ArgValue, Device, KernelInfo, KernelKey, Launch};

/// Makes `child` do something: the name of what.
const CHILD: &str = "TEGULA_TEST_DRIVER";

/// The most that a launch of four arguments may cost beside the driver's own time. It takes 93 to 120 ns on a Xeon of 2023, which shares its cores.
const NANOSECONDS: f64 = 150.0;

/// The most that finding and copying a tensor map may cost.
const NANOSECONDS_A_MAP: f64 = 50.0;

/// The folder with the driver; `None` without a C compiler.
fn driver() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("driver");
        std::fs::create_dir_all(&folder).unwrap();
        let library = folder.join("libcuda.so");
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library);
        let status = match cc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stub/driver.c")).status()
        {
            Ok(status) => status,
            Err(e) => {
                println!("skipped, for want of `cc`: {e}");
                return None;
            }
        };
        assert!(status.success(), "the driver is not built");
        // Under both names that the loader is asked for, whatever a real driver is called here.
        std::fs::copy(&library, folder.join("libcuda.so.1")).unwrap();
        Some(folder)
    };
    BUILT.get_or_init(build).as_deref()
}

/// Does a part of `child` with that driver; gives what it said.
fn run(driver: &Path, part: &str, log: Option<&Path>) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).env(CHILD, part).env("LD_LIBRARY_PATH", driver);
    command.env_remove("TEGULA_STUB_LOG");
    if let Some(log) = log {
        command.env("TEGULA_STUB_LOG", log);
    }
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    out.into_owned()
}

/// Launches with two tensor maps.
fn maps(device: &Device, log: bool) {
    device.set_compiler(Arc::new(TensorMaps));
    let x = device.zeros::<f32>(&[64, 64]).unwrap();
    let mut y = device.zeros::<f32>(&[64, 64]).unwrap();
    let s = device.stream();
    let mut launch = |rows: usize| {
        let part = x.view().slice(0, 0..rows).unwrap();
        let args = [ArgValue::view(part, 2), ArgValue::view_mut(y.view_mut(), 2)];
        Launch::new(&COPY, KernelKey::new(&COPY), args, || Ok::<_, String>(copy_kernel())).grid(1).launch(&s)
    };
    if log {
        launch(64).unwrap();
        s.synchronize().unwrap();
        for rows in [64, 64, 48, 64, 48] {
            launch(rows).unwrap();
        }
        s.synchronize().unwrap();
    } else {
        time(|n| (0..n).for_each(|_| launch(64).unwrap()));
    }
}

static COPY: KernelInfo = KernelInfo::new("driver::copy", "copy", &["x", "y"], file!(), line!());

fn copy_kernel() -> Kernel {
    let mut kernel = Kernel::new("copy");
    kernel.add_param("x", Type::view(Elem::F32, 2, false));
    kernel.add_param("y", Type::view(Elem::F32, 2, true));
    kernel
}

/// Compiles everything to code that wants tensor maps.
struct TensorMaps;

impl Compiler for TensorMaps {
    fn compile(&self, kernel: &Kernel, target: &str) -> Result<CompiledKernel, CompileError> {
        let map = TensorMapSpec::new(&[1, 0], &[32, 8]);
        let facts = [&kernel.params[0].facts, &kernel.params[1].facts];
        assert!(facts.iter().all(|facts| facts.tensor_map && facts.unit_stride == Some(1)), "{facts:?}");
        let compiled = Counting::default().compile(kernel, target)?;
        let abi = (0..2).map(|param| AbiSlot::TensorMap { param, map }).collect();
        Ok(CompiledKernel { abi, ..compiled })
    }

    fn version(&self) -> &str {
        "tensor maps"
    }
}

/// Says how long one of `n` launches takes.
fn time(mut launches: impl FnMut(usize)) {
    let mut best = f64::MAX;
    for _ in 0..10_000 {
        let start = Instant::now();
        launches(50);
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / 50.0);
    }
    println!("nanoseconds {best:.1}");
}

/// What a child does; nothing in an ordinary run.
#[test]
fn child() {
    let Some(part) = std::env::var_os(CHILD) else { return };
    let device = Device::open("cuda").unwrap();
    device.set_cache_dir(None);
    if part == "maps" || part == "time of maps" {
        return maps(&device, part == "maps");
    }
    let compiler = Arc::<Counting>::default();
    device.set_compiler(compiler.clone());
    let (x, mut y) = (device.zeros::<f32>(&[64]).unwrap(), device.zeros::<f32>(&[64]).unwrap());
    let s = device.stream();
    let mut launches = |n: usize| (0..n).try_for_each(|_| scale(&x, &mut y, 1.0, 3, 64).grid(1).launch(&s));
    match part.to_str().unwrap() {
        "launches" => {
            launches(1).unwrap();
            s.synchronize().unwrap();
            launches(10).unwrap();
            s.synchronize().unwrap();
        }
        "time" => time(|n| launches(n).unwrap()),
        other => panic!("there is no part {other}"),
    }
    assert_eq!(compiler.count(), 1);
}

#[test]
fn a_launch_asks_for_the_context_and_launches() {
    let Some(driver) = driver() else { return };
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    run(driver, "launches", Some(&log));
    let mut expected = ["get", "launch"].repeat(10);
    expected.push("get"); // of the second synchronisation
    assert_eq!(calls_between_synchronisations(&log), expected);
}

fn calls_between_synchronisations(log: &Path) -> Vec<String> {
    let log = std::fs::read_to_string(log).unwrap();
    // From the end: loading a kernel may synchronise, too.
    let between = log.rsplit("sync").nth(1).unwrap();
    between.lines().skip(1).filter_map(|l| l.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn a_tensor_map_is_encoded_once_for_a_view() {
    let Some(driver) = driver() else { return };
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    run(driver, "maps", Some(&log));
    let expected = "get launch get launch get encode launch get launch get launch get";
    assert_eq!(calls_between_synchronisations(&log).join(" "), expected);
}

#[test]
fn tensor_maps_cost_little() {
    let Some(driver) = driver() else { return };
    let nanoseconds = nanoseconds(driver, "time of maps");
    println!("{nanoseconds} ns a launch with 2 tensor maps, beside the driver");
    if !cfg!(debug_assertions) {
        assert!(nanoseconds <= NANOSECONDS + 2.0 * NANOSECONDS_A_MAP, "{nanoseconds} ns a launch");
    }
}

fn nanoseconds(driver: &Path, part: &str) -> f64 {
    let said = run(driver, part, None);
    said.lines().find_map(|l| l.strip_prefix("nanoseconds ")).unwrap().parse().unwrap()
}

#[test]
fn a_launch_costs_little_beside_the_driver() {
    let Some(driver) = driver() else { return };
    let nanoseconds = nanoseconds(driver, "time");
    println!("{nanoseconds} ns a launch of 4 arguments, beside the driver");
    if !cfg!(debug_assertions) {
        assert!(nanoseconds <= NANOSECONDS, "{nanoseconds} ns a launch");
    }
}
