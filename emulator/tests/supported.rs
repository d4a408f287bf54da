//! The lists of instructions in the README: what stands under "Read" is read, what stands under "Refused" is not, and no opcode of PTX is missing.

mod support;

use std::collections::BTreeSet;

use support::kernels::module;
use tegula_emulator::Program;

const README: &str = include_str!("../README.md");

/// The opcodes of PTX ISA 9.0, chapter 9.7; of the video instructions, the scalar ones.
const OPCODES: &str = "add sub mul mad mul24 mad24 sad div rem abs neg min max popc clz bfind fns brev bfe bfi szext bmsk dp4a dp2a addc subc madc \
    testp copysign fma rcp sqrt rsqrt sin cos lg2 ex2 tanh set setp selp slct and or xor not cnot lop3 shf shl shr mov shfl prmt ld ldu st multimem \
    prefetch prefetchu applypriority discard createpolicy isspacep cvta cvt mapa getctarank cp tensormap tex tld4 txq istypep suld sust sured suq \
    bra brx call ret exit bar barrier membar fence atom red vote match activemask redux griddepcontrol elect mbarrier clusterlaunchcontrol \
    wmma mma ldmatrix stmatrix movmatrix wgmma tcgen05 stacksave stackrestore alloca vadd vsub vabsdiff vmin vmax vshl vshr vmad vset \
    brkpt nanosleep pmevent trap setmaxnreg";

/// The instructions of the list under a heading.
fn list(heading: &str) -> Vec<&'static str> {
    let (_, rest) = README.split_once(&format!("\n{heading}:\n\n```ptx\n")).expect("the README has the list");
    let (block, _) = rest.split_once("```").expect("it ends");
    block.lines().filter(|line| !line.starts_with("//")).collect()
}

/// Loads an instruction, in a kernel with labels and functions for it to name.
fn load(instruction: &str) -> Result<(), String> {
    let body = format!("$table: .branchtargets $here;\nexit;\n{instruction}\n$here:");
    let text =
        module("", "", &body).replacen(".visible .entry", ".func function()\n{\nret;\n}\n.visible .entry", 1);
    Program::load(&text).map(|_| ()).map_err(|e| e.to_string())
}

fn opcode(instruction: &str) -> &str {
    instruction.split(['.', ' ', ';']).next().unwrap_or_default()
}

#[test]
fn what_is_listed_is_read() {
    let wrong: Vec<_> = list("Read").into_iter().filter_map(|i| load(i).err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_listed_as_refused_is_refused() {
    let wrong: Vec<_> = list("Refused").into_iter().filter(|i| load(i).is_ok()).collect();
    assert!(wrong.is_empty(), "these are read: move them in emulator/README.md:\n{}", wrong.join("\n"));
}

#[test]
fn every_opcode_is_listed_where_it_belongs() {
    let opcodes = |heading: &str| list(heading).into_iter().map(opcode).collect::<BTreeSet<_>>();
    let (read, refused) = (opcodes("Read"), opcodes("Refused"));
    let all: BTreeSet<_> = OPCODES.split_whitespace().collect();
    for name in &all {
        if read.contains(name) {
            continue;
        }
        assert!(refused.contains(name), "`{name}` is on neither list of emulator/README.md");
        // Without operands nothing is right; but an opcode that is known is complained of otherwise.
        for text in [format!("{name};"), format!("{name}.f32;"), format!("{name}.async;")] {
            let error = load(&text).err().unwrap_or_default();
            assert!(
                error.contains("unknown instruction"),
                "`{name}` is known: list it as read in emulator/README.md"
            );
        }
    }
    assert!(read.union(&refused).all(|name| all.contains(name)), "a list has an opcode that PTX has not");
}
