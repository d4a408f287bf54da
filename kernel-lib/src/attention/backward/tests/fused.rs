//! The fused kernels, called by themselves: small shapes, whose sums begin as NaN.

use super::super::config::FusedConfig;
use super::super::fused::{
    attention_backward_finish_fused, attention_backward_fused, attention_backward_prepare_fused, programs,
};
use super::*;

/// So are those that compute all gradients together: here sums are added up by several programs, in rows that are not whole, on whatever device.
#[test]
fn the_fused_kernels_in_small_tiles() {
    let config = FusedConfig { block_kv: 16, block_q: 16, head_dim: 16, value_dim: 16 };
    for (seed, (queries, keys)) in [(1, 1), (5, 40), (40, 5), (33, 48), (48, 33)].into_iter().enumerate() {
        for causal in [false, true] {
            let p = Problem { batch: 2, ..problem(queries, keys, (4, 2), 16, causal) };
            let trained = Trained::<bf16>::random(p.clone(), seed as u64);
            let found = by_fused(&device(), &trained, config);
            trained.check(&found, &format!("{p:?}"));
        }
    }
}

/// On Hopper, in the tiles that are chosen there, under twenty orders of events: several programs add to one block of sums, sums of the last block of queries are of no query, keys of the last block
/// none, and the loop has one step, two, or more than there are slots.
#[test]
#[ignore = "takes minutes"]
fn the_fused_kernels_under_twenty_seeds() {
    let device = tegula::device("emulated:sm_90a").unwrap();
    let config = FusedConfig::hopper(128, 128).unwrap();
    let shapes = [(65, 130, (2, 1)), (200, 129, (1, 1)), (300, 70, (2, 1)), (70, 300, (1, 1))];
    for seed in 0..20 {
        let timing = [Timing::Early, Timing::Late, Timing::Random][seed as usize % 3];
        device.set_emulation(Emulation::default().with_seed(seed).with_timing(timing)).unwrap();
        let (queries, keys, heads) = shapes[seed as usize % shapes.len()];
        for causal in [false, true] {
            let p = problem(queries, keys, heads, 128, causal);
            let trained = Trained::<bf16>::random(p.clone(), seed);
            trained.check(&by_fused(&device, &trained, config), &format!("{p:?}, seed {seed}"));
        }
    }
}

/// Gradients by the fused kernels. What they add up in is NaN at first, as are the gradients.
fn by_fused(device: &Device, trained: &Trained<bf16>, config: FusedConfig) -> [Vec<f64>; 3] {
    let p = &trained.case.problem;
    let stream = device.stream();
    let [q, k, v] = trained.case.place(device, Memory::Bshd);
    let of_out = [p.batch, p.queries, p.heads, p.value_dim];
    let [out, d_out] = [&trained.out, &trained.d_out].map(|x| device.from_slice(x, &of_out).unwrap());
    let by_query = [p.batch, p.heads, p.queries];
    let lse = device.from_slice(&trained.lse, &by_query).unwrap();
    let poison = |shape: &[usize]| device.from_slice(&vec![f32::NAN; shape.iter().product()], shape).unwrap();
    let [mut delta, mut exponents] = [(); 2].map(|()| poison(&by_query));
    let blocks = p.batch * p.heads * config.blocks(p.queries);
    let mut sums = poison(&[blocks, config.head_dim, config.block_q]);
    let poisoned = |x: &Placed<bf16>| {
        let shape = <[usize; 4]>::try_from(x.view().shape().to_vec()).unwrap();
        Placed::<bf16>::poisoned(device, shape, Memory::Bshd)
    };
    let (mut d_q, mut d_k, mut d_v) = (poisoned(&q), poisoned(&k), poisoned(&v));
    attention_backward_prepare_fused::<bf16>(
        &out,
        &d_out,
        &lse,
        &mut delta,
        &mut exponents,
        &mut sums,
        config,
    )
    .grid(blocks)
    .launch(&stream)
    .unwrap();
    let scale = 1.0 / (p.head_dim as f32).sqrt();
    let hidden = p.causal || !p.keys.is_multiple_of(config.block_kv);
    let (of_k, of_v) = (d_k.view_mut(), d_v.view_mut());
    attention_backward_fused::<bf16>(
        q.view(),
        k.view(),
        v.view(),
        &d_out,
        &exponents,
        &delta,
        &mut sums,
        of_k,
        of_v,
        scale,
        p.causal,
        hidden,
        config,
    )
    .grid(programs(p.keys.div_ceil(config.block_kv) * p.kv_heads * p.batch, p.causal, 2))
    .launch(&stream)
    .unwrap();
    attention_backward_finish_fused::<bf16>(&sums, d_q.view_mut(), scale, config)
        .grid(blocks)
        .launch(&stream)
        .unwrap();
    [d_q.values(), d_k.values(), d_v.values()]
}
