//! What two bundles have not in common.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Serialize;
use tegula_bundle::{Bundle, Error, Image, Record, SourceHash, Variant, facts};

use crate::Errors;

/// Every image by what finds it, the kernel's hash, facts and target.
type Images = BTreeMap<(SourceHash, String, String), Found>;

/// An image, with the checksums of its code in place of the numbers of parts.
struct Found {
    name: String,
    image: Image,
    code: [Option<[u8; 32]>; 2],
}

impl Found {
    /// What is not as in another.
    fn differs(&self, other: &Found) -> Option<&'static str> {
        let rest = |image: &Image| Image { compiler: String::new(), cubin: None, ptx: None, ..image.clone() };
        match () {
            () if self.code != other.code => Some("other code"),
            () if rest(&self.image) != rest(&other.image) => Some("the same code, launched otherwise"),
            () if self.image.compiler != other.image.compiler => Some("the same code, of another compiler"),
            () => None,
        }
    }
}

/// What must hold of the arguments, by their names: `any arguments`, or `x: aligned 16, small; y: aligned 16`.
pub fn asked(record: &Record, variant: &Variant) -> String {
    let words: Vec<String> = (record.params.iter().zip(&variant.facts))
        .map(|(param, facts)| (param, facts::describe(facts)))
        .filter(|(_, facts)| !facts.is_empty())
        .map(|(param, facts)| format!("{}: {facts}", param.name))
        .collect();
    if words.is_empty() { "any arguments".to_owned() } else { words.join("; ") }
}

fn images(bundle: &Bundle) -> Result<Images, Errors> {
    let mut images = Images::new();
    for record in bundle.records() {
        let record = record.map_err(|e: Error| vec![e])?;
        let label = &record.labels[0];
        for variant in &record.variants {
            for image in &variant.images {
                let name = format!(
                    "{} {} ({}) {} for {}, {}",
                    record.source.short(),
                    label.name,
                    label.types,
                    label.config,
                    image.target,
                    asked(&record, variant)
                );
                let checksum = |part: Option<u32>| bundle.parts().get(part? as usize).map(|p| p.blake3);
                let found =
                    Found { name, code: [checksum(image.cubin), checksum(image.ptx)], image: image.clone() };
                // Facts as people see them can be the same where they are not: as Rust has them, they are all there.
                let facts = format!("{:?}", variant.facts);
                images.insert((record.source, facts, image.target.clone()), found);
            }
        }
    }
    Ok(images)
}

/// Which kernels are called what.
fn called(bundle: &Bundle) -> Result<BTreeSet<String>, Errors> {
    let mut called = BTreeSet::new();
    for record in bundle.records() {
        let record = record.map_err(|e: Error| vec![e])?;
        let source = record.source.short();
        called
            .extend(record.labels.iter().map(|l| format!("{source} {} ({}) {}", l.name, l.types, l.config)));
    }
    Ok(called)
}

/// What a bundle was made with.
#[derive(Debug, Serialize)]
pub struct Tool {
    name: String,
    before: Option<String>,
    now: Option<String>,
}

/// The differences, sorted.
#[derive(Debug, Serialize)]
pub struct Differences {
    removed: Vec<String>,
    changed: Vec<Changed>,
    added: Vec<String>,
    /// Names that are gone, of kernels that are not; and new ones.
    no_longer_called: Vec<String>,
    newly_called: Vec<String>,
    tools: Vec<Tool>,
}

/// Code that is there before and after, but not as it was.
#[derive(Debug, Serialize)]
pub struct Changed {
    name: String,
    how: &'static str,
}

impl Differences {
    /// Of an old bundle and a new one.
    pub fn of(old: &Bundle, new: &Bundle) -> Result<Differences, Errors> {
        let (before, after) = (images(old)?, images(new)?);
        let absent = |from: &Images, of: &Images| -> Vec<String> {
            of.iter()
                .filter(|(key, _)| !from.contains_key(*key))
                .map(|(_, found)| found.name.clone())
                .collect()
        };
        let changed = before.iter().filter_map(|(key, found)| {
            let how = after.get(key)?.differs(found)?;
            Some(Changed { name: found.name.clone(), how })
        });
        let (removed, added) = (absent(&after, &before), absent(&before, &after));
        let (calls, names) = (called(old)?, called(new)?);
        // Names of what is gone or new are there already.
        let others = |these: &BTreeSet<String>, those: &BTreeSet<String>, said: &[String]| -> Vec<String> {
            let unsaid = |name: &&String| !said.iter().any(|said| said.starts_with(name.as_str()));
            these.difference(those).filter(unsaid).cloned().collect()
        };
        let tools = |bundle: &Bundle| {
            let mut tools = BTreeMap::<String, Vec<String>>::new();
            for (name, version) in bundle.tools() {
                tools.entry(name.clone()).or_default().push(version.clone());
            }
            tools.into_iter().map(|(name, versions)| (name, versions.join(", "))).collect::<BTreeMap<_, _>>()
        };
        let (made, makes) = (tools(old), tools(new));
        let all = made.keys().chain(makes.keys().filter(|name| !made.contains_key(*name)));
        Ok(Differences {
            changed: changed.collect(),
            no_longer_called: others(&calls, &names, &removed),
            newly_called: others(&names, &calls, &added),
            removed,
            added,
            tools: all
                .filter(|name| made.get(*name) != makes.get(*name))
                .map(|name| Tool {
                    name: name.clone(),
                    before: made.get(name).cloned(),
                    now: makes.get(name).cloned(),
                })
                .collect(),
        })
    }

    /// Are there none?
    pub fn is_none(&self) -> bool {
        let Differences { removed, changed, added, no_longer_called, newly_called, tools } = self;
        [removed, added, no_longer_called, newly_called].iter().all(|names| names.is_empty())
            && changed.is_empty()
            && tools.is_empty()
    }

    /// A line for each.
    pub fn print(&self, text: &mut String) {
        self.removed.iter().for_each(|name| _ = writeln!(text, "- {name}"));
        self.changed.iter().for_each(|Changed { name, how }| _ = writeln!(text, "~ {name}: {how}"));
        self.added.iter().for_each(|name| _ = writeln!(text, "+ {name}"));
        self.no_longer_called.iter().for_each(|name| _ = writeln!(text, "- called {name}"));
        self.newly_called.iter().for_each(|name| _ = writeln!(text, "+ called {name}"));
        for Tool { name, before, now } in &self.tools {
            let words = |version: &Option<String>| version.clone().unwrap_or_else(|| "nothing".to_owned());
            let _ = writeln!(text, "made with {name}: {} before, {} now", words(before), words(now));
        }
    }
}
