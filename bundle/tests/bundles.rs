//! Bundles written, read back, merged, damaged and lied in. Code is bytes that no GPU sees, so nothing is needed but this crate.

use std::ops::Range;
#[cfg(unix)]
use std::path::Path;

use tegula_bundle::format::HEADER;
use tegula_bundle::{
    Builder, Bundle, Error, Fault, Found, Label, SourceHash, Wanted, replaceable, without_locations,
    write_file,
};
use tegula_ir::artifact::{AbiSlot, CompiledKernel, ResourceReport};
use tegula_ir::kernel::ParamFacts;
use tegula_ir::{Elem, Kernel, Type};

fn label(name: &str, config: &str) -> Label {
    Label { name: name.to_owned(), types: "f32".to_owned(), config: config.to_owned() }
}

fn kernel(name: &str) -> Kernel {
    let mut kernel = Kernel::new(name);
    kernel.add_param("x", Type::view(Elem::F32, 1, false));
    kernel.add_param("y", Type::view(Elem::F32, 1, true));
    kernel.add_param("by", Type::scalar(Elem::F32));
    kernel
}

fn aligned(mut kernel: Kernel) -> Kernel {
    for param in &mut kernel.params[..2] {
        let divisible = smallvec::smallvec![16];
        param.facts = ParamFacts {
            align: 16,
            dim_divisible: divisible,
            unit_stride: Some(0),
            small: true,
            ..ParamFacts::default()
        };
    }
    kernel
}

/// `seed` makes code that nothing else has.
fn code(seed: u64, target: &str, cubin: bool) -> CompiledKernel {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut noise = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    CompiledKernel {
        entry: "k".to_owned(),
        target: target.to_owned(),
        ptx: format!("// {seed}\n.target {target}\n{}", "add.f32 %f1, %f2, %f3;\n".repeat(100)),
        cubin: cubin.then(|| (0..2000).map(|_| noise()).collect()),
        threads: 128,
        shared_bytes: 1024,
        cluster: 1,
        dependent_launch: false,
        abi: vec![
            AbiSlot::Address { param: 0 },
            AbiSlot::Address { param: 1 },
            AbiSlot::Dim { param: 1, axis: 0, bits: 64 },
            AbiSlot::Scalar { param: 2, elem: Elem::F32 },
        ],
        report: Some(ResourceReport { registers: 32, ..ResourceReport::default() }),
    }
}

/// What goes into the bundle of most tests.
fn additions() -> Vec<(Label, Kernel, CompiledKernel)> {
    vec![
        (label("scale", "a"), kernel("scale"), code(1, "sm_80", true)),
        (label("scale", "a"), kernel("scale"), code(2, "sm_90a", true)),
        (label("scale", "a"), aligned(kernel("scale")), code(3, "sm_80", true)),
        (label("scale", "a"), aligned(kernel("scale")), code(4, "sm_90a", true)),
        // The same kernel by another name.
        (label("scale", "b"), aligned(kernel("scale")), code(4, "sm_90a", true)),
        (label("strict", ""), aligned(kernel("strict")), code(5, "sm_80", false)),
        (label("old", ""), kernel("old"), code(6, "sm_86", true)),
    ]
}

fn builder(additions: &[(Label, Kernel, CompiledKernel)]) -> Builder {
    let mut builder = Builder::new();
    builder.tool("compiler", "1");
    for (label, kernel, code) in additions {
        builder.add(label.clone(), kernel, "1", code.clone()).unwrap();
    }
    builder
}

fn sample() -> Vec<u8> {
    builder(&additions()).finish()
}

fn open(bytes: &[u8]) -> Result<Bundle, Error> {
    Bundle::from_bytes("b.tegula", bytes.to_vec())
}

fn facts(kernel: &Kernel) -> Vec<ParamFacts> {
    kernel.params.iter().map(|param| param.facts.clone()).collect()
}

fn find(bundle: &Bundle, kernel: &Kernel, gpu: &str, wanted: Wanted) -> Result<Found, Error> {
    bundle.code(&SourceHash::of(kernel), &facts(kernel), gpu, wanted)
}

/// The PTX or the cubin that was found, by its seed.
fn seed(found: Found) -> u64 {
    let Found::Kernel(kernel) = found else { panic!("{found:?}") };
    let all = additions();
    let same = |code: &CompiledKernel| {
        (kernel.cubin.is_some() && kernel.cubin == code.cubin) || kernel.ptx == code.ptx
    };
    let index = all.iter().position(|(_, _, code)| same(code)).expect("code that was never added");
    [1, 2, 3, 4, 4, 5, 6][index]
}

