//! Runs a kernel of one's own over buffers of 32-bit words.

use tegula_emulator::{GlobalMemory, Launch, Module, Options, Outcome};

/// A kernel's body and what it is launched with.
pub struct Test<'a> {
    /// Directives and functions before the kernel.
    pub before: &'a str,
    /// Its body; `%p0`, `%p1`, … hold the addresses of the buffers.
    pub body: &'a str,
    /// CTAs along x.
    pub grid: u32,
    /// Threads a CTA.
    pub block: u32,
    /// How.
    pub options: Options,
}

impl Default for Test<'_> {
    fn default() -> Self {
        Test { before: "", body: "", grid: 1, block: 32, options: Options::default() }
    }
}

impl<'a> Test<'a> {
    /// One warp executes the body.
    pub fn new(body: &'a str) -> Self {
        Test { body, ..Test::default() }
    }

    /// The module's text, for a kernel of so many buffers.
    pub fn text(&self, buffers: usize) -> String {
        let params: Vec<_> = (0..buffers).map(|i| format!(".param .u64 arg{i}")).collect();
        let loads: String = (0..buffers).map(|i| format!("ld.param.u64 %p{i}, [arg{i}];\n")).collect();
        format!(
            ".version 8.6\n.target sm_90a\n.address_size 64\n.file 1 \"kernel.rs\"\n{}\n.visible .entry k({}) {{\n\
             .reg .b64 %p<{}>;\n.reg .b64 %rd<20>;\n.reg .b32 %r<40>;\n.reg .f32 %f<10>;\n.reg .b16 %rs<10>;\n.reg .pred %q<10>;\n\
             .reg .b128 %rq<4>;\n{loads}{}\n}}\n",
            self.before,
            params.join(", "),
            buffers.max(1),
            self.body,
        )
    }

    /// Runs it over copies of `buffers`; what they hold afterwards, and the outcome.
    pub fn run(&self, buffers: &[&[u32]]) -> (Vec<Vec<u32>>, Outcome) {
        let mut memory = GlobalMemory::new();
        let bytes = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
        let addresses: Vec<u64> = buffers
            .iter()
            .enumerate()
            .map(|(i, b)| memory.allocate_from(&bytes(b), &format!("buffer {i}")))
            .collect();
        let module = Module::load(&self.text(buffers.len()), &mut memory).unwrap_or_else(|e| panic!("{e}"));
        let params: Vec<u8> = addresses.iter().flat_map(|a| a.to_le_bytes()).collect();
        let launch = Launch::new("k", [self.grid, 1, 1], [self.block, 1, 1], &params);
        let outcome = module.launch(&memory, &launch, &self.options).expect("the launch fits");
        let read = |(b, &address): (&&[u32], &u64)| {
            let mut out = vec![0; b.len() * 4];
            memory.read(address, &mut out).expect("it is the allocation");
            out.chunks(4).map(|c| u32::from_le_bytes(c.try_into().expect("4 bytes"))).collect()
        };
        (buffers.iter().zip(&addresses).map(read).collect(), outcome)
    }

    /// As [`Test::run`], of a kernel with nothing wrong: the buffers.
    pub fn clean(&self, buffers: &[&[u32]]) -> Vec<Vec<u32>> {
        let (buffers, outcome) = self.run(buffers);
        let reports: Vec<_> = outcome.reports.iter().map(ToString::to_string).collect();
        assert!(reports.is_empty(), "{}", reports.join("\n"));
        buffers
    }
}

/// Each thread's address of a word in `%p0`: `%rd1`, with its number in `%r1`.
pub const MINE: &str = "mov.u32 %r1, %tid.x;\nmul.wide.u32 %rd1, %r1, 4;\nadd.s64 %rd1, %p0, %rd1;\n";
