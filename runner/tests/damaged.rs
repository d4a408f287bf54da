//! Files by strangers: each kind of damage is an error of one line that names file and field; thousands of random ones give no panic, and no
//! allocation that the file's size does not justify.

mod common;

use cap::Cap;
use common::gguf::{Builder, HEAD_DIM, HEADS, HIDDEN, INTERMEDIATE, KV_HEADS, Value};
use common::open;
use expect_test::{Expect, expect};
use tegula_runner::config::Scaling;
use tegula_runner::weights::{SafetensorsFile, WeightSource};
use tegula_runner::{Checkpoint, Error, ModelWeights, Part, Tokenizer};

/// Every allocation of this program goes through here: past the limit the program aborts.
#[global_allocator]
static ALLOCATOR: Cap<std::alloc::System> = Cap::new(std::alloc::System, 256 << 20);

fn check(result: Result<impl Sized, Error>, expected: Expect) {
    let error = result.err().expect("no error");
    assert_eq!(error.exit_code(), 2);
    let line = error.to_string();
    assert!(!line.contains('\n'), "{line}");
    expected.assert_eq(&line);
}

fn gguf(builder: Builder) -> Result<impl Sized, Error> {
    open::gguf(builder.build())
}

#[test]
fn the_undamaged_model_is_accepted() {
    let (checkpoint, tokenizer) = open::gguf(Builder::model().build()).unwrap();
    assert_eq!(checkpoint.config().head_dim, 16);
    // `abc` is merged, digits stand alone, a special token is one token.
    let ids = tokenizer.encode("abc12<|im_end|>").unwrap();
    let tokens: Vec<_> = ids.iter().map(|&id| tokenizer.token(id).unwrap()).collect();
    assert_eq!(tokens, ["abc", "1", "2", "<|im_end|>"]);
    assert_eq!(tokenizer.decode(&ids), "abc12");
    assert_eq!(tokenizer.stops(), [259]);
}

#[test]
fn not_a_gguf_file() {
    check(
        open::gguf(b"PK\x03\x04 and so on".to_vec()),
        expect!["model.gguf: the first four bytes: are not `GGUF`: this is no GGUF file"],
    );
    check(
        open::gguf(Vec::new()),
        expect!["model.gguf: the first four bytes: are not `GGUF`: this is no GGUF file"],
    );
    check(
        gguf(Builder { version: 4, ..Builder::model() }),
        expect!["model.gguf: the version: is 4; known are 2 and 3"],
    );
    check(
        gguf(Builder { version: 3u32.swap_bytes(), ..Builder::model() }),
        expect![
            "model.gguf: the version: is big endian, which is not supported: convert the file to little endian"
        ],
    );
}

#[test]
fn truncated_files() {
    let whole = Builder::model().build();
    check(
        open::gguf(whole[..whole.len() - 1].to_vec()),
        expect![
            "model.gguf: tensor `output_norm.weight`: F32 of shape [32] takes 128 bytes at offset 14688 of the data, past the end of the file (19903 bytes): it is truncated, fetch it again"
        ],
    );
    check(
        open::gguf(whole[..1000].to_vec()),
        expect![
            "model.gguf: metadata `tokenizer.ggml.tokens`: says 260 elements, more than the 441 bytes left can hold: the file is damaged or truncated"
        ],
    );
    check(
        open::gguf(whole[..6].to_vec()),
        expect![
            "model.gguf: the version: needs 4 bytes at byte 4, but the file ends at byte 6: it is damaged or truncated, fetch it again"
        ],
    );
    // Wherever it ends, it is an error, and never a panic.
    for end in 0..whole.len() {
        assert!(open::gguf(whole[..end].to_vec()).is_err(), "{end}");
    }
}

