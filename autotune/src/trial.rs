//! Trials: what was found out about one config, and the database that keeps each as soon as it is known.
//!
//! A trial is a fact: "this config of this version of this kernel, at this shape, on this model of device, passed the gate", or "took so long". The search asks for
//! facts and gets them from the database where they are known. So a run that was killed goes on where it was, a run over a larger space measures what is new, and both end
//! as an undisturbed one would.
//!
//! One transaction a trial: a kill loses the one in flight. A database is one process's own: a second tuner on the same folder finds the first one's taken and has
//! its own (`trials-1.redb`, …); both are read when they are free.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use redb::{Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use serde::{Deserialize, Serialize};

use crate::device::Method;
use crate::{Config, Shape};

/// Keys and trials, both as JSON: a database is looked at with other tools, too.
const TRIALS: TableDefinition<'_, &str, &str> = TableDefinition::new("trials");
/// The arguments of the last run, for `--resume`.
const RUNS: TableDefinition<'_, &str, &str> = TableDefinition::new("runs");
/// More tuners at one time than anybody has.
const MOST_DATABASES: usize = 64;

/// What a trial is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// The kernel.
    pub kernel: String,
    /// Its source's hash.
    pub source: String,
    /// The version of its space.
    pub space: u32,
    /// The device's model.
    pub device: String,
    /// The shape.
    pub shape: Shape,
    /// The config.
    pub config: Config,
    /// Which question.
    pub stage: Stage,
}

/// The questions that are asked of a config.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Does it compile, and is its result right?
    Gate,
    /// How long does it take, beside the default? By the number of the round of halving, from 0: later ones take longer and are more exact.
    Round(u32),
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It compiles, and its result is right.
    Passed,
    /// It takes so long.
    Timed(Timing),
    /// It is no good.
    Failed(Failure),
}

/// How long a call takes, measured in turns with the default config.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Seconds of a call: the median.
    pub seconds: f64,
    /// Seconds of a call of the default.
    pub default: f64,
    /// The config's time by the default's: the median over pairs.
    pub ratio: f64,
    /// Half of the width of the interval in which `ratio` probably is (95 %).
    pub spread: f64,
    /// Pairs.
    pub pairs: u32,
    /// How it came about.
    pub method: Method,
}

/// Why a config is no good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// In which way.
    pub kind: Kind,
    /// In words.
    pub message: String,
}

/// The ways in which configs fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It breaks a rule that is known before anything is compiled.
    Illegal,
    /// It cannot be built.
    Compile,
    /// It cannot be launched, or stopped with an error.
    Launch,
    /// It ran, and the result is wrong.
    Wrong,
    /// It did not end in time.
    Hang,
    /// It took its process with it.
    Crash,
}

impl Kind {
    /// In a word or two.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Illegal => "illegal",
            Kind::Compile => "does not compile",
            Kind::Launch => "launch error",
            Kind::Wrong => "wrong result",
            Kind::Hang => "hang",
            Kind::Crash => "crash",
        }
    }
}

/// A trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// What was found out.
    pub answer: Answer,
    /// Seconds that it took to find out.
    pub took: f64,
    /// When it was found out, in seconds since 1970.
    #[serde(default)]
    pub at: f64,
    /// Clock (MHz), power (W) and temperature (°C) of the GPU afterwards, where they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<[f64; 3]>,
}

/// All trials of a folder of records.
pub struct Trials {
    path: PathBuf,
    database: Database,
    known: Mutex<BTreeMap<Key, Trial>>,
    last_run: Option<String>,
}

