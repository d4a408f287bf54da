//! Models as dimensions: what stands in `shapes/*.toml`, and the matrices that follow from it.

use std::path::Path;

use serde::Deserialize;

use crate::Problem;

/// A decoder's dimensions, as its config file has them. From these everything else follows.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Elements of a token's vector.
    pub hidden: usize,
    /// Width of the gated MLP; 0: all layers have experts instead.
    #[serde(default)]
    pub intermediate: usize,
    /// Layers: how often a shape occurs in a step.
    pub layers: usize,
    /// Tokens that there are.
    pub vocab: usize,
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Elements of a query and a key of a head.
    pub head_dim: usize,
    /// Are queries and keys normalised, head by head?
    #[serde(default)]
    pub qk_norm: bool,
    /// Keys that a query of a windowed layer sees.
    pub window: Option<usize>,
    /// A mixture of experts.
    pub experts: Option<Experts>,
    /// Multi-head latent attention.
    pub latent: Option<Latent>,
}

/// Experts, of which each token meets a few.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many a token meets.
    pub active: usize,
    /// Width of one's gated MLP.
    pub intermediate: usize,
}

/// The ranks of multi-head latent attention (DeepSeek-V2, 2024, section 2.1).
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Latent {
    /// Rank of the queries.
    pub query_rank: usize,
    /// Rank of keys and values together: what the cache holds.
    pub kv_rank: usize,
    /// Elements of a head that are rotated, of which keys have one head for all.
    pub rope_dim: usize,
    /// Elements of a value of a head.
    pub value_dim: usize,
}

/// Weights of a layer: `n` rows of `k`, K-major as the kernel library takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// What they are.
    pub name: &'static str,
    /// Columns of the result.
    pub n: usize,
    /// The depth of the sums.
    pub k: usize,
    /// Of so many tokens, each is multiplied with as many experts' share: `None` for what every token meets.
    pub share: Option<(usize, usize)>,
}

/// The models that come with the tool: name and text.
pub const MODELS: &[(&str, &str)] = &[
    ("deepseek-v3", include_str!("../../shapes/deepseek-v3.toml")),
    ("gpt-oss-120b", include_str!("../../shapes/gpt-oss-120b.toml")),
    ("llama3-70b", include_str!("../../shapes/llama3-70b.toml")),
    ("llama3-8b", include_str!("../../shapes/llama3-8b.toml")),
    ("qwen2.5-7b", include_str!("../../shapes/qwen2.5-7b.toml")),
    ("qwen3-30b-a3b", include_str!("../../shapes/qwen3-30b-a3b.toml")),
    ("qwen3-8b", include_str!("../../shapes/qwen3-8b.toml")),
    ("smollm2-135m", include_str!("../../shapes/smollm2-135m.toml")),
];

