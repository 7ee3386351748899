//! What is told to programs as JSON, the same on every surface.

use selvedge_core::plan::Plan;
use serde_json::{Value, json};

/// A plan: bytes, contexts, how packed weights are held, and which backend runs what.
pub fn plan_json(plan: &Plan) -> Value {
    let a = plan.anonymous;
    let segments: Vec<Value> =
        plan.segments.iter().map(|s| json!({ "backend": s.backend, "nodes": s.nodes.len(), "reason": s.reason })).collect();
    json!({
        "mapped": plan.mapped,
        "anonymous": { "kv": a.kv, "arena": a.arena, "pack": a.pack, "tokenizer": a.tokenizer, "other": a.other },
        "gpu": plan.gpu,
        "weights": plan.held.name(),
        "weights_why": plan.held_why,
        "n_ctx": plan.n_ctx,
        "max_ctx": plan.max_ctx,
        "segments": segments,
    })
}
