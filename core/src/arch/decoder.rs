//! The decoder that all architectures here share: a configuration of plain data, and the graph that it describes.
//!
//! ```text
//!   inp_embd ─▶ per layer:  x ─▶ attn_norm ─▶ q, k, v ─▶ [norm per head] ─▶ [turn] ─▶ cache ─▶ attention ─▶ attn_out
//!                           x + s * [post norm] attn_out = ffn_inp
//!                           ffn_inp ─▶ ffn_norm ─▶ act(gate) * up ─▶ ffn_out
//!                           ffn_inp + s * [post norm] ffn_out = l_out
//!            ─▶ wanted rows ─▶ result_norm ─▶ output matrix ─▶ [scale] ─▶ [soft cap] ─▶ result_output
//! ```
//! Values have the names that llama.cpp gives them where it names them, so that dumps of both can be laid side by side.
//! Products of one input follow each other and a residual is the first term of its sum: fusion passes look for that.

use super::rope::RopeConfig;
use crate::graph::{Graph, ValueId, VerifiedGraph};
use crate::kv::KvLayer;
use crate::model::{Keys, ModelError, ModelFile};
use crate::ops::{
    Act, Add, Attention, Elem, Embed, Glu, KvStore, Mask, MatMul, Pairing, RmsNorm, Rope, Scale, Select, SoftCap, WeightDecl, WeightId,
    WeightRows,
};

/// Most layers of a model: four times the deepest that was published. Passes over a graph take quadratic time in it.
pub const MAX_LAYERS: usize = 512;
/// Largest head: a hundred times what was published. Tables of angles are sized by it before tensors are looked at.
pub const MAX_D_HEAD: usize = 1 << 16;
/// Fewest tensors of a layer: two norms, the output of attention, at least one more product for its input, two of the
/// feed-forward part.
const MIN_TENSORS_PER_LAYER: usize = 6;

/// One layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerConfig {
    /// Query heads.
    pub n_head: usize,
    /// Key and value heads.
    pub n_head_kv: usize,
    /// Width of the feed-forward part.
    pub d_ff: usize,
    /// Positions that a query sees, itself included; `None`: all.
    pub window: Option<u32>,
    /// Index in [`DecoderConfig::ropes`]; `None`: positions aren't marked.
    pub rope: Option<usize>,
}

/// A decoder as plain data. [`DecoderConfig::from_keys`] reads what all architectures share; each adds its own.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// Name in the file.
    pub architecture: String,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Rows of the embedding: ids are below it.
    pub n_vocab: usize,
    /// Context that the model was made for, positions.
    pub n_ctx_train: usize,
    /// Size of query and key heads.
    pub d_k: usize,
    /// Size of value heads.
    pub d_v: usize,
    /// Added to the mean square in norms.
    pub eps: f32,
    /// Activation of the gate.
    pub act: Act,
    /// The layers, first to last.
    pub layers: Vec<LayerConfig>,
    /// Rotary embeddings that layers refer to.
    pub ropes: Vec<RopeConfig>,
    /// Factor of embeddings.
    pub embedding_scale: f32,
    /// Factor of what a layer's two halves add to the residual stream.
    pub residual_scale: f32,
    /// Factor of attention scores.
    pub attention_scale: f32,
    /// Factor of logits.
    pub logit_scale: f32,
    /// Soft cap of attention scores.
    pub attention_soft_cap: Option<f32>,
    /// Soft cap of logits.
    pub final_soft_cap: Option<f32>,
    /// Whether queries and keys are normalised per head.
    pub qk_norm: bool,
    /// Whether the results of attention and feed-forward part are normalised before they are added.
    pub post_norms: bool,
    /// Whether queries, keys and values must have biases; where not, those in the file are used.
    pub qkv_bias: bool,
    /// Whether q, k and v are one tensor, `attn_qkv`, in this order.
    pub fused_qkv: bool,
    /// Whether gate and up are one tensor, `ffn_up`, in this order.
    pub fused_gate_up: bool,
}

