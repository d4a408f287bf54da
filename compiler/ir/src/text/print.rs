//! Kernel → text.

use std::fmt::{self, Write};

use cranelift_entity::SecondaryMap;
use smallvec::SmallVec;

use crate::kernel::{Block, Kernel, KernelHints, Op, ParamFacts, Value, WarpSpecialize};
use crate::op::*;
use crate::types::Elem;

/// What to print besides the kernel itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrintOptions {
    /// Source locations, as `loc("file.rs":12:5)`.
    pub locs: bool,
}

/// The text of a kernel, without source locations.
pub fn print(kernel: &Kernel) -> String {
    print_with(kernel, PrintOptions::default())
}

/// The text of a kernel.
pub fn print_with(kernel: &Kernel, options: PrintOptions) -> String {
    print_annotated(kernel, options, &|_| None)
}

/// The text of a kernel with comments, such as what an analysis found: `annotate` gives the one that ends an operation's line.
pub fn print_annotated(
    kernel: &Kernel,
    options: PrintOptions,
    annotate: &dyn Fn(Op) -> Option<String>,
) -> String {
    let mut printer = Printer {
        kernel,
        options,
        annotate,
        names: SecondaryMap::new(),
        next_number: 0,
        depth: 0,
        out: String::new(),
    };
    printer.kernel().expect("writing to a String does not fail");
    printer.out
}

impl fmt::Display for Kernel {
    /// The text form without source locations; see [`crate::text`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(self))
    }
}

/// What a value is called in the text.
#[derive(Clone, Copy, Default)]
enum Name {
    /// Not defined before its use: shown, for the eyes of whoever hunts the fault, with its arena id.
    #[default]
    Undefined,
    Number(u32),
    /// Index into the kernel's parameters.
    Param(u32),
}

struct Printer<'k> {
    kernel: &'k Kernel,
    options: PrintOptions,
    annotate: &'k dyn Fn(Op) -> Option<String>,
    names: SecondaryMap<Value, Name>,
    next_number: u32,
    depth: usize,
    out: String,
}

