//! `cargo xtask bundle`: one archive that runs GPU tests and benches where there is a GPU but neither Rust nor LLVM.
//!
//! What goes in is [`CONTENTS`], what `run.sh` does with it is [`RUN`]: to add something, add a line. Programs are
//! built in the release profile and stripped; a binary built on Debian 12 runs on any later Debian or Ubuntu. The
//! archive is `tar` + `xz`, which every distribution and every Python unpacks.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};

use crate::built::{self, Artifact, executable};
use crate::machine::Machine;
use crate::setup::{self, Scope};
use crate::workspace::{Workspace, run};

/// What goes into the archive.
const CONTENTS: &[Item] = &[
    Item::Program { package: "tegula-conformance-gpu", kind: Kind::Test, name: "gpu", to: "gpu-tests" },
    Item::Program { package: "tegula", kind: Kind::Bench, name: "gpu", to: "gpu-bench" },
    Item::Program {
        package: "tegula-kernels",
        kind: Kind::UnitTests,
        name: "tegula_kernels",
        to: "kernel-tests",
    },
    Item::Program { package: "tegula-runner", kind: Kind::Test, name: "random_models", to: "runner-tests" },
    Item::Program { package: "tegula-runner", kind: Kind::Test, name: "smollm2", to: "smollm2-tests" },
    Item::Program { package: "tegula-runner", kind: Kind::Bin, name: "tegula-runner", to: "tegula-runner" },
    Item::Program {
        package: "tegula-autotune",
        kind: Kind::Bin,
        name: "tegula-autotune",
        to: "tegula-autotune",
    },
    Item::Copy { from: "benches/gpu/attention_peers.py", to: "attention_peers.py" },
    Item::Copy { from: "benches/gpu/decode_peers.py", to: "decode_peers.py" },
    // Kernels are compiled where they run, for the GPU that is there.
    Item::Tool("ptxas"),
    // Those of bundles are not: programs without a compiler, and what they open.
    Item::Program { package: "tegula-kernels", kind: Kind::DeployedExample, name: "deploy", to: "deploy" },
    Item::Program { package: "tegula-cli", kind: Kind::DeployedBin, name: "tegula", to: "tegula" },
    Item::Program {
        package: "tegula-rt",
        kind: Kind::SharedLibrary,
        name: "tegula_rt",
        to: "libtegula_rt.so",
    },
    Item::C { source: "capi/examples/scale.c", to: "scale" },
    Item::Copy { from: "capi/examples/scale.py", to: "bin/scale.py" },
    Item::Copy { from: "capi/examples/rms_norm.py", to: "bin/rms_norm.py" },
    Item::Made { example: "own_kernel", to: "bin/scale.tegula" },
    Item::Made { example: "deploy_bundle", to: "bin/kernels.tegula" },
];

/// What `run.sh` runs, in this order. `$OUT` is the folder of results.
const RUN: &[Run] = &[
    Run { name: "examples", command: "gpu-tests examples/" },
    Run { name: "runtime", command: "gpu-tests runtime/" },
    Run { name: "conformance", command: "gpu-tests conformance/" },
    // Writes $OUT/emulator.md: every difference between this GPU and the emulator on the same PTX.
    Run { name: "emulator", command: "gpu-tests emulator/" },
    Run { name: "kernels", command: "TEGULA_TEST_DEVICE=cuda kernel-tests" },
    Run { name: "runner", command: "runner-tests" },
    // The model does not fit in the archive: `TEGULA_SMOLLM2` says where it is. Without it these say that they were skipped.
    Run { name: "smollm2", command: "smollm2-tests --test-threads 1 --nocapture" },
    Run { name: "speaks", command: SPEAKS },
    Run { name: "bench", command: "gpu-bench --json \"$OUT/bench.json\"" },
    // `GEMM=--gemm-space ./run.sh gemm` tries all configs.
    Run { name: "gemm", command: "gpu-bench --gemm --json \"$OUT/gemm.json\" $GEMM" },
    // `ATTENTION="--head-dim 128 --rounds 3" ./run.sh attention` for these only; needs PyTorch.
    Run { name: "attention", command: ATTENTION },
    // `DECODE="--cache bf16 --rounds 2" ./run.sh decode` for these caches only.
    Run { name: "decode", command: DECODE },
    Run { name: "latent", command: "gpu-bench --latent --json \"$OUT/latent.json\"" },
    Run { name: "tune", command: TUNE },
    Run { name: "bundles", command: BUNDLES },
];

