//! Walks a module's functions, resolves names to slots, and hands each instruction to the family that knows it.

use std::collections::HashMap;

use super::op::{Addr, Inst, Op, Pred, PredIn, Slot, Slots};
use super::scope::{Scopes, Symbol, slots_of};
use super::types::Type;
use super::{Constant, Function, GlobalVar, Modifiers, Param, Place, Program, SharedVar, Special};
use super::{
    asynchronous, atomic, compare, control, convert, float, flow, integer, matrix, memory, moves, operands,
    variables, warp,
};
use crate::error::{PtxError, Span};
use crate::ptx::ast::{self, Address, Instruction, Loc, Module, Operand, Statement, Variable};

/// What is known of the module while its functions are decoded.
pub(super) struct Globals<'a> {
    pub symbols: HashMap<&'a str, Symbol>,
    pub shared: Vec<SharedVar>,
    /// Functions with a body, by name.
    pub functions: HashMap<&'a str, (u32, &'a ast::Function<'a>)>,
}

/// Decodes a module.
pub(super) fn program(source: &str, module: &Module<'_>) -> Result<Program, PtxError> {
    let mut globals = Globals { symbols: HashMap::new(), shared: vec![], functions: HashMap::new() };
    let (mut global_count, mut const_bytes) = (0u32, 0u64);
    for v in &module.variables {
        let (size, align) = variables::layout(source, v)?;
        let symbol = match v.space {
            ".shared" => globals.add_shared(v, size, align),
            ".const" => {
                let at = const_bytes.next_multiple_of(align);
                const_bytes = at + size;
                Symbol::Const(at as u32)
            }
            _ => {
                global_count += 1;
                Symbol::Global(global_count - 1)
            }
        };
        if globals.symbols.insert(v.name, symbol).is_some() {
            return Err(v.span.error(source, format!("`{}` is declared twice", v.name)));
        }
    }
    let bodies = module.functions.iter().filter(|f| f.body.is_some());
    for (index, f) in bodies.clone().enumerate() {
        if globals.functions.insert(f.name, (index as u32, f)).is_some() {
            return Err(f.span.error(source, format!("`{}` is defined twice", f.name)));
        }
    }
    let mut program = Program {
        source: source.into(),
        target: module.target.to_owned(),
        files: module.files.iter().map(|&(n, name)| (n, name.to_owned())).collect(),
        functions: vec![],
        globals: vec![],
        constants: Default::default(),
        shared: vec![],
    };
    program.constants.bytes = vec![0; const_bytes as usize];
    for v in &module.variables {
        match globals.symbols[v.name] {
            Symbol::Const(at) => {
                let (bytes, relocations) = variables::initial(source, v, &globals.symbols)?;
                program.constants.bytes[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
                let moved = relocations.into_iter().map(|r| super::Relocation { at: r.at + at, ..r });
                program.constants.relocations.extend(moved);
            }
            Symbol::Global(_) => {
                let (bytes, relocations) = variables::initial(source, v, &globals.symbols)?;
                let align = variables::layout(source, v)?.1;
                program.globals.push(GlobalVar { name: v.name.to_owned(), align, bytes, relocations });
            }
            _ => {}
        }
    }
    for f in bodies {
        let function = Decoder::new(source, &mut globals).function(f)?;
        program.functions.push(function);
    }
    program.shared = globals.shared;
    Ok(program)
}

impl Globals<'_> {
    fn add_shared(&mut self, v: &Variable<'_>, size: u64, align: u64) -> Symbol {
        let dynamic = v.is_extern && size == 0;
        self.shared.push(SharedVar {
            name: v.name.to_owned(),
            align: align as u32,
            size: size as u32,
            dynamic,
        });
        Symbol::Shared(self.shared.len() as u32 - 1)
    }
}