impl Printer<'_> {
    fn kernel(&mut self) -> fmt::Result {
        let kernel = self.kernel;
        for (index, layout) in &kernel.layouts {
            writeln!(self.out, "{index} = {layout}")?;
        }
        write!(self.out, "kernel @{}(", kernel.name)?;
        for (index, param) in kernel.params.iter().enumerate() {
            self.names[param.value] = Name::Param(index as u32);
            let comma = if index > 0 { ", " } else { "" };
            write!(self.out, "{comma}%{}: {}", param.name, kernel.ty(param.value))?;
            self.out.push_str(&attrs(&fact_attrs(&param.facts)));
        }
        self.out.push(')');
        let hints = attrs(&hint_attrs(&kernel.hints));
        write!(self.out, " hints{hints} ")?;
        self.block(kernel.body)?;
        self.out.push('\n');
        Ok(())
    }

    /// `{`, the operations, `}`.
    fn block(&mut self, block: Block) -> fmt::Result {
        self.out.push_str("{\n");
        self.block_ops(block)
    }

    /// The operations of a block whose `{` (and header) is written, and `}`.
    fn block_ops(&mut self, block: Block) -> fmt::Result {
        self.depth += 1;
        for &op in &self.kernel.blocks[block].ops {
            self.indent();
            self.op(op)?;
            if let Some(comment) = (self.annotate)(op) {
                write!(self.out, "  // {comment}")?;
            }
            self.out.push('\n');
        }
        self.depth -= 1;
        self.indent();
        self.out.push('}');
        Ok(())
    }

    fn indent(&mut self) {
        self.out.extend(std::iter::repeat_n("  ", self.depth));
    }

    /// Gives a value its number.
    fn define(&mut self, value: Value) {
        self.names[value] = Name::Number(self.next_number);
        self.next_number += 1;
    }

    fn value(&self, value: Value) -> String {
        match self.names[value] {
            Name::Undefined => format!("%undefined_{}", value.as_u32()),
            Name::Number(n) => format!("%{n}"),
            Name::Param(p) => format!("%{}", self.kernel.params[p as usize].name),
        }
    }

    fn values(&self, values: &[Value]) -> String {
        values.iter().map(|&v| self.value(v)).collect::<Vec<_>>().join(", ")
    }

    fn op(&mut self, op: Op) -> fmt::Result {
        let kernel = self.kernel;
        let data = &kernel.ops[op];
        if !data.results.is_empty() {
            data.results.iter().for_each(|&r| self.define(r));
            let results = self.values(&data.results);
            write!(self.out, "{results} = ")?;
        }
        write!(self.out, "{}{}", data.opcode.mnemonic(), fixed(kernel, data))?;
        self.out.push_str(&attrs(&opcode_attrs(&data.opcode)));
        match self.form(data) {
            Form::For => self.for_op(data),
            Form::While => self.while_op(data),
            Form::If => self.if_op(data),
            Form::Generic => {
                let operands = self.operands(data);
                self.out.push_str(&operands);
                self.suffix(data)?;
                data.regions.iter().try_for_each(|&region| self.region(region))
            }
        }
    }

    /// Result types and location.
    fn suffix(&mut self, data: &OpData) -> fmt::Result {
        for (i, &result) in data.results.iter().enumerate() {
            let ty = self.kernel.ty(result);
            write!(self.out, "{} {ty}", if i == 0 { " :" } else { "," })?;
        }
        let source = &self.kernel.locs[data.loc];
        if self.options.locs && source.line != 0 {
            write!(self.out, " loc({:?}:{}:{})", source.file, source.line, source.column)?;
        }
        Ok(())
    }

    /// A region with its arguments and their types.
    fn region(&mut self, block: Block) -> fmt::Result {
        self.out.push_str(" {\n");
        let kernel = self.kernel;
        let args = &kernel.blocks[block].args;
        if !args.is_empty() {
            args.iter().for_each(|&a| self.define(a));
            let typed: Vec<String> =
                args.iter().map(|&a| format!("{}: {}", self.value(a), kernel.ty(a))).collect();
            self.indent();
            writeln!(self.out, "^({}):", typed.join(", "))?;
        }
        self.block_ops(block)
    }

    /// Operands with the brackets that show which of them are offsets, slots, extents and strides.
    fn operands(&self, data: &OpData) -> String {
        let o = &data.operands[..];
        let n = o.len();
        let one = |i: usize| self.value(o[i]);
        let group = |range: std::ops::Range<usize>| format!("[{}]", self.values(&o[range]));
        let text = match data.opcode {
            Opcode::ViewLoad { .. } | Opcode::ViewPrefetch { .. } if n > 1 => {
                format!("{}{}", one(0), group(1..n))
            }
            Opcode::ViewStore { .. } | Opcode::ViewReduceAdd if n > 2 => {
                format!("{}{}, {}", one(0), group(1..n - 1), one(n - 1))
            }
            Opcode::MakeView if n > 2 && n % 2 == 1 => {
                format!("{}, {}, {}", one(0), group(1..n.div_ceil(2)), group(n.div_ceil(2)..n))
            }
            Opcode::SharedLoad { .. } if n == 2 => format!("{}{}", one(0), group(1..2)),
            Opcode::SharedStore if n == 3 => format!("{}{}, {}", one(0), group(1..2), one(2)),
            Opcode::AsyncCopyView { .. } if n > 4 => format!(
                "{}{}, {}{}, {}",
                one(0),
                group(1..n - 3),
                one(n - 3),
                group(n - 2..n - 1),
                one(n - 1)
            ),
            Opcode::AsyncCopyPtr { .. } if n == 5 => {
                format!("{}, {}, {}{}, {}", one(0), one(1), one(2), group(3..4), one(4))
            }
            Opcode::ChannelAcquire { .. } | Opcode::ChannelWait if n == 3 => {
                format!("{}{}", one(0), group(1..3))
            }
            Opcode::ChannelRelease { .. } if n == 3 => format!("{}{}, {}", one(0), group(1..2), one(2)),
            Opcode::TensorLoad { .. } if n > 4 => format!(
                "{}{}, {}{}, {}",
                one(0),
                group(1..n - 3),
                one(n - 3),
                group(n - 2..n - 1),
                one(n - 1)
            ),
            Opcode::SlotCopy { .. } if n > 3 => {
                format!("{}{}, {}, {}", one(0), group(1..n - 2), one(n - 2), one(n - 1))
            }
            Opcode::TensorStore { .. } if n > 3 => {
                format!("{}{}, {}, {}", one(0), group(1..n - 2), one(n - 2), one(n - 1))
            }
            Opcode::ChannelStage if n == 4 => format!("{}, {}{}, {}", one(0), one(1), group(2..3), one(3)),
            Opcode::StagedStore { .. } if n > 4 => {
                format!("{}{}, {}, {}{}", one(0), group(1..n - 3), one(n - 3), one(n - 2), group(n - 1..n))
            }
            Opcode::AsyncDot { .. } if n == 5 => {
                format!("{}{}, {}{}, {}", one(0), group(1..2), one(2), group(3..4), one(4))
            }
            Opcode::AsyncDot { .. } if n == 4 => {
                format!("{}, {}{}, {}", one(0), one(1), group(2..3), one(3))
            }
            _ => self.values(o),
        };
        match data.opcode {
            _ if n == 0 => text,
            Opcode::Print { .. } | Opcode::Assert { .. } => format!(", {text}"),
            _ => format!(" {text}"),
        }
    }

    /// Which form an operation prints in: its own, if it has one and is built as that form supposes.
    fn form(&self, data: &OpData) -> Form {
        let args = |i: usize| self.kernel.blocks[data.regions[i]].args.len();
        let (operands, results, regions) = (data.operands.len(), data.results.len(), data.regions.len());
        match data.opcode {
            Opcode::For(_) if regions == 1 && operands == 3 + results && args(0) == 1 + results => Form::For,
            Opcode::While
                if regions == 2 && operands == results && args(0) == results && args(1) == results =>
            {
                Form::While
            }
            Opcode::If if regions == 2 && operands == 1 && args(0) == 0 && args(1) == 0 => Form::If,
            _ => Form::Generic,
        }
    }

    /// ` carry(%a = %init, …)`, and defines the arguments.
    fn carry(&mut self, args: &[Value], inits: &[Value]) {
        if args.is_empty() {
            return;
        }
        args.iter().for_each(|&a| self.define(a));
        let pairs: Vec<String> =
            args.iter().zip(inits).map(|(&a, &i)| format!("{} = {}", self.value(a), self.value(i))).collect();
        self.out.push_str(&format!(" carry({})", pairs.join(", ")));
    }

    fn for_op(&mut self, data: &OpData) -> fmt::Result {
        let body = data.regions[0];
        let kernel = self.kernel;
        let args = &kernel.blocks[body].args;
        let [lo, hi, step] = [0, 1, 2].map(|i| self.value(data.operands[i]));
        self.define(args[0]);
        let index = self.value(args[0]);
        write!(self.out, " {index} = {lo} to {hi} step {step}")?;
        self.carry(&args[1..], &data.operands[3..]);
        self.suffix(data)?;
        self.out.push(' ');
        self.block(body)
    }

    fn while_op(&mut self, data: &OpData) -> fmt::Result {
        let kernel = self.kernel;
        self.carry(&kernel.blocks[data.regions[0]].args, &data.operands);
        self.suffix(data)?;
        self.out.push(' ');
        self.block(data.regions[0])?;
        self.out.push_str(" do");
        let args = &kernel.blocks[data.regions[1]].args;
        if !args.is_empty() {
            args.iter().for_each(|&a| self.define(a));
            let args = self.values(args);
            write!(self.out, "({args})")?;
        }
        self.out.push(' ');
        self.block(data.regions[1])
    }

    fn if_op(&mut self, data: &OpData) -> fmt::Result {
        write!(self.out, " {}", self.value(data.operands[0]))?;
        self.suffix(data)?;
        self.out.push(' ');
        self.block(data.regions[0])?;
        let kernel = self.kernel;
        let is_empty = match kernel.blocks[data.regions[1]].ops[..] {
            [only] => {
                matches!(kernel.ops[only].opcode, Opcode::Yield) && kernel.ops[only].operands.is_empty()
            }
            _ => false,
        };
        if is_empty {
            return Ok(());
        }
        self.out.push_str(" else ");
        self.block(data.regions[1])
    }
}

