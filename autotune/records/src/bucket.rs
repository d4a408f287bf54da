//! Buckets: which shapes a record counts for.

use std::ops::RangeInclusive;

use crate::fields::{Fields, Shape};

/// An extent of a kernel's shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dim {
    /// Its name.
    pub name: &'static str,
    /// Does a record count for a range of it? Else for one value.
    pub bucketed: bool,
}

impl Dim {
    /// An extent that code and choice depend on: a record counts for one value.
    pub const fn exact(name: &'static str) -> Dim {
        Dim { name, bucketed: false }
    }

    /// An extent of which a record counts for a range, up to a power of two.
    pub const fn bucketed(name: &'static str) -> Dim {
        Dim { name, bucketed: true }
    }
}

/// For which extents a record counts: those that it does not name are as in its shape.
pub type Valid = Fields<[u64; 2]>;

/// The range of values that are measured as one: from one power of two, exclusive, to the next, inclusive.
pub fn range(value: u64) -> RangeInclusive<u64> {
    let most = value.max(1).checked_next_power_of_two().unwrap_or(u64::MAX);
    let least = if most == 1 { 1 } else { most / 2 + 1 };
    least..=most
}

/// The bucket of a shape.
pub fn bucket(dims: &[Dim], shape: &Shape) -> Valid {
    dims.iter().filter(|dim| dim.bucketed).fold(Valid::new(), |valid, dim| {
        let range = range(shape.get(dim.name).copied().unwrap_or_default());
        valid.with(dim.name, [*range.start(), *range.end()])
    })
}

/// A shape in the order of `names`.
///
/// # Errors
/// Extents that are missing, unknown or 0.
pub fn in_order(names: &[&str], written: &Shape) -> Result<Shape, String> {
    if let Some(unknown) = written.names().find(|name| !names.contains(name)) {
        return Err(format!("a shape has no `{unknown}`; it has {}", names.join(", ")));
    }
    let mut values = Vec::new();
    for name in names {
        match written.get(name) {
            Some(&value) if value > 0 && value < 1 << 48 => values.push(value),
            Some(value) => return Err(format!("`{name}` is {value}, but 1 to 2^48 - 1 is possible")),
            None => return Err(format!("the shape's `{name}` is missing; it has {}", names.join(", "))),
        }
    }
    Ok(Shape::of(names, &values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_one_bucket() {
        assert_eq!(
            [1, 2, 3, 4, 5, 33, 64, 65].map(range),
            [1..=1, 2..=2, 3..=4, 3..=4, 5..=8, 33..=64, 33..=64, 65..=128]
        );
    }

    #[test]
    fn extents_are_ordered_and_checked() {
        let written = Shape::new().with("n", 8u64).with("m", 3u64);
        assert_eq!(in_order(&["m", "n"], &written).unwrap().to_string(), "m=3 n=8");
        assert_eq!(in_order(&["m"], &written).unwrap_err(), "a shape has no `n`; it has m");
        assert_eq!(
            in_order(&["m", "n", "k"], &written).unwrap_err(),
            "the shape's `k` is missing; it has m, n, k"
        );
        let valid = bucket(&[Dim::bucketed("m"), Dim::exact("n")], &written);
        assert_eq!(valid, Valid::new().with("m", [3, 4]));
    }
}
