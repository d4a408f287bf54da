//! The examples in C and Python, on an emulated GPU: compiled and run as their users do. Python is left out where there is none.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tegula_bundle::{Builder, Label};
use tegula_ir::artifact::{AbiSlot, CompiledKernel};
use tegula_ir::{Elem, Kernel, Type};

/// `y[i] = x[i] · by`, by hand, so that no compiler is needed.
const SCALE: &str = include_str!("../../runtime/tests/scale.ptx");

fn bundle(path: &Path) {
    let mut kernel = Kernel::new("scale");
    kernel.add_param("x", Type::view(Elem::F32, 1, false));
    kernel.add_param("y", Type::view(Elem::F32, 1, true));
    kernel.add_param("by", Type::scalar(Elem::F32));
    let code = CompiledKernel {
        entry: "scale".to_owned(),
        target: "sm_80".to_owned(),
        ptx: SCALE.to_owned(),
        cubin: None,
        threads: 128,
        shared_bytes: 0,
        cluster: 1,
        dependent_launch: false,
        abi: vec![
            AbiSlot::Address { param: 0 },
            AbiSlot::Address { param: 1 },
            AbiSlot::Dim { param: 1, axis: 0, bits: 64 },
            AbiSlot::Scalar { param: 2, elem: Elem::F32 },
        ],
        report: None,
    };
    let label = Label { name: "scale".to_owned(), types: "f32".to_owned(), config: "128".to_owned() };
    let mut builder = Builder::new();
    builder.add(label, &kernel, "by hand", code).unwrap();
    builder.write(path).unwrap();
}

/// The shared library that cargo built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    [folder, folder.parent().unwrap()]
        .map(|folder| {
            folder.join(format!("{}tegula_rt{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX))
        })
        .into_iter()
        .find(|path| path.exists())
        .expect("cargo builds the library for its tests")
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

const EXPECTED: &str = "y[1] = 2.5, y[999] = 2497.5\n";

#[test]
fn c() {
    let folder = tempfile::tempdir().unwrap();
    let (kernels, program) = (folder.path().join("k.tegula"), folder.path().join("scale"));
    bundle(&kernels);
    // Linked with the library in one place, and run with it in another: beside the program, as it is shipped.
    let linked = folder.path().join("elsewhere").join(library().file_name().unwrap());
    std::fs::create_dir(linked.parent().unwrap()).unwrap();
    std::fs::copy(library(), &linked).unwrap();
    let built = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I"])
        .args([here("include"), here("examples/scale.c"), linked.clone()])
        .args(["-Wl,-rpath,$ORIGIN", "-o"])
        .arg(&program)
        .output()
        .expect("a C compiler: Rust's linker is one");
    assert!(built.status.success(), "{}", text(&built));
    std::fs::rename(&linked, folder.path().join(linked.file_name().unwrap())).unwrap();
    let run = |device: &str, bundle: &Path| Command::new(&program).arg(device).arg(bundle).output().unwrap();
    let good = run("emulated:sm_80", &kernels);
    assert!(good.status.success() && text(&good) == EXPECTED, "{}", text(&good));
    let unknown = run("toaster", &kernels);
    assert!(
        !unknown.status.success() && text(&unknown).contains("there is no device `toaster`"),
        "{}",
        text(&unknown)
    );
    let mut bytes = std::fs::read(&kernels).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&kernels, bytes).unwrap();
    let damaged = run("emulated:sm_80", &kernels);
    assert!(!damaged.status.success() && text(&damaged).contains("part 0 is damaged"), "{}", text(&damaged));
}

#[test]
fn python() {
    let folder = tempfile::tempdir().unwrap();
    let kernels = folder.path().join("k.tegula");
    bundle(&kernels);
    let run = Command::new("python3")
        .arg(here("examples/scale.py"))
        .arg(library())
        .args(["emulated:sm_80"])
        .arg(&kernels)
        .output();
    let Ok(output) = run else {
        eprintln!("skipped: there is no python3");
        return;
    };
    assert!(output.status.success() && text(&output) == EXPECTED, "{}", text(&output));
}
