//! Shapes and configs as named values, in the kernel's order: what stands in records, on command lines and in the trials database.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Named values in an order that means something to readers, and nothing to equality of kernels' own making: two of one kernel have the same names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fields<V>(Vec<(String, V)>);

/// A shape: extents and what else work depends on, as numbers. `m = 64, n = 4096, k = 4096, bits = 16`.
pub type Shape = Fields<u64>;

/// How a kernel cuts its work. `algorithm = "tiled", rows = 128, …`.
pub type Config = Fields<Value>;

/// A value of a config.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// Yes or no.
    Flag(bool),
    /// A number.
    Number(u64),
    /// One of a few words.
    Word(String),
}

impl<V> Default for Fields<V> {
    fn default() -> Self {
        Fields(Vec::new())
    }
}

impl<V> Fields<V> {
    /// Without any.
    pub fn new() -> Fields<V> {
        Fields::default()
    }

    /// The same with one more.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<V>) -> Fields<V> {
        self.0.push((name.to_owned(), value.into()));
        self
    }

    /// Of this name.
    pub fn get(&self, name: &str) -> Option<&V> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value)
    }

    /// Sets what is there.
    pub fn set(&mut self, name: &str, value: impl Into<V>) {
        if let Some((_, old)) = self.0.iter_mut().find(|(n, _)| n == name) {
            *old = value.into();
        }
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(name, _)| name)
    }
}

impl Shape {
    /// With these names, which are there as many times as values.
    pub fn of(names: &[&str], values: &[u64]) -> Shape {
        Fields(names.iter().zip(values).map(|(&name, &value)| (name.to_owned(), value)).collect())
    }

    /// The values.
    pub fn values(&self) -> Vec<u64> {
        self.0.iter().map(|&(_, value)| value).collect()
    }

    /// The extent `name`, 0 if there is none: for shapes whose names have been checked.
    pub fn extent(&self, name: &str) -> usize {
        self.get(name).map_or(0, |&value| value as usize)
    }
}

impl Config {
    /// The number `name`.
    ///
    /// # Errors
    /// If it is absent, or no number that fits.
    pub fn number<N: TryFrom<u64>>(&self, name: &str) -> Result<N, String> {
        match self.get(name) {
            Some(&Value::Number(n)) => {
                N::try_from(n).map_err(|_| format!("`{name}` is {n}, which is too large"))
            }
            Some(other) => Err(format!("`{name}` is {other}, but a number is needed")),
            None => Err(format!("`{name}` is missing")),
        }
    }

    /// The flag `name`.
    ///
    /// # Errors
    /// If it is absent, or no flag.
    pub fn flag(&self, name: &str) -> Result<bool, String> {
        match self.get(name) {
            Some(&Value::Flag(flag)) => Ok(flag),
            Some(other) => Err(format!("`{name}` is {other}, but `true` or `false` is needed")),
            None => Err(format!("`{name}` is missing")),
        }
    }

    /// What the word `name` stands for.
    ///
    /// # Errors
    /// If it is absent, or none of `words`.
    pub fn word<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<T, String> {
        let known = || words.iter().map(|(word, _)| format!("`{word}`")).collect::<Vec<_>>().join(", ");
        match self.get(name) {
            Some(Value::Word(word)) => match words.iter().find(|(w, _)| w == word) {
                Some(&(_, meaning)) => Ok(meaning),
                None => Err(format!("`{name}` is `{word}`, but it is one of {}", known())),
            },
            Some(other) => Err(format!("`{name}` is {other}, but it is one of {}", known())),
            None => Err(format!("`{name}` is missing")),
        }
    }
}

/// The word for a value, the other way round from [`Config::word`]; values that have none are a fault of the table.
pub fn word_of<T: PartialEq>(words: &[(&'static str, T)], value: &T) -> &'static str {
    words.iter().find(|(_, meaning)| meaning == value).map_or("?", |(word, _)| word)
}

impl From<u64> for Value {
    fn from(n: u64) -> Value {
        Value::Number(n)
    }
}

impl From<usize> for Value {
    fn from(n: usize) -> Value {
        Value::Number(n as u64)
    }
}

impl From<u32> for Value {
    fn from(n: u32) -> Value {
        Value::Number(n.into())
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Value {
        Value::Flag(flag)
    }
}

impl From<&str> for Value {
    fn from(word: &str) -> Value {
        Value::Word(word.to_owned())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Flag(flag) => write!(f, "{flag}"),
            Value::Number(n) => write!(f, "{n}"),
            Value::Word(word) => write!(f, "{word}"),
        }
    }
}

/// `m=64 n=4096`: for people.
impl<V: fmt::Display> fmt::Display for Fields<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, value)) in self.0.iter().enumerate() {
            write!(f, "{}{name}={value}", if i == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

impl<V: Serialize> Serialize for Fields<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Fields<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for InOrder<V> {
            type Value = Fields<V>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("named values")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<V>, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(InOrder(PhantomData))
    }
}
