//! Which calls are convergent: pitfall number one of generating GPU code through LLVM.
//!
//! A barrier, a shuffle or an `mma` is executed *together* by the threads of a warp, a warpgroup or a block. LLVM's
//! scalar optimisations know nothing of other threads: without the attribute `convergent` they may sink a barrier into a branch
//! or duplicate it on both sides of one, after which half of the threads wait at the one copy and half at the other.
//! LLVM's own NVVM intrinsics carry the attribute, all but `mma` and `wmma`, which LLVM 22 takes for arithmetic; inline
//! assembly does not, MLIR 22 cannot put it there, and `convert-nvvm-to-llvm` makes inline assembly of many operations. So
//! it is put on here, right after translation and before any LLVM pass.
//!
//! Not on everything: on a pure conversion or arithmetic instruction it would forbid hoisting and merging for nothing.
//! An assembly is taken to be pure when it is not marked as having side effects *and* holds no instruction that PTX
//! defines over several threads.

use inkwell::{
    attributes::{Attribute, AttributeLoc},
    context::Context,
    module::Module,
    values::{CallSiteValue, FunctionValue},
};

use crate::ffi::{self, InlineAsm};

/// Marks functions, calls to them and inline assembly. Idempotent.
pub fn annotate(context: &Context, module: &Module<'_>) {
    let attributes = Attributes::new(context);
    for function in module.get_functions() {
        if function.get_intrinsic_id() != 0 {
            continue; // intrinsics declare for themselves what they are
        }
        attributes.mark_function(function);
        for block in function.get_basic_block_iter() {
            for instruction in block.get_instructions() {
                if let Some((asm, call)) = ffi::inline_asm_call(instruction) {
                    attributes.mark_asm(&asm, call);
                } else if let Ok(call) = CallSiteValue::try_from(instruction)
                    && ffi::intrinsic_call(instruction).is_none_or(|intrinsic| is_mma(&intrinsic.name))
                {
                    call.add_attribute(AttributeLoc::Function, attributes.convergent);
                }
            }
        }
    }
}

/// Whether the threads that execute `asm` have to do so together, or its place in control flow matters otherwise.
fn is_convergent(asm: &InlineAsm) -> bool {
    // `.sync` and `.aligned` are on every warp- or warpgroup-wide instruction since Volta (PTX ISA 9.7.9, 9.7.13–15).
    const COLLECTIVE: [&str; 5] = [".sync", ".aligned", "bar.", "barrier", "activemask"];
    asm.side_effects || COLLECTIVE.iter().any(|mark| asm.text.contains(mark))
}

/// Whether the intrinsic is one that the threads of a warp execute together and that LLVM does not say so of.
fn is_mma(intrinsic: &str) -> bool {
    ["llvm.nvvm.mma.", "llvm.nvvm.wmma."].iter().any(|prefix| intrinsic.starts_with(prefix))
}

struct Attributes {
    convergent: Attribute,
    nounwind: Attribute,
    /// `memory(none)`.
    no_memory: Attribute,
}

impl Attributes {
    fn new(context: &Context) -> Self {
        let flag = |name| context.create_enum_attribute(Attribute::get_named_enum_kind_id(name), 0);
        Self { convergent: flag("convergent"), nounwind: flag("nounwind"), no_memory: flag("memory") }
    }

    fn mark_function(&self, function: FunctionValue<'_>) {
        function.add_attribute(AttributeLoc::Function, self.convergent);
        function.add_attribute(AttributeLoc::Function, self.nounwind);
    }

    fn mark_asm(&self, asm: &InlineAsm, call: CallSiteValue<'_>) {
        call.add_attribute(AttributeLoc::Function, self.nounwind);
        if is_convergent(asm) {
            call.add_attribute(AttributeLoc::Function, self.convergent);
        }
        // What clang does for an asm statement that is neither volatile nor clobbers memory. MLIR leaves it out, and
        // LLVM then takes a conversion for something that may write to memory.
        if !asm.side_effects && !asm.constraints.contains("{memory}") {
            call.add_attribute(AttributeLoc::Function, self.no_memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asm(text: &str, side_effects: bool) -> InlineAsm {
        InlineAsm { text: text.to_owned(), constraints: String::new(), side_effects }
    }

    #[test]
    fn collective_instructions_are_convergent_even_without_side_effects() {
        for text in [
            "shfl.sync.bfly.b32 $0, $1, 1, 31, -1;",
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 …;",
            "bar.sync 1, 256;",
            "barrier.cta.arrive 2, 64;",
            "activemask.b32 $0;",
        ] {
            assert!(is_convergent(&asm(text, false)), "{text}");
        }
        for text in
            ["cvt.rn.bf16x2.f32 $0, $1, $2;", "lop3.b32 $0, $1, $2, $3, 0xea;", "ex2.approx.ftz.f32 $0, $1;"]
        {
            assert!(!is_convergent(&asm(text, false)), "{text}");
            assert!(is_convergent(&asm(text, true)), "{text} with side effects");
        }
    }
}