/// Attention beside PyTorch's, or by itself where there is no PyTorch.
const ATTENTION: &str = r#"if python3 -c "import torch" 2> /dev/null; then
  python3 attention_peers.py --bench gpu-bench --json "$OUT/attention.json" $ATTENTION
else
  gpu-bench --attention --json "$OUT/attention.json"
fi"#;

/// Attention decode beside PyTorch's, or by itself.
const DECODE: &str = r#"if python3 -c "import torch" 2> /dev/null; then
  python3 decode_peers.py --bench gpu-bench --json "$OUT/decode.json" $DECODE
else
  gpu-bench --decode --json "$OUT/decode.json"
fi"#;

/// The model's speed on the GPU, as a line of JSON, and what it says.
const SPEAKS: &str = r#"[ -n "${TEGULA_SMOLLM2:-}" ] || { echo "skipped: TEGULA_SMOLLM2 names no model"; exit 0; }
tegula-runner bench --device cuda --model "$TEGULA_SMOLLM2" --json --repeat 7 --tokens 128 | tee "$OUT/runner.json" &&
  tegula-runner generate --device cuda --model "$TEGULA_SMOLLM2" --chat --prompt "What is gravity?" --max-tokens 48"#;

/// Records for Llama-3-8B in five minutes; then every config to the end at five of its shapes, cuBLAS at its layers, and tables of both: a ratio of at least 0.97 is within
/// 3 % of the best. At most nine minutes in all, whatever hangs; what fails takes nothing from the others. Kernels and records are kept beside `$OUT`, where only a
/// handful of files belongs.
const TUNE: &str = r#"work=$(mktemp -d) && export TEGULA_CACHE_DIR="$work/kernels" && failed=0
within() { echo "--- $*"; timeout --kill-after 5 "$@" && return 0; echo "--- failed: $?"; failed=1; }
within 320 tegula-autotune tune gemm,attention,rms_norm --shapes llama3-8b --budget 5m --timeout 10s --records "$work/records"
within 145 tegula-autotune tune gemm,attention_decode,rms_norm --exhaustive --budget 130s --timeout 10s --records "$work/exhaustive" \
  --shape m=1,n=6144,k=4096,bits=16 --shape m=64,n=28672,k=4096,bits=16 --shape m=4096,n=4096,k=14336,bits=16 \
  --shape queries=1,keys=4096,sequences=64,group=4,head_dim=128,bits=16 --shape rows=4096,cols=4096,bits=16
within 40 gpu-bench --gemm --gemm-layers 4 --gemm-seconds 25 --json "$OUT/tune-cublas.json" > "$OUT/tune-cublas.log"
tar -czf "$OUT/tune-records.tar.gz" -C "$work" records exhaustive
echo "kernels compiled: $(ls "$work/kernels" | wc -l)"
[ -s "$OUT/tune-cublas.json" ] && peers="--peers $OUT/tune-cublas.json"
within 12 tegula-autotune report --records "$work/exhaustive" --out "$OUT/tune-exhaustive.html"
within 12 tegula-autotune report --records "$work/records" --out "$OUT/tune.html" --json "$OUT/tune.json" ${peers:-}
within 12 tegula-autotune compare "$work/exhaustive" "$work/records"
exit $failed
"#;

