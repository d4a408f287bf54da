//! Writes small GGUF files: a Llama model with one layer, hidden 32, and a vocabulary of bytes.

/// A GGUF file to be: what is written can be changed first.
#[derive(Clone)]
pub struct Builder {
    pub version: u32,
    pub metadata: Vec<(String, Value)>,
    pub tensors: Vec<Tensor>,
}

/// A metadata value.
#[derive(Clone)]
pub enum Value {
    U32(u32),
    F32(f32),
    Bool(bool),
    Str(String),
    Strs(Vec<String>),
    I32s(Vec<i32>),
    /// Type number and bytes, written as they are.
    Raw(u32, Vec<u8>),
}

/// A tensor; `dims` in GGUF's order, the fastest first.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub type_number: u32,
    pub data: Vec<u8>,
    /// Written as its offset, instead of the one of its data.
    pub offset: Option<u64>,
}

const ALIGNMENT: usize = 32;

/// The model's sizes.
pub const HIDDEN: usize = 32;
pub const INTERMEDIATE: usize = 64;
pub const HEADS: usize = 2;
pub const KV_HEADS: usize = 1;
pub const HEAD_DIM: usize = 16;

impl Builder {
    /// A valid model: Q4_0 and Q8_0 matrices, f32 norms, tied embedding.
    pub fn model() -> Builder {
        let tokens = vocabulary();
        let vocab = tokens.len();
        let mut types = vec![1; vocab];
        types[vocab - 2..].fill(3);
        let metadata = [
            ("general.architecture", Value::Str("llama".into())),
            ("llama.block_count", Value::U32(1)),
            ("llama.context_length", Value::U32(64)),
            ("llama.embedding_length", Value::U32(HIDDEN as u32)),
            ("llama.feed_forward_length", Value::U32(INTERMEDIATE as u32)),
            ("llama.attention.head_count", Value::U32(HEADS as u32)),
            ("llama.attention.head_count_kv", Value::U32(KV_HEADS as u32)),
            ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
            ("llama.rope.freq_base", Value::F32(1e4)),
            ("llama.vocab_size", Value::U32(vocab as u32)),
            ("tokenizer.ggml.model", Value::Str("gpt2".into())),
            ("tokenizer.ggml.pre", Value::Str("smollm".into())),
            ("tokenizer.ggml.tokens", Value::Strs(tokens)),
            ("tokenizer.ggml.token_type", Value::I32s(types)),
            ("tokenizer.ggml.merges", Value::Strs(vec!["a b".into(), "ab c".into()])),
            ("tokenizer.ggml.add_bos_token", Value::Bool(false)),
            ("tokenizer.ggml.bos_token_id", Value::U32(vocab as u32 - 2)),
            ("tokenizer.ggml.eos_token_id", Value::U32(vocab as u32 - 1)),
            ("tokenizer.chat_template", Value::Str("{{ messages[0].content }}<|im_end|>".into())),
        ];
        let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        let tensors = [
            tensor("token_embd.weight", &[vocab, HIDDEN], 8),
            tensor("blk.0.attn_norm.weight", &[HIDDEN], 0),
            tensor("blk.0.attn_q.weight", &[q, HIDDEN], 2),
            tensor("blk.0.attn_k.weight", &[kv, HIDDEN], 2),
            tensor("blk.0.attn_v.weight", &[kv, HIDDEN], 2),
            tensor("blk.0.attn_output.weight", &[HIDDEN, q], 2),
            tensor("blk.0.ffn_norm.weight", &[HIDDEN], 0),
            tensor("blk.0.ffn_gate.weight", &[INTERMEDIATE, HIDDEN], 3),
            tensor("blk.0.ffn_up.weight", &[INTERMEDIATE, HIDDEN], 3),
            tensor("blk.0.ffn_down.weight", &[HIDDEN, INTERMEDIATE], 3),
            tensor("output_norm.weight", &[HIDDEN], 0),
        ];
        Builder {
            version: 3,
            metadata: metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            tensors: tensors.into(),
        }
    }

