//! The mbarrier object (PTX ISA 9.7.13.15): phases, pending arrivals, transaction bytes.
//!
//! A phase completes when no arrival is pending *and* tx-count is zero; the next begins at once, with the expected count as its pending count.
//! What the ISA leaves undefined (one arrival too many, counts out of range, waiting on a phase long past) is a [`MbarrierFault`] here,
//! because on hardware it is a hang or a race that shows up elsewhere.

/// The greatest arrival count, and the greatest magnitude of tx-count.
const MAX_COUNT: u32 = (1 << 20) - 1;

/// An mbarrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mbarrier {
    /// Arrivals that the next phase starts with.
    expected: u32,
    /// Arrivals that the current phase still needs.
    pending: u32,
    /// Bytes that the current phase still waits for; negative while bytes have come that nobody has expected yet.
    tx: i32,
    /// Phases completed so far.
    phase: u64,
}

/// The opaque state that `mbarrier.arrive` returns: the phase and its pending count before the arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(pub u64);

impl Token {
    const COUNT_BITS: u32 = 20;

    fn new(barrier: &Mbarrier) -> Self {
        Token(barrier.phase << Self::COUNT_BITS | barrier.pending as u64)
    }

    /// `mbarrier.pending_count`.
    pub fn pending_count(self) -> u32 {
        self.0 as u32 & MAX_COUNT
    }

    fn phase(self) -> u64 {
        self.0 >> Self::COUNT_BITS
    }
}

/// Misuse of an mbarrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MbarrierFault {
    /// `init` or an arrival with a count outside of 1 ..= 2^20 − 1.
    Count {
        /// The count given.
        count: u32,
    },
    /// More arrivals than the phase has pending.
    Overarrived {
        /// Arrivals of this operation.
        count: u32,
        /// Arrivals that were pending.
        pending: u32,
    },
    /// tx-count leaves ±(2^20 − 1).
    TxCount {
        /// What it would be.
        tx: i64,
    },
    /// A `.noComplete` arrival that completes the phase.
    Completes,
    /// A wait with a state that is neither of the current phase nor of the one before.
    Stale {
        /// Phase of the state.
        token: u64,
        /// Current phase.
        phase: u64,
    },
    /// The phase completed, with bytes that came before anyone expected them still in the account of the next: a count or a byte
    /// count is wrong. (Checked when the barrier is invalidated or the CTA exits.)
    Unbalanced {
        /// tx-count.
        tx: i32,
    },
}

impl std::fmt::Display for MbarrierFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MbarrierFault::Count { count } => write!(f, "count {count} is not in 1 to {MAX_COUNT}"),
            MbarrierFault::Overarrived { count, pending } => {
                write!(
                    f,
                    "{count} arrival(s), but the phase has {pending} pending: it was initialised with too small a count"
                )
            }
            MbarrierFault::TxCount { tx } => write!(f, "tx-count would become {tx}, beyond ±{MAX_COUNT}"),
            MbarrierFault::Completes => f.write_str("an arrival with .noComplete completes the phase"),
            MbarrierFault::Stale { token, phase } => {
                write!(
                    f,
                    "the state is of phase {token}, but phase {phase} is current: only it and the one before can be waited for"
                )
            }
            MbarrierFault::Unbalanced { tx } => write!(f, "{tx} transaction bytes are left in its account"),
        }
    }
}

impl Mbarrier {
    /// `mbarrier.init`.
    ///
    /// # Errors
    /// [`MbarrierFault::Count`].
    pub fn init(count: u32) -> Result<Self, MbarrierFault> {
        check_count(count)?;
        Ok(Mbarrier { expected: count, pending: count, tx: 0, phase: 0 })
    }

    /// Phases completed since `init`.
    pub fn phase(&self) -> u64 {
        self.phase
    }

    /// Arrivals that the current phase lacks.
    pub fn pending(&self) -> u32 {
        self.pending
    }

    /// Arrivals that each phase needs.
    pub fn expected(&self) -> u32 {
        self.expected
    }

    /// Bytes that the current phase lacks.
    pub fn tx_count(&self) -> i32 {
        self.tx
    }

    /// `mbarrier.arrive` (and the arrival of `arrive.expect_tx`, after [`Mbarrier::expect_tx`]); the state from before it.
    ///
    /// # Errors
    /// A count out of range or beyond what is pending.
    pub fn arrive(&mut self, count: u32) -> Result<Token, MbarrierFault> {
        check_count(count)?;
        let token = Token::new(self);
        if count > self.pending {
            return Err(MbarrierFault::Overarrived { count, pending: self.pending });
        }
        self.pending -= count;
        self.advance();
        Ok(token)
    }

    /// `mbarrier.arrive_drop`: arrives, and is expected no more in the phases to come.
    ///
    /// # Errors
    /// As [`Mbarrier::arrive`].
    pub fn arrive_drop(&mut self, count: u32) -> Result<Token, MbarrierFault> {
        check_count(count)?;
        if count > self.pending.min(self.expected) {
            return Err(MbarrierFault::Overarrived { count, pending: self.pending.min(self.expected) });
        }
        self.expected -= count;
        self.arrive(count)
    }

    /// `mbarrier.arrive.noComplete`.
    ///
    /// # Errors
    /// As [`Mbarrier::arrive`], or that it would complete the phase.
    pub fn arrive_no_complete(&mut self, count: u32) -> Result<Token, MbarrierFault> {
        if count == self.pending && self.tx == 0 {
            return Err(MbarrierFault::Completes);
        }
        self.arrive(count)
    }

