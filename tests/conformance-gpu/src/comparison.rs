//! What a GPU and the emulator make of the same PTX: every difference, by the instructions that may be its cause.
//!
//! PTX leaves little open: the error of `.approx` instructions, the sums of matrix instructions, the order of atomics, the bits of a NaN. So a difference
//! is a *fault* (of the emulator, or of what it was told) unless a kernel has such an instruction; then it is counted under these
//! instructions, with its size in units in the last place and in parts of what the case allows. Integers may differ only where the order of
//! atomics decides, and whether a value is a NaN never.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use tegula_conformance::{Case, Outputs, Rule, number};
use tegula_ir::types::Elem;

/// All differences found so far.
#[derive(Debug, Default)]
pub struct Comparison {
    groups: BTreeMap<String, Group>,
    /// A line a buffer that differs, in the order of the cases.
    listing: Vec<String>,
    faults: Vec<String>,
}

/// The cases of one set of instructions.
#[derive(Debug, Default)]
struct Group {
    cases: usize,
    elements: usize,
    /// Elements that are not bit-equal, but for NaNs.
    different: usize,
    /// NaNs that have other bits.
    nan_bits: usize,
    most_ulps: u64,
    /// The largest difference in parts of the case's tolerance, where it has one.
    largest_part: f64,
    worst: String,
}

impl Group {
    fn append(&mut self, other: Group) {
        self.cases += other.cases;
        self.elements += other.elements;
        self.different += other.different;
        self.nan_bits += other.nan_bits;
        self.largest_part = self.largest_part.max(other.largest_part);
        if other.most_ulps > self.most_ulps {
            (self.most_ulps, self.worst) = (other.most_ulps, other.worst);
        }
    }
}

/// How one buffer differs.
#[derive(Default)]
struct Differences {
    different: usize,
    nan_bits: usize,
    most_ulps: u64,
    largest_part: f64,
    worst: String,
    fault: Option<String>,
}

impl Comparison {
    /// Adds what became of a case whose kernel is `ptx`; `label` names what it is counted under, if not the open instructions of the PTX.
    pub fn add(
        &mut self,
        case: &Case,
        ptx: &str,
        label: Option<&str>,
        emulated: &Outputs,
        hardware: &Outputs,
    ) {
        let open = open_instructions(ptx);
        let names: Vec<&str> = open.iter().map(String::as_str).collect();
        let label = match label {
            Some(label) => label.to_owned(),
            None if open.is_empty() => "none of them".to_owned(),
            None => names.join(" + "),
        };
        let group = self.groups.entry(label.clone()).or_default();
        group.cases += 1;
        for (index, buffer) in case.buffers.iter().enumerate() {
            let (_, rule) = buffer.wanted();
            let found = differences(buffer.elem, rule, &open, &emulated[index], &hardware[index]);
            group.elements += emulated[index].len();
            group.different += found.different;
            group.nan_bits += found.nan_bits;
            group.largest_part = group.largest_part.max(found.largest_part);
            let place = format!("{}, buffer {index} ({})", case.name, buffer.elem);
            if found.most_ulps > group.most_ulps {
                group.most_ulps = found.most_ulps;
                group.worst = format!("{place}: {}", found.worst);
            }
            if found.different + found.nan_bits > 0 {
                let of = emulated[index].len();
                self.listing.push(format!(
                    "{place}: {} of {of} differ, {} NaNs have other bits; at most {} ulp, {}; {label}",
                    found.different, found.nan_bits, found.most_ulps, found.worst
                ));
            }
            if let Some(fault) = found.fault {
                self.faults.push(format!("{place}: {fault}; instructions left open: {label}"));
            }
        }
    }

    /// Takes over what another one found.
    pub fn append(&mut self, other: Comparison) {
        for (label, group) in other.groups {
            self.groups.entry(label).or_default().append(group);
        }
        self.listing.extend(other.listing);
        self.faults.extend(other.faults);
    }

