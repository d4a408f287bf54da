//! What a kernel's signature may be, and its parameters sorted into run-time arguments and meta-parameters.

use proc_macro2::{Ident, Span};
use syn::spanned::Spanned;
use syn::{Error, FnArg, Pat, Result, ReturnType, Signature, Type};

/// The types that are run-time arguments, by the last segment of their path.
const RUNTIME_TYPES: &[&str] = &["View", "ViewMut", "Ptr", "PtrMut", "Scalar", "Tile"];

/// A parameter of a kernel.
pub struct Parameter {
    /// Its name.
    pub name: Ident,
    /// Its type.
    pub ty: Type,
    /// A run-time argument, or a meta-parameter?
    pub runtime: bool,
}

/// Checks a kernel's signature.
pub fn kernel(sig: &Signature) -> Result<Vec<Parameter>> {
    let mut faults = Faults::default();
    if let Some(token) = &sig.asyncness {
        faults.add(token.span, "a kernel is not `async`: launching it is, see `Launch::launch`");
    }
    if let Some(token) = &sig.unsafety {
        faults.add(
            token.span,
            "a kernel is not `unsafe`: building it is harmless; what pointers may do is up to the launch",
        );
    }
    if let Some(token) = &sig.constness {
        faults.add(token.span, "a kernel is not `const`: it is staged at run time");
    }
    if let Some(abi) = &sig.abi {
        faults.add(abi.span(), "a kernel has no ABI of its own: its arguments are packed by the launch");
    }
    if let Some(variadic) = &sig.variadic {
        faults.add(variadic.span(), "a kernel takes a fixed number of arguments");
    }
    if let ReturnType::Type(arrow, ty) = &sig.output
        && !matches!(&**ty, Type::Tuple(unit) if unit.elems.is_empty())
    {
        faults.add(
            arrow.spans[0],
            "a kernel returns nothing: it stores its results through a `ViewMut` or `PtrMut` parameter",
        );
    }
    for lifetime in sig.generics.lifetimes() {
        faults.add(
            lifetime.span(),
            "a kernel has no lifetime parameters: its run-time arguments are handles, its meta-parameters own their data",
        );
    }
    let parameters = sig.inputs.iter().filter_map(|input| match parameter(input) {
        Ok(parameter) => Some(parameter),
        Err(fault) => {
            faults.push(fault);
            None
        }
    });
    let parameters = parameters.collect();
    faults.finish(parameters)
}

fn parameter(input: &FnArg) -> Result<Parameter> {
    let typed = match input {
        FnArg::Typed(typed) => typed,
        FnArg::Receiver(receiver) => {
            return Err(Error::new(
                receiver.span(),
                "a kernel is a free function: pass what it needs of `self` as a parameter",
            ));
        }
    };
    let Pat::Ident(name) = &*typed.pat else {
        return Err(Error::new(
            typed.pat.span(),
            "a kernel's parameter is a name: take it apart in the body, with `let`",
        ));
    };
    let ty = &*typed.ty;
    match ty {
        Type::Reference(r) if r.lifetime.as_ref().is_none_or(|l| l.ident != "static") => {
            Err(Error::new(ty.span(), "a kernel does not borrow its parameters: take it by value"))
        }
        Type::ImplTrait(_) => Err(Error::new(
            ty.span(),
            "`impl Trait` is not a kernel's parameter type: name it, as in `fn k<C: Trait>(c: C)`",
        )),
        _ => Ok(Parameter { name: name.ident.clone(), ty: ty.clone(), runtime: is_runtime(ty) }),
    }
}

fn is_runtime(ty: &Type) -> bool {
    match ty {
        Type::Path(path) => path
            .path
            .segments
            .last()
            .is_some_and(|segment| RUNTIME_TYPES.iter().any(|name| segment.ident == name)),
        Type::Paren(inner) => is_runtime(&inner.elem),
        Type::Group(inner) => is_runtime(&inner.elem),
        _ => false,
    }
}

/// Checks the signature of a helper function.
pub fn tile_fn(sig: &Signature) -> Result<()> {
    match &sig.asyncness {
        Some(token) => Err(Error::new(
            token.span,
            "a function over tiles is not `async`: tiles exist only while their kernel is built",
        )),
        None => Ok(()),
    }
}

#[derive(Default)]
struct Faults(Option<Error>);

impl Faults {
    fn add(&mut self, span: Span, message: &str) {
        self.push(Error::new(span, message));
    }

    fn push(&mut self, fault: Error) {
        match &mut self.0 {
            Some(all) => all.combine(fault),
            none => *none = Some(fault),
        }
    }

    fn finish<T>(self, value: T) -> Result<T> {
        self.0.map_or(Ok(value), Err)
    }
}
