//! Which code runs on which GPU, by the names of architectures.
//!
//! CUDA C++ Programming Guide, "Application Compatibility": a cubin runs on its own compute capability and on higher minor versions of the same
//! major one; PTX can be compiled for its own and every higher capability. Code of an architecture with the suffix `a` runs there only; with
//! `f`, in its family, which we do not make use of: it is taken as `a` is.

/// An architecture, as in `sm_90a`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Architecture<'a> {
    major: u32,
    minor: u32,
    suffix: &'a str,
}

fn parse(name: &str) -> Option<Architecture<'_>> {
    let rest = name.strip_prefix("sm_")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(digits);
    let number: u32 = number.parse().ok().filter(|&n| n < 10_000)?;
    Some(Architecture { major: number / 10, minor: number % 10, suffix })
}

/// Does a cubin for `code` run on `gpu`? If so, how well it fits: more is better.
pub fn cubin_fits(code: &str, gpu: &str) -> Option<u32> {
    if code == gpu {
        return Some(u32::MAX);
    }
    let (code, gpu) = (parse(code)?, parse(gpu)?);
    (code.suffix.is_empty() && code.major == gpu.major && code.minor <= gpu.minor).then_some(code.minor)
}

/// Can PTX for `code` be compiled for `gpu`? If so, how well it fits: more is better.
pub fn ptx_fits(code: &str, gpu: &str) -> Option<u32> {
    if code == gpu {
        return Some(u32::MAX);
    }
    let (code, gpu) = (parse(code)?, parse(gpu)?);
    let number = |a: Architecture<'_>| a.major * 10 + a.minor;
    (code.suffix.is_empty() && number(code) <= number(gpu)).then_some(number(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compatibility() {
        assert!(cubin_fits("sm_80", "sm_86") < cubin_fits("sm_86", "sm_86"));
        assert!(cubin_fits("sm_80", "sm_89") < cubin_fits("sm_86", "sm_89"));
        for (code, gpu) in [
            ("sm_86", "sm_80"),
            ("sm_80", "sm_90a"),
            ("sm_90a", "sm_90"),
            ("sm_90a", "sm_100a"),
            ("sm_100f", "sm_103"),
        ] {
            assert_eq!(cubin_fits(code, gpu), None, "{code} on {gpu}");
        }
        assert_eq!(cubin_fits("sm_90", "sm_90a"), Some(0), "what every sm_90 runs");
        assert!(ptx_fits("sm_80", "sm_120") < ptx_fits("sm_90", "sm_120"));
        assert!(ptx_fits("sm_90", "sm_80").is_none() && ptx_fits("sm_90a", "sm_100a").is_none());
        assert!(ptx_fits("sm_90a", "sm_90a").is_some());
        for nonsense in ["", "sm_", "sm_x", "gfx90a", "sm_99999999999", "sm_90000"] {
            assert!(
                cubin_fits(nonsense, "sm_90").is_none() && ptx_fits(nonsense, "sm_90").is_none(),
                "{nonsense}"
            );
        }
    }
}
