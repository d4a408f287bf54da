//! Tensor maps of views: what a launch encodes for [`AbiSlot::TensorMap`](tegula_ir::artifact::AbiSlot::TensorMap).
//!
//! A backend's part is [`EncodeTensorMap`]; what it is asked for ([`TiledTensor`]), what it is never asked for (views that no map can describe), and
//! which maps need not be encoded again is decided here, alike for all. Encoding takes the driver some hundred nanoseconds a map, and the same
//! views are launched with again and again, so a loaded kernel remembers the maps that it encoded last ([`Maps`]).

use std::sync::atomic::{AtomicU64, Ordering, fence};

use tegula_ir::artifact::{
    MAX_TENSOR_MAP_STRIDE, TENSOR_MAP_ALIGN, TENSOR_MAP_BYTES, TENSOR_MAP_RANK, TensorMapSpec,
};
use tegula_ir::types::Elem;

use crate::launch::ViewArg;

/// An encoded map. Aligned as the driver wants what it writes to.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct TensorMap(pub(crate) [u8; TENSOR_MAP_BYTES]);

const _: () = assert!(align_of::<TensorMap>() == TENSOR_MAP_ALIGN);

impl TensorMap {
    pub(crate) const EMPTY: TensorMap = TensorMap([0; TENSOR_MAP_BYTES]);
}

/// How a backend makes tensor maps.
pub(crate) trait EncodeTensorMap {
    /// Encodes. An error is what the driver says of a tensor that [`TiledTensor::of`] let pass.
    fn encode(&self, tensor: &TiledTensor) -> Result<TensorMap, String>;

    /// Device memory for the maps of views without elements.
    fn scratch(&self) -> Scratch;
}

/// Addresses of an element each, of any type; multiples of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scratch {
    /// Zeros that nobody writes.
    pub(crate) zeros: u64,
    /// Bytes that nobody reads.
    pub(crate) sink: u64,
}

impl Scratch {
    /// Bytes of both together.
    pub(crate) const BYTES: usize = 256;

    /// In an allocation of [`Scratch::BYTES`] zeros.
    pub(crate) fn at(address: u64) -> Scratch {
        Scratch { zeros: address, sink: address + Scratch::BYTES as u64 / 2 }
    }
}

/// The parameters of `cuTensorMapEncodeTiled`; axis 0 is the fastest. Entries from the rank on are extents of 1 and strides of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TiledTensor {
    pub(crate) elem: Elem,
    pub(crate) map: TensorMapSpec,
    pub(crate) place: Place,
}

/// Where a tensor is: what of a map differs from launch to launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) address: u64,
    pub(crate) dims: [u64; TENSOR_MAP_RANK],
    /// In bytes.
    pub(crate) strides: [u64; TENSOR_MAP_RANK],
}

/// Words of a [`Place`].
const PLACE_WORDS: usize = 1 + 2 * TENSOR_MAP_RANK;

impl Place {
    /// Of the view, its axes in the map's order. `None` if it has other axes.
    #[inline]
    fn of(view: &ViewArg<'_>, bytes: usize, map: &TensorMapSpec) -> Option<Place> {
        let (dims, strides) = (view.dims(), view.strides());
        if dims.len() != map.rank as usize {
            return None;
        }
        let (mut place, address) = (Place::EMPTY, view.memory.address);
        for (to, &axis) in map.order().iter().enumerate() {
            place.dims[to] = *dims.get(axis as usize)? as u64;
            place.strides[to] = (*strides.get(axis as usize)? * bytes) as u64;
        }
        Some(Place { address, ..place })
    }

    const EMPTY: Place = Place { address: 0, dims: [1; TENSOR_MAP_RANK], strides: [16; TENSOR_MAP_RANK] };

    #[inline]
    fn words(&self) -> [u64; PLACE_WORDS] {
        let mut words = [self.address; PLACE_WORDS];
        words[1..][..TENSOR_MAP_RANK].copy_from_slice(&self.dims);
        words[1 + TENSOR_MAP_RANK..].copy_from_slice(&self.strides);
        words
    }
}

