//! AVX-512 rows with VNNI. A tile is one register: sixteen output rows in its lanes; up to eight rows of activations share
//! each load of weights.
//!
//! `vpdpbusd` multiplies unsigned with signed bytes and sums four products in 32 bits without saturation. Weights are the
//! unsigned side: signed ones are shifted by 128, which, like every offset, is taken back through the activations' sums.

use super::scalar::IQ4_VALUES;
use super::{AHEAD, FEW, TileArgs, high_bits};
use crate::pack::{Layout, Quant, STEP, SUPER, Scales, TILE};
use std::arch::x86_64::*;

/// Rows of activations that share the weights in registers.
const ROWS: usize = 8;

/// How weights of a step become operands of `vpdpbusd`, known when the kernel is compiled.
pub(super) trait Weights {
    /// Bytes of a step.
    const STEP_BYTES: usize;
    /// Added to what the layout's offset is, as the operand is shifted by it.
    const SHIFT: i32;
    /// All eight quads of a step (columns 4j..4j+4 of sixteen rows).
    unsafe fn quads(q: *const u8) -> [__m512i; 8];
}

pub(super) struct Nibble;
pub(super) struct NibbleIq4;
/// Nibbles with `BITS` higher bits in planes of their own.
pub(super) struct High<const BITS: usize>;
pub(super) type Five = High<1>;
pub(super) type Six = High<2>;
pub(super) struct Signed;

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn nibbles(q: *const u8) -> [__m512i; 8] {
    let mask = _mm512_set1_epi8(15);
    let mut out = [mask; 8];
    for j in 0..4 {
        // SAFETY: the step holds 4 x 64 bytes.
        let bytes = unsafe { _mm512_loadu_si512(q.add(j * 64).cast()) };
        out[j] = _mm512_and_si512(bytes, mask);
        out[j + 4] = _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), mask);
    }
    out
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn flipped(q: *const u8) -> [__m512i; 8] {
    let flip = _mm512_set1_epi8(-128);
    let mut out = [flip; 8];
    for (j, out) in out.iter_mut().enumerate() {
        // SAFETY: the step holds 8 x 64 bytes.
        *out = _mm512_xor_si512(unsafe { _mm512_loadu_si512(q.add(j * 64).cast()) }, flip);
    }
    out
}

impl Weights for Nibble {
    const STEP_BYTES: usize = 256;
    const SHIFT: i32 = 0;
    #[inline(always)]
    unsafe fn quads(q: *const u8) -> [__m512i; 8] {
        // SAFETY: the caller's promise.
        unsafe { nibbles(q) }
    }
}

impl Weights for NibbleIq4 {
    const STEP_BYTES: usize = 256;
    const SHIFT: i32 = 128;
    #[inline(always)]
    unsafe fn quads(q: *const u8) -> [__m512i; 8] {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
        unsafe fn look_up(codes: [__m512i; 8]) -> [__m512i; 8] {
            // SAFETY: the table has 16 bytes.
            let table = unsafe { _mm_loadu_si128(IQ4_VALUES.as_ptr().cast()) };
            let table = _mm512_xor_si512(_mm512_broadcast_i32x4(table), _mm512_set1_epi8(-128));
            codes.map(|c| _mm512_shuffle_epi8(table, c))
        }
        // SAFETY: the caller's promise.
        unsafe { look_up(nibbles(q)) }
    }
}

/// The bits from `at` on of every byte of a plane, `mask` at 4, over nibbles.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn with_high(nibble: __m512i, plane: __m512i, at: usize, mask: i8) -> __m512i {
    let moved = match at {
        0 => _mm512_slli_epi16::<4>(plane),
        1 => _mm512_slli_epi16::<3>(plane),
        2 => _mm512_slli_epi16::<2>(plane),
        3 => _mm512_slli_epi16::<1>(plane),
        5 => _mm512_srli_epi16::<1>(plane),
        6 => _mm512_srli_epi16::<2>(plane),
        7 => _mm512_srli_epi16::<3>(plane),
        _ => plane,
    };
    // nibble | moved & mask
    _mm512_ternarylogic_epi32::<0xf8>(nibble, moved, _mm512_set1_epi8(mask))
}

