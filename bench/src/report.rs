//! What a run found, as a table for people and as JSON for programs.

use std::fmt;

use serde::{Serialize, Serializer, ser::SerializeStruct};

use crate::harness::{Figure, Promise, median};

/// Where the processes ran.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Placement {
    /// All of them on this core.
    Core(usize),
    /// Wherever the scheduler put them.
    Free,
}

/// All figures of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    placement: Placement,
    cpus: usize,
    kernel: String,
    figures: Vec<Judged>,
}

/// A figure with what it was in each repeat.
#[derive(Debug)]
pub(crate) struct Row {
    figure: Figure,
    pub(crate) samples: Vec<f64>,
}

/// A row beside its floor.
#[derive(Debug)]
struct Judged {
    row: Row,
    /// To the floor, repeat by repeat; empty without a floor.
    ratios: Vec<f64>,
}

/// Median, least and most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        let median = median(&mut sorted);
        Some(Self { median, min: *sorted.first()?, max: *sorted.last()? })
    }
}

/// Three digits that matter, and no more than there are.
fn number(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, min, max] = [self.median, self.min, self.max].map(number);
        write!(f, "{median} [{min}–{max}]")
    }
}

impl Row {
    pub(crate) fn new(figure: Figure) -> Self {
        Self { figure, samples: Vec::new() }
    }

    #[cfg(test)]
    pub(crate) fn name(&self) -> &'static str {
        self.figure.name
    }
}

impl Judged {
    fn promise(&self) -> Option<Promise> {
        self.row.figure.against.and_then(|against| against.promise)
    }

    /// Whether the promise is kept; `None` where nothing is promised, or its
    /// floor was not measured.
    fn kept(&self) -> Option<bool> {
        let ratio = Spread::of(&self.ratios)?;
        Some(self.promise()?.kept_by(ratio.median))
    }
}

impl Report {
    pub(crate) fn new(placement: Placement, rows: Vec<Row>) -> Self {
        let ratios: Vec<Vec<f64>> = rows.iter().map(|row| ratios(row, &rows)).collect();
        let judged = rows.into_iter().zip(ratios).map(|(row, ratios)| Judged { row, ratios });
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            placement,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().into(),
            figures: judged.collect(),
        }
    }

    #[cfg(test)]
    pub(crate) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.figures.iter().map(|judged| &judged.row)
    }

    pub(crate) fn keeps_its_promises(&self) -> bool {
        self.figures.iter().all(|judged| judged.kept() != Some(false))
    }
}

/// Divides within each repeat: what slows the machine down slows both.
fn ratios(row: &Row, all: &[Row]) -> Vec<f64> {
    let floor = row.figure.against.map(|against| against.floor);
    let Some(floor) = all.iter().find(|other| Some(other.figure.name) == floor) else {
        return Vec::new();
    };
    row.samples.iter().zip(&floor.samples).map(|(value, floor)| value / floor).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let repeats = self.figures.first().map_or(0, |judged| judged.row.samples.len());
        let placement = match self.placement {
            Placement::Core(core) => format!("everything on core {core}"),
            Placement::Free => format!("unpinned on {} cpus", self.cpus),
        };
        writeln!(f, "{placement}, Linux {}, {repeats} repeats; median [min–max]\n", self.kernel)?;
        let width = self.figures.iter().map(|judged| judged.row.figure.name.len()).max();
        let width = width.unwrap_or(0);
        for judged in &self.figures {
            let Figure { name, unit, against } = judged.row.figure;
            let Some(value) = Spread::of(&judged.row.samples) else { continue };
            write!(f, "{name:<width$}  {unit:>7} {value}")?;
            if let (Some(ratio), Some(against)) = (Spread::of(&judged.ratios), against) {
                write!(f, "; {ratio} of {}", against.floor)?;
            }
            match (judged.promise(), judged.kept()) {
                (Some(promise), Some(true)) => write!(f, "; promised {promise}: kept")?,
                (Some(promise), Some(false)) => write!(f, "; promised {promise}: MISSED")?,
                _ => {}
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "at most {bound}"),
            Self::AtLeast(bound) => write!(f, "at least {bound}"),
        }
    }
}

impl Serialize for Judged {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let figure = self.row.figure;
        let mut out = serializer.serialize_struct("Figure", 8)?;
        out.serialize_field("name", figure.name)?;
        out.serialize_field("unit", figure.unit)?;
        out.serialize_field("value", &Spread::of(&self.row.samples))?;
        out.serialize_field("samples", &self.row.samples)?;
        out.serialize_field("floor", &figure.against.map(|against| against.floor))?;
        out.serialize_field("ratio", &Spread::of(&self.ratios))?;
        out.serialize_field("promise", &self.promise())?;
        out.serialize_field("kept", &self.kept())?;
        out.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Against;

    fn report(bound: f64) -> Report {
        let floor = Figure { name: "floor", unit: "us", against: None };
        let against = Against { floor: "floor", promise: Some(Promise::AtMost(bound)) };
        let ours = Figure { name: "ours", unit: "us", against: Some(against) };
        Report::new(
            Placement::Core(0),
            vec![
                Row { figure: floor, samples: vec![10.0, 1.0, 2.0] },
                Row { figure: ours, samples: vec![15.0, 2.0, 3.0] },
            ],
        )
    }

    #[test]
    fn ratios_are_taken_within_a_repeat() {
        let found = report(2.0);
        assert_eq!(found.figures[1].ratios, [1.5, 2.0, 1.5]);
        let spread = Spread::of(&found.figures[1].ratios);
        assert_eq!(spread, Some(Spread { median: 1.5, min: 1.5, max: 2.0 }));
    }

    #[test]
    fn a_promise_is_judged_by_the_median() {
        assert!(report(1.5).keeps_its_promises());
        assert!(!report(1.4).keeps_its_promises());
        assert!(report(1.5).to_string().contains("promised at most 1.5: kept"));
        assert!(report(1.4).to_string().contains("promised at most 1.4: MISSED"));
    }

    #[test]
    fn without_its_floor_a_figure_stands_alone() {
        let against = Against { floor: "elsewhere", promise: Some(Promise::AtMost(1.0)) };
        let figure = Figure { name: "ours", unit: "us", against: Some(against) };
        let row = Row { figure, samples: vec![3.0] };
        let found = Report::new(Placement::Free, vec![row]);
        assert!(found.keeps_its_promises(), "nothing was compared");
        assert!(!found.to_string().contains("promised"));
    }
}
