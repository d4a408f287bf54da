//! What two bundles have not in common.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tegula_bundle::{Bundle, Error, facts};

use crate::Errors;

/// Every image by what finds it, with the checksums of its code.
type Images = BTreeMap<String, Vec<[u8; 32]>>;

fn images(bundle: &Bundle) -> Result<Images, Errors> {
    let mut images = Images::new();
    for record in bundle.records() {
        let record = record.map_err(|e: Error| vec![e])?;
        let label = &record.labels[0];
        for variant in &record.variants {
            let facts: Vec<String> = variant.facts.iter().map(facts::describe).collect();
            for image in &variant.images {
                let name = format!(
                    "{} {} ({}) {} for {} [{}]",
                    record.source.short(),
                    label.name,
                    label.types,
                    label.config,
                    image.target,
                    facts.join(" | ")
                );
                let parts = [image.cubin, image.ptx].into_iter().flatten();
                images.insert(
                    name,
                    parts.filter_map(|p| bundle.parts().get(p as usize)).map(|p| p.blake3).collect(),
                );
            }
        }
    }
    Ok(images)
}

/// Writes a line for each difference; are there none?
pub fn diff(old: &Bundle, new: &Bundle, text: &mut String) -> Result<bool, Errors> {
    let (before, after) = (images(old)?, images(new)?);
    for (name, code) in &before {
        match after.get(name) {
            None => {
                let _ = writeln!(text, "- {name}");
            }
            Some(other) if other != code => {
                let _ = writeln!(text, "~ {name}: other code");
            }
            Some(_) => {}
        }
    }
    for name in after.keys().filter(|name| !before.contains_key(*name)) {
        let _ = writeln!(text, "+ {name}");
    }
    let tools = |bundle: &Bundle| bundle.tools().iter().cloned().collect::<BTreeMap<String, String>>();
    let (made, makes) = (tools(old), tools(new));
    for name in made.keys().chain(makes.keys().filter(|name| !made.contains_key(*name))) {
        let (a, b) = (made.get(name), makes.get(name));
        if a != b {
            let words = |version: Option<&String>| version.map_or("nothing", String::as_str).to_owned();
            let _ = writeln!(text, "made with {name}: {} before, {} now", words(a), words(b));
        }
    }
    Ok(text.is_empty())
}