impl<const BITS: usize> Weights for High<BITS> {
    const STEP_BYTES: usize = 256 + 64 * BITS;
    const SHIFT: i32 = 0;
    #[inline(always)]
    unsafe fn quads(q: *const u8) -> [__m512i; 8] {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
        unsafe fn with_planes<const BITS: usize>(q: *const u8) -> [__m512i; 8] {
            // SAFETY: the step holds 256 bytes of nibbles and BITS planes of 64.
            let (mut quads, planes) =
                unsafe { (nibbles(q), std::array::from_fn::<_, BITS, _>(|p| _mm512_loadu_si512(q.add(256 + p * 64).cast()))) };
            for (j, quad) in quads.iter_mut().enumerate() {
                let (plane, at, mask) = high_bits(BITS, j);
                *quad = with_high(*quad, planes[plane], at, mask as i8);
            }
            quads
        }
        // SAFETY: the caller's promise.
        unsafe { with_planes::<BITS>(q) }
    }
}

impl Weights for Signed {
    const STEP_BYTES: usize = 512;
    const SHIFT: i32 = 128;
    #[inline(always)]
    unsafe fn quads(q: *const u8) -> [__m512i; 8] {
        // SAFETY: the caller's promise.
        unsafe { flipped(q) }
    }
}

/// How scales are read, known when the kernel is compiled.
pub(super) trait ScaleKind {
    const SCALES: Scales;
    /// Scale and negated minimum of group `g`.
    unsafe fn load(sup: *const u8, step: *const u8, g: usize) -> (__m512, __m512);
}

pub(super) struct F16<const MIN: bool>;
pub(super) struct Super<const GROUP: usize, const MIN: bool>;
pub(super) struct F32<const GROUP: usize, const MIN: bool>;

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn halves(p: *const u8) -> __m512 {
    // SAFETY: the caller gives 32 readable bytes.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(p.cast()) })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn signed(p: *const u8) -> __m512 {
    // SAFETY: the caller gives 16 readable bytes.
    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(unsafe { _mm_loadu_si128(p.cast()) }))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn unsigned(p: *const u8) -> __m512 {
    // SAFETY: the caller gives 16 readable bytes.
    _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(p.cast()) }))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn negate(x: __m512) -> __m512 {
    _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), _mm512_set1_epi32(i32::MIN)))
}

impl<const MIN: bool> ScaleKind for F16<MIN> {
    const SCALES: Scales = Scales::F16 { min: MIN };
    #[inline(always)]
    unsafe fn load(_: *const u8, step: *const u8, _: usize) -> (__m512, __m512) {
        // SAFETY: the step's scales are 32 bytes, and 32 more with a minimum.
        unsafe { (halves(step), if MIN { halves(step.add(2 * TILE)) } else { _mm512_setzero_ps() }) }
    }
}

impl<const GROUP: usize, const MIN: bool> ScaleKind for Super<GROUP, MIN> {
    const SCALES: Scales = Scales::Super { group: GROUP, min: MIN };
    #[inline(always)]
    unsafe fn load(sup: *const u8, step: *const u8, g: usize) -> (__m512, __m512) {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
        unsafe fn scale(d: *const u8, sc: *const u8) -> __m512 {
            // SAFETY: the caller gives 32 and 16 readable bytes.
            unsafe { _mm512_mul_ps(halves(d), signed(sc)) }
        }
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
        unsafe fn minus(dmin: *const u8, mn: *const u8) -> __m512 {
            // SAFETY: the caller gives 32 and 16 readable bytes.
            negate(unsafe { _mm512_mul_ps(halves(dmin), unsigned(mn)) })
        }
        let groups = STEP / GROUP;
        // SAFETY: g < groups: 16 bytes a group, then as many of the minima; the super scales are 32 bytes each.
        unsafe {
            let m = if MIN { minus(sup.add(2 * TILE), step.add((groups + g) * TILE)) } else { _mm512_setzero_ps() };
            (scale(sup, step.add(g * TILE)), m)
        }
    }
}

