//! The chain against a naive one in f64, closed-form cases, golden draws.

use super::*;
use crate::math::double::{exp, ln, pow};

/// A small fixed generator for test data, not the sampler's own.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 20) % n
    }
    fn unit(&mut self) -> f32 {
        self.below(1 << 20) as f32 / (1 << 20) as f32
    }
    /// Logits of a random spread; on coarse grids there are ties.
    fn logits(&mut self, n: usize) -> Vec<f32> {
        let spread = [0.5f32, 4.0, 12.0, 60.0][self.below(4) as usize];
        let grid = [0.0f32, 0.25][self.below(2) as usize];
        (0..n)
            .map(|_| {
                // A sum of uniforms: most logits in the middle, few at the top, as a model's are.
                let x = (self.unit() + self.unit() + self.unit() - 1.5) * spread;
                if grid > 0.0 { (x / grid).round() * grid } else { x }
            })
            .collect()
    }
}

/// The chain by the book: (id, logit) of the candidates, in f64.
struct Naive {
    set: Vec<(u32, f64)>,
    temperature: f64,
    /// The smallest relative distance of any decision from its border: below f32's precision the two may differ.
    margin: f64,
}

impl Naive {
    fn near(&mut self, a: f64, b: f64) {
        self.margin = self.margin.min((a - b).abs() / a.abs().max(b.abs()).max(1e-30));
    }

    /// Probabilities, most probable first, ties to the lowest id.
    fn softmax(&self) -> Vec<(u32, f64)> {
        let max = self.set.iter().fold(f64::NEG_INFINITY, |m, c| m.max(c.1));
        let mut ps: Vec<(u32, f64)> = self.set.iter().map(|&(id, l)| (id, exp((l - max) / self.temperature))).collect();
        let sum: f64 = ps.iter().map(|p| p.1).sum();
        ps.iter_mut().for_each(|p| p.1 /= sum);
        ps.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        ps
    }

    fn keep(&mut self, ids: &[u32]) {
        let ids: std::collections::HashSet<u32> = ids.iter().copied().collect();
        self.set.retain(|c| ids.contains(&c.0));
    }

    /// The shortest prefix whose probabilities reach `p`.
    fn reach(&mut self, order: &[(u32, f64)], p: f64) {
        let mut sum = 0.0;
        let mut kept = Vec::new();
        for &(id, q) in order {
            kept.push(id);
            sum += q;
            self.near(sum, p);
            if sum >= p {
                break;
            }
        }
        self.keep(&kept);
    }

    fn run(&mut self, stage: Stage, params: &SamplingParams, tokens: &[u32], xtc: bool) {
        let tail = |n: usize| &tokens[tokens.len() - n.min(tokens.len())..];
        match stage {
            Stage::Penalties => {
                let window = tail(params.penalty_last_n);
                for c in &mut self.set {
                    let count = window.iter().filter(|&&t| t == c.0).count() as f64;
                    if count > 0.0 {
                        let l = c.1 / self.temperature;
                        let l = if l > 0.0 { l / f64::from(params.repeat_penalty) } else { l * f64::from(params.repeat_penalty) };
                        let l = l - count * f64::from(params.frequency_penalty) - f64::from(params.presence_penalty);
                        c.1 = l * self.temperature;
                    }
                }
            }
            Stage::Dry => {
                if params.dry_multiplier > 0.0 {
                    let window = tail(params.dry_last_n);
                    let n = window.len();
                    for c in &mut self.set {
                        let runs = (1..n)
                            .filter(|&next| window[next] == c.0)
                            .map(|next| (0..next).take_while(|&k| window[next - 1 - k] == window[n - 1 - k]).count());
                        let longest = runs.max().unwrap_or(0);
                        if longest >= params.dry_allowed_length as usize {
                            let extra = (longest - params.dry_allowed_length as usize) as f64;
                            c.1 -= f64::from(params.dry_multiplier) * pow(f64::from(params.dry_base), extra) * self.temperature;
                        }
                    }
                }
            }
            Stage::TopK => {
                if params.top_k > 0 {
                    let ps = self.softmax();
                    let kept: Vec<u32> = ps.iter().take(params.top_k as usize).map(|p| p.0).collect();
                    self.keep(&kept);
                }
            }
            Stage::TypicalP => {
                if params.typical_p < 1.0 {
                    let mut ps = self.softmax();
                    let entropy: f64 = ps.iter().map(|p| -p.1 * ln(p.1.max(1e-300))).sum();
                    let deviation = |p: f64| (-ln(p.max(1e-300)) - entropy).abs();
                    ps.sort_by(|a, b| deviation(a.1).total_cmp(&deviation(b.1)).then(a.0.cmp(&b.0)));
                    for pair in ps.windows(2).filter(|pair| pair[0].1 != pair[1].1) {
                        // Relative to the size of the terms that cancel in the difference.
                        let gap = (deviation(pair[0].1) - deviation(pair[1].1)).abs() / (1.0 + entropy);
                        self.margin = self.margin.min(gap);
                    }
                    self.reach(&ps, f64::from(params.typical_p));
                }
            }
            Stage::TopP => {
                if params.top_p < 1.0 {
                    let ps = self.softmax();
                    self.reach(&ps, f64::from(params.top_p));
                }
            }
            Stage::MinP => {
                let ps = self.softmax();
                let bound = ps[0].1 * f64::from(params.min_p);
                ps.iter().filter(|p| p.1 != ps[0].1).for_each(|p| self.near(p.1, bound));
                let kept: Vec<u32> = ps.iter().filter(|p| p.1 >= bound || p.1 == ps[0].1).map(|p| p.0).collect();
                self.keep(&kept);
            }
            Stage::Xtc => {
                if xtc {
                    let ps = self.softmax();
                    ps.iter().for_each(|p| self.near(p.1, f64::from(params.xtc_threshold)));
                    let n = ps.iter().filter(|p| p.1 >= f64::from(params.xtc_threshold)).count();
                    let kept: Vec<u32> = ps[n.saturating_sub(1)..].iter().map(|p| p.0).collect();
                    self.keep(&kept);
                }
            }
            Stage::Temperature => self.temperature = f64::from(params.temperature),
        }
    }
}

