//! `mma.sync` and `ldmatrix` (9.7.14).

use crate::lower::emitter::{Emitter, V};

/// One shape and type of `mma.sync`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum MmaKind {
    F16F32,
    F16F16,
    Bf16F32,
    Tf32F32,
    E4m3F32,
    E5m2F32,
    S8S32,
    U8S32,
    F64,
}

impl MmaKind {
    fn suffix(self) -> &'static str {
        match self {
            MmaKind::F16F32 => "m16n8k16.row.col.f32.f16.f16.f32",
            MmaKind::F16F16 => "m16n8k16.row.col.f16.f16.f16.f16",
            MmaKind::Bf16F32 => "m16n8k16.row.col.f32.bf16.bf16.f32",
            MmaKind::Tf32F32 => "m16n8k8.row.col.f32.tf32.tf32.f32",
            MmaKind::E4m3F32 => "m16n8k32.row.col.f32.e4m3.e4m3.f32",
            MmaKind::E5m2F32 => "m16n8k32.row.col.f32.e5m2.e5m2.f32",
            MmaKind::S8S32 => "m16n8k32.row.col.s32.s8.s8.s32",
            MmaKind::U8S32 => "m16n8k32.row.col.s32.u8.u8.s32",
            MmaKind::F64 => "m8n8k4.row.col.f64.f64.f64.f64",
        }
    }

    /// Registers of (accumulator, A, B) of one instruction.
    pub fn registers(self) -> (usize, usize, usize) {
        match self {
            MmaKind::F64 => (2, 1, 1),
            MmaKind::F16F16 => (2, 4, 2),
            _ => (4, 4, 2),
        }
    }

    fn classes(self) -> (char, char) {
        match self {
            MmaKind::F64 => ('d', 'd'),
            MmaKind::F16F16 | MmaKind::S8S32 | MmaKind::U8S32 => ('r', 'r'),
            _ => ('f', 'r'),
        }
    }
}

/// acc + a · b on one instruction's fragments. Pure: the compiler may move it like an addition, if all threads move together.
pub fn mma<'c>(e: &Emitter<'c>, kind: MmaKind, a: &[V<'c>], b: &[V<'c>], acc: &[V<'c>]) -> Vec<V<'c>> {
    let (nc, na, nb) = kind.registers();
    debug_assert_eq!((acc.len(), a.len(), b.len()), (nc, na, nb));
    let group = |first: usize, n: usize| {
        let list: Vec<String> = (first..first + n).map(|i| format!("${i}")).collect();
        format!("{{{}}}", list.join(","))
    };
    let text = format!(
        "mma.sync.aligned.{} {}, {}, {}, {};",
        kind.suffix(),
        group(0, nc),
        group(nc, na),
        group(nc + na, nb),
        group(nc + na + nb, nc)
    );
    let (c, operand) = kind.classes();
    let mut constraints: Vec<String> = (0..nc).map(|_| format!("={c}")).collect();
    constraints.extend((0..na + nb).map(|_| operand.to_string()));
    constraints.extend((0..nc).map(|_| c.to_string()));
    let operands: Vec<V<'c>> = a.iter().chain(b).chain(acc).copied().collect();
    let ty = match c {
        'd' => e.t.f64,
        'f' => e.t.f32,
        _ => e.t.i32,
    };
    e.asm(&text, &constraints.join(","), &operands, &vec![ty; nc], false)
}

/// Loads `n` (1, 2 or 4) matrices of 8 rows of 16 bytes from shared memory; lane `8 m + r` gives the address of row `r` of matrix `m`.
pub fn ldmatrix<'c>(e: &Emitter<'c>, address: V<'c>, n: usize, transposed: bool) -> Vec<V<'c>> {
    // As an intrinsic: LLVM knows that it only reads memory.
    let trans = if transposed { ".trans" } else { "" };
    let name = format!("llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{n}{trans}.b16");
    if n == 1 {
        return vec![e.intrinsic(&name, &[address], e.t.i32)];
    }
    let fields = vec!["i32"; n].join(", ");
    let packed = e.intrinsic(&name, &[address], e.ty(&format!("!llvm.struct<({fields})>")));
    (0..n).map(|i| e.field(packed, i as i64, e.t.i32)).collect()
}

/// a ⊕ b, computed where it stands: LLVM does not move it out of a loop.
pub fn xor_here<'c>(e: &Emitter<'c>, a: V<'c>, b: u32) -> V<'c> {
    e.asm(&format!("xor.b32 $0, $1, {b};"), "=r,r", &[a], &[e.t.i32], true)[0]
}
