//! Runs measurements in turn, so that a slow minute of the machine hits all.

use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;

use crate::report::{Placement, Report, Row};

/// What one measurement may use in one repeat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// How long it runs.
    pub(crate) time: Duration,
    /// How many bytes the parent holds where a large parent is wanted.
    pub(crate) ballast: usize,
}

/// Something that is run once per repeat and yields figures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measure {
    /// For `--only` and for progress.
    pub(crate) name: &'static str,
    /// What it yields, in this order.
    pub(crate) figures: &'static [Figure],
    /// Runs it once.
    pub(crate) run: fn(&Budget) -> anyhow::Result<Vec<f64>>,
}

/// One number of the report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    /// Unique in the report.
    pub(crate) name: &'static str,
    /// Of the value.
    pub(crate) unit: &'static str,
    /// What it is divided by.
    pub(crate) against: Option<Against>,
}

/// The floor under a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Against {
    /// The name of the other figure.
    pub(crate) floor: &'static str,
    /// What the ratio has to be.
    pub(crate) promise: Option<Promise>,
}

/// What is promised about a ratio. Judged by the median over the repeats.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Promise {
    /// No larger than this.
    AtMost(f64),
    /// No smaller than this.
    AtLeast(f64),
}

impl Promise {
    pub(crate) fn kept_by(self, ratio: f64) -> bool {
        match self {
            Self::AtMost(bound) => ratio <= bound,
            Self::AtLeast(bound) => bound <= ratio,
        }
    }
}

/// Runs every measurement once per repeat, all of them before any is repeated.
pub(crate) fn run(
    measures: &[&Measure],
    budget: &Budget,
    repeats: usize,
    core: Option<usize>,
) -> anyhow::Result<Report> {
    let figures = measures.iter().flat_map(|measure| measure.figures);
    let mut rows: Vec<Row> = figures.map(|figure| Row::new(*figure)).collect();
    for repeat in 1..=repeats {
        let mut row = rows.iter_mut();
        for measure in measures {
            eprintln!("repeat {repeat} of {repeats}: {}", measure.name);
            let values = (measure.run)(budget).with_context(|| measure.name)?;
            let expected = measure.figures.len();
            anyhow::ensure!(
                values.len() == expected,
                "{}: expected {expected} figures, found {}",
                measure.name,
                values.len()
            );
            row.by_ref().zip(values).for_each(|(row, value)| row.samples.push(value));
        }
    }
    Ok(Report::new(core.map_or(Placement::Free, Placement::Core), rows))
}

/// The middle of some numbers, of which there must be one at least.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    percentile(values, 0.5)
}

/// The smallest of some numbers that `share` of them do not exceed; not a number
/// if there are none.
pub(crate) fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * share).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&mut values, 0.99), 99.0);
        assert_eq!(percentile(&mut values, 0.50), 50.0);
        assert_eq!(percentile(&mut values, 0.0), 1.0);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [7.0]), 7.0);
        assert!(median(&mut []).is_nan());
    }

    #[test]
    fn every_value_lands_in_the_row_of_its_figure() {
        const ONE: Figure = Figure { name: "one", unit: "us", against: None };
        const TWO: Figure = Figure { name: "two", unit: "us", against: None };
        const THREE: Figure = Figure { name: "three", unit: "us", against: None };
        let pair = Measure { name: "pair", figures: &[ONE, TWO], run: |_| Ok(vec![1.0, 2.0]) };
        let single = Measure { name: "single", figures: &[THREE], run: |_| Ok(vec![3.0]) };
        let budget = Budget { time: Duration::ZERO, ballast: 0 };
        let report = run(&[&pair, &single], &budget, 2, None).expect("nothing can fail");
        let rows: Vec<_> = report.rows().map(|row| (row.name(), row.samples.clone())).collect();
        assert_eq!(rows, [("one", vec![1.0; 2]), ("two", vec![2.0; 2]), ("three", vec![3.0; 2])]);
        let wrong = Measure { name: "wrong", figures: &[ONE, TWO], run: |_| Ok(vec![1.0]) };
        let error = run(&[&wrong], &budget, 1, None).expect_err("one value is missing");
        assert_eq!(error.to_string(), "wrong: expected 2 figures, found 1");
    }
}