fn survivors(sampler: &mut Sampler, logits: &mut [f32]) -> Vec<(u32, f64)> {
    let max = checked_max(sampler.work.level, logits, sampler.n_vocab).unwrap();
    let (mut step, _, _) = sampler.begin(logits, max, false).unwrap();
    run_stages(&mut step);
    let out = step.candidates.distribution();
    step.candidates.restore();
    out
}

fn random_params(rng: &mut Noise) -> SamplingParams {
    let on = |rng: &mut Noise| rng.below(3) == 0;
    let mut p = SamplingParams { seed: Some(rng.next()), ..SamplingParams::plain(1.0) };
    p.temperature = [1.0, 0.7, 0.2, 1.9][rng.below(4) as usize];
    if on(rng) {
        p.top_k = 1 + rng.below(100) as u32;
    }
    if on(rng) {
        p.top_p = rng.unit();
    }
    if on(rng) {
        p.min_p = [rng.unit(), 0.01, 1e-4][rng.below(3) as usize];
    }
    if on(rng) {
        p.typical_p = rng.unit();
    }
    if on(rng) {
        p.xtc_probability = 1.0;
        p.xtc_threshold = [0.1, 0.01, 1e-4, 0.5][rng.below(4) as usize];
    }
    if on(rng) {
        p.repeat_penalty = 1.0 + rng.unit();
        p.frequency_penalty = rng.unit() - 0.3;
        p.presence_penalty = rng.unit() - 0.3;
        p.penalty_last_n = rng.below(50) as usize;
    }
    if on(rng) {
        p.dry_multiplier = rng.unit() + 0.1;
        p.dry_allowed_length = 1 + rng.below(3) as u32;
        p.dry_last_n = rng.below(60) as usize;
    }
    if rng.below(2) == 0 {
        for i in (1..p.order.len()).rev() {
            p.order.swap(i, rng.below(i as u64 + 1) as usize);
        }
    }
    p
}

#[test]
fn chains_of_any_order_keep_what_the_naive_chain_keeps() {
    let mut rng = Noise(0x5e1_ed6e);
    let (mut n_compared, mut n_close) = (0, 0);
    for round in 0..2000 {
        let params = random_params(&mut rng);
        let n_vocab = [1 + rng.below(8), 1 + rng.below(200), 1 + rng.below(3000)][(round % 3) as usize] as usize;
        let mut logits = rng.logits(n_vocab);
        let tokens: Vec<u32> = (0..rng.below(80)).map(|_| rng.below(n_vocab.min(6) as u64) as u32).collect();
        let mut sampler = Sampler::new(params.clone(), n_vocab).unwrap();
        tokens.iter().for_each(|&t| sampler.accept(TokenId(t)));

        let set = logits.iter().enumerate().map(|(i, &l)| (i as u32, f64::from(l))).collect();
        let mut naive = Naive { set, temperature: 1.0, margin: f64::INFINITY };
        for &stage in &params.order {
            naive.run(stage, &params, &tokens, params.xtc_probability > 0.0);
        }
        let before = logits.clone();
        let got = survivors(&mut sampler, &mut logits);
        assert_eq!(before, logits, "logits are given back");
        assert!(!got.is_empty(), "a candidate survives");
        if naive.margin < 3e-5 {
            n_close += 1;
            continue;
        }
        let mut want = naive.softmax();
        want.sort_by_key(|p| p.0);
        let ids = |set: &[(u32, f64)]| set.iter().map(|c| c.0).collect::<Vec<_>>();
        assert_eq!(ids(&got), ids(&want), "round {round}, {n_vocab} tokens, {params:?}");
        for (a, b) in got.iter().zip(&want) {
            assert!((a.1 - b.1).abs() < 2e-5, "round {round}: token {} has {} not {}, {params:?}", a.0, a.1, b.1);
        }
        n_compared += 1;
    }
    println!("{n_compared} compared, {n_close} too close to a border");
    assert!(n_compared > 1000);
}

