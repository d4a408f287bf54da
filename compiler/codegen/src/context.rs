//! The MLIR context that modules are built and lowered in.
//!
//! Making one takes a millisecond (only the dialects in use are registered), but a call that compiles many small
//! kernels should not pay it each time, so every thread keeps one ([`with_context`]). MLIR never frees the types, attributes
//! and locations it has uniqued in a context; the thread's context is replaced now and then, so that an autotuner
//! compiling thousands of configurations does not grow without bound.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use melior::{
    Context,
    ir::{Location, Module},
};

use crate::{
    error::{Diagnostic, Diagnostics, Severity, SourceLocation},
    ffi,
};

/// A fresh context with the dialects `arith`, `math`, `scf`, `cf`, `ub`, `llvm` and `nvvm` loaded.
///
/// It is single-threaded and independent of every other context: one a thread is the intended use.
pub fn new_context() -> Context {
    ffi::new_context()
}

/// How many times a thread's context is handed out before it is replaced.
const USES_PER_CONTEXT: u32 = 128;

thread_local! {
    static CONTEXT: RefCell<Option<Rc<Context>>> = const { RefCell::new(None) };
    static USES: Cell<u32> = const { Cell::new(0) };
}

/// Calls `f` with this thread's context, made on first use. May be nested.
pub fn with_context<R>(f: impl FnOnce(&Context) -> R) -> R {
    let uses = USES.get();
    let context = CONTEXT.with_borrow_mut(|slot| {
        if uses.is_multiple_of(USES_PER_CONTEXT) {
            // Whoever still holds the old one keeps it alive.
            *slot = None;
        }
        Rc::clone(slot.get_or_insert_with(|| Rc::new(new_context())))
    });
    USES.set(uses.wrapping_add(1));
    f(&context)
}

/// Runs `f` and returns what it returned with the messages MLIR gave meanwhile (they do not reach standard error).
pub(crate) fn capture_diagnostics<R>(context: &Context, f: impl FnOnce() -> R) -> (R, Diagnostics) {
    let collected = Rc::new(RefCell::new(Vec::new()));
    let sink = Rc::clone(&collected);
    let id = context.attach_diagnostic_handler(move |diagnostic| {
        push(&mut sink.borrow_mut(), &diagnostic);
        true
    });
    let result = f();
    context.detach_diagnostic_handler(id);
    (result, Diagnostics(collected.take()))
}

fn push(out: &mut Vec<Diagnostic>, diagnostic: &melior::diagnostic::Diagnostic<'_>) {
    use melior::diagnostic::DiagnosticSeverity;
    out.push(Diagnostic {
        severity: match diagnostic.severity() {
            DiagnosticSeverity::Error => Severity::Error,
            DiagnosticSeverity::Warning => Severity::Warning,
            DiagnosticSeverity::Note => Severity::Note,
            DiagnosticSeverity::Remark => Severity::Remark,
        },
        location: source_location(diagnostic.location()),
        message: diagnostic.to_string(),
    });
    for index in 0..diagnostic.note_count() {
        if let Ok(note) = diagnostic.note(index) {
            push(out, &note);
        }
    }
}

/// The file position in `location`: of the callee for a call site, of the first part that has one for a fused location.
pub fn source_location(location: Location<'_>) -> Option<SourceLocation> {
    if location.is_file_line_col_range() {
        Some(SourceLocation {
            file: ffi::lossy(location.file_line_col_range_filename().as_string_ref()),
            line: u32::try_from(location.file_line_col_range_start_line()).unwrap_or(u32::MAX),
            column: u32::try_from(location.file_line_col_range_start_column()).unwrap_or(u32::MAX),
        })
    } else if location.is_call_site() {
        source_location(location.call_site_callee()).or_else(|| source_location(location.call_site_caller()))
    } else if location.is_name() {
        source_location(location.name_child_location())
    } else if location.is_fused() {
        (0..location.fused_num_locations()).find_map(|index| source_location(location.fused_location(index)))
    } else {
        None
    }
}

/// An MLIR location for a position in a kernel's source.
pub fn location<'c>(context: &'c Context, source: &SourceLocation) -> Location<'c> {
    Location::new(context, &source.file, source.line as usize, source.column as usize)
}

/// An MLIR location for a position (`callee`) inside a helper that was called, innermost caller first, from `callers`.
///
/// The LLVM IR keeps the chain (`inlinedAt`); PTX and SASS have the innermost position, `callee`.
pub fn inlined_location<'c>(
    context: &'c Context,
    callee: &SourceLocation,
    callers: &[SourceLocation],
) -> Location<'c> {
    let callee = location(context, callee);
    let Some((innermost, rest)) = callers.split_first() else { return callee };
    Location::call_site(callee, inlined_location(context, innermost, rest))
}

/// Parses and verifies MLIR text.
pub(crate) fn parse<'c>(context: &'c Context, text: &str) -> Result<Module<'c>, Diagnostics> {
    if text.contains('\0') {
        // The text goes to MLIR as a C string.
        let message = "the text contains a NUL character".to_owned();
        return Err(Diagnostics(vec![Diagnostic { severity: Severity::Error, location: None, message }]));
    }
    let (module, diagnostics) = capture_diagnostics(context, || Module::parse(context, text));
    module.ok_or(diagnostics)
}