/// Decodes one function.
pub struct Decoder<'a, 'g> {
    source: &'a str,
    globals: &'g mut Globals<'a>,
    scopes: Scopes<'a>,
    constants: HashMap<Constant, Slot>,
    /// The pc of each label, once it has been met.
    labels: Vec<Option<u32>>,
    loc: Option<Loc>,
    span: Span,
    /// What has been decoded so far.
    pub(super) out: Function,
}

impl<'a, 'g> Decoder<'a, 'g> {
    fn new(source: &'a str, globals: &'g mut Globals<'a>) -> Self {
        let out = Function { slots: 1, preds: 2, ..Function::default() };
        Decoder {
            source,
            globals,
            scopes: Scopes::default(),
            constants: HashMap::new(),
            labels: vec![],
            loc: None,
            span: Span::default(),
            out,
        }
    }

    /// An error at the current instruction.
    pub fn error<T>(&self, message: impl Into<String>) -> Result<T, PtxError> {
        Err(self.span.error(self.source, message))
    }

    /// Turns the error of a [`Modifiers`] method into one at the current instruction.
    pub fn at<T>(&self, result: Result<T, String>) -> Result<T, PtxError> {
        result.or_else(|message| self.error(message))
    }

    fn function(mut self, f: &'a ast::Function<'a>) -> Result<Function, PtxError> {
        self.out.name = f.name.to_owned();
        self.out.is_entry = f.is_entry;
        self.span = f.span;
        control::launch_bounds(&self, f).map(|bounds| self.out.bounds = bounds)?;
        self.scopes.push();
        if f.is_entry {
            let mut end = 0u64;
            for v in &f.params {
                let (size, align) = variables::layout(self.source, v)?;
                let offset = end.next_multiple_of(align);
                end = offset + size;
                self.declare(v.name, v.span, Symbol::Param(offset as u32))?;
                self.out.params.push(Param {
                    name: v.name.to_owned(),
                    offset: offset as u32,
                    size: size as u32,
                });
            }
            self.out.param_bytes = end as u32;
        } else {
            self.out.params = self.frame_params(&f.params)?;
            self.out.returns = self.frame_params(&f.returns)?;
        }
        self.block(f.body.as_ref().expect("only functions with a body are decoded"))?;
        // Falling off the end returns.
        self.span = f.span;
        self.push(PredIn::TRUE, Op::Ret);
        self.scopes.pop();
        self.patch_labels()?;
        let mut constants: Vec<_> = self.constants.iter().map(|(&c, &s)| (s, c)).collect();
        constants.sort_by_key(|c| c.0.0);
        self.out.constants = constants;
        self.out.register_names.sort_by_key(|r| r.0.0);
        self.out.order = flow::order(&self.out);
        self.out.wgmma_touches = operands::wgmma_touches(&self.out);
        Ok(self.out)
    }

