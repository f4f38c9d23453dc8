//! What is told of a run, in whatever form it is wanted.

pub mod html;
pub mod human;
pub mod machine;

use serde::Serialize;

use crate::{
    check::{Level, Mode},
    checks::GROUPS,
    host::zoo::BENIGN,
    probe::Profile,
    run::{Outcome, Status},
};

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of the suite.
    pub tck: &'static str,
    /// The version of the spec that it judges by.
    pub spec: &'static str,
    pub mode: Mode,
    pub plugin: Plugin,
    pub seed: u64,
    pub time_scale: f64,
    pub results: Vec<Outcome>,
    /// The checks that pass although the baseline lists them: their entries are stale.
    pub stale: Vec<&'static str>,
    pub summary: Summary,
    /// How to run the same once more; the checks are named after it.
    #[serde(skip)]
    pub again: String,
}

/// Who was judged: a plugin, or the host.
#[derive(Clone, Debug, Serialize)]
pub struct Plugin {
    pub command: Vec<String>,
    pub name: String,
    pub version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sdk: Option<String>,
    pub features: Vec<String>,
    /// Absent of a host, like all that follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    pub kinds: Vec<String>,
    /// The level of the ladder that its features make.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub level: &'static str,
    /// Why it could not be activated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inactive: Option<String>,
}

/// What it accepts.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Limits {
    pub frame: u32,
    pub window: u32,
    pub calls: u32,
}

/// How many of which.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    pub must: Counts,
    pub should: Counts,
}

/// Checks by how they ended; the keys are those of [`Status::as_str`].
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Counts {
    pub pass: usize,
    pub fail: usize,
    pub warn: usize,
    pub xfail: usize,
    pub xpass: usize,
    #[serde(rename = "n/a")]
    pub na: usize,
    pub blocked: usize,
    pub inconclusive: usize,
    pub harness_error: usize,
}

/// The groups in the order in which they are told, and what they are about.
fn groups() -> impl Iterator<Item = (&'static str, &'static str)> {
    let groups = GROUPS.iter().map(|(letters, about, _)| (*letters, *about));
    groups.chain([(BENIGN, "odd and legal")])
}

impl Counts {
    fn add(&mut self, status: Status) {
        let count = match status {
            Status::Pass => &mut self.pass,
            Status::Fail => &mut self.fail,
            Status::Warn => &mut self.warn,
            Status::XFail => &mut self.xfail,
            Status::XPass => &mut self.xpass,
            Status::Na => &mut self.na,
            Status::Blocked => &mut self.blocked,
            Status::Inconclusive => &mut self.inconclusive,
            Status::HarnessError => &mut self.harness_error,
        };
        *count += 1;
    }

    /// All that applied.
    pub fn applied(&self) -> usize {
        self.pass
            + self.fail
            + self.warn
            + self.xfail
            + self.xpass
            + self.blocked
            + self.inconclusive
            + self.harness_error
    }
}

impl Plugin {
    pub fn new(command: &[String], profile: &Profile) -> Self {
        Self {
            command: command.to_vec(),
            name: profile.name.clone(),
            version: profile.version.clone(),
            sdk: profile.sdk.clone(),
            features: profile.features.iter().cloned().collect(),
            limits: Some(Limits {
                frame: profile.frame,
                window: profile.window,
                calls: profile.calls,
            }),
            kinds: profile.kinds().into_iter().collect(),
            level: profile.level(),
            inactive: profile.inactive.clone(),
        }
    }

    /// A host, by what its adapter says of it.
    pub fn host(command: &[String], name: &str, version: &str) -> Self {
        Self {
            command: command.to_vec(),
            name: name.into(),
            version: version.into(),
            sdk: None,
            features: Vec::new(),
            limits: None,
            kinds: Vec::new(),
            level: "",
            inactive: None,
        }
    }
}

impl Report {
    /// The ids of what passes although the baseline lists it.
    pub fn stale(results: &[Outcome]) -> Vec<&'static str> {
        results.iter().filter(|it| it.status == Status::XPass).map(|it| it.id).collect()
    }

    pub fn count(results: &[Outcome]) -> Summary {
        let mut summary = Summary::default();
        for outcome in results {
            match outcome.level {
                Level::Must => summary.must.add(outcome.status),
                Level::Should => summary.should.add(outcome.status),
            }
        }
        summary
    }

    /// The exit code of the run: 0 if every MUST that applies is kept, 1 if not, 4 if
    /// something could be said neither way.
    pub fn exit_code(&self, strict: bool) -> u8 {
        let is = |wanted: &[Status]| self.results.iter().any(|it| wanted.contains(&it.status));
        if is(&[Status::Fail, Status::XPass, Status::Blocked]) || strict && is(&[Status::Warn]) {
            1
        } else if is(&[Status::HarnessError, Status::Inconclusive]) {
            4
        } else {
            0
        }
    }

    /// The command that repeats one check.
    pub fn repeat(&self, outcome: &Outcome) -> String {
        let id = outcome.seen_in.unwrap_or(outcome.id);
        self.again.replace("{check}", id)
    }
}
