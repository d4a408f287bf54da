//! The only file of this crate with `unsafe`: what `melior` and `inkwell` do not wrap.
//!
//! Everything exported is safe to call with any argument. Four things live here: building a context with chosen
//! dialects, the bridge from an MLIR module to an LLVM module, debug-info attributes, and the parts of LLVM's C API
//! for inline assembly and diagnostics.

use std::{
    cell::RefCell,
    ffi::{CStr, c_char, c_void},
    marker::PhantomData,
};

use inkwell::{
    llvm_sys::{
        LLVMDiagnosticSeverity, LLVMFastMathApproxFunc,
        core::{
            LLVMCanValueUseFastMathFlags, LLVMContextSetDiagnosticHandler, LLVMDisposeMessage,
            LLVMGetCalledValue, LLVMGetDebugLocColumn, LLVMGetDebugLocFilename, LLVMGetDebugLocLine,
            LLVMGetDiagInfoDescription, LLVMGetDiagInfoSeverity, LLVMGetFastMathFlags,
            LLVMGetInlineAsmAsmString, LLVMGetInlineAsmConstraintString, LLVMGetInlineAsmHasSideEffects,
            LLVMGetIntrinsicID, LLVMGetValueName2, LLVMGetVersion, LLVMIsACallInst, LLVMIsAFunction,
            LLVMIsAInlineAsm,
        },
        prelude::LLVMDiagnosticInfoRef,
    },
    values::{AsValueRef, CallSiteValue, InstructionValue},
};
use melior::{
    Context, StringRef,
    dialect::DialectRegistry,
    ir::{Attribute, AttributeLike, Module, attribute::StringAttribute},
};
use mlir_sys::{
    MlirAttribute, MlirContext, MlirDialectHandle,
    MlirLLVMDIEmissionKind_MlirLLVMDIEmissionKindDebugDirectivesOnly,
    MlirLLVMDINameTableKind_MlirLLVMDINameTableKindNone, mlirAttributeGetNull,
    mlirDialectHandleInsertDialect, mlirDisctinctAttrCreate, mlirGetDialectHandle__arith__,
    mlirGetDialectHandle__cf__, mlirGetDialectHandle__llvm__, mlirGetDialectHandle__math__,
    mlirGetDialectHandle__nvvm__, mlirGetDialectHandle__scf__, mlirGetDialectHandle__ub__,
    mlirLLVMDICompileUnitAttrGet, mlirLLVMDIFileAttrGet, mlirLLVMDILexicalBlockFileAttrGet,
    mlirLLVMDISubprogramAttrGet, mlirLLVMDISubroutineTypeAttrGet, mlirTranslateModuleToLLVMIR,
    mlirUnitAttrGet,
};

use crate::error::SourceLocation;

unsafe extern "C" {
    // MLIR's C API registers either every translation there is (OpenMP, ROCDL, SPIR-V, …) or none. These are the
    // three in use, by their C++ names in the Itanium ABI; a C++ reference is passed as a pointer there.
    #[link_name = "_ZN4mlir33registerBuiltinDialectTranslationERNS_11MLIRContextE"]
    fn register_builtin_dialect_translation(context: *mut c_void);
    #[link_name = "_ZN4mlir30registerLLVMDialectTranslationERNS_11MLIRContextE"]
    fn register_llvm_dialect_translation(context: *mut c_void);
    #[link_name = "_ZN4mlir30registerNVVMDialectTranslationERNS_11MLIRContextE"]
    fn register_nvvm_dialect_translation(context: *mut c_void);
}

/// A context that knows the dialects of the lowering (`arith`, `math`, `scf`, `cf`, `ub`, `llvm`, `nvvm`) and the
/// translations of `llvm` and `nvvm` to LLVM IR, and nothing else. Single-threaded: starting MLIR's thread pool takes
/// longer than a kernel's whole pass pipeline.
pub(crate) fn new_context() -> Context {
    let registry = DialectRegistry::new();
    // SAFETY: these functions return handles to static tables and have no precondition.
    let handles: [MlirDialectHandle; 7] = unsafe {
        [
            mlirGetDialectHandle__arith__(),
            mlirGetDialectHandle__cf__(),
            mlirGetDialectHandle__llvm__(),
            mlirGetDialectHandle__math__(),
            mlirGetDialectHandle__nvvm__(),
            mlirGetDialectHandle__scf__(),
            mlirGetDialectHandle__ub__(),
        ]
    };
    for handle in handles {
        // SAFETY: both the handle and the registry are valid.
        unsafe { mlirDialectHandleInsertDialect(handle, registry.to_raw()) };
    }
    let context = Context::new_with_registry(&registry, false);
    context.load_all_available_dialects();
    let raw: MlirContext = context.to_raw();
    // SAFETY: `MlirContext` is a C struct around a pointer to `mlir::MLIRContext`, alive here; each function takes a
    // reference to it and only adds to its dialect registry.
    unsafe {
        register_builtin_dialect_translation(raw.ptr);
        register_llvm_dialect_translation(raw.ptr);
        register_nvvm_dialect_translation(raw.ptr);
    }
    context
}

