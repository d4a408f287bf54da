//! Is what is launched what is precompiled? Launches of the kernel library on an H200 that is not there, with shapes of models that are served, but mostly others than those by which its bundle is
//! planned: those stand for all between which choices do not change.

use std::error::Error;
use std::sync::OnceLock;

use tegula::ir::kernel::Kernel;
use tegula::prelude::{Element, bf16, f8e4m3};
use tegula::runtime::{self, Device, Tensor};
use tegula_kernels::attention::{
    DecodeOptions, DecodeWorkspace, ForwardOptions, Inputs, Outputs, decode, forward, kv_append,
};
use tegula_kernels::gemm::config::served as layers;
use tegula_kernels::{GemmOptions, add_rms_norm, gemm, residual_add, rms_norm, swiglu};
use tegula_precompile::{Coverage, Manifest, h200, launched};

#[path = "../../kernel-lib/examples/deploy.rs"]
#[allow(dead_code, reason = "a program by itself, of which this calls a part")]
mod deploy;

type Done = Result<(), Box<dyn Error>>;

/// What the library's bundle makes of launches.
fn coverage(run: impl FnOnce(&Device) -> Done) -> Coverage {
    let kernels: Vec<Kernel> = launched(&h200(), run).unwrap();
    assert!(!kernels.is_empty());
    static REGISTRY: OnceLock<Vec<tegula_kernels::registry::Entry>> = OnceLock::new();
    let registry = REGISTRY.get_or_init(tegula_kernels::registry::all_kernels);
    let manifest = Manifest::parse(include_str!("../../kernel-lib/bundle.toml")).unwrap();
    manifest.plan(registry).unwrap().coverage(&kernels, "sm_90a").unwrap()
}

fn tensor<T: Element>(device: &Device, shape: &[usize]) -> Result<Tensor<T>, runtime::Error> {
    device.alloc(shape)
}

/// Products of all layers and numbers of rows, of bf16 and FP8.
fn products(device: &Device) -> Done {
    for [m, n, k] in layers() {
        let stream = device.stream();
        let (x, w, bias) = (
            tensor::<bf16>(device, &[m, k])?,
            tensor::<bf16>(device, &[n, k])?,
            tensor::<bf16>(device, &[n])?,
        );
        let (mut y, mut z) = (tensor::<bf16>(device, &[m, n])?, tensor::<f32>(device, &[m, n])?);
        gemm(&x, &w, &mut y, GemmOptions::new(), &stream)?;
        gemm(&x, &w, &mut y, GemmOptions::new().bias(&bias), &stream)?;
        gemm(&x, &w, &mut z, GemmOptions::new(), &stream)?;
        let (x, w) = (tensor::<f8e4m3>(device, &[m, k])?, tensor::<f8e4m3>(device, &[n, k])?);
        let (xs, ws) = (tensor::<f32>(device, &[m])?, tensor::<f32>(device, &[n])?);
        gemm(&x, &w, &mut y, GemmOptions::new().x_scale(&xs).w_scale(&ws), &stream)?;
    }
    Ok(())
}

/// What works along rows, of any number of them.
fn rows(device: &Device) -> Done {
    for (rows, cols) in
        [1, 3, 7, 33, 100, 257, 5000].iter().flat_map(|&m| [576, 3584, 5120, 12288].map(|n| (m, n)))
    {
        let own = || tensor::<bf16>(device, &[rows, cols]);
        let (x, mut y, weight, stream) = (own()?, own()?, tensor::<bf16>(device, &[cols])?, device.stream());
        rms_norm(&x, &weight, &mut y, 1e-5, &stream)?;
        add_rms_norm(&x, &mut own()?, &weight, &mut y, 1e-5, &stream)?;
        residual_add(&x, &mut y, &stream)?;
        swiglu(&x, &own()?, &mut y, &stream)?;
    }
    Ok(())
}

/// Prefill and decoding of Llama 3, Qwen 2.5 and gpt-oss, with numbers of queries, keys and sequences as they come.
fn attention(device: &Device) -> Done {
    for [heads, kv_heads, dim] in [[32, 8, 128], [64, 8, 128], [28, 4, 128], [40, 8, 128], [64, 8, 64]] {
        for tokens in [65, 100, 700, 3000] {
            let own = |heads| tensor::<bf16>(device, &[1, tokens, heads, dim]);
            let (q, k, v, mut out) = (own(heads)?, own(kv_heads)?, own(kv_heads)?, own(heads)?);
            let causal = ForwardOptions { causal: true, ..ForwardOptions::default() };
            forward(Inputs::new(&q, &k, &v), Outputs::new(&mut out), &causal, &device.stream())?;
        }
        for (batch, queries, capacity) in [1, 3, 40, 200]
            .iter()
            .flat_map(|&b| [1, 2, 3, 5, 8].map(|q| (b, q)))
            .flat_map(|(b, q)| [1500, 40_000].map(|c| (b, q, c)))
        {
            let (q, mut out) = (
                tensor::<bf16>(device, &[batch, queries, heads, dim])?,
                tensor::<bf16>(device, &[batch, queries, heads, dim])?,
            );
            let own = || tensor::<bf16>(device, &[batch, capacity, kv_heads, dim]);
            let (mut k, mut v) = (own()?, own()?);
            let (new, numbers) =
                (tensor::<bf16>(device, &[batch, queries, kv_heads, dim])?, tensor::<i32>(device, &[batch])?);
            kv_append(&new, &new, &numbers, &mut k, &mut v, &device.stream())?;
            let (inputs, outputs, mut workspace) =
                (Inputs::new(&q, &k, &v), Outputs::new(&mut out), DecodeWorkspace::new());
            decode(inputs, &numbers, outputs, &DecodeOptions::default(), &mut workspace, &device.stream())?;
        }
    }
    Ok(())
}

#[test]
fn the_librarys_bundle_has_what_served_models_launch() {
    let coverage = coverage(|device| {
        products(device)?;
        rows(device)?;
        attention(device)
    });
    let Coverage { missing, unused, used } = coverage;
    println!("{used} variants are launched here, {} are not:\n{}", unused.len(), unused.join("\n"));
    assert!(missing.is_empty(), "{} of them: {}", missing.len(), missing.join("\n"));
    assert!(used > 50, "{used}");
}

/// What it does not have is said: neither this product, whose K is odd, nor attention of heads that no model has.
#[test]
fn what_is_not_in_the_plan_is_missing() {
    let launches = |device: &Device| -> Done {
        let (x, w, mut y) = (
            tensor::<f32>(device, &[7, 33])?,
            tensor::<f32>(device, &[9, 33])?,
            tensor::<f32>(device, &[7, 9])?,
        );
        gemm(&x, &w, &mut y, GemmOptions::<f32>::new(), &device.stream())?;
        deploy::everything(&mut deploy::Report::of_launches(), device, false)
    };
    let kernels = launched(&h200(), launches).unwrap();
    let plan = tegula_precompile::Plan::new().target("sm_90a", tegula_precompile::CodeKind::Cubin);
    let plan = plan.launched("deploy", "bf16", "launch", &kernels[1..]);
    let coverage = plan.coverage(&kernels, "sm_90a").unwrap();
    assert!(coverage.missing.len() == 1 && coverage.missing[0].contains("f32"), "{:?}", coverage.missing);
    // Each variant is for some launch, or for those of which less is known.
    assert!(
        coverage.used >= 6
            && coverage.unused.iter().all(|v| v.starts_with("None") || v.starts_with("Mapped"))
    );
    assert_eq!(plan.coverage(&kernels[1..], "sm_80").unwrap().used, 0);
}