impl Trials {
    /// Opens the trials of a folder: this process's database, and what others have left.
    ///
    /// # Errors
    /// If the folder cannot be written to, or a database is damaged.
    pub fn open(folder: &Path) -> Result<Trials> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let mut own = None;
        let mut known = BTreeMap::new();
        let mut last_run = None;
        for number in 0..MOST_DATABASES {
            let path = folder.join(format!("trials-{number}.redb"));
            if !path.exists() && own.is_some() {
                break;
            }
            let database = match Database::create(&path) {
                Ok(database) => database,
                Err(DatabaseError::DatabaseAlreadyOpen) => continue,
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot open {}", path.display()));
                }
            };
            read(&database, &mut known, &mut last_run).with_context(|| format!("in {}", path.display()))?;
            if own.is_none() {
                own = Some((path, database));
            }
        }
        let Some((path, database)) = own else {
            bail!("{MOST_DATABASES} tuners write to {} already", folder.display());
        };
        Ok(Trials { path, database, known: Mutex::new(known), last_run })
    }

    /// All trials in a folder, for who only reads: without making a database, and without what a tuner at work has at the moment.
    ///
    /// # Errors
    /// If a database is damaged.
    pub fn read(folder: &Path) -> Result<Vec<(Key, Trial)>> {
        let mut known = BTreeMap::new();
        for path in databases(folder) {
            match Database::open(&path) {
                Ok(database) => read(&database, &mut known, &mut None),
                Err(DatabaseError::DatabaseAlreadyOpen) => Ok(()),
                Err(error) => Err(error.into()),
            }
            .with_context(|| format!("cannot read {}", path.display()))?;
        }
        Ok(known.into_iter().collect())
    }

    /// Where this process writes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The arguments of the run before.
    pub fn last_run(&self) -> Option<&str> {
        self.last_run.as_deref()
    }

    /// Notes the arguments of this run.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn begin_run(&self, arguments: &str) -> Result<()> {
        let write = self.database.begin_write()?;
        write.open_table(RUNS)?.insert("last", arguments)?;
        Ok(write.commit()?)
    }

    /// What is known.
    pub fn get(&self, key: &Key) -> Option<Trial> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Keeps a trial: it is on disk when this returns.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn put(&self, key: Key, trial: Trial) -> Result<()> {
        let (name, value) = (serde_json::to_string(&key)?, serde_json::to_string(&trial)?);
        let write = self.database.begin_write()?;
        write.open_table(TRIALS)?.insert(&*name, &*value)?;
        write.commit().with_context(|| format!("cannot write to {}", self.path.display()))?;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(key, trial);
        Ok(())
    }

    /// Takes no trial of these kernels for known any more: they are asked again, and overwritten.
    pub fn forget(&self, is_asked_again: impl Fn(&Key) -> bool) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).retain(|key, _| !is_asked_again(key));
    }

    /// Removes trials from all databases of a folder but those that tuners are writing to; says how many.
    ///
    /// # Errors
    /// If one cannot be written, or is damaged.
    pub fn remove(folder: &Path, is_obsolete: impl Fn(&Key) -> bool) -> Result<usize> {
        let mut removed = 0;
        for path in databases(folder) {
            let database = match Database::open(&path) {
                Err(DatabaseError::DatabaseAlreadyOpen) => continue,
                database => database.with_context(|| format!("cannot open {}", path.display()))?,
            };
            let write = database.begin_write()?;
            write.open_table(TRIALS)?.retain(|key, _| {
                let obsolete = serde_json::from_str(key).is_ok_and(|key| is_obsolete(&key));
                removed += usize::from(obsolete);
                !obsolete
            })?;
            write.commit()?;
        }
        Ok(removed)
    }

    /// All that is known, in the order of the keys.
    pub fn all(&self) -> Vec<(Key, Trial)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().map(|(key, trial)| (key.clone(), trial.clone())).collect()
    }
}

/// The databases that there are in a folder.
fn databases(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let all = (0..MOST_DATABASES).map(|number| folder.join(format!("trials-{number}.redb")));
    all.take_while(|path| path.exists())
}

/// Reads a database; what cannot be parsed was written by another version, and is no fact here.
fn read(database: &Database, known: &mut BTreeMap<Key, Trial>, last_run: &mut Option<String>) -> Result<()> {
    // Tables are there once they have been opened for writing.
    let write = database.begin_write()?;
    write.open_table(TRIALS)?;
    write.open_table(RUNS)?;
    write.commit()?;
    let read = database.begin_read()?;
    for entry in read.open_table(TRIALS)?.iter()? {
        let (key, trial) = entry?;
        if let (Ok(key), Ok(trial)) = (serde_json::from_str(key.value()), serde_json::from_str(trial.value()))
        {
            known.insert(key, trial);
        }
    }
    if let Some(arguments) = read.open_table(RUNS)?.get("last")? {
        last_run.get_or_insert_with(|| arguments.value().to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(stage: Stage) -> Key {
        Key {
            kernel: "scale".into(),
            source: "0".into(),
            space: 1,
            device: "a device".into(),
            shape: Shape::new().with("n", 7u64),
            config: Config::new().with("block", 8u64).with("way", "up"),
            stage,
        }
    }

    fn trial() -> Trial {
        let timing =
            Timing { seconds: 1e-6, default: 2e-6, ratio: 0.5, spread: 0.01, pairs: 3, method: Method::Wall };
        Trial { answer: Answer::Timed(timing), took: 0.1, at: 1.8e9, gpu: Some([1980.0, 650.5, 61.0]) }
    }

    #[test]
    fn trials_are_there_again_and_two_tuners_have_a_database_each() {
        let folder = tempfile::tempdir().unwrap();
        let first = Trials::open(folder.path()).unwrap();
        first.begin_run("tune scale").unwrap();
        first.put(key(Stage::Gate), Trial { answer: Answer::Passed, took: 0.0, at: 0.0, gpu: None }).unwrap();
        let second = Trials::open(folder.path()).unwrap();
        assert_ne!(first.path(), second.path());
        assert_eq!(second.all(), [], "the first one's is not to be had");
        second.put(key(Stage::Round(0)), trial()).unwrap();
        assert_eq!(Trials::read(folder.path()).unwrap(), [], "a tuner has each");
        drop((first, second));
        assert_eq!(Trials::read(folder.path()).unwrap().len(), 2);
        let empty = folder.path().join("empty");
        assert_eq!(Trials::read(&empty).unwrap(), []);
        assert!(!empty.exists(), "nothing is made");
        let third = Trials::open(folder.path()).unwrap();
        assert_eq!(third.last_run(), Some("tune scale"));
        assert_eq!(third.get(&key(Stage::Round(0))), Some(trial()));
        assert_eq!(third.all().len(), 2);
        assert_eq!(third.get(&key(Stage::Round(1))), None);
        drop(third);
        assert_eq!(Trials::remove(folder.path(), |key| key.stage != Stage::Gate).unwrap(), 1);
        let left = Trials::read(folder.path()).unwrap();
        assert_eq!(left.iter().map(|(key, _)| key.stage).collect::<Vec<_>>(), [Stage::Gate]);
    }
}