/// Translates a module of the `llvm` and `nvvm` dialects to LLVM IR. `None` if it fails; the reason went to the MLIR
/// context's diagnostic handler.
pub(crate) fn translate_to_llvm_ir<'c>(
    module: &Module<'_>,
    llvm: &'c inkwell::context::Context,
) -> Option<inkwell::module::Module<'c>> {
    // SAFETY: the operation and the LLVM context are alive; MLIR and inkwell are linked against the same LLVM, so that
    // an `LLVMContextRef` of the one is one of the other.
    let raw = unsafe { mlirTranslateModuleToLLVMIR(module.as_operation().to_raw(), llvm.raw().cast()) };
    if raw.is_null() {
        return None;
    }
    // SAFETY: a non-null result is a module that the caller owns, made in `llvm`, which the result's lifetime keeps.
    Some(unsafe { inkwell::module::Module::new(raw.cast()) })
}

/// Debug-info attributes of the `llvm` dialect for one source file: what LLVM needs to write PTX `.loc` lines.
///
/// Only line directives: no variables and no types, like nvcc's `-lineinfo`.
pub(crate) mod debug_info {
    use super::*;

    fn attribute<'c>(raw: MlirAttribute) -> Attribute<'c> {
        // SAFETY: every caller passes an attribute that MLIR has just returned, uniqued in a living context.
        unsafe { Attribute::from_raw(raw) }
    }

    fn string(context: &Context, text: &str) -> MlirAttribute {
        StringAttribute::new(context, text).to_raw()
    }

    /// Distinct from every other attribute, as definitions in debug info have to be.
    fn distinct(context: &Context) -> MlirAttribute {
        // SAFETY: the context is alive and the unit attribute is valid.
        unsafe { mlirDisctinctAttrCreate(mlirUnitAttrGet(context.to_raw())) }
    }

    pub(crate) fn file<'c>(context: &'c Context, name: &str) -> Attribute<'c> {
        // SAFETY: the context is alive, the operands are string attributes of it.
        attribute(unsafe {
            mlirLLVMDIFileAttrGet(context.to_raw(), string(context, name), string(context, ""))
        })
    }

    pub(crate) fn compile_unit<'c>(context: &'c Context, file: Attribute<'c>) -> Attribute<'c> {
        const DW_LANG_C: u32 = 2; // DWARF has a code for Rust, ptxas and cuda-gdb know only C and C++.
        // SAFETY: the context is alive, the operands are attributes of it of the kinds asked for; a null attribute
        // stands for "no split debug file".
        attribute(unsafe {
            mlirLLVMDICompileUnitAttrGet(
                context.to_raw(),
                distinct(context),
                DW_LANG_C,
                file.to_raw(),
                string(context, "tegula"),
                true,
                MlirLLVMDIEmissionKind_MlirLLVMDIEmissionKindDebugDirectivesOnly,
                MlirLLVMDINameTableKind_MlirLLVMDINameTableKindNone,
                mlirAttributeGetNull(),
            )
        })
    }

    pub(crate) fn subprogram<'c>(
        context: &'c Context,
        compile_unit: Attribute<'c>,
        file: Attribute<'c>,
        name: &str,
        line: u32,
    ) -> Attribute<'c> {
        const DEFINITION_OPTIMIZED: u64 = 1 << 3 | 1 << 4; // DISubprogram::SPFlagDefinition | SPFlagOptimized
        // SAFETY: the context is alive, the operands are attributes of it of the kinds asked for; the lists of types,
        // retained nodes and annotations are empty, for which MLIR does not read the pointers.
        attribute(unsafe {
            let ty = mlirLLVMDISubroutineTypeAttrGet(context.to_raw(), 0, 0, std::ptr::null());
            mlirLLVMDISubprogramAttrGet(
                context.to_raw(),
                mlirAttributeGetNull(),
                false,
                distinct(context),
                compile_unit.to_raw(),
                file.to_raw(),
                string(context, name),
                string(context, name),
                file.to_raw(),
                line,
                line,
                DEFINITION_OPTIMIZED,
                ty,
                0,
                std::ptr::null(),
                0,
                std::ptr::null(),
            )
        })
    }

    /// `scope`, but in another file.
    pub(crate) fn lexical_block_file<'c>(
        context: &'c Context,
        scope: Attribute<'c>,
        file: Attribute<'c>,
    ) -> Attribute<'c> {
        // SAFETY: the context is alive, the operands are a scope and a file attribute of it.
        attribute(unsafe {
            mlirLLVMDILexicalBlockFileAttrGet(context.to_raw(), scope.to_raw(), file.to_raw(), 0)
        })
    }
}