impl TiledTensor {
    /// What to encode for the view. One without elements becomes one element of the scratch memory, since no map has extents of 0: whatever box is
    /// loaded is zeros then, and what is stored is lost.
    ///
    /// # Errors
    /// Why no map can describe it. The code generator relies on the facts of a launch, which promise that one can.
    fn of(elem: Elem, map: TensorMapSpec, place: Place, scratch: Scratch) -> Result<TiledTensor, String> {
        let bytes = elem.size_of().unwrap_or(0) as u64;
        let refuse = |what: String| Err(format!("a tensor map cannot describe a view {what}"));
        if !map.is_valid_for(elem) {
            return refuse(format!("of {elem} in boxes of {:?}", map.box_dims()));
        }
        let rank = map.rank as usize;
        if place.dims[..rank].contains(&0) {
            let address = if map.store { scratch.sink } else { scratch.zeros };
            return Ok(TiledTensor { elem, map, place: Place { address, ..Place::EMPTY } });
        }
        if !place.address.is_multiple_of(16) {
            return refuse(format!("at the address {:#x}, which is not a multiple of 16", place.address));
        }
        if place.strides[0] != bytes {
            return refuse(format!("whose axis {} does not have stride 1", map.order[0]));
        }
        for (&axis, (&dim, &stride)) in map.order().iter().zip(place.dims.iter().zip(&place.strides)) {
            if dim > i32::MAX as u64 {
                return refuse(format!("with an extent of {dim}: its coordinates have 31 bits"));
            }
            if axis != map.order[0] && !(stride.is_multiple_of(16) && stride < MAX_TENSOR_MAP_STRIDE as u64) {
                return refuse(format!(
                    "whose axis {axis} has a stride of {stride} bytes, not a multiple of 16 below 2^40"
                ));
            }
        }
        Ok(TiledTensor { elem, map, place })
    }

    pub(crate) fn dims(&self) -> &[u64] {
        &self.place.dims[..self.map.rank as usize]
    }

    /// Of all axes but the fastest, in bytes.
    pub(crate) fn strides(&self) -> &[u64] {
        &self.place.strides[1..self.map.rank as usize]
    }

    /// The extents of the box; beyond the rank 1.
    pub(crate) fn box_dims(&self) -> [u32; TENSOR_MAP_RANK] {
        self.map.box_dims.map(u32::from)
    }
}

/// Which parameter of the kernel (not 0), and the words of the place.
type Key = [u64; 1 + PLACE_WORDS];

/// How many maps a kernel remembers: the layers of a model are launched in turn, each with weights of its own.
const REMEMBERED: usize = 64;

/// The maps of a kernel that were encoded last. Reading neither waits nor writes; who cannot read goes and encodes.
pub(crate) struct Maps(Box<[Entry]>);

/// A map and what it is of, under a sequence lock: the sequence is odd while the entry is written, and greater by 2 afterwards. (H.-J. Boehm, "Can Seqlocks
/// Get Along With Programming Language Memory Models?", 2012.) All parts are atomic, so a torn read is no undefined behaviour; it is found and thrown away.
#[repr(align(64))]
struct Entry {
    sequence: AtomicU64,
    /// A [`Key`].
    key: [AtomicU64; 1 + PLACE_WORDS],
    map: [AtomicU64; TENSOR_MAP_BYTES / 8],
}

impl Entry {
    const fn empty() -> Entry {
        Entry {
            sequence: AtomicU64::new(0),
            key: [const { AtomicU64::new(0) }; 1 + PLACE_WORDS],
            map: [const { AtomicU64::new(0) }; TENSOR_MAP_BYTES / 8],
        }
    }