#[test]
fn what_is_written_is_read() {
    let bundle = open(&sample()).unwrap();
    bundle.verify().unwrap();
    assert_eq!((bundle.len(), bundle.tools()), (3, &[("compiler".to_owned(), "1".to_owned())][..]));
    let record = bundle.find_label(&label("scale", "b")).unwrap().unwrap();
    assert_eq!(record.labels, [label("scale", "a"), label("scale", "b")]);
    assert_eq!(
        record.params.iter().map(|p| p.kind.to_string()).collect::<Vec<_>>(),
        ["view<f32, 1>", "mut view<f32, 1>", "f32"]
    );
    for (label, kernel, code) in additions() {
        let record = bundle.find_label(&label).unwrap().unwrap();
        assert_eq!(record.source, SourceHash::of(&kernel));
        let variant = record.variants.iter().find(|v| v.facts == facts(&kernel)).unwrap();
        let image = variant.images.iter().find(|image| image.target == code.target).unwrap();
        assert_eq!(bundle.complete(image).unwrap(), code);
    }
    assert_eq!(bundle.find_label(&label("scale", "c")).unwrap(), None);
}

#[test]
fn labels_are_listed_and_found() {
    let bundle = open(&sample()).unwrap();
    let listed: Vec<_> =
        (0..bundle.label_count().unwrap()).map(|n| bundle.labelled(n).unwrap().unwrap()).collect();
    let expected: Vec<_> = bundle
        .records()
        .flat_map(|record| {
            let record = record.unwrap();
            record.labels.clone().into_iter().map(move |label| (label, record.clone()))
        })
        .collect();
    assert_eq!(listed, expected);
    assert_eq!(listed.len(), 4, "scale is called a and b");
    for number in [4, 5, usize::MAX] {
        assert_eq!(bundle.labelled(number).unwrap(), None);
    }
    for (label, record) in listed {
        assert_eq!(bundle.find_label(&label).unwrap(), Some(record));
        // Each field counts, and where one ends.
        let Label { name, types, config } = label;
        for other in [
            Label { name: format!("{name}f"), types: types[1..].to_owned(), config: config.clone() },
            Label { name: types.clone(), types: name.clone(), config: config.clone() },
            Label { name, types, config: format!("{config} ") },
        ] {
            assert_eq!(bundle.find_label(&other).unwrap(), None, "{other}");
        }
    }
    let empty = open(&Builder::new().finish()).unwrap();
    assert_eq!((empty.label_count().unwrap(), empty.labelled(0).unwrap()), (0, None));
    assert_eq!(empty.find_label(&label("scale", "a")).unwrap(), None);
}

/// One name of two kernels, as of a bundle that was merged of an old and a new one.
#[test]
fn a_label_of_several_kernels_is_refused() {
    let mut changed = kernel("scale");
    changed.hints.num_warps = 8;
    let new = builder(&[(label("scale", "a"), changed.clone(), code(7, "sm_90a", true))]).finish();
    let mut merged = Builder::new();
    for bytes in [sample(), new] {
        merged.merge(&open(&bytes).unwrap()).unwrap();
    }
    let bundle = open(&merged.finish()).unwrap();
    let mut sources = vec![SourceHash::of(&kernel("scale")), SourceHash::of(&changed)];
    sources.sort();
    let error = bundle.find_label(&label("scale", "a")).unwrap_err();
    assert_eq!(error.fault, Fault::Ambiguous { label: label("scale", "a"), sources: sources.clone() });
    let words = error.to_string();
    let asked = [
        "b.tegula",
        "2 different kernels",
        "scale (f32) a",
        &sources[0].short(),
        &sources[1].short(),
        "merge again",
    ];
    assert!(asked.iter().all(|word| words.contains(word)), "{words}");
    // The old one's other name is its own; and both can be had by their hashes, and from the list.
    assert_eq!(
        bundle.find_label(&label("scale", "b")).unwrap().unwrap().source,
        SourceHash::of(&kernel("scale"))
    );
    let all = (0..bundle.label_count().unwrap()).map(|n| bundle.labelled(n).unwrap().unwrap());
    let same: Vec<SourceHash> =
        all.filter(|(l, _)| *l == label("scale", "a")).map(|(_, record)| record.source).collect();
    assert_eq!(same, sources);
}

