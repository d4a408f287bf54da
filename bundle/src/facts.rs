//! Which facts a compiled variant may ask for: those that hold for the arguments of the launch.
//!
//! A variant was compiled under facts that its author chose; a launch has facts of its arguments. The variant may run if each of its facts follows
//! from those of the launch ([`imply`]). A variant without facts asks for nothing, so it may always run. Of several that may, the one with the
//! most facts is taken ([`strength`]).

use tegula_ir::kernel::ParamFacts;

use crate::codec::{Reader, Writer};

/// Do the facts of a launch's arguments promise all that a variant was compiled under?
pub fn imply(launch: &[ParamFacts], variant: &[ParamFacts]) -> bool {
    launch.len() == variant.len() && launch.iter().zip(variant).all(|(l, v)| implies(l, v))
}

fn implies(launch: &ParamFacts, variant: &ParamFacts) -> bool {
    divides(variant.align, launch.align)
        && (divides(variant.divisible, launch.divisible)
            || launch.value.is_some_and(|x| x % i64::from(variant.divisible) == 0))
        && all_divide(&variant.stride_divisible, &launch.stride_divisible)
        && all_divide(&variant.dim_divisible, &launch.dim_divisible)
        && (variant.unit_stride.is_none() || variant.unit_stride == launch.unit_stride)
        // Of small views alone is it said which strides are long: a variant may take a stride for long that is not, never the other way round.
        && (!variant.small
            || launch.small && launch.long_strides.iter().all(|axis| variant.long_strides.contains(axis)))
        && (!variant.tensor_map || launch.tensor_map)
        && (variant.value.is_none() || variant.value == launch.value)
}

/// Is what is a multiple of `launch` one of `variant`? 0 and 1: nothing is known, nothing is asked.
fn divides(variant: u32, launch: u32) -> bool {
    variant <= 1 || launch != 0 && launch.is_multiple_of(variant)
}

/// Likewise for each axis; an axis that nothing is said of is one that nothing is known of.
fn all_divide(variant: &[u32], launch: &[u32]) -> bool {
    let known = |axis: usize| launch.get(axis).copied().unwrap_or(1);
    variant.iter().enumerate().all(|(axis, &asked)| divides(asked, known(axis)))
}

/// How much a variant knows: the number of its facts.
pub fn strength(variant: &[ParamFacts]) -> u32 {
    let some = |divisors: &[u32]| divisors.iter().filter(|&&d| d > 1).count() as u32;
    let of = |f: &ParamFacts| {
        some(&[f.align, f.divisible])
            + some(&f.stride_divisible)
            + some(&f.dim_divisible)
            + u32::from(f.unit_stride.is_some())
            + u32::from(f.small)
            + u32::from(f.tensor_map)
            + u32::from(f.value.is_some())
    };
    variant.iter().map(of).sum()
}

pub(crate) fn encode(w: &mut Writer, facts: &ParamFacts) {
    w.u32(facts.align);
    w.u32(facts.divisible);
    w.list(&facts.stride_divisible, |w, &d| w.u32(d));
    w.list(&facts.dim_divisible, |w, &d| w.u32(d));
    w.option(facts.unit_stride, |w, axis| w.u8(axis));
    w.u8(facts.small as u8);
    w.list(&facts.long_strides, |w, &axis| w.u32(axis));
    w.u8(facts.tensor_map as u8);
    w.option(facts.value, |w, value| w.u64(value as u64));
}

pub(crate) fn decode(r: &mut Reader<'_>) -> Option<ParamFacts> {
    Some(ParamFacts {
        align: r.u32()?,
        divisible: r.u32()?,
        stride_divisible: r.list(Reader::u32)?.into(),
        dim_divisible: r.list(Reader::u32)?.into(),
        unit_stride: r.option(Reader::u8)?,
        small: r.bool()?,
        long_strides: r.list(Reader::u32)?.into(),
        tensor_map: r.bool()?,
        value: r.option(Reader::u64)?.map(|bits| bits as i64),
    })
}

