//! Attention: of prompts, causally, and of decoding.

use tegula::runtime::{Device, Stream, Tensor};
use tegula_kernels::attention::decode::config::DecodeConfig;
use tegula_kernels::attention::forward::HOPPER_QUERIES;
use tegula_kernels::attention::forward::config::ForwardConfig;
use tegula_kernels::attention::{
    DecodeOptions, DecodeWorkspace, ForwardOptions, Inputs, Outputs, decode, forward,
};
use tegula_kernels::tuned::{TunedDecode, TunedForward};
use tegula_records::library::Library;
use tegula_records::library::attention::{Decode as DecodeRecords, Forward as ForwardRecords, decode_shape};

use super::pool::{Pool, sets};
use super::{BF16, Expected, F32, as_in_records, pool, spread, words};
use crate::cost::{Plan, Work};
use crate::device::DeviceInfo;
use crate::shapes::{Demand, Workload, layers};
use crate::{Config, Fault, Instance, Purpose, Shape, Tunable};

/// [`tegula_kernels::attention::forward`](fn@tegula_kernels::attention::forward).
pub struct Forward;

/// [`tegula_kernels::attention::decode`](fn@tegula_kernels::attention::decode).
pub struct Decode;

/// Tensors of a call.
#[derive(Clone, Copy)]
struct Extents {
    batch: usize,
    queries: usize,
    keys: usize,
    kv_heads: usize,
    group: usize,
    dim: usize,
}

impl Extents {
    fn q(&self) -> [usize; 4] {
        [self.batch, self.queries, self.kv_heads * self.group, self.dim]
    }

    fn kv(&self) -> [usize; 4] {
        [self.batch, self.keys, self.kv_heads, self.dim]
    }

    fn bytes(&self) -> usize {
        2 * (2 * self.q().iter().product::<usize>() + 2 * self.kv().iter().product::<usize>())
    }

    /// Products of queries and keys that see each other, over all heads.
    fn pairs(&self) -> f64 {
        let (q, k) = (self.queries as f64, self.keys as f64);
        (self.batch * self.kv_heads * self.group) as f64 * (q * k - q * (q - 1.0) / 2.0)
    }

    fn work(&self) -> Work {
        Work { flops: 4.0 * self.dim as f64 * self.pairs(), bytes: self.bytes() as f64 }
    }
}

/// Of a prompt: one sequence, as many KV heads as the number of heads asks for.
fn forward_extents(shape: &Shape) -> Extents {
    let [queries, keys, sequences, group, dim] =
        ["queries", "keys", "sequences", "group", "head_dim"].map(|name| shape.extent(name));
    Extents { batch: 1, queries, keys, kv_heads: sequences.div_ceil(group), group, dim }
}

/// Of decoding: up to 8 KV heads, as models have.
fn decode_extents(shape: &Shape) -> Extents {
    let [queries, keys, sequences, group, dim] =
        ["queries", "keys", "sequences", "group", "head_dim"].map(|name| shape.extent(name));
    let kv_heads = (1..=8).rev().find(|heads| sequences.is_multiple_of(*heads)).unwrap_or(1);
    Extents { batch: sequences / kv_heads, queries, keys, kv_heads, group, dim }
}

fn default_forward(shape: &Shape, device: &DeviceInfo) -> TunedForward {
    let e = forward_extents(shape);
    let bytes = shape.extent("bits") / 8;
    if device.class().is_hopper() && bytes == 2 && e.queries > HOPPER_QUERIES && e.dim.is_multiple_of(8) {
        return TunedForward::Hopper;
    }
    TunedForward::General(ForwardConfig::choose(e.queries, e.keys, e.dim, e.dim, bytes, device.class()))
}

impl Tunable for Forward {
    as_in_records!(ForwardRecords);

    fn shapes(&self, workload: &Workload) -> Result<Demand, String> {
        Ok(layers::forward(workload))
    }

    fn space(&self, shape: &Shape, device: &DeviceInfo) -> Vec<Config> {
        let e = forward_extents(shape);
        let bytes = shape.extent("bits") / 8;
        let general = ForwardConfig::candidates(e.queries, e.dim, e.dim, bytes, device.class());
        let typed = general.into_iter().map(TunedForward::General);
        typed.map(|config| ForwardRecords::to_config(&config, shape)).collect()
    }

    fn default_config(&self, shape: &Shape, device: &DeviceInfo) -> Config {
        ForwardRecords::to_config(&default_forward(shape, device), shape)
    }

    fn work(&self, shape: &Shape) -> Work {
        forward_extents(shape).work()
    }

