//! NEON rows. Four output rows lie in the lanes of a register, a tile is four registers; what rows with `sdot` and `smmla`
//! have in common stands here too: all but [`Dot`].
//!
//! Of 32 registers, accumulators and sums of one row of activations with a tile take 8, of four rows 32: more rows than two
//! take the tile by halves, so that little is spilled. Weights are loaded and unpacked once for all rows of a pass.
//!
//! Without dot products, `smlal` adds products in 16 bits, one of each quad in a lane: 2 of signed bytes stay exact, 8 of up
//! to 5 bits, 4 of 6 bits. Sums of neighbouring lanes are then taken in 32 bits.

use super::scalar::IQ4_VALUES;
use super::{TileArgs, high_bits};
use crate::pack::{Layout, Quant, STEP, SUPER, Scales, TILE};
use std::arch::aarch64::*;

/// How weights of a step become signed bytes, known when the kernel is compiled.
pub(super) trait Weights {
    /// Bytes of a step.
    const STEP_BYTES: usize;
    /// Largest magnitude of an integer.
    const MAX: i32;
    /// What holds quad `j` (columns 4j..4j+4) of the rows 4h..4h+4.
    unsafe fn bytes(q: *const u8, j: usize, h: usize) -> uint8x16_t;
    /// The integers of quad `j` out of such bytes, each in its place.
    unsafe fn open(bytes: uint8x16_t, j: usize) -> int8x16_t;
}

pub(super) struct Nibble;
pub(super) struct NibbleIq4;
/// Nibbles with `BITS` higher bits in planes of their own.
pub(super) struct High<const BITS: usize>;
pub(super) type Five = High<1>;
pub(super) type Six = High<2>;
pub(super) struct Signed;

#[inline]
#[target_feature(enable = "neon")]
fn nibble(bytes: uint8x16_t, j: usize) -> uint8x16_t {
    if j < 4 { vandq_u8(bytes, vdupq_n_u8(15)) } else { vshrq_n_u8::<4>(bytes) }
}

impl Weights for Nibble {
    const STEP_BYTES: usize = 256;
    const MAX: i32 = 15;
    #[inline(always)]
    unsafe fn bytes(q: *const u8, j: usize, h: usize) -> uint8x16_t {
        // SAFETY: j % 4 and h < 4 keep the load inside the 256 bytes of the step.
        unsafe { vld1q_u8(q.add(j % 4 * 64 + h * 16)) }
    }
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn open(bytes: uint8x16_t, j: usize) -> int8x16_t {
        vreinterpretq_s8_u8(nibble(bytes, j))
    }
}

impl Weights for NibbleIq4 {
    const STEP_BYTES: usize = 256;
    const MAX: i32 = 127;
    #[inline(always)]
    unsafe fn bytes(q: *const u8, j: usize, h: usize) -> uint8x16_t {
        // SAFETY: the caller's promise.
        unsafe { Nibble::bytes(q, j, h) }
    }
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn open(bytes: uint8x16_t, j: usize) -> int8x16_t {
        // SAFETY: the table has 16 bytes.
        vqtbl1q_s8(unsafe { vld1q_s8(IQ4_VALUES.as_ptr()) }, nibble(bytes, j))
    }
}

/// The bits from `at` on of every byte of a plane, `mask` at 4, over nibbles.
#[inline]
#[target_feature(enable = "neon")]
fn with_high(nibble: uint8x16_t, plane: uint8x16_t, at: usize, mask: u8) -> uint8x16_t {
    let moved = match at {
        0 => vshlq_n_u8::<4>(plane),
        1 => vshlq_n_u8::<3>(plane),
        2 => vshlq_n_u8::<2>(plane),
        3 => vshlq_n_u8::<1>(plane),
        5 => vshrq_n_u8::<1>(plane),
        6 => vshrq_n_u8::<2>(plane),
        7 => vshrq_n_u8::<3>(plane),
        _ => plane,
    };
    vorrq_u8(nibble, vandq_u8(moved, vdupq_n_u8(mask)))
}

/// Rows 4h..4h+4 of the 64 bytes of a plane.
#[inline(always)]
unsafe fn plane(q: *const u8, p: usize, h: usize) -> uint8x16_t {
    // SAFETY: the caller's step holds the plane behind its 256 bytes of nibbles.
    unsafe { vld1q_u8(q.add(256 + p * 64 + h * 16)) }
}