impl Model {
    /// One of [`MODELS`] by name, or a file.
    ///
    /// # Errors
    /// A name that is neither; and what [`Model::parse`] says of the file.
    pub fn load(name: &str) -> Result<Model, Problem> {
        if let Some((_, text)) = MODELS.iter().find(|(known, _)| *known == name) {
            return Model::parse(&format!("shapes/{name}.toml"), text);
        }
        if !Path::new(name).exists() {
            let known: Vec<&str> = MODELS.iter().map(|(name, _)| *name).collect();
            return Err(Problem::whole(
                name,
                format!("no such file, and no model that is known: {}", known.join(", ")),
            ));
        }
        let text = std::fs::read_to_string(name).map_err(|e| Problem::whole(name, e))?;
        Model::parse(name, &text)
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// What is wrong, with file and line: TOML that is none, fields that are missing or unknown, dimensions that do not fit each other.
    pub fn parse(file: &str, text: &str) -> Result<Model, Problem> {
        let model: Model = toml::from_str(text).map_err(|e| Problem::toml(file, text, &e))?;
        let at = |field: &str, reason: String| Problem {
            file: file.to_owned(),
            line: line_of(text, field),
            reason,
        };
        for (field, extent) in [
            ("hidden", model.hidden),
            ("layers", model.layers),
            ("vocab", model.vocab),
            ("heads", model.heads),
            ("kv_heads", model.kv_heads),
            ("head_dim", model.head_dim),
        ] {
            if extent == 0 || extent > 1 << 24 {
                return Err(at(field, format!("`{field}` is {extent}, but 1 to {} is possible", 1 << 24)));
            }
        }
        if !model.heads.is_multiple_of(model.kv_heads) {
            let reason = format!("{} heads are no multiple of `kv_heads`, {}", model.heads, model.kv_heads);
            return Err(at("kv_heads", reason));
        }
        if model.intermediate == 0 && model.experts.is_none() {
            return Err(at(
                "hidden",
                "neither `intermediate` nor `[experts]` says how wide the MLP is".into(),
            ));
        }
        if let Some(experts) = &model.experts
            && (experts.active == 0 || experts.active > experts.count || experts.intermediate == 0)
        {
            let reason =
                format!("{} of {} experts, {} wide", experts.active, experts.count, experts.intermediate);
            return Err(at("experts", reason));
        }
        Ok(model)
    }

    /// The weights of one of `tp` devices (tensor parallelism: heads and MLP columns are divided, row-parallel weights along K).
    ///
    /// # Errors
    /// If the model cannot be divided so.
    pub fn weights(&self, tp: usize) -> Result<Vec<Weights>, String> {
        let divide = |what: &str, extent: usize| match tp > 0 && extent.is_multiple_of(tp) {
            true => Ok(extent / tp),
            false => Err(format!("{what}, {extent}, cannot be divided by {tp}")),
        };
        let (hidden, heads) = (self.hidden, divide("the number of heads", self.heads)?);
        // Fewer KV heads than devices are repeated.
        let kv_heads = self.kv_heads.div_ceil(tp);
        let plain = |name, n, k| Weights { name, n, k, share: None };
        let mut all = Vec::new();
        if let Some(latent) = &self.latent {
            let &Latent { query_rank, kv_rank, rope_dim, value_dim } = latent;
            let no_rope = self.head_dim.saturating_sub(rope_dim);
            all.push(plain("down projections of q and kv", query_rank + kv_rank + rope_dim, hidden));
            all.push(plain("up projection of q", heads * self.head_dim, query_rank));
            all.push(plain("up projection of kv", heads * (no_rope + value_dim), kv_rank));
            all.push(plain("attention output", hidden, heads * value_dim));
        } else {
            all.push(plain("qkv", (heads + 2 * kv_heads) * self.head_dim, hidden));
            all.push(plain("attention output", hidden, heads * self.head_dim));
        }
        if self.intermediate > 0 {
            let intermediate = divide("the width of the MLP", self.intermediate)?;
            all.push(plain("gate and up", 2 * intermediate, hidden));
            all.push(plain("down", hidden, intermediate));
        }
        if let Some(experts) = &self.experts {
            let intermediate = divide("the width of an expert", experts.intermediate)?;
            let share = Some((experts.active, experts.count));
            all.push(Weights { name: "expert, gate and up", n: 2 * intermediate, k: hidden, share });
            all.push(Weights { name: "expert, down", n: hidden, k: intermediate, share });
        }
        all.push(plain("lm_head", self.vocab.div_ceil(tp), hidden));
        Ok(all)
    }

    /// Heads and KV heads of one of `tp` devices.
    pub fn heads(&self, tp: usize) -> (usize, usize) {
        (self.heads.div_ceil(tp), self.kv_heads.div_ceil(tp))
    }
}

impl Weights {
    /// Rows that these meet of a batch of tokens: of an expert, its mean share.
    pub fn rows(&self, tokens: usize) -> usize {
        self.share.map_or(tokens, |(active, count)| (tokens * active).div_ceil(count))
    }
}

/// The line of a field, from 1: for what is wrong with values, of which a parser no longer knows the place.
fn line_of(text: &str, field: &str) -> usize {
    let names = |line: &str| line.trim_start().trim_start_matches('[').starts_with(field);
    text.lines().position(names).map_or(1, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// \[N, K\] of the models' weights, from their published config files.
    const PUBLISHED: &[(&str, &[[usize; 2]])] = &[
        ("llama3-8b", &[[6144, 4096], [4096, 4096], [28672, 4096], [4096, 14336]]),
        ("llama3-70b", &[[10240, 8192], [8192, 8192], [57344, 8192], [8192, 28672]]),
        ("qwen2.5-7b", &[[4608, 3584], [3584, 3584], [37888, 3584], [3584, 18944]]),
        ("qwen3-8b", &[[6144, 4096], [4096, 4096], [24576, 4096], [4096, 12288]]),
        ("qwen3-30b-a3b", &[[5120, 2048], [2048, 4096], [1536, 2048], [2048, 768]]),
        (
            "deepseek-v3",
            &[
                [2112, 7168],
                [24576, 1536],
                [32768, 512],
                [7168, 16384],
                [36864, 7168],
                [7168, 18432],
                [4096, 7168],
                [7168, 2048],
            ],
        ),
        ("gpt-oss-120b", &[[5120, 2880], [2880, 4096], [5760, 2880], [2880, 2880]]),
        ("smollm2-135m", &[[960, 576], [576, 576], [3072, 576], [576, 1536]]),
    ];

    #[test]
    fn weights_follow_from_dimensions() {
        assert_eq!(PUBLISHED.len(), MODELS.len());
        for (name, published) in PUBLISHED {
            let model = Model::load(name).unwrap();
            let mut weights = model.weights(1).unwrap();
            let head = weights.pop().unwrap();
            assert_eq!([head.n, head.k], [model.vocab, model.hidden], "{name}");
            assert_eq!(weights.iter().map(|w| [w.n, w.k]).collect::<Vec<_>>(), *published, "{name}");
        }
    }

    #[test]
    fn tensor_parallelism_divides_heads_and_widths() {
        let model = Model::load("llama3-70b").unwrap();
        let shapes: Vec<[usize; 2]> = model.weights(8).unwrap().iter().map(|w| [w.n, w.k]).collect();
        assert_eq!(shapes, [[1280, 8192], [8192, 1024], [7168, 8192], [8192, 3584], [16032, 8192]]);
        let error = Model::load("qwen2.5-7b").unwrap().weights(8).unwrap_err();
        assert_eq!(error, "the number of heads, 28, cannot be divided by 8");
    }

    #[test]
    fn experts_meet_their_share_of_the_tokens() {
        let weights = Model::load("deepseek-v3").unwrap().weights(1).unwrap();
        let expert = weights.iter().find(|w| w.share.is_some()).unwrap();
        assert_eq!([1, 32, 33, 4096].map(|tokens| expert.rows(tokens)), [1, 1, 2, 128]);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_with_its_line() {
        let good = MODELS.iter().find(|(name, _)| *name == "llama3-8b").unwrap().1;
        let error =
            |from: &str, to: &str| Model::parse("m.toml", &good.replace(from, to)).unwrap_err().to_string();
        assert_eq!(
            error("kv_heads = 8", "kv_heads = 5"),
            "m.toml:7: 32 heads are no multiple of `kv_heads`, 5"
        );
        assert_eq!(
            error("vocab = 128256", "vocab = 0"),
            "m.toml:5: `vocab` is 0, but 1 to 16777216 is possible"
        );
        assert!(error("heads = 32", "head = 32").starts_with("m.toml:6: unknown field `head`"));
        assert!(error("layers = 32", "layers = many").starts_with("m.toml:4: "));
        let absent = Model::load("llama4").unwrap_err().to_string();
        assert!(
            absent.starts_with("llama4: no such file, and no model that is known: deepseek-v3, "),
            "{absent}"
        );
    }
}
