//! Kernels that Tegula's compiler wrote (`tegula-opt --emit ptx`): products and attention from its own tests, normalisation and elementwise kernels of the
//! kernel library; and what to launch them with.

use half::{bf16, f16};
use tegula_emulator::{GlobalMemory, Launch, Module, Options, Outcome};

use super::{Parameters, Random};

/// Element types of buffers.
#[derive(Clone, Copy, PartialEq)]
pub enum Type {
    I8,
    F16,
    Bf16,
    F32,
}

/// A parameter.
#[derive(Clone, Copy)]
pub enum Arg {
    /// A buffer of so many random numbers.
    Buffer(Type, usize),
    U64(u64),
    U8(u8),
    U32(u32),
    F32(f32),
}
use Arg::{Buffer, U8, U32, U64};
use Type::{Bf16, F16, I8};

/// A kernel and its launch.
pub struct Compiled {
    /// Of the fixture.
    pub name: &'static str,
    /// Of the kernel.
    pub entry: &'static str,
    pub source: &'static str,
    pub grid: u32,
    pub block: u32,
    pub shared: u32,
    pub args: &'static [Arg],
}

macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../fixtures/", $name, ".ptx"))
    };
}

/// Row-major A `[64, 256]`, B `[256, 64]`, C `[64, 64]` with two strides, and K.
macro_rules! product {
    ($ty:expr, $b:literal) => {
        &[
            Buffer($ty, 64 * 256),
            U64(64),
            U64(256),
            U64(256),
            Buffer($ty, 64 * 256),
            U64(256),
            U64(64),
            U64($b),
            Buffer(Type::F32, 64 * 64),
            U64(64),
            U64(64),
            U64(64),
            U64(1),
            U32(256),
        ]
    };
}

/// A matrix of `$rows` × `$columns`, rows one behind the other.
macro_rules! args {
    ($(($ty:expr, $rows:literal, $columns:literal)),* ; $($rest:expr),*) => {
        &[$(Buffer($ty, $rows * $columns), U32($rows), U32($columns), U32($columns),)* $($rest),*]
    };
}

const fn dot(name: &'static str, source: &'static str, args: &'static [Arg]) -> Compiled {
    Compiled { name, entry: "product", source, grid: 1, block: 128, shared: 98304, args }
}

const ATTENTION: &[Arg] = args![(F16, 64, 64), (F16, 192, 64), (F16, 192, 64), (F16, 64, 64); U32(192)];

