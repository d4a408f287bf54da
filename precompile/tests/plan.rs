//! Plans run with a compiler that writes down what it is given: what is compiled, what is taken from an earlier bundle, and that launches of the kernel library find what the
//! registry's kernels were compiled to.

mod scribe;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tegula::ir::kernel::Kernel;
use tegula::ir::types::{Elem, Type};
use tegula::prelude::bf16;
use tegula::runtime::bundle::{SourceHash, facts::imply};
use tegula::runtime::{Bundle, Device};
use tegula_precompile::{CodeKind, Error, FactSet, Manifest, Outcome, Plan, table};

use scribe::Scribe;

fn kernel(name: &str, warps: u32) -> Result<Kernel, String> {
    let mut kernel = Kernel::new(name);
    kernel.hints.num_warps = warps;
    kernel.add_param("x", Type::view(Elem::F32, 2, true));
    Ok(kernel)
}

fn plan() -> Plan<'static> {
    Plan::new()
        .target("sm_90a", CodeKind::Cubin)
        .target("sm_80", CodeKind::Ptx)
        .kernel("a", "f32", 4, || kernel("a", 4))
        .kernel("b", "f32", 4, || kernel("b", 4))
        // Two configs of which one kernel comes.
        .kernel("b", "f32", 8, || kernel("b", 4))
}

fn run(plan: &Plan<'_>, compiler: &Scribe, previous: Option<&[u8]>) -> Outcome {
    let previous = previous.map(|bytes| Bundle::from_bytes("previous", bytes.to_vec()).unwrap());
    plan.run(compiler, previous.as_ref(), &|_| ()).unwrap()
}

#[test]
fn each_kernel_target_and_set_of_facts_is_compiled_once() {
    let compiler = Scribe::default();
    let outcome = run(&plan(), &compiler, None);
    assert_eq!(compiler.count.load(Ordering::SeqCst), 2 * 2 * 2);
    let bundle = Bundle::from_bytes("b", outcome.bundle.clone()).unwrap();
    bundle.verify().unwrap();
    assert_eq!(bundle.len(), 2);
    for record in bundle.records() {
        let record = record.unwrap();
        assert_eq!(record.labels.len(), if record.labels[0].name == "a" { 1 } else { 2 });
        assert_eq!(record.variants.len(), 2, "usual facts, and none");
        for variant in &record.variants {
            let kinds: Vec<_> = variant
                .images
                .iter()
                .map(|i| (i.target.as_str(), i.cubin.is_some(), i.ptx.is_some()))
                .collect();
            assert_eq!(kinds, [("sm_80", false, true), ("sm_90a", true, false)]);
        }
    }
    let text = table(&outcome);
    assert!(text.contains("8 variants (0 taken from the previous bundle, 0 refused)"), "{text}");
}

#[test]
fn the_same_plan_gives_the_same_bytes_on_any_number_of_threads() {
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let many = rayon::ThreadPoolBuilder::new().num_threads(7).build().unwrap();
    let bytes = |pool: &rayon::ThreadPool| pool.install(|| run(&plan(), &Scribe::default(), None).bundle);
    assert!(bytes(&one) == bytes(&many));
}

#[test]
fn what_did_not_change_is_not_compiled() {
    let first = run(&plan(), &Scribe::default(), None).bundle;
    let compiler = Scribe::default();
    let again = run(&plan(), &compiler, Some(&first));
    assert_eq!((compiler.count.load(Ordering::SeqCst), again.reused()), (0, 8));
    assert!(again.bundle == first);
    // One kernel more: only that one.
    let compiler = Scribe::default();
    let more = plan().kernel("c", "f32", 1, || kernel("c", 1));
    let more = run(&more, &compiler, Some(&first));
    assert_eq!((compiler.count.load(Ordering::SeqCst), more.reused(), more.rows.len()), (4, 8, 12));
    // Another version of the compiler, or other code of a target: again.
    let compiler = Scribe { version: "2", ..Scribe::default() };
    run(&plan(), &compiler, Some(&first));
    assert_eq!(compiler.count.load(Ordering::SeqCst), 8);
    let compiler = Scribe::default();
    let other = Plan::new().target("sm_90a", CodeKind::Both).kernel("a", "f32", 4, || kernel("a", 4));
    run(&other, &compiler, Some(&first));
    assert_eq!(compiler.count.load(Ordering::SeqCst), 2);
}

#[test]
fn refusals_and_faults() {
    let refused = plan().kernel("refused", "f32", 1, || kernel("refused", 1));
    let outcome = run(&refused, &Scribe::default(), None);
    assert_eq!((outcome.rows.len(), outcome.failures.len()), (8, 4));
    assert_eq!(
        (outcome.failures[0].label.name.as_str(), outcome.failures[0].message.as_str()),
        ("refused", "no")
    );
    let faulty = plan().kernel("faulty", "f32", 1, || Err::<Kernel, _>("not so"));
    let error = faulty.run(&Scribe::default(), None, &|_| ()).unwrap_err().to_string();
    assert!(error.contains("faulty (f32) 1") && error.contains("not so"), "{error}");
}

