//! The chain by sorting everything: the definition that the fast paths must meet to the last bit.
//!
//! Each filter that orders candidates sorts the whole list; sums run over the list in the order that it has. What the
//! fast paths share with it are the keys, the weights of a block and the draw's arithmetic, which define the bits.

use super::history::History;
use super::params::SamplingParams;
use super::rng::Rng;
use super::wide::{self, BLOCK, Level};
use super::{MU_MAX, Sampled, Stage, dry, filters, initial_mu};
use crate::ids::TokenId;
use crate::math::{self, double};
use std::f64::consts::LN_2;

pub(super) struct Reference {
    params: SamplingParams,
    rng: Rng,
    history: History,
    dry: dry::Scratch,
    mu: f64,
}

/// The candidates of one draw.
struct Set {
    logits: Vec<f32>,
    temperature: f32,
    /// Candidates in their order; none: all tokens, banned ones with weight 0.
    list: Option<Vec<u32>>,
}

/// Sums of the blocks, and their sum.
fn softmax(logits: impl Iterator<Item = f32>, max: f32, temperature: f32) -> (Vec<f32>, f64) {
    let level = Level::available().next().unwrap();
    let logits: Vec<f32> = logits.collect();
    let sums: Vec<f32> = logits.chunks(BLOCK).map(|xs| wide::weights(level, xs, max, temperature, &mut [0.0; BLOCK])).collect();
    let sum = sums.iter().fold(0.0, |sum, &s| sum + f64::from(s));
    (sums, sum)
}

impl Set {
    fn ids(&self) -> Vec<u32> {
        self.list.clone().unwrap_or_else(|| (0..self.logits.len() as u32).collect())
    }

    /// Those that aren't banned.
    fn alive(&self) -> Vec<u32> {
        self.ids().into_iter().filter(|&id| self.logit(id) > f32::NEG_INFINITY).collect()
    }

    fn logit(&self, id: u32) -> f32 {
        self.logits[id as usize]
    }

    fn max(&self) -> f32 {
        self.ids().iter().fold(f32::NEG_INFINITY, |max, &id| max.max(self.logit(id)))
    }

    fn softmax(&self) -> (Vec<f32>, f64) {
        softmax(self.ids().iter().map(|&id| self.logit(id)), self.max(), self.temperature)
    }

    fn distance(&self, id: u32, max: f32) -> f32 {
        (self.logit(id) - max) / self.temperature
    }

    fn adjust(&mut self, id: u32, change: impl FnOnce(f32) -> f32) {
        let t = self.temperature;
        if let Some(logit) = self.logits.get_mut(id as usize)
            && *logit > f32::NEG_INFINITY
        {
            *logit = (change(*logit / t) * t).clamp(f32::MIN, f32::MAX);
        }
    }

    fn sorted(&self) -> Vec<u32> {
        let mut ids = self.alive();
        ids.sort_by_key(|&id| wide::key(self.logit(id), id));
        ids
    }

    /// The shortest prefix of `ids` that weighs `p` of the whole, at least one; all where none does.
    fn reach(&self, ids: &[u32], p: f32) -> usize {
        let (max, target) = (self.max(), f64::from(p) * self.softmax().1);
        let mut sum = 0.0;
        let reached = ids.iter().position(|&id| {
            sum += f64::from(math::exp(self.distance(id, max)));
            sum >= target
        });
        reached.map_or(ids.len(), |i| i + 1)
    }

    fn keep_near(&mut self, distance: f32) {
        let max = self.max();
        let lo = distance.mul_add(-self.temperature, max).min(max).max(f32::MIN);
        self.list = Some(self.ids().into_iter().filter(|&id| self.logit(id) >= lo).collect());
    }

    fn typical(&mut self, p: f32) {
        let (max, sum) = (self.max(), self.softmax().1);
        let ids = self.ids();
        let level = Level::available().next().unwrap();
        let mut total = 0.0;
        for ids in ids.chunks(BLOCK) {
            let xs: Vec<f32> = ids.iter().map(|&id| self.logit(id)).collect();
            let mut ws = vec![0.0; xs.len()];
            wide::weights(level, &xs, max, self.temperature, &mut ws);
            total += f64::from(wide::weighted_distance(level, &xs, &ws, max, self.temperature));
        }
        let mean = (total / sum) as f32;
        let mut ids = self.alive();
        ids.sort_by_key(|&id| ((mean - self.distance(id, max)).abs().to_bits(), id));
        ids.truncate(self.reach(&ids, p));
        self.list = Some(ids);
        self.list = Some(self.sorted());
    }

    /// Does nothing where the threshold is NaN.
    fn xtc(&mut self, threshold: f32) {
        let (max, sum) = (self.max(), self.softmax().1);
        let distance = -(double::ln(f64::from(threshold) * sum) as f32);
        if distance.is_nan() || distance < 0.0 {
            return;
        }
        let lo = distance.mul_add(-self.temperature, max).min(max).max(f32::MIN);
        let sorted = self.sorted();
        let n = sorted.iter().filter(|&&id| self.logit(id) >= lo).count();
        if self.list.is_some() {
            self.list = Some(sorted[n.saturating_sub(1)..].to_vec());
        } else if n >= 2 {
            let mut rest = sorted[n - 1..].to_vec();
            rest.sort_unstable();
            self.list = Some(rest);
        }
    }

