//! Conversions between element types.

use std::panic::Location;

use tegula_ir::Opcode;
use tegula_ir::op::Rounding;

use crate::diagnostic::Diagnostic;
use crate::session::{self, emit_value};
use crate::tile::Tile;
use tegula_ir::element::Element;

impl<T: Element> Tile<T> {
    /// The values as `U`: to nearest even among floats and from integers; truncated and saturated from float to integer (NaN gives
    /// 0); wrapped among integers. From `bool`: 0 or 1; to `bool`: is it other than 0?
    #[track_caller]
    pub fn cast<U: Element>(self) -> Tile<U> {
        let ty = session::ty(self.value());
        if T::ELEM == U::ELEM {
            return Tile::from_value(self.value());
        }
        Tile::from_value(emit_value(Opcode::Cast(Rounding::Default), &[self.value()], ty.with_elem(U::ELEM)))
    }

    /// The same bits as elements of `U`, which must be as wide.
    #[track_caller]
    pub fn bitcast<U: Element>(self) -> Tile<U> {
        let ty = session::ty(self.value()).with_elem(U::ELEM);
        if T::ELEM.bits() != U::ELEM.bits() {
            let (from, to) = (T::ELEM, U::ELEM);
            let fault = Diagnostic::at(format!("`bitcast` from {from} to {to}"), Location::caller())
                .label(format!("{} bits become {}", from.bits(), to.bits()))
                .help("use `.cast()` to convert values");
            session::report(&[self.value()], fault);
            return Tile::from_value(session::poison(ty));
        }
        Tile::from_value(emit_value(Opcode::Bitcast, &[self.value()], ty))
    }
}