/// Programs without a compiler run kernels from bundles: ours, one in C, and Python's with torch. First launches may take 2 ms: staging, search, checksum, the driver's loading of the
/// module, and the launch itself.
const BUNDLES: &str = r#"status=0
TEGULA_PTXAS= deploy cuda bin/kernels.tegula --within 2000 --json "$OUT/deploy.json" || status=1
deploy host || status=1
torch=$(python3 -c 'import torch; y = torch.arange(1000, device="cuda") * 2.5; print(f"y[1] = {y[1]:g}, y[999] = {y[999]:g}")')
ours=$(scale cuda:0 bin/scale.tegula) && echo "in C: $ours; torch: $torch" && [ "$ours" = "$torch" ] || status=1
python3 bin/scale.py bin/libtegula_rt.so cuda:0 bin/scale.tegula || status=1
python3 bin/rms_norm.py bin/libtegula_rt.so cuda:0 bin/kernels.tegula || status=1
tegula bundle verify bin/kernels.tegula bin/scale.tegula || status=1
exit $status
"#;

/// The largest archive that is still quickly carried to another machine.
const LARGEST_ARCHIVE: u64 = 60_000_000;

/// Something that goes into the archive.
#[allow(dead_code, reason = "which kinds are in use changes with CONTENTS")]
#[derive(Clone, Copy, Debug)]
enum Item {
    /// A program of the workspace, at `bin/TO` in the archive.
    Program { package: &'static str, kind: Kind, name: &'static str, to: &'static str },
    /// One of the CUDA tools that [`setup`] installs, at `bin/NAME`.
    Tool(&'static str),
    /// A file or folder of the checkout, and its place in the archive.
    Copy { from: &'static str, to: &'static str },
    /// A program in C, linked with `bin/libtegula_rt.so`, at `bin/TO`.
    C { source: &'static str, to: &'static str },
    /// What an example of `tegula-precompile` writes, which has the compiler in it.
    Made { example: &'static str, to: &'static str },
}

/// Which of a package's targets a program is.
#[allow(dead_code, reason = "which kinds are in use changes with CONTENTS")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bin,
    Example,
    Test,
    Bench,
    /// The tests inside of a library.
    UnitTests,
    /// A binary or an example without a compiler in it.
    DeployedBin,
    DeployedExample,
    /// What programs of other languages load; without a compiler in it.
    SharedLibrary,
}

/// How cargo builds a kind: what is selected together shares its features, so what must not have LLVM in it is built apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    WithCompiler,
    UnitTests,
    Deployed,
}

/// A line of `run.sh`.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// `./run.sh NAME` runs this one alone.
    name: &'static str,
    /// A shell command, run in the unpacked folder with its `bin/` first on the `PATH`.
    command: &'static str,
}

/// Arguments of `cargo xtask bundle`.
#[derive(clap::Args)]
pub struct Args {
    /// Only show what would go in
    #[arg(long)]
    list: bool,
    /// Pack only what these steps of `run.sh` need, and a `run.sh` with these steps
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<String>,
}

/// Runs `cargo xtask bundle`.
pub fn main(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    let (contents, steps) = select(CONTENTS, RUN, &args.only)?;
    if args.list {
        print!("{}", listing(&contents, &steps));
        return Ok(ExitCode::SUCCESS);
    }
    setup::ensure(workspace, Scope::Everything)?;
    for tool in ["tar", "xz", "strip", "nm"] {
        let found = Machine::current().program(tool);
        ensure!(found.is_some(), "`{tool}` is missing (packages tar, xz-utils, binutils)");
    }
    std::fs::create_dir_all(&workspace.target)?;
    let folder = tempfile::tempdir_in(&workspace.target)?;
    let programs = build(workspace, &contents)?;
    for item in &contents {
        add(workspace, item, &programs, folder.path())?;
    }
    write_executable(&folder.path().join("run.sh"), &run_script(&steps))?;
    let archive = pack(folder.path(), &workspace.target)?;
    let size = std::fs::metadata(&archive)?.len();
    println!("{}: {:.1} MB; unpack it and run ./run.sh", archive.display(), size as f64 / 1e6);
    ensure!(size <= LARGEST_ARCHIVE, "that is more than {} MB", LARGEST_ARCHIVE / 1_000_000);
    Ok(ExitCode::SUCCESS)
}