    /// Replaces a metadata value.
    pub fn set(mut self, key: &str, value: Value) -> Builder {
        let entry = self.metadata.iter_mut().find(|(k, _)| k == key);
        entry.unwrap_or_else(|| panic!("no {key}")).1 = value;
        self
    }

    /// Adds a metadata value.
    pub fn with(mut self, key: &str, value: Value) -> Builder {
        self.metadata.push((key.to_owned(), value));
        self
    }

    /// Without a metadata value.
    pub fn without(mut self, key: &str) -> Builder {
        self.metadata.retain(|(k, _)| k != key);
        self
    }

    /// Adds an f32 tensor of a row-major shape.
    pub fn with_tensor(mut self, name: &str, shape: &[usize]) -> Builder {
        self.tensors.push(tensor(name, shape, 0));
        self
    }

    /// The tensor of that name.
    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// The file.
    pub fn build(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_string(&mut out, key);
            value.put(&mut out);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            put_string(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.type_number.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(offset as u64).to_le_bytes());
            offset += tensor.data.len().next_multiple_of(ALIGNMENT);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            out.extend(&tensor.data);
        }
        out
    }
}

impl Value {
    fn put(&self, out: &mut Vec<u8>) {
        let mut typed = |number: u32, bytes: &[u8]| {
            out.extend(number.to_le_bytes());
            out.extend(bytes);
        };
        match self {
            Value::U32(n) => typed(4, &n.to_le_bytes()),
            Value::F32(x) => typed(6, &x.to_le_bytes()),
            Value::Bool(b) => typed(7, &[u8::from(*b)]),
            Value::Str(s) => {
                typed(8, &[]);
                put_string(out, s);
            }
            Value::Strs(strings) => {
                typed(9, &8u32.to_le_bytes());
                out.extend((strings.len() as u64).to_le_bytes());
                strings.iter().for_each(|s| put_string(out, s));
            }
            Value::I32s(numbers) => {
                typed(9, &5u32.to_le_bytes());
                out.extend((numbers.len() as u64).to_le_bytes());
                numbers.iter().for_each(|n| out.extend(n.to_le_bytes()));
            }
            Value::Raw(number, bytes) => typed(*number, bytes),
        }
    }
}

fn put_string(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

/// A tensor of a row-major shape; its content is a pattern of small numbers.
fn tensor(name: &str, shape: &[usize], type_number: u32) -> Tensor {
    let n: usize = shape.iter().product();
    let bytes = match type_number {
        0 => (0..n).flat_map(|i| (1.0 + i as f32 / 64.0).to_le_bytes()).collect(),
        2 | 3 | 8 => {
            let header = if type_number == 3 { 2 } else { 1 };
            let codes = if type_number == 8 { 32 } else { 16 };
            let block = |b: usize| {
                // The scale, and the minimum, are 2^-5 as an f16.
                let scales = std::iter::repeat_n(0x2800u16.to_le_bytes(), header).flatten();
                scales.chain((0..codes).map(move |i| ((b + i) % 200) as u8)).collect::<Vec<_>>()
            };
            (0..n / 32).flat_map(block).collect()
        }
        other => panic!("type {other} is not written here"),
    };
    Tensor {
        name: name.into(),
        dims: shape.iter().rev().map(|&d| d as u64).collect(),
        type_number,
        data: bytes,
        offset: None,
    }
}

/// All bytes in GPT-2's alphabet, two merged tokens, two special ones.
fn vocabulary() -> Vec<String> {
    let printable = |b: u32| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut others = 0x100..;
    let character = |b| char::from_u32(if printable(b) { b } else { others.next().unwrap() }).unwrap();
    let mut tokens: Vec<_> = (0..256).map(character).map(String::from).collect();
    tokens.extend(["ab", "abc", "<|im_start|>", "<|im_end|>"].map(String::from));
    tokens
}
