//! Tensor maps: a kernel loads the boxes of a view by TMA, shows what arrived, and stores them into another view by TMA.

use std::fmt::{Debug, Write as _};
use std::time::Instant;

use tegula_ir::artifact::{AbiSlot, CompiledKernel, TensorMapSpec, TensorSwizzle};
use tegula_ir::element::Element;
use tegula_ir::{Kernel, Type};
use tegula_runtime::{
    ArgValue, Device, KernelInfo, KernelKey, Launch, Stage, Tensor, TensorView, TensorViewMut,
};

use super::use_compiler;

static INFO: KernelInfo =
    KernelInfo::new("cuda_suite::tiles", "tiles", &["x", "y", "boxes"], file!(), line!());

/// A view, and the boxes that it is copied in.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Of the memory that the view is part of, row-major. What is beyond the view must neither be read nor written, but for the rest of a chunk of 16 bytes.
    padded: &'static [usize],
    /// Of the view, along the same axes.
    extents: &'static [usize],
    /// Axis `i` of the view is axis `permuted[i]` of memory.
    permuted: &'static [usize],
    /// The view's axes, fastest first, and the box along them.
    order: &'static [u8],
    box_dims: &'static [u16],
    swizzle: TensorSwizzle,
}

const NONE: TensorSwizzle = TensorSwizzle::None;

impl Case {
    /// The extents in the order of the map.
    fn dims(&self) -> Vec<usize> {
        self.order.iter().map(|&axis| self.extents[self.permuted[axis as usize]]).collect()
    }

    /// How many boxes there are along the axes of the map; at least one, so that empty views are copied, too.
    fn boxes(&self) -> Vec<usize> {
        self.dims().iter().zip(self.box_dims).map(|(dim, &b)| dim.div_ceil(b.into()).max(1)).collect()
    }

    fn box_elements(&self) -> usize {
        self.box_dims.iter().map(|&b| usize::from(b)).product()
    }

    fn map(&self, store: bool) -> TensorMapSpec {
        TensorMapSpec { swizzle: self.swizzle, store, ..TensorMapSpec::new(self.order, self.box_dims) }
    }

    /// Where element `coordinates` of the map is in memory; `None` outside of the view, whose rows are taken to end at a multiple of `chunk` elements.
    fn place(&self, coordinates: &[usize], chunk: usize) -> Option<usize> {
        let mut dims = self.dims();
        dims[0] = dims[0].next_multiple_of(chunk);
        let inside = coordinates.iter().zip(dims).all(|(&c, dim)| c < dim);
        let mut memory = vec![0; coordinates.len()];
        for (&axis, &coordinate) in self.order.iter().zip(coordinates) {
            memory[self.permuted[axis as usize]] = coordinate;
        }
        inside.then(|| memory.iter().zip(self.padded).fold(0, |at, (&i, &dim)| at * dim + i))
    }

    /// Where the byte at `offset` of a box is in shared memory (PTX ISA, "Swizzling modes").
    fn swizzled(&self, offset: usize) -> usize {
        let lines = self.swizzle.span().map_or(1, |span| span as usize / 16);
        offset ^ (offset / 128 % lines) << 4
    }

    /// Copies box `%ctaid.x`; shows what is in shared memory between.
    fn ptx(&self, bytes: usize) -> String {
        let mut coordinates = String::new();
        for (i, (count, size)) in self.boxes().iter().zip(self.box_dims).enumerate() {
            let _ = write!(
                coordinates,
                "rem.u32 %c{i}, %r1, {count};\n    mul.lo.u32 %c{i}, %c{i}, {size};\n    div.u32 %r1, %r1, {count};\n    "
            );
        }
        let rank = self.order.len();
        let list: Vec<String> = (0..rank).map(|i| format!("%c{i}")).collect();
        TILES
            .replace("COORDINATES", &coordinates)
            .replace("RANK", &rank.to_string())
            .replace("LIST", &list.join(", "))
            .replace("BYTES", &(self.box_elements() * bytes).to_string())
    }
}