#[test]
fn length_fields_of_four_gigabytes() {
    let four_gb = (4u64 << 30).to_le_bytes();
    let string = Value::Raw(8, four_gb.to_vec());
    check(
        gguf(Builder::model().set("general.architecture", string)),
        expect![
            "model.gguf: metadata `general.architecture`: needs 4294967296 bytes at byte 64, but the file ends at byte 19904: it is damaged or truncated, fetch it again"
        ],
    );
    let array = |element: u32| Value::Raw(9, [&element.to_le_bytes()[..], &four_gb].concat());
    check(
        gguf(Builder::model().set("tokenizer.ggml.merges", array(8))),
        expect![
            "model.gguf: metadata `tokenizer.ggml.merges`: says 4294967296 elements, more than the 15686 bytes left can hold: the file is damaged or truncated"
        ],
    );
    check(
        gguf(Builder::model().set("tokenizer.ggml.token_type", array(5))),
        expect![
            "model.gguf: metadata `tokenizer.ggml.token_type`: says 4294967296 elements, more than the 15747 bytes left can hold: the file is damaged or truncated"
        ],
    );
    check(
        gguf(Builder::model().set("tokenizer.ggml.token_type", array(9))),
        expect![
            "model.gguf: metadata `tokenizer.ggml.token_type`: says 4294967296 elements, more than the 15747 bytes left can hold: the file is damaged or truncated"
        ],
    );
    let mut file = Builder::model().build();
    file[8..16].copy_from_slice(&four_gb);
    check(
        open::gguf(file.clone()),
        expect![
            "model.gguf: the number of tensors: says 4294967296 tensors, more than the 19888 bytes left can hold: the file is damaged or truncated"
        ],
    );
    file[8..16].copy_from_slice(&11u64.to_le_bytes());
    file[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    check(
        open::gguf(file),
        expect![
            "model.gguf: the number of metadata entries: says 18446744073709551615 entries, more than the 19880 bytes left can hold: the file is damaged or truncated"
        ],
    );
}

#[test]
fn arrays_nested_without_end() {
    let level = [9u32.to_le_bytes().as_slice(), &1u64.to_le_bytes()].concat();
    let value = Value::Raw(9, level.repeat(100_000));
    check(
        gguf(Builder::model().set("tokenizer.ggml.token_type", value)),
        expect![
            "model.gguf: metadata `tokenizer.ggml.token_type`: arrays nested deeper than 4: the file is damaged"
        ],
    );
}

#[test]
fn tensors_that_do_not_fit() {
    let mut model = Builder::model();
    model.tensor("blk.0.attn_q.weight").dims = vec![16, 64];
    check(
        gguf(model),
        expect![
            "model.gguf: tensor `blk.0.attn_q.weight`: shape [64, 16] is impossible for Q4_0: the file is damaged"
        ],
    );
    let mut model = Builder::model();
    model.tensor("blk.0.attn_q.weight").dims = vec![64, 16];
    check(
        gguf(model),
        expect![
            "model.gguf: tensor `blk.0.attn_q.weight`: has shape [16, 64], but the model's config asks for [32, 32] (heads · head width, hidden)"
        ],
    );
    let mut model = Builder::model();
    model.tensor("blk.0.ffn_up.weight").type_number = 14;
    check(
        gguf(model),
        expect![
            "model.gguf: tensor `blk.0.ffn_up.weight`: unknown quant type Q6_K; known are F32, F16, BF16, Q4_0, Q4_1, Q8_0: use a file quantised to one of these"
        ],
    );
    let mut model = Builder::model();
    model.tensor("blk.0.ffn_up.weight").type_number = 12345;
    check(
        gguf(model),
        expect![
            "model.gguf: tensor `blk.0.ffn_up.weight`: unknown quant type number 12345; known are F32, F16, BF16, Q4_0, Q4_1, Q8_0: use a file quantised to one of these"
        ],
    );
    let mut model = Builder::model();
    model.tensors.retain(|tensor| tensor.name != "blk.0.attn_v.weight");
    check(
        gguf(model),
        expect![
            "model.gguf: tensor `blk.0.attn_v.weight`: is missing: the file is incomplete, or of another kind of model"
        ],
    );
    let mut model = Builder::model();
    model.tensor("output_norm.weight").dims = vec![1 << 40, 1 << 40];
    check(
        gguf(model),
        expect![
            "model.gguf: tensor `output_norm.weight`: shape [1099511627776, 1099511627776] is impossible for F32: the file is damaged"
        ],
    );
    let mut model = Builder::model();
    model.tensor("output_norm.weight").name = "blk.0.attn_norm.weight".into();
    check(
        gguf(model),
        expect!["model.gguf: tensor `blk.0.attn_norm.weight`: is there twice: the file is damaged"],
    );
}

#[test]
fn metadata_that_does_not_fit() {
    let with = |key, value| gguf(Builder::model().set(key, value));
    check(
        with("general.architecture", Value::Str("mamba\n".into())),
        expect![[
            r#"model.gguf: metadata `general.architecture`: `mamba\n` is not supported; supported are llama, qwen2"#
        ]],
    );
    check(
        with("llama.block_count", Value::U32(u32::MAX)),
        expect!["model.gguf: metadata `llama.block_count`: is 4294967295, not in 1..=4096"],
    );
    check(
        with("llama.block_count", Value::F32(1.0)),
        expect!["model.gguf: metadata `llama.block_count`: is not an unsigned number"],
    );
    check(
        with("llama.attention.head_count", Value::U32(3)),
        expect![
            "model.gguf: metadata `llama.attention.head_count`: is 3, which does not divide 32, and there is no `llama.attention.key_length`"
        ],
    );
    check(
        with("llama.attention.head_count", Value::U32(0)),
        expect![
            "model.gguf: metadata `llama.attention.head_count`: is 0, which does not divide 32, and there is no `llama.attention.key_length`"
        ],
    );
    check(
        with("llama.rope.freq_base", Value::F32(f32::NAN)),
        expect!["model.gguf: metadata `llama.rope.freq_base`: is NaN, not a number above 1"],
    );
    check(
        with("llama.vocab_size", Value::U32(16)),
        expect![
            "model.gguf: tensor `token_embd.weight`: has shape [260, 32], but the model's config asks for [16, 32] (vocabulary, hidden)"
        ],
    );
    check(
        with("tokenizer.ggml.model", Value::Str("bert".into())),
        expect![
            "model.gguf: metadata `tokenizer.ggml.model`: `bert` is not supported; supported is gpt2 (byte-level BPE)"
        ],
    );
    check(
        with("tokenizer.ggml.pre", Value::Str("gpt-17".into())),
        expect![
            "model.gguf: metadata `tokenizer.ggml.pre`: `gpt-17` is not supported; supported are gpt-2, smollm, llama-bpe, qwen2"
        ],
    );
    check(
        with("tokenizer.ggml.merges", Value::Strs(vec!["x yz".into()])),
        expect!["model.gguf: metadata `tokenizer.ggml.merges`: `x yz` needs the token `yz`, which is absent"],
    );
    // Longer than any token that there is.
    check(
        with("tokenizer.ggml.merges", Value::Strs(vec!["<|im_end|> <|im_end|>".into()])),
        expect![
            "model.gguf: metadata `tokenizer.ggml.merges`: `<|im_end|> <|im_end|>` needs the token `<|im_end|><|im_end|>`, which is absent"
        ],
    );
    check(
        with("tokenizer.ggml.tokens", Value::Strs(vec!["a".into(), "a".into()])),
        expect!["model.gguf: metadata `tokenizer.ggml.tokens`: has `a` twice"],
    );
    check(
        with("tokenizer.ggml.eos_token_id", Value::U32(260)),
        expect!["model.gguf: metadata `tokenizer.ggml.eos_token_id`: is 260, but there are 260 tokens"],
    );
    let mut model = Builder::model();
    model.metadata.push(("llama.block_count".into(), Value::U32(1)));
    check(
        gguf(model),
        expect!["model.gguf: metadata `llama.block_count`: is there twice: the file is damaged"],
    );
    let mut model = Builder::model();
    model.metadata.push(("general.alignment".into(), Value::U32(0)));
    check(gguf(model), expect!["model.gguf: metadata `general.alignment`: is not a power of two"]);
    let mut model = Builder::model();
    model.metadata.retain(|(key, _)| key != "llama.embedding_length");
    check(gguf(model), expect!["model.gguf: metadata `llama.embedding_length`: is missing"]);
}

#[test]
fn biases_are_those_of_queries_keys_and_values() {
    let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
    let biased = Builder::model()
        .with_tensor("blk.0.attn_q.bias", &[q])
        .with_tensor("blk.0.attn_k.bias", &[kv])
        .with_tensor("blk.0.attn_v.bias", &[kv]);
    assert!(!open::gguf(Builder::model().build()).unwrap().0.config().qkv_bias);
    assert!(open::gguf(biased.build()).unwrap().0.config().qkv_bias);
    check(
        gguf(Builder::model().with_tensor("blk.0.attn_k.bias", &[kv])),
        expect![
            "model.gguf: tensor `blk.0.attn_q.bias`: is missing: the file is incomplete, or of another kind of model"
        ],
    );
    check(
        gguf(biased.clone().with_tensor("blk.0.attn_output.bias", &[HIDDEN])),
        expect![
            "model.gguf: tensor `blk.0.attn_output.bias`: is not supported: of biases, only those of Q, K and V are"
        ],
    );
    check(
        gguf(biased.with_tensor("blk.0.ffn_up.bias", &[INTERMEDIATE])),
        expect![
            "model.gguf: tensor `blk.0.ffn_up.bias`: is not supported: of biases, only those of Q, K and V are"
        ],
    );
}

#[test]
fn scaling_of_rotary_frequencies_is_read_as_llama_cpp_does() {
    let scaling = |model: Builder| open::gguf(model.build()).unwrap().0.config().rope.scaling.clone();
    let (factor, old) = ("llama.rope.scaling.factor", "llama.rope.scale_linear");
    let kind = |kind: &str| Builder::model().with("llama.rope.scaling.type", Value::Str(kind.into()));
    assert_eq!(scaling(Builder::model()), Scaling::None);
    assert_eq!(scaling(Builder::model().with(factor, Value::F32(4.0))), Scaling::Linear(4.0));
    assert_eq!(scaling(Builder::model().with(old, Value::F32(2.0))), Scaling::Linear(2.0));
    assert_eq!(scaling(Builder::model().with(factor, Value::F32(0.0))), Scaling::None);
    assert_eq!(scaling(kind("linear").with(factor, Value::F32(4.0))), Scaling::Linear(4.0));
    assert_eq!(scaling(kind("none").with(factor, Value::F32(4.0))), Scaling::None);
    check(gguf(kind("linear")), expect!["model.gguf: metadata `llama.rope.scaling.factor`: is missing"]);
    check(
        gguf(kind("yarn").with(factor, Value::F32(4.0))),
        expect![
            "model.gguf: metadata `llama.rope.scaling.type`: `yarn` is not supported; supported are none, linear"
        ],
    );
}

#[test]
fn what_the_name_of_the_pre_tokenizer_implies() {
    const PRE: &str = "tokenizer.ggml.pre";
    let ids = |model: Builder| open::gguf(model.build()).unwrap().1.encode("abc").unwrap();
    let unsaid = Builder::model().without("tokenizer.ggml.add_bos_token");
    assert_eq!(ids(unsaid.clone()), [257]);
    // Llama 3's texts begin with BOS, unless the file says otherwise.
    let llama3 = Value::Str("llama-bpe".into());
    assert_eq!(ids(unsaid.set(PRE, llama3.clone())), [258, 257]);
    assert_eq!(ids(Builder::model().set(PRE, llama3)), [257]);
    check(
        gguf(Builder::model().set(PRE, Value::Str("default".into()))),
        expect![
            "model.gguf: metadata `tokenizer.ggml.pre`: `default` is not supported; supported are gpt-2, smollm, llama-bpe, qwen2"
        ],
    );
    check(
        gguf(Builder::model().without(PRE)),
        expect![
            "model.gguf: metadata `tokenizer.ggml.pre`: is missing: how text is split is not known, convert the model anew"
        ],
    );
}

/// A safetensors file with this header over this many bytes of data.
fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data, 0);
    file
}

