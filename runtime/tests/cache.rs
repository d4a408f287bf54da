//! The kernel cache on disk, as several processes see it. Children are this binary, started again for the test `child`.

mod common;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::{Counting, scale};
use tegula_runtime::Device;

/// Names the folder, and makes the test `child` do something.
const FOLDER: &str = "TEGULA_TEST_CACHE";
const PTX_BYTES: &str = "TEGULA_TEST_PTX_BYTES";

/// Launches the kernel in a process of its own memory; gives how many times it was compiled.
fn launch(folder: &Path, takes: Duration, ptx_bytes: usize) -> usize {
    let device = Device::testing();
    device.set_cache_dir(Some(folder));
    let compiler = Arc::new(Counting { takes, ptx_bytes, ..Counting::default() });
    device.set_compiler(compiler.clone());
    let (x, mut y) = (device.zeros::<f32>(&[64]).unwrap(), device.zeros::<f32>(&[64]).unwrap());
    scale(&x, &mut y, 1.0, 3, 64).grid(1).launch(&device.stream()).unwrap();
    compiler.count()
}

/// What a child does; nothing in an ordinary run.
#[test]
fn child() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let bytes = std::env::var(PTX_BYTES).unwrap().parse().unwrap();
        println!("compiled {}", launch(Path::new(&folder), Duration::from_millis(50), bytes));
    }
}

fn for_child(command: &mut Command, folder: &Path, ptx_bytes: usize) {
    command.env(FOLDER, folder).env(PTX_BYTES, ptx_bytes.to_string());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
}

fn start(folder: &Path, ptx_bytes: usize) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    for_child(command.args(["--exact", "child", "--nocapture"]), folder, ptx_bytes);
    command.spawn().unwrap()
}

/// Waits; gives how many times the child compiled, and all that it said.
fn finish(child: Child) -> (usize, String) {
    let output = child.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    let count = out.lines().find_map(|l| l.split_once("compiled ")).expect("the child says how often").1;
    (count.trim().parse().unwrap(), format!("{err}{out}"))
}

fn entries(folder: &Path) -> (usize, usize) {
    let names: Vec<String> = std::fs::read_dir(folder)
        .map(|d| d.map(|e| e.unwrap().file_name().into_string().unwrap()).collect())
        .unwrap_or_default();
    let temporary = names.iter().filter(|n| n.starts_with(".tmp-")).count();
    (names.len() - temporary, temporary)
}

#[test]
fn a_second_process_compiles_nothing() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(finish(start(folder.path(), 1000)).0, 1);
    assert_eq!(finish(start(folder.path(), 1000)).0, 0);
    assert_eq!(launch(folder.path(), Duration::ZERO, 1000), 0);
}

#[test]
fn two_processes_at_one_time_leave_one_whole_entry() {
    let folder = tempfile::tempdir().unwrap();
    let children = [start(folder.path(), 1 << 20), start(folder.path(), 1 << 20)];
    let compiled: usize = children.map(finish).iter().map(|c| c.0).sum();
    assert!((1..=2).contains(&compiled), "{compiled}");
    assert_eq!(entries(folder.path()), (1, 0));
    assert_eq!(launch(folder.path(), Duration::ZERO, 1 << 20), 0);
}

#[test]
fn a_process_killed_at_any_moment_leaves_no_bad_entry() {
    let mut interrupted = 0;
    for step in 0..8 {
        let folder = tempfile::tempdir().unwrap();
        // Large enough that writing takes a while; killed before, while and after it writes.
        let mut child = start(folder.path(), 64 << 20);
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while entries(folder.path()) == (0, 0) && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_millis(step));
        child.kill().unwrap();
        child.wait().unwrap();
        let (whole, temporary) = entries(folder.path());
        interrupted += temporary;
        let compiled = launch(folder.path(), Duration::ZERO, 64 << 20);
        assert_eq!(compiled, 1 - whole, "an entry under its name is whole, or it is not there");
        assert_eq!(launch(folder.path(), Duration::ZERO, 64 << 20), 0);
    }
    assert!(interrupted > 0, "no child was killed while it wrote: the test shows nothing");
}