impl<const GROUP: usize, const MIN: bool> ScaleKind for F32<GROUP, MIN> {
    const SCALES: Scales = Scales::F32 { group: GROUP, min: MIN };
    #[inline(always)]
    unsafe fn load(_: *const u8, step: *const u8, g: usize) -> (__m512, __m512) {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
        unsafe fn floats(p: *const u8) -> __m512 {
            // SAFETY: the caller gives 64 readable bytes.
            unsafe { _mm512_loadu_ps(p.cast()) }
        }
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
        fn minus(x: __m512) -> __m512 {
            negate(x)
        }
        let groups = STEP / GROUP;
        // SAFETY: g < groups: 64 bytes a group, then as many of the minima.
        unsafe {
            let m = if MIN { minus(floats(step.add((groups + g) * 4 * TILE))) } else { _mm512_setzero_ps() };
            (floats(step.add(g * 4 * TILE)), m)
        }
    }
}

super::int_kernels!();

/// Fetches as many bytes as a step takes, [`AHEAD`] of `w`.
#[inline]
#[target_feature(enable = "avx512f")]
fn prefetch(w: *const u8, n_bytes: usize) {
    for line in 0..n_bytes.div_ceil(64) {
        // A fetch of an address that isn't there does nothing.
        _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(AHEAD + line * 64).cast());
    }
}

/// All rows of activations.
pub(super) unsafe fn rows<W: Weights, S: ScaleKind>(args: &TileArgs, offset: i32) {
    // SAFETY: the caller's promise.
    unsafe {
        match offset + W::SHIFT {
            0 => rows_shifted::<W, S, false>(args, 0),
            shift => rows_shifted::<W, S, true>(args, shift),
        }
    }
}

/// Eight rows at a time, then by powers of two. `SHIFTS`: whether operands are shifted, by `shift`.
unsafe fn rows_shifted<W: Weights, S: ScaleKind, const SHIFTS: bool>(args: &TileArgs, shift: i32) {
    let mut row = 0;
    while row < args.n_rows {
        // SAFETY: the caller's promise, and the rows remain.
        row += unsafe {
            match args.n_rows - row {
                ROWS.. => tile::<W, S, ROWS, SHIFTS>(args, row, shift),
                4.. => tile::<W, S, 4, SHIFTS>(args, row, shift),
                2.. => tile::<W, S, 2, SHIFTS>(args, row, shift),
                _ => tile::<W, S, 1, SHIFTS>(args, row, shift),
            }
        };
    }
}

/// Keeps sums of different rows beside each other in the instruction stream. A compiler that orders them row by row, which
/// saves registers that aren't short, leaves chains too long for the processor's window.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn in_this_order<const N: usize>(sums: &mut [__m512i; N]) {
    for sum in sums {
        // SAFETY: no instruction: it only pins the order.
        unsafe { std::arch::asm!("/* {0} */", inout(zmm_reg) * sum, options(nomem, nostack, preserves_flags)) };
    }
}