/// The inline assembly that a call instruction calls.
pub(crate) struct InlineAsm {
    /// The PTX text.
    pub(crate) text: String,
    /// LLVM's constraint string; holds `~{memory}` for one that touches memory.
    pub(crate) constraints: String,
    /// Whether it is marked as having side effects (`asm volatile`).
    pub(crate) side_effects: bool,
}

/// The inline assembly called by `instruction`, and the call; `None` for any other instruction.
pub(crate) fn inline_asm_call<'c>(
    instruction: InstructionValue<'c>,
) -> Option<(InlineAsm, CallSiteValue<'c>)> {
    let raw = instruction.as_value_ref();
    // SAFETY: `raw` is a living instruction. `LLVMIsA…` answer null for a value of another kind; the getters after
    // them are applied to values of the right kind, and the strings they return are copied before the module changes.
    unsafe {
        if LLVMIsACallInst(raw).is_null() {
            return None;
        }
        let asm = LLVMIsAInlineAsm(LLVMGetCalledValue(raw));
        if asm.is_null() {
            return None;
        }
        let read = |get: unsafe extern "C" fn(_, *mut usize) -> *const c_char| {
            let mut length = 0;
            let data = get(asm, &mut length);
            String::from_utf8_lossy(std::slice::from_raw_parts(data.cast::<u8>(), length)).into_owned()
        };
        let asm = InlineAsm {
            text: read(LLVMGetInlineAsmAsmString),
            constraints: read(LLVMGetInlineAsmConstraintString),
            side_effects: LLVMGetInlineAsmHasSideEffects(asm) != 0,
        };
        Some((asm, CallSiteValue::new(raw)))
    }
}

/// A call of one of LLVM's intrinsics.
pub(crate) struct IntrinsicCall {
    /// The full name, such as `llvm.nvvm.barrier.cta.sync.aligned.all`.
    pub(crate) name: String,
    /// Whether the call has the fast-math flag `afn`.
    pub(crate) approximate: bool,
}

/// The intrinsic called by `instruction`; `None` for any other instruction.
pub(crate) fn intrinsic_call(instruction: InstructionValue<'_>) -> Option<IntrinsicCall> {
    let raw = instruction.as_value_ref();
    // SAFETY: `raw` is a living instruction. `LLVMIsA…` answer null for a value of another kind; the getters after them are
    // applied to values of the right kind, and the name is copied before the module changes.
    unsafe {
        if LLVMIsACallInst(raw).is_null() {
            return None;
        }
        let callee = LLVMIsAFunction(LLVMGetCalledValue(raw));
        if callee.is_null() || LLVMGetIntrinsicID(callee) == 0 {
            return None;
        }
        let mut length = 0;
        let name = LLVMGetValueName2(callee, &mut length);
        Some(IntrinsicCall {
            name: String::from_utf8_lossy(std::slice::from_raw_parts(name.cast::<u8>(), length)).into_owned(),
            approximate: LLVMCanValueUseFastMathFlags(raw) != 0
                && LLVMGetFastMathFlags(raw) & LLVMFastMathApproxFunc != 0,
        })
    }
}

/// The source position of an instruction, by its debug info.
pub(crate) fn source_location(instruction: InstructionValue<'_>) -> Option<SourceLocation> {
    let raw = instruction.as_value_ref();
    // SAFETY: `raw` is a living instruction; without debug info the getters answer 0 and an empty name, which is not
    // read. The name is copied.
    unsafe {
        let line = LLVMGetDebugLocLine(raw);
        let mut length = 0;
        let file = LLVMGetDebugLocFilename(raw, &mut length);
        if line == 0 || file.is_null() {
            return None;
        }
        let file = std::slice::from_raw_parts(file.cast::<u8>(), length as usize);
        Some(SourceLocation {
            file: String::from_utf8_lossy(file).into_owned(),
            line,
            column: LLVMGetDebugLocColumn(raw),
        })
    }
}