    fn plan(&self, shape: &Shape, config: &Config, _: &DeviceInfo) -> Option<Plan> {
        let e = forward_extents(shape);
        let (typed, bytes) = (ForwardRecords::from_config(config, shape).ok()?, 2);
        let (config, efficiency) = match typed {
            TunedForward::Hopper => (ForwardConfig::hopper(e.queries, e.dim, e.dim, true), 1.0),
            // mma.sync reaches two thirds of what wgmma does on Hopper.
            TunedForward::General(config) => (config, 0.66),
        };
        let programs = e.queries.div_ceil(config.block_q) * e.kv_heads * e.group;
        let steps = (e.keys as f64 / 2.0 / config.block_kv as f64).max(1.0);
        let tile = (config.block_q * config.block_kv * config.head_dim) as f64;
        let held = config.block_q * (config.block_kv + config.value_dim) / (32 * config.num_warps as usize);
        let kv = bytes * config.block_kv * 2 * config.head_dim;
        Some(Plan {
            programs,
            threads: 32 * config.num_warps as usize + if efficiency == 1.0 { 128 } else { 0 },
            shared: bytes * config.block_q * config.head_dim + kv * config.num_stages as usize,
            registers: 40 + held,
            flops: 4.0 * tile * steps / efficiency,
            bytes: kv as f64 * steps,
            overhead: 2e-6,
        })
    }

    fn emulated_shape(&self, shape: &Shape) -> Shape {
        smaller(shape, [256, 256])
    }

    fn instance(
        &self,
        shape: &Shape,
        device: &Device,
        purpose: Purpose,
    ) -> Result<Box<dyn Instance>, String> {
        Ok(Box::new(Attention::new(shape, forward_extents(shape), device, purpose, false)?))
    }
}

/// One group of heads, and so many queries and keys.
fn smaller(shape: &Shape, [queries, keys]: [u64; 2]) -> Shape {
    let mut small = shape.clone();
    let group = shape.get("group").copied().unwrap_or(1);
    for (name, most) in [("queries", queries), ("keys", keys), ("sequences", group)] {
        small.set(name, shape.get(name).copied().unwrap_or(1).min(most));
    }
    small
}

impl Tunable for Decode {
    as_in_records!(DecodeRecords);

    fn shapes(&self, workload: &Workload) -> Result<Demand, String> {
        Ok(layers::decode(workload))
    }

    fn space(&self, shape: &Shape, device: &DeviceInfo) -> Vec<Config> {
        let all = DecodeConfig::candidates(decode_shape(shape), shape.extent("sequences"), device.class());
        let typed = all.into_iter().map(|(config, splits)| TunedDecode { config, splits });
        typed.map(|config| DecodeRecords::to_config(&config, shape)).collect()
    }

    fn default_config(&self, shape: &Shape, device: &DeviceInfo) -> Config {
        let all = DecodeConfig::candidates(decode_shape(shape), shape.extent("sequences"), device.class());
        let (config, splits) = all[0];
        DecodeRecords::to_config(&TunedDecode { config, splits }, shape)
    }

    fn work(&self, shape: &Shape) -> Work {
        decode_extents(shape).work()
    }

    fn plan(&self, shape: &Shape, config: &Config, _: &DeviceInfo) -> Option<Plan> {
        let e = decode_extents(shape);
        let TunedDecode { config, splits } = DecodeRecords::from_config(config, shape).ok()?;
        let programs = e.batch * config.programs(e.kv_heads, e.group) * splits;
        let rows = config.block_queries * config.block_group;
        let steps = (e.keys as f64 / splits as f64 / config.block_kv as f64).ceil();
        let kv = 2 * config.block_kv * 2 * config.head_dim;
        let held = rows.max(16) * (config.block_kv + config.value_dim) / (32 * config.num_warps as usize);
        Some(Plan {
            programs,
            threads: 32 * config.num_warps as usize,
            shared: kv * config.num_stages as usize,
            registers: 40 + held,
            flops: 4.0 * (rows * config.block_kv * config.head_dim) as f64 * steps,
            bytes: kv as f64 * steps,
            overhead: if splits > 1 { 4e-6 } else { 2e-6 },
        })
    }

    fn emulated_shape(&self, shape: &Shape) -> Shape {
        smaller(shape, [8, 2048])
    }

    fn instance(
        &self,
        shape: &Shape,
        device: &Device,
        purpose: Purpose,
    ) -> Result<Box<dyn Instance>, String> {
        Ok(Box::new(Attention::new(shape, decode_extents(shape), device, purpose, true)?))
    }
}

struct Attention {
    shape: Shape,
    extents: Extents,
    decodes: bool,
    sets: usize,
    q: Pool,
    k: Pool,
    v: Pool,
    out: pool::Outputs,
    kv_len: Tensor<i32>,
    workspace: DecodeWorkspace,
    /// Of sampled rows: of a batch and a query.
    expected: Vec<([usize; 2], Vec<Expected>)>,
}

impl Attention {
    fn new(
        shape: &Shape,
        extents: Extents,
        device: &Device,
        purpose: Purpose,
        decodes: bool,
    ) -> Result<Attention, String> {
        let sets = sets(purpose, extents.bytes());
        let (q, kv) = (extents.q(), extents.kv());
        let len = |shape: [usize; 4]| [sets, shape.iter().product()];
        let row = extents.kv_heads * extents.group * extents.dim;
        Ok(Attention {
            shape: shape.clone(),
            extents,
            decodes,
            sets,
            // Scores have a standard deviation of 1: neither flat nor all in one place.
            q: Pool::new(device, len(q), 5, 1.0, purpose)?,
            k: Pool::new(device, len(kv), 6, 1.0, purpose)?,
            v: Pool::new(device, len(kv), 7, 1.0, purpose)?,
            out: pool::Outputs::new(device, len(q), row)?,
            kv_len: device
                .from_vec(vec![extents.keys as i32; extents.batch], &[extents.batch])
                .map_err(words)?,
            workspace: DecodeWorkspace::new(),
            expected: vec![],
        })
    }