impl<const BITS: usize> Weights for High<BITS> {
    const STEP_BYTES: usize = 256 + 64 * BITS;
    const MAX: i32 = (16 << BITS) - 1;
    #[inline(always)]
    unsafe fn bytes(q: *const u8, j: usize, h: usize) -> uint8x16_t {
        let (p, at, mask) = high_bits(BITS, j);
        // SAFETY: the caller's promise; the step has BITS planes, j < 8.
        unsafe { with_high(nibble(Nibble::bytes(q, j, h), j), plane(q, p, h), at, mask) }
    }
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn open(bytes: uint8x16_t, _: usize) -> int8x16_t {
        vreinterpretq_s8_u8(bytes)
    }
}

impl Weights for Signed {
    const STEP_BYTES: usize = 512;
    const MAX: i32 = 128;
    #[inline(always)]
    unsafe fn bytes(q: *const u8, j: usize, h: usize) -> uint8x16_t {
        // SAFETY: j < 8 and h < 4 keep the load inside the 512 bytes of the step.
        unsafe { vld1q_u8(q.add(j * 64 + h * 16)) }
    }
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn open(bytes: uint8x16_t, _: usize) -> int8x16_t {
        vreinterpretq_s8_u8(bytes)
    }
}

/// How scales are read, known when the kernel is compiled.
pub(super) trait ScaleKind {
    const SCALES: Scales;
    /// Scale and negated minimum of group `g` for `H` registers from `h0` on. `H` and `h0` are even.
    unsafe fn load<const H: usize>(sup: *const u8, step: *const u8, g: usize, h0: usize) -> [[float32x4_t; H]; 2];
}

pub(super) struct F16<const MIN: bool>;
pub(super) struct Super<const GROUP: usize, const MIN: bool>;
pub(super) struct F32<const GROUP: usize, const MIN: bool>;

/// `H` registers of halves.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn halves<const H: usize>(p: *const u8) -> [float32x4_t; H] {
    // SAFETY: the caller gives 8 readable bytes a register.
    std::array::from_fn(|h| vcvt_f32_f16(vreinterpret_f16_u16(unsafe { vld1_u16(p.add(8 * h).cast()) })))
}

/// `H` registers of floats.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn floats<const H: usize>(p: *const u8) -> [float32x4_t; H] {
    // SAFETY: the caller gives 16 readable bytes a register.
    std::array::from_fn(|h| unsafe { vld1q_f32(p.add(16 * h).cast()) })
}

/// `H` registers of signed bytes, two at a time.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn signed<const H: usize>(p: *const u8) -> [float32x4_t; H] {
    let mut out = [vdupq_n_f32(0.0); H];
    for (i, out) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        // SAFETY: the caller gives 8 readable bytes for two registers.
        let wide = vmovl_s8(unsafe { vld1_s8(p.add(8 * i).cast()) });
        *out = [vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide))];
    }
    out
}

/// `H` registers of unsigned bytes, two at a time.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn unsigned<const H: usize>(p: *const u8) -> [float32x4_t; H] {
    let mut out = [vdupq_n_f32(0.0); H];
    for (i, out) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        // SAFETY: the caller gives 8 readable bytes for two registers.
        let wide = vmovl_u8(unsafe { vld1_u8(p.add(8 * i)) });
        *out = [vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), vcvtq_f32_u32(vmovl_high_u16(wide))];
    }
    out
}

#[inline]
#[target_feature(enable = "neon")]
fn mul<const H: usize>(a: [float32x4_t; H], b: [float32x4_t; H]) -> [float32x4_t; H] {
    std::array::from_fn(|h| vmulq_f32(a[h], b[h]))
}

#[inline]
#[target_feature(enable = "neon")]
fn zeros<const H: usize>() -> [float32x4_t; H] {
    [vdupq_n_f32(0.0); H]
}

impl<const MIN: bool> ScaleKind for F16<MIN> {
    const SCALES: Scales = Scales::F16 { min: MIN };
    #[inline(always)]
    unsafe fn load<const H: usize>(_: *const u8, step: *const u8, _: usize, h0: usize) -> [[float32x4_t; H]; 2] {
        // SAFETY: the step's scales are 32 bytes, and 32 more with a minimum.
        unsafe { [halves(step.add(8 * h0)), if MIN { halves(step.add(2 * TILE + 8 * h0)) } else { zeros() }] }
    }
}