    /// `cp.async.mbarrier.arrive` without `.noinc`: makes room for the arrival that is to come.
    ///
    /// # Errors
    /// The pending count leaves its range.
    pub fn increment_pending(&mut self) -> Result<(), MbarrierFault> {
        check_count(self.pending + 1)?;
        self.pending += 1;
        Ok(())
    }

    /// `mbarrier.expect_tx`.
    ///
    /// # Errors
    /// [`MbarrierFault::TxCount`].
    pub fn expect_tx(&mut self, bytes: u32) -> Result<(), MbarrierFault> {
        self.add_tx(bytes as i64)
    }

    /// `mbarrier.complete_tx`, and what an asynchronous copy does when its bytes are there.
    ///
    /// # Errors
    /// [`MbarrierFault::TxCount`].
    pub fn complete_tx(&mut self, bytes: u32) -> Result<(), MbarrierFault> {
        self.add_tx(-(bytes as i64))
    }

    /// `test_wait` with a state.
    ///
    /// # Errors
    /// [`MbarrierFault::Stale`].
    pub fn is_complete(&self, token: Token) -> Result<bool, MbarrierFault> {
        match self.phase.checked_sub(token.phase()) {
            Some(0) => Ok(false),
            Some(1) => Ok(true),
            _ => Err(MbarrierFault::Stale { token: token.phase(), phase: self.phase }),
        }
    }

    /// `test_wait.parity`: whether the current phase's parity is the other one, so that the latest phase of `parity` is over.
    pub fn is_parity_complete(&self, parity: u32) -> bool {
        self.phase & 1 != (parity & 1) as u64
    }

    fn add_tx(&mut self, bytes: i64) -> Result<(), MbarrierFault> {
        let tx = self.tx as i64 + bytes;
        if tx.unsigned_abs() > MAX_COUNT as u64 {
            return Err(MbarrierFault::TxCount { tx });
        }
        self.tx = tx as i32;
        self.advance();
        Ok(())
    }

    fn advance(&mut self) {
        if self.pending == 0 && self.tx == 0 {
            self.phase += 1;
            self.pending = self.expected;
        }
    }
}

fn check_count(count: u32) -> Result<(), MbarrierFault> {
    if (1..=MAX_COUNT).contains(&count) { Ok(()) } else { Err(MbarrierFault::Count { count }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_needs_arrivals_and_bytes() {
        let mut b = Mbarrier::init(2).unwrap();
        let first = b.arrive(1).unwrap();
        assert_eq!((first.pending_count(), b.pending()), (2, 1));
        b.expect_tx(4096).unwrap();
        b.arrive(1).unwrap();
        assert!(!b.is_complete(first).unwrap() && !b.is_parity_complete(0));
        b.complete_tx(4000).unwrap();
        assert!(!b.is_parity_complete(0));
        b.complete_tx(96).unwrap();
        assert!(b.is_complete(first).unwrap() && b.is_parity_complete(0) && !b.is_parity_complete(1));
        assert_eq!((b.phase(), b.pending(), b.tx_count()), (1, 2, 0));
    }

    #[test]
    fn bytes_may_come_before_they_are_expected() {
        let mut b = Mbarrier::init(1).unwrap();
        b.complete_tx(128).unwrap();
        assert_eq!((b.phase(), b.tx_count()), (0, -128));
        b.expect_tx(128).unwrap();
        assert_eq!(b.phase(), 0, "the arrival is still missing");
        b.arrive(1).unwrap();
        assert_eq!(b.phase(), 1);
    }

    #[test]
    fn parity_alternates_and_states_grow_stale() {
        let mut b = Mbarrier::init(1).unwrap();
        // A wait on parity 1 of a fresh barrier passes: producers of a ring start so.
        assert!(b.is_parity_complete(1));
        let tokens: Vec<_> = (0..3).map(|_| b.arrive(1).unwrap()).collect();
        assert_eq!(b.phase(), 3);
        assert_eq!(b.is_complete(tokens[2]), Ok(true));
        assert_eq!(b.is_complete(tokens[1]), Err(MbarrierFault::Stale { token: 1, phase: 3 }));
    }

    #[test]
    fn dropping_lowers_the_count_of_later_phases() {
        let mut b = Mbarrier::init(3).unwrap();
        b.arrive_drop(1).unwrap();
        b.arrive(2).unwrap();
        assert_eq!((b.phase(), b.pending(), b.expected()), (1, 2, 2));
    }

    #[test]
    fn increments_and_their_arrivals_cancel() {
        let mut b = Mbarrier::init(1).unwrap();
        b.increment_pending().unwrap();
        b.arrive(1).unwrap();
        assert_eq!(b.phase(), 0);
        b.arrive(1).unwrap();
        assert_eq!(b.phase(), 1);
    }

    #[test]
    fn misuse_is_told() {
        assert_eq!(Mbarrier::init(0), Err(MbarrierFault::Count { count: 0 }));
        assert!(Mbarrier::init(1 << 20).is_err());
        let mut b = Mbarrier::init(2).unwrap();
        assert_eq!(b.arrive(3), Err(MbarrierFault::Overarrived { count: 3, pending: 2 }));
        assert_eq!(b.arrive_no_complete(2), Err(MbarrierFault::Completes));
        assert!(b.arrive_no_complete(1).is_ok());
        assert_eq!(b.expect_tx(1 << 20), Err(MbarrierFault::TxCount { tx: 1 << 20 }));
        assert_eq!(b.complete_tx(1 << 20), Err(MbarrierFault::TxCount { tx: -(1 << 20) }));
    }
}
