//! The scalar row: it defines the bits.

use super::{AttentionKernels, BlockArgs, Query, finish_body, merge_body, soft_max};
use selvedge_core::kv::PAGE;

pub(super) const KERNELS: AttentionKernels = AttentionKernels { block, merge, finish, name: "attention_scalar" };

pub(super) unsafe fn block(args: &BlockArgs, queries: &[Query]) {
    let layout = args.layout;
    // SAFETY: the head's keys and values lie inside the page.
    let (keys, values) = unsafe { (args.page.add(layout.k_offset(args.head)), args.page.add(layout.v_offset(args.head))) };
    for query in queries {
        let mut s = [0.0_f32; PAGE];
        for d in 0..layout.d_k {
            // SAFETY: d < d_k.
            let q = unsafe { *query.q.add(d) };
            for (p, s) in s.iter_mut().enumerate() {
                // SAFETY: d < d_k and p < 64. Positions that no query sees may hold anything; `soft_max` drops them.
                *s = unsafe { layout.key(keys, d, p) }.mul_add(q, *s);
            }
        }
        let (max, sum) = soft_max(&mut s, query.lo, query.hi, args.scale, args.soft_cap);
        // SAFETY: `out` holds d_v + 2 floats.
        let out = unsafe { std::slice::from_raw_parts_mut(query.out, layout.d_v + 2) };
        (out[0], out[1]) = (max, sum);
        for (d, o) in out[2..].iter_mut().enumerate() {
            *o = 0.0;
            for (p, e) in s.iter().enumerate().take(query.hi).skip(query.lo) {
                // SAFETY: d < d_v and p < 64.
                *o = unsafe { layout.value(values, p, d) }.mul_add(*e, *o);
            }
        }
    }
}

unsafe fn merge(state: *mut f32, block: *const f32, d_v: usize) {
    // SAFETY: the caller's promise.
    unsafe { merge_body(state, block, d_v) }
}

unsafe fn finish(state: *const f32, d_v: usize, out: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe { finish_body(state, d_v, out) }
}
