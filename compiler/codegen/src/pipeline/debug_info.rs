//! Gives MLIR locations the scopes LLVM needs to write them as PTX `.loc` lines.
//!
//! LLVM wants every position inside a subprogram; MLIR's locations are bare files and lines. Each function becomes a
//! subprogram of its own file, a position in another file (a helper the kernel called while it was staged) a lexical block
//! of that file, and a call-site location an inlined subprogram of the callee's file (PTX then has the callee's
//! position). MLIR's own pass for this (`ensure-debug-info-scope-on-llvm-func`) puts every position into the
//! function's file, and is not in the C API.

use std::collections::HashMap;

use melior::{
    Context,
    ir::{
        Attribute, Location, Module, RegionLike,
        attribute::StringAttribute,
        block::BlockLike,
        operation::{OperationLike, OperationMutLike, OperationRefMut},
    },
};

use crate::{context::source_location, error::SourceLocation, ffi::debug_info as di};

/// Rewrites the locations of every `llvm.func` that has a file position on it or in its body, and of the operations in it.
pub(super) fn attach<'c>(context: &'c Context, module: &mut Module<'c>) {
    let mut units = HashMap::new();
    let mut next = module.body().first_operation_mut();
    while let Some(mut operation) = next {
        next = operation.next_in_block_mut();
        if operation.name().as_string_ref().as_str() == Ok("llvm.func")
            && operation.region(0).is_ok_and(|body| body.first_block().is_some())
            && let Some(function) =
                source_location(operation.location()).or_else(|| first_position(&operation))
        {
            let name = operation
                .attribute("sym_name")
                .and_then(StringAttribute::try_from)
                .map_or_else(|_| String::new(), |name| name.value().to_owned());
            let mut scope = FunctionScope::new(context, &mut units, &name, &function.file, function.line);
            scope.rewrite(&mut operation);
        }
    }
}

/// The first file position in the body of `function`.
fn first_position(function: &OperationRefMut<'_, '_>) -> Option<SourceLocation> {
    let mut block = function.region(0).ok()?.first_block();
    while let Some(current) = block {
        let mut operation = current.first_operation();
        while let Some(here) = operation {
            if let Some(position) = source_location(here.location()) {
                return Some(position);
            }
            operation = here.next_in_block();
        }
        block = current.next_in_region();
    }
    None
}

/// The scopes that positions of one function are put in.
struct FunctionScope<'c> {
    context: &'c Context,
    file: String,
    compile_unit: Attribute<'c>,
    subprogram: Attribute<'c>,
    /// The position of an operation that has none: its function's.
    default: Location<'c>,
    /// Per file other than the function's own: the block for positions staged there.
    blocks: HashMap<String, Attribute<'c>>,
    /// Per file: the subprogram that stands for helpers inlined from there.
    inlined: HashMap<String, Attribute<'c>>,
}

impl<'c> FunctionScope<'c> {
    fn new(
        context: &'c Context,
        units: &mut HashMap<String, Attribute<'c>>,
        name: &str,
        file_name: &str,
        line: u32,
    ) -> Self {
        let file = di::file(context, file_name);
        let compile_unit =
            *units.entry(file_name.to_owned()).or_insert_with(|| di::compile_unit(context, file));
        let subprogram = di::subprogram(context, compile_unit, file, name, line);
        Self {
            context,
            file: file_name.to_owned(),
            compile_unit,
            subprogram,
            default: Location::new(context, file_name, line as usize, 0),
            blocks: HashMap::new(),
            inlined: HashMap::new(),
        }
    }

    fn rewrite(&mut self, function: &mut OperationRefMut<'c, '_>) {
        self.rewrite_body(function);
        // The fused location on the function itself is what defines the scope.
        let own = Location::fused(self.context, &[function.location()], self.subprogram);
        function.set_location(own);
    }

    fn rewrite_body(&mut self, operation: &OperationRefMut<'c, '_>) {
        for region in operation.regions() {
            let mut block = region.first_block();
            while let Some(current) = block {
                let mut next = current.first_operation_mut();
                while let Some(mut operation) = next {
                    let location = self.scoped(operation.location()).unwrap_or(self.default);
                    operation.set_location(location);
                    self.rewrite_body(&operation);
                    next = operation.next_in_block_mut();
                }
                block = current.next_in_region();
            }
        }
    }

    /// `location` with a scope on each position in it; `None` if there is no position.
    fn scoped(&mut self, location: Location<'c>) -> Option<Location<'c>> {
        if location.is_call_site() {
            let callee = source_location(location.call_site_callee());
            let caller = self.scoped(location.call_site_caller());
            let (Some(callee), Some(caller)) = (callee, caller) else {
                return self.scoped(location.call_site_callee()).or(caller);
            };
            let scope = self.inlined_scope(&callee.file);
            let callee =
                Location::new(self.context, &callee.file, callee.line as usize, callee.column as usize);
            return Some(Location::call_site(Location::fused(self.context, &[callee], scope), caller));
        }
        if location.is_name() {
            return self.scoped(location.name_child_location());
        }
        if location.is_fused() {
            return (0..location.fused_num_locations())
                .find_map(|index| self.scoped(location.fused_location(index)));
        }
        let position = source_location(location)?;
        if position.file == self.file {
            return Some(location);
        }
        let (context, subprogram) = (self.context, self.subprogram);
        let block = *self
            .blocks
            .entry(position.file)
            .or_insert_with_key(|file| di::lexical_block_file(context, subprogram, di::file(context, file)));
        Some(Location::fused(self.context, &[location], block))
    }

    fn inlined_scope(&mut self, file: &str) -> Attribute<'c> {
        let (context, unit) = (self.context, self.compile_unit);
        *self
            .inlined
            .entry(file.to_owned())
            .or_insert_with_key(|file| di::subprogram(context, unit, di::file(context, file), file, 1))
    }
}