    /// Differences that no instruction excuses.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    /// Has anything been compared?
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// A table in Markdown, a row a set of instructions, then faults, and every buffer that differs.
    pub fn report(&self, title: &str) -> String {
        let mut text = format!(
            "# {title}\n\n| instructions whose result PTX leaves open | cases | elements | not bit-equal | at most, ulp | at most, of the tolerance | NaNs with other bits |\n\
             |---|---:|---:|---:|---:|---:|---:|\n"
        );
        for (label, g) in &self.groups {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {:.3} | {} |",
                label.split(" + ").map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" "),
                g.cases,
                g.elements,
                g.different,
                g.most_ulps,
                g.largest_part,
                g.nan_bits
            );
        }
        let _ = writeln!(text, "\n## {} faults\n", self.faults.len());
        self.faults.iter().for_each(|line| text.extend(["- ", line, "\n"]));
        text.push_str("\n## The largest difference of each\n\n");
        for (label, g) in self.groups.iter().filter(|(_, g)| g.most_ulps > 0) {
            let _ = writeln!(text, "- {label}: {} ulp: {}", g.most_ulps, g.worst);
        }
        let _ = writeln!(text, "\n## All {} buffers that differ\n", self.listing.len());
        self.listing.iter().for_each(|line| text.extend(["- ", line, "\n"]));
        text
    }
}

fn differences(
    elem: Elem,
    rule: &Rule,
    open: &BTreeSet<String>,
    emulated: &[u64],
    hardware: &[u64],
) -> Differences {
    let mut found = Differences::default();
    // Which program got which is open, and the values are what is compared.
    let sorted = |values: &[u64]| {
        let mut values = values.to_vec();
        values.sort_unstable();
        values
    };
    let (a, b) = match rule {
        Rule::Multiset => (sorted(emulated), sorted(hardware)),
        _ => (emulated.to_vec(), hardware.to_vec()),
    };
    if a.len() != b.len() {
        found.fault = Some(format!("{} elements instead of {}", a.len(), b.len()));
        return found;
    }
    let ordered_by_luck = open.iter().any(|name| is_atomic(name));
    for (i, (&a, &b)) in a.iter().zip(&b).enumerate().filter(|(_, (a, b))| a != b) {
        let shown = || format!("element {i}: emulated {}, hardware {}", show(elem, a), show(elem, b));
        if !elem.is_float() {
            found.different += 1;
            found.worst = shown();
            if !ordered_by_luck {
                found.fault.get_or_insert_with(shown);
            }
            continue;
        }
        let (x, y) = (number::float(elem, a), number::float(elem, b));
        if x.is_nan() && y.is_nan() {
            found.nan_bits += 1;
            if found.most_ulps == 0 {
                found.worst = shown();
            }
            continue;
        }
        found.different += 1;
        if x.is_nan() || y.is_nan() || open.is_empty() {
            found.fault.get_or_insert_with(shown);
        }
        let ulps = if x.is_nan() || y.is_nan() { u64::MAX } else { number::ulps(elem, a, b) };
        // −0 and +0 are no ulp apart, and not the same.
        if ulps.max(1) > found.most_ulps {
            found.most_ulps = ulps.max(1);
            found.worst = shown();
        }
        let part = match rule {
            Rule::Ulp(n) => ulps as f64 / f64::from(*n),
            Rule::Within(bounds) => (x - y).abs() / bounds[i],
            Rule::Exact | Rule::Multiset => 0.0,
        };
        if part.is_finite() {
            found.largest_part = found.largest_part.max(part);
        }
    }
    found
}

fn show(elem: Elem, bits: u64) -> String {
    let width = (elem.bits() as usize).div_ceil(4) + 2;
    if elem.is_float() {
        format!("{:e} ({bits:#0width$x})", number::float(elem, bits))
    } else {
        format!("{} ({bits:#0width$x})", number::int(elem, bits))
    }
}

fn is_atomic(name: &str) -> bool {
    name.starts_with("atom.") || name.starts_with("red.")
}

/// The instructions of a text whose results PTX leaves open to a degree: approximations, sums of matrix products, sums that ptxas may contract, and atomics
/// whose order shows in a float.
pub fn open_instructions(ptx: &str) -> BTreeSet<String> {
    let statements = ptx
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""))
        .flat_map(|line| line.split([';', '{', '}']));
    statements
        .filter_map(|statement| statement.split_whitespace().find(|word| !word.starts_with('@')))
        .filter(|name| is_open(name))
        .map(str::to_owned)
        .collect()
}