const HEADER: &str = r#"{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}}"#;

#[test]
fn damaged_safetensors() {
    assert!(open::safetensors(safetensors(HEADER, 32)).is_ok());
    let whole = safetensors(HEADER, 32);
    check(
        open::safetensors(whole[..5].to_vec()),
        expect!["model.safetensors: the header's length: the file is shorter than that: it is truncated"],
    );
    check(
        open::safetensors(whole[..50].to_vec()),
        expect![
            "model.safetensors: the header's length: is 113, but only 42 bytes follow: no safetensors file, or damaged or truncated"
        ],
    );
    check(
        open::safetensors(whole[..whole.len() - 1].to_vec()),
        expect![
            "model.safetensors: the data: 144 bytes after the header's length do not fit the header: the file is truncated, fetch it again"
        ],
    );
    let mut long = whole.clone();
    long[..8].copy_from_slice(&(4u64 << 30).to_le_bytes());
    check(
        open::safetensors(long),
        expect![
            "model.safetensors: the header's length: is 4294967296, but only 145 bytes follow: no safetensors file, or damaged or truncated"
        ],
    );
    check(
        open::safetensors(safetensors(&HEADER.replace("[2,3]", "[2,4]"), 32)),
        expect![
            "model.safetensors: tensor `a`: F32 of shape [2, 4] does not fit its 24 bytes: the file is damaged"
        ],
    );
    // An extent of 2^63, whose product with the others is none.
    check(
        open::safetensors(safetensors(&HEADER.replace("[4]", "[9223372036854775808,4]"), 32)),
        expect![
            "model.safetensors: tensor `b`: BF16 of shape [9223372036854775808, 4] does not fit its 8 bytes: the file is damaged"
        ],
    );
    check(
        open::safetensors(safetensors(&HEADER.replace("BF16", "I16"), 32)),
        expect![
            "model.safetensors: tensor `b`: unknown quant type I16; known in safetensors are F32, F16, BF16"
        ],
    );
    check(
        open::safetensors(safetensors(&HEADER.replace("[24,32]", "[16,24]"), 32)),
        expect!["model.safetensors: tensor `b`: its place is wrong: the file is damaged"],
    );
    check(
        open::safetensors(safetensors("not JSON\n\n", 32)),
        expect!["model.safetensors: the header: invalid JSON in header: expected ident at line 1 column 2"],
    );
}

