//! The stages that are a line each: penalties, the filters, temperature, XTC.

use super::params::SamplingParams;
use super::stage::Step;
use crate::math;

/// Whether the penalties do anything.
pub(super) fn penalties_enabled(params: &SamplingParams) -> bool {
    let neutral = params.repeat_penalty == 1.0 && params.frequency_penalty == 0.0 && params.presence_penalty == 0.0;
    params.penalty_last_n > 0 && !neutral
}

/// Repeat penalty (CTRL, as llama.cpp has it), then frequency and presence penalties (OpenAI's).
pub(super) fn penalties(step: &mut Step<'_>) {
    let params = step.params;
    if !penalties_enabled(params) {
        return;
    }
    for &(token, count) in step.history.counts() {
        step.candidates.adjust(token, |logit| {
            let repeat = params.repeat_penalty;
            let scaled = if logit > 0.0 { logit / repeat } else { logit * repeat };
            // Two overflows of opposite signs would make NaN in f32.
            (f64::from(scaled) - f64::from(count) * f64::from(params.frequency_penalty) - f64::from(params.presence_penalty)) as f32
        });
    }
    step.candidates.refresh();
}

pub(super) fn top_k(step: &mut Step<'_>) {
    if step.params.top_k > 0 {
        step.candidates.keep_top(step.params.top_k as usize);
    }
}

/// Locally typical sampling (Meister et al., 2022).
pub(super) fn typical_p(step: &mut Step<'_>) {
    if step.params.typical_p < 1.0 {
        step.candidates.keep_typical(step.params.typical_p);
    }
}

/// Nucleus sampling (Holtzman et al., 2019).
pub(super) fn top_p(step: &mut Step<'_>) {
    if step.params.top_p < 1.0 {
        step.candidates.keep_mass(step.params.top_p);
    }
}

/// p >= min_p * p_max, which is a distance of logits (Nguyen et al., 2024).
pub(super) fn min_p(step: &mut Step<'_>) {
    if step.params.min_p > 0.0 {
        step.candidates.keep_near(-math::ln(step.params.min_p));
    }
}

/// Exclude top choices (p-e-w): one draw a step decides whether.
pub(super) fn xtc(step: &mut Step<'_>) {
    let params = step.params;
    if params.xtc_probability > 0.0 && params.xtc_threshold <= 0.5 && step.rng.uniform() < f64::from(params.xtc_probability) {
        step.candidates.drop_top_but_one(params.xtc_threshold);
    }
}

pub(super) fn temperature(step: &mut Step<'_>) {
    step.candidates.set_temperature(step.params.temperature);
}