fn is_open(name: &str) -> bool {
    let mut parts = name.split('.');
    let operation = parts.next().unwrap_or("");
    let parts: Vec<&str> = parts.collect();
    let has = |part: &str| parts.contains(&part);
    let float = parts.iter().any(|p| matches!(*p, "f16" | "f16x2" | "bf16" | "bf16x2" | "f32" | "f64"));
    let rounds = ["rn", "rz", "rm", "rp"].into_iter().any(has);
    match operation {
        _ if has("approx") => true,
        "div" => has("full"),
        // A matrix product of integers is exact.
        "mma" | "wgmma" => float,
        // Which of two operations came first shows in what it returns, in rounding, and in what a loop around `cas` makes of it.
        "atom" => true,
        "red" => float,
        "add" | "sub" | "mul" | "mad" => float && !rounds,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tegula_conformance::{Expected, HostBuffer};
    use tegula_ir::kernel::Kernel;

    use super::*;

    const EX2: &str = "\t@%p1 ex2.approx.f32 %r1, %r2; // x\n\tadd.rn.f32 %r1, %r1, %r2;\n";

    fn compare(elem: Elem, rule: Rule, ptx: &str, emulated: u64, hardware: u64) -> Comparison {
        let expected = Expected { bits: vec![emulated], rule, ignore: vec![] };
        let case = Case {
            name: "case".to_owned(),
            kernel: Arc::new(Kernel::new("k")),
            grid: [1; 3],
            args: vec![],
            buffers: vec![HostBuffer { elem, initial: vec![0], expected: Some(expected) }],
            min_sm: Some(80),
        };
        let mut comparison = Comparison::default();
        comparison.add(&case, ptx, None, &vec![vec![emulated]], &vec![vec![hardware]]);
        comparison
    }

    #[test]
    fn instructions_that_leave_something_open_are_found() {
        let ptx = "{ ex2.approx.ftz.f32 a, b; }\n\t@!%p mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r1}, {%r2};\n\
                   mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r1};\nred.global.add.u32 [a], b;\nred.add.f32 [a], b;\n\
                   mul.rn.f32 a, b, c;\nmul.f32 a, b, c;\nadd.s32 a, b, c; // rcp.approx\ndiv.full.f32 a, b, c;\ndiv.rn.f32 a, b, c;\n";
        let found: Vec<String> = open_instructions(ptx).into_iter().collect();
        let wanted = [
            "div.full.f32",
            "ex2.approx.ftz.f32",
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
            "mul.f32",
            "red.add.f32",
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn floats_may_differ_where_an_instruction_allows_it() {
        let one = u64::from(1f32.to_bits());
        let comparison = compare(Elem::F32, Rule::Ulp(4), EX2, one, one + 2);
        assert_eq!(comparison.faults(), [""; 0]);
        let report = comparison.report("Title");
        assert!(report.contains("| `ex2.approx.f32` | 1 | 1 | 1 | 2 | 0.500 | 0 |"), "{report}");
        assert!(report.contains("case, buffer 0 (f32): 1 of 1 differ"), "{report}");
        let fault =
            &compare(Elem::F32, Rule::Ulp(4), "add.rn.f32 a, b, c;", one, one + 2).faults()[0].clone();
        assert!(fault.contains("emulated 1e0 (0x3f800000), hardware"), "{fault}");
    }

    #[test]
    fn integers_and_whether_a_value_is_nan_may_not_differ() {
        assert_eq!(compare(Elem::I32, Rule::Exact, EX2, 3, 4).faults().len(), 1);
        assert_eq!(compare(Elem::I32, Rule::Exact, "atom.global.add.u32 a, [b], c;", 3, 4).faults().len(), 0);
        assert_eq!(compare(Elem::I32, Rule::Exact, EX2, 3, 3).faults().len(), 0);
        let nan = u64::from(f32::NAN.to_bits());
        assert_eq!(compare(Elem::F32, Rule::Exact, EX2, nan, 0).faults().len(), 1);
        let bits = compare(Elem::F32, Rule::Exact, "add.rn.f32 a, b, c;", nan, 0x7fff_ffff);
        assert_eq!(bits.faults().len(), 0);
        assert!(
            bits.report("").contains("| `none of them` | 1 | 1 | 0 | 0 | 0.000 | 1 |"),
            "{}",
            bits.report("")
        );
    }
}
