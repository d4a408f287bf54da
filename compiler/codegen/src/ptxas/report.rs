//! Reading what ptxas writes: `--verbose` reports, advisories, errors.

use super::PtxasMessage;
use crate::error::SourceLocation;

/// What ptxas said about one PTX module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PtxasReport {
    /// One a kernel, in the order of the PTX.
    pub kernels: Vec<KernelReport>,
    /// Advisories and warnings.
    pub warnings: Vec<PtxasWarning>,
}

/// What one kernel uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelReport {
    /// The `.entry`'s name.
    pub name: String,
    /// Registers of one thread.
    pub registers: u32,
    /// Bytes stored to local memory for lack of registers, counted once an instruction.
    pub spill_store_bytes: u32,
    /// Bytes loaded back.
    pub spill_load_bytes: u32,
    /// Stack frame of one thread, in bytes.
    pub stack_bytes: u32,
    /// Static shared memory of one block, in bytes.
    pub shared_bytes: u32,
    /// Named barriers.
    pub barriers: u32,
}

impl KernelReport {
    /// Whether anything spilled.
    pub fn spills(&self) -> bool {
        self.spill_store_bytes != 0 || self.spill_load_bytes != 0
    }
}

/// A warning or a performance advisory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxasWarning {
    /// NVIDIA's number, such as `C7510` (wgmma serialised) or `C7508` (`setmaxnreg` ignored).
    pub code: Option<String>,
    /// What, the code left out.
    pub message: String,
}

impl PtxasWarning {
    /// Whether ptxas gave up the asynchrony of wgmma, which costs about half of the speed.
    pub fn is_wgmma_serialization(&self) -> bool {
        self.message.contains("wgmma") && self.message.contains("serialized")
    }
}

impl PtxasReport {
    /// The report of the kernel called `name`.
    pub fn kernel(&self, name: &str) -> Option<&KernelReport> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    /// Reads the output of `ptxas --verbose`. Lines it does not know are ignored.
    pub fn parse(text: &str) -> Self {
        let mut report = Self::default();
        for line in text.lines() {
            if let Some(rest) = line.split_once("Compiling entry function '") {
                let name = rest.1.split('\'').next().unwrap_or_default().to_owned();
                report.kernels.push(KernelReport { name, ..KernelReport::default() });
            } else if line.contains("bytes stack frame") {
                if let Some(kernel) = report.kernels.last_mut() {
                    kernel.stack_bytes = number_before(line, " bytes stack frame");
                    kernel.spill_store_bytes = number_before(line, " bytes spill stores");
                    kernel.spill_load_bytes = number_before(line, " bytes spill loads");
                }
            } else if let Some((_, used)) = line.split_once(": Used ") {
                if let Some(kernel) = report.kernels.last_mut() {
                    kernel.registers = number_before(used, " registers");
                    kernel.barriers = number_before(used, " barriers");
                    kernel.shared_bytes = number_before(used, " bytes smem");
                }
            } else if let Some(warning) = warning(line) {
                report.warnings.push(warning);
            }
        }
        report
    }
}

/// The number that ends where `unit` begins; 0 if there is none.
fn number_before(line: &str, unit: &str) -> u32 {
    let Some(end) = line.find(unit) else { return 0 };
    let digits = line[..end].bytes().rev().take_while(u8::is_ascii_digit).count();
    line[end - digits..end].parse().unwrap_or(0)
}

/// `ptxas warning : …`, or `ptxas info : (C7510) …`.
fn warning(line: &str) -> Option<PtxasWarning> {
    let (head, body) = line.split_once(':')?;
    let body = body.trim();
    let coded = body.strip_prefix('(').and_then(|rest| rest.split_once(')')).filter(|(code, _)| {
        code.strip_prefix('C')
            .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
    });
    match coded {
        Some((code, message)) => {
            Some(PtxasWarning { code: Some(code.to_owned()), message: message.trim().to_owned() })
        }
        None if head.contains("ptxas") && head.contains("warning") => {
            Some(PtxasWarning { code: None, message: body.to_owned() })
        }
        None => None,
    }
}

/// The errors in ptxas's output, each with the line of `ptx` and the source line it came from.
pub(super) fn errors(text: &str, ptx: &str) -> Vec<PtxasMessage> {
    text.lines().filter_map(|line| error(line, ptx)).collect()
}

/// `ptxas /tmp/x/kernel.ptx, line 23; error : …`, or `ptxas error : …`.
fn error(line: &str, ptx: &str) -> Option<PtxasMessage> {
    let rest = line.strip_prefix("ptxas")?;
    let kind = ["error", "fatal"].iter().filter_map(|kind| rest.find(kind)).min()?;
    let (head, body) = rest.split_at(kind);
    let text = body.split_once(':')?.1.trim().to_owned();
    if text.starts_with("Ptx assembly aborted") {
        return None; // the last line of every failure: says nothing
    }
    let ptx_line = head
        .rsplit_once(", line ")
        .and_then(|(_, number)| number.split(';').next())
        .and_then(|number| number.trim().parse().ok());
    Some(PtxasMessage {
        text,
        ptx_line,
        ptx: ptx_line
            .and_then(|number| ptx.lines().nth((number as usize).checked_sub(1)?))
            .map(str::to_owned),
        source: ptx_line.and_then(|number| source_of_ptx_line(ptx, number)),
    })
}