const TILES: &str = "
.version 8.3
.target sm_90a
.address_size 64
.visible .entry tiles(.param .u64 shown, .param .align 64 .b8 x[128], .param .u32 count, .param .align 64 .b8 y[128])
{
    .reg .pred %p, %first;
    .reg .b32 %r<8>, %c<5>;
    .reg .b64 %d<6>;
    .shared .align 1024 .b8 tile[BYTES];
    .shared .align 8 .b64 full;
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    ld.param.u32 %r2, [count];
    setp.ge.u32 %p, %r1, %r2;
    @%p trap;
    COORDINATES
    mov.b64 %d0, x;
    cvta.param.u64 %d0, %d0;
    mov.b64 %d1, y;
    cvta.param.u64 %d1, %d1;
    mov.u32 %r3, tile;
    mov.u32 %r4, full;
    setp.eq.u32 %first, %r0, 0;
    @!%first bra started;
    mbarrier.init.shared::cta.b64 [%r4], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 %d2, [%r4], BYTES;
    cp.async.bulk.tensor.RANKd.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r3], [%d0, {LIST}], [%r4];
started:
    bar.sync 0;
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p, [%r4], 0;
    @!%p bra wait;
    ld.param.u64 %d2, [shown];
    mov.u32 %r1, %ctaid.x;
    mul.wide.u32 %d3, %r1, BYTES;
    add.u64 %d2, %d2, %d3;
    shl.b32 %r5, %r0, 2;
show:
    setp.ge.u32 %p, %r5, BYTES;
    @%p bra showed;
    add.u32 %r6, %r3, %r5;
    ld.shared.u32 %r7, [%r6];
    cvt.u64.u32 %d3, %r5;
    add.u64 %d3, %d2, %d3;
    st.global.u32 [%d3], %r7;
    add.u32 %r5, %r5, 512;
    bra show;
showed:
    @!%first bra done;
    cp.async.bulk.tensor.RANKd.global.shared::cta.tile.bulk_group [%d1, {LIST}], [%r3];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
done:
    ret;
}
";

fn tiles<'a, T: Element>(
    x: TensorView<'a, T>,
    y: TensorViewMut<'a, T>,
    shown: &'a mut Tensor<T>,
    variant: &str,
) -> Launch<'a, 3, impl Stage> {
    let (rank, count) = (x.shape().len(), shown.dim(0));
    let args = [ArgValue::view(x, rank), ArgValue::view_mut(y, rank), ArgValue::tensor_mut(shown, 2)];
    let stage = move || {
        let mut kernel = Kernel::new("tiles");
        kernel.add_param("x", Type::view(T::ELEM, rank, false));
        kernel.add_param("y", Type::view(T::ELEM, rank, true));
        kernel.add_param("boxes", Type::view(T::ELEM, 2, true));
        Ok::<_, String>(kernel)
    };
    Launch::new(&INFO, KernelKey::new(&INFO).meta(variant), args, stage).grid(count)
}

fn compiled(ptx: String, load: TensorMapSpec, store: TensorMapSpec) -> CompiledKernel {
    CompiledKernel {
        entry: "tiles".to_owned(),
        abi: vec![
            AbiSlot::Address { param: 2 },
            AbiSlot::TensorMap { param: 0, map: load },
            AbiSlot::Dim { param: 2, axis: 0, bits: 32 },
            AbiSlot::TensorMap { param: 1, map: store },
        ],
        ..super::compiled(&ptx, vec![], 0, 1)
    }
}