/// Runs a child with a disk of 64 KiB under its cache; says what kind of disk that is. The output ends with what the folder then contains.
///
/// The disk is a tmpfs of that size, in a mount namespace of the child's own, so that nothing else sees it and it goes when the child does. Where that is
/// not allowed (it takes root, or namespaces that users may make), a limit on the size of files fails writes half-way, too.
fn on_a_small_disk(folder: &Path, ptx_bytes: usize) -> (&'static str, Child) {
    const MOUNT: &str = "mount -t tmpfs -o size=64k none \"$1\"";
    const RUN: &str = "\"$0\" --exact child --nocapture && echo \"left: $(ls -A \"$1\")\"";
    let may_mount = |namespace: &&str| {
        let mut mount = Command::new("unshare");
        mount.args([namespace, "sh", "-c", MOUNT, "sh"]).arg(folder).stderr(Stdio::null());
        mount.status().is_ok_and(|s| s.success())
    };
    let (kind, mut command, script) = match ["--mount", "-rm"].into_iter().find(may_mount) {
        Some(namespace) => {
            let mut unshare = Command::new("unshare");
            unshare.args([namespace, "sh"]);
            ("a tmpfs", unshare, format!("{MOUNT} && {RUN}"))
        }
        None => {
            let script = format!("trap '' XFSZ; ulimit -f 64; {RUN}");
            ("a limit on the size of files: no tmpfs can be mounted here", Command::new("sh"), script)
        }
    };
    command.args(["-c", &script]).arg(std::env::current_exe().unwrap()).arg(folder);
    for_child(&mut command, folder, ptx_bytes);
    (kind, command.spawn().unwrap())
}

#[test]
fn a_full_disk_is_said_once_and_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let (kind, child) = on_a_small_disk(folder.path(), 1 << 20);
    println!("the disk is {kind}");
    let (compiled, said) = finish(child);
    assert_eq!(compiled, 1);
    assert_eq!(said.matches("tegula: the kernel cache").count(), 1, "{said}");
    assert!(said.contains("\nleft: \n"), "no piece of an entry stays: {said}");
}

#[test]
fn what_fits_a_small_disk_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (_, child) = on_a_small_disk(folder.path(), 1000);
    let (compiled, said) = finish(child);
    assert_eq!(compiled, 1);
    assert!(!said.contains("tegula: the kernel cache") && said.contains(".kernel\n"), "{said}");
}

#[test]
fn an_entry_damaged_behind_our_back_is_compiled_again() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(launch(folder.path(), Duration::ZERO, 5000), 1);
    let entry = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&entry).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&entry, bytes).unwrap();
    assert_eq!(launch(folder.path(), Duration::ZERO, 5000), 1);
    assert_eq!(launch(folder.path(), Duration::ZERO, 5000), 0);
}

#[test]
fn what_was_compiled_for_a_device_without_it_is_found_by_it() {
    let folder = tempfile::tempdir().unwrap();
    let real = Device::testing();
    let compiling = Device::compiling_for(real.properties()).unwrap();
    let compilers = [&compiling, &real].map(|device| {
        let compiler = Arc::new(Counting::default());
        device.set_cache_dir(Some(folder.path()));
        device.set_compiler(compiler.clone());
        let (x, mut y) = (device.alloc::<f32>(&[64]).unwrap(), device.alloc::<f32>(&[64]).unwrap());
        scale(&x, &mut y, 1.0, 3, 64).grid(1).launch(&device.stream()).unwrap();
        (compiler.count(), y.to_vec().is_ok())
    });
    assert_eq!(
        compilers,
        [(1, false), (0, true)],
        "compiled once; and where nothing ran there is nothing to read"
    );
    let error = Device::compiling_for(Device::open("host").unwrap().properties()).unwrap_err();
    assert!(error.to_string().contains("compiles nothing"), "{error}");
}