/// Logits of the shapes that a fast path could stumble over.
fn shaped(rng: &mut Noise, shape: u64, n: usize) -> Vec<f32> {
    let mut xs: Vec<f32> = match shape {
        0 => (0..n).map(|_| rng.unit() * 0.1).collect(),
        // Zipf over shuffled ids: the shuffle is a multiplication by a number prime to n or nearly.
        1 | 2 => {
            let s = if shape == 1 { 1.1 } else { 2.5 };
            (0..n).map(|i| (-s * ln((i * 7919 % n) as f64 + 1.0)) as f32).collect()
        }
        3 => vec![rng.unit() * 8.0 - 4.0; n],
        // Peaked: one or a few far above the rest.
        4 => (0..n).map(|i| if i % 1000 == 7 { 30.0 + rng.unit() } else { rng.unit() }).collect(),
        // Both zeros, and neighbours that only the last bit tells apart.
        5 => (0..n).map(|_| [0.0, -0.0, 1e-45, -1e-45, 1e-7][rng.below(5) as usize]).collect(),
        // Ranges beyond what a difference holds.
        6 => (0..n).map(|_| (rng.unit() - 0.5) * [1.0, 1e3, 1e38, f32::MAX][rng.below(4) as usize]).collect(),
        _ => rng.logits(n),
    };
    match rng.below(3) {
        0 => xs.iter_mut().for_each(|x| *x = if rng.below(3) > 0 { f32::NEG_INFINITY } else { *x }),
        1 => (0..3).for_each(|_| xs[rng.below(n as u64) as usize] = f32::NEG_INFINITY),
        _ => {}
    }
    xs[rng.below(n as u64) as usize] = 0.5;
    xs
}

/// Every chain gives the token and the log-probability of the chain that sorts everything, bit by bit.
fn agree_with_sorting(n_round: u64, n_vocab_max: u64) {
    let mut rng = Noise(0xabcd_ef01 + n_round);
    for round in 0..n_round {
        let shape = round % 9;
        let n_vocab = 1 + [rng.below(70), rng.below(2000), rng.below(n_vocab_max)][rng.below(3) as usize] as usize;
        let mut params = random_params(&mut rng);
        match rng.below(10) {
            0 => params.temperature = 0.0,
            1 => params.mirostat = Some(Mirostat { tau: 1.0 + 9.0 * rng.unit(), eta: 0.3 }),
            // Shares so near the whole that the tail's weights are lost in the sum.
            2 => (params.top_p, params.top_k) = (0.999_999_9, 0),
            3 => (params.typical_p, params.top_k) = (0.999_999_9, 0),
            4 => params.temperature = [1e-4, 30.0, 1e9][rng.below(3) as usize],
            5 => (params.top_p, params.top_k) = (0.5, 0),
            _ => {}
        }
        params.xtc_probability *= 0.5;
        let mut id = 0;
        for _ in 0..rng.below(4) {
            id += rng.below(20) as u32;
            if (id as usize) < n_vocab {
                params.logit_bias.push((TokenId(id), [-100.0, 100.0, 3.5, -2.0][rng.below(4) as usize]));
            }
            id += 1;
        }
        let mut logits = shaped(&mut rng, shape, n_vocab);
        for level in wide::Level::available() {
            let mut sampler = Sampler::new(params.clone(), n_vocab).unwrap();
            sampler.work.level = level;
            let mut token_only = sampler.clone();
            let mut with_top = sampler.clone();
            let mut reference = reference::Reference::new(params.clone());
            let (mut top, mut same_top) = (Vec::new(), Vec::new());
            for step in 0..5 {
                let got = sampler.sample(&mut logits).ok();
                assert_eq!(token_only.sample_token(&mut logits).ok(), got.map(|s| s.token));
                assert_eq!(with_top.sample_with_top(&mut logits, 4, &mut top).ok(), got);
                if got.is_some() {
                    sampler.top_logprobs(&logits, 4, &mut same_top).unwrap();
                    assert_eq!(top, same_top);
                }
                let want = reference.sample(&logits);
                let bits = |s: Option<Sampled>| s.map(|s| (s.token, s.logprob.to_bits()));
                assert_eq!(bits(got), bits(want), "round {round}, step {step}, {level:?}, shape {shape}, {n_vocab} tokens, {params:?}");
                let Some(Sampled { token, .. }) = got else { break };
                let token = TokenId(token.0 % 5);
                for sampler in [&mut sampler, &mut token_only, &mut with_top] {
                    sampler.accept(token);
                }
                reference.accept(token);
            }
        }
    }
}

#[test]
fn chains_of_any_order_agree_with_sorting_everything() {
    agree_with_sorting(1500, 9000);
}

#[test]
#[ignore = "long: two minutes of sorting large vocabularies"]
fn chains_of_large_vocabularies_agree_with_sorting_everything() {
    agree_with_sorting(400, 300_000);
}

fn counts(params: SamplingParams, logits: &[f32], n: usize) -> Vec<usize> {
    let mut logits = logits.to_vec();
    let mut sampler = Sampler::new(params, logits.len()).unwrap();
    let mut counts = vec![0; logits.len()];
    for _ in 0..n {
        counts[sampler.sample(&mut logits).unwrap().token.0 as usize] += 1;
    }
    counts
}

const TIED: [f32; 4] = [1.0, 3.0, 3.0, 2.0];

#[test]
fn temperatures_below_the_epsilon_take_the_first_of_the_best() {
    for temperature in [0.0, -0.0, 1e-45, 1e-30, 1e-6, 9.9e-6] {
        for seed in 0..20 {
            let params = SamplingParams { seed: Some(seed), ..SamplingParams::plain(temperature) };
            assert_eq!(counts(params, &TIED, 50), [0, 50, 0, 0], "temperature {temperature}, seed {seed}");
        }
    }
}