#[test]
fn safetensors_of_nearly_all_addresses() {
    // Each tensor is as large as a number of bits can say, and all together end below 2^64: no size overflows, but for their sum with
    // the header's.
    let bytes = usize::MAX / 8;
    let tensor = |i: usize| {
        let (start, end) = (i * bytes, (i + 1) * bytes);
        format!(r#""{i}":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[{start},{end}]}}"#)
    };
    let header = format!("{{{}}}", (0..8).map(tensor).collect::<Vec<_>>().join(","));
    check(
        open::safetensors(safetensors(&header, 32)),
        expect![
            "model.safetensors: the data: 870 bytes after the header's length do not fit the header: the file is truncated, fetch it again"
        ],
    );
}

/// Numbers that are the same on every machine: SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Changes a file in one to four places: a bit, a byte, a length, a part cut out, copied or moved.
fn mutate(file: &mut Vec<u8>, random: &mut Random) {
    // Most of the file is weights, which may be anything: changes are mostly in front of them.
    let place = |random: &mut Random, len: usize| {
        let len = if random.below(4) > 0 { len.min(7000) } else { len };
        random.below(len)
    };
    for _ in 0..1 + random.below(4) {
        let at = place(random, file.len());
        match random.below(6) {
            0 => file[at] ^= 1 << random.below(8),
            1 => file[at] = [0, 1, 0x7F, 0x80, 0xFF][random.below(5)],
            2 | 3 => {
                let lengths = [0, 1, 32, 0xFFFF, 1 << 31, 1 << 32, 1 << 62, 1 << 63, u64::MAX - 7, u64::MAX];
                let length = lengths[random.below(lengths.len())].to_le_bytes();
                let n = if random.below(2) == 0 { 4 } else { 8 };
                file[at..].iter_mut().zip(&length[..n]).for_each(|(byte, new)| *byte = *new);
            }
            4 => {
                let end = (at + 1 + random.below(40)).min(file.len());
                let part: Vec<_> = file.drain(at..end).collect();
                let to = random.below(file.len() + 1);
                if random.below(2) == 0 {
                    file.splice(to..to, part);
                }
            }
            _ => file.truncate((at + 1).max(file.len() - file.len() / 8)),
        }
        if file.is_empty() {
            return;
        }
    }
}

fn survive(whole: &[u8], times: usize, open: impl Fn(Vec<u8>) -> Result<(), Error>) {
    let mut random = Random(2026);
    let (mut accepted, mut refused) = (0, 0);
    // What the tests beside this one hold at the moment is small against the limit.
    ALLOCATOR.set_limit(64 << 20).unwrap();
    for _ in 0..times {
        let mut file = whole.to_vec();
        mutate(&mut file, &mut random);
        match open(file) {
            Ok(()) => accepted += 1,
            Err(error) => {
                let line = error.to_string();
                assert!(!line.contains('\n') && line.len() < 1000, "{line}");
                refused += 1;
            }
        }
    }
    // If nearly all or nearly none were refused, the mutations would not be worth their time.
    assert!(accepted > times / 100 && refused > times / 10, "{accepted} accepted, {refused} refused");
}

#[test]
fn thousands_of_mutated_gguf_files_do_no_harm() {
    survive(&Builder::model().build(), 4000, |file| open::gguf(file).map(drop));
}

#[test]
fn thousands_of_mutated_safetensors_files_do_no_harm() {
    survive(&safetensors(HEADER, 32), 20_000, |file| open::safetensors(file).map(drop));
}

/// The files that `fuzz/` starts from: `TEGULA_FUZZ_SEEDS=fuzz/corpus cargo test -p tegula-runner --test damaged seeds`.
#[test]
fn seeds_for_the_fuzz_targets_are_valid() {
    let seeds = [("gguf", Builder::model().build()), ("safetensors", safetensors(HEADER, 32))];
    assert!(open::gguf(seeds[0].1.clone()).is_ok() && open::safetensors(seeds[1].1.clone()).is_ok());
    if let Some(folder) = std::env::var_os("TEGULA_FUZZ_SEEDS") {
        for (target, seed) in seeds {
            let folder = std::path::Path::new(&folder).join(target);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("valid"), seed).unwrap();
        }
    }
}

