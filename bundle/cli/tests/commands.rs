//! The command on small bundles: what it prints, writes and refuses.

use std::path::Path;
use std::process::{Command, Output};

use tegula_bundle::{Builder, Bundle, Label};
use tegula_ir::artifact::{AbiSlot, CompiledKernel};
use tegula_ir::{Elem, Kernel, Type};

fn write(path: &Path, kernels: &[(&str, &str)]) {
    let mut builder = Builder::new();
    builder.tool("compiler", "by hand");
    for (name, code) in kernels {
        let mut kernel = Kernel::new(*name);
        kernel.add_param("x", Type::view(Elem::BF16, 2, false));
        let label = Label {
            name: (*name).to_owned(),
            types: "bf16".to_owned(),
            config: "Config { block: 64 }".to_owned(),
        };
        let code = CompiledKernel {
            entry: format!("{name}_bf16"),
            target: "sm_90a".to_owned(),
            ptx: (*code).to_owned(),
            cubin: None,
            threads: 128,
            shared_bytes: 4096,
            cluster: 2,
            dependent_launch: false,
            abi: vec![AbiSlot::Dim { param: 0, axis: 1, bits: 64 }],
            report: None,
        };
        builder.add(label, &kernel, "1", code).unwrap();
    }
    builder.write(path).unwrap();
}