#[test]
fn limits_of_the_filters_leave_the_best() {
    let with = |change: fn(&mut SamplingParams)| {
        let mut params = SamplingParams { seed: Some(3), ..SamplingParams::plain(1.0) };
        change(&mut params);
        counts(params, &TIED, 1000)
    };
    assert_eq!(with(|p| p.top_p = 0.0), [0, 1000, 0, 0]);
    assert_eq!(with(|p| p.top_k = 1), [0, 1000, 0, 0]);
    let both = with(|p| p.min_p = 1.0);
    assert!(both[0] == 0 && both[3] == 0 && both[1] > 400 && both[2] > 400, "{both:?}");
    // Surprises 0.86, 0.86, 1.86, 2.86 and entropy 1.14: the two best are the most typical, the first of them first.
    assert_eq!(with(|p| p.typical_p = 0.0), [0, 1000, 0, 0]);
}

#[test]
fn plain_temperature_draws_the_softmax() {
    let n = 100_000;
    for temperature in [1.0f32, 0.5, 2.0] {
        let params = SamplingParams { seed: Some(11), ..SamplingParams::plain(temperature) };
        let got = counts(params, &TIED, n);
        let weights: Vec<f64> = TIED.iter().map(|&l| exp(f64::from(l) / f64::from(temperature))).collect();
        let sum: f64 = weights.iter().sum();
        for (i, w) in weights.iter().enumerate() {
            let (p, q) = (w / sum, got[i] as f64 / n as f64);
            assert!((p - q).abs() < 0.01, "temperature {temperature}: token {i} came {q}, not {p}");
        }
    }
}

#[test]
fn large_vocabularies_draw_the_softmax_too() {
    // Chi-square over 20 bins of equal probability, on more tokens than one block holds.
    let mut rng = Noise(77);
    let n_vocab = 5000;
    let mut logits = rng.logits(n_vocab);
    let max = logits.iter().fold(f32::MIN, |a, &b| a.max(b));
    let weights: Vec<f64> = logits.iter().map(|&l| exp(f64::from(l - max))).collect();
    let sum: f64 = weights.iter().sum();
    let mut edges = Vec::new();
    let mut running = 0.0;
    for w in &weights {
        running += w / sum;
        edges.push(running);
    }
    let mut sampler = Sampler::new(SamplingParams { seed: Some(5), ..SamplingParams::plain(1.0) }, n_vocab).unwrap();
    let n = 20_000;
    let mut bins = [0.0f64; 20];
    let mut expected = [0.0f64; 20];
    for (i, w) in weights.iter().enumerate() {
        expected[((edges[i] * 20.0) as usize).min(19)] += w / sum * f64::from(n);
    }
    for _ in 0..n {
        let id = sampler.sample(&mut logits).unwrap().token.0 as usize;
        bins[((edges[id] * 20.0) as usize).min(19)] += 1.0;
    }
    let chi: f64 = bins.iter().zip(&expected).filter(|b| *b.1 > 0.0).map(|(o, e)| (o - e) * (o - e) / e).sum();
    // 19 degrees of freedom: 43.8 is passed once in a thousand.
    assert!(chi < 43.8, "chi-square {chi}");
}

#[test]
fn huge_logits_stay_finite() {
    for scale in [1e30f32, 1e38] {
        let mut logits: Vec<f32> = TIED.iter().map(|l| l * scale).collect();
        for temperature in [0.0, 0.5, 1.0] {
            let mut params = SamplingParams { seed: Some(1), ..SamplingParams::plain(temperature) };
            params.typical_p = 0.9;
            params.repeat_penalty = 1.1;
            let mut sampler = Sampler::new(params, 4).unwrap();
            for _ in 0..50 {
                let s = sampler.sample(&mut logits).unwrap();
                assert!([1, 2].contains(&s.token.0) && s.logprob.is_finite());
                assert!((f64::from(s.logprob) + ln(2.0)).abs() < 1e-6);
            }
        }
    }
    let mut logits = [f32::MAX, f32::MIN, 0.0];
    let mut sampler = Sampler::new(SamplingParams { seed: Some(1), ..SamplingParams::default() }, 3).unwrap();
    assert_eq!(sampler.sample(&mut logits).unwrap(), Sampled { token: TokenId(0), logprob: 0.0 });
}

