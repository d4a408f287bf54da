//! Predicated accesses, atomics and asynchronous copies (9.7.9).

use melior::ir::{Type, ValueLike};
use tegula_ir::op::{AtomicOp, CacheHint, MemOrder, MemScope};
use tegula_ir::types::Elem;

use crate::lower::emitter::{Emitter, V};

/// The clobber that keeps LLVM from moving its own loads and stores over an assembly that touches memory.
pub(super) const MEMORY: &str = "~{memory}";

/// A register class and a mnemonic for `bits` of untyped data.
fn class(bits: u32) -> (char, &'static str) {
    match bits {
        8 => ('h', "b8"),
        16 => ('h', "b16"),
        32 => ('r', "b32"),
        64 => ('l', "b64"),
        _ => unreachable!("no register of {bits} bits"),
    }
}

fn vector_suffix(n: usize) -> &'static str {
    match n {
        1 => "",
        2 => ".v2",
        4 => ".v4",
        _ => unreachable!("vectors have 1, 2 or 4 elements"),
    }
}

fn braced(first: usize, n: usize) -> String {
    let list: Vec<String> = (first..first + n).map(|i| format!("${i}")).collect();
    if n == 1 { list[0].clone() } else { format!("{{{}}}", list.join(", ")) }
}

/// The part of a load's or store's mnemonic that says how long the line should stay.
fn eviction(cache: CacheHint) -> &'static str {
    match cache {
        CacheHint::Normal => "",
        CacheHint::EvictFirst => ".L1::no_allocate",
        CacheHint::EvictLast => ".L1::evict_last",
    }
}

/// Loads `n` words of `bits` from global memory where `predicate` holds, else gives `other` in each.
pub fn load_predicated<'c>(
    e: &Emitter<'c>,
    ptr: V<'c>,
    n: usize,
    bits: u32,
    predicate: Option<V<'c>>,
    other: V<'c>,
    cache: CacheHint,
) -> Vec<V<'c>> {
    let (c, mnemonic) = class(bits);
    // A byte travels in a 16-bit register.
    let ty: Type<'c> = if bits == 8 { e.t.i16 } else { e.t.int(bits) };
    let mut text = String::new();
    let (mut operands, mut constraints) = (vec![ptr], vec!["l".to_owned()]);
    if let Some(p) = predicate {
        let other = if bits == 8 { e.resize(other, e.t.i16, false) } else { other };
        let move_bits = bits.max(16);
        for i in 0..n {
            text.push_str(&format!("mov.b{move_bits} ${i}, ${};\n\t", n + 2));
        }
        text.push_str(&format!("@${} ", n + 1));
        operands.extend([p, other]);
        constraints.extend(["b".to_owned(), c.to_string()]);
    }
    text.push_str(&format!(
        "ld.global{}{}.{mnemonic} {}, [${n}];",
        eviction(cache),
        vector_suffix(n),
        braced(0, n)
    ));
    // The moves write before the address is read: an output must not share its register with an input (`&`).
    let early = if predicate.is_some() { "&" } else { "" };
    let outputs = (0..n).map(|_| format!("={early}{c}"));
    let constraints = outputs.chain(constraints).chain([MEMORY.to_owned()]).collect::<Vec<_>>().join(",");
    let results = e.asm(&text, &constraints, &operands, &vec![ty; n], true);
    if bits == 8 {
        results.into_iter().map(|r| e.one("arith.trunci", &[r], e.t.i8)).collect()
    } else {
        results
    }
}

/// Brings the cache line of an address in global memory to the second-level cache, where `predicate` holds.
pub fn prefetch<'c>(e: &Emitter<'c>, ptr: V<'c>, predicate: V<'c>) {
    e.asm("@$1 prefetch.global.L2 [$0];", "l,b,~{memory}", &[ptr, predicate], &[], true);
}

