//! `cp.async.bulk.tensor`: boxes of tensors of 1 to 5 dimensions, against the definition, element by element.

mod support;

use support::kernels::wait;
use support::{Parameters, options};
use tegula_emulator::asynchronous::{Fill, TensorDataType, TensorMapBuilder};
use tegula_emulator::matrix::Swizzle;
use tegula_emulator::{GlobalMemory, Launch, Module, Outcome, ReportKind, Timing};

/// Loads the box at `from` of one tensor, writes its shared image to `image`, and stores it to (or reduces it into) the box at `to` of another.
/// Coordinates are parameters, five each.
fn kernel(rank: usize, bytes: u32, reduction: &str) -> String {
    let registers =
        |first: usize| (first..first + rank).map(|i| format!("%r{i}")).collect::<Vec<_>>().join(", ");
    let parameters: String = (0..10).map(|i| format!(", .param .u32 c{i}")).collect();
    let coordinates: String = (0..10).map(|i| format!("ld.param.u32 %r{}, [c{i}];\n", 10 + i)).collect();
    let (copy, op) =
        if reduction.is_empty() { ("cp", String::new()) } else { ("cp.reduce", format!(".{reduction}")) };
    format!(
        ".version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .align 64 .b8 source[128], .param .align 64 .b8 target[128], .param .u64 image{parameters})
{{
.reg .pred %p<16>;
.reg .b32 %r<64>;
.reg .b64 %rd<16>;
.shared .align 1024 .b8 smem[32768];
.shared .align 8 .b64 bar;
mov.b64 %rd1, source;
cvta.param.u64 %rd1, %rd1;
mov.b64 %rd2, target;
cvta.param.u64 %rd2, %rd2;
ld.param.u64 %rd3, [image];
{coordinates}mov.u32 %r1, %tid.x;
mov.u32 %r2, smem;
mov.u32 %r3, bar;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra READY;
mbarrier.init.shared.b64 [%r3], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared.b64 _, [%r3], {bytes};
prefetch.tensormap [%rd1];
cp.async.bulk.prefetch.tensor.{rank}d.L2.global.tile [%rd1, {{{}}}];
cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%rd1, {{{}}}], [%r3];
READY:
bar.sync 0;
{}shl.b32 %r4, %r1, 2;
LOOP:
setp.ge.u32 %p2, %r4, {bytes};
@%p2 bra STORE;
add.u32 %r5, %r2, %r4;
ld.shared.b32 %r6, [%r5];
cvt.u64.u32 %rd4, %r4;
add.u64 %rd4, %rd4, %rd3;
st.global.b32 [%rd4], %r6;
add.u32 %r4, %r4, 512;
bra LOOP;
STORE:
@%p1 bra END;
{copy}.async.bulk.tensor.{rank}d.global.shared::cta{op}.tile.bulk_group [%rd2, {{{}}}], [%r2];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
END:
ret;
}}
",
        registers(10),
        registers(10),
        wait("%r3", "0", "WAIT"),
        registers(15),
    )
}

/// A tensor with its box, and where the box is taken from and put to.
#[derive(Clone, Debug)]
struct Case {
    ty: TensorDataType,
    dims: Vec<u64>,
    boxes: Vec<u32>,
    element_strides: Vec<u32>,
    swizzle: Swizzle,
    fill: Fill,
    from: [i32; 5],
    to: [i32; 5],
    reduction: &'static str,
}

impl Case {
    /// Byte strides of all dimensions: rows padded to a multiple of 16, and a further 16 bytes.
    fn strides(&self) -> Vec<u64> {
        let mut strides = vec![u64::from(self.ty.bytes())];
        for i in 1..self.dims.len() {
            let inner = strides[i - 1] * self.dims[i - 1];
            strides.push(inner.next_multiple_of(16) + if i == 1 { 16 } else { 0 });
        }
        strides
    }

    fn size(&self) -> usize {
        let last = self.dims.len() - 1;
        (self.strides()[last] * self.dims[last]).next_multiple_of(16) as usize
    }

    fn map(&self, address: u64) -> [u8; 128] {
        TensorMapBuilder::new(self.ty, address, &self.dims, &self.strides()[1..], &self.boxes)
            .element_strides(&self.element_strides)
            .swizzle(self.swizzle)
            .fill(self.fill)
            .build()
            .unwrap()
            .encode()
    }

    /// For each element of the box in order: its offset in the tensor from a start, if it is inside.
    fn places(&self, start: &[i32; 5]) -> Vec<Option<usize>> {
        let rank = self.dims.len();
        let counts: Vec<u64> = (0..5)
            .map(|i| match i {
                0 => u64::from(self.boxes[0]),
                i if i < rank => u64::from(self.boxes[i].div_ceil(self.element_strides[i])),
                _ => 1,
            })
            .collect();
        let total: u64 = counts.iter().product();
        (0..total)
            .map(|mut n| {
                let mut offset = 0;
                for i in 0..rank {
                    let step = if i == 0 { 1 } else { i64::from(self.element_strides[i]) };
                    let at = i64::from(start[i]) + (n % counts[i]) as i64 * step;
                    n /= counts[i];
                    if at < 0 || at >= self.dims[i] as i64 {
                        return None;
                    }
                    offset += at as usize * self.strides()[i] as usize;
                }
                Some(offset)
            })
            .collect()
    }

