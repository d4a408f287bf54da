//! What the warps of a cluster share: memory, barriers, asynchronous work, and those who watch.
//!
//! [`Env::check`] is the one place that every memory access comes through, of whatever kind and by whatever unit: it takes out lanes that are out of
//! bounds or misaligned, reports reads of what nobody has written, counts, and tells the observers.

use std::collections::HashMap;

use super::asynchronous::UnitState;
use super::barrier::Barriers;
use super::engine::Engine;
use super::frame::{Lanes, lanes_of};
use super::job::Job;
use super::warp::{LOCAL_START, Warp};
use crate::counters::Counters;
use crate::decode::types::Space;
use crate::memory::window::{GLOBAL, RANK_SHIFT};
use crate::memory::{Access, AccessKind, SharedMemory};
use crate::observe::{Event, Finding, Findings, Observer, Origin};
use crate::report::{Location, Party, Report, ReportKind};
use crate::rng::Rng;

/// One CTA's part.
#[derive(Debug)]
pub struct CtaState {
    /// `%ctaid`
    pub id: [u32; 3],
    /// Its shared memory.
    pub shared: SharedMemory,
    /// Its 16 barriers.
    pub barriers: Barriers,
    /// Live lanes of each of its warps.
    pub live: Vec<u32>,
}

/// A function and an instruction, or a file and a line.
type Place = (u32, u32);

/// What the warps of a cluster share.
pub struct Env<'a> {
    /// The launch.
    pub job: &'a Job<'a>,
    /// `%clusterid`
    pub cluster_id: [u32; 3],
    /// The CTAs, by rank.
    pub ctas: Vec<CtaState>,
    /// Asynchronous operations under way.
    pub engine: Engine,
    /// State of the asynchronous units.
    pub units: UnitState,
    /// What is counted.
    pub counters: Counters,
    /// The cluster's own randomness.
    pub rng: Rng,
    /// Counts what others could wait for: stores, arrivals, completions, ends.
    pub progress: u64,
    /// Instructions executed by all warps; `%clock` is made of it.
    pub executed: u64,
    /// What `vprintf` wrote.
    pub printed: Vec<u8>,
    /// Findings so far.
    pub reports: Vec<Report>,
    /// The cluster cannot go on: a trap, a deadlock.
    pub aborted: bool,
    observers: Vec<Box<dyn Observer>>,
    findings: Findings,
    seen: HashMap<(ReportKind, (Place, Place)), usize>,
    hint: usize,
}