impl<const GROUP: usize, const MIN: bool> ScaleKind for Super<GROUP, MIN> {
    const SCALES: Scales = Scales::Super { group: GROUP, min: MIN };
    #[inline(always)]
    unsafe fn load<const H: usize>(sup: *const u8, step: *const u8, g: usize, h0: usize) -> [[float32x4_t; H]; 2] {
        let groups = STEP / GROUP;
        // SAFETY: g < groups: 16 bytes a group, then as many of the minima; the super scales are 32 bytes each.
        unsafe {
            let w = mul(halves(sup.add(8 * h0)), signed(step.add(g * TILE + 4 * h0)));
            let m = || mul(halves(sup.add(2 * TILE + 8 * h0)), unsigned(step.add((groups + g) * TILE + 4 * h0)));
            [w, if MIN { m().map(|m| vnegq_f32(m)) } else { zeros() }]
        }
    }
}

impl<const GROUP: usize, const MIN: bool> ScaleKind for F32<GROUP, MIN> {
    const SCALES: Scales = Scales::F32 { group: GROUP, min: MIN };
    #[inline(always)]
    unsafe fn load<const H: usize>(_: *const u8, step: *const u8, g: usize, h0: usize) -> [[float32x4_t; H]; 2] {
        let groups = STEP / GROUP;
        // SAFETY: g < groups: 64 bytes a group, then as many of the minima.
        unsafe {
            let m = || floats(step.add((groups + g) * 4 * TILE + 16 * h0)).map(|m| vnegq_f32(m));
            [floats(step.add(g * 4 * TILE + 16 * h0)), if MIN { m() } else { zeros() }]
        }
    }
}

/// Columns of a step that a group covers.
pub(super) const WHOLE: u8 = 0;
pub(super) const FIRST_HALF: u8 = 1;
pub(super) const SECOND_HALF: u8 = 2;

/// How products are summed: what the instruction sets do differently.
pub(super) trait Dot {
    /// Exact sums of products over the columns `PART` of a step, for `H` registers of weights from `h0` on and `N` rows of
    /// activations `k` apart, `x` the first at the step. Each row's begins at `start`.
    unsafe fn group<W: Weights, const PART: u8, const N: usize, const H: usize>(
        q: *const u8,
        h0: usize,
        x: *const i8,
        k: usize,
        start: [i32; N],
    ) -> [[int32x4_t; H]; N];
}

/// By `smull` and `smlal`.
struct Widening;

/// Products of two quads, added in 16 bits: those of the lower and of the upper two rows of each register.
#[inline(always)]
unsafe fn quads<W: Weights, const J: usize, const K: usize, const N: usize, const H: usize>(
    sums: &mut [[[int16x8_t; 2]; H]; N],
    (q, h0, x, k): (*const u8, usize, *const i8, usize),
) {
    #[inline]
    #[target_feature(enable = "neon")]
    fn add(sums: [int16x8_t; 2], w: int8x16_t, x: int8x16_t) -> [int16x8_t; 2] {
        [vmlal_s8(sums[0], vget_low_s8(w), vget_low_s8(x)), vmlal_high_s8(sums[1], w, x)]
    }
    for j in [J, K] {
        // SAFETY: j < 8, h0 + H <= 4, and the N rows hold 32 columns from `x` on.
        unsafe {
            let w: [int8x16_t; H] = std::array::from_fn(|h| W::open(W::bytes(q, j, h0 + h), j));
            for (n, sums) in sums.iter_mut().enumerate() {
                let x = vreinterpretq_s8_s32(vld1q_dup_s32(x.add(n * k + 4 * j).cast()));
                for (sums, w) in sums.iter_mut().zip(w) {
                    *sums = add(*sums, w, x);
                }
            }
        }
    }
}

/// Adds neighbouring lanes in 32 bits, and begins anew in 16.
#[inline]
#[target_feature(enable = "neon")]
fn widen<const N: usize, const H: usize>(sums: &mut [[[int32x4_t; 2]; H]; N], narrow: &mut [[[int16x8_t; 2]; H]; N]) {
    for (sums, narrow) in sums.as_flattened_mut().iter_mut().zip(narrow.as_flattened_mut()) {
        *sums = [vpadalq_s16(sums[0], narrow[0]), vpadalq_s16(sums[1], narrow[1])];
        *narrow = [vdupq_n_s16(0); 2];
    }
}

/// Whether the products of so many quads can be added in 16 bits.
const fn fit_in_16_bits<W: Weights>(quads: i32) -> bool {
    quads * 127 * W::MAX <= i16::MAX as i32
}

