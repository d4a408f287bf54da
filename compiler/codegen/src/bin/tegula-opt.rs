//! `tegula-opt`: runs parts of the compiler over a file of tile IR and prints what comes out.

use std::io::Read;
use std::process::ExitCode;

use tegula_codegen::compile::{compile, schedule};
use tegula_codegen::emit::{Assemble, Emit, Options};
use tegula_codegen::target::Target;
use tegula_ir::text;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("tegula-opt: {message}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<(), String> {
    let mut file = None;
    let mut emit = "ptx".to_owned();
    let mut target = "sm_90a".to_owned();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--emit" => emit = args.next().ok_or("--emit needs a stage")?,
            "--target" => target = args.next().ok_or("--target needs a name")?,
            _ => file = Some(arg),
        }
    }
    let source = match file.as_deref() {
        None | Some("-") => {
            let mut s = String::new();
            std::io::stdin().read_to_string(&mut s).map_err(|e| e.to_string())?;
            s
        }
        Some(path) => std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?,
    };
    let target = Target::from_name(&target).map_err(|e| e.to_string())?;
    let kernels =
        text::parse(&source).map_err(|e| e.render(file.as_deref().unwrap_or("<stdin>"), &source))?;
    for kernel in kernels {
        if let Err(errors) = tegula_ir::verify::verify(&kernel) {
            let list: Vec<String> = errors.iter().map(|e| e.to_string()).collect();
            return Err(list.join("\n"));
        }
        if emit == "tile" {
            println!("{}", text::print(&kernel));
            continue;
        }
        if emit == "tile-scheduled" {
            let scheduled = schedule(&kernel, target).map_err(|e| e.to_string())?;
            println!("{}", text::print(&scheduled.kernel));
            continue;
        }
        let options = Options {
            emit: Emit {
                mlir: emit == "mlir",
                llvm: emit == "llvm",
                sass: emit == "sass",
                ..Emit::default()
            },
            assemble: if emit == "sass" || emit == "report" { Assemble::Require } else { Assemble::No },
            ..Options::default()
        };
        let c = compile(&kernel, target, &options).map_err(|e| e.to_string())?;
        match emit.as_str() {
            "mlir" => println!("{}", c.artifacts.mlir.unwrap_or_default()),
            "llvm" => println!("{}", c.artifacts.llvm.unwrap_or_default()),
            "ptx" => println!("{}", c.artifacts.ptx),
            "sass" => println!("{}", c.artifacts.sass.unwrap_or_default()),
            "report" => {
                println!("{}: {:?}", c.kernel.entry, c.kernel.report);
                println!("schedule {:?} lower {:?} {:?}", c.schedule_time, c.lower_time, c.artifacts.times);
            }
            other => {
                return Err(format!(
                    "unknown stage `{other}`: tile, tile-scheduled, mlir, llvm, ptx, sass, report"
                ));
            }
        }
    }
    Ok(())
}