    fn frame_params(&mut self, vars: &'a [Variable<'a>]) -> Result<Vec<Param>, PtxError> {
        let mut out = vec![];
        for v in vars {
            if v.space != ".param" {
                return Err(v.span.error(self.source, "parameters in registers are not supported"));
            }
            let (offset, size) = self.frame_variable(v)?;
            out.push(Param { name: v.name.to_owned(), offset, size });
        }
        Ok(out)
    }

    /// Gives a variable room in the frame: its offset and size.
    fn frame_variable(&mut self, v: &Variable<'a>) -> Result<(u32, u32), PtxError> {
        let (size, align) = variables::layout(self.source, v)?;
        let offset = u64::from(self.out.local_bytes).next_multiple_of(align);
        if offset + size > 1 << 24 {
            return Err(v.span.error(self.source, "more than 16 MiB of local variables"));
        }
        self.out.local_bytes = (offset + size) as u32;
        self.declare(v.name, v.span, Symbol::Frame(offset as u32))?;
        Ok((offset as u32, size as u32))
    }

    fn declare(&mut self, name: &'a str, span: Span, symbol: Symbol) -> Result<(), PtxError> {
        if self.scopes.declare(name, symbol) {
            Ok(())
        } else {
            Err(span.error(self.source, format!("`{name}` is declared twice")))
        }
    }

    fn block(&mut self, statements: &'a [Statement<'a>]) -> Result<(), PtxError> {
        self.scopes.push();
        // Labels may be used before they stand.
        for statement in statements {
            if let Statement::Label(name, span) = statement {
                self.labels.push(None);
                self.declare(name, *span, Symbol::Label(self.labels.len() as u32 - 1))?;
            }
        }
        for statement in statements {
            if let Statement::Targets(name, span, labels) = statement {
                self.span = *span;
                let start = self.out.targets.len() as u32;
                for label in labels {
                    let label = self.label(label)?;
                    self.out.targets.push(label);
                }
                self.declare(name, *span, Symbol::Targets(start, labels.len() as u32))?;
            }
        }
        for statement in statements {
            match statement {
                Statement::Targets(..) => {}
                Statement::Register(r) => self.register(r)?,
                Statement::Variable(v) => self.variable(v)?,
                Statement::Label(name, _) => {
                    if let Some(Symbol::Label(label)) = self.scopes.find(name) {
                        self.labels[label as usize] = Some(self.out.code.len() as u32);
                    }
                }
                Statement::Loc(loc) => self.loc = Some(*loc),
                Statement::Block(inner) => self.block(inner)?,
                Statement::Instruction(inst) => self.instruction(inst)?,
            }
        }
        self.scopes.pop();
        Ok(())
    }

    fn register(&mut self, r: &ast::Register<'a>) -> Result<(), PtxError> {
        let Some(ty) = Type::parse(r.ty.trim_start_matches('.')) else {
            return Err(r.span.error(self.source, format!("registers have no type `{}`", r.ty)));
        };
        let count = r.count.unwrap_or(1);
        let first = if ty == Type::Pred { self.out.preds } else { self.out.slots };
        let each = if ty == Type::Pred { 1 } else { slots_of(ty) };
        if first as u64 + u64::from(count) * u64::from(each) > 1 << 24 {
            return Err(r.span.error(self.source, "too many registers"));
        }
        *(if ty == Type::Pred { &mut self.out.preds } else { &mut self.out.slots }) += count * each;
        if ty != Type::Pred {
            self.out.register_names.push((Slot(first), r.count.unwrap_or(0), r.name.to_owned()));
        }
        let known = match (r.count, ty) {
            (Some(_), Type::Pred) => self.scopes.declare_range(r.name, first, count, None),
            (Some(_), _) => self.scopes.declare_range(r.name, first, count, Some(ty)),
            (None, Type::Pred) => self.scopes.declare(r.name, Symbol::Pred(Pred(first))),
            (None, _) => self.scopes.declare(r.name, Symbol::Register(Slot(first), ty)),
        };
        if known { Ok(()) } else { Err(r.span.error(self.source, format!("`{}` is declared twice", r.name))) }
    }

    fn variable(&mut self, v: &Variable<'a>) -> Result<(), PtxError> {
        match v.space {
            ".local" | ".param" => self.frame_variable(v).map(|_| ()),
            ".shared" => {
                let (size, align) = variables::layout(self.source, v)?;
                let symbol = self.globals.add_shared(v, size, align);
                self.declare(v.name, v.span, symbol)
            }
            space => {
                Err(v.span.error(self.source, format!("`{space}` variables stand outside of functions")))
            }
        }
    }

    fn patch_labels(&mut self) -> Result<(), PtxError> {
        let labels = &self.labels;
        let resolve = |label: &mut u32| {
            *label = labels[*label as usize].expect("a label that is declared stands somewhere")
        };
        for inst in &mut self.out.code {
            if let Op::Branch { target } = &mut inst.op {
                resolve(target);
            }
        }
        self.out.targets.iter_mut().for_each(resolve);
        Ok(())
    }

    /// Appends an operation.
    pub fn push(&mut self, guard: PredIn, op: Op) {
        self.out.code.push(Inst { guard, op });
        self.out.places.push(Place { span: self.span, loc: self.loc });
    }

    fn instruction(&mut self, inst: &'a Instruction<'a>) -> Result<(), PtxError> {
        self.span = inst.span;
        let guard = match inst.guard {
            None => PredIn::TRUE,
            Some((name, negated)) => PredIn { pred: self.pred_named(name)?, negated },
        };
        let mut mods = Modifiers::new(&inst.modifiers);
        let op = self.family(inst, &mut mods)?;
        self.at(mods.finish())?;
        self.push(guard, op);
        Ok(())
    }

    fn family(&mut self, inst: &'a Instruction<'a>, mods: &mut Modifiers<'_, 'a>) -> Result<Op, PtxError> {
        macro_rules! first_of {
            ($($family:ident),*) => {
                $(if let Some(op) = $family::decode(self, inst, mods)? {
                    return Ok(op);
                })*
            };
        }
        // Floats before integers: they share opcodes, and the integers take what is left.
        first_of!(
            moves,
            float,
            integer,
            compare,
            convert,
            memory,
            atomic,
            control,
            warp,
            matrix,
            asynchronous
        );
        self.error(format!("unknown instruction `{}`", inst.opcode))
    }

    /// Exactly `N` operands.
    pub fn operands<'i, const N: usize>(
        &self,
        inst: &'i Instruction<'a>,
    ) -> Result<&'i [Operand<'a>; N], PtxError> {
        match <&[Operand<'a>; N]>::try_from(inst.operands.as_slice()) {
            Ok(operands) => Ok(operands),
            Err(_) => self.error(format!("expected {N} operands, found {}", inst.operands.len())),
        }
    }

    /// The slot of a constant.
    pub fn constant(&mut self, constant: Constant) -> Slot {
        let slots = &mut self.out.slots;
        *self.constants.entry(constant).or_insert_with(|| {
            *slots += 1;
            Slot(*slots - 1)
        })
    }

    /// The slot of an immediate.
    pub fn bits(&mut self, bits: u64) -> Slot {
        self.constant(Constant::Bits(bits))
    }

    /// A register of `bits` bits or more, or a symbol's address, or a special register, by name.
    fn named(&mut self, name: &str, component: Option<&str>) -> Result<(Slot, u32), PtxError> {
        if component.is_none()
            && let Some(symbol) = self.find(name)
        {
            return match symbol {
                Symbol::Register(slot, ty) => Ok((slot, ty.bits())),
                Symbol::Pred(_) => self.error(format!("`{name}` is a predicate")),
                Symbol::Label(_) | Symbol::Targets(..) => self.error(format!("`{name}` is a label")),
                symbol => self
                    .error(format!("the address of `{name}` ({symbol:?}) must be moved to a register first")),
            };
        }
        if component.is_none() && name == "WARP_SZ" {
            return Ok((self.bits(32), 32));
        }
        match Special::parse(name, component) {
            Some(special) => Ok((self.constant(Constant::Special(special)), special.bits())),
            None if component.is_some() => {
                self.error(format!("`{name}.{}` is not known", component.unwrap_or("")))
            }
            None => self.error(format!("`{name}` is not declared")),
        }
    }

    fn find(&self, name: &str) -> Option<Symbol> {
        self.scopes.find(name).or_else(|| self.globals.symbols.get(name).copied())
    }

    /// The label of this name, as a target to be patched.
    pub fn label(&self, name: &str) -> Result<u32, PtxError> {
        match self.scopes.find(name) {
            Some(Symbol::Label(label)) => Ok(label),
            _ => self.error(format!("`{name}` is not a label here")),
        }
    }

    /// The table of branch targets of this name: its first entry and length in [`Function::targets`].
    pub fn target_table(&self, name: &str) -> Result<(u32, u32), PtxError> {
        match self.scopes.find(name) {
            Some(Symbol::Targets(start, len)) => Ok((start, len)),
            _ => self.error(format!("`{name}` is not a table of targets here")),
        }
    }

    /// The function of this name, if the module has its body.
    pub(super) fn callee(&self, name: &str) -> Option<(u32, &'a ast::Function<'a>)> {
        self.globals.functions.get(name).copied()
    }

    /// Size and alignment of a variable.
    pub(super) fn layout(&self, v: &Variable<'_>) -> Result<(u64, u64), PtxError> {
        variables::layout(self.source, v)
    }

    /// The offset in the frame of a `.param` or `.local` variable.
    pub fn frame_offset(&self, name: &str) -> Result<u32, PtxError> {
        match self.find(name) {
            Some(Symbol::Frame(offset)) => Ok(offset),
            _ => self.error(format!("`{name}` is not a parameter variable of this function")),
        }
    }

    /// A source operand of exactly the width of `ty`: a register, or an immediate converted to `ty`.
    pub fn source(&mut self, operand: &Operand<'a>, ty: Type) -> Result<Slot, PtxError> {
        let (slot, bits) = self.source_any(operand, ty)?;
        if bits != ty.bits() {
            return self.error(format!("a register of {bits} bits where {} are needed", ty.bits()));
        }
        Ok(slot)
    }

    /// A source operand that may be wider than `ty` (`st`, `cvt`): its slot and its width.
    pub fn source_any(&mut self, operand: &Operand<'a>, ty: Type) -> Result<(Slot, u32), PtxError> {
        let bits = ty.bits();
        match *operand {
            Operand::Name("_") => self.error("`_` cannot be read"),
            Operand::Name(name) => self.named(name, None),
            Operand::Component(name, component) => self.named(name, Some(component)),
            Operand::Int(value) => {
                if matches!(ty, Type::F32 | Type::F64) {
                    return self.error("an integer where a float is needed");
                }
                Ok((self.bits(truncate(value, bits)), bits))
            }
            Operand::F32(value) if bits == 32 => Ok((self.bits(u64::from(value)), bits)),
            Operand::F64(value) if ty == Type::F32 => {
                Ok((self.bits(u64::from((f64::from_bits(value) as f32).to_bits())), bits))
            }
            Operand::F64(value) if bits == 64 => Ok((self.bits(value), bits)),
            _ => self.error("not an operand that can be read here"),
        }
    }

    /// A destination register of exactly the width of `ty`, or `_`.
    pub fn dest(&mut self, operand: &Operand<'a>, ty: Type) -> Result<Slot, PtxError> {
        let (slot, bits) = self.dest_any(operand)?;
        if bits != ty.bits() && slot != Slot::SINK {
            return self.error(format!("the result has {} bits, its register {bits}", ty.bits()));
        }
        Ok(slot)
    }

    /// A destination register of any width, or `_`.
    pub fn dest_any(&mut self, operand: &Operand<'a>) -> Result<(Slot, u32), PtxError> {
        match *operand {
            Operand::Name("_") => Ok((Slot::SINK, 64)),
            Operand::Name(name) => match self.find(name) {
                Some(Symbol::Register(slot, ty)) => Ok((slot, ty.bits())),
                _ => self.error(format!("`{name}` is not a register that can be written")),
            },
            _ => self.error("not a register that can be written"),
        }
    }

    fn pred_named(&self, name: &str) -> Result<Pred, PtxError> {
        match self.find(name) {
            Some(Symbol::Pred(pred)) => Ok(pred),
            _ => self.error(format!("`{name}` is not a predicate")),
        }
    }

    /// A predicate to read: `p`, `!p`, or an integer that is 0 or not.
    pub fn pred_source(&self, operand: &Operand<'a>) -> Result<PredIn, PtxError> {
        match *operand {
            Operand::Name(name) => Ok(PredIn { pred: self.pred_named(name)?, negated: false }),
            Operand::Not(name) => Ok(PredIn { pred: self.pred_named(name)?, negated: true }),
            Operand::Int(value) => Ok(PredIn { pred: Pred::TRUE, negated: value == 0 }),
            _ => self.error("not a predicate"),
        }
    }

    /// A predicate to write, or `_`.
    pub fn pred_dest(&self, operand: &Operand<'a>) -> Result<Pred, PtxError> {
        match *operand {
            Operand::Name("_") => Ok(Pred::SINK),
            Operand::Name(name) => self.pred_named(name),
            _ => self.error("not a predicate that can be written"),
        }
    }

    /// Is this the name of a declared register?
    pub fn is_register(&self, name: &str) -> bool {
        matches!(self.find(name), Some(Symbol::Register(..)))
    }

    /// Is the operand a predicate register?
    pub fn is_pred(&self, operand: &Operand<'a>) -> bool {
        match *operand {
            Operand::Name(name) | Operand::Not(name) => matches!(self.find(name), Some(Symbol::Pred(_))),
            _ => false,
        }
    }

    /// Keeps a list of slots.
    pub fn list(&mut self, slots: &[Slot]) -> Slots {
        let start = self.out.lists.len() as u32;
        self.out.lists.extend_from_slice(slots);
        Slots { start, len: slots.len() as u32 }
    }

    /// The elements of `{a, b, …}`, or the operand itself.
    pub fn elements<'o>(operand: &'o Operand<'a>) -> &'o [Operand<'a>] {
        match operand {
            Operand::Vector(elements) => elements,
            other => std::slice::from_ref(other),
        }
    }

    /// An address operand without coordinates.
    pub fn address(&mut self, operand: &Operand<'a>) -> Result<Addr, PtxError> {
        match operand {
            Operand::Address(address) if address.coordinates.is_none() => self.addr(address),
            _ => self.error("expected an address in brackets"),
        }
    }

    /// The base and offset of what stands in brackets.
    pub fn addr(&mut self, address: &Address<'a>) -> Result<Addr, PtxError> {
        let Some(name) = address.base else { return Ok(Addr { base: self.bits(0), offset: address.offset }) };
        match self.symbol_address(name) {
            Some((base, offset)) => Ok(Addr { base, offset: offset.wrapping_add(address.offset) }),
            None => {
                let (base, bits) = self.named(name, None)?;
                if bits != 32 && bits != 64 {
                    return self.error(format!("an address in a register of {bits} bits"));
                }
                Ok(Addr { base, offset: address.offset })
            }
        }
    }

    /// Is this the name of a variable in its function's frame?
    pub fn is_frame_variable(&self, operand: &Operand<'a>) -> bool {
        let Operand::Address(Address { base: Some(name), .. }) = operand else { return false };
        matches!(self.find(name), Some(Symbol::Frame(_)))
    }

    /// The address of a variable, in its own space, as a slot plus an offset.
    pub fn symbol_address(&mut self, name: &str) -> Option<(Slot, i64)> {
        Some(match self.find(name)? {
            Symbol::Frame(offset) => (self.constant(Constant::FrameBase), i64::from(offset)),
            Symbol::Param(offset) | Symbol::Const(offset) => (self.bits(0), i64::from(offset)),
            Symbol::Shared(var) => {
                if !self.out.shared_used.contains(&var) {
                    self.out.shared_used.push(var);
                }
                (self.constant(Constant::Shared(var)), 0)
            }
            Symbol::Global(global) => (self.constant(Constant::Global(global)), 0),
            Symbol::Register(..) | Symbol::Pred(_) | Symbol::Label(_) | Symbol::Targets(..) => return None,
        })
    }
}

/// The low `bits` bits.
pub fn truncate(value: u64, bits: u32) -> u64 {
    if bits >= 64 { value } else { value & ((1 << bits) - 1) }
}
