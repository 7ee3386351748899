//! `diff`: the first intermediate value in which two backends disagree.
//!
//! Both run the same rows. Values are compared by name, in the order in which the first backend makes them; values that
//! only one graph has, because the other's is fused, are left out.

use crate::args::{ModelArgs, check_backend};
use crate::error::{CliError, Result};
use crate::os::Interrupt;
use crate::output;
use clap::Args;
use selvedge::{CancelToken, Engine, ParseSpecial, Row, SeqId, TokenId, Want};
use serde::Serialize;
use std::collections::HashMap;

/// Rows that are compared at most: every intermediate value of one backend is held.
const MAX_ROWS: usize = 256;
/// Worst values that are listed.
const LISTED: usize = 10;

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The backend that is taken as right
    #[arg(long, value_name = "BACKEND", value_parser = check_backend)]
    a: String,
    /// The backend that is looked at
    #[arg(long, value_name = "BACKEND", value_parser = check_backend)]
    b: String,
    /// The text that both read, as it stands
    #[arg(short, long, value_name = "TEXT", default_value = "The quick brown fox jumps over the lazy dog.", allow_hyphen_values = true)]
    prompt: String,
    /// Squared error over squared value from which a value counts as divergent
    #[arg(long, value_name = "NMSE", default_value_t = 0.05, value_parser = threshold)]
    threshold: f64,
}

fn threshold(text: &str) -> std::result::Result<f64, String> {
    text.parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0).ok_or_else(|| "expected a finite number of at least 0".into())
}

/// How far a value is off.
#[derive(Debug, Clone, Serialize)]
struct Off {
    name: String,
    /// Sum of squared differences over sum of squares; `None` where it isn't a number.
    nmse: Option<f64>,
    max_abs: f64,
}

impl Off {
    fn new(name: &str, a: &[f32], b: &[f32]) -> Off {
        let differences = a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b));
        let (mut error, mut power, mut max_abs) = (0.0, 0.0, 0.0_f64);
        for (difference, a) in differences.zip(a) {
            error += difference * difference;
            power += f64::from(*a) * f64::from(*a);
            max_abs = max_abs.max(difference.abs());
        }
        let nmse = if error == 0.0 { 0.0 } else { error / power };
        Off { name: name.to_owned(), nmse: nmse.is_finite().then_some(nmse), max_abs }
    }

    fn diverges(&self, threshold: f64) -> bool {
        self.nmse.is_none_or(|nmse| nmse > threshold)
    }

    fn size(&self) -> f64 {
        self.nmse.unwrap_or(f64::INFINITY)
    }
}

#[derive(Debug, Serialize)]
struct Diff {
    a: String,
    b: String,
    threshold: f64,
    n_compared: usize,
    first: Option<Off>,
    worst: Vec<Off>,
}

impl DiffArgs {
    pub(crate) fn run(self, json: bool) -> Result<()> {
        if self.model.names_backend() {
            return Err(CliError::Usage("diff takes its backends by --a and --b: leave out --backend".into()));
        }
        let interrupt = Interrupt::watch();
        let text = selvedge::open_text(&self.model.file.path()?)?;
        let tokens = text.continuation(&self.prompt, ParseSpecial::All)?;
        if tokens.is_empty() || tokens.len() > MAX_ROWS {
            return Err(CliError::Usage(format!("the prompt has {} tokens, expected 1 to {MAX_ROWS}", tokens.len())));
        }
        // Values of `a` in order, and where each name stands.
        let mut values: Vec<(String, Vec<f32>)> = Vec::new();
        self.values(&self.a, &tokens, interrupt.token(), &mut |name, value| values.push((name.to_owned(), value.to_vec())))?;
        let places: HashMap<&str, usize> = values.iter().enumerate().map(|(i, (name, _))| (name.as_str(), i)).collect();
        let mut off: Vec<(usize, Off)> = Vec::new();
        self.values(&self.b, &tokens, interrupt.token(), &mut |name, value| {
            if let Some(&i) = places.get(name).filter(|&&i| values[i].1.len() == value.len()) {
                off.push((i, Off::new(name, &values[i].1, value)));
            }
        })?;
        if off.is_empty() {
            let what = format!("{} and {} show no value of the same name: one of them computes nothing", self.a, self.b);
            return Err(CliError::Diverged(what));
        }
        off.sort_by_key(|(i, _)| *i);
        let mut off: Vec<Off> = off.into_iter().map(|(_, off)| off).collect();
        let first = off.iter().find(|off| off.diverges(self.threshold)).cloned();
        let n_compared = off.len();
        off.sort_by(|x, y| y.size().total_cmp(&x.size()));
        off.truncate(LISTED);
        let diff = Diff { a: self.a, b: self.b, threshold: self.threshold, n_compared, first, worst: off };
        if json {
            output::json(&diff)?
        } else {
            output::lines(&diff.table())?
        }
        match diff.first {
            None => Ok(()),
            Some(first) => Err(CliError::Diverged(format!(
                "{} is the first value in which {} differs from {} by more than {}: {}",
                first.name,
                diff.b,
                diff.a,
                diff.threshold,
                nmse(first.nmse)
            ))),
        }
    }

    /// Runs the rows on a backend and shows every value.
    fn values(&self, backend: &str, tokens: &[TokenId], cancel: &CancelToken, show: &mut dyn FnMut(&str, &[f32])) -> Result<()> {
        let mut options = self.model.options()?;
        options.backend.backend = Some(backend.to_owned());
        // All rows in one step and one tile of the head, so that each value comes once.
        options.plan.chunk = tokens.len();
        options.plan.max_wanted = tokens.len();
        let model = self.model.open(&options, Some(tokens.len()), cancel)?;
        let mut engine = Engine::new(model.inner().clone())?;
        let rows: Vec<Row> = tokens.iter().enumerate().map(|(i, &t)| Row::token(SeqId(0), i as u32, t, Want::Logits)).collect();
        let graph = model.graph().clone();
        let mut tap = |v: selvedge::ValueId, value: &[f32]| show(&graph.values[v.0 as usize].name, value);
        Ok(engine.step_tapped(&rows, cancel, &mut |_, _| {}, Some(&mut tap))?)
    }
}

fn nmse(nmse: Option<f64>) -> String {
    nmse.map_or("not a number".to_owned(), |x| format!("{x:.2e}"))
}

impl Diff {
    fn table(&self) -> String {
        let mut out = match &self.first {
            None => format!("no divergence beyond {} in {} values of {} and {}\n", self.threshold, self.n_compared, self.a, self.b),
            Some(first) => format!("first divergence of {} and {}: {}\n", self.a, self.b, first.name),
        };
        out += &format!("{:<32}{:>14}{:>14}\n", "worst values", "squared error", "largest");
        for off in &self.worst {
            out += &format!("{:<32}{:>14}{:>14.3e}\n", off.name, nmse(off.nmse), off.max_abs);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_relative_and_nothing_hides() {
        assert_eq!(Off::new("x", &[0.0, 0.0], &[0.0, 0.0]).nmse, Some(0.0));
        assert_eq!(Off::new("x", &[3.0, 4.0], &[3.0, 4.5]).nmse, Some(0.01));
        assert!(Off::new("x", &[0.0], &[1.0]).diverges(0.5));
        assert!(Off::new("x", &[1.0], &[f32::NAN]).diverges(0.5));
        assert!(!Off::new("x", &[1.0], &[1.5]).diverges(0.5));
    }
}