/// Of other kernels no more than the labels is read: their records may make no sense.
#[test]
fn a_label_is_found_without_decoding_other_kernels() {
    let good = sample();
    let manifest = u64::from_le_bytes(good[24..32].try_into().unwrap()) as usize;
    // The entry's name, behind the labels, the parameters and the facts of each record, made something that is no text.
    let entry = [&1u64.to_le_bytes()[..], b"k"].concat();
    let places: Vec<usize> =
        (HEADER..HEADER + manifest - entry.len()).filter(|&at| good[at..].starts_with(&entry)).collect();
    let label_of = |record: &tegula_bundle::Record| record.labels[0].clone();
    let labels: Vec<Label> =
        open(&good).unwrap().records().map(|record| label_of(&record.unwrap())).collect();
    let mut found = vec![0; labels.len()];
    for &at in &places {
        let mut bytes = good.clone();
        bytes[at + 8] = 0xff;
        let bundle = open(&resealed(bytes)).unwrap();
        let answers = labels.iter().map(|label| bundle.find_label(label));
        let wrong: Vec<usize> =
            answers.enumerate().filter_map(|(index, answer)| answer.is_err().then_some(index)).collect();
        assert_eq!(wrong.len(), 1, "only the kernel that is damaged cannot be had");
        found[wrong[0]] += 1;
    }
    assert_eq!(found.iter().sum::<usize>(), 6, "each image but for the one that two names share: {found:?}");
}

#[test]
fn the_strongest_variant_whose_facts_hold_runs() {
    let bundle = open(&sample()).unwrap();
    let (plain, usual) = (kernel("scale"), aligned(kernel("scale")));
    let machine = |kernel: &Kernel, gpu: &str| seed(find(&bundle, kernel, gpu, Wanted::Machine).unwrap());
    assert_eq!([machine(&plain, "sm_80"), machine(&plain, "sm_90a")], [1, 2]);
    assert_eq!([machine(&usual, "sm_80"), machine(&usual, "sm_90a")], [3, 4]);
    let mut shifted = usual.clone();
    shifted.params[1].facts.align = 4;
    assert_eq!(machine(&shifted, "sm_80"), 1, "one fact less, and the fallback runs");
    // A cubin of a lower minor version runs; PTX is for higher versions, where the driver compiles it.
    assert_eq!(machine(&usual, "sm_89"), 3);
    let Found::Kernel(found) = find(&bundle, &usual, "sm_120", Wanted::Machine).unwrap() else {
        panic!("PTX of sm_80")
    };
    assert!(found.cubin.is_none() && found.ptx.contains(".target sm_80"));
    // An emulated device gets the text and no cubin.
    let Found::Kernel(found) = find(&bundle, &usual, "sm_90a", Wanted::Ptx).unwrap() else { panic!("PTX") };
    assert!(found.cubin.is_none() && found.ptx.contains(".target sm_90a"));
}

#[test]
fn what_is_not_there_is_said() {
    let bundle = open(&sample()).unwrap();
    let machine = |kernel: &Kernel, gpu: &str| find(&bundle, kernel, gpu, Wanted::Machine).unwrap();
    assert_eq!(machine(&kernel("absent"), "sm_80"), Found::Nothing);
    let mut changed = kernel("scale");
    changed.hints.num_warps = 8;
    assert_eq!(machine(&changed, "sm_80"), Found::Nothing, "another kernel of the same name");
    assert_eq!(machine(&kernel("old"), "sm_80"), Found::OtherTargets(vec!["sm_86".to_owned()]));
    assert_eq!(machine(&kernel("strict"), "sm_80"), Found::OtherFacts);
}

#[test]
fn identity_is_of_what_the_kernel_does() {
    let plain = kernel("scale");
    assert_eq!(SourceHash::of(&plain), SourceHash::of(&aligned(kernel("scale"))));
    assert_eq!(SourceHash::of(&plain), SourceHash::of(&without_locations(kernel("scale"))));
    assert_ne!(SourceHash::of(&plain), SourceHash::of(&kernel("other")));
    let mut wider = Kernel::new("scale");
    wider.add_param("x", Type::view(Elem::F64, 1, false));
    assert_ne!(SourceHash::of(&plain), SourceHash::of(&wider));
}

