//! Vector clocks of a cluster: what a lane knows of every other.
//!
//! A warp has one counter, its *epoch*, which goes on at whatever others could be ordered behind. What is known of a warp is an [`Known`]: all of its
//! lanes up to one epoch, some of them up to a later one. That is exact for what kernels do (whole warps synchronise, or one elected lane signals);
//! where two different sets of lanes are known up to different epochs the union up to the later one is kept, which can miss a race
//! and never invents one.

use crate::observe::Origin;

/// What is known of a warp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// All lanes up to this epoch.
    all: u32,
    /// The lanes of `lanes` up to this one.
    some: u32,
    lanes: u32,
}

impl Known {
    /// These lanes up to an epoch.
    pub fn of(lanes: u32, epoch: u32) -> Known {
        match lanes {
            u32::MAX => Known { all: epoch, some: 0, lanes: 0 },
            _ => Known { all: 0, some: epoch, lanes },
        }
    }

    /// Is what all of `lanes` did in `epoch` known?
    pub fn covers(&self, lanes: u32, epoch: u32) -> bool {
        epoch <= self.all || (epoch <= self.some && lanes & !self.lanes == 0)
    }

    fn join(&mut self, other: &Known) {
        self.all = self.all.max(other.all);
        let (mine, theirs) = (self.some > self.all, other.some > self.all);
        (self.some, self.lanes) = match (mine, theirs) {
            (true, true) => (self.some.max(other.some), self.lanes | other.lanes),
            (true, false) => (self.some, self.lanes),
            (false, true) => (other.some, other.lanes),
            (false, false) => (0, 0),
        };
    }
}

/// What is known of warps, and of asynchronous units: up to which group or phase their operations are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Half {
    warps: Vec<Known>,
    units: Vec<u32>,
}

impl Half {
    /// Of a warp.
    pub fn warp(&self, warp: u32) -> Known {
        self.warps.get(warp as usize).copied().unwrap_or_default()
    }

    /// Of a unit.
    pub fn unit(&self, unit: u32) -> u32 {
        self.units.get(unit as usize).copied().unwrap_or(0)
    }

    /// Learns of a warp.
    pub fn learn(&mut self, warp: u32, known: &Known) {
        if self.warps.len() <= warp as usize {
            self.warps.resize(warp as usize + 1, Known::default());
        }
        self.warps[warp as usize].join(known);
    }

    /// Learns of a unit.
    pub fn learn_unit(&mut self, unit: u32, up_to: u32) {
        if self.units.len() <= unit as usize {
            self.units.resize(unit as usize + 1, 0);
        }
        let known = &mut self.units[unit as usize];
        *known = up_to.max(*known);
    }

    fn join(&mut self, other: &Half) {
        if self.warps.len() < other.warps.len() {
            self.warps.resize(other.warps.len(), Known::default());
        }
        self.warps.iter_mut().zip(&other.warps).for_each(|(a, b)| a.join(b));
        if self.units.len() < other.units.len() {
            self.units.resize(other.units.len(), 0);
        }
        self.units.iter_mut().zip(&other.units).for_each(|(a, &b)| *a = b.max(*a));
    }
}

/// What a lane is ordered behind, and what of that the asynchronous proxy sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// What happened before.
    pub seen: Half,
    /// What a `fence.proxy.async` stands behind, anywhere on the way (PTX ISA, "causality order").
    pub fenced: Half,
}

impl Clock {
    /// Learns all that `other` knows.
    pub fn join(&mut self, other: &Clock) {
        self.seen.join(&other.seen);
        self.fenced.join(&other.fenced);
    }
}

/// Lanes that know the same.
#[derive(Clone, Debug, Default, PartialEq)]
struct Class {
    lanes: u32,
    clock: Clock,
    /// What a relaxed store publishes: the clock at the last fence.
    released: Option<Box<Clock>>,
    /// What relaxed loads have seen, which the next fence orders.
    observed: Option<Box<Clock>>,
}

/// A warp: its lanes by what they know.
#[derive(Debug)]
pub struct WarpClock {
    /// Its number in the cluster.
    warp: u32,
    /// Counts what others could be ordered behind.
    pub epoch: u32,
    classes: Vec<Class>,
}

impl WarpClock {
    /// At the beginning of the kernel: nobody knows anything.
    pub fn new(warp: u32) -> WarpClock {
        let class = Class { lanes: u32::MAX, ..Class::default() };
        WarpClock { warp, epoch: 1, classes: vec![class] }
    }

    /// Calls `f` for the lanes of `lanes` that know the same.
    pub fn for_each(&self, lanes: u32, mut f: impl FnMut(u32, &Clock)) {
        for class in &self.classes {
            if class.lanes & lanes != 0 {
                f(class.lanes & lanes, &class.clock);
            }
        }
    }

    /// Lets `f` change the clocks of these lanes.
    fn update(&mut self, lanes: u32, mut f: impl FnMut(&mut Class)) {
        for i in 0..self.classes.len() {
            let class = &mut self.classes[i];
            let outside = class.lanes & !lanes;
            if outside == class.lanes {
                continue;
            }
            if outside != 0 {
                let mut rest = class.clone();
                rest.lanes = outside;
                class.lanes &= lanes;
                self.classes.push(rest);
            }
            f(&mut self.classes[i]);
        }
        self.unite();
    }