/// The steps of these names, or all if none is named, and what they need: the items whose names stand in their commands, and the tools, which the script
/// names to all programs.
fn select(contents: &[Item], run: &[Run], names: &[String]) -> Result<(Vec<Item>, Vec<Run>)> {
    if let Some(unknown) = names.iter().find(|name| !run.iter().any(|step| step.name == **name)) {
        let known: Vec<_> = run.iter().map(|step| step.name).collect();
        bail!("run.sh has no step `{unknown}`; its steps are {}", known.join(", "));
    }
    let chosen = |step: &&Run| names.is_empty() || names.iter().any(|name| name == step.name);
    let steps: Vec<Run> = run.iter().filter(chosen).copied().collect();
    let needed = |item: &&Item| names.is_empty() || steps.iter().any(|step| step.needs(item));
    Ok((contents.iter().filter(needed).copied().collect(), steps))
}

fn listing(contents: &[Item], run: &[Run]) -> String {
    let mut text = String::new();
    for item in contents {
        let _ = match item {
            Item::Program { package, kind, name, to } => {
                writeln!(text, "bin/{to:<24} {} {name} of {package}", kind.flag())
            }
            Item::Tool(name) => writeln!(text, "bin/{name:<24} of CUDA"),
            Item::Copy { from, to } => writeln!(text, "{to:<28} {from}"),
            Item::C { source, to } => writeln!(text, "bin/{to:<24} {source}"),
            Item::Made { example, to } => {
                writeln!(text, "{to:<28} what --example {example} of tegula-precompile writes")
            }
        };
    }
    for step in run {
        let _ = writeln!(text, "./run.sh {:<19} {}", step.name, step.command);
    }
    text
}

impl Run {
    /// Does the command call a program of this name, or use a file of it?
    fn needs(&self, item: &Item) -> bool {
        let wanted = match item {
            Item::Program { to, kind: Kind::SharedLibrary, .. } => &format!("bin/{to}"),
            Item::Program { to, .. } | Item::C { to, .. } => *to,
            Item::Copy { to, .. } | Item::Made { to, .. } => *to,
            Item::Tool(_) => return true,
        };
        let part_of_word = |c: char| c.is_alphanumeric() || "-_./".contains(c);
        self.command.split(|c| !part_of_word(c)).any(|word| word == wanted)
    }
}

/// Puts one item into the folder that is to be packed.
fn add(workspace: &Workspace, item: &Item, programs: &[Artifact], folder: &Path) -> Result<()> {
    match *item {
        Item::Program { package, kind, name, to } => {
            let built = match kind {
                Kind::SharedLibrary => built::shared_library(programs, name),
                _ => executable(programs, kind.flag().trim_start_matches('-'), name),
            };
            let built =
                built.with_context(|| format!("cargo built no {} {name} of {package}", kind.flag()))?;
            let to = folder.join("bin").join(to);
            copy(built, &to)?;
            run(Command::new("strip").arg(&to))?;
            if kind.group() == Group::Deployed { check_deployed(built, &to) } else { Ok(()) }
        }
        Item::Tool(name) => {
            let own = workspace.cuda_bin().join(name);
            let found = if own.is_file() { Some(own) } else { Machine::current().program(name) };
            let found = found.with_context(|| format!("`{name}` is neither installed nor on the PATH"))?;
            copy(&found, &folder.join("bin").join(name))
        }
        Item::Copy { from, to } => copy(&workspace.root.join(from), &folder.join(to))
            .with_context(|| format!("cannot bundle {from}")),
        Item::C { source, to } => compile_c(&workspace.root, source, &folder.join("bin"), to),
        Item::Made { example, to } => {
            let mut cargo = workspace.cargo();
            cargo.args(["run", "--release", "--package", "tegula-precompile", "--features", "jit"]);
            run(cargo.args(["--example", example, "--"]).arg(folder.join(to)))
        }
    }
}