    /// Where the byte at `linear` of the box stands in shared memory, which begins at a multiple of 1024: chunk number xor line number.
    fn swizzled(&self, linear: usize) -> usize {
        let lines = match self.swizzle {
            Swizzle::None => 1,
            Swizzle::B32 => 2,
            Swizzle::B64 => 4,
            Swizzle::B128 => 8,
        };
        let (line, chunk, byte) = (linear / 128, linear % 128 / 16, linear % 16);
        line * 128 + (chunk ^ (line % lines)) * 16 + byte
    }

    fn run(&self, timing: Timing) -> (Outcome, Vec<u8>, Vec<u8>) {
        let bytes = self.places(&self.from).len() as u32 * self.ty.bytes();
        let mut memory = GlobalMemory::new();
        let module = Module::load(&kernel(self.dims.len(), bytes, self.reduction), &mut memory).unwrap();
        let [source, target] = [1u32, 2].map(|n| memory.allocate_from(&self.contents(n), "tensor"));
        let image = memory.allocate(32768, "image");
        let mut parameters = Parameters::default().map(&self.map(source)).map(&self.map(target)).u64(image);
        for c in self.from.iter().chain(&self.to) {
            parameters = parameters.u32(*c as u32);
        }
        let launch = Launch::new("k", [1, 1, 1], [128, 1, 1], &parameters.0);
        let outcome = module.launch(&memory, &launch, &options(1, timing)).unwrap();
        let read = |address, count| {
            let mut out = vec![0; count];
            memory.read(address, &mut out).unwrap();
            out
        };
        (outcome, read(image, bytes as usize), read(target, self.size()))
    }

    /// Bytes that tell where they are from.
    fn contents(&self, salt: u32) -> Vec<u8> {
        (0..self.size() as u32)
            .map(|i| (i.wrapping_mul(2654435761).wrapping_add(salt) >> 13) as u8 & 0x3F)
            .collect()
    }

    fn check(&self) {
        let size = self.ty.bytes() as usize;
        let (source, mut target) = (self.contents(1), self.contents(2));
        let nan: Vec<u8> = match size {
            2 => vec![0xFF, 0x7F],
            _ => vec![0xFF, 0xFF, 0xFF, 0x7F],
        };
        let mut linear = vec![];
        for place in self.places(&self.from) {
            match (place, self.fill) {
                (Some(at), _) => linear.extend_from_slice(&source[at..at + size]),
                (None, Fill::Zero) => linear.extend(vec![0; size]),
                (None, Fill::Nan) => linear.extend_from_slice(&nan),
            }
        }
        let mut image = vec![0; linear.len()];
        linear.iter().enumerate().for_each(|(i, &byte)| image[self.swizzled(i)] = byte);
        for (n, place) in self.places(&self.to).into_iter().enumerate() {
            let Some(at) = place else { continue };
            let new = &linear[n * size..(n + 1) * size];
            let old = &mut target[at..at + size];
            if self.reduction == "add" {
                let sum = u32::from_le_bytes(old.try_into().unwrap())
                    .wrapping_add(u32::from_le_bytes(new.try_into().unwrap()));
                old.copy_from_slice(&sum.to_le_bytes());
            } else {
                old.copy_from_slice(new);
            }
        }
        for timing in [Timing::Late, Timing::Early] {
            let (outcome, got_image, got_target) = self.run(timing);
            assert!(outcome.reports.is_empty(), "{self:?}: {}", outcome.reports[0]);
            assert!(got_image == image, "{self:?}: another image");
            assert!(got_target == target, "{self:?}: another target");
        }
    }
}

fn case() -> Case {
    Case {
        ty: TensorDataType::Bf16,
        dims: vec![72, 20],
        boxes: vec![64, 8],
        element_strides: vec![1, 1],
        swizzle: Swizzle::B128,
        fill: Fill::Zero,
        from: [0; 5],
        to: [0; 5],
        reduction: "",
    }
}

#[test]
fn boxes_of_every_rank_are_moved() {
    let dims = [72, 9, 6, 5, 4];
    let boxes = [32, 4, 3, 2, 2];
    let strides = [1, 2, 1, 3, 1];
    for rank in 1..=5 {
        for (from, to) in
            [([0; 5], [0; 5]), ([-3, -1, 2, 4, -1], [48, 6, 2, 1, 3]), ([60, 8, 5, 3, 2], [16, 0, 0, 0, 0])]
        {
            for element_strides in [[1; 5], strides] {
                Case {
                    dims: dims[..rank].to_vec(),
                    boxes: boxes[..rank].to_vec(),
                    element_strides: element_strides[..rank].to_vec(),
                    swizzle: Swizzle::None,
                    from,
                    to,
                    ..case()
                }
                .check();
            }
        }
    }
}

