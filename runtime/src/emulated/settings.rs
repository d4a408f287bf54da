//! How a device emulates, and where that is set.

use tegula_emulator::{Options, sanitize};

pub use tegula_emulator::Timing;

use crate::device::{Device, lock};
use crate::error::Error;

/// How a device emulates. The same seed and timing give the same run; a kernel that is right is right with all of them.
///
/// The environment sets the defaults: `TEGULA_EMULATOR_SEED` (a number; 0), `TEGULA_EMULATOR_TIMING` (`early`, `late` or `random`; `late`),
/// `TEGULA_EMULATOR_SANITIZE` (`on` or `off`; `on`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Emulation {
    /// The seed of every choice that the schedule makes.
    pub seed: u64,
    /// When asynchronous operations take effect.
    pub timing: Timing,
    /// Watch for races and hazards. Accesses outside of memory and reads of what nobody wrote are always found.
    pub sanitize: bool,
}

impl Default for Emulation {
    fn default() -> Self {
        Emulation { seed: 0, timing: Timing::default(), sanitize: true }
    }
}

impl Emulation {
    /// What the environment says.
    pub(super) fn from_environment() -> Result<Emulation, Error> {
        Emulation::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Emulation, Error> {
        let mut settings = Emulation::default();
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let bad = |name: &str, value: &str, wants: &str| {
            Error::Unsupported(format!("{name} is `{value}`, but it takes {wants}"))
        };
        const SEED: &str = "TEGULA_EMULATOR_SEED";
        const TIMING: &str = "TEGULA_EMULATOR_TIMING";
        const SANITIZE: &str = "TEGULA_EMULATOR_SANITIZE";
        if let Some(value) = set(SEED) {
            settings.seed = value.parse().map_err(|_| bad(SEED, &value, "a number from 0 to 2^64 - 1"))?;
        }
        if let Some(value) = set(TIMING) {
            settings.timing = match value.as_str() {
                "early" => Timing::Early,
                "late" => Timing::Late,
                "random" => Timing::Random,
                _ => return Err(bad(TIMING, &value, "`early`, `late` or `random`")),
            };
        }
        if let Some(value) = set(SANITIZE) {
            settings.sanitize = match value.as_str() {
                "on" => true,
                "off" => false,
                _ => return Err(bad(SANITIZE, &value, "`on` or `off`")),
            };
        }
        Ok(settings)
    }

    /// The same, with another seed.
    pub fn with_seed(self, seed: u64) -> Emulation {
        Emulation { seed, ..self }
    }

    /// The same, with another timing.
    pub fn with_timing(self, timing: Timing) -> Emulation {
        Emulation { timing, ..self }
    }

    pub(super) fn options(&self) -> Options {
        let observers = if self.sanitize { sanitize::all() } else { vec![] };
        Options { seed: self.seed, timing: self.timing, observers, ..Options::default() }
    }
}

impl Device {
    /// How it emulates; `None` if it does not.
    pub fn emulation(&self) -> Option<Emulation> {
        Some(*lock(self.0.backend.emulation()?))
    }

    /// Sets how it emulates, for launches from now on, whoever makes them.
    ///
    /// # Errors
    /// If it does not emulate.
    pub fn set_emulation(&self, settings: Emulation) -> Result<(), Error> {
        match self.0.backend.emulation() {
            Some(place) => {
                *lock(place) = settings;
                Ok(())
            }
            None => Err(Error::Unsupported(format!(
                "{} does not emulate: open `emulated:sm_90a`, for one",
                self.name()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &'static str, value: &'static str) -> Result<Emulation, Error> {
        Emulation::from_variables(|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn the_environment_sets_each_and_is_told_what_it_should_say() {
        let plain = Emulation::default();
        assert_eq!(of("TEGULA_EMULATOR_SEED", "7"), Ok(plain.with_seed(7)));
        assert_eq!(of("TEGULA_EMULATOR_TIMING", "random"), Ok(plain.with_timing(Timing::Random)));
        assert_eq!(of("TEGULA_EMULATOR_SANITIZE", "off"), Ok(Emulation { sanitize: false, ..plain }));
        assert_eq!(of("TEGULA_EMULATOR_SEED", ""), Ok(plain));
        for (name, value) in [
            ("TEGULA_EMULATOR_SEED", "-1"),
            ("TEGULA_EMULATOR_TIMING", "soon"),
            ("TEGULA_EMULATOR_SANITIZE", "1"),
        ] {
            let message = of(name, value).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains(value), "{message}");
        }
    }
}
