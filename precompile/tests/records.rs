//! Manifests with tuning records: what was tuned is what is compiled. One test, since a process installs records once.

use std::path::Path;

use tegula::prelude::*;
use tegula::runtime::Tensor;
use tegula_bundle::SourceHash;
use tegula_kernels::gemm::config::{Config, Form, Problem};
use tegula_kernels::gemm::{Class, Workspace, gemm_in};
use tegula_kernels::{DeviceClass, GemmOptions};
use tegula_precompile::{Manifest, h200, known, launched};
use tegula_records::library::Library;
use tegula_records::library::gemm::Gemm;
use tegula_records::{Folder, Record, RecordFile, Shape, bucket};

const SHAPE: [usize; 3] = [48, 4096, 4096];

/// A config that is legal for the shape, and not what is chosen for it.
fn another() -> Config {
    let problem = Problem { form: Form::Single, ..Problem::dense(SHAPE, Class::Half) };
    let chosen = Config::choose(&problem, true, DeviceClass::H200);
    let space = Config::space(Form::Single, Class::Half);
    let other = |c: &Config| *c != chosen && c.cluster == 1 && c.check(&problem, DeviceClass::H200).is_ok();
    space.into_iter().find(other).unwrap()
}

fn record(config: Config) -> Record {
    let [m, n, k] = SHAPE.map(|extent| extent as u64);
    let shape = Shape::of(&["m", "n", "k", "bits"], &[m, n, k, 16]);
    Record {
        valid: bucket(Gemm::DIMS, &shape),
        config: Gemm::to_config(&config, &shape),
        shape,
        source: Gemm::source(),
        space: Gemm::SPACE,
        method: "events".into(),
        time_us: 10.0,
        default_us: 12.0,
        speedup: 1.2,
        tried: 9,
        stale: None,
        line: 0,
    }
}

fn write(folder: &Path, device: &str, records: Vec<Record>) {
    Folder::new(folder).merge(RecordFile { records, ..RecordFile::new("gemm", device) }).unwrap();
}

/// What a product of these rows launches.
fn product(rows: usize) -> Vec<SourceHash> {
    let kernels = launched::<Box<dyn std::error::Error>>(&h200(), |device| {
        let [_, n, k] = SHAPE;
        let (x, w): (Tensor<bf16>, Tensor<bf16>) = (device.alloc(&[rows, k])?, device.alloc(&[n, k])?);
        let mut y = device.alloc::<bf16>(&[rows, n])?;
        let mut workspace = Workspace::new();
        Ok(gemm_in(&x, &w, &mut y, GemmOptions::new(), &mut workspace, &device.stream())?)
    });
    kernels.unwrap().iter().map(SourceHash::of).collect()
}

#[test]
fn what_was_tuned_is_compiled() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let registry = tegula_kernels::registry::all_kernels();
    let refused = |records: &str| {
        let path = at("k.toml");
        let text = format!("output = \"k.tegula\"\n[targets]\nsm_90a = \"cubin\"\n[records]\n{records}\n");
        std::fs::write(&path, text).unwrap();
        Manifest::read(&path)
            .and_then(|manifest| manifest.plan(&registry).map(|_| ()))
            .unwrap_err()
            .to_string()
    };
    let (good, bad) = (at("good"), at("bad"));
    write(&good, "NVIDIA H200", vec![record(another())]);
    write(&bad, "NVIDIA H200", vec![record(Config { num_stages: 99, ..another() })]);
    write(&at("foreign"), "NVIDIA B200", vec![record(another())]);
    let stale = Record { source: "0123456789abcdef".into(), ..record(another()) };
    write(&at("stale"), "NVIDIA H200", vec![stale.clone()]);
    // A record of an older kernel, of a shape for which nothing is compiled.
    let shape = Shape::of(&["m", "n", "k", "bits"], &[1 << 40, 8192, 4096, 16]);
    let older = Record { valid: bucket(Gemm::DIMS, &shape), shape, ..stale };
    write(&good, "NVIDIA H200", vec![older]);

    // What is wrong is said, and nothing is installed.
    let before = product(SHAPE[0]);
    for (records, expected) in [
        ("folder = \"absent\"", "has none that count for a device \"NVIDIA H200\""),
        ("folder = \"foreign\"", "has none that count for a device \"NVIDIA H200\""),
        ("folder = \"stale\"", "1 of kernels that have changed since"),
        ("folder = \"good\"\nkernels = []", "`kernels` is empty"),
        ("folder = \"good\"\nkernels = [\"rms_norm\"]", "has none of kernel \"rms_norm\""),
        ("folder = \"bad\"", "gemm-nvidia-h200.toml:"),
        ("folder = \"good\"\nkernel = \"gemm\"", "unknown field `kernel`"),
    ] {
        let said = refused(records);
        assert!(said.contains(expected), "{records}: {said}");
    }
    assert_eq!(product(SHAPE[0]), before);

    // The same launch takes the tuned config now, in the whole bucket, and the plan has it.
    std::fs::write(
        at("k.toml"),
        "output = \"k.tegula\"\n[targets]\nsm_90a = \"cubin\"\n[records]\nfolder = \"good\"\nkernels = [\"gemm\"]\n",
    )
    .unwrap();
    let manifest = Manifest::read(&at("k.toml")).unwrap();
    assert_eq!(manifest.output, at("k.tegula"));
    let plan = manifest.plan(&registry).unwrap();
    assert!(plan.notes()[0].starts_with("1 records of "), "{:?}", plan.notes());
    let after = product(SHAPE[0]);
    assert_ne!(after, before);
    assert_eq!([33, 64].map(product), [after.clone(), after.clone()]);
    assert_ne!(product(65), after);
    assert!(plan.sources().unwrap().contains(&after[0]));

    let again = refused("folder = \"good\"");
    assert!(again.contains("has installed some before"), "{again}");
    let unknown = known("GeForce 256").unwrap_err().to_string();
    assert!(unknown.contains("NVIDIA H200") && unknown.contains("GeForce 256"), "{unknown}");
}
