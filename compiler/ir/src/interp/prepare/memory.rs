//! Accesses to global memory: views and tiles of pointers.

use smallvec::SmallVec;

use super::{Lower, Result, storage};
use crate::interp::program::*;
use crate::kernel::{Op, Value};
use crate::numerics::{f64_to_bits, literal_bits};
use crate::op::{Literal, Padding, Rounding};

impl Lower<'_> {
    pub(super) fn rank(&self, view: Value) -> u8 {
        self.kernel.ty(view).as_view().map_or(0, |v| v.rank)
    }

    pub(super) fn view_field(&mut self, view: Value, index: u8, result: Value) {
        let view = self.scalar(view);
        let dst = self.define(result);
        self.code.push(Instr::ViewField { view, index, dst });
    }

    pub(super) fn view_access(
        &self,
        op: Op,
        view: Value,
        offsets: &[Value],
        tile: Value,
        padding: Padding,
    ) -> Result<ViewAccess> {
        let (elem, shape) = self.tile(tile);
        let elem = storage(elem);
        if elem.size_of().is_none() {
            return self.unsupported(op, format!("{elem} has no address: it exists only packed in pairs"));
        }
        let padding = match padding {
            Padding::Zero => 0.0,
            Padding::NegInf => f64::NEG_INFINITY,
            Padding::PosInf => f64::INFINITY,
            Padding::NaN => f64::NAN,
        };
        let padding = match (elem.is_float(), padding == 0.0) {
            (_, true) => 0,
            (true, _) => literal_bits(elem, Literal::float(padding)),
            // Infinities saturate to the ends of an integer type; NaN is 0.
            (false, _) => f64_to_bits(elem, padding, Rounding::Default),
        };
        Ok(ViewAccess {
            view: self.scalar(view),
            offsets: offsets.iter().map(|&v| self.int(v)).collect(),
            tile: 0,
            shape,
            elem,
            padding,
            loc: self.kernel.ops[op].loc,
        })
    }

    pub(super) fn ptr_access(
        &mut self,
        op: Op,
        value: Value,
        mask: Option<Value>,
        temps: &mut Vec<Slot>,
    ) -> Result<PtrAccess> {
        let ptr = self.kernel.ops[op].operands[0];
        let (ty, shape) = self.tile(ptr);
        let elem = match ty.pointee() {
            Some(e) if e.size_of().is_some() => e,
            _ => {
                return self.unsupported(
                    op,
                    format!("{ty} cannot be accessed: 4-bit elements exist only packed in pairs"),
                );
            }
        };
        // The buffers are taken out of their slots one after another, so no two may be the same: what is stored may also be the
        // mask, or the addresses under a bit cast. A load passes its pointers for the value, which it does not take.
        let address = self.full(ptr, temps);
        let stored = if value == ptr { address } else { self.apart(value, &[address], temps) };
        let mask = mask.map(|m| self.apart(m, &[address, stored], temps));
        let loc = self.kernel.ops[op].loc;
        Ok(PtrAccess { ptr: address, value: stored, second: None, mask, dst: 0, shape, elem, loc })
    }

    /// As [`Lower::full`], in none of the slots `others`.
    pub(super) fn apart(&mut self, v: Value, others: &[Slot], temps: &mut Vec<Slot>) -> Slot {
        let slot = self.full(v, temps);
        if !others.contains(&slot) {
            return slot;
        }
        let bytes = self.value_bytes(v);
        let copy = self.take_slot(bytes);
        temps.push(copy);
        self.code.push(Instr::Move { src: slot, dst: copy, bytes: bytes as u32 });
        copy
    }

    pub(super) fn ptr_load(&mut self, op: Op) -> Result<()> {
        let data = &self.kernel.ops[op];
        let mut temps = Vec::new();
        let access = self.ptr_access(op, data.operands[0], data.operands.get(1).copied(), &mut temps)?;
        let taken: SmallVec<[Slot; 2]> = [Some(access.ptr), access.mask].into_iter().flatten().collect();
        let second = data.operands.get(2).map(|&other| self.apart(other, &taken, &mut temps));
        let dst = self.define(data.results[0]);
        self.code.push(Instr::Load(Box::new(PtrAccess { dst, second, ..access })));
        self.release(temps);
        Ok(())
    }
}
