"""Tiny models for what other suites leave out, with logits computed here in f64 from the published definitions.

Writes arch_own.json: for each model its keys, its tensors (filled by a generator that the test repeats) and the logits.
Needs numpy. The formulas are those of the papers and of transformers' modeling files, named at each model; nothing is
taken from the code under test.    usage: python3 arch_own.py > arch_own.json
"""

import json
import math

import numpy as np

VOCAB, WIDTH = 48, 32
TOKENS = [7, 31, 2, 19, 44, 5, 5, 28, 13, 40, 1, 22, 36, 9]


def fill(model, name, dims, scale, offset):
    """offset + scale * u, u uniform in [-0.5, 0.5) with 24 bits, from splitmix64 seeded by FNV-1a of the name."""
    seed = 0xCBF29CE484222325
    for byte in f"{model}/{name}".encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    n = int(np.prod(dims))
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    u = (z >> np.uint64(40)).astype(np.float32) / np.float32(2**24) - np.float32(0.5)
    values = np.float32(offset) + np.float32(scale) * u
    return values.astype(np.float64).reshape(tuple(reversed(dims)))


class Model:
    """Keys and tensors as a file has them."""

    def __init__(self, name, arch, keys, n_ctx=128):
        self.name, self.arch, self.n_ctx = name, arch, n_ctx
        self.keys = [["general.architecture", "str", arch]]
        self.tensors, self.w = [], {}
        for key, kind, value in keys:
            self.keys.append([f"{arch}.{key}", kind, value])

    def add(self, name, *dims, scale=0.5, offset=0.0):
        self.tensors.append([name, list(dims), scale, offset])
        self.w[name] = fill(self.name, name, dims, scale, offset)

    def norm(self, name, n):
        self.add(name, n, scale=1.0, offset=1.0)

    def __getitem__(self, name):
        return self.w[name + ".weight"]


def base_keys(n_layer, n_head, n_head_kv, d_ff, eps=1e-6, context=256):
    per_layer = lambda v: "u32s" if isinstance(v, list) else "u32"
    return [
        ["block_count", "u32", n_layer],
        ["context_length", "u32", context],
        ["embedding_length", "u32", WIDTH],
        ["feed_forward_length", per_layer(d_ff), d_ff],
        ["attention.head_count", "u32", n_head],
        ["attention.head_count_kv", per_layer(n_head_kv), n_head_kv],
        ["attention.layer_norm_rms_epsilon", "f32", eps],
    ]


def at(value, layer):
    return value[layer] if isinstance(value, list) else value


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def rms(x, weight, eps=1e-6):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps).astype(np.float64)) * weight


def turn(x, inv_freq, magnitude, halves):
    """x[T, H, D]: the first 2 len(inv_freq) features turn, in pairs of halves or of neighbours."""
    n = len(inv_freq)
    angle = np.arange(x.shape[0])[:, None, None] * np.asarray(inv_freq)
    c, s = np.cos(angle) * magnitude, np.sin(angle) * magnitude
    out = x.copy()
    i, j = (np.arange(n), np.arange(n) + n) if halves else (2 * np.arange(n), 2 * np.arange(n) + 1)
    out[..., i] = x[..., i] * c - x[..., j] * s
    out[..., j] = x[..., j] * c + x[..., i] * s
    return out


def attend(q, k, v, scale, window=None, cap=None):
    """q[T, H, D], k[T, K, D], v[T, K, E] -> [T, H * E]"""
    t, h = q.shape[:2]
    out = np.zeros((t, h, v.shape[2]))
    i, j = np.arange(t)[:, None], np.arange(t)[None, :]
    seen = (j <= i) if window is None else (j <= i) & (j > i - window)
    for head in range(h):
        kv = head * k.shape[1] // h
        score = q[:, head] @ k[:, kv].T * scale
        if cap:
            score = np.tanh(score / cap) * cap
        score = np.where(seen, score, -np.inf)
        p = np.exp(score - score.max(-1, keepdims=True))
        out[:, head] = p / p.sum(-1, keepdims=True) @ v[:, kv]
    return out.reshape(t, -1)


