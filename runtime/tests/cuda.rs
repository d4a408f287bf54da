//! The CUDA device, where there is one.

mod cuda_suite;

use std::process::Command;
use tegula_runtime::Device;

/// The device, or why there is none. `TEGULA_REQUIRE_CUDA` makes it an error to have none (on machines that are there for it).
fn device() -> Option<Device> {
    match Device::open("cuda") {
        Ok(device) => Some(device),
        Err(e) if std::env::var_os("TEGULA_REQUIRE_CUDA").is_none() => {
            println!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn suite() {
    if let Some(device) = device() {
        cuda_suite::all(&device);
    }
}

const CHILD: &str = "TEGULA_TEST_OUT_OF_BOUNDS";

/// In a process of its own, since the context is lost.
#[test]
fn out_of_bounds() {
    if let Some(device) = device() {
        if std::env::var_os(CHILD).is_some() {
            return cuda_suite::out_of_bounds(&device);
        }
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "out_of_bounds", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success(), "{said}{}", String::from_utf8_lossy(&child.stderr));
        print!("{said}");
    }
}
