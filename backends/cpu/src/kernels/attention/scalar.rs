//! The scalar row: it defines the bits.

use super::{AttentionKernels, BlockArgs, Query, finish_body, merge_body, soft_max};
use half::f16;
use selvedge_core::kv::{KvElem, PAGE};

pub(super) const KERNELS: AttentionKernels = AttentionKernels { block, merge, finish, name: "attention_scalar" };

unsafe fn block(args: &BlockArgs, queries: &[Query]) {
    let layout = args.layout;
    let get = |at: usize, idx: usize| {
        // SAFETY: `idx` lies inside the head's keys or values, which lie inside the page; bases are aligned to 64 bytes.
        unsafe {
            let p = args.page.add(at);
            match layout.elem {
                KvElem::F32 => *p.cast::<f32>().add(idx),
                _ => f16::from_bits(*p.cast::<u16>().add(idx)).to_f32(),
            }
        }
    };
    let (k_at, v_at) = (layout.k_offset(args.head), layout.v_offset(args.head));
    for query in queries {
        let mut s = [0.0_f32; PAGE];
        for d in 0..layout.d_k {
            // SAFETY: d < d_k.
            let q = unsafe { *query.q.add(d) };
            for (p, s) in s.iter_mut().enumerate() {
                *s = get(k_at, d * PAGE + p).mul_add(q, *s);
            }
        }
        let (max, sum) = soft_max(&mut s, query.lo, query.hi, args.scale, args.soft_cap);
        // SAFETY: `out` holds d_v + 2 floats.
        let out = unsafe { std::slice::from_raw_parts_mut(query.out, layout.d_v + 2) };
        (out[0], out[1]) = (max, sum);
        for (d, o) in out[2..].iter_mut().enumerate() {
            *o = 0.0;
            for (p, e) in s.iter().enumerate().take(query.hi).skip(query.lo) {
                *o = get(v_at, p * layout.d_v + d).mul_add(*e, *o);
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
