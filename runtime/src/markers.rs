//! Stands in until `tegula-dsl` lands these types (then this file goes and `launch/args.rs` names them there).

use std::marker::PhantomData;

/// A view that is read.
pub struct View<T, const R: usize>(PhantomData<T>);
/// A view that is read and written.
pub struct ViewMut<T, const R: usize>(PhantomData<T>);
/// A pointer that is read through.
pub struct Ptr<T>(PhantomData<T>);
/// A pointer that is read and written through.
pub struct PtrMut<T>(PhantomData<T>);
/// A scalar.
pub struct Scalar<T>(PhantomData<T>);