/// What a program without a compiler may take, stripped.
const LARGEST_DEPLOYED: u64 = 8_000_000;

/// Is a program small, and without a compiler?
fn check_deployed(program: &Path, stripped: &Path) -> Result<()> {
    let (name, size) = (program.display(), std::fs::metadata(stripped)?.len());
    ensure!(size <= LARGEST_DEPLOYED, "{name} has {size} bytes, stripped, more than {LARGEST_DEPLOYED}");
    let listed = Command::new("nm").arg(program).output().context("cannot run nm")?;
    ensure!(listed.status.success() && !listed.stdout.is_empty(), "nm cannot read {name}");
    let symbols = String::from_utf8_lossy(&listed.stdout);
    let found = compiler_symbol(&symbols);
    ensure!(found.is_none(), "{name} has a compiler in it: {}", found.unwrap_or_default());
    println!("{name}: {:.1} MB stripped, no compiler in it", size as f64 / 1e6);
    Ok(())
}

/// A symbol of LLVM's or MLIR's interface for C, or one in their namespaces for C++, in what `nm` lists. (`.llvm.` and a number behind a name is what rustc makes of local ones.)
fn compiler_symbol(listed: &str) -> Option<&str> {
    let mut names = listed.lines().filter_map(|line| line.split_whitespace().last());
    names.find(|name| {
        ["LLVM", "mlir"].iter().any(|beginning| name.starts_with(beginning))
            || name.starts_with("_Z") && ["4llvm", "4mlir"].iter().any(|space| name.contains(space))
    })
}

/// Compiles a program of C that finds the library beside itself.
fn compile_c(root: &Path, source: &str, bin: &Path, to: &str) -> Result<()> {
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wl,-rpath,$ORIGIN", "-I"]);
    compiler.args([root.join("capi/include"), root.join(source), bin.join("libtegula_rt.so")]);
    run(compiler.arg("-o").arg(bin.join(to)))
}

/// Builds the programs in the release profile, as few selections as can be: cargo builds what they share for each selection of packages anew.
/// Unit tests are one of their own, since `cargo build --lib` builds the library itself.
fn build(workspace: &Workspace, contents: &[Item]) -> Result<Vec<Artifact>> {
    let mut programs = Vec::new();
    for group in [Group::WithCompiler, Group::UnitTests, Group::Deployed] {
        let mut cargo = workspace.cargo();
        match group {
            Group::WithCompiler => cargo.arg("build"),
            Group::UnitTests => cargo.args(["test", "--no-run"]),
            Group::Deployed => cargo.args(["build", "--no-default-features"]),
        };
        cargo.arg("--release");
        let mut features = BTreeSet::new();
        let mut is_empty = true;
        for item in contents {
            let Item::Program { package, kind, name, .. } = item else { continue };
            if kind.group() != group {
                continue;
            }
            is_empty = false;
            cargo.args(["--package", package, kind.flag()]);
            match kind {
                Kind::UnitTests => drop(features.insert(format!("{package}/jit"))),
                Kind::SharedLibrary => {}
                _ => drop(cargo.arg(name)),
            }
        }
        if is_empty {
            continue;
        }
        for feature in features {
            cargo.args(["--features", &feature]);
        }
        println!("==> {}", crate::workspace::display(&cargo));
        programs.extend(built::build(&mut cargo)?);
    }
    Ok(programs)
}

