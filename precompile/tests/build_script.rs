//! What a `build.rs` does: with a compiler, without one, and where the bundle in the sources is absent, damaged or out of date. The kernel is a crate's own, and is launched from what was
//! built on a device that has no compiler.

mod scribe;

use std::path::Path;
use std::sync::atomic::Ordering;

use tegula::prelude::*;
use tegula::runtime::{Bundle, Device};
use tegula_precompile::{CodeKind, Plan, Script};

use scribe::Scribe;

/// y = x · by.
#[kernel]
fn scale<T: Float>(x: View<T, 1>, y: ViewMut<T, 1>, by: Scalar<f32>, block: usize) {
    let at = program_id(0) * block as i32;
    y.store([at], (x.load([at], [block]).cast::<f32>() * by).cast::<T>());
}

fn plan(block: usize) -> Plan<'static> {
    Plan::new()
        .target("sm_90a", CodeKind::Cubin)
        .kernel("scale", "f32", block, move || scale::<f32>::stage(block))
}

fn script(folder: &Path, update: bool) -> Script {
    let (sources, out) = (folder.join("crate"), folder.join("out"));
    for folder in [&sources, &out] {
        std::fs::create_dir_all(folder).unwrap();
    }
    Script { sources, out, update }
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

#[test]
fn kernels_are_compiled_where_there_is_a_compiler_and_copied_where_there_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let script = script(folder.path(), false);
    let (source, out) = (script.sources.join("k.tegula"), script.out.join("k.tegula"));
    // Neither a compiler nor a bundle.
    let error = script.bundle("k.tegula", &plan(128), None).unwrap_err().to_string();
    assert!(error.contains("k.tegula") && !out.exists(), "{error}");
    // A compiler; what it made is checked in.
    let compiler = Scribe::default();
    script.bundle("k.tegula", &plan(128), Some(&compiler)).unwrap();
    assert!(compiler.count.load(Ordering::SeqCst) == 2 && !source.exists(), "usual facts, and none");
    let compiled = read(&out);
    Script { update: true, ..script.clone() }.bundle("k.tegula", &plan(128), Some(&compiler)).unwrap();
    assert!(read(&source) == compiled);
    // No compiler: the same bytes.
    std::fs::remove_file(&out).unwrap();
    script.bundle("k.tegula", &plan(128), None).unwrap();
    assert!(read(&out) == compiled);
    // A compiler again: nothing is left to do for it.
    let compiler = Scribe::default();
    script.bundle("k.tegula", &plan(128), Some(&compiler)).unwrap();
    assert!(compiler.count.load(Ordering::SeqCst) == 0 && read(&out) == compiled);
}

#[test]
fn what_was_built_is_what_launches_find() {
    let folder = tempfile::tempdir().unwrap();
    let script = script(folder.path(), false);
    script.bundle("k.tegula", &plan(128), Some(&Scribe::default())).unwrap();
    let device = Device::testing();
    device.add_bundle(Bundle::open(script.out.join("k.tegula")).unwrap());
    let x = device.zeros::<f32>(&[1000]).unwrap();
    let mut y = device.zeros::<f32>(&[1000]).unwrap();
    scale::<f32>(&x, &mut y, 2.0, 128).grid(8).launch(&device.stream()).unwrap();
    let other = scale::<f32>(&x, &mut y, 2.0, 256).grid(4).launch(&device.stream()).unwrap_err().to_string();
    assert!(
        other.contains("k.tegula") && other.contains("of other element types, meta-parameters"),
        "{other}"
    );
}

#[test]
fn a_bundle_that_is_out_of_date_or_damaged_fails_the_build() {
    let folder = tempfile::tempdir().unwrap();
    let script = script(folder.path(), true);
    script.bundle("k.tegula", &plan(128), Some(&Scribe::default())).unwrap();
    let out = script.out.join("k.tegula");
    std::fs::remove_file(&out).unwrap();
    let changed = script.bundle("k.tegula", &plan(256), None).unwrap_err().to_string();
    assert!(
        changed.contains("out of date")
            && changed.contains("scale (f32) 256 for sm_90a")
            && changed.contains("TEGULA_UPDATE_BUNDLES"),
        "{changed}"
    );
    let more = plan(128).target("sm_80", CodeKind::Ptx);
    let more = script.bundle("k.tegula", &more, None).unwrap_err().to_string();
    assert!(more.contains("scale (f32) 128 for sm_80") && !more.contains("sm_90a"), "{more}");
    let source = script.sources.join("k.tegula");
    let mut bytes = read(&source);
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&source, bytes).unwrap();
    let damaged = script.bundle("k.tegula", &plan(128), None).unwrap_err().to_string();
    assert!(damaged.contains("damaged") && !out.exists(), "{damaged}");
    let refused = Plan::new().target("sm_90a", CodeKind::Cubin).kernel("refused", "", 0, || {
        scale::<f32>::stage(128).map(|mut kernel| {
            kernel.name = "refused".to_owned();
            kernel
        })
    });
    let refused = script.bundle("k.tegula", &refused, Some(&Scribe::default())).unwrap_err().to_string();
    assert!(refused.contains("kernel refused () 0 was refused for sm_90a: no"), "{refused}");
}
