//! What the runner's tests share. Each test program uses a part of it.
#![allow(dead_code, reason = "each test program uses a part")]

pub mod gguf;
pub mod open;
pub mod reference;
pub mod smollm2;

use tegula::runtime::Device;

/// A GPU and a compiler for it, or `None` with a message. With `TEGULA_REQUIRE_CUDA` set they must be there.
pub fn gpu() -> Option<Device> {
    let missing = match tegula::device("cuda") {
        Ok(device) if device.compiler().is_some() => return Some(device),
        Ok(_) => "this test was built without `jit`".to_owned(),
        Err(error) => error.to_string(),
    };
    assert!(std::env::var_os("TEGULA_REQUIRE_CUDA").is_none(), "{missing}");
    eprintln!("skipped: {missing}");
    None
}