def powers(base, n_rot):
    return [base ** (-2 * i / n_rot) for i in range(n_rot // 2)]


def add_layers(m, n_layer, n_head, n_head_kv, d_ff, d_k, d_v=None, qk_norm=False, post=False, qkv_bias=False, fused=False):
    d_v = d_v or d_k
    m.add("token_embd.weight", WIDTH, VOCAB, scale=0.5 if m.arch.startswith("gemma") else 2.0)
    m.norm("output_norm.weight", WIDTH)
    for l in range(n_layer):
        b, kv, ff = f"blk.{l}.", at(n_head_kv, l), at(d_ff, l)
        m.norm(b + "attn_norm.weight", WIDTH)
        if fused:
            m.add(b + "attn_qkv.weight", WIDTH, n_head * d_k + kv * (d_k + d_v))
            m.add(b + "ffn_up.weight", WIDTH, 2 * ff)
        else:
            for part, rows in [("q", n_head * d_k), ("k", kv * d_k), ("v", kv * d_v)]:
                m.add(f"{b}attn_{part}.weight", WIDTH, rows)
                if qkv_bias:
                    m.add(f"{b}attn_{part}.bias", rows)
            m.add(b + "ffn_gate.weight", WIDTH, ff)
            m.add(b + "ffn_up.weight", WIDTH, ff)
        if qk_norm:
            m.norm(b + "attn_q_norm.weight", d_k)
            m.norm(b + "attn_k_norm.weight", d_k)
        m.add(b + "attn_output.weight", n_head * d_v, WIDTH)
        m.norm(b + "ffn_norm.weight", WIDTH)
        m.add(b + "ffn_down.weight", ff, WIDTH)
        if post:
            m.norm(b + "post_attention_norm.weight", WIDTH)
            m.norm(b + "post_ffw_norm.weight", WIDTH)


def forward(m, n_layer, n_head, n_head_kv, d_ff, d_k, d_v=None, *, act, layer, scale=None, embed=1.0, cap=None, final_cap=None, qk_norm=False, post=False, qkv_bias=False, fused=False):
    """layer(l) -> (turn of x[T, H, D] or None, window or None)"""
    d_v = d_v or d_k
    scale = scale or 1 / math.sqrt(d_k)
    x = m["token_embd"][TOKENS] * embed
    t = len(TOKENS)
    for l in range(n_layer):
        b, kv, ff = f"blk.{l}.", at(n_head_kv, l), at(d_ff, l)
        h = rms(x, m[b + "attn_norm"])
        if fused:
            qkv = h @ m[b + "attn_qkv"].T
            q, k, v = np.split(qkv, [n_head * d_k, (n_head + kv) * d_k], axis=-1)
        else:
            q, k, v = (h @ m[f"{b}attn_{p}"].T + (m.w[f"{b}attn_{p}.bias"] if qkv_bias else 0) for p in "qkv")
        q, k, v = q.reshape(t, n_head, d_k), k.reshape(t, kv, d_k), v.reshape(t, kv, d_v)
        if qk_norm:
            q, k = rms(q, m[b + "attn_q_norm"]), rms(k, m[b + "attn_k_norm"])
        rotate, window = layer(l)
        if rotate:
            q, k = rotate(q), rotate(k)
        out = attend(q, k, v, scale, window, cap) @ m[b + "attn_output"].T
        x = x + (rms(out, m[b + "post_attention_norm"]) if post else out)
        h = rms(x, m[b + "ffn_norm"])
        if fused:
            gate, up = np.split(h @ m[b + "ffn_up"].T, 2, axis=-1)
        else:
            gate, up = h @ m[b + "ffn_gate"].T, h @ m[b + "ffn_up"].T
        out = act(gate) * up @ m[b + "ffn_down"].T
        x = x + (rms(out, m[b + "post_ffw_norm"]) if post else out)
    logits = rms(x, m["output_norm"]) @ m["token_embd"].T
    return np.tanh(logits / final_cap) * final_cap if final_cap else logits


def gemma():
    """modeling_gemma.py: embeddings times sqrt(width), GELU, heads wider than width / heads, one key head."""
    shape = (2, 4, 1, 64, 16)
    m = Model("gemma", "gemma", base_keys(*shape[:4]) + [["attention.key_length", "u32", 16], ["attention.value_length", "u32", 16]])
    add_layers(m, *shape)
    f = powers(10000.0, 16)
    return m, forward(m, *shape, act=gelu_tanh, embed=math.sqrt(WIDTH), layer=lambda l: (lambda x: turn(x, f, 1, True), None))


def gemma2_deep():
    """modeling_gemma2.py, shape of the 27B: query_pre_attn_scalar is width / heads, not the head size; default caps and window."""
    shape = (46, 2, 1, 32, 8)
    m = Model("gemma2_deep", "gemma2", base_keys(*shape[:4]) + [["attention.key_length", "u32", 8], ["attention.value_length", "u32", 8]])
    add_layers(m, *shape, post=True)
    f = powers(10000.0, 8)
    layer = lambda l: (lambda x: turn(x, f, 1, True), 4096 if l % 2 == 0 else None)
    return m, forward(m, *shape, act=gelu_tanh, embed=math.sqrt(WIDTH), layer=layer, scale=1 / math.sqrt(WIDTH / 2), cap=50.0, final_cap=30.0, post=True)


def gemma3_pattern():
    """modeling_gemma3.py with layer types given one by one, linear stretch of global layers alone, and the default global base."""
    shape = (4, 4, 2, 64, 8)
    local = [True, False, True, True]
    m = Model(
        "gemma3_pattern",
        "gemma3",
        base_keys(*shape[:4])
        + [
            ["attention.sliding_window", "u32", 5],
            ["attention.sliding_window_pattern", "bools", local],
            ["rope.freq_base_swa", "f32", 20000.0],
            ["rope.scaling.type", "str", "linear"],
            ["rope.scaling.factor", "f32", 8.0],
            ["final_logit_softcapping", "f32", 20.0],
        ],
    )
    add_layers(m, *shape, qk_norm=True, post=True)
    near, far = powers(20000.0, 8), [f / 8 for f in powers(1e6, 8)]
    layer = lambda l: (lambda x: turn(x, near if local[l] else far, 1, True), 5 if local[l] else None)
    return m, forward(m, *shape, act=gelu_tanh, embed=math.sqrt(WIDTH), layer=layer, final_cap=20.0, qk_norm=True, post=True)


def smollm3():
    """modeling_smollm3.py: no rotary embedding in layer 3 of 0 to 4."""
    shape = (5, 4, 2, 64, 8)
    m = Model("smollm3", "smollm3", base_keys(*shape[:4]) + [["rope.freq_base", "f32", 5e6]])
    add_layers(m, *shape)
    f = powers(5e6, 8)
    return m, forward(m, *shape, act=silu, layer=lambda l: (None if l == 3 else lambda x: turn(x, f, 1, False), None))


def llama_linear():
    """Chen et al. 2023: positions divided by 4."""
    shape = (2, 4, 2, 64, 8)
    m = Model("llama_linear", "llama", base_keys(*shape[:4]) + [["rope.scaling.type", "str", "linear"], ["rope.scaling.factor", "f32", 4.0]])
    add_layers(m, *shape)
    f = [f / 4 for f in powers(10000.0, 8)]
    return m, forward(m, *shape, act=silu, layer=lambda l: (lambda x: turn(x, f, 1, False), None))


def llama_ragged():
    """Heads and widths that differ between layers, values narrower than keys, a window in all layers."""
    shape = (3, 4, [2, 1, 4], [64, 32, 96], 16, 8)
    m = Model(
        "llama_ragged",
        "llama",
        base_keys(*shape[:4])
        + [["attention.key_length", "u32", 16], ["attention.value_length", "u32", 8], ["attention.sliding_window", "u32", 4]],
    )
    add_layers(m, *shape)
    f = powers(10000.0, 16)
    return m, forward(m, *shape, act=silu, layer=lambda l: (lambda x: turn(x, f, 1, False), 4))


def phi3_short():
    """modeling_phi3.py, the 4-mini kind: 12 of 16 features turn, a window, LongRoPE with a context that needs no stretch
    (short factors) and the magnitude by its formula, sqrt(1 + ln(256 / 64) / ln 64)."""
    shape = (2, 2, 1, 64, 16)
    m = Model(
        "phi3_short",
        "phi3",
        base_keys(*shape[:4])
        + [
            ["rope.dimension_count", "u32", 12],
            ["rope.scaling.original_context_length", "u32", 64],
            ["attention.sliding_window", "u32", 6],
        ],
        n_ctx=64,
    )
    m.add("rope_factors_long.weight", 6, scale=4.0, offset=8.0)
    m.add("rope_factors_short.weight", 6, scale=2.0, offset=2.0)
    add_layers(m, *shape, fused=True)
    f = [f / d for f, d in zip(powers(10000.0, 12), m["rope_factors_short"])]
    magnitude = math.sqrt(1 + math.log(256 / 64) / math.log(64))
    return m, forward(m, *shape, act=silu, layer=lambda l: (lambda x: turn(x, f, magnitude, True), 6), fused=True)


def qwen2_yarn():
    """Peng et al. 2023 with other betas and both factors of the magnitude (transformers `_compute_yarn_parameters`,
    mscale 1, mscale_all_dim 0.5), on a model with biases."""
    shape = (2, 2, 1, 64, 16)
    m = Model(
        "qwen2_yarn",
        "qwen2",
        base_keys(*shape[:4])
        + [
            ["rope.freq_base", "f32", 1000.0],
            ["rope.scaling.type", "str", "yarn"],
            ["rope.scaling.factor", "f32", 8.0],
            ["rope.scaling.original_context_length", "u32", 32],
            ["rope.scaling.yarn_beta_fast", "f32", 4.0],
            ["rope.scaling.yarn_beta_slow", "f32", 0.5],
            ["rope.scaling.yarn_log_multiplier", "f32", 0.5],
            ["rope.scaling.attn_factor", "f32", 1.25],
        ],
    )
    add_layers(m, *shape, qkv_bias=True)
    d, base = 16, 1000.0
    dim = lambda turns: d * math.log(32 / (turns * 2 * math.pi)) / (2 * math.log(base))
    low, high = max(math.floor(dim(4.0)), 0), min(math.ceil(dim(0.5)), d - 1)
    ramp = np.clip((np.arange(d // 2) - low) / (high - low), 0, 1)
    plain = np.array(powers(base, d))
    f = plain / 8 * ramp + plain * (1 - ramp)
    mscale = lambda x: 0.1 * x * math.log(8) + 1
    magnitude = mscale(1) / mscale(0.5) * 1.25
    return m, forward(m, *shape, act=silu, layer=lambda l: (lambda x: turn(x, f, magnitude, True), None), qkv_bias=True)


def main():
    out = {}
    for make in [gemma, gemma2_deep, gemma3_pattern, smollm3, llama_linear, llama_ragged, phi3_short, qwen2_yarn]:
        m, logits = make()
        best = np.sort(logits, axis=-1)
        out[m.name] = {
            "keys": m.keys,
            "tensors": m.tensors,
            "n_ctx": m.n_ctx,
            "tokens": TOKENS,
            "logits_last": [round(float(v), 6) for v in logits[-1]],
            "logsumexp": [round(float(v), 6) for v in np.log(np.exp(logits).sum(-1))],
            "argmax": [int(v) for v in logits.argmax(-1)],
            "argmax_margin": [round(float(v), 6) for v in best[:, -1] - best[:, -2]],
        }
    print("{")
    for i, (name, entry) in enumerate(out.items()):
        print(f' "{name}": {{')
        for j, (key, value) in enumerate(entry.items()):
            if key in ("keys", "tensors"):
                print(f'  "{key}": [\n   ' + ",\n   ".join(json.dumps(v) for v in value) + "],")
            else:
                print(f'  "{key}": {json.dumps(value)}' + ("," if j + 1 < len(entry) else ""))
        print(" }" + ("," if i + 1 < len(out) else ""))
    print("}")


main()