#[test]
fn tensors_that_share_their_bytes() {
    let mut model = Builder::model();
    model.tensor("blk.0.ffn_up.weight").offset = Some(0);
    check(
        gguf(model),
        expect![
            "model.gguf: tensor `token_embd.weight`: shares bytes with tensor `blk.0.ffn_up.weight`: the file is damaged"
        ],
    );
}

#[test]
fn what_would_change_the_result_and_is_not_followed() {
    let mut model = Builder::model();
    let mut norm = model.tensor("blk.0.attn_norm.weight").clone();
    norm.name = "blk.0.attn_q_norm.weight".into();
    model.tensors.push(norm);
    check(
        gguf(model),
        expect![
            "model.gguf: tensor `blk.0.attn_q_norm.weight`: is no part of the models that are supported: without it the result would be wrong"
        ],
    );
    let with = |key: &str, value: f32| {
        let mut model = Builder::model();
        model.metadata.push((key.to_owned(), Value::F32(value)));
        gguf(model)
    };
    check(
        with("llama.expert_count", 8.0),
        expect!["model.gguf: metadata `llama.expert_count`: is 8, which is not supported"],
    );
    check(
        with("llama.attention.sliding_window", 8.0),
        expect!["model.gguf: metadata `llama.attention.sliding_window`: is 8, which is not supported"],
    );
    check(
        with("llama.logit_scale", 0.5),
        expect!["model.gguf: metadata `llama.logit_scale`: is 0.5, which is not supported"],
    );
    check(
        with("llama.residual_scale", 0.5),
        expect!["model.gguf: metadata `llama.residual_scale`: is 0.5, which is not supported"],
    );
    // Values that change nothing.
    for (key, value) in
        [("llama.expert_count", 0.0), ("llama.logit_scale", 1.0), ("llama.attention.sliding_window", 64.0)]
    {
        assert!(with(key, value).is_ok(), "{key}");
    }
}

