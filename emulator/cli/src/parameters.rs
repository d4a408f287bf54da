//! Arguments as the kernel's parameters: addresses, numbers, tensor maps.

use tegula_emulator::asynchronous::{Fill, TensorDataType, TensorMapBuilder};
use tegula_emulator::decode::Function;
use tegula_emulator::matrix::Swizzle;

use crate::buffer::Buffer;
use crate::element::Element;
use crate::spec::{Argument, Map};

/// Checks that there is an argument of the right size for each parameter, of buffers that exist.
pub fn check(kernel: &Function, arguments: &[(String, Argument)], buffers: &[Buffer]) -> Result<(), String> {
    if arguments.len() != kernel.params.len() {
        let wanted: String = (kernel.params.iter().enumerate())
            .map(|(i, param)| format!("\n  parameter {i}, {}: {} bytes", param.name, param.size))
            .collect();
        return Err(format!(
            "kernel `{}` has {} parameters, and {} are given{wanted}",
            kernel.name,
            kernel.params.len(),
            match arguments.len() {
                0 => "no arguments".to_owned(),
                n => format!("{n} arguments"),
            }
        ));
    }
    // Addresses are not known yet; any will do to see whether all fits.
    let somewhere: Vec<u64> = buffers.iter().map(|_| 1 << 40).collect();
    pack(kernel, arguments, buffers, &somewhere).map(|_| ())
}

/// The bytes of the kernel's parameters, for buffers at these addresses.
pub fn pack(
    kernel: &Function,
    arguments: &[(String, Argument)],
    buffers: &[Buffer],
    addresses: &[u64],
) -> Result<Vec<u8>, String> {
    let mut block = vec![0; kernel.param_bytes as usize];
    for (i, (param, (text, argument))) in kernel.params.iter().zip(arguments).enumerate() {
        let wrong = |why: String| format!("argument {i}, `{text}`: {why}");
        let find = |name: &str| {
            let at = buffers.iter().position(|buffer| buffer.name == name).ok_or_else(|| {
                let names: Vec<_> = buffers.iter().map(|buffer| buffer.name.as_str()).collect();
                let known = if names.is_empty() { "none is declared".to_owned() } else { names.join(", ") };
                wrong(format!(
                    "there is no buffer `{name}` ({known}); declare it with --buffer {name}=TYPE:SHAPE"
                ))
            })?;
            Ok::<_, String>((&buffers[at], addresses[at]))
        };
        let bytes = match argument {
            Argument::Bytes(bytes) => bytes.clone(),
            Argument::Address(name, offset) => find(name)?.1.wrapping_add(*offset).to_le_bytes().to_vec(),
            Argument::Map(map) => {
                let (buffer, address) = find(&map.buffer)?;
                tensor_map(map, buffer, address).map_err(wrong)?
            }
        };
        if bytes.len() != param.size as usize {
            let (name, size) = (&param.name, param.size);
            return Err(wrong(format!(
                "it has {} bytes, and the parameter `{name}` has {size}",
                bytes.len()
            )));
        }
        block[param.offset as usize..param.offset as usize + bytes.len()].copy_from_slice(&bytes);
    }
    Ok(block)
}

fn tensor_map(map: &Map, buffer: &Buffer, address: u64) -> Result<Vec<u8>, String> {
    let ty = match (map.tf32, buffer.element) {
        (true, Element::F32) => TensorDataType::Tf32,
        (true, element) => return Err(format!("type=tf32 is for buffers of f32, not of {element}")),
        (false, element) => element
            .of_tensor_map()
            .ok_or_else(|| format!("tensor maps have no elements of type {element}"))?,
    };
    let dims = map.dims.as_ref().unwrap_or(&buffer.shape);
    // The bytes from one index to the next, of each dimension: dense.
    let mut dense: Vec<u64> = vec![];
    dims.iter().rev().fold(u64::from(ty.bytes()), |bytes, &extent| {
        dense.push(bytes);
        bytes.saturating_mul(extent)
    });
    let strides = map.strides.clone().unwrap_or_else(|| dense[1..].iter().rev().copied().collect());
    if map.boxes.len() != dims.len() {
        return Err(format!("the box has {} extents, the tensor {}", map.boxes.len(), dims.len()));
    }
    if strides.len() + 1 != dims.len() {
        return Err(format!(
            "{} strides for {} dimensions: there is one for each but the innermost",
            strides.len(),
            dims.len()
        ));
    }
    // Behind the last element; a map may not reach past its buffer.
    let reach = dims
        .iter()
        .zip(strides.iter().chain([&u64::from(ty.bytes())]))
        .fold(0u64, |end, (&extent, &stride)| {
            end.saturating_add(extent.saturating_sub(1).saturating_mul(stride))
        });
    let end = map.offset.saturating_add(reach).saturating_add(u64::from(ty.bytes()));
    if end > buffer.bytes() {
        return Err(format!(
            "the tensor ends at byte {end} of `{}`, which has {}",
            buffer.name,
            buffer.bytes()
        ));
    }
    // The driver has the innermost dimension first.
    fn innermost_first<T: Copy>(values: &[T]) -> Vec<T> {
        values.iter().rev().copied().collect()
    }
    let swizzle = match map.swizzle {
        32 => Swizzle::B32,
        64 => Swizzle::B64,
        128 => Swizzle::B128,
        _ => Swizzle::None,
    };
    let mut builder = TensorMapBuilder::new(
        ty,
        address + map.offset,
        &innermost_first(dims),
        &innermost_first(&strides),
        &innermost_first(&map.boxes),
    )
    .swizzle(swizzle)
    .fill(if map.fill_nan { Fill::Nan } else { Fill::Zero });
    if let Some(steps) = &map.steps {
        builder = builder.element_strides(&innermost_first(steps));
    }
    Ok(builder.build().map_err(|e| e.to_string())?.encode().to_vec())
}