#[test]
fn bad_parameters_are_refused_by_name() {
    let check = |change: fn(&mut SamplingParams), want: &str| {
        let mut params = SamplingParams::default();
        change(&mut params);
        let error = params.validate(100).unwrap_err().to_string();
        assert_eq!(error, want);
        assert_eq!(Sampler::new(params, 100).unwrap_err().to_string(), want);
    };
    check(|p| p.temperature = -1.0, "sampling parameter temperature is -1, expected a finite number of at least 0");
    check(|p| p.temperature = f32::NAN, "sampling parameter temperature is NaN, expected a finite number of at least 0");
    check(|p| p.temperature = f32::INFINITY, "sampling parameter temperature is inf, expected a finite number of at least 0");
    check(|p| p.top_p = f32::NAN, "sampling parameter top_p is NaN, expected a number from 0 to 1");
    check(|p| p.top_p = -0.5, "sampling parameter top_p is -0.5, expected a number from 0 to 1");
    check(|p| p.min_p = 1.5, "sampling parameter min_p is 1.5, expected a number from 0 to 1");
    check(|p| p.typical_p = 2.0, "sampling parameter typical_p is 2, expected a number from 0 to 1");
    check(|p| p.xtc_probability = -1.0, "sampling parameter xtc_probability is -1, expected a number from 0 to 1");
    check(|p| p.xtc_threshold = f32::NAN, "sampling parameter xtc_threshold is NaN, expected a number from 0 to 1");
    check(|p| p.repeat_penalty = 0.0, "sampling parameter repeat_penalty is 0, expected a finite number above 0");
    check(|p| p.frequency_penalty = f32::NAN, "sampling parameter frequency_penalty is NaN, expected a finite number");
    check(|p| p.presence_penalty = f32::INFINITY, "sampling parameter presence_penalty is inf, expected a finite number");
    check(|p| p.dry_multiplier = -1.0, "sampling parameter dry_multiplier is -1, expected a finite number of at least 0");
    check(|p| p.dry_base = 0.5, "sampling parameter dry_base is 0.5, expected a finite number of at least 1");
    check(|p| p.mirostat = Some(Mirostat { tau: 0.0, eta: 0.1 }), "sampling parameter mirostat tau is 0, expected a finite number above 0");
    check(
        |p| p.mirostat = Some(Mirostat { tau: 5.0, eta: f32::NAN }),
        "sampling parameter mirostat eta is NaN, expected a number above 0, at most 1",
    );
    check(|p| p.penalty_last_n = usize::MAX, "sampling parameter penalty_last_n is 18446744073709552000, expected at most 1048576 tokens");
    check(
        |p| p.logit_bias = vec![(TokenId(99_999_999), 1.0)],
        "sampling parameter logit_bias names token 99999999, but the vocabulary has ids 0 to 99",
    );
    check(
        |p| p.logit_bias = vec![(TokenId(5), f32::INFINITY)],
        "logit bias of token 5 is inf, expected a number from -100 (ban) to 100 (force)",
    );
    check(
        |p| p.logit_bias = vec![(TokenId(5), f32::NAN)],
        "logit bias of token 5 is NaN, expected a number from -100 (ban) to 100 (force)",
    );
    check(|p| p.dry_breakers = vec![TokenId(100)], "sampling parameter dry_breakers names token 100, but the vocabulary has ids 0 to 99");
    check(|p| p.order = vec![Stage::TopK, Stage::TopK], "sampler stage top_k stands twice in the order, expected at most once");
    assert_eq!(SamplingParams::default().validate(0), Err(Error::Vocab { n_vocab: 0 }));
    assert_eq!(SamplingParams::default().validate(1), Ok(()));
}

#[test]
fn biases_ban_force_and_add() {
    let params = |bias: &[(u32, f32)], temperature: f32| SamplingParams {
        seed: Some(2),
        logit_bias: bias.iter().map(|&(id, b)| (TokenId(id), b)).collect(),
        ..SamplingParams::plain(temperature)
    };
    for temperature in [0.0, 1.0, 50.0] {
        let banned = counts(params(&[(1, -100.0)], temperature), &TIED, 500);
        assert!(banned[1] == 0 && banned[2] > 0, "{banned:?}");
        assert_eq!(counts(params(&[(0, 100.0)], temperature), &TIED, 500), [500, 0, 0, 0]);
        // Also where the model is surer of another than any bias could outweigh.
        assert_eq!(counts(params(&[(0, 100.0)], temperature), &[-900.0, 900.0, 0.0], 50), [50, 0, 0]);
        assert_eq!(counts(params(&[(1, -100.0)], temperature), &[-900.0, 900.0, -900.0], 50)[1], 0);
    }
    assert_eq!(counts(params(&[(3, 1.5)], 0.0), &TIED, 5), [0, 0, 0, 5]);
    // The later entry counts.
    assert_eq!(counts(params(&[(3, 1.5), (3, 0.0)], 0.0), &TIED, 5), [0, 5, 0, 0]);
    // Two forced tokens share by their own logits; a forced token that is banned by its logit isn't available.
    let both = counts(params(&[(0, 100.0), (3, 100.0)], 1.0), &TIED, 2000);
    assert!(both[1] == 0 && both[2] == 0 && both[0] > 400 && both[3] > 1300, "{both:?}");
    let mut logits = [f32::NEG_INFINITY, 0.0];
    let mut sampler = Sampler::new(params(&[(0, 100.0)], 1.0), 2).unwrap();
    assert_eq!(sampler.sample(&mut logits), Err(Error::AllBanned { n_vocab: 2 }));
    assert_eq!(logits, [f32::NEG_INFINITY, 0.0]);
    // A filter-free bias comes before top-k.
    let mut first = params(&[(0, 10.0)], 1.0);
    first.top_k = 1;
    assert_eq!(counts(first, &TIED, 20), [20, 0, 0, 0]);
}

#[test]
fn everything_banned_is_an_error() {
    let all = (0..4).map(|id| (TokenId(id), -100.0)).collect();
    let mut sampler = Sampler::new(SamplingParams { logit_bias: all, ..SamplingParams::greedy() }, 4).unwrap();
    let mut logits = TIED;
    assert_eq!(sampler.sample(&mut logits).unwrap_err().to_string(), "all 4 tokens are banned, expected at least one that may follow");
    assert_eq!(logits, TIED);
    let mut sampler = Sampler::new(SamplingParams::default(), 4).unwrap();
    assert_eq!(sampler.sample(&mut [f32::NEG_INFINITY; 4]), Err(Error::AllBanned { n_vocab: 4 }));
    // One left is enough for every filter.
    let mut mask = [f32::NEG_INFINITY; 4];
    mask[2] = -5.0;
    let mut params = SamplingParams { typical_p: 0.3, xtc_probability: 1.0, xtc_threshold: 0.1, ..SamplingParams::default() };
    for order in [DEFAULT_ORDER.to_vec(), DEFAULT_ORDER.iter().rev().copied().collect()] {
        params.order = order;
        let got = Sampler::new(params.clone(), 4).unwrap().sample(&mut mask).unwrap();
        assert_eq!((got.token, got.logprob), (TokenId(2), 0.0));
    }
}