    /// The map, if it is the one of the key; otherwise `to` may have been written to, too.
    #[inline]
    fn get(&self, key: &Key, to: &mut [u8; TENSOR_MAP_BYTES]) -> bool {
        let before = self.sequence.load(Ordering::Acquire);
        let same = before.is_multiple_of(2)
            && self.key.iter().zip(key).all(|(kept, &wanted)| kept.load(Ordering::Relaxed) == wanted);
        if !same {
            return false;
        }
        for (to, word) in to.as_chunks_mut().0.iter_mut().zip(&self.map) {
            *to = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        // Whoever wrote one of the words read above has made the sequence odd before: this makes it visible.
        fence(Ordering::Acquire);
        self.sequence.load(Ordering::Relaxed) == before
    }

    /// Unless another thread is writing.
    fn set(&self, key: &Key, map: &TensorMap) {
        let before = self.sequence.load(Ordering::Relaxed);
        let mine = before.is_multiple_of(2)
            && self
                .sequence
                .compare_exchange(before, before + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if !mine {
            return;
        }
        fence(Ordering::Release);
        self.key.iter().zip(key).for_each(|(to, &word)| to.store(word, Ordering::Relaxed));
        for (word, &from) in self.map.iter().zip(map.0.as_chunks().0) {
            word.store(u64::from_ne_bytes(from), Ordering::Relaxed);
        }
        self.sequence.store(before + 2, Ordering::Release);
    }
}

impl Maps {
    pub(crate) fn new() -> Maps {
        Maps((0..REMEMBERED).map(|_| Entry::empty()).collect())
    }

    /// Puts the map of the view, for parameter `slot` of the kernel, where it is wanted. `None` if the view has another rank than the map.
    #[inline]
    pub(crate) fn get(
        &self,
        slot: usize,
        view: &ViewArg<'_>,
        map: &TensorMapSpec,
        encoder: &impl EncodeTensorMap,
        to: &mut [u8; TENSOR_MAP_BYTES],
    ) -> Option<Result<(), String>> {
        let elem = view.memory.elem;
        let place = Place::of(view, elem.size_of()?, map)?;
        let mut key = [slot as u64 + 1; 1 + PLACE_WORDS];
        key[1..].copy_from_slice(&place.words());
        let entry = &self.0[index(&key)];
        if entry.get(&key, to) {
            return Some(Ok(()));
        }
        Some(encode(entry, &key, elem, *map, place, encoder).map(|encoded| *to = encoded.0))
    }
}

#[cold]
fn encode(
    entry: &Entry,
    key: &Key,
    elem: Elem,
    map: TensorMapSpec,
    place: Place,
    encoder: &impl EncodeTensorMap,
) -> Result<TensorMap, String> {
    let encoded = encoder.encode(&TiledTensor::of(elem, map, place, encoder.scratch())?)?;
    entry.set(key, &encoded);
    Ok(encoded)
}

/// Which entry a key has: the top bits of a sum of products with odd numbers (multiply-shift hashing, Dietzfelbinger et al. 1997), since the products need
/// not wait for each other.
#[inline]
fn index(key: &Key) -> usize {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let product = |(i, &word): (usize, &u64)| word.wrapping_mul(ODD.wrapping_mul(2 * i as u64 + 1));
    let hash = key.iter().enumerate().map(product).fold(0, u64::wrapping_add);
    (hash >> (64 - REMEMBERED.trailing_zeros())) as usize
}

impl std::fmt::Debug for Maps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Maps").field(&self.0.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tegula_ir::artifact::AbiSlot;
    use tegula_ir::element::{Element, bf16};

    use super::*;
    use crate::launch::ArgValue;
    use crate::pack::Packing;
    use crate::testing::Plain;
    use crate::{Device, TensorView};

    /// Counts what it encodes; whatever it encodes, every word of a map is the address and the last extent.
    #[derive(Default)]
    struct Counting(AtomicUsize);

    fn word(address: u64, dim: u64) -> u64 {
        address << 32 | dim
    }

    impl EncodeTensorMap for Counting {
        fn encode(&self, tensor: &TiledTensor) -> Result<TensorMap, String> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let mut map = TensorMap::EMPTY;
            let word = word(tensor.place.address, tensor.place.dims[1]);
            map.0.as_chunks_mut().0.fill(word.to_le_bytes());
            Ok(map)
        }
        fn scratch(&self) -> Scratch {
            Plain.scratch()
        }
    }

