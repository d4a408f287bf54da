//! A concrete case: a kernel, its arguments and buffers, and what must be in the buffers afterwards.

use std::sync::Arc;

use tegula_ir::kernel::Kernel;
use tegula_ir::types::Elem;

use crate::number;

/// One launch and its expected outcome.
#[derive(Clone, Debug)]
pub struct Case {
    /// Stable and greppable: `family/op/types/…/inputs/shape`.
    pub name: String,
    /// The kernel; cases that differ only in data and sizes share it, and equal names mean equal kernels.
    pub kernel: Arc<Kernel>,
    /// Programs along x, y, z.
    pub grid: [u32; 3],
    /// The arguments, one a parameter.
    pub args: Vec<HostArg>,
    /// The memory that arguments refer to.
    pub buffers: Vec<HostBuffer>,
    /// The oldest GPU it runs on (80, 89, …); `None` if only the host can, for the reason that the data file gives.
    pub min_sm: Option<u32>,
}

/// An argument.
#[derive(Clone, Debug)]
pub enum HostArg {
    /// A scalar, by its bit pattern.
    Scalar {
        /// Its type.
        elem: Elem,
        /// Its pattern, in the low bits.
        bits: u64,
    },
    /// A pointer to an element of a buffer.
    Ptr {
        /// Which buffer.
        buffer: usize,
        /// Which element.
        offset: usize,
    },
    /// A view of a buffer.
    View {
        /// Which buffer.
        buffer: usize,
        /// Which element is the view's first.
        offset: usize,
        /// Extents.
        dims: Vec<i64>,
        /// Strides in elements.
        strides: Vec<i64>,
    },
}

/// Memory of a case: element patterns, and what they must be after the launch.
#[derive(Clone, Debug)]
pub struct HostBuffer {
    /// Type of the elements.
    pub elem: Elem,
    /// Before the launch, a pattern an element.
    pub initial: Vec<u64>,
    /// After it; `None`: as before.
    pub expected: Option<Expected>,
}

/// What a buffer must hold.
#[derive(Clone, Debug)]
pub struct Expected {
    /// A pattern an element.
    pub bits: Vec<u64>,
    /// How close is close enough.
    pub rule: Rule,
    /// Elements whose value the language leaves open; empty: none.
    pub ignore: Vec<bool>,
}

/// How results are compared. NaN always matches NaN.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// Bit for bit.
    Exact,
    /// At most so many representable values away.
    Ulp(u32),
    /// At most so far away, element by element.
    Within(Vec<f64>),
    /// The same values in any order: which program got which is not determined.
    Multiset,
}

/// The content of every buffer after a launch, a pattern an element.
pub type Outputs = Vec<Vec<u64>>;

/// Runs cases on a device.
pub trait Engine {
    /// Launches a case and returns the buffers' contents.
    ///
    /// # Errors
    /// What the device reported.
    fn run(&mut self, case: &Case) -> Result<Outputs, String>;
}

impl HostBuffer {
    /// What the buffer must hold after the launch, with its rule.
    pub fn wanted(&self) -> (&[u64], &Rule) {
        match &self.expected {
            Some(e) => (&e.bits, &e.rule),
            None => (&self.initial, &Rule::Exact),
        }
    }

    /// Bytes of an element.
    pub fn element_size(&self) -> usize {
        self.elem.size_of().expect("a buffer's elements are whole bytes")
    }
}