#[test]
fn logits_that_are_no_numbers_are_an_error() {
    let mut sampler = Sampler::new(SamplingParams { seed: Some(1), ..SamplingParams::default() }, 4).unwrap();
    let before = sampler.state().clone();
    for bad in [f32::NAN, f32::INFINITY] {
        let mut logits = [0.0, 1.0, bad, bad];
        let error = sampler.sample(&mut logits).unwrap_err();
        assert!(matches!(error, Error::NonFinite { token: 2, .. }), "{error}");
        assert!(sampler.top_logprobs(&logits, 2, &mut Vec::new()).is_err());
    }
    assert_eq!(sampler.sample(&mut [0.0; 5]), Err(Error::LogitsLen { expected: 4, found: 5 }));
    assert_eq!(sampler.state().rng, before.rng, "a refused draw takes no random number");
}

#[test]
fn logprobs_are_of_the_raw_distribution() {
    let mut rng = Noise(4);
    for n_vocab in [1usize, 5, 1024, 1025, 4000] {
        let mut logits = rng.logits(n_vocab);
        let max = logits.iter().fold(f32::MIN, |a, &b| a.max(b));
        let sum: f64 = logits.iter().map(|&l| exp(f64::from(l - max))).sum();
        let mut params = SamplingParams { seed: Some(9), repeat_penalty: 1.5, temperature: 0.3, ..SamplingParams::default() };
        params.logit_bias = vec![(TokenId(0), 40.0)];
        let mut sampler = Sampler::new(params, n_vocab).unwrap();
        for _ in 0..20 {
            let s = sampler.sample(&mut logits).unwrap();
            let want = f64::from(logits[s.token.0 as usize] - max) - ln(sum);
            assert!((f64::from(s.logprob) - want).abs() < 1e-5, "{} {want}", s.logprob);
            sampler.accept(s.token);
        }
        let mut top = Vec::new();
        sampler.top_logprobs(&logits, 7, &mut top).unwrap();
        let mut order: Vec<usize> = (0..n_vocab).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        let ids: Vec<usize> = top.iter().map(|t| t.0.0 as usize).collect();
        assert_eq!(ids, order[..7.min(n_vocab)]);
        for (TokenId(id), logprob) in top {
            let want = f64::from(logits[id as usize] - max) - ln(sum);
            assert!((f64::from(logprob) - want).abs() < 1e-5);
        }
        sampler.top_logprobs(&logits, 0, &mut Vec::new()).unwrap();
    }
    // Ties to the lowest id, banned tokens left out.
    let mut top = Vec::new();
    let mut sampler = Sampler::new(SamplingParams::greedy(), 4).unwrap();
    sampler.top_logprobs(&[2.0, f32::NEG_INFINITY, 3.0, 3.0], 9, &mut top).unwrap();
    assert_eq!(top.iter().map(|t| t.0.0).collect::<Vec<_>>(), [2, 3, 0]);
}

#[test]
fn penalties_by_hand() {
    let logits = [2.0f32, -2.0, 1.0, 0.5];
    let greedy = |change: fn(&mut SamplingParams), history: &[u32]| {
        let mut params = SamplingParams::plain(1.0);
        change(&mut params);
        let mut sampler = Sampler::new(params, 4).unwrap();
        history.iter().for_each(|&t| sampler.accept(TokenId(t)));
        survivors(&mut sampler, &mut logits.clone())
    };
    // Adjusted logits, from which the probabilities follow.
    let softmax = |ls: [f64; 4]| {
        let sum: f64 = ls.iter().map(|&l| exp(l)).sum();
        ls.map(|l| exp(l) / sum)
    };
    let close = |got: &[(u32, f64)], want: [f64; 4]| {
        assert_eq!(got.len(), 4);
        got.iter().zip(want).for_each(|(g, w)| assert!((g.1 - w).abs() < 1e-6, "{got:?} {want:?}"));
    };
    close(&greedy(|p| p.repeat_penalty = 2.0, &[0, 1, 1]), softmax([1.0, -4.0, 1.0, 0.5]));
    close(&greedy(|p| p.frequency_penalty = 0.5, &[0, 1, 1]), softmax([1.5, -3.0, 1.0, 0.5]));
    close(&greedy(|p| p.presence_penalty = 0.5, &[0, 1, 1]), softmax([1.5, -2.5, 1.0, 0.5]));
    let windowed = |p: &mut SamplingParams| (p.presence_penalty, p.penalty_last_n) = (0.5, 2);
    close(&greedy(windowed, &[0, 1, 1]), softmax([2.0, -2.5, 1.0, 0.5]));
    // Tokens that the vocabulary lacks are remembered and do no harm.
    close(&greedy(|p| p.presence_penalty = 0.5, &[7, u32::MAX]), softmax([2.0, -2.0, 1.0, 0.5]));
    // No penalty bans, however large.
    let extreme = greedy(|p| (p.frequency_penalty, p.repeat_penalty) = (f32::MAX, f32::MAX), &[0, 1, 2, 3]);
    assert!(!extreme.is_empty());
}

