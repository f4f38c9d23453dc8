//! What is known not to pass, and why that is accepted for now.
//!
//! A list of single checks, never of groups, so that the others of a group stay in force. An
//! entry whose check passes is stale and fails the run: a baseline only ever gets shorter.

use std::{collections::BTreeMap, path::Path};

use serde::{Deserialize, Serialize};

use crate::{
    check::Check,
    checks,
    run::{Outcome, Status},
};

/// Why a check may fail for now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Known {
    pub reason: String,
    /// Where it is followed up, such as the address of an issue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issue: Option<String>,
}

/// The entries of a file, by the id of their check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baseline(BTreeMap<&'static str, Known>);

/// The two forms of an entry.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a reason, or a table with reason and issue")]
enum Entry {
    Reason(String),
    Table(Table),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    reason: String,
    issue: Option<String>,
}

impl Baseline {
    /// # Errors
    /// What is wrong with the file, and where.
    pub fn load(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
        text.and_then(|text| Self::parse(&text)).map_err(|why| format!("{}: {why}", path.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: BTreeMap<String, Entry> =
            toml::from_str(text).map_err(|error| error.to_string())?;
        let mut entries = BTreeMap::new();
        for (id, entry) in file {
            let Some(check) = checks::find(&id) else {
                let is_group = checks::GROUPS.iter().any(|(group, ..)| *group == id);
                let help = if is_group {
                    "is a group; a baseline lists single checks, so that the others stay in force"
                } else {
                    "is no check; `plugbay-tck list` shows all"
                };
                return Err(format!("{id} {help}"));
            };
            let (reason, issue) = match entry {
                Entry::Reason(reason) => (reason, None),
                Entry::Table(Table { reason, issue }) => (reason, issue),
            };
            if reason.trim().is_empty() {
                return Err(format!("{id} has no reason"));
            }
            if entries.insert(check.id, Known { reason, issue }).is_some() {
                return Err(format!("{id} stands twice"));
            }
        }
        Ok(Self(entries))
    }

    /// The entries that a run of these checks would not try: it could not tell whether they are stale.
    pub fn untried(&self, chosen: &[&'static Check]) -> Vec<&'static str> {
        let is_chosen = |id: &str| chosen.iter().any(|check| check.id == id);
        self.0.keys().copied().filter(|id| !is_chosen(id)).collect()
    }

    /// Judges outcomes by what is known: who fails as listed is [`Status::XFail`], who passes
    /// although listed is [`Status::XPass`]. What does not apply or cannot be told stays as it is.
    pub fn apply(&self, outcomes: &mut [Outcome]) {
        for outcome in outcomes {
            let Some(known) = self.0.get(outcome.id) else { continue };
            match outcome.status {
                Status::Fail | Status::Warn | Status::Blocked => outcome.status = Status::XFail,
                Status::Pass => {
                    outcome.status = Status::XPass;
                    let why = format!("it passes, and the baseline says: {}", known.reason);
                    outcome.reason = Some(why);
                }
                _ => continue,
            }
            outcome.known = Some(known.clone());
        }
    }

    /// A file that lists all that fails: with the reason that it has, or with what was seen.
    pub fn write(outcomes: &[Outcome]) -> String {
        let mut text = String::from(
            "# Checks of plugbay-tck that may fail for now. Say why each may; one that passes must go.\n",
        );
        let is_bad = |it: &&Outcome| {
            matches!(it.status, Status::Fail | Status::Warn | Status::Blocked | Status::XFail)
        };
        for outcome in outcomes.iter().filter(is_bad) {
            let seen = || outcome.reason.clone().unwrap_or_else(|| outcome.title.to_owned());
            let known = outcome.known.clone();
            let known = known.unwrap_or_else(|| Known { reason: seen(), issue: None });
            let quoted = |text: String| toml::Value::String(text).to_string();
            let reason = quoted(known.reason);
            let entry = match known.issue {
                Some(issue) => format!("{{ reason = {reason}, issue = {} }}", quoted(issue)),
                None => reason,
            };
            text.push_str(&format!("{} = {entry}\n", outcome.id));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_reason_or_a_table_of_a_single_check() {
        let text = "HS-01 = \"slow\"\n[cn-04]\nreason = \"later\"\nissue = \"https://x/1\"\n";
        let baseline = Baseline::parse(text).unwrap();
        assert_eq!(baseline.0["CN-04"].issue.as_deref(), Some("https://x/1"));
        assert_eq!(baseline.untried(&[checks::find("HS-01").unwrap()]), ["CN-04"]);
        for (text, why) in [
            ("XX-01 = \"a\"", "is no check"),
            ("HS = \"a\"", "is a group"),
            ("HS-01 = \" \"", "has no reason"),
            ("HS-01 = 3", "a reason, or a table"),
            ("HS-01 = { issue = \"a\" }", "a reason, or a table"),
            ("HS-01 = \"a\"\nhs-01 = \"b\"", "stands twice"),
            ("HS-01 = ", "TOML parse error"),
        ] {
            let error = Baseline::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn only_what_fails_or_passes_changes() {
        let baseline = Baseline::parse("HS-01 = \"slow\"").unwrap();
        for status in Status::ALL {
            let mut outcomes = [("HS-01", status), ("HS-02", status)]
                .map(|(id, status)| Outcome::new(checks::find(id).unwrap(), 7, status));
            baseline.apply(&mut outcomes);
            let due = match status {
                Status::Fail | Status::Warn | Status::Blocked => Status::XFail,
                Status::Pass => Status::XPass,
                other => other,
            };
            assert_eq!(outcomes[0].status, due);
            assert_eq!(outcomes[1].status, status);
        }
    }

    #[test]
    fn what_is_written_can_be_read_and_keeps_its_reasons() {
        let known =
            Baseline::parse("HS-01 = {reason = \"slow \\\"x\\\"\", issue = \"#3\"}").unwrap();
        let mut outcomes =
            [("HS-01", Status::Fail), ("HS-02", Status::Warn), ("HS-03", Status::Pass)]
                .map(|(id, status)| Outcome::new(checks::find(id).unwrap(), 7, status));
        outcomes[1].reason = Some("saw \"a\u{1}\nb\" 'c'".into());
        known.apply(&mut outcomes);
        let text = Baseline::write(&outcomes);
        let read = Baseline::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(read.0.keys().copied().collect::<Vec<_>>(), ["HS-01", "HS-02"]);
        assert_eq!(read.0["HS-01"], known.0["HS-01"]);
        assert_eq!(read.0["HS-02"].reason, "saw \"a\u{1}\nb\" 'c'");
    }
}