    fn draw(&self, u: f64) -> u32 {
        let (sums, sum) = self.softmax();
        let mut rest = u * sum;
        // Index of the addend in which the running sum passes `rest`, else of the last that weighs.
        let mut pick = |ws: &[f32]| {
            let mut chosen = 0;
            for (i, &w) in ws.iter().enumerate().filter(|w| *w.1 > 0.0) {
                chosen = i;
                if rest < f64::from(w) {
                    break;
                }
                rest -= f64::from(w);
            }
            chosen
        };
        let block = pick(&sums);
        let (max, ids) = (self.max(), self.ids());
        let ids = &ids[block * BLOCK..ids.len().min((block + 1) * BLOCK)];
        let ws: Vec<f32> = ids.iter().map(|&id| math::exp(self.distance(id, max))).collect();
        ids[pick(&ws)]
    }
}

impl Reference {
    pub(super) fn new(params: SamplingParams) -> Self {
        let window = if filters::penalties_enabled(&params) { params.penalty_last_n } else { 0 };
        Reference {
            rng: Rng::new(params.seed.unwrap()),
            history: History::new(window, params.dry_last_n),
            dry: dry::Scratch::new(params.dry_last_n),
            mu: initial_mu(&params),
            params,
        }
    }

    pub(super) fn accept(&mut self, token: TokenId) {
        self.history.push(token.0);
    }

    /// The token and its log-probability; none where the biases ban all. At least one logit is finite, none is NaN or
    /// +inf. Biases are taken in ascending order of ids, one a token.
    pub(super) fn sample(&mut self, raw: &[f32]) -> Option<Sampled> {
        let mut set = Set { logits: raw.to_vec(), temperature: 1.0, list: None };
        let (raw_max, raw_sum) = (set.max(), set.softmax().1);
        let params = self.params.clone();
        for &(TokenId(id), bias) in &params.logit_bias {
            match bias {
                super::BIAS_BAN => set.logits[id as usize] = f32::NEG_INFINITY,
                super::BIAS_FORCE => {}
                _ => set.adjust(id, |logit| logit + bias),
            }
        }
        let forced: Vec<u32> = params.logit_bias.iter().filter(|b| b.1 == super::BIAS_FORCE).map(|b| b.0.0).collect();
        if !forced.is_empty() {
            set.list = Some(forced.into_iter().filter(|&id| set.logit(id) > f32::NEG_INFINITY).collect());
        }
        if set.alive().is_empty() {
            return None;
        }
        let greedy = params.is_greedy();
        for &stage in &params.order {
            match stage {
                Stage::Penalties if filters::penalties_enabled(&params) => self.penalties(&mut set),
                Stage::Dry if dry::enabled(&params) => self.dry(&mut set),
                Stage::Temperature if !greedy => set.temperature = params.temperature,
                Stage::Penalties | Stage::Dry | Stage::Temperature => {}
                _ if greedy || params.mirostat.is_some() => {}
                Stage::TopK => {
                    let k = params.top_k as usize;
                    let n = set.list.as_ref().map_or(set.logits.len(), Vec::len);
                    if k > 0 && k < n {
                        let mut ids = set.sorted();
                        ids.truncate(k);
                        set.list = Some(ids);
                    }
                }
                Stage::TypicalP if params.typical_p < 1.0 => set.typical(params.typical_p),
                Stage::TopP if params.top_p < 1.0 => {
                    let mut ids = set.sorted();
                    ids.truncate(set.reach(&ids, params.top_p));
                    set.list = Some(ids);
                }
                Stage::MinP if params.min_p > 0.0 => set.keep_near(-math::ln(params.min_p)),
                Stage::Xtc if params.xtc_probability > 0.0 && params.xtc_threshold <= 0.5 => {
                    let excludes = self.rng.uniform() < f64::from(params.xtc_probability);
                    set.xtc(if excludes { params.xtc_threshold } else { f32::NAN });
                }
                _ => {}
            }
        }
        let token = self.choose(&mut set);
        let logprob = f64::from(raw[token as usize]) - f64::from(raw_max) - double::ln(raw_sum);
        Some(Sampled { token: TokenId(token), logprob: (logprob as f32).clamp(f32::MIN, 0.0) })
    }

    fn choose(&mut self, set: &mut Set) -> u32 {
        if self.params.is_greedy() {
            return set.sorted()[0];
        }
        let Some(mirostat) = self.params.mirostat else { return set.draw(self.rng.uniform()) };
        let distance = self.mu * LN_2 - double::ln(set.softmax().1);
        set.keep_near(distance.max(0.0) as f32);
        let token = set.draw(self.rng.uniform());
        let ln_share = f64::from(set.distance(token, set.max())) - double::ln(set.softmax().1);
        let error = -ln_share / LN_2 - f64::from(mirostat.tau);
        self.mu = (self.mu - f64::from(mirostat.eta) * error).clamp(-MU_MAX, MU_MAX);
        token
    }

    fn penalties(&self, set: &mut Set) {
        let params = &self.params;
        for &(token, count) in self.history.counts() {
            set.adjust(token, |logit| {
                let repeat = params.repeat_penalty;
                let scaled = if logit > 0.0 { logit / repeat } else { logit * repeat };
                (f64::from(scaled) - f64::from(count) * f64::from(params.frequency_penalty) - f64::from(params.presence_penalty)) as f32
            });
        }
    }

    fn dry(&mut self, set: &mut Set) {
        let params = &self.params;
        let allowed = params.dry_allowed_length.max(1);
        for &(token, run) in self.dry.find(self.history.last(params.dry_last_n), allowed, &[]) {
            let growth = double::pow(f64::from(params.dry_base), f64::from(run - allowed));
            let penalty = (f64::from(params.dry_multiplier) * growth).min(1e30) as f32;
            set.adjust(token, |logit| logit - penalty);
        }
    }
}
