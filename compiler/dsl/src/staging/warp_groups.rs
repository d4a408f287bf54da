//! `warp_groups!`.

use std::panic::Location;

use tegula_ir::op::RegisterBudget;
use tegula_ir::{Block, Opcode};

use crate::diagnostic::Diagnostic;
use crate::session;

/// The state of a `warp_groups!`: it has two regions, the producer's and the consumer's.
pub struct WarpGroups {
    registers: Option<RegisterBudget>,
    at: &'static Location<'static>,
    regions: Vec<Block>,
}

/// Begins. The registers are those of a thread of the producer and of the consumer.
#[track_caller]
pub fn warp_groups(producer: Option<u32>, consumer: Option<u32>) -> WarpGroups {
    let at = Location::caller();
    let registers = match (producer, consumer) {
        (Some(producer), Some(consumer)) => Some(RegisterBudget { producer, consumer }),
        (None, None) => None,
        _ => {
            let fault = Diagnostic::at("only one of the groups says how many registers it has", at)
                .help("write `regs = …` for both: what one gives up is what the other gets");
            session::report(&[], fault);
            None
        }
    };
    WarpGroups { registers, at, regions: Vec::new() }
}

/// From here on, operations are the next group's.
#[track_caller]
pub fn enter_group(groups: &mut WarpGroups) {
    leave(groups);
    let region = session::new_region();
    session::enter_region(region);
    groups.regions.push(region);
}

/// Ends the last group.
#[track_caller]
pub fn close_groups(groups: &mut WarpGroups) {
    leave(groups);
    let (at, regions) = (groups.at, &groups.regions);
    session::at(at, || session::emit_op(Opcode::WarpGroups(groups.registers), &[], &[], regions));
}

#[track_caller]
fn leave(groups: &WarpGroups) {
    if let Some(&region) = groups.regions.last() {
        session::at(groups.at, || session::leave_region(region, Opcode::Yield, &[]));
    }
}