#[test]
fn bytes_do_not_depend_on_order() {
    let mut all = additions();
    let expected = sample();
    for turn in 0..all.len() {
        all.rotate_left(1);
        all.swap(0, turn);
        assert!(builder(&all).finish() == expected, "turn {turn}");
    }
    // Nor on the way: a bundle that is taken apart and put together is the same.
    let mut merged = Builder::new();
    let half = |range: Range<usize>| open(&builder(&additions()[range]).finish()).unwrap();
    merged.merge(&half(3..7)).unwrap();
    merged.merge(&half(0..4)).unwrap();
    assert!(merged.finish() == expected);
}

#[test]
fn equal_code_is_stored_once() {
    let bundle = open(&sample()).unwrap();
    // Seven additions, of which two are the same, and one has no cubin.
    assert_eq!(bundle.parts().len(), 6 + 5);
}

#[test]
fn other_code_for_the_same_is_refused() {
    let mut builder = builder(&additions());
    let error = builder.add(label("scale", "a"), &kernel("scale"), "2", code(9, "sm_80", true)).unwrap_err();
    let Fault::Conflict { kernel, target, .. } = &error.fault else { panic!("{error}") };
    assert_eq!((kernel.as_str(), target.as_str()), ("scale", "sm_80"));
    assert!(error.to_string().contains("one is of compiler 1, the other of 2"), "{error}");
    let empty = CompiledKernel { ptx: String::new(), ..code(1, "sm_80", false) };
    assert!(matches!(
        builder.add(label("e", ""), &self::kernel("e"), "1", empty).unwrap_err().fault,
        Fault::Unsuitable(_)
    ));
}

#[test]
fn files_are_mapped_and_replaced_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("b.tegula");
    builder(&additions()).write(&path).unwrap();
    let old = Bundle::open(&path).unwrap();
    assert!(old.bytes() == sample() && old.name().ends_with("b.tegula"));
    write_file(&path, &Builder::new().finish()).unwrap();
    assert_eq!(Bundle::open(&path).unwrap().len(), 0);
    old.verify().unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    let absent = Bundle::open(folder.path().join("absent.tegula")).unwrap_err();
    assert!(matches!(absent.fault, Fault::Io(_)) && absent.to_string().contains("absent.tegula"), "{absent}");
    assert!(matches!(Bundle::open(folder.path()).unwrap_err().fault, Fault::Io(_)), "a folder");
    std::fs::write(&path, "").unwrap();
    assert_eq!(Bundle::open(&path).unwrap_err().fault, Fault::NotABundle);
}

/// What never ends, or waits for somebody, is refused at once.
#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.tegula");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let link = folder.path().join("link.tegula");
    std::os::unix::fs::symlink(&pipe, &link).unwrap();
    for (path, word) in [
        (pipe.as_path(), "a pipe or a device"),
        (&link, "a pipe or a device"),
        ("/dev/zero".as_ref(), "a pipe or a device"),
        ("/dev/null".as_ref(), "a pipe or a device"),
        (folder.path(), "a folder"),
    ] {
        let (send, receive) = std::sync::mpsc::channel();
        let opened = path.to_owned();
        std::thread::spawn(move || send.send(Bundle::open(opened)));
        let answer = receive.recv_timeout(std::time::Duration::from_secs(20));
        let error = answer.unwrap_or_else(|_| panic!("{path:?}: still waiting")).unwrap_err();
        assert!(matches!(error.fault, Fault::Io(_)) && error.to_string().contains(word), "{error}");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
    // A link to a file is as good as the file.
    builder(&additions()).write(&folder.path().join("b.tegula")).unwrap();
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(folder.path().join("b.tegula"), &link).unwrap();
    Bundle::open(&link).unwrap().verify().unwrap();
}

/// Loading one kernel reads that kernel: everything else in the file may be damaged, and nobody notices before it is asked for.
#[test]
fn kernels_are_loaded_one_by_one() {
    let good = sample();
    let whole = open(&good).unwrap();
    let wanted = aligned(kernel("scale"));
    let record = whole.find(&SourceHash::of(&wanted)).unwrap().unwrap();
    let variant = record.variants.iter().find(|v| v.facts == facts(&wanted)).unwrap();
    let image = variant.images.iter().find(|image| image.target == "sm_90a").unwrap();
    let used = [image.cubin, image.ptx].map(|part| part.unwrap() as usize);
    let mut bytes = good.clone();
    for (_, part) in whole.parts().iter().enumerate().filter(|(number, _)| !used.contains(number)) {
        bytes[part.offset as usize..(part.offset + part.stored) as usize].fill(0xa5);
    }
    let damaged = open(&bytes).unwrap();
    assert_eq!(seed(find(&damaged, &wanted, "sm_90a", Wanted::Machine).unwrap()), 4);
    let error = find(&damaged, &kernel("scale"), "sm_90a", Wanted::Machine).unwrap_err();
    assert!(matches!(error.fault, Fault::Damaged(_)), "{error}");
    assert_eq!(damaged.verify().unwrap_err().len(), whole.parts().len() - used.len());
}