impl Kind {
    fn flag(self) -> &'static str {
        match self {
            Kind::Bin | Kind::DeployedBin => "--bin",
            Kind::Example | Kind::DeployedExample => "--example",
            Kind::Test => "--test",
            Kind::Bench => "--bench",
            Kind::UnitTests | Kind::SharedLibrary => "--lib",
        }
    }

    fn group(self) -> Group {
        match self {
            Kind::Bin | Kind::Example | Kind::Test | Kind::Bench => Group::WithCompiler,
            Kind::UnitTests => Group::UnitTests,
            Kind::DeployedBin | Kind::DeployedExample | Kind::SharedLibrary => Group::Deployed,
        }
    }
}

/// What `run.sh` does before it runs anything.
///
/// PyTorch's wheels bring a cuBLAS that no linker looks for, hence the question to Python; without one, what is measured against cuBLAS says so.
/// Results go to `$OUT`, `out/` by default: a log a step, `summary.json`, and what the steps write. Nothing is cached outside of it.
const PROLOGUE: &str = r#"#!/usr/bin/env bash
# Runs what is in this bundle; `./run.sh NAME...` runs only those steps.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")"
export PATH="$PWD/bin:$PATH" OUT="${OUT:-$PWD/out}"
export TEGULA_PTXAS="${TEGULA_PTXAS:-$PWD/bin/ptxas}" TEGULA_CACHE_DIR="${TEGULA_CACHE_DIR:-$OUT/cache}" TEGULA_REQUIRE_CUDA=1
mkdir -p "$OUT"
cublas=$(python3 -c 'import nvidia.cublas as c; print(list(c.__path__)[0] + "/lib")' 2>/dev/null) &&
  export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$cublas"
wanted=" $* " passed=0 failed=0 table='' json=''
step() {
  [ "$wanted" = '  ' ] || [[ $wanted == *" $1 "* ]] || return 0
  echo "==> $1"
  local start=$SECONDS verdict=passed
  if (set -o pipefail; bash -c "$2" 2>&1 | tee "$OUT/$1.log"); then
    passed=$((passed + 1))
  else
    failed=$((failed + 1)) verdict=FAILED
    echo "    FAILED: $1"
  fi
  table+=$(printf '%-16s %-8s %6d s' "$1" "$verdict" $((SECONDS - start)))$'\n'
  json+="${json:+, }{\"step\": \"$1\", \"result\": \"$verdict\", \"seconds\": $((SECONDS - start))}"
}
"#;

/// How it closes: a table, the same as JSON, and the number of failures.
const EPILOGUE: &str = r#"echo "[$json]" > "$OUT/summary.json"
printf '\n%s' "$table"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
"#;

/// The script that runs every step, or those named, and goes on past failures.
fn run_script(steps: &[Run]) -> String {
    let mut script = String::from(PROLOGUE);
    for step in steps {
        let _ = writeln!(script, "step {} {}", shell_quoted(step.name), shell_quoted(step.command));
    }
    script.push_str(EPILOGUE);
    script
}

fn shell_quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Packs a folder as `tegula-gpu-bundle.tar.xz`, the same bytes for the same contents.
fn pack(folder: &Path, target: &Path) -> Result<PathBuf> {
    let archive = target.join("tegula-gpu-bundle.tar.xz");
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"]);
    // Most programs link LLVM: a dictionary that spans several of them stores that part once. (Higher presets take minutes for a tenth less.)
    tar.args(["--use-compress-program=xz -T1 --lzma2=preset=1,dict=512MiB", "-cf"])
        .arg(&archive)
        .arg("-C")
        .arg(folder)
        .arg(".");
    run(&mut tar)?;
    Ok(archive)
}

/// Copies a file, or a folder with all that is in it, with its mode bits.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