/// Stores words to global memory where `predicate` holds.
pub fn store_predicated<'c>(
    e: &Emitter<'c>,
    ptr: V<'c>,
    words: &[V<'c>],
    bits: u32,
    predicate: Option<V<'c>>,
    cache: CacheHint,
) {
    let (c, mnemonic) = class(bits);
    let n = words.len();
    let mut operands: Vec<V<'c>> =
        words.iter().map(|&w| if bits == 8 { e.resize(w, e.t.i16, false) } else { w }).collect();
    let mut constraints: Vec<String> = (0..n).map(|_| c.to_string()).collect();
    operands.push(ptr);
    constraints.push("l".to_owned());
    let guard = match predicate {
        Some(p) => {
            operands.push(p);
            constraints.push("b".to_owned());
            format!("@${} ", n + 1)
        }
        None => String::new(),
    };
    let text = format!(
        "{guard}st.global{}{}.{mnemonic} [${n}], {};",
        eviction(cache),
        vector_suffix(n),
        braced(0, n)
    );
    constraints.push(MEMORY.to_owned());
    e.asm(&text, &constraints.join(","), &operands, &[], true);
}

/// Starts a copy of 4, 8 or 16 bytes to shared memory; where `predicate` is false nothing is read and zeros are written.
pub fn cp_async<'c>(e: &Emitter<'c>, dst: V<'c>, src: V<'c>, bytes: u32, predicate: Option<V<'c>>) {
    // Only 16-byte copies may skip L1, which serves nobody here.
    let level = if bytes == 16 { "cg" } else { "ca" };
    match predicate {
        None => {
            let text = format!("cp.async.{level}.shared.global [$0], [$1], {bytes};");
            e.asm(&text, "r,l,~{memory}", &[dst, src], &[], true);
        }
        Some(p) => {
            // `ignore-src`: a predicate register all the way, where a source size would be selected and compared again.
            let ignore = e.xor(p, e.bool(true));
            let text = format!("cp.async.{level}.shared.global [$0], [$1], {bytes}, $2;");
            e.asm(&text, "r,l,b,~{memory}", &[dst, src, ignore], &[], true);
        }
    }
}

/// Ends a group of copies.
pub fn cp_async_commit(e: &Emitter<'_>) {
    e.asm("cp.async.commit_group;", MEMORY, &[], &[], true);
}

/// Waits until at most `n` groups of this thread's copies are outstanding.
pub fn cp_async_wait(e: &Emitter<'_>, n: u32) {
    e.asm(&format!("cp.async.wait_group {n};"), MEMORY, &[], &[], true);
}

/// Where and how an atomic works.
#[derive(Clone, Copy)]
pub struct AtomicAccess<'c> {
    /// The address.
    pub ptr: V<'c>,
    /// Where false, nothing happens and the result is unspecified.
    pub predicate: Option<V<'c>>,
    /// The element.
    pub elem: Elem,
    /// The order.
    pub order: MemOrder,
    /// The scope.
    pub scope: MemScope,
}

impl AtomicAccess<'_> {
    fn scope(&self) -> &'static str {
        match self.scope {
            MemScope::Cta => "cta",
            MemScope::Gpu => "gpu",
            MemScope::System => "sys",
        }
    }

    fn qualifiers(&self) -> String {
        let order = match self.order {
            MemOrder::Relaxed => "relaxed",
            MemOrder::Acquire => "acquire",
            MemOrder::Release => "release",
            MemOrder::AcqRel => "acq_rel",
        };
        format!("{order}.{}", self.scope())
    }
}