#[derive(Clone, Copy)]
enum Form {
    Generic,
    For,
    While,
    If,
}

/// What stands between mnemonic and attributes.
fn fixed(kernel: &Kernel, data: &OpData) -> String {
    match &data.opcode {
        Opcode::Const(literal) => {
            let elem = data.results.first().and_then(|&r| kernel.ty(r).value_elem());
            format!(" {}", literal_text(*literal, elem))
        }
        Opcode::Iota { start } => format!(" {start}"),
        Opcode::ProgramId(n) | Opcode::NumPrograms(n) | Opcode::ViewDim(n) | Opcode::ViewStride(n) => {
            format!(" {n}")
        }
        Opcode::AsyncWait(n) | Opcode::AsyncDotWait(n) => format!(" {n}"),
        Opcode::Cmp(op) => format!(" {}", op.name()),
        Opcode::AtomicRmw { op, .. } => format!(" {}", op.name()),
        Opcode::Print { message } | Opcode::Assert { message } => format!(" {message:?}"),
        _ => String::new(),
    }
}

/// A literal of an element type, exactly.
fn literal_text(literal: Literal, elem: Option<Elem>) -> String {
    match literal {
        Literal::Int(i) => match elem {
            Some(Elem::I1) if i == 0 => "false".to_owned(),
            Some(Elem::I1) if i == 1 => "true".to_owned(),
            Some(Elem::U64) => (i as u64).to_string(),
            _ => i.to_string(),
        },
        Literal::Float(bits) => {
            let x = f64::from_bits(bits);
            match x {
                _ if bits == f64::NAN.to_bits() => "nan".to_owned(),
                _ if x.is_nan() => format!("nan({bits:#x})"),
                // Rust writes the shortest digits that read back as the same number, and always a point or an exponent.
                _ => format!("{x:?}"),
            }
        }
    }
}

