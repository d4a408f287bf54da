//! Printing and assertions on the device, by the driver's `vprintf`.

use std::hash::{DefaultHasher, Hash, Hasher};

use melior::ir::attribute::{StringAttribute, TypeAttribute};
use melior::ir::operation::OperationBuilder;
use melior::ir::{Attribute, Identifier, Location, Region, Type, ValueLike};
use tegula_ir::kernel::{Op, Value};
use tegula_ir::op::{Opcode, Rounding};
use tegula_ir::types::{Elem, ElemType, TileType};

use super::emitter::V;
use super::{Lowering, Result, nvvm};

impl<'c> Lowering<'c, '_> {
    /// Lowers a print, in the form that the interpreter prints: `program (0, 0, 0) [1, 2]: message 1.5 7`, a line an element, values of one
    /// shape side by side. Each element is printed once, however many threads hold it.
    pub fn print(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let Opcode::Print { message } = &data.opcode else { unreachable!("dispatched in `op`") };
        if data.operands.is_empty() {
            let owner = self.first_of(31, self.kernel.hints.num_warps - 1);
            let text = format!("program (%d, %d, %d): {}\n", fill(message, &[]));
            self.guarded(owner, |s| {
                let pid = s.program_ids();
                s.printf(&text, &pid);
            });
        }
        let mut rest = &data.operands[..];
        while let Some(&first) = rest.first() {
            let shape = self.kernel.ty(first).shape();
            let group = rest.iter().take_while(|&&v| self.kernel.ty(v).shape() == shape).count();
            self.print_tiles(message, &rest[..group]);
            rest = &rest[group..];
        }
        Ok(())
    }

    /// Prints tiles of one shape, which layout assignment gave one layout.
    fn print_tiles(&mut self, message: &str, values: &[Value]) {
        let types: Vec<TileType> =
            values.iter().map(|&v| self.kernel.ty(v).as_tile().expect("verified: a tile")).collect();
        let regs: Vec<Vec<V<'c>>> = values.iter().map(|&v| self.regs(v)).collect();
        let coords = self.layout(values[0]).map(|l| (self.kernel.layouts[l].clone(), self.thread_coords(l)));
        let owner = self.owner_of(values[0]);
        let rank = types[0].shape.rank();
        let index = if rank == 0 { String::new() } else { format!(" [{}]", vec!["%d"; rank].join(", ")) };
        let places: Vec<&str> = types.iter().map(|t| specifier(t.elem)).collect();
        let text = format!("program (%d, %d, %d){index}: {}\n", fill(message, &places));
        let write = |s: &mut Self| {
            for r in 0..regs[0].len() {
                let mut arguments = s.program_ids();
                if let Some((layout, thread)) = &coords {
                    if layout.register_representatives()[r] as usize != r {
                        continue;
                    }
                    let own = s.register_coords(layout, r as u32);
                    arguments.extend((0..rank).map(|d| s.add_coords(layout, d, thread[d], own[d])));
                }
                arguments.extend(regs.iter().zip(&types).map(|(regs, t)| s.printable(regs[r], t.elem)));
                s.printf(&text, &arguments);
            }
        };
        match owner {
            None => write(self),
            Some(p) => self.guarded(p, write),
        }
    }

    /// Lowers an assertion: where an element is false, a message and a trap.
    pub fn assert(&mut self, op: Op) -> Result {
        let data = self.kernel.ops[op].clone();
        let Opcode::Assert { message } = &data.opcode else { unreachable!("dispatched in `op`") };
        let source = self.kernel.source(op).to_string();
        let regs = self.regs(data.operands[0]);
        let all = regs.into_iter().reduce(|a, b| self.e.and(a, b)).expect("a tile has elements");
        let failed = self.e.xor(all, self.e.bool(true));
        let text =
            format!("program (%d, %d, %d): assertion failed: {} ({})\n", escape(message), escape(&source));
        self.guarded(failed, |s| {
            let pid = s.program_ids();
            s.printf(&text, &pid);
            nvvm::trap(&s.e);
        });
        Ok(())
    }

    fn program_ids(&self) -> Vec<V<'c>> {
        ["ctaid.x", "ctaid.y", "ctaid.z"].iter().map(|r| self.e.special_register(r)).collect()
    }

    /// An element as C's variadic calls take it: f64, i32 or i64.
    fn printable(&self, v: V<'c>, elem: ElemType) -> V<'c> {
        let e = &self.e;
        match elem {
            ElemType::Ptr(_) => e.one("llvm.ptrtoint", &[v], e.t.i64),
            ElemType::Value(elem) if elem.is_float() => {
                match self.convert(v, elem, Elem::F64, Rounding::Default) {
                    Some(wide) => wide,
                    // No conversion on this target: the bits, as %f would show nothing better.
                    None => e.one("arith.uitofp", &[v], e.t.f64),
                }
            }
            ElemType::Value(elem) if elem.bits() < 32 => e.resize(v, e.t.i32, elem.is_signed()),
            ElemType::Value(_) => v,
        }
    }

    /// Calls `vprintf` with arguments at multiples of their size, as CUDA's ABI has it.
    fn printf(&mut self, text: &str, arguments: &[V<'c>]) {
        let e = &self.e;
        let format = self.message(text);
        let count = e.i32(1);
        let ty = e.ty(&format!("!llvm.array<{} x i8>", arguments.len() * 8));
        let buffer = e.one_with(
            "llvm.alloca",
            &[count],
            e.t.generic,
            &[("elem_type", e.type_attr(ty)), ("alignment", e.i64_attr(8))],
        );
        let mut at = 0;
        for &argument in arguments {
            let size = (self.bits_of(argument.r#type()) / 8) as i32;
            at = (at + size - 1) / size * size;
            e.store(argument, e.const_byte_offset(buffer, at), size as u32);
            at += size;
        }
        nvvm::vprintf(e, format, buffer);
    }

    /// The address of a constant string.
    fn message(&self, text: &str) -> V<'c> {
        let e = &self.e;
        let mut hash = DefaultHasher::new();
        text.hash(&mut hash);
        let name = format!("tegula_message_{:016x}", hash.finish());
        declare_vprintf(self);
        let bytes = text.len() + 1;
        let attr = |s: &str| e.attr(s);
        let named = |n: &str, a| (Identifier::new(e.context, n), a);
        if e.first_time(&name) {
            let op = OperationBuilder::new("llvm.mlir.global", Location::unknown(e.context))
                .add_attributes(&[
                    named("sym_name", StringAttribute::new(e.context, &name).into()),
                    named("global_type", attr(&format!("!llvm.array<{bytes} x i8>"))),
                    named("linkage", attr("#llvm.linkage<internal>")),
                    named("constant", Attribute::unit(e.context)),
                    named("addr_space", attr("0 : i32")),
                    named("value", StringAttribute::new(e.context, &format!("{text}\0")).into()),
                ])
                .add_regions([Region::new()])
                .build()
                .expect("a global");
            e.global(op);
        }
        e.one_with("llvm.mlir.addressof", &[], e.t.generic, &[("global_name", e.attr(&format!("@{name}")))])
    }
}

fn declare_vprintf(s: &Lowering<'_, '_>) {
    let e = &s.e;
    if !e.first_time("vprintf") {
        return;
    }
    let ty = Type::parse(e.context, "!llvm.func<i32 (ptr, ptr)>").expect("a function type");
    let op = OperationBuilder::new("llvm.func", Location::unknown(e.context))
        .add_attributes(&[
            (Identifier::new(e.context, "sym_name"), StringAttribute::new(e.context, "vprintf").into()),
            (Identifier::new(e.context, "function_type"), TypeAttribute::new(ty).into()),
        ])
        .add_regions([Region::new()])
        .build()
        .expect("a declaration");
    e.global(op);
}

/// The conversion that shows an element.
fn specifier(elem: ElemType) -> &'static str {
    match elem {
        ElemType::Ptr(_) => "0x%llx",
        ElemType::Value(e) if e.is_float() => "%g",
        ElemType::Value(Elem::I64) => "%lld",
        ElemType::Value(Elem::U64) => "%llu",
        ElemType::Value(e) if e.is_signed() || e == Elem::I1 => "%d",
        ElemType::Value(_) => "%u",
    }
}

/// A user's message as a format string: each `{}` becomes the next conversion, and those left over follow.
fn fill(message: &str, places: &[&str]) -> String {
    let mut places = places.iter();
    let mut pieces = message.split("{}");
    let mut text = escape(pieces.next().unwrap_or_default());
    for piece in pieces {
        text.push_str(places.next().copied().unwrap_or("{}"));
        text.push_str(&escape(piece));
    }
    for place in places {
        text.push(' ');
        text.push_str(place);
    }
    text
}

/// A user's text inside a format string.
fn escape(text: &str) -> String {
    text.replace('%', "%%").replace('\0', "")
}
