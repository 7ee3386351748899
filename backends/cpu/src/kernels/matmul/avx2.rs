//! AVX2 rows. Eight output rows lie in the lanes of a register, a tile is two registers, and up to four rows of
//! activations share each load of weights. All but the products themselves serves AVX-VNNI too: see [`Products`].
//!
//! `maddubs` sums two products in 16 bits: unsigned weights up to `max` stay exact for `32767 / (2 * 127 * max)` such sums
//! (8 for nibbles, 4 for 5 bits, 2 for 6); signed weights go in as magnitude, with their sign moved to the activation,
//! one at a time: 2 * 128 * 127 fits.

use super::scalar::IQ4_VALUES;
use super::{AHEAD, FEW, TileArgs, high_bits};
use crate::pack::{Layout, Quant, STEP, SUPER, Scales, TILE};
use std::arch::x86_64::*;

/// Rows of activations that share the weights in registers.
const ROWS: usize = 4;

/// Two registers: 16 rows.
type Pair = [__m256; 2];

/// How weights of a step become operands of `maddubs`, known when the kernel is compiled.
pub(super) trait Weights {
    /// Bytes of a step.
    const STEP_BYTES: usize;
    /// `maddubs` results that can be added in 16 bits.
    const SUMS: usize;
    /// Whether the operand is a signed byte.
    const SIGNED: bool;
    /// The operand for quad `j` (columns 4j..4j+4) and half `h` (rows 8h..8h+8).
    unsafe fn quad(q: *const u8, j: usize, h: usize) -> __m256i;
}

pub(super) struct Nibble;
pub(super) struct NibbleIq4;
/// Nibbles with `BITS` higher bits in planes of their own.
pub(super) struct High<const BITS: usize>;
pub(super) type Five = High<1>;
pub(super) type Six = High<2>;
pub(super) struct Signed;

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn nibble_quad(q: *const u8, j: usize, h: usize) -> __m256i {
    // SAFETY: j % 4 and h < 2 keep the load inside the 256 bytes of the step.
    let bytes = unsafe { _mm256_loadu_si256(q.add((j % 4) * 64 + h * 32).cast()) };
    let mask = _mm256_set1_epi8(15);
    if j < 4 { _mm256_and_si256(bytes, mask) } else { _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask) }
}

impl Weights for Nibble {
    const STEP_BYTES: usize = 256;
    const SUMS: usize = 8;
    const SIGNED: bool = false;
    #[inline(always)]
    unsafe fn quad(q: *const u8, j: usize, h: usize) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { nibble_quad(q, j, h) }
    }
}

impl Weights for NibbleIq4 {
    const STEP_BYTES: usize = 256;
    const SUMS: usize = 1;
    const SIGNED: bool = true;
    #[inline(always)]
    unsafe fn quad(q: *const u8, j: usize, h: usize) -> __m256i {
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn look_up(codes: __m256i) -> __m256i {
            // SAFETY: the table has 16 bytes.
            let table = unsafe { _mm_loadu_si128(IQ4_VALUES.as_ptr().cast()) };
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes)
        }
        // SAFETY: the caller's promise.
        unsafe { look_up(nibble_quad(q, j, h)) }
    }
}

/// The bits from `at` on of every byte of a plane, `mask` at 4, over nibbles.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn with_high(nibble: __m256i, plane: __m256i, at: usize, mask: i8) -> __m256i {
    let moved = match at {
        0 => _mm256_slli_epi16::<4>(plane),
        1 => _mm256_slli_epi16::<3>(plane),
        2 => _mm256_slli_epi16::<2>(plane),
        3 => _mm256_slli_epi16::<1>(plane),
        5 => _mm256_srli_epi16::<1>(plane),
        6 => _mm256_srli_epi16::<2>(plane),
        7 => _mm256_srli_epi16::<3>(plane),
        _ => plane,
    };
    _mm256_or_si256(nibble, _mm256_and_si256(moved, _mm256_set1_epi8(mask)))
}

/// Half `h` of the 64 bytes of a plane.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn plane(q: *const u8, p: usize, h: usize) -> __m256i {
    // SAFETY: the caller's step holds the plane behind its 256 bytes of nibbles.
    unsafe { _mm256_loadu_si256(q.add(256 + p * 64 + h * 32).cast()) }
}

impl<const BITS: usize> Weights for High<BITS> {
    const STEP_BYTES: usize = 256 + 64 * BITS;
    const SUMS: usize = 32_767 / (2 * 127 * ((16 << BITS) - 1));
    const SIGNED: bool = false;
    #[inline(always)]
    unsafe fn quad(q: *const u8, j: usize, h: usize) -> __m256i {
        let (p, at, mask) = high_bits(BITS, j);
        // SAFETY: the caller's promise; the step has BITS planes, j < 8.
        unsafe { with_high(nibble_quad(q, j, h), plane(q, p, h), at, mask as i8) }
    }
}

