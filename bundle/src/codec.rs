//! One compiled kernel as bytes, for the run time's cache on disk and for the records of bundles.
//!
//! Little-endian, lengths before contents, element types by name (so that reordering an enum cannot change what is read). The
//! decoder takes any bytes: what is wrong is an error, and no length is believed beyond the input.

use tegula_ir::artifact::{
    AbiSlot, CompiledKernel, ResourceReport, TENSOR_MAP_RANK, TensorMapSpec, TensorSwizzle,
};
use tegula_ir::types::Elem;

/// Changes whenever the encoding does.
pub const FORMAT: u32 = 3;

/// The bytes of a kernel.
pub fn encode(kernel: &CompiledKernel) -> Vec<u8> {
    let mut w =
        Writer(Vec::with_capacity(kernel.ptx.len() + kernel.cubin.as_ref().map_or(0, Vec::len) + 512));
    w.str(&kernel.entry);
    w.str(&kernel.target);
    w.str(&kernel.ptx);
    w.option(kernel.cubin.as_ref(), |w, cubin| w.bytes(cubin));
    w.u32(kernel.threads);
    w.u32(kernel.shared_bytes);
    w.u32(kernel.cluster);
    w.u8(kernel.dependent_launch.into());
    w.list(&kernel.abi, Writer::slot);
    w.option(kernel.report.as_ref(), |w, r| {
        for n in [r.registers, r.spill_store_bytes, r.spill_load_bytes, r.stack_bytes, r.shared_bytes] {
            w.u32(n);
        }
        w.list(&r.warnings, |w, warning| w.str(warning));
    });
    w.0
}

/// The kernel in these bytes; `None` if they are not exactly one.
pub fn decode(bytes: &[u8]) -> Option<CompiledKernel> {
    let mut r = Reader(bytes);
    let kernel = CompiledKernel {
        entry: r.str()?,
        target: r.str()?,
        ptx: r.str()?,
        cubin: r.option(|r| Some(r.bytes()?.to_vec()))?,
        threads: r.u32()?,
        shared_bytes: r.u32()?,
        cluster: r.u32()?,
        dependent_launch: r.bool()?,
        abi: r.list(Reader::slot)?,
        report: r.option(|r| {
            Some(ResourceReport {
                registers: r.u32()?,
                spill_store_bytes: r.u32()?,
                spill_load_bytes: r.u32()?,
                stack_bytes: r.u32()?,
                shared_bytes: r.u32()?,
                warnings: r.list(Reader::str)?,
            })
        })?,
    };
    r.0.is_empty().then_some(kernel)
}

