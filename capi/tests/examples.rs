//! The examples in C and Python, on an emulated GPU: compiled and run as their users do. Python is left out where there is none.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::scale_bundle;

/// The shared library that cargo built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    [folder, folder.parent().unwrap()]
        .map(|folder| {
            folder.join(format!("{}tegula_rt{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX))
        })
        .into_iter()
        .find(|path| path.exists())
        .expect("cargo builds the library for its tests")
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

const EXPECTED: &str = "y[1] = 2.5, y[999] = 2497.5\n";

#[test]
fn c() {
    let folder = tempfile::tempdir().unwrap();
    let (kernels, program) = (folder.path().join("k.tegula"), folder.path().join("scale"));
    std::fs::write(&kernels, scale_bundle()).unwrap();
    // Linked with the library in one place, and run with it in another: beside the program, as it is shipped.
    let linked = folder.path().join("elsewhere").join(library().file_name().unwrap());
    std::fs::create_dir(linked.parent().unwrap()).unwrap();
    std::fs::copy(library(), &linked).unwrap();
    let built = Command::new("cc")
        .args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-I"])
        .args([here("include"), here("examples/scale.c"), linked.clone()])
        .args(["-Wl,-rpath,$ORIGIN", "-o"])
        .arg(&program)
        .output()
        .expect("a C compiler: Rust's linker is one");
    assert!(built.status.success(), "{}", text(&built));
    std::fs::rename(&linked, folder.path().join(linked.file_name().unwrap())).unwrap();
    let run = |device: &str, bundle: &Path| Command::new(&program).arg(device).arg(bundle).output().unwrap();
    let good = run("emulated:sm_80", &kernels);
    assert!(good.status.success() && text(&good) == EXPECTED, "{}", text(&good));
    let unknown = run("toaster", &kernels);
    assert!(
        !unknown.status.success() && text(&unknown).contains("there is no device `toaster`"),
        "{}",
        text(&unknown)
    );
    let mut bytes = std::fs::read(&kernels).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&kernels, bytes).unwrap();
    let damaged = run("emulated:sm_80", &kernels);
    assert!(!damaged.status.success() && text(&damaged).contains("part 0 is damaged"), "{}", text(&damaged));
}

/// Compiles a C program that is linked with the library where it lies, and runs it.
fn compiled(source: &Path, folder: &Path, arguments: &[&Path]) -> Output {
    let program = folder.join(source.file_stem().unwrap());
    let built = Command::new("cc")
        .args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-I"])
        .args([here("include"), source.to_owned(), library()])
        .arg(format!("-Wl,-rpath,{}", library().parent().unwrap().display()))
        .arg("-o")
        .arg(&program)
        .output()
        .expect("a C compiler: Rust's linker is one");
    assert!(built.status.success(), "{}", text(&built));
    Command::new(&program).args(arguments).output().unwrap()
}

#[test]
fn listing_in_c() {
    let folder = tempfile::tempdir().unwrap();
    let kernels = folder.path().join("k.tegula");
    std::fs::write(&kernels, scale_bundle()).unwrap();
    let list = |path: &Path| compiled(&here("examples/list.c"), folder.path(), &[path]);
    let output = list(&kernels);
    let expected = "scale (f32) 128\n  x: view f32, rank 1\n  y: mut view f32, rank 1\n  by: scalar f32\n";
    assert!(output.status.success() && text(&output) == expected, "{}", text(&output));
    std::fs::write(&kernels, "no bundle").unwrap();
    let output = list(&kernels);
    assert!(
        !output.status.success() && text(&output).contains("k.tegula: it is not a bundle"),
        "{}",
        text(&output)
    );
}

/// The header and the examples are C of 1999 and C++, whatever is asked of them.
#[test]
fn the_header_is_c_and_cpp() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("alone.c");
    std::fs::write(&alone, "#include \"tegula_rt.h\"\n").unwrap();
    for (compiler, language, standards) in
        [("cc", "c", &["-std=c99", "-std=c11"][..]), ("c++", "c++", &["-std=c++11", "-std=c++17"])]
    {
        for standard in standards {
            for source in [alone.clone(), here("examples/scale.c"), here("examples/list.c")] {
                let run = Command::new(compiler)
                    .args([
                        "-x",
                        language,
                        standard,
                        "-pedantic-errors",
                        "-Wall",
                        "-Wextra",
                        "-Werror",
                        "-fsyntax-only",
                        "-I",
                    ])
                    .args([here("include"), source])
                    .output();
                match run {
                    Ok(output) => assert!(output.status.success(), "{standard}: {}", text(&output)),
                    Err(_) if compiler == "c++" => return eprintln!("C++ is left out: there is no compiler"),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}

/// Names of functions in some text: what stands between `before` and a bracket.
fn functions(text: &str, before: &str) -> std::collections::BTreeSet<String> {
    let found = text.split(before).skip(1).filter_map(|rest| {
        let name: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
        rest[name.len()..].starts_with('(').then(|| format!("tegula_{name}"))
    });
    found.collect()
}

#[test]
fn every_function_of_the_header_is_in_the_library_and_the_other_way_round() {
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let header = read(&here("include/tegula_rt.h"));
    // Without comments, which name functions, too.
    let code: String =
        header.split("/*").map(|piece| piece.split_once("*/").map_or(piece, |(_, code)| code)).collect();
    let declared = functions(&code, "tegula_");
    let sources = std::fs::read_dir(here("src")).unwrap().map(|entry| read(&entry.unwrap().path()));
    let defined = sources.flat_map(|source| functions(&source, "extern \"C\" fn tegula_")).collect();
    assert_eq!(declared, defined);
    assert!(declared.len() >= 20, "{declared:?}");
    let folder = tempfile::tempdir().unwrap();
    let all: Vec<String> = declared.iter().map(|name| format!("(function){name}")).collect();
    let program = format!(
        "#include \"tegula_rt.h\"\ntypedef void (*function)(void);\nfunction all[] = {{{}}};\nint main(void) {{ return all[0] == 0; }}\n",
        all.join(", ")
    );
    let source = folder.path().join("all.c");
    std::fs::write(&source, program).unwrap();
    let output = compiled(&source, folder.path(), &[]);
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn python() {
    let folder = tempfile::tempdir().unwrap();
    let kernels = folder.path().join("k.tegula");
    std::fs::write(&kernels, scale_bundle()).unwrap();
    let run = Command::new("python3")
        .arg(here("examples/scale.py"))
        .arg(library())
        .args(["emulated:sm_80"])
        .arg(&kernels)
        .output();
    let Ok(output) = run else {
        eprintln!("skipped: there is no python3");
        return;
    };
    assert!(output.status.success() && text(&output) == EXPECTED, "{}", text(&output));
}