/// Whether the value of a key asks for something.
type Asks = fn(&Keys<'_>, &str) -> Result<bool, ModelError>;

/// Keys whose values may ask for what the shared decoder doesn't do: `(key, feature, whether it is asked for)`.
const UNSUPPORTED: [(&str, &str, Asks); 3] = [
    ("expert_count", "mixture of experts", |k, key| Ok(k.usize(key)?.is_some_and(|n| n > 0))),
    ("attention.causal", "attention to later positions", |k, key| Ok(k.bool(key)? == Some(false))),
    ("use_parallel_residual", "attention beside the feed-forward part", |k, key| Ok(k.bool(key)? == Some(true))),
];

impl DecoderConfig {
    /// Reads the keys that all architectures share and fills in the plainest decoder: SiLU, one rotary embedding with the
    /// given pairing for all layers, no windows, no scales, biases where the file has them.
    ///
    /// # Errors
    /// Keys that are missing, of other types, or make no sense; features that aren't supported.
    pub fn from_keys(keys: &Keys<'_>, file: &ModelFile, pairing: Pairing) -> Result<DecoderConfig, ModelError> {
        for (key, what, asks) in UNSUPPORTED {
            if asks(keys, key)? {
                let found = keys.value(key);
                return Err(ModelError::Unsupported { what, architecture: keys.architecture().into(), key: keys.name(key), found });
            }
        }
        let d_model = keys.require_usize("embedding_length")?;
        let n_layer = n_layer(keys, file)?;
        let n_ctx_train = keys.require_usize("context_length")?;
        let eps = keys.require_positive("attention.layer_norm_rms_epsilon")?;
        let n_head = keys.require_per_layer("attention.head_count", n_layer)?;
        let n_head_kv = keys.per_layer("attention.head_count_kv", n_layer)?.unwrap_or_else(|| n_head.clone());
        let d_ff = keys.require_per_layer("feed_forward_length", n_layer)?;
        if let Some((&h, &kv)) = n_head.iter().zip(&n_head_kv).find(|&(&h, &kv)| kv == 0 || !h.is_multiple_of(kv)) {
            return Err(keys.wrong("attention.head_count_kv", format!("a divisor of the number of query heads, {h}"), kv));
        }
        let head_size = |key: &str| {
            let given = keys.usize(key)?;
            // Heads differ between layers only where their size is given.
            if given.is_none() && !d_model.is_multiple_of(n_head[0]) {
                let expected = format!("a size, as {d_model} features don't split evenly into {} heads", n_head[0]);
                return Err(keys.wrong(key, expected, "absent"));
            }
            match given.unwrap_or(d_model / n_head[0]) {
                d if d == 0 || d > MAX_D_HEAD => Err(keys.wrong(key, format!("from 1 to {MAX_D_HEAD}"), d)),
                d => Ok(d),
            }
        };
        let (d_k, d_v) = (head_size("attention.key_length")?, head_size("attention.value_length")?);
        let rope = RopeConfig::from_keys(keys, file, d_k, pairing)?;
        let layer = |((n_head, n_head_kv), d_ff)| LayerConfig { n_head, n_head_kv, d_ff, window: None, rope: Some(0) };
        Ok(DecoderConfig {
            architecture: keys.architecture().to_owned(),
            d_model,
            n_vocab: n_vocab(keys, file)?,
            n_ctx_train,
            d_k,
            d_v,
            eps,
            act: Act::Silu,
            layers: n_head.into_iter().zip(n_head_kv).zip(d_ff).map(layer).collect(),
            ropes: vec![rope],
            embedding_scale: 1.0,
            residual_scale: 1.0,
            attention_scale: keys.positive_or_off("attention.scale")?.unwrap_or(1.0 / (d_k as f32).sqrt()),
            logit_scale: 1.0,
            attention_soft_cap: None,
            final_soft_cap: None,
            qk_norm: false,
            post_norms: false,
            qkv_bias: false,
            fused_qkv: false,
            fused_gate_up: false,
        })
    }

    /// Number of layers.
    pub fn n_layer(&self) -> usize {
        self.layers.len()
    }

    /// Gives all layers the window of the key, where the file has one.
    ///
    /// # Errors
    /// A window that isn't a number.
    pub fn with_window(mut self, keys: &Keys<'_>) -> Result<DecoderConfig, ModelError> {
        let window = window(keys)?.filter(|&w| w > 0);
        self.layers.iter_mut().for_each(|l| l.window = window);
        Ok(self)
    }

    /// The graph for a context of `n_ctx` positions.
    ///
    /// # Errors
    /// Tensors that are missing, of other dimensions than the keys demand, or stored in a way that can't be decoded.
    pub fn build(&self, file: &ModelFile, n_ctx: usize) -> Result<VerifiedGraph, ModelError> {
        build(self, file, n_ctx)
    }
}

/// The key of the sliding window.
pub(super) fn window(keys: &Keys<'_>) -> Result<Option<u32>, ModelError> {
    Ok(keys.usize("attention.sliding_window")?.map(|w| w as u32))
}

fn n_layer(keys: &Keys<'_>, file: &ModelFile) -> Result<usize, ModelError> {
    let n_layer = keys.require_usize("block_count")?;
    if file.n_tensors() == 0 {
        return Err(ModelError::NoTensors);
    }
    let most = MAX_LAYERS.min(file.n_tensors() / MIN_TENSORS_PER_LAYER);
    if n_layer > most {
        return Err(keys.wrong("block_count", format!("at most {most}, with the {} tensors of this file", file.n_tensors()), n_layer));
    }
    Ok(n_layer)
}

fn n_vocab(keys: &Keys<'_>, file: &ModelFile) -> Result<usize, ModelError> {
    let name = "token_embd.weight";
    let missing = || ModelError::TensorMissing { name: name.into(), architecture: keys.architecture().into() };
    let t = file.tensor(name).ok_or_else(missing)?;
    if t.n_out == 0 {
        return Err(ModelError::TensorShape { name: name.into(), expected: vec![t.n_in as u64, 1], found: vec![t.n_in as u64, 0] });
    }
    Ok(t.n_out)
}

/// Builds and verifies the graph; see [`DecoderConfig::build`].
pub(super) fn build(cfg: &DecoderConfig, file: &ModelFile, n_ctx: usize) -> Result<VerifiedGraph, ModelError> {
    let mut b = Builder { cfg, file, g: Graph::default() };
    // A window that no context of this model outgrows is none: such layers share their pages with the others. The graph
    // of a short context keeps the windows of longer ones, as what longer ones would cost is computed from it.
    let window = |l: &LayerConfig| l.window.filter(|&w| (w as usize) < n_ctx.max(cfg.n_ctx_train));
    b.g.kv_layers = cfg.layers.iter().map(|l| KvLayer { n_head_kv: l.n_head_kv, d_k: cfg.d_k, d_v: cfg.d_v, window: window(l) }).collect();
    let embedding = b.matrix("token_embd.weight", cfg.d_model, cfg.n_vocab)?;
    let mut x = b.g.push1(None, Embed { weight: embedding, n_vocab: cfg.n_vocab, scale: cfg.embedding_scale }, &[], "inp_embd")?;
    let mut tables = Vec::with_capacity(cfg.ropes.len());
    for (i, rope) in cfg.ropes.iter().enumerate() {
        let used = cfg.layers.iter().any(|l| l.rope == Some(i));
        tables.push(if used { Some(b.g.push1(None, rope.table(file, n_ctx)?, &[], rope.name)?) } else { None });
    }
    for (i, layer) in cfg.layers.iter().enumerate() {
        let turn = layer.rope.and_then(|r| Some((&cfg.ropes[r], tables[r]?)));
        let mask = window(layer).map_or(Mask::Causal, Mask::Window);
        x = b.attention(i, layer, turn, mask, x)?;
        x = b.feed_forward(i, layer, x)?;
    }
    let wanted = b.g.push1(None, Select, &[x], "result_rows")?;
    let normed = b.norm(None, "output_norm", cfg.d_model, cfg.d_model, wanted, "result_norm")?;
    b.logits(embedding, normed)?;
    Ok(b.g.verify()?)
}

struct Builder<'a> {
    cfg: &'a DecoderConfig,
    file: &'a ModelFile,
    g: Graph,
}

