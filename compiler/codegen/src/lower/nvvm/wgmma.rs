//! Products of a warpgroup (`wgmma`, 9.7.15), and `stmatrix` (9.7.14.5.16).

use std::fmt::Write;

use melior::ir::ValueLike;

use super::memory::MEMORY;
use crate::lower::emitter::{Emitter, V};

/// The types of a product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum WgmmaKind {
    F16,
    Bf16,
    Tf32,
    E4m3,
    E5m2,
    S8,
    U8,
}

impl WgmmaKind {
    /// Depth, and the types of sum, A and B.
    fn suffix(self) -> &'static str {
        match self {
            WgmmaKind::F16 => "k16.f32.f16.f16",
            WgmmaKind::Bf16 => "k16.f32.bf16.bf16",
            WgmmaKind::Tf32 => "k8.f32.tf32.tf32",
            WgmmaKind::E4m3 => "k32.f32.e4m3.e4m3",
            WgmmaKind::E5m2 => "k32.f32.e5m2.e5m2",
            WgmmaKind::S8 => "k32.s32.s8.s8",
            WgmmaKind::U8 => "k32.s32.u8.u8",
        }
    }

    /// Are the sums integers?
    pub fn is_int(self) -> bool {
        matches!(self, WgmmaKind::S8 | WgmmaKind::U8)
    }

    fn takes_majors(self) -> bool {
        matches!(self, WgmmaKind::F16 | WgmmaKind::Bf16)
    }
}

/// Operand A of a product.
pub enum WgmmaA<'c, 'a> {
    /// A descriptor of shared memory.
    Shared(V<'c>),
    /// Four words.
    Registers(&'a [V<'c>]),
}

/// Starts acc + a · b, 64 rows by 2 · `acc.len()` columns. `mn_major`: A's, B's elements along M or N are neighbours in shared memory.
pub fn wgmma<'c>(
    e: &Emitter<'c>,
    kind: WgmmaKind,
    a: WgmmaA<'c, '_>,
    b: V<'c>,
    mn_major: (bool, bool),
    acc: &[V<'c>],
) -> Vec<V<'c>> {
    let n = acc.len();
    let list = |first: usize, count: usize| {
        (first..first + count).map(|i| format!("${i}")).collect::<Vec<_>>().join(", ")
    };
    let class = if kind.is_int() { 'r' } else { 'f' };
    let mut constraints: Vec<String> = (0..n).map(|_| format!("={class}")).collect();
    constraints.extend((0..n).map(|i| i.to_string()));
    let mut operands = acc.to_vec();
    let (a_text, a_in_registers) = match a {
        WgmmaA::Shared(descriptor) => {
            operands.push(descriptor);
            constraints.push("l".to_owned());
            (list(2 * n, 1), false)
        }
        WgmmaA::Registers(words) => {
            operands.extend(words);
            constraints.extend(words.iter().map(|_| "r".to_owned()));
            (format!("{{{}}}", list(2 * n, words.len())), true)
        }
    };
    let b_text = list(operands.len() + n, 1);
    operands.push(b);
    constraints.push("l".to_owned());
    let mut rest = String::from("p");
    if !kind.is_int() {
        rest.push_str(", 1, 1");
    }
    if kind.takes_majors() {
        if !a_in_registers {
            rest.push_str(&format!(", {}", u32::from(mn_major.0)));
        }
        rest.push_str(&format!(", {}", u32::from(mn_major.1)));
    }
    let text = format!(
        "{{\n\t.reg .pred p;\n\tsetp.ne.b32 p, 1, 0;\n\twgmma.mma_async.sync.aligned.m64n{}{} {{{}}}, {a_text}, {b_text}, {rest};\n\t}}",
        2 * n,
        kind.suffix(),
        list(0, n),
    );
    let ty = if kind.is_int() { e.t.i32 } else { e.t.f32 };
    e.asm(&text, &constraints.join(","), &operands, &vec![ty; n], true)
}

