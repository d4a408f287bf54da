//! Collects cases: selects by name, shares kernels, lays out buffers.

use std::collections::HashMap;
use std::sync::Arc;

use tegula_ir::kernel::Kernel;
use tegula_ir::types::Elem;

use crate::case::{Case, Expected, HostArg, HostBuffer, Rule};

/// A row-major array of element patterns.
#[derive(Clone, Debug)]
pub struct Array {
    /// Type of the elements.
    pub elem: Elem,
    /// Extents.
    pub dims: Vec<u32>,
    /// A pattern an element.
    pub bits: Vec<u64>,
}

impl Array {
    /// Number of elements of a shape.
    pub fn count(dims: &[u32]) -> usize {
        dims.iter().map(|&d| d as usize).product()
    }

    /// A scalar as an array of one element, which a view can hold; others as they are.
    pub fn at_least_one_dimension(mut self) -> Array {
        if self.dims.is_empty() {
            self.dims.push(1);
        }
        self
    }
}

/// Where expanded cases go.
pub struct Sink {
    /// The data file being expanded; first part of names.
    pub family: String,
    filter: Vec<String>,
    kernels: HashMap<String, Arc<Kernel>>,
    cases: Vec<Case>,
}

/// What fills memory before a launch: nothing computes it by chance.
pub fn poison(elem: Elem) -> u64 {
    0xa5a5_a5a5_a5a5_a5a5 >> (64 - 8 * elem.size_of().expect("whole bytes in memory"))
}

impl Sink {
    /// Collects the cases whose name contains one of the comma-separated parts.
    pub fn new(filter: &str) -> Sink {
        let filter = filter.split(',').filter(|f| !f.is_empty()).map(str::to_owned).collect();
        Sink { family: String::new(), filter, kernels: HashMap::new(), cases: Vec::new() }
    }

    /// The full name of a case, if it is selected.
    pub fn name(&self, parts: &[&str]) -> Option<String> {
        let parts: Vec<&str> = parts.iter().copied().filter(|p| !p.is_empty()).collect();
        let name = format!("{}/{}", self.family, parts.join("/"));
        let wanted = self.filter.is_empty() || self.filter.iter().any(|f| name.contains(f.as_str()));
        wanted.then_some(name)
    }

    /// The kernel of this name, made if it is not there yet. The name's parts must say all that the kernel depends on.
    pub fn kernel(&mut self, parts: &[&str], make: impl FnOnce(&str) -> Kernel) -> Arc<Kernel> {
        let parts: Vec<&str> = parts.iter().copied().filter(|p| !p.is_empty()).collect();
        let name: String = format!("{}_{}", self.family, parts.join("_"))
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
            .collect();
        self.kernels.entry(name.clone()).or_insert_with(|| Arc::new(make(&name))).clone()
    }

    /// Adds a case.
    pub fn push(&mut self, case: Case) {
        self.cases.push(case);
    }

    /// All cases.
    pub fn into_cases(self) -> Vec<Case> {
        self.cases
    }
}

/// The arguments and buffers of a case, under construction.
#[derive(Default)]
pub struct Call {
    /// The arguments so far.
    pub args: Vec<HostArg>,
    /// The buffers so far.
    pub buffers: Vec<HostBuffer>,
}

impl Call {
    /// Adds memory with this content, which must not change; returns its number.
    pub fn input(&mut self, elem: Elem, bits: Vec<u64>) -> usize {
        self.buffers.push(HostBuffer { elem, initial: bits, expected: None });
        self.buffers.len() - 1
    }

    /// Adds poisoned memory that must hold `bits` afterwards; returns its number.
    pub fn output(&mut self, elem: Elem, bits: Vec<u64>, rule: Rule, ignore: Vec<bool>) -> usize {
        let initial = vec![poison(elem); bits.len()];
        self.update(elem, initial, bits, rule, ignore)
    }

    /// Adds memory that goes from `initial` to `bits`; returns its number.
    pub fn update(
        &mut self,
        elem: Elem,
        initial: Vec<u64>,
        bits: Vec<u64>,
        rule: Rule,
        ignore: Vec<bool>,
    ) -> usize {
        self.buffers.push(HostBuffer { elem, initial, expected: Some(Expected { bits, rule, ignore }) });
        self.buffers.len() - 1
    }

    /// Passes a row-major view of a buffer from its start.
    pub fn view(&mut self, buffer: usize, dims: &[u32]) {
        let dims: Vec<i64> = dims.iter().map(|&d| d.into()).collect();
        let mut strides = vec![1; dims.len()];
        for i in (1..dims.len()).rev() {
            strides[i - 1] = strides[i] * dims[i].max(1);
        }
        self.args.push(HostArg::View { buffer, offset: 0, dims, strides });
    }

    /// Passes a pointer to a buffer's start.
    pub fn ptr(&mut self, buffer: usize) {
        self.args.push(HostArg::Ptr { buffer, offset: 0 });
    }

    /// Passes an i32.
    pub fn i32(&mut self, x: i32) {
        self.args.push(HostArg::Scalar { elem: Elem::I32, bits: (x as u32).into() });
    }

    /// Passes an input array as a row-major view.
    pub fn input_view(&mut self, array: &Array) {
        let buffer = self.input(array.elem, array.bits.clone());
        self.view(buffer, &array.dims);
    }

    /// Passes an output array as a row-major view; `ignore` marks what the language leaves open.
    pub fn output_view(&mut self, array: Array, rule: Rule, ignore: Vec<bool>) {
        let buffer = self.output(array.elem, array.bits, rule, ignore);
        self.view(buffer, &array.dims);
    }

    /// The case.
    pub fn case(self, name: String, kernel: Arc<Kernel>, grid: [u32; 3], min_sm: Option<u32>) -> Case {
        Case { name, kernel, grid, args: self.args, buffers: self.buffers, min_sm }
    }
}