/// A few words for people: `aligned 16, strides [16, 1], dims [16, 16], unit 1, small, tensor map`.
pub fn describe(facts: &ParamFacts) -> String {
    let mut words = Vec::new();
    let mut say = |holds: bool, text: String| {
        if holds {
            words.push(text);
        }
    };
    let known = |divisors: &[u32]| divisors.iter().any(|&d| d > 1);
    say(facts.value.is_some(), format!("= {}", facts.value.unwrap_or_default()));
    say(facts.align > 1, format!("aligned {}", facts.align));
    say(facts.divisible > 1, format!("divisible {}", facts.divisible));
    say(known(&facts.stride_divisible), format!("strides {:?}", &facts.stride_divisible[..]));
    say(known(&facts.dim_divisible), format!("dims {:?}", &facts.dim_divisible[..]));
    say(facts.unit_stride.is_some(), format!("unit {}", facts.unit_stride.unwrap_or_default()));
    say(facts.small, "small".to_owned());
    say(facts.small && !facts.long_strides.is_empty(), format!("long {:?}", &facts.long_strides[..]));
    say(facts.tensor_map, "tensor map".to_owned());
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    fn matrix() -> ParamFacts {
        ParamFacts {
            align: 16,
            stride_divisible: smallvec![16, 1],
            dim_divisible: smallvec![16, 16],
            unit_stride: Some(1),
            small: true,
            tensor_map: true,
            ..ParamFacts::default()
        }
    }

    #[test]
    fn a_variant_runs_where_its_facts_hold() {
        let none = ParamFacts::default();
        let implies = |launch: &ParamFacts, variant: &ParamFacts| {
            imply(std::slice::from_ref(launch), std::slice::from_ref(variant))
        };
        assert!(implies(&matrix(), &matrix()) && implies(&matrix(), &none) && implies(&none, &none));
        assert!(!implies(&none, &matrix()));
        // Each fact by itself: without it, the launch may not run the variant, and may run one that does not ask for it.
        let weaker: [fn(&mut ParamFacts); 7] = [
            |f| f.align = 8,
            |f| f.stride_divisible = smallvec![8, 1],
            |f| f.dim_divisible = smallvec![16, 1],
            |f| f.unit_stride = Some(0),
            |f| f.small = false,
            |f| f.long_strides = smallvec![0],
            |f| f.tensor_map = false,
        ];
        for (index, weaken) in weaker.iter().enumerate() {
            let mut launch = matrix();
            weaken(&mut launch);
            assert!(!implies(&launch, &matrix()), "{index}: {launch:?}");
            assert!(implies(&launch, &launch));
        }
        // More may be known than is asked for.
        assert!(implies(&matrix(), &ParamFacts { stride_divisible: smallvec![8, 1], align: 4, ..matrix() }));
        assert!(implies(&matrix(), &ParamFacts { long_strides: smallvec![0], ..matrix() }), "taken for long");
        assert!(!implies(&matrix(), &ParamFacts { align: 32, ..matrix() }));
        assert!(!implies(&matrix(), &ParamFacts { dim_divisible: smallvec![16, 16, 16], ..matrix() }));
    }

    #[test]
    fn scalars() {
        let of = |divisible, value| [ParamFacts { divisible, value, ..ParamFacts::default() }];
        assert!(imply(&of(16, None), &of(8, None)) && !imply(&of(8, None), &of(16, None)));
        assert!(imply(&of(0, Some(1)), &of(0, Some(1))) && imply(&of(0, Some(1)), &of(0, None)));
        assert!(!imply(&of(0, None), &of(0, Some(1))) && !imply(&of(0, Some(1)), &of(16, None)));
        assert!(imply(&of(0, Some(32)), &of(16, None)));
        assert!(!imply(&[], &of(0, None)), "another number of parameters");
    }

    #[test]
    fn encoding() {
        let all = [
            matrix(),
            ParamFacts { value: Some(-3), long_strides: smallvec![1], ..matrix() },
            ParamFacts::default(),
        ];
        for facts in all {
            let mut w = Writer::default();
            encode(&mut w, &facts);
            assert_eq!(decode(&mut Reader(&w.0)), Some(facts));
        }
        assert_eq!(
            describe(&matrix()),
            "aligned 16, strides [16, 1], dims [16, 16], unit 1, small, tensor map"
        );
    }

    #[test]
    fn strength_counts() {
        assert_eq!(strength(&[matrix(), ParamFacts::default()]), 7);
        assert_eq!(strength(&[]), 0);
    }
}