/// The version of the LLVM that is linked in.
pub(crate) fn llvm_version() -> (u32, u32, u32) {
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: three places to write to.
    unsafe { LLVMGetVersion(&mut major, &mut minor, &mut patch) };
    (major, minor, patch)
}

/// Collects what LLVM reports through its diagnostics while this value lives.
///
/// Without it LLVM prints an error to standard error and *ends the process*.
pub(crate) struct LlvmDiagnostics<'c> {
    context: &'c inkwell::context::Context,
    // Boxed: LLVM holds its address.
    errors: Box<RefCell<Vec<String>>>,
    not_send: PhantomData<*const ()>,
}

impl<'c> LlvmDiagnostics<'c> {
    pub(crate) fn capture(context: &'c inkwell::context::Context) -> Self {
        let errors = Box::new(RefCell::new(Vec::new()));
        let data: *const RefCell<Vec<String>> = &*errors;
        // SAFETY: the context is alive; the handler gets `data`, which lives until `drop` has removed the handler.
        unsafe { LLVMContextSetDiagnosticHandler(context.raw(), Some(collect), data.cast_mut().cast()) };
        Self { context, errors, not_send: PhantomData }
    }

    /// The errors so far, one a line; `None` if there was none.
    pub(crate) fn take(&self) -> Option<String> {
        let errors = self.errors.take();
        (!errors.is_empty()).then(|| errors.join("\n"))
    }
}

impl Drop for LlvmDiagnostics<'_> {
    fn drop(&mut self) {
        // SAFETY: the context is alive; no handler means LLVM's own.
        unsafe { LLVMContextSetDiagnosticHandler(self.context.raw(), None, std::ptr::null_mut()) };
    }
}

extern "C" fn collect(info: LLVMDiagnosticInfoRef, data: *mut c_void) {
    // SAFETY: LLVM calls this with a living diagnostic and the pointer given in `LlvmDiagnostics::capture`; the
    // description is a C string that the caller owns and has to dispose of.
    unsafe {
        if LLVMGetDiagInfoSeverity(info) != LLVMDiagnosticSeverity::LLVMDSError {
            return;
        }
        let description = LLVMGetDiagInfoDescription(info);
        let message = CStr::from_ptr(description).to_string_lossy().into_owned();
        LLVMDisposeMessage(description);
        (*data.cast::<RefCell<Vec<String>>>()).borrow_mut().push(message);
    }
}

/// Text of MLIR's that is UTF-8 where it came from us, and might not be where a user's file name came in.
pub(crate) fn lossy(text: StringRef<'_>) -> String {
    let raw = text.to_raw();
    if raw.length == 0 {
        return String::new();
    }
    // SAFETY: a `StringRef` is a pointer and a length of living bytes.
    String::from_utf8_lossy(unsafe { std::slice::from_raw_parts(raw.data.cast::<u8>(), raw.length) })
        .into_owned()
}

/// A value with the context's lifetime in place of its block's.
///
/// `melior` ties a value to the borrow of the block or operation that it was read from, so that it cannot outlive them. The lowering
/// keeps values in tables while it goes on filling blocks and moving finished regions into operations, which that cannot
/// express.
pub(crate) fn detach<'c>(value: melior::ir::Value<'c, '_>) -> melior::ir::Value<'c, 'c> {
    use melior::ir::ValueLike;
    // SAFETY: an MLIR value lives as long as its operation or block, which here are part of the module under construction from the
    // start or become part of it, by `Region` and `Operation` ownership, before anything is erased; the lowering erases
    // nothing and drops its tables before the module.
    unsafe { melior::ir::Value::from_raw(value.to_raw()) }
}

/// A block with the context's lifetime; see [`detach`].
pub(crate) fn detach_block<'c>(block: melior::ir::BlockRef<'c, '_>) -> melior::ir::BlockRef<'c, 'c> {
    // SAFETY: as for `detach`: blocks are moved with their region, never freed, while the lowering runs.
    unsafe { melior::ir::BlockRef::from_raw(block.to_raw()) }
}