/// `N` rows of activations from `row` on; returns N.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn tile<W: Weights, S: ScaleKind, const N: usize, const SHIFTS: bool>(args: &TileArgs, row: usize, shift: i32) -> usize {
    let k = args.k;
    let groups = S::SCALES.groups();
    let quads = 8 / groups;
    let mut acc = [_mm512_setzero_ps(); N];
    let mut w = args.w;
    let mut sup = w;
    // SAFETY: row < n_rows.
    let x = unsafe { args.q.add(row * k) };
    for step in 0..k / STEP {
        if S::SCALES.super_bytes() > 0 && step % (SUPER / STEP) == 0 {
            sup = w;
            // SAFETY: the tile holds the super scales before every eighth step.
            w = unsafe { w.add(S::SCALES.super_bytes()) };
        }
        if N <= FEW {
            prefetch(w, W::STEP_BYTES + S::SCALES.step_bytes());
        }
        // SAFETY: the scales follow the integers of the step.
        let (q, scales) = unsafe { (W::quads(w), w.add(W::STEP_BYTES)) };
        for g in 0..groups {
            // SAFETY: g < groups.
            let (scale_w, minus_min) = unsafe { S::load(sup, scales, g) };
            let mut isum = [_mm512_setzero_si512(); N];
            for (j, &quad) in q.iter().enumerate().skip(g * quads).take(quads) {
                for (n, isum) in isum.iter_mut().enumerate() {
                    // SAFETY: row + n < n_rows, and step * 32 + 4 j + 4 <= k.
                    let x = unsafe { x.add(n * k + step * STEP + 4 * j).cast::<i32>().read_unaligned() };
                    *isum = _mm512_dpbusd_epi32(*isum, quad, _mm512_set1_epi32(x));
                }
                in_this_order(&mut isum);
            }
            for (n, (acc, isum)) in acc.iter_mut().zip(isum).enumerate() {
                // SAFETY: row + n < n_rows; one scale per 32 columns.
                let s = unsafe { *args.scale.add(step * args.stride + row + n) };
                let isum = if !SHIFTS {
                    isum
                } else {
                    // SAFETY: one sum per 16 columns.
                    let sum = unsafe {
                        let sums = args.sum.add(2 * step * args.stride + row + n);
                        if groups == 1 { *sums + *sums.add(args.stride) } else { *sums.add(g * args.stride) }
                    };
                    _mm512_sub_epi32(isum, _mm512_set1_epi32(shift * sum))
                };
                *acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum), _mm512_mul_ps(scale_w, _mm512_set1_ps(s)), *acc);
                if S::SCALES.has_min() {
                    // SAFETY: one value a group.
                    let sum = unsafe {
                        match groups {
                            1 => *args.sum32.add(step * args.stride + row + n),
                            _ => *args.sum16.add((2 * step + g) * args.stride + row + n),
                        }
                    };
                    *acc = _mm512_fmadd_ps(minus_min, _mm512_set1_ps(sum), *acc);
                }
            }
        }
        // SAFETY: the next step, or one past the tile.
        w = unsafe { w.add(W::STEP_BYTES + S::SCALES.step_bytes()) };
    }
    for (n, acc) in acc.into_iter().enumerate() {
        // SAFETY: `out` has 16 floats a row.
        unsafe { _mm512_storeu_ps(args.out.add((row + n) * TILE), acc) };
    }
    N
}

/// # Safety
/// As [`TileArgs`] says; the machine has AVX-512.
pub(super) unsafe fn run_float(args: &TileArgs, layout: Layout) {
    let mut row = 0;
    while row < args.n_rows {
        // SAFETY: the caller's promise, and the rows remain.
        row += unsafe {
            match args.n_rows - row {
                ROWS.. => float_tile::<ROWS>(args, layout, row),
                4.. => float_tile::<4>(args, layout, row),
                2.. => float_tile::<2>(args, layout, row),
                _ => float_tile::<1>(args, layout, row),
            }
        };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn float_tile<const N: usize>(args: &TileArgs, layout: Layout, row: usize) -> usize {
    let mut acc = [_mm512_setzero_ps(); N];
    let width = if layout == Layout::F32 { 4 } else { 2 };
    for c in 0..args.k {
        if N <= FEW {
            prefetch(args.w.wrapping_add(c * TILE * width), TILE * width);
        }
        // SAFETY: column c of the tile: 16 elements.
        let w = unsafe {
            match layout {
                Layout::F32 => _mm512_loadu_ps(args.w.add(c * TILE * 4).cast()),
                Layout::F16 => halves(args.w.add(c * TILE * 2)),
                _ => {
                    let bits = _mm256_loadu_si256(args.w.add(c * TILE * 2).cast());
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
                }
            }
        };
        for (n, acc) in acc.iter_mut().enumerate() {
            // SAFETY: row + n < n_rows and c < k.
            let x = _mm512_set1_ps(unsafe { *args.x.add((row + n) * args.k + c) });
            *acc = _mm512_fmadd_ps(w, x, *acc);
        }
    }
    for (n, acc) in acc.into_iter().enumerate() {
        // SAFETY: `out` has 16 floats a row.
        unsafe { _mm512_storeu_ps(args.out.add((row + n) * TILE), acc) };
    }
    N
}