#[test]
fn images_are_swizzled_and_filled() {
    for (swizzle, inner) in [(Swizzle::None, 64), (Swizzle::B32, 16), (Swizzle::B64, 32), (Swizzle::B128, 64)]
    {
        for fill in [Fill::Zero, Fill::Nan] {
            let boxes = vec![inner, 16];
            Case { swizzle, fill, boxes, from: [-8, 7, 0, 0, 0], to: [40, 3, 0, 0, 0], ..case() }.check();
        }
    }
    let word = Case { ty: TensorDataType::U32, boxes: vec![32, 8], from: [50, 15, 0, 0, 0], ..case() };
    word.check();
    Case { reduction: "add", ..word }.check();
    Case {
        ty: TensorDataType::U8,
        boxes: vec![128, 8],
        dims: vec![200, 20],
        from: [-1, 0, 0, 0, 0],
        ..case()
    }
    .check();
}

fn kinds(outcome: &Outcome) -> Vec<ReportKind> {
    outcome.reports.iter().map(|r| r.kind).collect()
}

/// The driver takes such a map; the hardware then writes beyond the bytes of the box.
#[test]
fn a_box_narrower_than_its_swizzle_is_found() {
    for (swizzle, inner) in [(Swizzle::B128, 32), (Swizzle::B128, 8), (Swizzle::B64, 16), (Swizzle::B32, 8)] {
        let (outcome, ..) = Case { swizzle, boxes: vec![inner, 8], ..case() }.run(Timing::Late);
        assert_eq!(kinds(&outcome)[..1], [ReportKind::IllegalOperand], "{swizzle:?} {inner}");
    }
}

/// Hardware stores whole chunks of 16 bytes: where a box starts between two, it faults or writes elsewhere.
#[test]
fn a_store_that_starts_within_a_chunk_is_found() {
    for start in [-9, 50, 1] {
        let (outcome, ..) = Case { to: [start, 0, 0, 0, 0], ..case() }.run(Timing::Late);
        assert_eq!(kinds(&outcome)[..1], [ReportKind::Misaligned], "{start}");
    }
    let load = Case { from: [-9, 0, 0, 0, 0], ..case() };
    assert_eq!(kinds(&load.run(Timing::Late).0), []);
}

/// Loads may begin in front of a tensor. Of a store there, though a part of its box be inside, an H200 makes an illegal instruction.
#[test]
fn a_store_that_starts_in_front_of_the_tensor_is_found() {
    for to in [[-8, 0, 0, 0, 0], [0, -1, 0, 0, 0], [0, -100, 0, 0, 0]] {
        let (outcome, ..) = Case { to, ..case() }.run(Timing::Late);
        assert_eq!(kinds(&outcome)[..1], [ReportKind::IllegalOperand], "{to:?}");
    }
}

#[test]
fn what_is_no_map_or_too_small_a_tensor_is_found() {
    // A box smaller than the bytes that are expected: its phase never ends.
    let mut memory = GlobalMemory::new();
    let module = Module::load(&kernel(2, 1024, ""), &mut memory).unwrap();
    let tensor = memory.allocate_from(&case().contents(1), "tensor");
    let image = memory.allocate(32768, "image");
    let run = |map: [u8; 128]| {
        let mut parameters = Parameters::default().map(&map).map(&map).u64(image);
        for _ in 0..10 {
            parameters = parameters.u32(0);
        }
        let launch = Launch::new("k", [1, 1, 1], [128, 1, 1], &parameters.0);
        module.launch(&memory, &launch, &options(1, Timing::Late)).unwrap()
    };
    assert_eq!(kinds(&run(case().map(tensor))), []);
    let shrunk = run(Case { boxes: vec![64, 4], ..case() }.map(tensor));
    assert_eq!(kinds(&shrunk), [ReportKind::Deadlock]);
    assert!(
        shrunk.reports[0].to_string().contains("lacks 0 of 1 arrivals and 512 bytes"),
        "{}",
        shrunk.reports[0]
    );
    assert_eq!(kinds(&run([7; 128]))[0], ReportKind::IllegalOperand);
    let cube = Case { dims: vec![72, 5, 4], boxes: vec![64, 4, 2], element_strides: vec![1; 3], ..case() };
    assert_eq!(kinds(&run(cube.map(tensor)))[0], ReportKind::IllegalOperand);
    // A map that promises more rows than the allocation has.
    let beyond =
        run(Case { dims: vec![72, 40], boxes: vec![64, 8], ..case() }
            .map(tensor + case().size() as u64 - 480));
    assert!(kinds(&beyond).contains(&ReportKind::OutOfBounds));
}