    /// The output of a query of a head by the definition, each element with the error that it may have.
    ///
    /// The bound is that of the kernel library's tests: a score is off by e = (d + 4) · 2⁻²⁴ · Σ|q · k| · scale, so a weight by a factor e^±2e; sums over n keys add
    /// n · 2⁻²⁴ for numerator and denominator each; and weights are rounded to bf16 before they meet the values.
    fn exact(&self, [batch, query]: [usize; 2], head: usize) -> Vec<Expected> {
        let Extents { queries, keys, kv_heads, group, dim, .. } = self.extents;
        let seen = keys - queries + query + 1;
        let q = ((batch * queries + query) * kv_heads * group + head) * dim;
        let kv = |key: usize| ((batch * keys + key) * kv_heads + head / group) * dim;
        let scale = (dim as f64).sqrt().recip();
        let mut largest = 0.0;
        let scores: Vec<f64> = (0..seen)
            .map(|key| {
                let (sum, size) = self.q.dot(q, &self.k, kv(key), dim);
                largest = f64::max(largest, size * scale);
                sum * scale
            })
            .collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (mut sums, mut sizes, mut total) = (vec![0.0; dim], vec![0.0; dim], 0.0);
        for (key, score) in scores.iter().enumerate() {
            let weight = (score - most).exp();
            total += weight;
            let values = self.v.run(kv(key), dim);
            for ((sum, size), value) in sums.iter_mut().zip(&mut sizes).zip(values) {
                *sum += weight * value;
                *size += (weight * value).abs();
            }
        }
        let e = (dim + 4) as f64 * F32 * largest;
        let relative = 2.0 * ((2.0 * e).exp_m1() + (2.0 * seen as f64 + 20.0) * F32);
        let element = |(i, (sum, size)): (usize, (f64, f64))| {
            let (exact, size) = (sum / total, size / total);
            let computed = size * (relative + BF16);
            Expected { at: head * dim + i, exact, bound: computed + (exact.abs() + computed) * BF16 }
        };
        sums.into_iter().zip(sizes).enumerate().map(element).collect()
    }

    /// Of a few queries of a few sequences, a few heads.
    fn sampled(&self) -> Vec<([usize; 2], Vec<Expected>)> {
        let e = self.extents;
        let rows = spread(e.batch, 3)
            .into_iter()
            .flat_map(|b| spread(e.queries, 6).into_iter().map(move |q| [b, q]));
        let heads = spread(e.kv_heads * e.group, 4);
        let row = |row| (row, heads.iter().flat_map(|&head| self.exact(row, head)).collect());
        rows.map(row).collect()
    }
}

impl Instance for Attention {
    fn launch(&mut self, config: &Config, call: usize, stream: &Stream) -> Result<(), String> {
        let (set, e) = (call % self.sets, self.extents);
        let inputs =
            Inputs::new(self.q.view(set, &e.q())?, self.k.view(set, &e.kv())?, self.v.view(set, &e.kv())?);
        let outputs = Outputs::new(self.out.view_mut(set, &e.q())?);
        if self.decodes {
            let TunedDecode { config, splits } = DecodeRecords::from_config(config, &self.shape)?;
            let options =
                DecodeOptions { splits: Some(splits), config: Some(config), ..DecodeOptions::default() };
            return decode(inputs, &self.kv_len, outputs, &options, &mut self.workspace, stream)
                .map_err(words);
        }
        let config = match ForwardRecords::from_config(config, &self.shape)? {
            TunedForward::Hopper => None, // what is taken where nothing is said
            TunedForward::General(config) => Some(config),
        };
        forward(
            inputs,
            outputs,
            &ForwardOptions { causal: true, config, ..ForwardOptions::default() },
            stream,
        )
        .map_err(words)
    }

    fn verify(&mut self, config: &Config, stream: &Stream) -> Result<(), Fault> {
        if self.expected.is_empty() {
            self.expected = self.sampled();
        }
        let queries = self.extents.queries;
        for (row, _) in &self.expected {
            self.out.poison(row[0] * queries + row[1], stream)?;
        }
        self.launch(config, 0, stream)?;
        stream.synchronize().map_err(words)?;
        for ([batch, query], expected) in &self.expected {
            let out = self.out.row(batch * queries + query)?;
            for element in expected {
                let (head, i) = (element.at / self.extents.dim, element.at % self.extents.dim);
                element.compare(|| format!("out[{batch}, {query}, {head}, {i}]"), &out)?;
            }
        }
        Ok(())
    }
}