/// An atomic that the hardware has: adds of f16, bf16 (16 bits), f32, f64 and integers; min, max on 32- and 64-bit integers; bit
/// operations and exchanges on 32 and 64 bits.
pub fn atomic_rmw<'c>(e: &Emitter<'c>, access: AtomicAccess<'c>, op: AtomicOp, value: V<'c>) -> V<'c> {
    let elem = access.elem;
    let bits = elem.bits();
    let ty = value.r#type();
    let (name, kind) = match op {
        AtomicOp::Add => match elem {
            Elem::F16 => ("add.noftz", "f16".to_owned()),
            Elem::BF16 => ("add.noftz", "bf16".to_owned()),
            _ if elem.is_float() => ("add", format!("f{bits}")),
            // Addition wraps alike for both signs; 64 bits exist unsigned only.
            _ => ("add", format!("u{bits}")),
        },
        AtomicOp::Min => ("min", format!("{}{bits}", if elem.is_signed() { 's' } else { 'u' })),
        AtomicOp::Max => ("max", format!("{}{bits}", if elem.is_signed() { 's' } else { 'u' })),
        AtomicOp::And => ("and", format!("b{bits}")),
        AtomicOp::Or => ("or", format!("b{bits}")),
        AtomicOp::Xor => ("xor", format!("b{bits}")),
        AtomicOp::Xchg => ("exch", format!("b{bits}")),
    };
    let word = e.t.int(bits);
    let value = e.bitcast(value, word);
    let (c, _) = class(bits);
    let guard = if access.predicate.is_some() { "@$3 " } else { "" };
    let text = format!("{guard}atom.global.{}.{name}.{kind} $0, [$1], $2;", access.qualifiers());
    let mut operands = vec![access.ptr, value];
    operands.extend(access.predicate);
    let constraints = format!("={c},l,{c}{}", if access.predicate.is_some() { ",b" } else { "" });
    let old = e.asm(&text, &format!("{constraints},~{{memory}}"), &operands, &[word], true)[0];
    e.bitcast(old, ty)
}

/// Adds 1, 2 or 4 neighbours of f32 to global memory where `predicate` holds, each atomically for the GPU. (More than one: compute capability 9.0.)
pub fn reduce_add<'c>(e: &Emitter<'c>, ptr: V<'c>, values: &[V<'c>], predicate: Option<V<'c>>) {
    let n = values.len();
    let mut operands = values.to_vec();
    operands.push(ptr);
    operands.extend(predicate);
    let guard = if predicate.is_some() { format!("@${} ", n + 1) } else { String::new() };
    let text = format!("{guard}red.relaxed.gpu.global.add{}.f32 [${n}], {};", vector_suffix(n), braced(0, n));
    let constraints =
        format!("{}l{},~{{memory}}", "f,".repeat(n), if predicate.is_some() { ",b" } else { "" });
    e.asm(&text, &constraints, &operands, &[], true);
}

/// Loads 16, 32 or 64 bits that others may change meanwhile, whatever the access's order and predicate: an ordinary load would race with them
/// (PTX ISA, "Memory Consistency Model").
pub fn atomic_load<'c>(e: &Emitter<'c>, access: AtomicAccess<'c>) -> V<'c> {
    let bits = access.elem.bits();
    let (c, kind) = class(bits);
    let text = format!("ld.relaxed.{}.global.{kind} $0, [$1];", access.scope());
    let constraints = format!("={c},l,{MEMORY}");
    let loaded = e.asm(&text, &constraints, &[access.ptr], &[e.t.int(bits)], true)[0];
    e.bitcast(loaded, e.t.element(access.elem.into()))
}

/// Compare and swap of 16, 32 or 64 bits.
pub fn atomic_cas<'c>(e: &Emitter<'c>, access: AtomicAccess<'c>, expected: V<'c>, desired: V<'c>) -> V<'c> {
    let bits = access.elem.bits();
    let word = e.t.int(bits);
    let ty = expected.r#type();
    let (c, kind) = class(bits);
    let guard = if access.predicate.is_some() { "@$4 " } else { "" };
    let text = format!("{guard}atom.global.{}.cas.{kind} $0, [$1], $2, $3;", access.qualifiers());
    let mut operands = vec![access.ptr, e.bitcast(expected, word), e.bitcast(desired, word)];
    operands.extend(access.predicate);
    let constraints =
        format!("={c},l,{c},{c}{},~{{memory}}", if access.predicate.is_some() { ",b" } else { "" });
    let old = e.asm(&text, &constraints, &operands, &[word], true)[0];
    e.bitcast(old, ty)
}