/// The source position that line `line` (from 1) of `ptx` was generated from, by the `.loc` in force there.
pub fn source_of_ptx_line(ptx: &str, line: u32) -> Option<SourceLocation> {
    let mut position: Option<(u32, u32, u32)> = None;
    for text in ptx.lines().take(line as usize) {
        let text = text.trim_start();
        if let Some(operands) = text.strip_prefix(".loc") {
            let mut numbers =
                operands.split_whitespace().map_while(|word| word.trim_end_matches(',').parse().ok());
            position = Some((numbers.next()?, numbers.next()?, numbers.next()?));
        } else if text.starts_with("// -- End function") || text.starts_with('}') && text.len() == 1 {
            position = None;
        }
    }
    let (file, line, column) = position?;
    let name = ptx.lines().find_map(|text| {
        let (number, name) =
            text.trim_start().strip_prefix(".file")?.trim().split_once(char::is_whitespace)?;
        (number.parse() == Ok(file)).then(|| name.trim().split('"').nth(1))?
    })?;
    Some(SourceLocation { file: name.to_owned(), line, column })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERBOSE: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register resources for the wgmma pipeline in function 'gemm'
ptxas info    : Compiling entry function 'gemm' for 'sm_90a'
ptxas info    : Function properties for gemm
    40 bytes stack frame, 36 bytes spill stores, 44 bytes spill loads
ptxas info    : Used 168 registers, used 9 barriers, 40 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 12.5 ms
ptxas info    : Compiling entry function 'add' for 'sm_90a'
ptxas info    : Function properties for add
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
ptxas warning : Registers are spilled to local memory in function 'gemm', 36 bytes spill stores, 44 bytes spill loads
";

    #[test]
    fn reads_a_verbose_report() {
        let report = PtxasReport::parse(VERBOSE);
        assert_eq!(report.kernels.len(), 2);
        let gemm = report.kernel("gemm").unwrap();
        assert_eq!((gemm.registers, gemm.barriers, gemm.shared_bytes, gemm.stack_bytes), (168, 9, 1024, 40));
        assert_eq!((gemm.spill_store_bytes, gemm.spill_load_bytes), (36, 44));
        assert!(gemm.spills());
        let add = report.kernel("add").unwrap();
        assert_eq!((add.registers, add.barriers, add.shared_bytes), (12, 0, 0));
        assert!(!add.spills());
        assert_eq!(report.warnings.len(), 2);
        assert_eq!(report.warnings[0].code.as_deref(), Some("C7510"));
        assert!(report.warnings[0].is_wgmma_serialization());
        assert!(report.warnings[0].message.starts_with("Potential Performance Loss"));
        assert_eq!(report.warnings[1].code, None);
        assert!(!report.warnings[1].is_wgmma_serialization());
    }

    const PTX: &str = "\
.visible .entry k()
{
\t.loc\t1 7 3
\tmov.u32 \t%r1, %tid.x;
\t.loc\t2 41 17, function_name $L__info_string0, inlined_at 1 9 5
\tmov.u64 \t%r1, %tid.x;
\tret;
}
\t.file\t1 \"rms_norm.rs\"
\t.file\t2 \"softmax.rs\"
";

    #[test]
    fn an_error_names_the_source_line() {
        let said = "ptxas /tmp/tegula-ptxas-1/kernel.ptx, line 6; error   : Arguments mismatch for instruction 'mov'\n\
                    ptxas fatal   : Ptx assembly aborted due to errors\n";
        let errors = errors(said, PTX);
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].text, "Arguments mismatch for instruction 'mov'");
        assert_eq!(errors[0].ptx.as_deref(), Some("\tmov.u64 \t%r1, %tid.x;"));
        assert_eq!(errors[0].source.as_ref().unwrap().to_string(), "softmax.rs:41:17");
        assert_eq!(source_of_ptx_line(PTX, 4).unwrap().to_string(), "rms_norm.rs:7:3");
        assert_eq!(source_of_ptx_line(PTX, 2), None);
        assert_eq!(source_of_ptx_line(PTX, 9), None, "after the function");
    }

    #[test]
    fn errors_without_a_line_are_kept() {
        let said = "ptxas fatal   : Unresolved extern function 'helper'\n";
        assert_eq!(errors(said, PTX)[0].text, "Unresolved extern function 'helper'");
        assert!(errors("nvlink whatever\n", PTX).is_empty());
    }
}