impl Dot for Widening {
    #[inline(always)]
    unsafe fn group<W: Weights, const PART: u8, const N: usize, const H: usize>(
        q: *const u8,
        h0: usize,
        x: *const i8,
        k: usize,
        start: [i32; N],
    ) -> [[int32x4_t; H]; N] {
        /// In the first lane of each pair: pairs are added below.
        #[inline]
        #[target_feature(enable = "neon")]
        fn begin(start: i32) -> [int32x4_t; 2] {
            [vreinterpretq_s32_u64(vdupq_n_u64(u64::from(start as u32))); 2]
        }
        #[inline]
        #[target_feature(enable = "neon")]
        fn pairs([low, high]: [int32x4_t; 2]) -> int32x4_t {
            vpaddq_s32(low, high)
        }
        // Whether products are added in 16 bits over the whole group, or just those of two quads.
        let narrow_group = fit_in_16_bits::<W>(if PART == WHOLE { 8 } else { 4 });
        let at = (q, h0, x, k);
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = start.map(|s| [begin(s); H]);
            let mut narrow = [[[vdupq_n_s16(0); 2]; H]; N];
            macro_rules! take {
                ($($j:literal $k:literal),*) => {
                    $(
                        quads::<W, $j, $k, N, H>(&mut narrow, at);
                        if !narrow_group {
                            widen(&mut sums, &mut narrow);
                        }
                    )*
                };
            }
            match PART {
                FIRST_HALF => {
                    take!(0 1, 2 3);
                }
                SECOND_HALF => {
                    take!(4 5, 6 7);
                }
                // The low and the high nibbles of the same bytes together.
                _ => {
                    take!(0 4, 1 5, 2 6, 3 7);
                }
            }
            if narrow_group {
                widen(&mut sums, &mut narrow);
            }
            sums.map(|sums| sums.map(|sums| pairs(sums)))
        }
    }
}

super::int_kernels!();

/// Both halves of a tile, one after the other.
macro_rules! by_halves {
    ($args:expr, $row:expr, $offset:expr, $tile:expr) => {{
        $tile($args, $row, 0, $offset);
        $tile($args, $row, 2, $offset);
    }};
}
pub(super) use by_halves;

/// All rows of activations: four at a time where sums stay in 16 bits, as only then registers suffice, otherwise two.
unsafe fn rows<W: Weights, S: ScaleKind>(args: &TileArgs, offset: i32) {
    let quads = if S::SCALES.groups() == 1 { 8 } else { 4 };
    let at_once = if fit_in_16_bits::<W>(quads) { 4 } else { 2 };
    let mut row = 0;
    while row < args.n_rows {
        let n = (args.n_rows - row).min(at_once);
        // SAFETY: the caller's promise, and n rows remain.
        unsafe {
            match n {
                4 => by_halves!(args, row, offset, tile::<Widening, W, S, 4, 2>),
                3 => by_halves!(args, row, offset, tile::<Widening, W, S, 3, 2>),
                2 => by_halves!(args, row, offset, tile::<Widening, W, S, 2, 2>),
                _ => tile::<Widening, W, S, 1, 4>(args, row, 0, offset),
            }
        }
        row += n;
    }
}

