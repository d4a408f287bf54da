//! Gives the shared library its name. Without one, programs that are linked with it look for it where it lay then.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    match std::env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("linux") => println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtegula_rt.so"),
        Ok("macos") => println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libtegula_rt.dylib"),
        _ => {}
    }
}