impl<'a> Env<'a> {
    /// The shared part of a cluster.
    pub fn new(
        job: &'a Job<'a>,
        cluster_id: [u32; 3],
        ctas: Vec<CtaState>,
        observers: Vec<Box<dyn Observer>>,
    ) -> Env<'a> {
        let [x, y, z] = cluster_id.map(u64::from);
        Env {
            job,
            cluster_id,
            ctas,
            engine: Engine::default(),
            units: UnitState::default(),
            counters: Counters::new(job.options.counters, job.program),
            rng: Rng::new(job.options.seed, x | y << 24 | z << 44),
            progress: 0,
            executed: 0,
            printed: vec![],
            reports: vec![],
            aborted: false,
            observers,
            findings: vec![],
            seen: HashMap::new(),
            hint: 0,
        }
    }

    /// Reports a finding at an instruction.
    pub fn report(
        &mut self,
        origin: &Origin,
        kind: ReportKind,
        lane: u32,
        address: Option<u64>,
        message: impl Into<String>,
    ) {
        self.report_with(origin, kind, lane, address, message, None);
    }

    /// As [`Env::report`], with the other party and its lane.
    pub fn report_with(
        &mut self,
        origin: &Origin,
        kind: ReportKind,
        lane: u32,
        address: Option<u64>,
        message: impl Into<String>,
        other: Option<(Origin, u32)>,
    ) {
        let message = message.into();
        self.found(Finding { kind, origin: *origin, lane, address, message, other, other_cluster: None });
    }

    fn found(&mut self, f: Finding) {
        let mut places = (self.line(f.kind, &f.origin), (0, 0));
        if let (ReportKind::Race, Some((other, _))) = (f.kind, &f.other) {
            let other = self.line(f.kind, other);
            places = (places.0.min(other), places.0.max(other));
        }
        let key = (f.kind, places);
        if let Some(&at) = self.seen.get(&key) {
            self.reports[at].count += 1;
            return;
        }
        self.seen.insert(key, self.reports.len());
        let mut message = f.message;
        if let (ReportKind::Race, Some(address)) = (f.kind, f.address)
            && address >= GLOBAL
        {
            message += &self.job.memory.describe(address);
        }
        let cluster = f.other_cluster.map(|number| self.job.cluster_id(number.into()));
        let report = Report {
            kind: f.kind,
            kernel: self.job.program.functions[self.job.kernel as usize].name.clone(),
            message,
            party: self.party(&f.origin, f.lane, self.cluster_id),
            address: f.address,
            other: f
                .other
                .map(|(origin, lane)| self.party(&origin, lane, cluster.unwrap_or(self.cluster_id))),
            count: 1,
        };
        self.reports.push(report);
    }

    /// What findings are told apart by: the instruction; its line of the source, for races, of which a line with many accesses has many.
    fn line(&self, kind: ReportKind, origin: &Origin) -> Place {
        let instruction = (origin.function, origin.pc);
        if kind != ReportKind::Race {
            return instruction;
        }
        let places = &self.job.program.functions[origin.function as usize].places;
        // Functions are fewer than the numbers above `1 << 31`.
        let loc = places.get(origin.pc as usize).and_then(|place| place.loc);
        loc.map_or(instruction, |l| (1 << 31 | l.file, l.line))
    }

    fn party(&self, origin: &Origin, lane: u32, cluster: [u32; 3]) -> Party {
        let warp = origin.warp - origin.cta * self.job.warps;
        let cta = self.job.cta_id(cluster, origin.cta);
        Party { cta, warp, lane, thread: self.job.thread(warp * 32 + lane), location: self.location(origin) }
    }

    /// Where an instruction stands.
    pub fn location(&self, origin: &Origin) -> Location {
        let program = self.job.program;
        let Some(place) = program.functions[origin.function as usize].places.get(origin.pc as usize) else {
            return Location::default();
        };
        Location {
            file: place.loc.and_then(|l| program.file(l.file)).map(str::to_owned),
            line: place.loc.map_or(0, |l| l.line),
            column: place.loc.map_or(0, |l| l.column),
            ptx_line: program.ptx_line(place),
            instruction: program.text(place),
        }
    }

    /// Tells the observers.
    pub fn event(&mut self, origin: &Origin, event: &Event) {
        if self.observers.is_empty() {
            return;
        }
        for observer in &mut self.observers {
            observer.event(origin, event, &mut self.findings);
        }
        self.take_findings();
    }

    fn take_findings(&mut self) {
        for finding in std::mem::take(&mut self.findings) {
            self.found(finding);
        }
    }

    /// Checks an access, counts it, and tells the observers: the lanes that may do it. `local` is the warp whose local memory is meant.
    pub fn check(&mut self, origin: &Origin, access: &Access<'_>, local: Option<&Warp>) -> u32 {
        let mut good = access.lanes;
        if !self.all_fine(access) {
            for lane in lanes_of(access.lanes) {
                if !self.check_lane(origin, access, local, lane) {
                    good &= !(1 << lane);
                }
            }
        }
        let access = Access { lanes: good, ..*access };
        if access.kind != AccessKind::Read {
            self.progress += 1;
        }
        self.counters.access(origin, &access);
        if !self.observers.is_empty() && good != 0 {
            for observer in &mut self.observers {
                observer.access(origin, &access, &mut self.findings);
            }
            self.take_findings();
        }
        good
    }

    /// Is there nothing to say of any lane? Quick, for what is most frequent: all lanes in one allocation, or in one CTA's shared memory. If it says
    /// no, the lanes must be looked at one by one.
    fn all_fine(&mut self, access: &Access<'_>) -> bool {
        let (mut low, mut high, mut bits) = (u64::MAX, 0, 0);
        for lane in lanes_of(access.lanes) {
            let address = access.addresses[lane];
            low = low.min(address);
            high = high.max(address);
            bits |= address;
        }
        if access.lanes == 0 || bits & u64::from(access.align - 1) != 0 {
            return false;
        }
        let span = (high - low).saturating_add(u64::from(access.bytes));
        let reads = access.kind != AccessKind::Write;
        let mut places = lanes_of(access.lanes).map(|lane| (access.addresses[lane] - low) as usize);
        match access.space {
            Space::Global => {
                let Some(a) = self.job.memory.find_near(low, span, &mut self.hint) else { return false };
                let start = (low - a.base()) as usize;
                !reads || places.all(|at| a.is_written(start + at, access.bytes))
            }
            Space::Shared => {
                let Some(cta) = self.ctas.get((low >> RANK_SHIFT) as usize) else { return false };
                let Some(start) = cta.shared.index(low, span) else { return false };
                !reads || places.all(|at| cta.shared.memory.is_written(start + at, access.bytes))
            }
            _ => false,
        }
    }

    #[inline]
    fn check_lane(
        &mut self,
        origin: &Origin,
        access: &Access<'_>,
        local: Option<&Warp>,
        lane: usize,
    ) -> bool {
        let address = access.addresses[lane];
        let bytes = u64::from(access.bytes);
        if address & u64::from(access.align - 1) != 0 {
            self.misaligned(origin, access, lane);
            return false;
        }
        let reads = access.kind != AccessKind::Write;
        let written = match access.space {
            Space::Global | Space::Generic => {
                let Some(a) = self.job.memory.find_near(address, bytes, &mut self.hint) else {
                    self.out_of_bounds(origin, access, lane);
                    return false;
                };
                !reads || a.is_written((address - a.base()) as usize, access.bytes)
            }
            Space::Shared => {
                let shared = self.ctas.get((address >> RANK_SHIFT) as usize).map(|c| &c.shared);
                let Some((shared, at)) = shared.and_then(|s| Some((s, s.index(address, bytes)?))) else {
                    self.out_of_bounds(origin, access, lane);
                    return false;
                };
                let written = !reads || shared.memory.is_written(at, access.bytes);
                self.check_alive(origin, (address >> RANK_SHIFT) as u32, lane as u32, address);
                written
            }
            Space::Local => {
                let place = local.and_then(|w| Some((w, w.local_index(lane, address, bytes)?)));
                let Some((warp, at)) = place else {
                    self.out_of_bounds(origin, access, lane);
                    return false;
                };
                !reads || warp.local.is_written(at, access.bytes)
            }
            Space::Const | Space::Param => {
                if access.kind != AccessKind::Read {
                    self.report(
                        origin,
                        ReportKind::ReadOnly,
                        lane as u32,
                        Some(address),
                        "constants and parameters cannot be written",
                    );
                    return false;
                }
                let size = self.bank(access.space).len() as u64;
                if address.checked_add(bytes).is_none_or(|end| end > size) {
                    self.out_of_bounds(origin, access, lane);
                    return false;
                }
                true
            }
        };
        if !written {
            self.unwritten(origin, access, lane);
        }
        true
    }

    /// Reports an access to the shared memory of another CTA of the cluster that has ended: its memory may be another kernel's by now.
    #[inline]
    pub fn check_alive(&mut self, origin: &Origin, rank: u32, lane: u32, address: u64) {
        if rank != origin.cta && self.ctas[rank as usize].live.iter().all(|&live| live == 0) {
            let message = format!(
                "shared memory of CTA rank {rank} is accessed at {address:#x} after that CTA has ended"
            );
            self.report(origin, ReportKind::OutOfBounds, lane, Some(address), message);
        }
    }

    fn bank(&self, space: Space) -> &'a [u8] {
        if space == Space::Const { &self.job.constants } else { &self.job.params }
    }

    #[cold]
    fn misaligned(&mut self, origin: &Origin, access: &Access<'_>, lane: usize) {
        let address = access.addresses[lane];
        let message = format!("address {address:#x} is not a multiple of {}", access.align);
        self.report(origin, ReportKind::Misaligned, lane as u32, Some(address), message);
    }

    #[cold]
    fn out_of_bounds(&mut self, origin: &Origin, access: &Access<'_>, lane: usize) {
        let address = access.addresses[lane];
        let verb = if access.kind == AccessKind::Read { "read" } else { "written" };
        let near = match access.space {
            Space::Global | Space::Generic => self.job.memory.describe(address),
            Space::Shared => {
                let cta = (address >> RANK_SHIFT) as usize;
                match self.ctas.get(cta).map(|c| &c.shared) {
                    Some(s) => format!(
                        "; the CTA has {} bytes of shared memory from {:#x} on",
                        s.memory.len(),
                        s.start()
                    ),
                    None => format!("; the cluster has no CTA of rank {cta}"),
                }
            }
            Space::Local => "; it is outside of the thread's local memory".to_owned(),
            Space::Const | Space::Param => format!("; there are {} bytes", self.bank(access.space).len()),
        };
        let message =
            format!("{} bytes of {:?} memory are {verb} at {address:#x}{near}", access.bytes, access.space);
        self.report(origin, ReportKind::OutOfBounds, lane as u32, Some(address), message);
    }

    #[cold]
    fn unwritten(&mut self, origin: &Origin, access: &Access<'_>, lane: usize) {
        let address = access.addresses[lane];
        let near = match access.space {
            Space::Global | Space::Generic => self.job.memory.describe(address),
            _ => String::new(),
        };
        let message = format!(
            "{} bytes of {:?} memory are read at {address:#x} that nobody has written{near}",
            access.bytes, access.space
        );
        self.report(origin, ReportKind::UninitialisedMemory, lane as u32, Some(address), message);
    }

    /// Loads up to 8 bytes that [`Env::check`] has let pass.
    #[inline]
    pub fn load(&mut self, space: Space, warp: Option<&Warp>, lane: usize, address: u64, bytes: u32) -> u64 {
        match space {
            Space::Global | Space::Generic => {
                match self.job.memory.find_near(address, u64::from(bytes), &mut self.hint) {
                    Some(a) => a.load((address - a.base()) as usize, bytes),
                    None => 0,
                }
            }
            Space::Shared => {
                let shared = &self.ctas[(address >> RANK_SHIFT) as usize].shared;
                shared.index(address, u64::from(bytes)).map_or(0, |at| shared.memory.load(at, bytes))
            }
            Space::Local => warp
                .and_then(|w| {
                    w.local_index(lane, address, u64::from(bytes)).map(|at| w.local.load(at, bytes))
                })
                .unwrap_or(0),
            Space::Const | Space::Param => {
                let mut out = [0; 8];
                let at = address as usize;
                if let Some(from) = self.bank(space).get(at..at + bytes as usize) {
                    out[..bytes as usize].copy_from_slice(from);
                }
                u64::from_le_bytes(out)
            }
        }
    }

    /// Loads up to 8 bytes at `offset` behind each lane's address; [`Env::check`] has let these lanes pass.
    #[allow(clippy::too_many_arguments)] // An access, taken apart.
    pub fn load_lanes(
        &mut self,
        space: Space,
        warp: &Warp,
        lanes: u32,
        addresses: &Lanes,
        offset: u64,
        bytes: u32,
        out: &mut Lanes,
    ) {
        match space {
            Space::Global => {
                for lane in lanes_of(lanes) {
                    let address = addresses[lane] + offset;
                    if let Some(a) = self.job.memory.find_near(address, u64::from(bytes), &mut self.hint) {
                        out[lane] = a.load((address - a.base()) as usize, bytes);
                    }
                }
            }
            Space::Shared => {
                for lane in lanes_of(lanes) {
                    let address = addresses[lane] + offset;
                    let shared = &self.ctas[(address >> RANK_SHIFT) as usize].shared;
                    if let Some(at) = shared.index(address, u64::from(bytes)) {
                        out[lane] = shared.memory.load(at, bytes);
                    }
                }
            }
            _ => {
                for lane in lanes_of(lanes) {
                    out[lane] = self.load(space, Some(warp), lane, addresses[lane] + offset, bytes);
                }
            }
        }
    }

    /// Stores up to 8 bytes that [`Env::check`] has let pass; not to local memory, which is the warp's.
    #[inline]
    pub fn store(&mut self, space: Space, address: u64, bytes: u32, value: u64) {
        match space {
            Space::Global | Space::Generic => {
                if let Some(a) = self.job.memory.find_near(address, u64::from(bytes), &mut self.hint) {
                    a.store((address - a.base()) as usize, bytes, value);
                }
            }
            Space::Shared => {
                let shared = &mut self.ctas[(address >> RANK_SHIFT) as usize].shared;
                if let Some(at) = shared.index(address, u64::from(bytes)) {
                    shared.memory.store(at, bytes, value);
                }
            }
            Space::Local | Space::Const | Space::Param => {}
        }
    }
}

impl Warp {
    /// Which byte of [`Warp::local`] a lane's address is, if all of `bytes` are inside.
    #[inline]
    pub fn local_index(&self, lane: usize, address: u64, bytes: u64) -> Option<usize> {
        let at = address.checked_sub(u64::from(LOCAL_START))?;
        let end = at.checked_add(bytes)?;
        (end <= u64::from(self.local_stride)).then(|| lane * self.local_stride as usize + at as usize)
    }
}