/// Compares the outcome of a launch with what is expected.
///
/// # Errors
/// The first differing element of each buffer, how many differ, and what was expected there.
pub fn check(case: &Case, outputs: &Outputs) -> Result<(), String> {
    let mut complaints = Vec::new();
    for (index, (buffer, got)) in case.buffers.iter().zip(outputs).enumerate() {
        let (wanted, rule) = buffer.wanted();
        if got.len() != wanted.len() {
            return Err(format!("buffer {index} has {} elements instead of {}", got.len(), wanted.len()));
        }
        let ignored =
            |i: usize| buffer.expected.as_ref().is_some_and(|e| e.ignore.get(i).copied().unwrap_or(false));
        let (mut sorted_got, mut sorted_wanted);
        let (got, wanted): (&[u64], &[u64]) = if *rule == Rule::Multiset {
            (sorted_got, sorted_wanted) = (got.clone(), wanted.to_vec());
            sorted_got.sort_unstable();
            sorted_wanted.sort_unstable();
            (&sorted_got, &sorted_wanted)
        } else {
            (got, wanted)
        };
        let wrong: Vec<usize> = (0..got.len())
            .filter(|&i| !ignored(i) && !matches(buffer.elem, rule, i, got[i], wanted[i]))
            .collect();
        if let Some(&i) = wrong.first() {
            complaints.push(format!(
                "buffer {index}: {} of {} elements are wrong; element {i} is {}, not {}",
                wrong.len(),
                got.len(),
                show(buffer.elem, got[i]),
                show(buffer.elem, wanted[i]),
            ));
        }
    }
    if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n")) }
}

fn matches(elem: Elem, rule: &Rule, i: usize, got: u64, wanted: u64) -> bool {
    if number::same(elem, got, wanted) {
        return true;
    }
    match rule {
        Rule::Exact | Rule::Multiset => false,
        _ if number::float(elem, got).is_nan() || number::float(elem, wanted).is_nan() => false,
        Rule::Ulp(n) => number::ulps(elem, got, wanted) <= u64::from(*n),
        Rule::Within(bounds) => {
            let (got, wanted) = (number::float(elem, got), number::float(elem, wanted));
            (got - wanted).abs() <= bounds[i]
        }
    }
}

fn show(elem: Elem, bits: u64) -> String {
    let digits = (elem.bits() as usize).div_ceil(4);
    if elem.is_float() {
        format!("{:e} ({bits:#0width$x})", number::float(elem, bits), width = digits + 2)
    } else {
        format!("{} ({bits:#0width$x})", number::int(elem, bits), width = digits + 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(elem: Elem, initial: u64, expected: Option<(u64, Rule)>) -> Case {
        let expected = expected.map(|(bits, rule)| Expected { bits: vec![bits], rule, ignore: vec![] });
        Case {
            name: "test".to_owned(),
            kernel: Arc::new(Kernel::new("test")),
            grid: [1; 3],
            args: vec![],
            buffers: vec![HostBuffer { elem, initial: vec![initial], expected }],
            min_sm: Some(80),
        }
    }

    #[test]
    fn rules_tell_right_from_wrong() {
        let f32 = |x: f32| u64::from(x.to_bits());
        let exact = case(Elem::F32, 0, Some((f32(0.0), Rule::Exact)));
        assert!(check(&exact, &vec![vec![f32(0.0)]]).is_ok());
        assert!(check(&exact, &vec![vec![f32(-0.0)]]).is_err());
        let nan = case(Elem::F32, 0, Some((f32(f32::NAN), Rule::Ulp(2))));
        assert!(check(&nan, &vec![vec![0xffff_ffff]]).is_ok() && check(&nan, &vec![vec![0]]).is_err());
        let ulp = case(Elem::F32, 0, Some((f32(1.0), Rule::Ulp(2))));
        assert!(
            check(&ulp, &vec![vec![f32(1.0) + 2]]).is_ok() && check(&ulp, &vec![vec![f32(1.0) + 3]]).is_err()
        );
        let within = case(Elem::F32, 0, Some((f32(1.0), Rule::Within(vec![0.5]))));
        assert!(
            check(&within, &vec![vec![f32(1.5)]]).is_ok() && check(&within, &vec![vec![f32(1.6)]]).is_err()
        );
        let unchanged = case(Elem::I8, 3, None);
        assert!(check(&unchanged, &vec![vec![3]]).is_ok());
        assert!(
            check(&unchanged, &vec![vec![4]]).unwrap_err().contains("element 0 is 4 (0x04), not 3 (0x03)")
        );
    }
}
