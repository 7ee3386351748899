//! The scalar row: it defines the bits.

use super::{AttentionKernels, BlockArgs, Query, factors, finish_body, merge_body, soft_max};
use selvedge_core::kv::PAGE;
use std::ops::Range;

pub(super) const KERNELS: AttentionKernels = AttentionKernels { block, widen, merge, finish, name: "attention_scalar" };

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
        let (new_max, a, b) = if query.merge { factors(out[0], max) } else { (max, 0.0, 1.0) };
        let into = |old: &mut f32, x: f32| *old = if query.merge { x.mul_add(b, *old * a) } else { x };
        out[0] = new_max;
        into(&mut out[1], sum);
        for (d, o) in out[2..].iter_mut().enumerate() {
            let mut x = 0.0_f32;
            for (p, e) in s.iter().enumerate().take(query.hi).skip(query.lo) {
                // SAFETY: d < d_v and p < 64.
                x = unsafe { layout.value(values, p, d) }.mul_add(*e, x);
            }
            into(o, x);
        }
    }
}

unsafe fn widen(args: &BlockArgs, _: Range<usize>, _: *mut f32) -> BlockArgs {
    *args
}

unsafe fn merge(state: *mut f32, block: *const f32, d_v: usize) {
    // SAFETY: the caller's promise.
    unsafe { merge_body(state, block, d_v) }
}

unsafe fn finish(state: *const f32, d_v: usize, out: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe { finish_body(state, d_v, out) }
}