fn tegula(folder: &Path, words: &[&str]) -> (bool, String, String) {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_tegula"))
        .arg("bundle")
        .args(words)
        .current_dir(folder)
        .output()
        .unwrap();
    (status.success(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn every_command() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write(&at("a.tegula"), &[("gemm", "// gemm"), ("norm", "// norm")]);
    write(&at("b.tegula"), &[("gemm", "// gemm"), ("softmax", "// softmax")]);
    write(&at("c.tegula"), &[("gemm", "// another gemm")]);
    let run = |words: &[&str]| tegula(folder.path(), words);

    let (good, text, _) = run(&["list", "a.tegula"]);
    assert!(good && text.contains("gemm (bf16) Config { block: 64 }  1 variants, sm_90a"), "{text}");
    assert!(text.lines().count() == 3 && text.contains("2 kernels, 2 pieces of code"), "{text}");

    let (good, text, _) = run(&["show", "a.tegula", "norm"]);
    assert!(good && text.contains("made with compiler by hand") && !text.contains("gemm"), "{text}");
    for words in [
        "takes x: view<bf16, 2>",
        "for any arguments",
        "entry norm_bf16, 128 threads, 4096 bytes",
        "clusters of 2",
        "axis: 1",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }

    let (same, text, _) = run(&["diff", "a.tegula", "b.tegula"]);
    let signs: Vec<&str> = text.lines().map(|line| &line[..1]).collect();
    assert!(!same && signs == ["-", "+"] && text.contains("norm") && text.contains("softmax"), "{text}");
    assert_eq!(run(&["diff", "a.tegula", "a.tegula"]), (true, String::new(), String::new()));
    assert!(
        run(&["diff", "b.tegula", "c.tegula"])
            .1
            .contains("gemm (bf16) Config { block: 64 } for sm_90a, any arguments: other code")
    );

    let (good, text, _) = run(&["merge", "-o", "ab.tegula", "a.tegula", "b.tegula"]);
    assert!(good && text.contains("ab.tegula: 3 kernels"), "{text}");
    assert_eq!(Bundle::open(at("ab.tegula")).unwrap().len(), 3);
    let (good, _, error) = run(&["merge", "-o", "abc.tegula", "a.tegula", "c.tegula"]);
    assert!(
        !good && error.contains("kernel `gemm` for sm_90a is there twice") && !at("abc.tegula").exists(),
        "{error}"
    );

    let (good, text, _) = run(&["extract", "a.tegula", "gemm", "--to", "out"]);
    let file = text.trim();
    assert!(good && std::fs::read_to_string(at(file)).unwrap() == "// gemm", "{text}");

    for words in [&["show", "a.tegula", "nrom"][..], &["extract", "a.tegula", "nrom", "--to", "none"]] {
        let (good, _, error) = run(words);
        assert!(!good && error.contains("bundle a.tegula: there is no kernel \"nrom\""), "{error}");
    }

    let (good, text, _) = run(&["verify", "a.tegula", "b.tegula"]);
    assert!(good && text.lines().count() == 2, "{text}");
    let mut bytes = std::fs::read(at("a.tegula")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(at("a.tegula"), bytes).unwrap();
    let (good, text, error) = run(&["verify", "a.tegula", "b.tegula"]);
    assert!(
        !good && text.contains("b.tegula: whole") && error.contains("bundle a.tegula: part 1 is damaged"),
        "{error}"
    );
}

#[test]
fn json_says_what_the_text_says() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write(&at("a.tegula"), &[("gemm", "// gemm"), ("norm", "// norm")]);
    write(&at("b.tegula"), &[("gemm", "// another gemm"), ("softmax", "// softmax")]);
    let run = |words: &[&str]| {
        let (good, text, error) = tegula(folder.path(), words);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        (good, value, error)
    };

    let (good, list, _) = run(&["list", "a.tegula", "--json"]);
    assert!(good && list["kernels"].as_array().unwrap().len() == 2 && list["parts"] == 2, "{list}");
    assert_eq!(list["kernels"][0]["called"][0]["name"], "gemm");
    assert_eq!(list["kernels"][0]["targets"], serde_json::json!(["sm_90a"]));
    assert_eq!(list["bytes"], std::fs::metadata(at("a.tegula")).unwrap().len());

    let (good, shown, _) = run(&["show", "a.tegula", "norm", "--json"]);
    let kernels = shown["kernels"].as_array().unwrap();
    assert!(good && kernels.len() == 1 && shown["tools"][0]["version"] == "by hand", "{shown}");
    let image = &kernels[0]["variants"][0]["images"][0];
    assert_eq!(
        (&image["entry"], &image["threads"], &image["cluster"]),
        (&"norm_bf16".into(), &128.into(), &2.into())
    );
    assert_eq!(image["ptx_blake3"].as_str().map(str::len), Some(64));
    assert!(image["cubin_blake3"].is_null() && image["report"].is_null(), "{image}");

    let (same, found, _) = run(&["diff", "a.tegula", "b.tegula", "--json"]);
    let count = |which: &str| found[which].as_array().unwrap().len();
    assert!(!same && ["removed", "changed", "added", "tools"].map(count) == [1, 1, 1, 0], "{found}");
    let (same, found, _) = run(&["diff", "a.tegula", "a.tegula", "--json"]);
    assert!(same && found["changed"] == serde_json::json!([]), "{found}");

    let mut bytes = std::fs::read(at("a.tegula")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(at("a.tegula"), bytes).unwrap();
    let (good, checked, error) = run(&["verify", "a.tegula", "b.tegula", "--json"]);
    assert!(!good && checked[0]["whole"] == false && checked[1]["whole"] == true, "{checked}");
    assert!(error.contains("damaged") && checked[0]["errors"][0].as_str().unwrap().contains("damaged"));
}

#[test]
fn differences_that_are_not_in_the_code() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, compiler: &str, threads: u32, config: &str| {
        let mut builder = Builder::new();
        let code = CompiledKernel {
            entry: "k".to_owned(),
            target: "sm_90a".to_owned(),
            ptx: "// code".to_owned(),
            cubin: None,
            threads,
            shared_bytes: 0,
            cluster: 1,
            dependent_launch: false,
            abi: Vec::new(),
            report: None,
        };
        for config in ["a config", config] {
            let label = Label { name: "k".to_owned(), types: "f32".to_owned(), config: config.to_owned() };
            builder.add(label, &Kernel::new("k"), compiler, code.clone()).unwrap();
        }
        builder.write(&folder.path().join(name)).unwrap();
    };
    write("a", "1", 32, "b config");
    write("compiler", "2", 32, "b config");
    write("threads", "1", 64, "b config");
    write("called", "1", 32, "c config\u{1b}[31m");
    let run = |words: &[&str]| tegula(folder.path(), words);
    assert_eq!(run(&["diff", "a", "a"]), (true, String::new(), String::new()));
    for (other, expected) in
        [("compiler", "of another compiler"), ("threads", "launched otherwise"), ("called", "+ called ")]
    {
        let (same, text, _) = run(&["diff", "a", other]);
        assert!(!same && text.contains(expected) && !text.contains('\u{1b}'), "{text}");
    }
    let code = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tegula"));
        command.arg("bundle").args(words).current_dir(folder.path()).output().unwrap().status.code()
    };
    assert_eq!(["a", "threads", "absent"].map(|b| code(&["diff", "a", b])), [Some(0), Some(1), Some(2)]);
    std::fs::write(folder.path().join("main.rs"), "fn main() {}").unwrap();
    let (good, _, error) = run(&["merge", "-o", "main.rs", "a"]);
    assert!(!good && error.contains("is no bundle"), "{error}");
}