impl Weights for Signed {
    const STEP_BYTES: usize = 512;
    const SUMS: usize = 1;
    const SIGNED: bool = true;
    #[inline(always)]
    unsafe fn quad(q: *const u8, j: usize, h: usize) -> __m256i {
        // SAFETY: j < 8 and h < 2 keep the load inside the 512 bytes of the step.
        unsafe { _mm256_loadu_si256(q.add(j * 64 + h * 32).cast()) }
    }
}

/// How scales are read, known when the kernel is compiled.
pub(super) trait ScaleKind {
    const SCALES: Scales;
    /// Scale and negated minimum of group `g`.
    unsafe fn load(sup: *const u8, step: *const u8, g: usize) -> (Pair, Pair);
}

pub(super) struct F16<const MIN: bool>;
pub(super) struct Super<const GROUP: usize, const MIN: bool>;
pub(super) struct F32<const GROUP: usize, const MIN: bool>;

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn f16_pair(p: *const u8) -> Pair {
    // SAFETY: the caller gives 32 readable bytes.
    unsafe { [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast()))] }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn i8_pair(p: *const u8) -> Pair {
    // SAFETY: the caller gives 16 readable bytes.
    let bytes = unsafe { _mm_loadu_si128(p.cast()) };
    [_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes)))]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn u8_pair(p: *const u8) -> Pair {
    // SAFETY: the caller gives 16 readable bytes.
    let bytes = unsafe { _mm_loadu_si128(p.cast()) };
    [_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes)))]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn f32_pair(p: *const u8) -> Pair {
    // SAFETY: the caller gives 64 readable bytes.
    unsafe { [_mm256_loadu_ps(p.cast()), _mm256_loadu_ps(p.add(32).cast())] }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn mul(a: Pair, b: Pair) -> Pair {
    [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn negate(a: Pair) -> Pair {
    let sign = _mm256_set1_ps(-0.0);
    [_mm256_xor_ps(a[0], sign), _mm256_xor_ps(a[1], sign)]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn zero() -> Pair {
    [_mm256_setzero_ps(); 2]
}

impl<const MIN: bool> ScaleKind for F16<MIN> {
    const SCALES: Scales = Scales::F16 { min: MIN };
    #[inline(always)]
    unsafe fn load(_: *const u8, step: *const u8, _: usize) -> (Pair, Pair) {
        // SAFETY: the step's scales are 32 bytes, and 32 more with a minimum.
        unsafe { (f16_pair(step), if MIN { f16_pair(step.add(2 * TILE)) } else { zero() }) }
    }
}

impl<const GROUP: usize, const MIN: bool> ScaleKind for Super<GROUP, MIN> {
    const SCALES: Scales = Scales::Super { group: GROUP, min: MIN };
    #[inline(always)]
    unsafe fn load(sup: *const u8, step: *const u8, g: usize) -> (Pair, Pair) {
        let groups = STEP / GROUP;
        // SAFETY: g < groups: 16 bytes a group, then as many of the minima; the super scales are 32 bytes each.
        unsafe {
            let w = mul(f16_pair(sup), i8_pair(step.add(g * TILE)));
            let m = if MIN { negate(mul(f16_pair(sup.add(2 * TILE)), u8_pair(step.add((groups + g) * TILE)))) } else { zero() };
            (w, m)
        }
    }
}

impl<const GROUP: usize, const MIN: bool> ScaleKind for F32<GROUP, MIN> {
    const SCALES: Scales = Scales::F32 { group: GROUP, min: MIN };
    #[inline(always)]
    unsafe fn load(_: *const u8, step: *const u8, g: usize) -> (Pair, Pair) {
        let groups = STEP / GROUP;
        // SAFETY: g < groups: 64 bytes a group, then as many of the minima.
        unsafe {
            let m = if MIN { negate(f32_pair(step.add((groups + g) * 4 * TILE))) } else { zero() };
            (f32_pair(step.add(g * 4 * TILE)), m)
        }
    }
}

/// How products are summed: what AVX2 and AVX-VNNI do differently.
pub(super) trait Products {
    /// What is added to the operands of signed weights, and taken back through the activations' sums.
    const SIGNED_SHIFT: i32;
    /// Sums of the products of a group, which begins at quad `FIRST`, with `N` rows of activations `k` apart. `x`: the first
    /// row at the step.
    unsafe fn group<W: Weights, const FIRST: usize, const QUADS: usize, const N: usize>(
        q: *const u8,
        x: *const i8,
        k: usize,
    ) -> [[__m256i; 2]; N];
    /// [`tile`], compiled for the instruction set.
    unsafe fn tile<W: Weights, S: ScaleKind, const N: usize>(args: &TileArgs, row: usize, shift: i32);
}

/// By `maddubs`.
struct Maddubs;

impl Products for Maddubs {
    const SIGNED_SHIFT: i32 = 0;
    #[inline(always)]
    unsafe fn group<W: Weights, const FIRST: usize, const QUADS: usize, const N: usize>(
        q: *const u8,
        x: *const i8,
        k: usize,
    ) -> [[__m256i; 2]; N] {
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn product(signed: bool, w: __m256i, x: __m256i) -> __m256i {
            if signed { _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)) } else { _mm256_maddubs_epi16(w, x) }
        }
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn widen(isum: __m256i, sum16: __m256i) -> __m256i {
            _mm256_add_epi32(isum, _mm256_madd_epi16(sum16, _mm256_set1_epi16(1)))
        }
        // SAFETY: the machine has AVX2; FIRST + j < 8, and the N rows hold 32 columns from `x` on.
        unsafe {
            let mut isum = [[_mm256_setzero_si256(); 2]; N];
            let mut sum16 = isum;
            for j in 0..QUADS {
                let w = [W::quad(q, FIRST + j, 0), W::quad(q, FIRST + j, 1)];
                for n in 0..N {
                    let x = _mm256_set1_epi32(x.add(n * k + 4 * (FIRST + j)).cast::<i32>().read_unaligned());
                    for h in 0..2 {
                        let p = product(W::SIGNED, w[h], x);
                        sum16[n][h] = if j % W::SUMS == 0 { p } else { _mm256_add_epi16(sum16[n][h], p) };
                        if j % W::SUMS == W::SUMS - 1 || j == QUADS - 1 {
                            isum[n][h] = widen(isum[n][h], sum16[n][h]);
                        }
                    }
                }
            }
            isum
        }
    }
    unsafe fn tile<W: Weights, S: ScaleKind, const N: usize>(args: &TileArgs, row: usize, shift: i32) {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn compiled<W: Weights, S: ScaleKind, const N: usize>(args: &TileArgs, row: usize, shift: i32) {
            // SAFETY: the caller's promise.
            unsafe { tile::<Maddubs, W, S, N>(args, row, shift) }
        }
        // SAFETY: the caller's promise.
        unsafe { compiled::<W, S, N>(args, row, shift) }
    }
}

super::int_kernels!();

unsafe fn rows<W: Weights, S: ScaleKind>(args: &TileArgs, offset: i32) {
    // SAFETY: the caller's promise.
    unsafe { rows_by::<Maddubs, W, S>(args, offset) }
}

/// All rows of activations, four at a time.
pub(super) unsafe fn rows_by<P: Products, W: Weights, S: ScaleKind>(args: &TileArgs, offset: i32) {
    let shift = offset + if W::SIGNED { P::SIGNED_SHIFT } else { 0 };
    let mut row = 0;
    while row < args.n_rows {
        let n = (args.n_rows - row).min(ROWS);
        // SAFETY: the caller's promise, and n rows remain.
        unsafe {
            match n {
                4 => P::tile::<W, S, 4>(args, row, shift),
                3 => P::tile::<W, S, 3>(args, row, shift),
                2 => P::tile::<W, S, 2>(args, row, shift),
                _ => P::tile::<W, S, 1>(args, row, shift),
            }
        }
        row += n;
    }
}

/// `N` rows of activations from `row` on.
#[inline(always)]
pub(super) unsafe fn tile<P: Products, W: Weights, S: ScaleKind, const N: usize>(args: &TileArgs, row: usize, shift: i32) {
    /// A row's accumulators with the sums of a group added: scaled, and the minimum where there is one.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn scaled(acc: Pair, isum: [__m256i; 2], scale_w: Pair, s: f32, min: Option<(Pair, f32)>) -> Pair {
        let w = mul(scale_w, [_mm256_set1_ps(s); 2]);
        let acc = [_mm256_fmadd_ps(_mm256_cvtepi32_ps(isum[0]), w[0], acc[0]), _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum[1]), w[1], acc[1])];
        match min {
            None => acc,
            Some((minus_min, sum)) => {
                let sum = _mm256_set1_ps(sum);
                [_mm256_fmadd_ps(minus_min[0], sum, acc[0]), _mm256_fmadd_ps(minus_min[1], sum, acc[1])]
            }
        }
    }
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn less(isum: [__m256i; 2], shift: i32) -> [__m256i; 2] {
        isum.map(|isum| _mm256_sub_epi32(isum, _mm256_set1_epi32(shift)))
    }
    let groups = S::SCALES.groups();
    // SAFETY: the machine has the instruction set.
    let mut acc: [Pair; N] = unsafe { [zero(); N] };
    let mut w = args.w;
    let mut sup = w;
    for step in 0..args.k / STEP {
        if S::SCALES.super_bytes() > 0 && step % (SUPER / STEP) == 0 {
            sup = w;
            // SAFETY: the tile holds the super scales before every eighth step.
            w = unsafe { w.add(S::SCALES.super_bytes()) };
        }
        if N <= FEW {
            for line in 0..(W::STEP_BYTES + S::SCALES.step_bytes()).div_ceil(64) {
                // SAFETY: a fetch of an address that isn't there does nothing; the machine has the instruction.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(AHEAD + line * 64).cast()) };
            }
        }
        // SAFETY: the scales follow the integers of the step; the rows hold the step's columns.
        let (scales, x) = unsafe { (w.add(W::STEP_BYTES), args.q.add(row * args.k + step * STEP)) };
        for g in 0..groups {
            // SAFETY: g < groups, and the N rows are there.
            let ((scale_w, minus_min), mut isum) = unsafe {
                let isum = match (groups, g) {
                    (1, _) => P::group::<W, 0, 8, N>(w, x, args.k),
                    (_, 0) => P::group::<W, 0, 4, N>(w, x, args.k),
                    _ => P::group::<W, 4, 4, N>(w, x, args.k),
                };
                (S::load(sup, scales, g), isum)
            };
            for (n, (acc, isum)) in acc.iter_mut().zip(&mut isum).enumerate() {
                if shift != 0 {
                    // SAFETY: one sum per 16 columns.
                    unsafe {
                        let sums = args.sum.add(2 * step * args.stride + row + n);
                        let sum = if groups == 1 { *sums + *sums.add(args.stride) } else { *sums.add(g * args.stride) };
                        *isum = less(*isum, shift * sum);
                    }
                }
                // SAFETY: row + n < n_rows; one scale per 32 columns, and for minima one value a group.
                unsafe {
                    let s = *args.scale.add(step * args.stride + row + n);
                    let sum = || match groups {
                        1 => *args.sum32.add(step * args.stride + row + n),
                        _ => *args.sum16.add((2 * step + g) * args.stride + row + n),
                    };
                    *acc = scaled(*acc, *isum, scale_w, s, S::SCALES.has_min().then(|| (minus_min, sum())));
                }
            }
        }
        // SAFETY: the next step, or one past the tile.
        w = unsafe { w.add(W::STEP_BYTES + S::SCALES.step_bytes()) };
    }
    for (n, acc) in acc.iter().enumerate() {
        // SAFETY: `out` has 16 floats a row.
        unsafe {
            let out = args.out.add((row + n) * TILE);
            _mm256_storeu_ps(out, acc[0]);
            _mm256_storeu_ps(out.add(8), acc[1]);
        }
    }
}

