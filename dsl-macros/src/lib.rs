//! The attributes of the kernel language: [`macro@kernel`], [`macro@tile_fn`] and the derive [`macro@Carry`].
//!
//! A kernel is *staged*: its body is ordinary Rust that builds IR when called. Operators on tiles are traits, so nearly all of
//! it needs no macro at all; what Rust cannot overload is rewritten here, and only that:
//!
//! | written | becomes |
//! |---|---|
//! | `if`/`else` (statement or value), `for`, `while` | inline calls that open and close regions (`expand::control`) |
//! | `== != < <= > >=`, `&&`, <code>\|\|</code> | calls of traits, since Rust's own must give `bool` |
//! | `lo..hi` in the head of a `for` | a call that also takes tiles as bounds |
//! | `warp_groups! { producer => …, consumer => … }` | the same, with one region a group |
//! | assignments to outer variables inside the above | a line that hands the variable to the region: it is *carried* |
//!
//! # Host and device are told apart by type, not by the macro
//! `if causal` over a `bool` and `if row < n` over tiles expand to the same text; which of the two happens is the choice of a trait. So the
//! expansion must be right for both. It uses no closures for the bodies of control flow: they stay in place, under an ordinary `if` or
//! `while let`, and calls before and after them open and close the region. Host code therefore keeps `break`, `continue`, `return` and
//! `?`, and borrows as always; leaving a *device* region is a type error at the `break` itself, because a marker call placed before
//! it is only implemented for host control flow. (Closures, the obvious expansion, forbid all of these, and let no two branches borrow
//! the same variable.)
//!
//! What remains visible to host code: rustc sees the two branches of an `if` one after the other, so a value that is not `Copy`
//! cannot be moved in both. `#[host]` on an `if`, `for` or `while` leaves that statement as it is; `match` is always left.
//!
//! # Stages
//! `attr` (the attribute's arguments) → `valid` (what a signature may be) → `scope` (which variables a region changes) → `rewrite` (the body) →
//! `expand` (the text that comes out). When a stage finds a fault, the function is still emitted, with the same signature and
//! without its body, so that its callers are not reported as well.

use proc_macro::TokenStream;
use syn::parse_macro_input;

mod attr;
mod carry;
mod expand;
mod groups;
mod offsets;
mod rewrite;
mod scope;
mod valid;

/// Makes a function a kernel.
///
/// Parameters of the types `View`, `ViewMut`, `Ptr`, `PtrMut`, `Scalar` and `Tile` are run-time arguments; all others are
/// *meta-parameters*, ordinary Rust values known when the kernel is staged, and part of its specialisation key (so they implement
/// `Clone + Hash + Debug`).
///
/// `#[kernel] pub fn scale<T: Float>(x: View<T, 1>, factor: Scalar<f32>, block: usize) { … }` gives
/// * `scale::<f32>(&x, 2.0, 128)`, which packs a launch, and
/// * `scale::<f32>::stage(128)`, which builds the kernel's IR, or tells what is wrong with it, without a device.
///
/// Arguments: `num_warps`, `num_stages`, `max_registers`, `min_ctas` set the kernel's hints (a launch can override them), and so does
/// `warp_specialize` (a `WarpSpecialize`) and `cluster`; they are expressions and may use the meta-parameters.
///
/// Inside, `if`, `for` and `while` work on host values (while staging) and on device values alike; see the crate's documentation.
#[proc_macro_attribute]
pub fn kernel(args: TokenStream, item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as syn::ItemFn);
    expand::kernel(args.into(), item).into()
}

/// Gives a helper function of any signature the control flow of kernels.
///
/// Only needed where the function has `if`, `for`, `while` or comparisons over device values: any other function over tiles is plain Rust.
#[proc_macro_attribute]
pub fn tile_fn(args: TokenStream, item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as syn::ItemFn);
    expand::tile_fn(args.into(), item).into()
}

/// Lets a struct of tiles change inside device loops and branches.
///
/// Every field must be carriable itself; a host field is marked `#[carry(skip)]` and keeps the value that staging last gave it.
#[proc_macro_derive(Carry, attributes(carry))]
pub fn derive_carry(item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as syn::DeriveInput);
    carry::derive(item).unwrap_or_else(syn::Error::into_compile_error).into()
}
