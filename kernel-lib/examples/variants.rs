//! Lists the registry, or writes tile IR of chosen variants into a folder, for `tegula-opt`:
//!
//! ```console
//! $ cargo run -p tegula-kernels --example variants                              # name, types, config: a line a variant
//! $ cargo run -p tegula-kernels --example variants -- out rms_norm bf16 "block: 4096"
//! $ tegula-opt out/rms_norm.0.tile --emit report --target sm_90a
//! ```
//!
//! Chosen are those whose line contains every word, but nothing is written for the host device only. They get the facts that tensors usually have: aligned, rows a multiple of 16.

use std::error::Error;
use std::path::Path;

use tegula_kernels::registry::{Variant, all_kernels, with_usual_facts};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let folder = words.next();
    let words: Vec<String> = words.collect();
    for entry in all_kernels() {
        let line = |types: &str, config: &str| format!("{} <{types}> {config}", entry.name);
        let chosen = entry.variants.iter().filter(|v| {
            let line = line(&v.types, &v.config);
            !(v.host_only && folder.is_some()) && words.iter().all(|word| line.contains(word.as_str()))
        });
        for (number, variant) in chosen.enumerate() {
            let line = line(&variant.types, &variant.config);
            match &folder {
                None => println!("{line}{}", note(variant)),
                Some(folder) => {
                    let path = Path::new(folder).join(format!("{}.{number}.tile", entry.name));
                    std::fs::create_dir_all(folder)?;
                    std::fs::write(&path, with_usual_facts(variant.stage()?).to_string())?;
                    println!("{}: {line}", path.display());
                }
            }
        }
    }
    Ok(())
}

fn note(variant: &Variant) -> &'static str {
    if variant.host_only { " (host only)" } else { "" }
}
