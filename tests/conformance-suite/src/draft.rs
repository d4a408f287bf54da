//! Kernels in few words: parameters, loads and stores around the operation under test.

use smallvec::SmallVec;
use tegula_ir::builder::Builder;
use tegula_ir::kernel::{Kernel, ParamFacts, SourceLoc, Value};
use tegula_ir::op::{BinaryOp, CacheHint, Opcode, Padding};
use tegula_ir::types::{Elem, Shape, Type};

/// Builds a kernel with these parameters, `a`, `b`, ….
pub fn kernel(
    name: &str,
    warps: u32,
    params: &[(Type, ParamFacts)],
    body: impl FnOnce(&mut Builder<'_>, &[Value]),
) -> Kernel {
    let mut kernel = Kernel::new(name);
    kernel.hints.num_warps = warps;
    let mut values = Vec::new();
    for (index, (ty, facts)) in params.iter().enumerate() {
        let letter = char::from(b'a' + index as u8);
        values.push(kernel.add_param(letter, *ty));
        kernel.params[index].facts = facts.clone();
    }
    let block = kernel.body;
    let loc = kernel.locs.push(SourceLoc { file: name.into(), line: 1, column: 1 });
    let mut builder = Builder::at_end(&mut kernel, block);
    builder.loc = loc;
    body(&mut builder, &values);
    kernel
}

/// What a launch knows of a dense array of moderate size at the start of a buffer: the case that matters for speed, and the one that
/// enables vector accesses and asynchronous copies.
pub fn dense(rank: usize) -> ParamFacts {
    ParamFacts { align: 16, small: true, unit_stride: Some(rank as u8 - 1), ..ParamFacts::default() }
}

/// A parameter without any facts.
pub fn plain(ty: Type) -> (Type, ParamFacts) {
    (ty, ParamFacts::default())
}

/// `program_id(axis)`.
pub fn program_id(b: &mut Builder<'_>, axis: u8) -> Value {
    b.value(Opcode::ProgramId(axis), &[], Type::scalar(Elem::I32))
}

/// The i32 offsets of this program's tile: program id times extent, axis by axis (zero for tiles of more than three axes).
pub fn tile_offsets(b: &mut Builder<'_>, tile: &[u32], programs: bool) -> Vec<Value> {
    let offset = |b: &mut Builder<'_>, (axis, &extent): (usize, &u32)| {
        if !programs || axis >= 3 {
            return b.int(0, Elem::I32);
        }
        let (id, extent) = (program_id(b, axis as u8), b.int(extent.into(), Elem::I32));
        b.binary(BinaryOp::Mul, id, extent)
    };
    tile.iter().enumerate().map(|at| offset(b, at)).collect()
}

/// Programs along x, y, z so that tiles cover the extents.
pub fn grid(dims: &[u32], tile: &[u32]) -> [u32; 3] {
    let mut grid = [1; 3];
    for (axis, (&d, &t)) in dims.iter().zip(tile).enumerate().take(3) {
        grid[axis] = d.div_ceil(t).max(1);
    }
    grid
}

/// Loads a tile from a view.
pub fn view_load(
    b: &mut Builder<'_>,
    view: Value,
    offsets: &[Value],
    tile: &[u32],
    padding: Padding,
) -> Value {
    let elem = b.kernel.ty(view).as_view().expect("a view").elem;
    let operands: SmallVec<[Value; 8]> = [view].into_iter().chain(offsets.iter().copied()).collect();
    let opcode = Opcode::ViewLoad { padding, cache: CacheHint::Normal };
    b.value(opcode, &operands, Type::tile(elem, Shape::new(tile)))
}

/// Stores a tile to a view; a scalar as a tile of one element.
pub fn view_store(b: &mut Builder<'_>, view: Value, offsets: &[Value], value: Value) {
    let value = if b.kernel.ty(value).is_scalar() { b.expand(value, 0) } else { value };
    let operands: SmallVec<[Value; 8]> =
        [view].into_iter().chain(offsets.iter().copied()).chain([value]).collect();
    b.effect(Opcode::ViewStore { cache: CacheHint::Normal }, &operands);
}

/// Loads through pointers; operands after them are the mask and what stands where it is false.
pub fn load(b: &mut Builder<'_>, operands: &[Value]) -> Value {
    let ptr = b.kernel.ty(operands[0]);
    let elem = ptr.as_tile().and_then(|t| t.elem.pointee()).expect("pointers");
    b.value(Opcode::Load { cache: CacheHint::Normal }, operands, ptr.with_elem(elem))
}

/// Stores through pointers: pointers, values, and perhaps a mask.
pub fn store(b: &mut Builder<'_>, operands: &[Value]) {
    b.effect(Opcode::Store { cache: CacheHint::Normal }, operands);
}

/// A scalar pointer plus a tile of offsets.
pub fn pointers(b: &mut Builder<'_>, ptr: Value, offsets: Value) -> Value {
    let shape = b.kernel.ty(offsets).shape().expect("a tile");
    let base = b.broadcast(ptr, shape);
    b.ptr_add(base, offsets)
}

/// A kernel that loads tiles from dense views, computes, and stores what comes out to dense views: inputs' parameters first.
/// Programs cover the arrays if `programs`, else there is one.
pub struct TileKernel<'a> {
    /// Element type and tile of each input.
    pub inputs: &'a [(Elem, Vec<u32>)],
    /// Element type and rank of each output.
    pub outputs: &'a [(Elem, usize)],
    /// What is loaded outside the arrays.
    pub padding: Padding,
    /// Warps of the CTA.
    pub warps: u32,
    /// One program a tile?
    pub programs: bool,
}

impl TileKernel<'_> {
    /// Builds it around `compute`.
    pub fn build(self, name: &str, compute: impl FnOnce(&mut Builder<'_>, &[Value]) -> Vec<Value>) -> Kernel {
        let input =
            |(elem, tile): &(Elem, Vec<u32>)| (Type::view(*elem, tile.len(), false), dense(tile.len()));
        let output =
            |&(elem, rank): &(Elem, usize)| (Type::view(elem, rank.max(1), true), dense(rank.max(1)));
        let params: Vec<_> = self.inputs.iter().map(input).chain(self.outputs.iter().map(output)).collect();
        kernel(name, self.warps, &params, |b, views| {
            let (inputs, outputs) = views.split_at(self.inputs.len());
            let mut tiles = Vec::new();
            for (&view, (_, tile)) in inputs.iter().zip(self.inputs) {
                let offsets = tile_offsets(b, tile, self.programs);
                tiles.push(view_load(b, view, &offsets, tile, self.padding));
            }
            let results = compute(b, &tiles);
            assert_eq!(results.len(), outputs.len(), "{name}: one output a result");
            for (&view, &value) in outputs.iter().zip(&results) {
                let shape = b.kernel.ty(value).shape().expect("a tile");
                let tile = if shape.rank() == 0 { vec![1] } else { shape.dims().to_vec() };
                let offsets = tile_offsets(b, &tile, self.programs);
                view_store(b, view, &offsets, value);
            }
        })
    }
}