/// What a first launch waits for, with a cubin of usual size: `cargo test --release -p tegula-bundle -- --ignored --nocapture microseconds`.
#[test]
#[ignore = "a measurement, for an optimised build on an idle machine"]
fn a_kernel_is_loaded_within_100_microseconds() {
    let mut builder = Builder::new();
    for index in 0..500 {
        let mut code = code(index, "sm_90a", true);
        // Machine code of 30 kB, which compresses about as well as noise beside repetition does.
        code.cubin = code.cubin.map(|noise| [&noise[..], &vec![index as u8; 28_000]].concat());
        code.ptx.clear();
        builder.add(label(&format!("k{index}"), ""), &kernel(&format!("k{index}")), "1", code).unwrap();
    }
    let bundle = open(&builder.finish()).unwrap();
    let mut times: Vec<f64> = (0..500)
        .map(|index| {
            let kernel = kernel(&format!("k{index}"));
            let (source, facts) = (SourceHash::of(&kernel), facts(&kernel));
            let began = std::time::Instant::now();
            let found = bundle.code(&source, &facts, "sm_90a", Wanted::Machine).unwrap();
            let time = began.elapsed().as_secs_f64() * 1e6;
            assert!(matches!(found, Found::Kernel(_)));
            time
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!(
        "found, decompressed and checked: median {:.1} µs, 99 of 100 within {:.1} µs",
        times[250], times[495]
    );
    assert!(times[250] <= 100.0, "{:.1} µs", times[250]);
}

/// What a program that has only a name waits for, in a bundle of as many kernels as the kernel library's, or in the one that `TEGULA_BUNDLE` names:
/// `cargo test --release -p tegula-bundle -- --ignored --nocapture by_its_name`.
#[test]
#[ignore = "a measurement, for an optimised build on an idle machine"]
fn a_kernel_is_found_by_its_name_within_microseconds() {
    let bytes = match std::env::var_os("TEGULA_BUNDLE") {
        Some(path) => std::fs::read(path).unwrap(),
        None => {
            let mut builder = Builder::new();
            for index in 0..800 {
                let name = format!("k{index}");
                for (kernel, target) in [(kernel(&name), "sm_80"), (aligned(kernel(&name)), "sm_90a")] {
                    builder
                        .add(label(&name, &"config, ".repeat(10)), &kernel, "1", code(1, target, true))
                        .unwrap();
                }
            }
            builder.finish()
        }
    };
    let labels: Vec<Label> =
        open(&bytes).unwrap().records().flat_map(|record| record.unwrap().labels).collect();
    let time = |bundle: &Bundle, label: &Label| {
        let began = std::time::Instant::now();
        let found = bundle.find_label(label).unwrap();
        let time = began.elapsed().as_secs_f64() * 1e6;
        assert!(found.is_some());
        time
    };
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let firsts =
        median((0..20).map(|n| time(&open(&bytes).unwrap(), &labels[n * labels.len() / 20])).collect());
    let bundle = open(&bytes).unwrap();
    let times = labels.iter().map(|label| time(&bundle, label));
    let others = median(times.skip(1).collect());
    println!("{} labels: the first find takes {firsts:.0} µs, others {others:.1} µs (medians)", labels.len());
    assert!(firsts <= 500.0 && others <= 50.0);
}

/// Looks at everything that a damaged bundle may still answer: right answers or errors, and an error somewhere.
fn check_damaged(bytes: &[u8], what: &str) {
    let Ok(bundle) = open(bytes) else { return };
    assert!(bundle.verify().is_err(), "{what}: nobody noticed");
    for (_, kernel, _) in additions() {
        for gpu in ["sm_80", "sm_86", "sm_90a", "sm_120"] {
            for wanted in [Wanted::Machine, Wanted::Ptx] {
                if let Ok(found @ Found::Kernel(_)) = find(&bundle, &kernel, gpu, wanted) {
                    // Panics if the code is none that was added.
                    seed(found);
                }
            }
        }
    }
}

/// All code of a bundle that opens; `None`: something is refused.
fn code_of(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let bundle = open(bytes).ok()?;
    (0..bundle.parts().len() as u32).map(|part| bundle.part(part).ok()).collect()
}

#[test]
fn every_flipped_bit_is_noticed_or_means_nothing() {
    let good = sample();
    let code = code_of(&good).unwrap();
    // All bits of the header; beyond it a prime step, so that all bits and all regions have their turn; and 200 places at random.
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let places = std::iter::repeat_with(|| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize % (good.len() * 8)
    });
    let bits = (0..good.len() * 8).step_by(211).chain(0..HEADER * 8).chain(places.take(200));
    let mut meaningless = 0;
    for bit in bits {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        match code_of(&bytes) {
            // Some bits of zstd's frames can be either way.
            Some(same) => {
                assert_eq!(same, code, "bit {bit}");
                meaningless += 1;
            }
            None => check_damaged(&bytes, &format!("bit {bit}")),
        }
    }
    assert!(meaningless <= 5, "{meaningless}");
}

/// What is written does not depend on which bundle comes first.
#[test]
fn merging_depends_on_no_order() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = |name: &str, compiler: &str, ptx: &str, cubin: Option<&[u8]>| {
        let mut builder = Builder::new();
        builder.tool("compiler", compiler);
        let mut kernel = Kernel::new("k");
        kernel.add_param("x", Type::view(Elem::F32, 1, false));
        let code = CompiledKernel {
            entry: "k".to_owned(),
            target: "sm_90a".to_owned(),
            ptx: ptx.to_owned(),
            cubin: cubin.map(<[u8]>::to_vec),
            threads: 32,
            shared_bytes: 0,
            cluster: 1,
            dependent_launch: false,
            abi: Vec::new(),
            report: None,
        };
        let label = Label { name: "k".to_owned(), types: "f32".to_owned(), config: name.to_owned() };
        builder.add(label, &kernel, compiler, code).unwrap();
        let path = folder.path().join(name);
        builder.write(&path).unwrap();
        Bundle::open(&path).unwrap()
    };
    let merged = |bundles: [&Bundle; 2]| {
        let mut builder = Builder::new();
        bundles.iter().try_for_each(|bundle| builder.merge(bundle)).map(|()| builder.finish())
    };
    // The same code by two compilers; one has PTX, and the other the cubin, too.
    let [old, new] = [bundle("old", "1", "// ptx", None), bundle("new", "2", "// ptx", Some(b"cubin"))];
    let both = merged([&old, &new]).unwrap();
    assert!(both == merged([&new, &old]).unwrap());
    let both = Bundle::from_bytes("both", both).unwrap();
    assert_eq!(both.tools().len(), 2);
    let image = both.records().next().unwrap().unwrap().variants[0].images[0].clone();
    assert!(image.cubin.is_some() && image.ptx.is_some() && image.compiler == "1", "{image:?}");
    // Other code is an error that says whose.
    let other = bundle("other", "2", "// other", None);
    for pair in [[&old, &other], [&other, &old]] {
        let error = merged(pair).unwrap_err().to_string();
        assert!(error.contains(pair[1].name()) && error.contains("is there twice"), "{error}");
    }
}