/// Copies through shared memory; compares both what arrived there and what arrived behind it with the definition.
fn check<T: Element + From<u8> + PartialEq + Debug>(device: &Device, case: Case) {
    let bytes = size_of::<T>();
    let values = |count: usize, first: usize| -> Vec<T> {
        (0..count).map(|i| T::from(((i + first) % 251 + 1) as u8)).collect()
    };
    let count = case.padded.iter().product();
    let (before, after) = (values(count, 0), values(count, 77));
    let x = device.from_slice(&before, case.padded).unwrap();
    let mut y = device.from_slice(&after, case.padded).unwrap();
    let (boxes, elements) = (case.boxes(), case.box_elements());
    let total: usize = boxes.iter().product();
    let mut shown = device.zeros::<T>(&[total, elements]).unwrap();

    use_compiler(device, compiled(case.ptx(bytes), case.map(false), case.map(true)));
    let part = |axis: usize| 0..case.extents[axis];
    let rank = case.extents.len();
    let from = (0..rank).try_fold(x.view(), |v, axis| v.slice(axis, part(axis))).unwrap();
    let to = (0..rank).try_fold(y.view_mut(), |v, axis| v.slice(axis, part(axis))).unwrap();
    let (from, to) = (from.permute(case.permuted).unwrap(), to.permute(case.permuted).unwrap());
    let what = format!("{case:?} of {}", T::ELEM);
    let failed = |e: &dyn std::fmt::Display| -> ! { panic!("{what}: {e}") };
    let launched = tiles(from, to, &mut shown, &what).launch(&device.stream());
    launched.unwrap_or_else(|e| failed(&e));

    let (mut wanted, mut wanted_shown) = (after, vec![T::from(0u8); total * elements]);
    for tile in 0..total {
        for element in 0..elements {
            let (mut boxes_left, mut elements_left) = (tile, element);
            let coordinates: Vec<usize> = boxes
                .iter()
                .zip(case.box_dims)
                .map(|(&count, &size)| {
                    let size = usize::from(size);
                    let at = boxes_left % count * size + elements_left % size;
                    (boxes_left, elements_left) = (boxes_left / count, elements_left / size);
                    at
                })
                .collect();
            // What is stored behind a row's end, to the end of a chunk of 16 bytes, are the zeros that were loaded from there.
            let rest = case.place(&coordinates, 16 / bytes);
            if let Some(place) = rest.filter(|_| case.place(&coordinates, 1).is_none()) {
                wanted[place] = T::from(0u8);
            }
            if let Some(place) = case.place(&coordinates, 1) {
                wanted[place] = before[place];
                wanted_shown[tile * elements + case.swizzled(element * bytes) / bytes] = before[place];
            }
        }
    }
    let (found_shown, found) = (shown.to_vec(), y.to_vec());
    assert!(found_shown.unwrap_or_else(|e| failed(&e)) == wanted_shown, "{what}: what was loaded");
    assert!(found.unwrap_or_else(|e| failed(&e)) == wanted, "{what}: what was stored");
}

/// Views of one to five dimensions, in any order of memory, with ragged edges, and without elements.
pub fn tensor_maps(device: &Device) {
    if device.properties().target.as_deref().is_some_and(|t| t.starts_with("sm_8")) {
        return;
    }
    let rows = Case {
        padded: &[40, 72],
        extents: &[37, 67],
        permuted: &[0, 1],
        order: &[1, 0],
        box_dims: &[16, 8],
        swizzle: NONE,
    };
    for swizzle in [NONE, TensorSwizzle::B64] {
        check::<f32>(device, Case { swizzle, box_dims: &[16, 20], ..rows });
        check::<u16>(device, Case { swizzle, box_dims: &[32, 20], ..rows });
    }
    // More than eight lines of 128 bytes: the widest pattern begins again.
    check::<f32>(device, Case { swizzle: TensorSwizzle::B128, box_dims: &[32, 20], ..rows });
    check::<u16>(device, Case { swizzle: TensorSwizzle::B128, box_dims: &[64, 20], ..rows });
    check::<u8>(device, Case { padded: &[64, 80], swizzle: TensorSwizzle::B32, box_dims: &[32, 20], ..rows });
    // Column-major.
    let columns = Case { permuted: &[1, 0], order: &[0, 1], ..rows };
    check::<u16>(device, columns);
    check::<f32>(device, Case { swizzle: TensorSwizzle::B32, box_dims: &[8, 32], ..columns });
    // One element is inside; a box that is larger than the view; a whole number of boxes.
    check::<f32>(device, Case { extents: &[1, 1], ..rows });
    check::<f32>(device, Case { extents: &[40, 72], box_dims: &[72, 40], ..rows });
    check::<u16>(
        device,
        Case { extents: &[40, 64], box_dims: &[64, 20], swizzle: TensorSwizzle::B128, ..rows },
    );

    let batch = Case {
        padded: &[3, 20, 40],
        extents: &[3, 17, 37],
        permuted: &[0, 1, 2],
        order: &[2, 1, 0],
        box_dims: &[8, 4, 2],
        swizzle: NONE,
    };
    check::<f32>(device, batch);
    check::<u16>(device, Case { order: &[2, 0, 1], ..batch });
    // Batches between rows and columns of memory: strides do not rise.
    check::<u16>(device, Case { permuted: &[1, 0, 2], ..batch });
    check::<f32>(device, Case { permuted: &[2, 0, 1], order: &[0, 2, 1], ..batch });

    let line =
        Case { padded: &[1008], extents: &[999], permuted: &[0], order: &[0], box_dims: &[256], ..rows };
    check::<u8>(device, line);
    let five = Case {
        padded: &[2, 3, 2, 5, 32],
        extents: &[2, 3, 1, 5, 23],
        permuted: &[3, 0, 4, 1, 2],
        order: &[2, 0, 4, 3, 1],
        box_dims: &[16, 2, 1, 2, 2],
        swizzle: NONE,
    };
    check::<u8>(device, five);

    for empty in [
        Case { extents: &[0, 67], ..rows },
        Case { extents: &[37, 0], ..rows },
        Case { extents: &[0, 0], ..columns },
        Case { extents: &[3, 0, 37], ..batch },
        Case { extents: &[0], ..line },
    ] {
        check::<f32>(device, Case { swizzle: NONE, ..empty });
    }
    broadcasts(device, rows);
    refusals(device, rows);
}