fn write_executable(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text)?;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: &[Run] = &[
        Run { name: "good", command: "echo it\\'s \"$PWD\"; helper" },
        Run { name: "bad", command: "exit 3" },
    ];

    /// Runs the script with these arguments; its output and whether it succeeded. Checks the summary on the way.
    fn run_it(steps: &[Run], arguments: &[&str]) -> (String, bool) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("bin")).unwrap();
        write_executable(&folder.path().join("bin/helper"), "#!/bin/sh\necho helped\n").unwrap();
        write_executable(&folder.path().join("run.sh"), &run_script(steps)).unwrap();
        let mut script = Command::new("bash");
        script.arg(folder.path().join("run.sh")).args(arguments).env_remove("OUT");
        let output = script.output().unwrap();
        let summary = std::fs::read(folder.path().join("out/summary.json")).unwrap();
        assert!(serde_json::from_slice::<Vec<serde_json::Value>>(&summary).unwrap().len() <= steps.len());
        (String::from_utf8(output.stdout).unwrap(), output.status.success())
    }

    #[test]
    fn the_script_runs_every_step_and_counts_failures() {
        let (output, passed) = run_it(STEPS, &[]);
        assert!(output.contains("it's /") && output.contains("helped"), "{output}");
        assert!(output.contains("    FAILED: bad\n\ngood "), "{output}");
        assert!(output.ends_with("\n1 passed, 1 failed\n"), "{output}");
        assert!(!passed);
    }

    #[test]
    fn the_script_runs_named_steps_only() {
        let (output, passed) = run_it(STEPS, &["good"]);
        assert!(passed && output.ends_with("1 passed, 0 failed\n"), "{output}");
        let (output, passed) = run_it(STEPS, &["absent"]);
        assert!(!passed && output.ends_with("0 passed, 0 failed\n"), "{output}");
    }

    #[test]
    fn named_steps_bring_what_they_call() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let (contents, steps) = select(CONTENTS, RUN, &names(&["speaks", "runner"])).unwrap();
        assert_eq!(steps.iter().map(|step| step.name).collect::<Vec<_>>(), ["runner", "speaks"]);
        let text = listing(&contents, &[]);
        let places: Vec<_> = text.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(places, ["bin/runner-tests", "bin/tegula-runner", "bin/ptxas"]);
        assert_eq!(select(CONTENTS, RUN, &[]).unwrap().0.len(), CONTENTS.len());
        let (contents, _) = select(CONTENTS, RUN, &names(&["bundles"])).unwrap();
        let programs: Vec<_> = contents.iter().filter(|i| matches!(i, Item::Program { .. })).collect();
        assert!(programs.len() == 3 && contents.len() == 9, "{contents:#?}");
        let error = select(CONTENTS, RUN, &names(&["tune", "tunes"])).unwrap_err().to_string();
        assert!(error.contains("no step `tunes`") && error.contains("conformance, "), "{error}");
        for step in RUN {
            let is_called = |item: &Item| !matches!(item, Item::Tool(_)) && step.needs(item);
            assert!(CONTENTS.iter().any(is_called), "{} calls nothing of the archive", step.name);
        }
        for item in CONTENTS {
            assert!(RUN.iter().any(|step| step.needs(item)), "no step calls {item:?}");
        }
    }

    #[test]
    fn compilers_are_known_by_their_symbols() {
        let rust = "0000 t _ZN3std2io5error14repr_bitpacked4drop17h0E.llvm.12345\n     U memcpy@GLIBC_2.14\n";
        assert_eq!(compiler_symbol(rust), None);
        for name in ["LLVMContextCreate", "mlirContextCreate", "_ZN4llvm5ValueD2Ev", "_ZNK4mlir4Type5printEv"]
        {
            assert_eq!(compiler_symbol(&format!("{rust}00001 T {name}\n")), Some(name));
        }
    }

    #[test]
    fn folders_are_copied_whole_and_the_listing_shows_them() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        std::fs::write(folder.path().join("a/b/c"), "x").unwrap();
        copy(&folder.path().join("a"), &folder.path().join("d/e")).unwrap();
        assert_eq!(std::fs::read(folder.path().join("d/e/b/c")).unwrap(), b"x");
        let text = listing(&[Item::Copy { from: "tests/shapes", to: "shapes" }], STEPS);
        assert!(text.contains("tests/shapes") && text.contains("./run.sh good"), "{text}");
    }
}