/// `N` rows of activations from `row` on with `H` registers of the tile from `h0` on.
#[inline(always)]
pub(super) unsafe fn tile<D: Dot, W: Weights, S: ScaleKind, const N: usize, const H: usize>(
    args: &TileArgs,
    row: usize,
    h0: usize,
    offset: i32,
) {
    /// A row's accumulators with the sums of a group added: scaled, and the minimum where there is one.
    #[inline]
    #[target_feature(enable = "neon")]
    fn scaled(acc: float32x4_t, isum: int32x4_t, scale_w: float32x4_t, s: f32) -> float32x4_t {
        vfmaq_f32(acc, vcvtq_f32_s32(isum), vmulq_n_f32(scale_w, s))
    }
    let k = args.k;
    let groups = S::SCALES.groups();
    // SAFETY: the caller's machine has NEON.
    let mut acc = unsafe { [[vdupq_n_f32(0.0); H]; N] };
    let mut w = args.w;
    let mut sup = w;
    for step in 0..k / STEP {
        if S::SCALES.super_bytes() > 0 && step % (SUPER / STEP) == 0 {
            sup = w;
            // SAFETY: the tile holds the super scales before every eighth step.
            w = unsafe { w.add(S::SCALES.super_bytes()) };
        }
        // SAFETY: the scales follow the integers of the step; the rows hold the step's columns.
        let (scales, x) = unsafe { (w.add(W::STEP_BYTES), args.q.add(row * k + step * STEP)) };
        for g in 0..groups {
            let start = std::array::from_fn(|n| {
                if offset == 0 {
                    return 0;
                }
                // SAFETY: row + n < n_rows; one sum per 16 columns.
                let sum = unsafe {
                    let sums = args.sum.add(2 * step * args.stride + row + n);
                    if groups == 1 { *sums + *sums.add(args.stride) } else { *sums.add(g * args.stride) }
                };
                -offset * sum
            });
            // SAFETY: the step is in the tile, the N rows are there, and the caller's machine has the instruction set of D.
            let isum: [[int32x4_t; H]; N] = unsafe {
                // A constant condition, so that the compiler needn't build what isn't used.
                if const { S::SCALES.groups() == 1 } {
                    D::group::<W, WHOLE, N, H>(w, h0, x, k, start)
                } else if g == 0 {
                    D::group::<W, FIRST_HALF, N, H>(w, h0, x, k, start)
                } else {
                    D::group::<W, SECOND_HALF, N, H>(w, h0, x, k, start)
                }
            };
            // SAFETY: g < groups.
            let [scale_w, minus_min] = unsafe { S::load::<H>(sup, scales, g, h0) };
            for (n, (acc, isum)) in acc.iter_mut().zip(isum).enumerate() {
                // SAFETY: row + n < n_rows; one scale per 32 columns, and for minima one value a group.
                unsafe {
                    let s = *args.scale.add(step * args.stride + row + n);
                    for h in 0..H {
                        acc[h] = scaled(acc[h], isum[h], scale_w[h], s);
                    }
                    if S::SCALES.has_min() {
                        let sum = match groups {
                            1 => *args.sum32.add(step * args.stride + row + n),
                            _ => *args.sum16.add((2 * step + g) * args.stride + row + n),
                        };
                        for h in 0..H {
                            acc[h] = vfmaq_n_f32(acc[h], minus_min[h], sum);
                        }
                    }
                }
            }
        }
        // SAFETY: the next step, or one past the tile.
        w = unsafe { w.add(W::STEP_BYTES + S::SCALES.step_bytes()) };
    }
    for (n, acc) in acc.into_iter().enumerate() {
        for (h, acc) in acc.into_iter().enumerate() {
            // SAFETY: `out` has 16 floats a row.
            unsafe { vst1q_f32(args.out.add((row + n) * TILE + 4 * (h0 + h)), acc) };
        }
    }
}

/// # Safety
/// As [`TileArgs`] says.
pub(super) unsafe fn run_float(args: &TileArgs, layout: Layout) {
    let mut row = 0;
    while row < args.n_rows {
        let n = (args.n_rows - row).min(4);
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

#[target_feature(enable = "neon")]
unsafe fn float_tile<const N: usize>(args: &TileArgs, layout: Layout, row: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match layout {
            Layout::F32 => float_columns::<N>(args, row, |c| floats(args.w.add(c * TILE * 4))),
            Layout::F16 => float_columns::<N>(args, row, |c| halves(args.w.add(c * TILE * 2))),
            _ => float_columns::<N>(args, row, |c| {
                std::array::from_fn(|h| {
                    let bits = vld1_u16(args.w.add(c * TILE * 2 + 8 * h).cast());
                    vreinterpretq_f32_u32(vshll_n_u16::<16>(bits))
                })
            }),
        }
    }
}

/// `N` rows of activations from `row` on. `column`: the sixteen weights of a column.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn float_columns<const N: usize>(args: &TileArgs, row: usize, column: impl Fn(usize) -> [float32x4_t; 4]) {
    let mut acc = [[vdupq_n_f32(0.0); 4]; N];
    for c in 0..args.k {
        let w = column(c);
        for (n, acc) in acc.iter_mut().enumerate() {
            // SAFETY: row + n < n_rows and c < k.
            let x = unsafe { *args.x.add((row + n) * args.k + c) };
            for (acc, w) in acc.iter_mut().zip(w) {
                *acc = vfmaq_n_f32(*acc, w, x);
            }
        }
    }
    for (n, acc) in acc.into_iter().enumerate() {
        for (h, acc) in acc.into_iter().enumerate() {
            // SAFETY: `out` has 16 floats a row.
            unsafe { vst1q_f32(args.out.add((row + n) * TILE + 4 * h), acc) };
        }
    }
}