/// # Safety
/// As [`TileArgs`] says; the machine has AVX2, FMA and F16C.
pub(super) unsafe fn run_float(args: &TileArgs, layout: Layout) {
    let mut row = 0;
    while row < args.n_rows {
        let n = (args.n_rows - row).min(ROWS);
        // SAFETY: the caller's promise, and n rows remain.
        unsafe {
            match n {
                4 => float_tile::<4>(args, layout, row),
                3 => float_tile::<3>(args, layout, row),
                2 => float_tile::<2>(args, layout, row),
                _ => float_tile::<1>(args, layout, row),
            }
        }
        row += n;
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn float_tile<const N: usize>(args: &TileArgs, layout: Layout, row: usize) {
    let mut acc: [Pair; N] = [zero(); N];
    for c in 0..args.k {
        // SAFETY: column c of the tile: 16 elements.
        let w = unsafe {
            match layout {
                Layout::F32 => f32_pair(args.w.add(c * TILE * 4)),
                Layout::F16 => f16_pair(args.w.add(c * TILE * 2)),
                _ => bf16_pair(args.w.add(c * TILE * 2)),
            }
        };
        for (n, acc) in acc.iter_mut().enumerate() {
            // SAFETY: row + n < n_rows and c < k.
            let x = _mm256_set1_ps(unsafe { *args.x.add((row + n) * args.k + c) });
            *acc = [_mm256_fmadd_ps(w[0], x, acc[0]), _mm256_fmadd_ps(w[1], x, acc[1])];
        }
    }
    for (n, acc) in acc.iter().enumerate() {
        // SAFETY: `out` has 16 floats a row.
        unsafe {
            let out = args.out.add((row + n) * TILE);
            _mm256_storeu_ps(out, acc[0]);
            _mm256_storeu_ps(out.add(8), acc[1]);
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn bf16_pair(p: *const u8) -> Pair {
    // SAFETY: the caller gives 32 readable bytes.
    let (lo, hi) = unsafe { (_mm_loadu_si128(p.cast()), _mm_loadu_si128(p.add(16).cast())) };
    [
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(lo))),
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(hi))),
    ]
}