/// Of a folder with this `tokenizer.json`: a vocabulary of letters, and one more field.
fn tokenizer_json(field: &str) -> Result<Tokenizer, Error> {
    let folder = tempfile::tempdir().unwrap();
    let letters: Vec<_> = ('a'..='z').enumerate().map(|(id, c)| format!("\"{c}\": {id}")).collect();
    let json = format!(
        r#"{{"version": "1.0", {field}, "added_tokens": [], "model": {{"type": "BPE", "vocab": {{{}}}, "merges": []}}}}"#,
        letters.join(", ")
    );
    std::fs::write(folder.path().join("tokenizer.json"), json).unwrap();
    Tokenizer::of_folder(folder.path(), &[])
}

#[test]
fn prompts_are_neither_cut_nor_filled() {
    let whole = [7, 4, 11, 11, 14];
    for field in [
        // The first made the crate panic.
        r#""truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 5}"#,
        r#""truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}"#,
        r#""padding": {"strategy": {"Fixed": 10000000000}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 7,
                       "pad_type_id": 0, "pad_token": "x"}"#,
    ] {
        let tokenizer = tokenizer_json(field).unwrap_or_else(|error| panic!("{field}: {error}"));
        assert_eq!(tokenizer.encode("hello").unwrap(), whole, "{field}");
    }
}