#[test]
#[cfg(unix)]
fn what_is_no_file_is_not_replaced_and_links_are_followed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let bytes = sample();
    std::fs::write(at("target.tegula"), b"").unwrap();
    std::os::unix::fs::symlink("target.tegula", at("link.tegula")).unwrap();
    write_file(&at("link.tegula"), &bytes).unwrap();
    assert!(std::fs::read(at("target.tegula")).unwrap() == bytes);
    assert!(std::fs::symlink_metadata(at("link.tegula")).unwrap().is_symlink());
    for what in [Path::new("/dev/null"), folder.path()] {
        let error = write_file(what, &bytes).unwrap_err().to_string();
        assert!(error.contains("no file") || error.contains("a folder"), "{error}");
        assert!(replaceable(what).is_err());
    }
    std::fs::write(at("main.rs"), b"fn main() {}").unwrap();
    assert!(replaceable(&at("main.rs")).unwrap_err().to_string().contains("no bundle"));
    assert!(["absent", "link.tegula"].iter().all(|name| replaceable(&at(name)).is_ok()));
}

#[test]
fn every_cut_is_noticed() {
    let good = sample();
    for end in (0..good.len()).step_by(7).chain(0..HEADER + 8) {
        let error = open(&good[..end]).unwrap_err();
        let expected = if end < 8 {
            matches!(error.fault, Fault::NotABundle)
        } else {
            matches!(error.fault, Fault::Length { .. })
        };
        assert!(expected, "cut at {end}: {error}");
    }
    let longer = [&good[..], b"!"].concat();
    assert!(matches!(open(&longer).unwrap_err().fault, Fault::Length { .. }));
}