#[test]
fn dry_by_hand() {
    let mut params = SamplingParams::greedy();
    (params.dry_multiplier, params.dry_base, params.dry_allowed_length) = (0.8, 2.0, 2);
    let mut sampler = Sampler::new(params.clone(), 10).unwrap();
    let mut logits = [0.0f32; 10];
    logits[3] = 1.0;
    for t in [1, 2, 3, 9, 1, 2] {
        sampler.accept(TokenId(t));
    }
    // A run of two costs 0.8: 3 still leads. With the run 0 1 2 it costs 1.6.
    assert_eq!(sampler.sample(&mut logits).unwrap().token, TokenId(3));
    sampler.reset();
    for t in [0, 1, 2, 3, 9, 0, 1, 2] {
        sampler.accept(TokenId(t));
    }
    assert_eq!(sampler.sample(&mut logits).unwrap().token, TokenId(0));
    params.dry_breakers = vec![TokenId(1)];
    let mut sampler = Sampler::new(params, 10).unwrap();
    for t in [0, 1, 2, 3, 9, 0, 1, 2] {
        sampler.accept(TokenId(t));
    }
    assert_eq!(sampler.sample(&mut logits).unwrap().token, TokenId(3));
}

#[test]
fn xtc_by_hand() {
    // Probabilities 0.5, 0.3, 0.15, 0.05.
    let logits = [ln(0.5) as f32, ln(0.3) as f32, ln(0.15) as f32, ln(0.05) as f32];
    let with = |probability, threshold, top_k| {
        let params =
            SamplingParams { seed: Some(6), xtc_probability: probability, xtc_threshold: threshold, top_k, ..SamplingParams::plain(1.0) };
        counts(params, &logits, 20_000)
    };
    // With and without a list before it.
    for top_k in [0, 4] {
        let always = with(1.0, 0.1, top_k);
        assert!(always[0] == 0 && always[1] == 0, "{always:?}");
        assert!((14_700..15_300).contains(&always[2]), "{always:?}");
        // Only one token reaches 0.4: nothing to exclude.
        let one = with(1.0, 0.4, top_k);
        assert!((9_700..10_300).contains(&one[0]), "{one:?}");
        let half = with(0.5, 0.1, top_k);
        assert!((4_700..5_300).contains(&half[0]), "{half:?}");
        let above = with(1.0, 0.51, top_k);
        assert!((9_700..10_300).contains(&above[0]), "{above:?}");
    }
}

#[test]
fn mirostat_holds_its_target() {
    // A Zipf distribution has surprises from 3 to 16 bits to choose from.
    let logits: Vec<f32> = (0..5000).map(|i| -(ln(f64::from(i) + 1.0) as f32)).collect();
    let weights: Vec<f64> = logits.iter().map(|&l| exp(f64::from(l))).collect();
    let sum: f64 = weights.iter().sum();
    for tau in [3.0f32, 5.0, 7.0] {
        let params = SamplingParams { seed: Some(8), mirostat: Some(Mirostat { tau, eta: 0.1 }), ..SamplingParams::plain(1.0) };
        let mut sampler = Sampler::new(params, logits.len()).unwrap();
        let mut work = logits.clone();
        let mut total = 0.0;
        let mut mu = 2.0 * f64::from(tau);
        for step in 0..3000 {
            // By the book: truncate at mu bits, renormalise, correct mu by the surprise of what came.
            let least = exp(-mu * LN_2) * sum;
            let kept = weights.partition_point(|&w| w >= least).max(1);
            let kept_sum: f64 = weights[..kept].iter().sum();
            let token = sampler.sample(&mut work).unwrap().token;
            assert!((token.0 as usize) < kept, "step {step}: token {} of {kept}", token.0);
            let surprise = -(f64::from(logits[token.0 as usize]) - ln(kept_sum)) / LN_2;
            mu -= 0.1 * (surprise - f64::from(tau));
            assert!((mu - sampler.state().mu).abs() < 1e-3, "step {step}: {mu} {}", sampler.state().mu);
            mu = sampler.state().mu;
            total += surprise;
        }
        let mean = total / 3000.0;
        assert!((mean - f64::from(tau)).abs() < 0.1, "target {tau}, mean {mean}");
    }
}

#[test]
fn snapshots_and_resets_repeat_the_draws() {
    let mut rng = Noise(21);
    let mut params = SamplingParams { seed: Some(42), repeat_penalty: 1.2, dry_multiplier: 0.5, ..SamplingParams::default() };
    for mirostat in [None, Some(Mirostat::default())] {
        params.mirostat = mirostat;
        let mut logits = rng.logits(3000);
        let mut sampler = Sampler::new(params.clone(), 3000).unwrap();
        let mut run = |sampler: &mut Sampler, n: usize| -> Vec<Sampled> {
            (0..n)
                .map(|_| {
                    let s = sampler.sample(&mut logits).unwrap();
                    sampler.accept(s.token);
                    s
                })
                .collect()
        };
        let first = run(&mut sampler, 50);
        let mut snapshot = sampler.state().clone();
        let mut copy = sampler.clone();
        let second = run(&mut sampler, 50);
        assert_ne!(first, second);
        assert_eq!(run(&mut copy, 50), second);
        sampler.restore(&snapshot);
        assert_eq!(run(&mut sampler, 50), second);
        snapshot.clone_from(sampler.state());
        sampler.reset();
        assert_eq!(run(&mut sampler, 50), first);
        assert_eq!(run(&mut sampler, 50), second);
    }
}

