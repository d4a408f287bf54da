//! What `#[kernel]` needs around a body.

use std::fmt::Debug;
use std::hash::Hash;

use tegula_ir::Kernel;

use crate::diagnostic::Diagnostics;

/// A kernel: the struct that `#[kernel]` makes implements it, for code that is generic over kernels (tests over configuration spaces,
/// precompilation).
pub trait KernelDef {
    /// The function's name.
    const NAME: &'static str;
    /// The meta-parameters, in order.
    type Meta;
    /// Builds the kernel's IR.
    ///
    /// # Errors
    /// All that is wrong with the kernel for these types and values.
    fn stage(meta: Self::Meta) -> Result<Kernel, Diagnostics>;
}

/// A type of meta-parameters: ordinary values that are known when a kernel is staged, and part of its specialisation key.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a meta-parameter of a kernel",
    label = "part of the kernel's key, so it must be `Clone + Hash + Debug + 'static`",
    note = "derive these for a type of your own; floats have no `Hash`: pass them at run time as `Scalar<f32>`, or by their bits"
)]
pub trait MetaParam: Clone + Hash + Debug + 'static {}

#[diagnostic::do_not_recommend]
impl<M: Clone + Hash + Debug + 'static> MetaParam for M {}

/// The name of a specialised kernel: an identifier of the function's name and what it is generic over (`rms_norm_bf16`).
pub fn kernel_name(function: &str, generics: &[String]) -> String {
    let mut name = sanitised(function);
    for generic in generics {
        name.push('_');
        // Of `half::bfloat::bf16`, the last word says enough; names need not be unique, they are for people.
        name.push_str(&sanitised(generic.rsplit("::").next().unwrap_or(generic)));
    }
    name
}

fn sanitised(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::kernel_name;

    #[test]
    fn names_are_identifiers() {
        assert_eq!(kernel_name("rms_norm", &["half::bfloat::bf16".to_owned()]), "rms_norm_bf16");
        assert_eq!(kernel_name("größe", &["-3".to_owned()]), "gr__e__3");
    }
}