    /// Makes classes that know the same one: lanes that learn of something one after the other end up together.
    fn unite(&mut self) {
        let mut i = 0;
        while i + 1 < self.classes.len() {
            let mut j = i + 1;
            while j < self.classes.len() {
                let (a, b) = (&self.classes[i], &self.classes[j]);
                if (&a.clock, &a.released, &a.observed) == (&b.clock, &b.released, &b.observed) {
                    self.classes[i].lanes |= self.classes[j].lanes;
                    self.classes.swap_remove(j);
                } else {
                    j += 1;
                }
            }
            i += 1;
        }
    }

    /// Lanes learn what `clock` says.
    pub fn acquire(&mut self, lanes: u32, clock: &Clock) {
        self.update(lanes, |class| class.clock.join(clock));
    }

    /// Lanes learn of a unit.
    pub fn acquire_unit(&mut self, lanes: u32, unit: u32, up_to: u32) {
        self.update(lanes, |class| {
            class.clock.seen.learn_unit(unit, up_to);
            class.clock.fenced.learn_unit(unit, up_to);
        });
    }

    /// Adds what lanes know and have done to `clock`; what they do next is not in it.
    pub fn release(&mut self, lanes: u32, clock: &mut Clock) {
        self.for_each(lanes, |_, known| clock.join(known));
        clock.seen.learn(self.warp, &Known::of(lanes, self.epoch));
        self.epoch += 1;
    }

    /// Lanes synchronise.
    pub fn sync(&mut self, lanes: u32) {
        if self.classes.len() > 1 {
            let mut all = Clock::default();
            self.for_each(lanes, |_, known| all.join(known));
            self.update(lanes, |class| class.clock.join(&all));
        }
        let (warp, known) = (self.warp, Known::of(lanes, self.epoch));
        self.update(lanes, |class| class.clock.seen.learn(warp, &known));
        self.epoch += 1;
    }

    /// Lanes execute `fence.proxy.async`.
    pub fn fence_proxy(&mut self, lanes: u32) {
        let (warp, known) = (self.warp, Known::of(lanes, self.epoch));
        self.update(lanes, |class| {
            class.clock.fenced = class.clock.seen.clone();
            class.clock.fenced.learn(warp, &known);
        });
        self.epoch += 1;
    }

    /// Lanes execute a fence: what they have observed is ordered from here on, and what they know can be published by a relaxed store.
    pub fn fence(&mut self, lanes: u32) {
        let (warp, known) = (self.warp, Known::of(lanes, self.epoch));
        self.update(lanes, |class| {
            if let Some(observed) = class.observed.take() {
                class.clock.join(&observed);
            }
            let mut released = class.clock.clone();
            released.seen.learn(warp, &known);
            class.released = Some(Box::new(released));
        });
        self.epoch += 1;
    }

    /// Lanes have loaded what was published with `clock`, without an order of its own.
    pub fn observe(&mut self, lanes: u32, clock: &Clock) {
        self.update(lanes, |class| class.observed.get_or_insert_default().join(clock));
    }

    /// Adds what a relaxed store of these lanes publishes to `clock`; false if that is nothing.
    pub fn publish(&self, lanes: u32, clock: &mut Clock) -> bool {
        let mut any = false;
        for class in self.classes.iter().filter(|class| class.lanes & lanes != 0) {
            if let Some(released) = &class.released {
                clock.join(released);
                any = true;
            }
        }
        any
    }

    /// What an operation that these lanes start is ordered behind.
    pub fn snapshot(&mut self, origin: &Origin) -> Clock {
        let mut clock = Clock::default();
        self.release(origin.lanes, &mut clock);
        clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_elected_lane_publishes_itself_and_what_the_warp_synchronised() {
        let mut warp = WarpClock::new(0);
        let first = warp.epoch;
        warp.sync(u32::MAX);
        let (second, mut clock) = (warp.epoch, Clock::default());
        warp.release(1, &mut clock);
        let known = clock.seen.warp(0);
        assert!(known.covers(u32::MAX, first) && known.covers(1, second));
        assert!(!known.covers(2, second) && !known.covers(1, second + 1));
    }

    #[test]
    fn lanes_that_learn_the_same_one_by_one_end_together() {
        let mut warp = WarpClock::new(3);
        let mut clock = Clock::default();
        clock.seen.learn(1, &Known::of(7, 9));
        (0..32).for_each(|lane| warp.acquire(1 << lane, &clock));
        assert_eq!(warp.classes.len(), 1);
        warp.acquire_unit(1, 4, 2);
        assert_eq!(warp.classes.len(), 2);
        warp.sync(u32::MAX);
        warp.for_each(2, |_, clock| assert_eq!(clock.seen.unit(4), 2));
        assert_eq!(warp.classes.len(), 1);
    }

    #[test]
    fn only_a_fence_makes_relaxed_stores_and_loads_order() {
        let (mut writer, mut reader) = (WarpClock::new(0), WarpClock::new(1));
        let mut clock = Clock::default();
        assert!(!writer.publish(1, &mut clock));
        let epoch = writer.epoch;
        writer.fence(1);
        assert!(writer.publish(1, &mut clock));
        reader.observe(1, &clock);
        reader.for_each(1, |_, c| assert!(!c.seen.warp(0).covers(1, epoch)));
        reader.fence(1);
        reader.for_each(1, |_, c| assert!(c.seen.warp(0).covers(1, epoch)));
    }
}