#[test]
fn seeds_decide_and_are_reported() {
    let mut logits = Noise(5).logits(500);
    let mut run = |seed: Option<u64>| {
        let mut sampler = Sampler::new(SamplingParams { seed, ..SamplingParams::plain(1.0) }, 500).unwrap();
        let ids: Vec<u32> = (0..64).map(|_| sampler.sample(&mut logits).unwrap().token.0).collect();
        (sampler.seed(), ids)
    };
    assert_eq!(run(Some(7)), run(Some(7)));
    assert_ne!(run(Some(7)).1, run(Some(8)).1);
    let (seed, ids) = run(None);
    assert_ne!(seed, run(None).0, "two random seeds");
    assert_eq!(run(Some(seed)).1, ids, "the reported seed repeats the draws");
}

/// Random everything: no panic, a token of the vocabulary that isn't banned, logits given back.
#[test]
fn survives_random_parameters_and_logits() {
    let mut rng = Noise(99);
    let weird = [0.0f32, 1.0, 1e-45, 1e-30, 1e-5, 0.5, 3.0, 1e10, f32::MAX];
    for _ in 0..5000 {
        let mut params = random_params(&mut rng);
        params.temperature = weird[rng.below(9) as usize];
        params.repeat_penalty = weird[1 + rng.below(8) as usize];
        params.frequency_penalty = weird[rng.below(9) as usize];
        params.dry_multiplier = weird[rng.below(9) as usize];
        params.dry_base = [1.0, 1.75, f32::MAX][rng.below(3) as usize];
        params.xtc_threshold = [0.0, 1e-9, 0.3, 0.5, 1.0][rng.below(5) as usize];
        params.top_k = [0, 1, 3, u32::MAX][rng.below(4) as usize];
        if rng.below(4) == 0 {
            params.mirostat = Some(Mirostat { tau: weird[3 + rng.below(6) as usize], eta: 1.0 });
        }
        let n_vocab = 1 + rng.below(1200) as usize;
        if rng.below(4) == 0 {
            params.logit_bias = vec![(TokenId(0), [100.0, -100.0, 5.0][rng.below(3) as usize])];
        }
        params.order.truncate(rng.below(9) as usize);
        let mut logits = rng.logits(n_vocab);
        let scale = [1.0f32, 0.0, 1e30, 1e-42][rng.below(4) as usize];
        logits.iter_mut().for_each(|l| *l *= scale);
        for _ in 0..rng.below(n_vocab as u64) {
            logits[rng.below(n_vocab as u64) as usize] = [f32::NEG_INFINITY, f32::MIN, f32::MAX][rng.below(8).min(2) as usize];
        }
        let before: Vec<u32> = logits.iter().map(|l| l.to_bits()).collect();
        let mut sampler = Sampler::new(params.clone(), n_vocab).unwrap();
        for _ in 0..6 {
            match sampler.sample(&mut logits) {
                Ok(s) => {
                    assert!(logits[s.token.0 as usize] > f32::NEG_INFINITY, "{params:?}");
                    assert!(s.logprob.is_finite() && s.logprob <= 0.0);
                    sampler.accept(s.token);
                }
                Err(e) => assert_eq!(e, Error::AllBanned { n_vocab }, "{params:?}"),
            }
        }
        assert_eq!(before, logits.iter().map(|l| l.to_bits()).collect::<Vec<_>>(), "logits are given back");
    }
}

#[test]
fn golden_draws() {
    // A Zipf distribution over shuffled ids.
    let mut logits = vec![0.0f32; 4096];
    for rank in 0..4096 {
        logits[rank * 2731 % 4096] = -1.1 * ln(rank as f64 + 1.0) as f32;
    }
    let draws = |params: SamplingParams, level: wide::Level| -> Vec<u32> {
        let mut work = logits.clone();
        let mut sampler = Sampler::new(SamplingParams { seed: Some(7), ..params }, work.len()).unwrap();
        sampler.work.level = level;
        (0..10)
            .map(|_| {
                let token = sampler.sample(&mut work).unwrap().token;
                sampler.accept(token);
                token.0
            })
            .collect()
    };
    let base = || SamplingParams::plain(1.0);
    for level in wide::Level::available() {
        // These may change only in a commit that says so: somebody's seed gives other text from then on.
        assert_eq!(draws(SamplingParams::default(), level), [0, 0, 1, 0, 1369, 2731, 1, 0, 2735, 0]);
        assert_eq!(draws(base(), level), [0, 1, 2731, 1366, 3050, 1367, 2731, 64, 3387, 0]);
        assert_eq!(draws(SamplingParams { top_p: 0.7, ..base() }, level), [0, 0, 6, 1, 1395, 2732, 2737, 2731, 1399, 0]);
        assert_eq!(draws(SamplingParams { typical_p: 0.5, ..base() }, level), [1366, 2732, 2747, 4, 59, 5, 1382, 1368, 2796, 1366]);
        assert_eq!(
            draws(SamplingParams { xtc_probability: 0.5, xtc_threshold: 0.005, ..base() }, level),
            [83, 1366, 1367, 64, 0, 83, 0, 27, 101, 2768]
        );
        assert_eq!(
            draws(SamplingParams { mirostat: Some(Mirostat::default()), ..base() }, level),
            [0, 0, 2731, 39, 2750, 1366, 2731, 4, 2756, 0]
        );
    }
}