#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, x: u8) {
        self.0.push(x);
    }

    pub(crate) fn u16(&mut self, x: u16) {
        self.0.extend(x.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, x: u32) {
        self.0.extend(x.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, b: &[u8]) {
        self.0.extend((b.len() as u64).to_le_bytes());
        self.0.extend(b);
    }

    pub(crate) fn str(&mut self, s: &str) {
        self.bytes(s.as_bytes());
    }

    pub(crate) fn option<T>(&mut self, x: Option<T>, some: impl FnOnce(&mut Writer, T)) {
        self.u8(x.is_some() as u8);
        if let Some(x) = x {
            some(self, x);
        }
    }

    pub(crate) fn u64(&mut self, x: u64) {
        self.0.extend(x.to_le_bytes());
    }

    pub(crate) fn list<T>(&mut self, items: &[T], mut item: impl FnMut(&mut Writer, &T)) {
        self.u32(items.len() as u32);
        items.iter().for_each(|x| item(self, x));
    }

    fn slot(&mut self, slot: &AbiSlot) {
        match *slot {
            AbiSlot::Address { param } => {
                self.u8(0);
                self.u16(param);
            }
            AbiSlot::Dim { param, axis, bits } => {
                self.u8(1);
                self.u16(param);
                self.u8(axis);
                self.u8(bits);
            }
            AbiSlot::Stride { param, axis, bits } => {
                self.u8(2);
                self.u16(param);
                self.u8(axis);
                self.u8(bits);
            }
            AbiSlot::Scalar { param, elem } => {
                self.u8(3);
                self.u16(param);
                self.str(elem.name());
            }
            AbiSlot::TensorMap { param, map } => {
                self.u8(4);
                self.u16(param);
                self.u8(map.rank);
                map.order().iter().for_each(|&axis| self.u8(axis));
                map.box_dims().iter().for_each(|&extent| self.u16(extent));
                self.u8(match map.swizzle {
                    TensorSwizzle::None => 0,
                    TensorSwizzle::B32 => 1,
                    TensorSwizzle::B64 => 2,
                    TensorSwizzle::B128 => 3,
                });
                self.u8(map.store as u8);
            }
        }
    }
}

pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    /// A truth value; any other byte than 0 and 1 could not have been written.
    pub(crate) fn bool(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let n = self.u64()?;
        self.take(usize::try_from(n).ok()?)
    }

    pub(crate) fn str(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    pub(crate) fn option<T>(&mut self, some: impl FnOnce(&mut Reader<'a>) -> Option<T>) -> Option<Option<T>> {
        match self.u8()? {
            0 => Some(None),
            1 => some(self).map(Some),
            _ => None,
        }
    }

    pub(crate) fn list<T>(&mut self, mut item: impl FnMut(&mut Reader<'a>) -> Option<T>) -> Option<Vec<T>> {
        // Grows as items are found: a length that lies runs out of input, not of memory.
        let n = self.u32()?;
        (0..n).map(|_| item(self)).collect()
    }

    fn slot(&mut self) -> Option<AbiSlot> {
        let (kind, param) = (self.u8()?, self.u16()?);
        Some(match kind {
            0 => AbiSlot::Address { param },
            1 => AbiSlot::Dim { param, axis: self.u8()?, bits: self.u8()? },
            2 => AbiSlot::Stride { param, axis: self.u8()?, bits: self.u8()? },
            3 => AbiSlot::Scalar { param, elem: self.str()?.parse::<Elem>().ok()? },
            4 => AbiSlot::TensorMap { param, map: self.tensor_map()? },
            _ => return None,
        })
    }

    /// Only one that could have been written: the run time relies on it.
    fn tensor_map(&mut self) -> Option<TensorMapSpec> {
        let rank = self.u8()? as usize;
        let (mut order, mut box_dims) = ([0; TENSOR_MAP_RANK], [0; TENSOR_MAP_RANK]);
        for axis in order.get_mut(..rank)? {
            *axis = self.u8()?;
        }
        for extent in box_dims.get_mut(..rank)? {
            *extent = self.u16()?;
        }
        let swizzle = match self.u8()? {
            0 => TensorSwizzle::None,
            1 => TensorSwizzle::B32,
            2 => TensorSwizzle::B64,
            3 => TensorSwizzle::B128,
            _ => return None,
        };
        let store = self.bool()?;
        let map = TensorMapSpec { swizzle, store, ..TensorMapSpec::new(&order[..rank], &box_dims[..rank]) };
        map.is_well_formed().then_some(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor_map() -> TensorMapSpec {
        let map = TensorMapSpec::new(&[2, 0, 1], &[64, 1, 256]);
        TensorMapSpec { swizzle: TensorSwizzle::B128, store: true, ..map }
    }

    /// A kernel with something of everything.
    fn sample() -> CompiledKernel {
        CompiledKernel {
            entry: "k".to_owned(),
            target: "sm_90a".to_owned(),
            ptx: ".version 8.6\n// ü".to_owned(),
            cubin: Some((0..=255).collect()),
            threads: 128,
            shared_bytes: 49152,
            cluster: 2,
            dependent_launch: true,
            abi: vec![
                AbiSlot::Address { param: 0 },
                AbiSlot::Dim { param: 0, axis: 1, bits: 32 },
                AbiSlot::Stride { param: 0, axis: 0, bits: 64 },
                AbiSlot::Scalar { param: 300, elem: Elem::BF16 },
                AbiSlot::TensorMap { param: 0, map: tensor_map() },
            ],
            report: Some(ResourceReport {
                registers: 168,
                spill_store_bytes: 1,
                spill_load_bytes: 2,
                stack_bytes: 3,
                shared_bytes: 4,
                warnings: vec!["wgmma serialised".to_owned()],
            }),
        }
    }

    #[test]
    fn round_trip() {
        let bare = CompiledKernel { cubin: None, report: None, abi: vec![], ..sample() };
        for kernel in [sample(), bare] {
            assert_eq!(decode(&encode(&kernel)), Some(kernel));
        }
        let all = Elem::ALL.map(|elem| AbiSlot::Scalar { param: 1, elem }).to_vec();
        let kernel = CompiledKernel { abi: all, ..sample() };
        assert_eq!(decode(&encode(&kernel)), Some(kernel));
    }

    #[test]
    fn tensor_maps_are_read_as_they_were_written_or_not_at_all() {
        for swizzle in TensorSwizzle::ALL {
            let maps =
                [TensorMapSpec::new(&[0], &[16]), TensorMapSpec::new(&[4, 3, 2, 1, 0], &[8, 1, 2, 3, 4])];
            let abi = maps.map(|map| AbiSlot::TensorMap { param: 7, map: TensorMapSpec { swizzle, ..map } });
            let kernel = CompiledKernel { abi: abi.to_vec(), ..sample() };
            assert_eq!(decode(&encode(&kernel)), Some(kernel));
        }
        let written = |map| {
            let abi = vec![AbiSlot::TensorMap { param: 0, map }];
            encode(&CompiledKernel { abi, report: None, ..sample() })
        };
        let good = tensor_map();
        for damaged in [
            TensorMapSpec { rank: 0, ..good },
            TensorMapSpec { order: [1, 1, 0, 0, 0], ..good },
            TensorMapSpec { order: [2, 0, 3, 0, 0], ..good },
            TensorMapSpec { box_dims: [64, 0, 256, 1, 1], ..good },
            TensorMapSpec { box_dims: [64, 1, 257, 1, 1], ..good },
        ] {
            assert_eq!(decode(&written(damaged)), None, "{damaged:?}");
        }
        // From the end: no report, store, swizzle, three extents, three axes, rank.
        for (from_end, value) in [(2, 2), (3, 4), (13, 6), (13, 2)] {
            let mut bytes = written(good);
            let at = bytes.len() - from_end;
            bytes[at] = value;
            assert_eq!(decode(&bytes), None, "byte {from_end} from the end is {value}");
        }
    }

    #[test]
    fn any_bytes_are_an_error_not_a_panic() {
        let bytes = encode(&sample());
        for end in 0..bytes.len() {
            assert_eq!(decode(&bytes[..end]), None, "cut at {end}");
        }
        assert_eq!(decode(&[&bytes[..], &[0]].concat()), None);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x80;
            // Often still a kernel (there is a checksum around it); never a panic, never a huge allocation.
            let _ = decode(&damaged);
        }
    }
}
