//! Any bytes as a bundle. They are tried as they are, and with header and checksum made right, since no mutation would pass those by luck.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tegula_bundle::format::{HEADER, MAGIC, VERSION};
use tegula_bundle::{Bundle, Wanted, codec};

fn all_of(bytes: &[u8]) {
    let Ok(bundle) = Bundle::from_bytes("fuzzed", bytes.to_vec()) else { return };
    let _ = bundle.verify();
    for number in 0..bundle.label_count().unwrap_or(0) {
        if let Ok(Some((label, record))) = bundle.labelled(number) {
            // An error, if others have it, too.
            let found = bundle.find_label(&label).unwrap_or(Some(record));
            assert!(found.is_some_and(|found| found.labels.contains(&label)));
        }
    }
    for record in bundle.records().flatten() {
        for variant in &record.variants {
            for gpu in ["sm_80", "sm_90a"] {
                let _ = bundle.code(&record.source, &variant.facts, gpu, Wanted::Machine);
                let _ = bundle.code(&record.source, &variant.facts, gpu, Wanted::Ptx);
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    all_of(bytes);
    let _ = codec::decode(bytes);
    // The first two bytes say how long the manifest is.
    let Some((length, rest)) = bytes.split_first_chunk() else { return };
    let manifest = (u16::from_le_bytes(*length) as usize).min(rest.len());
    let mut file = MAGIC.to_vec();
    file.extend(VERSION.to_le_bytes());
    file.extend(codec::FORMAT.to_le_bytes());
    file.extend(((HEADER + rest.len()) as u64).to_le_bytes());
    file.extend((manifest as u64).to_le_bytes());
    let sum = *blake3::Hasher::new().update(&file).update(&rest[..manifest]).finalize().as_bytes();
    file.extend(sum);
    file.extend(rest);
    all_of(&file);
});