/// Registers written before are seen by the products that follow. `values` are what those read, sums and fragments: tied to the fence, so that nothing
/// is moved into their registers behind it.
pub fn wgmma_fence<'c>(e: &Emitter<'c>, values: &[V<'c>]) -> Vec<V<'c>> {
    tied(e, "wgmma.fence.sync.aligned;", values, &[])
}

/// An instruction that values in registers (f32 or words) must neither come behind nor go before; `held` is computed before it.
fn tied<'c>(e: &Emitter<'c>, text: &str, values: &[V<'c>], held: &[V<'c>]) -> Vec<V<'c>> {
    let class = |v: &V<'c>| if v.r#type() == e.t.f32 { 'f' } else { 'r' };
    let mut constraints: Vec<String> = values.iter().map(|v| format!("={}", class(v))).collect();
    constraints.extend((0..values.len()).map(|i| i.to_string()));
    constraints.extend(held.iter().map(|v| class(v).to_string()));
    constraints.push(MEMORY.to_owned());
    let types: Vec<_> = values.iter().map(|v| v.r#type()).collect();
    let operands: Vec<V<'c>> = values.iter().chain(held).copied().collect();
    e.asm(text, &constraints.join(","), &operands, &types, true)
}

/// Ends a group of products.
pub fn wgmma_commit(e: &Emitter<'_>) {
    e.asm("wgmma.commit_group.sync.aligned;", MEMORY, &[], &[], true);
}

/// Waits until at most `n` groups are outstanding. `values` are the sums (f32 or i32) that are touched afterwards: tied to the wait, so that nothing
/// touches them before. What is `held` is computed before, and keeps its registers until then.
pub fn wgmma_wait<'c>(e: &Emitter<'c>, n: u32, values: &[V<'c>], held: &[V<'c>]) -> Vec<V<'c>> {
    tied(e, &format!("wgmma.wait_group.sync.aligned {n};"), values, held)
}

/// The same word, of which no pass knows that it is: what is computed from it is computed here.
pub fn made_here<'c>(e: &Emitter<'c>, word: V<'c>) -> V<'c> {
    e.asm("mov.b32 $0, $1;", "=r,r", &[word], &[e.t.i32], true)[0]
}

/// Zero, in a register of its own: one that is zero elsewhere, too, would stay where a sum's registers must be.
pub fn zero_here<'c>(e: &Emitter<'c>) -> V<'c> {
    e.asm("mov.b32 $0, 0f00000000;", "=r", &[], &[e.t.f32], true)[0]
}

/// What these words are computed by is done before what comes after. No other order holds ptxas, which moves what it can behind a wait for the tensor cores: so the words are combined, and stored if
/// more than 32 bits of a word are set.
pub fn computed_by_now<'c>(e: &Emitter<'c>, words: &[V<'c>], anywhere: V<'c>) {
    let mut text = String::from("{\n\t.reg .b32 all;\n\t.reg .pred never;\n\tmov.b32 all, $1;");
    for pair in (2..=words.len()).collect::<Vec<_>>().chunks(2) {
        let (first, second) = (pair[0], pair[pair.len() - 1]);
        write!(text, "\n\tlop3.b32 all, all, ${first}, ${second}, 0xfe;").expect("a string takes everything");
    }
    text.push_str(
        "\n\tpopc.b32 all, all;\n\tsetp.gt.u32 never, all, 32;\n\t@never st.shared.b32 [$0], all;\n\t}",
    );
    let mut operands = vec![anywhere];
    operands.extend(words);
    e.asm(&text, &format!("r{},~{{memory}}", ",r".repeat(words.len())), &operands, &[], true);
}

/// Stores four 8 × 8 matrices of 16-bit elements; lane `8 m + r` gives the address of row `r` of matrix `m`, or of its transpose.
pub fn stmatrix<'c>(e: &Emitter<'c>, address: V<'c>, words: [V<'c>; 4], transpose: bool) {
    let [a, b, c, d] = words;
    let trans = if transpose { ".trans" } else { "" };
    e.asm(
        &format!("stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [$0], {{$1, $2, $3, $4}};"),
        "r,r,r,r,r,~{memory}",
        &[address, a, b, c, d],
        &[],
        true,
    );
}