#[test]
fn manifests_select_from_the_registry() {
    let registry = tegula_kernels::registry::all_kernels();
    let count = |kernels: &str| {
        let text = format!("output = \"k.tegula\"\n[targets]\nsm_90a = \"cubin\"\n{kernels}");
        Ok::<_, Error>(Manifest::parse(&text)?.plan(&registry)?.len())
    };
    let all = count("[[kernels]]\nname = \"*\"").unwrap();
    let norms = count("[[kernels]]\nname = \"rms_norm\"").unwrap();
    let some =
        count("[[kernels]]\nname = \"rms_norm\"\ntypes = [\"bf16, bf16\"]\nconfigs = [\"num_warps: 8\"]")
            .unwrap();
    let bf16 = count("[[kernels]]\nname = \"rms_norm\"\ntypes = [\"bf16*\"]").unwrap();
    assert!(some < bf16 && bf16 < norms, "{some} {bf16} {norms}");
    assert!(0 < some && some < norms && norms < all, "{some} {norms} {all}");
    let two =
        |parts: &str| count(&format!("[[kernels]]\nname = \"rms_norm\"\nconfigs = [\"{parts}\"]")).unwrap();
    assert_eq!(
        two("rows: 1,*num_warps: 8"),
        count("[[kernels]]\nname = \"rms_norm\"\nconfigs = [\"num_warps: 8\"]").unwrap()
    );
    assert!(two("block: 4096*num_warps: 8") < two("num_warps: 8*") + 1);
    let begin = count("[[kernels]]\nname = \"rms*\"").unwrap();
    assert!(begin == norms && norms < all, "{begin} {norms} {all}");
    let served = count("[[served]]\nname = \"rms*\"").unwrap();
    let some = count("[[served]]\nname = \"rms*\"\ntypes = [\"bf16, bf16\"]").unwrap();
    assert!(0 < some && some < served && served < all, "{some} {served} {all}");
    let error = |text: &str| count(text).unwrap_err().to_string();
    assert!(
        error("[[kernels]]\nname = \"*\"\ntargets = [\"sm_70\"]").contains("\"sm_70\" is none of"),
        "a target that the manifest does not have"
    );
    assert!(error("[[kernels]]\nname = \"rmsnorm\"").contains("selects nothing; kernels are"));
    assert!(
        error("[[served]]\nname = \"rmsnorm\"").contains("selects nothing; functions are add_rms_norm, ")
    );
    assert!(error("[[served]]\nname = \"*\"\ntargets = [\"sm_70\"]").contains("\"sm_70\" is none of"));
    for list in ["types", "configs", "targets", "facts"] {
        let said = error(&format!("[[kernels]]\nname = \"*\"\n{list} = []"));
        assert!(said.contains(&format!("a list `{list}` is empty")), "{said}");
    }
    assert!(error("[[served]]\nname = \"*\"\ntargets = []").contains("a list `targets` is empty"));
    assert!(error("").contains("nothing is asked for"));
    assert!(error("[[kernels]]\nname = \"*\"\ntype = 3").contains("unknown field `type`"));
}

/// Launches of the kernel library on a GPU of which nothing is there but its name: what they ask the compiler for must be a kernel of the registry, and the usual
/// facts must hold for usual tensors.
#[test]
fn launches_find_what_the_registry_lists() {
    let compiler = Arc::new(Scribe::default());
    let device = Device::testing();
    device.set_compiler(compiler.clone());
    let stream = device.stream();
    let tensor = |shape: &[usize]| device.zeros::<bf16>(shape).unwrap();
    // Numbers of rows as they come.
    for (rows, cols) in [(1, 576), (7, 4096), (33, 1536), (256, 8192)] {
        let (x, weight, mut y) = (tensor(&[rows, cols]), tensor(&[cols]), tensor(&[rows, cols]));
        tegula_kernels::rms_norm::rms_norm::<bf16, bf16>(&x, &weight, &mut y, 1e-6, &stream).unwrap();
    }
    let launched = compiler.kernels.lock().unwrap();
    assert!(!launched.is_empty());
    let registry = tegula_kernels::registry::all_kernels();
    let staged =
        |name: &'static str| registry.iter().filter(move |e| e.name == name).flat_map(|e| &e.variants);
    let known: Vec<(SourceHash, Kernel)> = staged("rms_norm")
        .filter(|variant| !variant.host_only)
        .map(|variant| variant.stage().unwrap())
        .map(|kernel| (SourceHash::of(&kernel), kernel))
        .collect();
    for kernel in launched.iter() {
        let source = SourceHash::of(kernel);
        let (_, staged) = known
            .iter()
            .find(|(hash, _)| *hash == source)
            .unwrap_or_else(|| panic!("not in the registry:\n{kernel}"));
        let facts = |kernel: &Kernel| kernel.params.iter().map(|p| p.facts.clone()).collect::<Vec<_>>();
        let (of_launch, usual) = (facts(kernel), facts(&FactSet::Usual.apply(staged.clone())));
        assert!(imply(&of_launch, &usual), "{of_launch:#?}\n{usual:#?}");
    }
}
