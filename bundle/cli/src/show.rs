//! What is in a bundle: as a list, in full, and as files.

use std::fmt::Write as _;
use std::path::Path;

use tegula_bundle::{Bundle, Error, Fault, Image, Record, write_file};

use crate::Errors;
use crate::diff::asked;

/// The records whose name contains `wanted` or whose hash begins with it.
pub(crate) fn records(bundle: &Bundle, wanted: &str) -> Result<Vec<Record>, Errors> {
    let all: Result<Vec<Record>, Error> = bundle.records().collect();
    let mut all = all.map_err(|e| vec![e])?;
    all.retain(|record| {
        wanted.is_empty()
            || record.source.to_string().starts_with(wanted)
            || record.labels.iter().any(|label| label.name.contains(wanted))
    });
    if all.is_empty() && !bundle.is_empty() {
        let what = format!("there is no kernel {wanted:?}: `tegula bundle list` prints names and hashes");
        return Err(vec![Error { bundle: bundle.name().to_owned(), fault: Fault::Unsuitable(what) }]);
    }
    all.sort_by(|a, b| a.labels.cmp(&b.labels));
    Ok(all)
}

fn targets(record: &Record) -> String {
    let mut targets: Vec<&str> =
        record.variants.iter().flat_map(|v| &v.images).map(|image| image.target.as_str()).collect();
    targets.sort();
    targets.dedup();
    targets.join(" ")
}

pub(crate) fn stored(bundle: &Bundle, image: &Image) -> u64 {
    let parts = [image.cubin, image.ptx].into_iter().flatten();
    parts.filter_map(|part| bundle.parts().get(part as usize)).map(|part| part.stored).sum()
}

/// A line a name.
pub fn list(bundle: &Bundle, text: &mut String) -> Result<(), Errors> {
    for record in records(bundle, "")? {
        for label in &record.labels {
            let (source, targets) = (record.source.short(), targets(&record));
            let _ = writeln!(
                text,
                "{source} {} ({}) {}  {} variants, {targets}",
                label.name,
                label.types,
                label.config,
                record.variants.len()
            );
        }
    }
    let _ = writeln!(
        text,
        "{} kernels, {} pieces of code, {:.2} MB",
        bundle.len(),
        bundle.parts().len(),
        bundle.bytes().len() as f64 / 1e6
    );
    Ok(())
}

/// Everything.
pub fn show(bundle: &Bundle, wanted: &str, text: &mut String) -> Result<(), Errors> {
    for (name, version) in bundle.tools() {
        let _ = writeln!(text, "made with {name} {version}");
    }
    for record in records(bundle, wanted)? {
        let _ = writeln!(text, "\nkernel {}", record.source);
        for label in &record.labels {
            let _ = writeln!(text, "  called {} ({}) {}", label.name, label.types, label.config);
        }
        for param in &record.params {
            let _ = writeln!(text, "  takes {}: {}", param.name, param.kind);
        }
        for variant in &record.variants {
            let _ = writeln!(text, "  for {}", asked(&record, variant));
            for image in &variant.images {
                image_line(bundle, image, text);
            }
        }
    }
    Ok(())
}

fn image_line(bundle: &Bundle, image: &Image, text: &mut String) {
    let code = match (image.cubin, image.ptx) {
        (Some(_), Some(_)) => "cubin and PTX",
        (Some(_), None) => "cubin",
        _ => "PTX",
    };
    let kernel = &image.kernel;
    let _ = write!(
        text,
        "    {} {code}, {} bytes: entry {}, {} threads, {} bytes of shared memory",
        image.target,
        stored(bundle, image),
        kernel.entry,
        kernel.threads,
        kernel.shared_bytes
    );
    if kernel.cluster > 1 {
        let _ = write!(text, ", clusters of {}", kernel.cluster);
    }
    if let Some(report) = &kernel.report {
        let spills = report.spill_store_bytes + report.spill_load_bytes;
        let _ = write!(text, ", {} registers, {spills} bytes of spills", report.registers);
    }
    text.push('\n');
    for slot in &kernel.abi {
        let _ = writeln!(text, "      {slot:?}");
    }
}

/// A line for each bundle that is whole.
pub fn verified(checked: &[(&Path, Result<Bundle, Errors>)], text: &mut String) {
    for bundle in checked.iter().filter_map(|(_, found)| found.as_ref().ok()) {
        let (name, kernels, parts) = (bundle.name(), bundle.len(), bundle.parts().len());
        let _ = writeln!(text, "{name}: whole: {kernels} kernels, {parts} pieces of code");
    }
}

/// Files `HASH-VARIANT-TARGET.cubin` and `.ptx`.
pub fn extract(bundle: &Bundle, wanted: &str, to: &Path, text: &mut String) -> Result<(), Errors> {
    let failed = |error: std::io::Error| {
        vec![Error { bundle: to.display().to_string(), fault: Fault::Io(error.to_string()) }]
    };
    std::fs::create_dir_all(to).map_err(failed)?;
    for record in records(bundle, wanted)? {
        for (number, variant) in record.variants.iter().enumerate() {
            for image in &variant.images {
                // A target is a name that a file gave us, and no place to write to.
                let target: String =
                    image.target.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                for (part, extension) in [(image.cubin, "cubin"), (image.ptx, "ptx")] {
                    let Some(part) = part else { continue };
                    let bytes = bundle.part(part).map_err(|e| vec![e])?;
                    let path = to.join(format!("{}-{number}-{target}.{extension}", record.source.short()));
                    write_file(&path, &bytes).map_err(|e| vec![e])?;
                    let _ = writeln!(text, "{}", path.display());
                }
            }
        }
    }
    Ok(())
}