/// Key and, unless it is a flag, value.
type Attrs = SmallVec<[(&'static str, Option<String>); 4]>;

/// ` {a = 1, flag}`, or nothing.
fn attrs(list: &Attrs) -> String {
    if list.is_empty() {
        return String::new();
    }
    let parts: Vec<String> = list
        .iter()
        .map(|(key, value)| match value {
            Some(value) => format!("{key} = {value}"),
            None => (*key).to_owned(),
        })
        .collect();
    format!(" {{{}}}", parts.join(", "))
}

/// Collects attributes, leaving out those at their default.
#[derive(Default)]
struct AttrList(Attrs);

impl AttrList {
    fn value(mut self, key: &'static str, value: impl ToString) -> AttrList {
        self.0.push((key, Some(value.to_string())));
        self
    }

    fn option(self, key: &'static str, value: Option<impl ToString>) -> AttrList {
        match value {
            Some(value) => self.value(key, value),
            None => self,
        }
    }

    fn flag(mut self, key: &'static str, set: bool) -> AttrList {
        if set {
            self.0.push((key, None));
        }
        self
    }

    /// A named variant, unless it is the default.
    fn named<T: Default + PartialEq>(
        self,
        key: &'static str,
        value: T,
        name: fn(T) -> &'static str,
    ) -> AttrList {
        if value == T::default() { self } else { self.value(key, name(value)) }
    }

    fn list(self, key: &'static str, values: &[u32]) -> AttrList {
        if values.is_empty() { self } else { self.value(key, format!("{values:?}")) }
    }

    fn budget(self, registers: Option<RegisterBudget>) -> AttrList {
        match registers {
            Some(b) => self.list("registers", &[b.producer, b.consumer]),
            None => self,
        }
    }

    /// A number, unless it is 0.
    fn nonzero(self, key: &'static str, value: u32) -> AttrList {
        if value == 0 { self } else { self.value(key, value) }
    }
}

fn opcode_attrs(opcode: &Opcode) -> Attrs {
    let list = AttrList::default();
    match opcode {
        Opcode::Expand { axis } | Opcode::Reduce { axis } | Opcode::Gather { axis } => {
            list.value("axis", axis)
        }
        Opcode::Scan { axis, reverse } => list.value("axis", axis).flag("reverse", *reverse),
        Opcode::Permute { perm } => list.value("perm", format!("{:?}", &perm[..])),
        Opcode::ViewPrefetch { shape } => list.value("shape", format!("{:?}", &shape[..])),
        Opcode::Cast(rounding) => list.named("rounding", *rounding, Rounding::name),
        Opcode::Dot(precision) => list.named("precision", *precision, DotPrecision::name),
        Opcode::ViewLoad { padding, cache } => {
            list.named("padding", *padding, Padding::name).named("cache", *cache, CacheHint::name)
        }
        Opcode::ViewStore { cache }
        | Opcode::Load { cache }
        | Opcode::Store { cache }
        | Opcode::AsyncCopyView { cache }
        | Opcode::AsyncCopyPtr { cache }
        | Opcode::SlotCopy { cache } => list.named("cache", *cache, CacheHint::name),
        Opcode::AtomicRmw { order, scope, .. } | Opcode::AtomicCas { order, scope } => {
            list.named("order", *order, MemOrder::name).named("scope", *scope, MemScope::name)
        }
        Opcode::For(hints) => list.option("stages", hints.stages).flag("parallel", hints.parallel),
        Opcode::WarpSpecialize(groups) => {
            let list = list.value("consumers", groups.consumers);
            let list = if groups.ctas > 1 { list.value("ctas", groups.ctas) } else { list };
            list.budget(groups.registers)
        }
        // Attributes are always there, or the region would be read as them.
        Opcode::WarpGroups(None) => list.value("registers", "auto"),
        Opcode::WarpGroups(registers) => list.budget(*registers),
        Opcode::ChannelAcquire { bytes } => list.value("bytes", bytes),
        Opcode::ChannelRelease { by_warps } => list.flag("by_warps", *by_warps),
        Opcode::TensorLoad { cache, axes, multicast } => {
            list.named("cache", *cache, CacheHint::name).list("axes", axes).flag("multicast", *multicast)
        }
        Opcode::TensorStore { axes, add } | Opcode::StagedStore { axes, add } => {
            list.list("axes", axes).flag("add", *add)
        }
        Opcode::AsyncDot { transpose_a, transpose_b, precision } => list
            .flag("transpose_a", *transpose_a)
            .flag("transpose_b", *transpose_b)
            .named("precision", *precision, DotPrecision::name),
        Opcode::Assume(Assumption::MultipleOf(n)) => list.value("multiple_of", n),
        Opcode::Assume(Assumption::Contiguous(n)) => list.value("contiguous", n),
        Opcode::SharedLoad { start, transpose } => {
            let list = if start.is_empty() { list } else { list.value("start", format!("{:?}", &start[..])) };
            list.flag("transpose", *transpose)
        }
        _ => list,
    }
    .0
}

fn fact_attrs(facts: &ParamFacts) -> Attrs {
    AttrList::default()
        .nonzero("align", facts.align)
        .nonzero("divisible", facts.divisible)
        .list("stride_divisible", &facts.stride_divisible)
        .list("dim_divisible", &facts.dim_divisible)
        .option("unit_stride", facts.unit_stride)
        .flag("small", facts.small)
        .list("long_strides", &facts.long_strides)
        .flag("tensor_map", facts.tensor_map)
        .option("value", facts.value)
        .0
}

fn hint_attrs(hints: &KernelHints) -> Attrs {
    AttrList::default()
        .value("num_warps", hints.num_warps)
        .value("num_stages", hints.num_stages)
        .option("max_registers", hints.max_registers)
        .option("min_ctas", hints.min_ctas)
        .option("cluster", (hints.cluster > 1).then_some(hints.cluster))
        .named("warp_specialize", hints.warp_specialize, WarpSpecialize::name)
        .0
}