impl Builder<'_> {
    /// A tensor that must be there, with these dimensions.
    fn weight(&mut self, name: &str, n_in: usize, n_out: Option<usize>) -> Result<WeightId, ModelError> {
        let missing = || ModelError::TensorMissing { name: name.into(), architecture: self.cfg.architecture.clone() };
        let t = self.file.tensor(name).ok_or_else(missing)?;
        if (t.n_in, t.n_out) != (n_in, n_out.unwrap_or(1)) || t.n_dims > 2 {
            let expected = [n_in].into_iter().chain(n_out).map(|d| d as u64).collect();
            let found = if t.n_dims < 2 { vec![t.n_in as u64] } else { vec![t.n_in as u64, t.n_out as u64] };
            return Err(ModelError::TensorShape { name: name.into(), expected, found });
        }
        if t.ty.row().decode.is_none() {
            return Err(ModelError::TensorType { name: name.into(), ty: t.ty });
        }
        Ok(self.g.weight(WeightDecl { tensor: name.into(), ty: t.ty, n_in, n_out: n_out.unwrap_or(1) }))
    }

    fn matrix(&mut self, name: &str, n_in: usize, n_out: usize) -> Result<WeightId, ModelError> {
        self.weight(name, n_in, Some(n_out))
    }

    /// A bias, where the file has it or the architecture demands it.
    fn bias(&mut self, name: &str, len: usize, demanded: bool) -> Result<Option<WeightId>, ModelError> {
        if demanded || self.file.tensor(name).is_some() { self.weight(name, len, None).map(Some) } else { Ok(None) }
    }

    fn norm(
        &mut self,
        layer: Option<usize>,
        tensor: &str,
        len: usize,
        group: usize,
        x: ValueId,
        value: &str,
    ) -> Result<ValueId, ModelError> {
        let weight = self.weight(&tensor_name(layer, tensor, "weight"), len, None)?;
        let op = RmsNorm { weight, group, eps: self.cfg.eps, residual: false, out: Elem::F32 };
        Ok(self.g.push1(layer.map(|l| l as u32), op, &[x], value)?)
    }

    /// `[n_in, n_out]` tensor of a layer with its bias.
    fn linear(&mut self, layer: usize, tensor: &str, dims: (usize, usize), bias: bool) -> Result<Linear, ModelError> {
        let weight = self.matrix(&tensor_name(Some(layer), tensor, "weight"), dims.0, dims.1)?;
        let bias = self.bias(&tensor_name(Some(layer), tensor, "bias"), dims.1, bias)?;
        Ok(Linear { weight, bias, first: 0, n: dims.1 })
    }

    fn product(&mut self, layer: usize, linear: Linear, x: ValueId, value: &str) -> Result<ValueId, ModelError> {
        let rows = WeightRows { weight: linear.weight, first: linear.first, n: linear.n };
        Ok(self.g.push1(Some(layer as u32), MatMul::of_rows(rows, linear.bias, linear.first), &[x], value)?)
    }

    /// `residual + s * [post norm] branch`
    fn add(&mut self, layer: usize, residual: ValueId, branch: ValueId, post: (&str, &str), value: &str) -> Result<ValueId, ModelError> {
        let d_model = self.cfg.d_model;
        let branch = if self.cfg.post_norms { self.norm(Some(layer), post.0, d_model, d_model, branch, post.1)? } else { branch };
        Ok(self.g.push1(Some(layer as u32), Add { scale: self.cfg.residual_scale }, &[residual, branch], value)?)
    }

    fn attention(
        &mut self,
        i: usize,
        layer: &LayerConfig,
        turn: Option<(&RopeConfig, ValueId)>,
        mask: Mask,
        x: ValueId,
    ) -> Result<ValueId, ModelError> {
        let cfg = self.cfg;
        let id = Some(i as u32);
        let (n_q, n_k, n_v) =
            (layer.n_head.saturating_mul(cfg.d_k), layer.n_head_kv.saturating_mul(cfg.d_k), layer.n_head_kv.saturating_mul(cfg.d_v));
        let normed = self.norm(Some(i), "attn_norm", cfg.d_model, cfg.d_model, x, "attn_norm")?;
        let [q, k, v] = if cfg.fused_qkv {
            let all = self.linear(i, "attn_qkv", (cfg.d_model, n_q.saturating_add(n_k).saturating_add(n_v)), cfg.qkv_bias)?;
            [Linear { n: n_q, ..all }, Linear { first: n_q, n: n_k, ..all }, Linear { first: n_q + n_k, n: n_v, ..all }]
        } else {
            [
                self.linear(i, "attn_q", (cfg.d_model, n_q), cfg.qkv_bias)?,
                self.linear(i, "attn_k", (cfg.d_model, n_k), cfg.qkv_bias)?,
                self.linear(i, "attn_v", (cfg.d_model, n_v), cfg.qkv_bias)?,
            ]
        };
        let mut q = self.product(i, q, normed, "Qcur")?;
        let mut k = self.product(i, k, normed, "Kcur")?;
        let v = self.product(i, v, normed, "Vcur")?;
        if cfg.qk_norm {
            q = self.norm(Some(i), "attn_q_norm", cfg.d_k, cfg.d_k, q, "Qcur_normed")?;
            k = self.norm(Some(i), "attn_k_norm", cfg.d_k, cfg.d_k, k, "Kcur_normed")?;
        }
        if let Some((rope, table)) = turn {
            let op = |n_head| Rope { n_head, d_head: cfg.d_k, n_rot: rope.n_rot, pairing: rope.pairing };
            q = self.g.push1(id, op(layer.n_head), &[q, table], "Qcur_rope")?;
            k = self.g.push1(id, op(layer.n_head_kv), &[k, table], "Kcur_rope")?;
        }
        self.g.push(id, KvStore { layer: i, rope: None }, &[k, v], &[])?;
        let (scale, soft_cap) = (cfg.attention_scale, cfg.attention_soft_cap);
        let seen = self.g.push1(id, Attention { layer: i, n_head: layer.n_head, scale, soft_cap, mask }, &[q], "kqv_out")?;
        let output = self.linear(i, "attn_output", (layer.n_head.saturating_mul(cfg.d_v), cfg.d_model), false)?;
        let out = self.product(i, output, seen, "attn_out")?;
        self.add(i, x, out, ("post_attention_norm", "attn_post_norm"), "ffn_inp")
    }

    fn feed_forward(&mut self, i: usize, layer: &LayerConfig, x: ValueId) -> Result<ValueId, ModelError> {
        let (d_model, d_ff) = (self.cfg.d_model, layer.d_ff);
        let normed = self.norm(Some(i), "ffn_norm", d_model, d_model, x, "ffn_norm")?;
        let [gate, up] = if self.cfg.fused_gate_up {
            let both = self.linear(i, "ffn_up", (d_model, d_ff.saturating_mul(2)), false)?;
            [Linear { n: d_ff, ..both }, Linear { first: d_ff, n: d_ff, ..both }]
        } else {
            [self.linear(i, "ffn_gate", (d_model, d_ff), false)?, self.linear(i, "ffn_up", (d_model, d_ff), false)?]
        };
        let gate = self.product(i, gate, normed, "ffn_gate")?;
        let up = self.product(i, up, normed, "ffn_up")?;
        let act = self.cfg.act;
        let gated = self.g.push1(Some(i as u32), Glu { act }, &[gate, up], "ffn_gate_par")?;
        let down = self.linear(i, "ffn_down", (d_ff, d_model), false)?;
        let out = self.product(i, down, gated, "ffn_out")?;
        self.add(i, x, out, ("post_ffw_norm", "ffn_post_norm"), "l_out")
    }

    fn logits(&mut self, embedding: WeightId, x: ValueId) -> Result<(), ModelError> {
        let (d_model, n_vocab) = (self.cfg.d_model, self.cfg.n_vocab);
        let tied = self.file.tensor("output.weight").is_none();
        let weight = if tied { embedding } else { self.matrix("output.weight", d_model, n_vocab)? };
        let bias = self.bias("output.bias", n_vocab, false)?;
        let scaled = self.cfg.logit_scale != 1.0;
        let last = "result_output";
        let name = |is_last: bool, name: &'static str| if is_last { last } else { name };
        let capped = self.cfg.final_soft_cap.is_some();
        let product = MatMul::new(weight, n_vocab, bias);
        let mut y = self.g.push1(None, product, &[x], name(!scaled && !capped, "result_product"))?;
        if scaled {
            y = self.g.push1(None, Scale { factor: self.cfg.logit_scale }, &[y], name(!capped, "result_scaled"))?;
        }
        if let Some(cap) = self.cfg.final_soft_cap {
            y = self.g.push1(None, SoftCap { cap }, &[y], last)?;
        }
        self.g.logits = Some(y);
        Ok(())
    }
}

/// Some rows of a weight with their part of a bias.
#[derive(Clone, Copy)]
struct Linear {
    weight: WeightId,
    bias: Option<WeightId>,
    first: usize,
    n: usize,
}

fn tensor_name(layer: Option<usize>, tensor: &str, kind: &str) -> String {
    layer.map_or_else(|| format!("{tensor}.{kind}"), |l| format!("blk.{l}.{tensor}.{kind}"))
}
