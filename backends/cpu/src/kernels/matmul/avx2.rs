//! AVX2 rows. Eight output rows lie in the lanes of a register, a tile is two registers, and up to four rows of
//! activations share each load of weights.
//!
//! `maddubs` sums two products in 16 bits: unsigned weights up to `max` stay exact for `32767 / (2 * 127 * max)` such sums
//! (8 for nibbles, 4 for 5 bits, 2 for 6); signed weights go in as magnitude, with their sign moved to the activation,
//! one at a time: 2 * 128 * 127 fits.

use super::TileArgs;
use super::scalar::IQ4_VALUES;
use crate::pack::{Layout, Quant, STEP, SUPER, Scales, TILE};
use std::arch::x86_64::*;

/// Rows of activations that share the weights in registers.
const ROWS: usize = 4;

/// Two registers: 16 rows.
type Pair = [__m256; 2];

/// How weights of a step become operands of `maddubs`, known when the kernel is compiled.
trait Weights {
    /// Bytes of a step.
    const STEP_BYTES: usize;
    /// `maddubs` results that can be added in 16 bits.
    const SUMS: usize;
    /// Whether the operand is a signed byte.
    const SIGNED: bool;
    /// The operand for quad `j` (columns 4j..4j+4) and half `h` (rows 8h..8h+8).
    unsafe fn quad(q: *const u8, j: usize, h: usize) -> __m256i;
}

struct Nibble;
struct NibbleIq4;
struct Byte<const MAX: u8>;
struct Signed;

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

impl<const MAX: u8> Weights for Byte<MAX> {
    const STEP_BYTES: usize = 512;
    const SUMS: usize = 32_767 / (2 * 127 * MAX as usize);
    const SIGNED: bool = false;
    #[inline(always)]
    unsafe fn quad(q: *const u8, j: usize, h: usize) -> __m256i {
        // SAFETY: j < 8 and h < 2 keep the load inside the 512 bytes of the step.
        unsafe { _mm256_loadu_si256(q.add(j * 64 + h * 32).cast()) }
    }
}

impl Weights for Signed {
    const STEP_BYTES: usize = 512;
    const SUMS: usize = 1;
    const SIGNED: bool = true;
    #[inline(always)]
    unsafe fn quad(q: *const u8, j: usize, h: usize) -> __m256i {
        // SAFETY: as for `Byte`.
        unsafe { _mm256_loadu_si256(q.add(j * 64 + h * 32).cast()) }
    }
}

/// How scales are read, known when the kernel is compiled.
trait ScaleKind {
    const SCALES: Scales;
    /// Scale and negated minimum of group `g`.
    unsafe fn load(sup: *const u8, step: *const u8, g: usize) -> (Pair, Pair);
}

struct F16<const MIN: bool>;
struct Super<const GROUP: usize, const MIN: bool>;
struct F32<const GROUP: usize, const MIN: bool>;

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

super::int_kernels!();

/// All rows of activations, four at a time.
unsafe fn rows<W: Weights, S: ScaleKind>(args: &TileArgs, offset: i32) {
    let mut row = 0;
    while row < args.n_rows {
        let n = (args.n_rows - row).min(ROWS);
        // SAFETY: the caller's promise, and n rows remain.
        unsafe {
            match n {
                4 => tile::<W, S, 4>(args, row, offset),
                3 => tile::<W, S, 3>(args, row, offset),
                2 => tile::<W, S, 2>(args, row, offset),
                _ => tile::<W, S, 1>(args, row, offset),
            }
        }
        row += n;
    }
}

/// `N` rows of activations from `row` on.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<W: Weights, S: ScaleKind, const N: usize>(args: &TileArgs, row: usize, offset: i32) {
    let k = args.k;
    let groups = S::SCALES.groups();
    let quads = 8 / groups;
    let ones = _mm256_set1_epi16(1);
    let mut acc: [Pair; N] = [zero(); N];
    let mut w = args.w;
    let mut sup = w;
    for step in 0..k / STEP {
        if S::SCALES.super_bytes() > 0 && step % (SUPER / STEP) == 0 {
            sup = w;
            // SAFETY: the tile holds the super scales before every eighth step.
            w = unsafe { w.add(S::SCALES.super_bytes()) };
        }
        // SAFETY: the scales follow the integers of the step.
        let scales = unsafe { w.add(W::STEP_BYTES) };
        for g in 0..groups {
            // SAFETY: g < groups.
            let (scale_w, minus_min) = unsafe { S::load(sup, scales, g) };
            let mut isum: [[__m256i; 2]; N] = [[_mm256_setzero_si256(); 2]; N];
            let mut sum16: [[__m256i; 2]; N] = isum;
            for jg in 0..quads {
                let j = g * quads + jg;
                // SAFETY: j < 8.
                let (w0, w1) = unsafe { (W::quad(w, j, 0), W::quad(w, j, 1)) };
                for n in 0..N {
                    // SAFETY: row + n < n_rows, and step * 32 + 4 j + 4 <= k.
                    let x = unsafe { args.q.add((row + n) * k + step * STEP + 4 * j).cast::<i32>().read_unaligned() };
                    let x = _mm256_set1_epi32(x);
                    let (p0, p1) = if W::SIGNED {
                        (
                            _mm256_maddubs_epi16(_mm256_abs_epi8(w0), _mm256_sign_epi8(x, w0)),
                            _mm256_maddubs_epi16(_mm256_abs_epi8(w1), _mm256_sign_epi8(x, w1)),
                        )
                    } else {
                        (_mm256_maddubs_epi16(w0, x), _mm256_maddubs_epi16(w1, x))
                    };
                    if jg % W::SUMS == 0 {
                        sum16[n] = [p0, p1];
                    } else {
                        sum16[n] = [_mm256_add_epi16(sum16[n][0], p0), _mm256_add_epi16(sum16[n][1], p1)];
                    }
                    if jg % W::SUMS == W::SUMS - 1 || jg == quads - 1 {
                        isum[n] = [
                            _mm256_add_epi32(isum[n][0], _mm256_madd_epi16(sum16[n][0], ones)),
                            _mm256_add_epi32(isum[n][1], _mm256_madd_epi16(sum16[n][1], ones)),
                        ];
                    }
                }
            }
            for n in 0..N {
                // SAFETY: row + n < n_rows; one scale per 32 columns.
                let s_all = _mm256_set1_ps(unsafe { *args.scale.add(step * args.stride + row + n) });
                if offset != 0 {
                    // SAFETY: one sum per 16 columns.
                    let sum = unsafe {
                        let sums = args.sum.add(2 * step * args.stride + row + n);
                        if groups == 1 { *sums + *sums.add(args.stride) } else { *sums.add(g * args.stride) }
                    };
                    let shift = _mm256_set1_epi32(offset * sum);
                    isum[n] = isum[n].map(|isum| _mm256_sub_epi32(isum, shift));
                }
                for h in 0..2 {
                    acc[n][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum[n][h]), _mm256_mul_ps(scale_w[h], s_all), acc[n][h]);
                    if S::SCALES.has_min() {
                        // SAFETY: one value a group.
                        let sum = unsafe {
                            match groups {
                                1 => *args.sum32.add(step * args.stride + row + n),
                                _ => *args.sum16.add((2 * step + g) * args.stride + row + n),
                            }
                        };
                        acc[n][h] = _mm256_fmadd_ps(minus_min[h], _mm256_set1_ps(sum), acc[n][h]);
                    }
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
