//! The stages of the chain and the table that runs them.

use super::candidates::Candidates;
use super::error::Error;
use super::history::History;
use super::params::SamplingParams;
use super::rng::Rng;
use super::{dry, filters};

/// A stage of the sampler chain. Logit biases always come first and aren't one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Repeat, frequency and presence penalties.
    Penalties,
    /// DRY.
    Dry,
    /// The k most probable.
    TopK,
    /// Locally typical.
    TypicalP,
    /// Nucleus.
    TopP,
    /// Relative to the most probable.
    MinP,
    /// Exclude top choices.
    Xtc,
    /// Division by the temperature.
    Temperature,
}

/// The order of stages unless parameters give another: llama.cpp's.
pub const DEFAULT_ORDER: [Stage; 8] =
    [Stage::Penalties, Stage::Dry, Stage::TopK, Stage::TypicalP, Stage::TopP, Stage::MinP, Stage::Xtc, Stage::Temperature];

/// What a stage sees of one draw.
pub(super) struct Step<'a> {
    pub(super) params: &'a SamplingParams,
    pub(super) candidates: Candidates<'a>,
    pub(super) history: &'a History,
    pub(super) rng: &'a mut Rng,
    pub(super) dry: &'a mut dry::Scratch,
    pub(super) dry_breakers: &'a [u32],
}

/// What a stage does to the set of candidates.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Changes logits of single tokens; runs in greedy and mirostat chains too.
    Adjust,
    /// Divides all logits; runs in mirostat chains too.
    Scale,
    /// Removes candidates, never the last one.
    Filter,
}

pub(super) struct Row {
    stage: Stage,
    /// Name on command lines and in requests.
    name: &'static str,
    pub(super) kind: Kind,
    pub(super) run: fn(&mut Step<'_>),
}

/// One row per stage. To add one, write its function over [`Step`], add a variant and a row, and a place in
/// [`DEFAULT_ORDER`] if it belongs there.
const ROWS: [Row; 8] = [
    Row { stage: Stage::Penalties, name: "penalties", kind: Kind::Adjust, run: filters::penalties },
    Row { stage: Stage::Dry, name: "dry", kind: Kind::Adjust, run: dry::apply },
    Row { stage: Stage::TopK, name: "top_k", kind: Kind::Filter, run: filters::top_k },
    Row { stage: Stage::TypicalP, name: "typ_p", kind: Kind::Filter, run: filters::typical_p },
    Row { stage: Stage::TopP, name: "top_p", kind: Kind::Filter, run: filters::top_p },
    Row { stage: Stage::MinP, name: "min_p", kind: Kind::Filter, run: filters::min_p },
    Row { stage: Stage::Xtc, name: "xtc", kind: Kind::Filter, run: filters::xtc },
    Row { stage: Stage::Temperature, name: "temperature", kind: Kind::Scale, run: filters::temperature },
];

impl Stage {
    pub(super) fn row(self) -> &'static Row {
        static TABLE: [Row; 8] = ROWS;
        // Rows stand in the order of variants, which a test holds.
        &TABLE[self as usize]
    }

    /// Name on command lines and in requests.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The stage of that name.
    ///
    /// # Errors
    /// No stage is called so.
    pub fn from_name(name: &str) -> Result<Stage, Error> {
        let row = ROWS.iter().find(|row| row.name == name);
        row.map(|row| row.stage).ok_or_else(|| Error::StageName { found: name.to_owned() })
    }

    /// All names, comma separated, in the default order.
    pub(super) fn names() -> String {
        ROWS.map(|row| row.name).join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_variants_and_names_are_unique() {
        for (i, row) in ROWS.iter().enumerate() {
            assert_eq!(row.stage as usize, i);
            assert_eq!(Stage::from_name(row.name), Ok(row.stage));
            assert_eq!(row.stage.name(), row.name);
        }
        assert_eq!(
            Stage::from_name("topk").unwrap_err().to_string(),
            "no sampler stage is called \"topk\", expected one of penalties, dry, top_k, typ_p, top_p, min_p, xtc, temperature"
        );
    }
}