#[test]
fn tokenizers_that_would_take_all_memory() {
    // Offsets of a table that point far behind its end made the crate panic; a wrong length makes it allocate.
    let table = r#""normalizer": {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8="}"#;
    let line = tokenizer_json(table).err().expect("no error").to_string();
    assert!(line.ends_with(
        "tokenizer.json: `normalizer`: `Precompiled` is not supported: models of the Llama family have no such step"
    ), "{line}");
    let steps = [r#"{"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"}"#; 6].join(",");
    let field = format!(r#""normalizer": {{"type": "Sequence", "normalizers": [{steps}]}}"#);
    check(
        tokenizer_json(&field).unwrap().encode(&"a".repeat(40)),
        expect!["the prompt: has 40 bytes, which the tokenizer can turn into 40000000, more than 33554432"],
    );
}

/// In a file that is shortened, the system ends whoever reads the pages that are gone.
#[test]
fn files_that_change_while_they_are_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    // Several pages, the last of which go.
    let mut model = Builder::model();
    model.metadata.push(("filler".into(), Value::Str("x".repeat(100_000))));
    let shorten = |path: &std::path::Path| {
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(5000).unwrap();
    };
    std::fs::write(&path, model.build()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    checkpoint.verify().unwrap();
    shorten(&path);
    let plain = |result: Result<(), Error>| {
        let line = result.expect_err("no error").to_string();
        line.replace(folder.path().to_str().unwrap(), "").replace(std::path::MAIN_SEPARATOR, "")
    };
    let shortened = "model.gguf: the file: was shortened from 119936 to 5000 bytes while it was being read";
    assert_eq!(plain(checkpoint.weight(Part::OutputNorm).map(|_| ())), shortened);
    assert_eq!(plain(checkpoint.tokenizer().map(|_| ())), shortened);

    let path = folder.path().join("model.safetensors");
    let header = r#"{"a": {"dtype": "F32", "shape": [5000], "data_offsets": [0, 20000]}}"#;
    std::fs::write(&path, safetensors(header, 20_000)).unwrap();
    let file = SafetensorsFile::open(&path).unwrap();
    assert!(file.find("a").unwrap().is_some());
    shorten(&path);
    let shortened =
        "model.safetensors: the file: was shortened from 20076 to 5000 bytes while it was being read";
    assert_eq!(plain(file.find("a").map(|_| ())), shortened);
}