/// A row again and again: a stride of 0.
fn broadcasts(device: &Device, case: Case) {
    let case = Case { padded: &[8, 32], extents: &[8, 32], ..case };
    let row: Vec<f32> = super::ramp(32);
    let x = device.from_slice(&row, &[1, 32]).unwrap();
    let (mut y, mut shown) =
        (device.zeros::<f32>(&[8, 32]).unwrap(), device.zeros::<f32>(&[2, 128]).unwrap());
    use_compiler(device, compiled(case.ptx(4), case.map(false), case.map(true)));
    let stretched = x.view().broadcast(&[8, 32]).unwrap();
    tiles(stretched, y.view_mut(), &mut shown, "broadcast").launch(&device.stream()).unwrap();
    assert_eq!(y.to_vec().unwrap(), row.repeat(8));
}

/// A view that no map can describe, under code that wants one.
fn refusals(device: &Device, case: Case) {
    let x = device.zeros::<f32>(&[8, 33]).unwrap();
    let (mut y, mut shown) =
        (device.zeros::<f32>(&[8, 33]).unwrap(), device.zeros::<f32>(&[1, 128]).unwrap());
    use_compiler(device, compiled(case.ptx(4), case.map(false), case.map(true)));
    let launched = tiles(x.view(), y.view_mut(), &mut shown, "refused").launch(&device.stream());
    let error = launched.unwrap_err().to_string();
    assert!(
        error.contains("kernel `tiles`") && error.contains("axis 0 has a stride of 132 bytes"),
        "{error}"
    );
}

/// What maps cost a launch, and what it costs to encode one.
pub fn tensor_map_overhead(device: &Device) {
    if device.properties().target.as_deref().is_some_and(|t| t.starts_with("sm_8")) {
        return;
    }
    let map = TensorMapSpec::new(&[1, 0], &[32, 1]);
    let nothing = ".version 8.3\n.target sm_90a\n.address_size 64\n.visible .entry tiles(.param .u64 shown, \
         .param .align 64 .b8 x[128], .param .u32 count, .param .align 64 .b8 y[128]) { ret; }";
    use_compiler(device, compiled(nothing.to_owned(), map, map));
    let x = device.zeros::<f32>(&[512, 32]).unwrap();
    let (mut y, mut shown) = (device.zeros::<f32>(&[1, 32]).unwrap(), device.zeros::<f32>(&[1, 1]).unwrap());
    let s = device.stream();
    // The view of `x` changes `views` times, then is the first one again: more views than a kernel remembers are encoded again and again.
    let mut time = |views: usize| {
        let mut best = f64::MAX;
        for _ in 0..20 {
            s.synchronize().unwrap();
            let start = Instant::now();
            for i in 0..512 {
                let row = x.view().slice(0, i % views..i % views + 1).unwrap();
                tiles(row, y.view_mut(), &mut shown, "nothing").launch(&s).unwrap();
            }
            best = best.min(start.elapsed().as_secs_f64() * 1e6 / 512.0);
        }
        best
    };
    let (one, many) = (time(1), time(512));
    println!(
        "  {one:.2} µs a launch with two tensor maps, host side; {many:.2} µs where one of them is encoded"
    );
}
