//! Names and what they stand for, in nested scopes.

use std::collections::HashMap;

use super::op::{Pred, Slot};
use super::types::Type;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbol {
    /// A register.
    Register(Slot, Type),
    /// A predicate register.
    Pred(Pred),
    /// A variable of the frame (`.local`, or `.param` of a function), by its offset.
    Frame(u32),
    /// A parameter of the kernel, by its offset.
    Param(u32),
    /// A variable in shared memory.
    Shared(u32),
    /// A variable in global memory.
    Global(u32),
    /// A variable in the constant bank, by its address.
    Const(u32),
    /// A label, by its number.
    Label(u32),
    /// A table of branch targets: where it begins in the function's targets, and its length.
    Targets(u32, u32),
}

/// A declared range of registers: `%r<14>`.
#[derive(Clone, Copy, Debug)]
struct Range {
    first: u32,
    count: u32,
    /// `None`: predicates.
    ty: Option<Type>,
}

#[derive(Debug, Default)]
struct Scope<'a> {
    names: HashMap<&'a str, Symbol>,
    ranges: HashMap<&'a str, Range>,
}

/// The scopes that are open, the innermost last.
#[derive(Debug, Default)]
pub struct Scopes<'a> {
    open: Vec<Scope<'a>>,
}

impl<'a> Scopes<'a> {
    /// Opens a scope.
    pub fn push(&mut self) {
        self.open.push(Scope::default());
    }

    /// Closes the innermost scope.
    pub fn pop(&mut self) {
        self.open.pop();
    }

    /// Declares a name in the innermost scope; false if it has one of that name.
    pub fn declare(&mut self, name: &'a str, symbol: Symbol) -> bool {
        let scope = self.open.last_mut().expect("a scope is open");
        scope.names.insert(name, symbol).is_none()
    }

    /// Declares `prefix0` to `prefix{count - 1}`, in slots from `first` on.
    pub fn declare_range(&mut self, prefix: &'a str, first: u32, count: u32, ty: Option<Type>) -> bool {
        let scope = self.open.last_mut().expect("a scope is open");
        scope.ranges.insert(prefix, Range { first, count, ty }).is_none()
    }

    /// What a name stands for here.
    pub fn find(&self, name: &str) -> Option<Symbol> {
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = &name[prefix.len()..];
        // `%r01` is not `%r1`.
        let index =
            if digits.len() > 1 && digits.starts_with('0') { None } else { digits.parse::<u32>().ok() };
        for scope in self.open.iter().rev() {
            if let Some(&symbol) = scope.names.get(name) {
                return Some(symbol);
            }
            let (Some(range), Some(index)) = (scope.ranges.get(prefix), index) else { continue };
            if index < range.count {
                return Some(match range.ty {
                    Some(ty) => Symbol::Register(Slot(range.first + index * slots_of(ty)), ty),
                    None => Symbol::Pred(Pred(range.first + index)),
                });
            }
        }
        None
    }
}

/// How many slots a register of this type takes.
pub fn slots_of(ty: Type) -> u32 {
    if ty.bits() == 128 { 2 } else { 1 }
}