/// The file with its checksum made right: what a careless or hostile writer could have written.
fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let manifest = u64::from_le_bytes(bytes[24..32].try_into().unwrap()) as usize;
    let length = bytes.len() as u64;
    bytes[16..24].copy_from_slice(&length.to_le_bytes());
    let end = (HEADER + manifest).min(bytes.len());
    let sum = blake3::Hasher::new().update(&bytes[..32]).update(&bytes[HEADER..end]).finalize();
    bytes[32..64].copy_from_slice(sum.as_bytes());
    bytes
}

#[test]
fn another_version_says_what_to_do() {
    let mut bytes = sample();
    bytes[8] = 2;
    for bytes in [bytes.clone(), resealed(bytes.clone())] {
        let error = open(&bytes).unwrap_err();
        assert_eq!(error.fault, Fault::Version { found: 2, known: 1 });
        assert!(
            error.to_string().contains("b.tegula") && error.to_string().contains("update Tegula"),
            "{error}"
        );
    }
    bytes = sample();
    bytes[8] = 0;
    let error = open(&bytes).unwrap_err().to_string();
    assert!(error.contains("version 0") && error.contains("compile the bundle again"), "{error}");

    let known = tegula_bundle::codec::FORMAT;
    for (found, advice) in
        [(known + 1, "update Tegula"), (known - 1, "compile the bundle again"), (u32::MAX, "update")]
    {
        let mut bytes = sample();
        bytes[12..16].copy_from_slice(&found.to_le_bytes());
        let error = open(&resealed(bytes)).unwrap_err();
        assert_eq!(error.fault, Fault::Encoding { found, known });
        let words = error.to_string();
        assert!(
            words.contains("b.tegula") && words.contains("encoding") && words.contains(advice),
            "{words}"
        );
    }
}

#[test]
fn a_manifest_that_names_what_is_missing() {
    let good = sample();
    let bundle = open(&good).unwrap();
    // The last part cut off, and the header made to agree.
    let last = bundle.parts().last().unwrap();
    let error = open(&resealed(good[..last.offset as usize].to_vec())).unwrap_err();
    assert!(error.to_string().contains("part 10 is missing"), "{error}");
    // A record that names part 200: the number is found as the only byte whose change gives that error.
    let manifest = u64::from_le_bytes(good[24..32].try_into().unwrap()) as usize;
    let mut named = 0;
    for at in HEADER..HEADER + manifest {
        let mut bytes = good.clone();
        bytes[at] = 200;
        let Ok(bundle) = open(&resealed(bytes)) else { continue };
        let messages: Vec<String> = bundle.records().filter_map(|r| Some(r.err()?.to_string())).collect();
        named += messages.iter().filter(|m| m.contains("names part 200, but there are 11")).count();
    }
    assert_eq!(named, 6 + 5, "each reference to a part");
}

#[test]
fn lies_with_right_checksums_do_no_harm() {
    let good = sample();
    let manifest = u64::from_le_bytes(good[24..32].try_into().unwrap()) as usize;
    for at in 8..HEADER + manifest {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bytes = good.clone();
            bytes[at] = value;
            let bytes = resealed(bytes);
            // Anything but a panic, a hang or a huge allocation; code that is given out is code that was put in, of whichever kernel.
            let Ok(bundle) = open(&bytes) else { continue };
            let _ = bundle.verify();
            let _ = bundle.find_label(&label("scale", "a"));
            for number in 0..bundle.label_count().unwrap_or(0) {
                let _ = bundle.labelled(number);
            }
            for record in bundle.records().flatten() {
                for image in record.variants.iter().flat_map(|v| &v.images) {
                    let _ = bundle.complete(image);
                }
            }
        }
    }
}