/// All of them.
pub const COMPILED: [Compiled; 12] = [
    dot("dot_f16_sm_80", fixture!("dot_f16_sm_80"), product!(F16, 64)),
    dot("dot_i8_sm_80", fixture!("dot_i8_sm_80"), product!(I8, 256)),
    dot("dot_tf32_sm_80", fixture!("dot_tf32_sm_80"), product!(Type::F32, 64)),
    Compiled {
        entry: "dot_bf16",
        ..dot(
            "dot_bf16_sm_80",
            fixture!("dot_bf16_sm_80"),
            args![(Bf16, 64, 128), (Bf16, 128, 64), (Type::F32, 64, 64), (Type::F32, 64, 64);],
        )
    },
    Compiled { entry: "attention", ..dot("attention_sm_80", fixture!("attention_sm_80"), ATTENTION) },
    Compiled { entry: "attention", ..dot("attention_sm_90a", fixture!("attention_sm_90a"), ATTENTION) },
    Compiled {
        name: "rms_norm",
        entry: "rms_norm",
        source: fixture!("rms_norm"),
        grid: 3,
        block: 128,
        shared: 1024,
        args: &[
            Buffer(Bf16, 3 * 1024),
            U32(3),
            U32(1024),
            U32(1024),
            Buffer(Bf16, 1024),
            U32(1024),
            Buffer(Bf16, 3 * 1024),
            U32(3),
            U32(1024),
            U32(1024),
            Arg::F32(1e-5),
        ],
    },
    Compiled {
        name: "swiglu",
        entry: "swiglu",
        source: fixture!("swiglu"),
        grid: 3,
        block: 32,
        shared: 0,
        args: args![(Bf16, 3, 256), (Bf16, 3, 256), (Bf16, 3, 256);],
    },
    Compiled {
        name: "residual_add",
        entry: "residual_add",
        source: fixture!("residual_add"),
        grid: 3,
        block: 32,
        shared: 0,
        args: args![(Bf16, 3, 256), (Bf16, 3, 256);],
    },
    Compiled {
        name: "add_rms_norm",
        entry: "add_rms_norm",
        source: fixture!("add_rms_norm"),
        grid: 3,
        block: 32,
        shared: 0,
        args: &[
            Buffer(Bf16, 3 * 256),
            U32(3),
            U32(256),
            U32(256),
            Buffer(Bf16, 3 * 256),
            U32(3),
            U32(256),
            U32(256),
            Buffer(Bf16, 256),
            U32(256),
            Buffer(Bf16, 3 * 256),
            U32(3),
            U32(256),
            U32(256),
            Arg::F32(1e-5),
        ],
    },
    // A pipelined product in a loop over 3 blocks of rows.
    Compiled {
        name: "nested_loops_sm_80",
        entry: "nested",
        source: fixture!("nested_loops_sm_80"),
        grid: 1,
        block: 128,
        shared: 24576,
        args: &[
            Buffer(F16, 128 * 256),
            U64(128),
            U64(256),
            U64(256),
            Buffer(F16, 256 * 64),
            U64(256),
            U64(64),
            U64(64),
            Buffer(Type::F32, 128 * 64),
            U64(128),
            U64(64),
            U64(64),
            U64(1),
            U32(256),
            U32(3),
        ],
    },
    // Permutations, reductions, scans and gathers through shared memory.
    Compiled {
        name: "moves_sm_80",
        entry: "moves_bf16_16_64_2",
        source: fixture!("moves_sm_80"),
        grid: 1,
        block: 64,
        shared: 2048,
        args: &[
            Buffer(Bf16, 32 * 128),
            U64(32),
            U64(128),
            U64(128),
            U64(1),
            Buffer(Bf16, 16 * 64),
            U64(16),
            U64(64),
            U64(64),
            U64(1),
            Buffer(Bf16, 64 * 16),
            U64(64),
            U64(16),
            U64(16),
            U64(1),
            Buffer(Bf16, 64),
            U32(3),
            U8(1),
        ],
    },
];

fn contents(ty: Type, count: usize, random: &mut Random) -> Vec<u8> {
    let numbers = (0..count).map(|_| random.normal());
    match ty {
        I8 => numbers.map(|x| x as i8 as u8).collect(),
        F16 => numbers.flat_map(|x| f16::from_f32(x).to_le_bytes()).collect(),
        Bf16 => numbers.flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect(),
        Type::F32 => numbers.flat_map(f32::to_le_bytes).collect(),
    }
}

/// Runs `source`, which is the kernel's or a change of it.
pub fn run_compiled(kernel: &Compiled, source: &str, options: &Options) -> Outcome {
    let mut random = Random(options.seed + 1);
    let mut memory = GlobalMemory::new();
    let module = Module::load(source, &mut memory).unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
    let mut parameters = Parameters::default();
    for (i, arg) in kernel.args.iter().enumerate() {
        parameters = match *arg {
            Buffer(ty, count) => {
                let bytes = contents(ty, count, &mut random);
                parameters.u64(memory.allocate_from(&bytes, &format!("argument {i}")))
            }
            U64(value) => parameters.u64(value),
            U8(value) => parameters.push(&[value], 1),
            U32(value) => parameters.u32(value),
            Arg::F32(value) => parameters.u32(value.to_bits()),
        };
    }
    let launch = Launch {
        dynamic_shared: kernel.shared,
        ..Launch::new(kernel.entry, [kernel.grid, 1, 1], [kernel.block, 1, 1], &parameters.0)
    };
    module.launch(&memory, &launch, options).unwrap_or_else(|e| panic!("{}: {e}", kernel.name))
}
