//! SASS: the machine code, disassembled and counted.
//!
//! Counting is for ratchets ("this kernel has four HGMMA in its loop and not one spill"), so it keeps to what is stable
//! between versions of the disassembler: opcodes, per function.

use std::{collections::BTreeMap, fs, process::Command};

use super::{PtxasError, run, tools};

/// Disassembles a cubin with nvdisasm.
pub fn disassemble(cubin: &[u8]) -> Result<String, PtxasError> {
    let nvdisasm = tools::find("nvdisasm")?;
    let file = tempfile::Builder::new()
        .prefix("tegula-")
        .suffix(".cubin")
        .tempfile()
        .map_err(|error| PtxasError::Io { what: "making a temporary file".to_owned(), error })?;
    fs::write(file.path(), cubin)
        .map_err(|error| PtxasError::Io { what: format!("writing {}", file.path().display()), error })?;
    let output = run(Command::new(&nvdisasm).arg("--print-code").arg(file.path()), &nvdisasm)?;
    if !output.status.success() {
        return Err(PtxasError::Failed {
            tool: "nvdisasm",
            status: output.status.to_string(),
            stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// How many instructions of each opcode a function has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// By the full opcode with its modifiers, such as `LDG.E.128`.
    pub opcodes: BTreeMap<String, usize>,
}

impl Histogram {
    /// Every instruction, the padding `NOP`s left out.
    pub fn total(&self) -> usize {
        self.opcodes.iter().filter(|(opcode, _)| *opcode != "NOP").map(|(_, count)| count).sum()
    }

    /// Instructions whose opcode is `opcode`, with whatever modifiers: `count("LDG")` counts `LDG.E` and `LDG.E.128`;
    /// `count("LDG.E.128")` only the latter and what it is a prefix of.
    pub fn count(&self, opcode: &str) -> usize {
        self.opcodes
            .iter()
            .filter(|(name, _)| {
                name.strip_prefix(opcode).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            })
            .map(|(_, count)| count)
            .sum()
    }
}

/// Counts the instructions of each function in nvdisasm's text.
pub fn count(sass: &str) -> BTreeMap<String, Histogram> {
    let mut functions: BTreeMap<String, Histogram> = BTreeMap::new();
    let mut current = None;
    for line in sass.lines() {
        let line = line.trim_start();
        if let Some(name) = line.strip_prefix(".text.").and_then(|rest| rest.strip_suffix(':')) {
            current = Some(name.to_owned());
        } else if let (Some(function), Some(opcode)) = (&current, opcode(line)) {
            let histogram = functions.entry(function.clone()).or_default();
            *histogram.opcodes.entry(opcode.to_owned()).or_default() += 1;
        }
    }
    functions
}

/// The opcode of a line such as `/*0040*/  @!P0 LDG.E R2, [R2.64] ;`.
fn opcode(line: &str) -> Option<&str> {
    let (address, rest) = line.strip_prefix("/*")?.split_once("*/")?;
    if address.is_empty() || !address.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let instruction = rest.trim().trim_start_matches('{').trim_start();
    let mut words = instruction.split_whitespace();
    let first = words.next()?;
    let opcode = if first.starts_with('@') { words.next()? } else { first };
    let opcode = opcode.trim_end_matches(';');
    opcode.starts_with(|letter: char| letter.is_ascii_uppercase()).then_some(opcode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_opcodes_by_function() {
        let sass = "\
\t.section\t.text.add,\"ax\",@progbits
.text.add:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E R2, desc[UR4][R2.64] ;
        /*0020*/               @P1 LDG.E.128 R4, desc[UR4][R4.64] ;
        /*0030*/                   EXIT ;
.L_x_0:
        /*0040*/                   BRA `(.L_x_0);
        /*0050*/                   NOP;
.text.other:
        /*0000*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR4].tnspB, R24, gsb0 ;
";
        let functions = count(sass);
        let add = &functions["add"];
        assert_eq!((add.total(), add.count("LDG"), add.count("LDG.E.128"), add.count("LD")), (5, 2, 1, 0));
        assert_eq!(add.count("EXIT"), 1);
        assert_eq!(functions["other"].count("HGMMA"), 1);
    }
}