    fn matrix<'a>(device: &'a Device, address: u64, rows: usize) -> ArgValue<'a> {
        ArgValue::view(TensorView::<bf16>::raw(device, address, &[rows, 64], &[64, 1]).unwrap(), 2)
    }

    fn packing() -> Packing {
        let map = TensorMapSpec::new(&[1, 0], &[64, 8]);
        Packing::new(&[AbiSlot::TensorMap { param: 0, map }, AbiSlot::TensorMap { param: 1, map }]).unwrap()
    }

    /// Packs two matrices of those addresses and rows; checks the maps.
    fn pack(packing: &Packing, device: &Device, encoder: &Counting, [a, b]: [(u64, usize); 2]) {
        let args = [matrix(device, a.0, a.1), matrix(device, b.0, b.1)];
        let submit = |block: &mut [u8]| {
            for (map, (address, rows)) in block.chunks(TENSOR_MAP_BYTES).zip([a, b]) {
                let wanted = word(address, rows as u64).to_le_bytes();
                assert!(map.as_chunks().0.iter().all(|&found| found == wanted), "{map:?} at {address:#x}");
            }
            Ok(())
        };
        packing.with_packed(&args, encoder, submit).unwrap();
    }

    #[test]
    fn maps_are_encoded_once() {
        let (device, encoder, packing) = (Device::testing(), Counting::default(), packing());
        let count = || encoder.0.load(Ordering::Relaxed);
        let (x, y) = ((0x1000, 10), (0x2000, 20));
        (0..3).for_each(|_| pack(&packing, &device, &encoder, [x, y]));
        assert_eq!(count(), 2);
        // Parameters do not share maps: their boxes may differ.
        pack(&packing, &device, &encoder, [y, x]);
        assert_eq!(count(), 4);
        for changed in [(0x1010, 10), (0x1000, 11)] {
            let before = count();
            pack(&packing, &device, &encoder, [changed, y]);
            assert_eq!(count(), before + 1, "{changed:?}");
        }
    }

    #[test]
    fn the_layers_of_a_model_mostly_find_theirs() {
        let (device, encoder, packing) = (Device::testing(), Counting::default(), packing());
        let round =
            || (0..16).for_each(|i| pack(&packing, &device, &encoder, [(0x1000, 8), (i << 25, 4096)]));
        round();
        let first = encoder.0.swap(0, Ordering::Relaxed);
        (0..10).for_each(|_| round());
        // Of 17 maps in 64 places, two collide now and then, and take turns; most do not.
        let later = encoder.0.load(Ordering::Relaxed);
        assert!(first >= 17 && later < 10 * 32 / 4, "{first} at first, then {later} of 320");
    }

    #[test]
    fn no_thread_sees_a_map_that_another_is_writing() {
        let (device, encoder, packing) = (Device::testing(), Counting::default(), packing());
        // More places than are remembered, so that entries are written all the time, and every thread wants all of them.
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (device, encoder, packing) = (&device, &encoder, &packing);
                scope.spawn(move || {
                    for i in 0..if cfg!(miri) { 200 } else { 20_000u64 } {
                        let at = |i: u64| (i % 97 * 16, (i % 89 + 1) as usize);
                        pack(packing, device, encoder, [at(i * (thread + 1)), at(i / 8 + thread)]);
                    }
                });
            }
        });
    }

    fn refusal<T: Element>(address: u64, shape: &[usize], strides: &[usize], map: TensorMapSpec) -> String {
        let device = Device::testing();
        let args =
            [ArgValue::view(TensorView::<T>::raw(&device, address, shape, strides).unwrap(), shape.len())];
        let packing = Packing::new(&[AbiSlot::TensorMap { param: 0, map }]).unwrap();
        packing.with_packed(&args, &Plain, |_| Ok(())).err().unwrap_or_default()
    }

    #[test]
    fn views_that_no_map_describes_are_refused() {
        let rows = TensorMapSpec::new(&[1, 0], &[64, 8]);
        let refused =
            |address, shape: &[usize], strides: &[usize]| refusal::<bf16>(address, shape, strides, rows);
        assert_eq!(refused(16, &[100, 64], &[64, 1]), "");
        assert_eq!(refused(16, &[100, 64], &[0, 1]), "", "the same row again and again");
        assert_eq!(refused(16, &[100, 64], &[8, 1]), "", "rows that overlap");
        assert_eq!(refused(8, &[100, 0], &[3, 2]), "", "no elements, nothing to describe");
        for (text, part) in [
            (refused(8, &[100, 64], &[64, 1]), "address 0x8"),
            (refused(16, &[100, 64], &[1, 64]), "axis 1 does not have stride 1"),
            (refused(16, &[100, 64], &[68, 1]), "axis 0 has a stride of 136 bytes"),
            (refused(16, &[2, 64], &[1 << 39, 1]), "axis 0 has a stride of 1099511627776 bytes"),
            (refused(16, &[1 << 31, 64], &[64, 1]), "an extent of 2147483648"),
            (
                refusal::<f32>(16, &[100, 64], &[64, 1], TensorMapSpec::new(&[1, 0], &[3, 8])),
                "boxes of [3, 8]",
            ),
        ] {
            assert!(text.contains(part) && text.starts_with("argument 0: a tensor map cannot"), "{text}");
        }
    }
}
