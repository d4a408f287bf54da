//! Opens a file's bytes as far as that goes without a device: for tests of damaged files, and for the fuzz targets.

use std::path::Path;

use tegula_runner::bytes::Bytes;
use tegula_runner::gguf::GgufFile;
use tegula_runner::weights::{SafetensorsFile, WeightSource};
use tegula_runner::{Checkpoint, Error, ModelWeights, Part, Tokenizer};

/// Reads all that a model would read of a GGUF file: config, tokenizer, tensors.
pub fn gguf(bytes: Vec<u8>) -> Result<(Checkpoint, Tokenizer), Error> {
    let checkpoint = Checkpoint::of_gguf(GgufFile::new(Path::new("model.gguf"), Bytes::Owned(bytes))?)?;
    checkpoint.verify()?;
    let tokenizer = checkpoint.tokenizer()?;
    // The norm is read element by element, and text goes there and back.
    let norm = checkpoint.weight(Part::OutputNorm)?;
    norm.format.decode(norm.bytes, |_| ());
    let ids = tokenizer.encode("a b\u{e9}1")?;
    tokenizer.decode(&ids);
    Ok((checkpoint, tokenizer))
}

/// Reads all tensors of a safetensors file.
pub fn safetensors(bytes: Vec<u8>) -> Result<SafetensorsFile, Error> {
    let file = SafetensorsFile::new(Path::new("model.safetensors"), Bytes::Owned(bytes))?;
    for name in file.names() {
        let weight = file.find(name)?.expect("a name that the file itself gave");
        weight.format.decode(weight.bytes, |_| ());
    }
    Ok(file)
}
