//! `trace.toml`: what shows that a rule is kept.
//!
//! Which checks of the suite judge it and which vectors break it is written from
//! those. Tests of this repository, and why there is nothing, are written by hand.

use std::{collections::BTreeMap, path::Path};

use serde::{Deserialize, Serialize};

use super::Placed;
use crate::vectors;

pub(super) const FILE: &str = "sdk-spec/trace.toml";

const HEADER: &str = "\
# What shows that a rule is kept. `cargo xtask spec --write` writes `checks` and `vectors`; the rest is by hand.
#
#   checks   of the suite, on any plugin: `plugbay-tck explain ID`
#   vectors  invalid/NAME: bytes that break it, with the one outcome that this has
#   tests    of this repository, mostly for what binds the host: file::name
#   why      there is none of these

";

type Trace = BTreeMap<String, Evidence>;

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Evidence {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    checks: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    vectors: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tests: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl Evidence {
    fn shows(&self) -> bool {
        !(self.checks.is_empty() && self.vectors.is_empty() && self.tests.is_empty())
    }
}

/// What the file should say, given what it says.
///
/// # Errors
/// It is no such file.
pub(super) fn settle(rules: &[Placed], found: &str) -> Result<String, String> {
    let mut found: Trace = toml::from_str(found).map_err(|why| why.to_string())?;
    let mut trace: Trace = rules
        .iter()
        .map(|placed| {
            let by_hand = found.remove(&placed.rule.id).unwrap_or_default();
            let evidence = Evidence { checks: vec![], vectors: vec![], ..by_hand };
            (placed.rule.id.clone(), evidence)
        })
        .collect();
    for check in plugbay_tck::checks::all() {
        for rule in check.rules {
            let evidence = trace.get_mut(*rule);
            evidence
                .ok_or(format!("check {}: [{rule}] is no rule", check.id))?
                .checks
                .push(check.id.into());
        }
    }
    for (name, rule) in vectors::broken() {
        let evidence = trace.get_mut(rule);
        evidence.ok_or(format!("vector {name}: [{rule}] is no rule"))?.vectors.push(name.into());
    }
    for evidence in trace.values_mut().filter(|it| it.shows()) {
        evidence.why = None;
    }
    trace.retain(|_, evidence| evidence.shows() || evidence.why.is_some());
    toml::to_string(&trace).map(|text| format!("{HEADER}{text}")).map_err(|why| why.to_string())
}

/// What the file leaves open: a MUST that nothing shows, a test that is not there.
///
/// # Errors
/// It is no such file.
pub(super) fn gaps(rules: &[Placed], text: &str, root: &Path) -> Result<Vec<String>, String> {
    let trace: Trace = toml::from_str(text).map_err(|why| why.to_string())?;
    let duties = rules.iter().filter(|it| it.rule.keyword.starts_with("MUST"));
    let silent = duties.filter(|it| !trace.contains_key(&it.rule.id)).map(|it| {
        format!("[{}]: expected a check, a vector, a test, or why there is none", it.rule.id)
    });
    let mut gaps: Vec<String> = silent.collect();
    for (id, evidence) in &trace {
        for test in &evidence.tests {
            if let Err(why) = find_test(root, test) {
                gaps.push(format!("[{id}]: {test}: {why}"));
            }
        }
    }
    Ok(gaps)
}

/// That `file::name` is a function of that file.
fn find_test(root: &Path, test: &str) -> Result<(), String> {
    let (file, name) = test.split_once("::").ok_or("expected file::name")?;
    let text = std::fs::read_to_string(root.join(file)).map_err(|why| why.to_string())?;
    match text.contains(&format!("fn {name}(")) {
        true => Ok(()),
        false => Err(format!("expected a function {name}, found none")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Vec<Placed> {
        // Every rule that a check or a vector names has to be there.
        let checked = plugbay_tck::checks::all().flat_map(|check| check.rules.iter().copied());
        let broken = vectors::broken().map(|(_, rule)| rule);
        let mut ids: Vec<&str> = checked.chain(broken).chain(["R-XX-01", "R-XX-02"]).collect();
        ids.sort_unstable();
        ids.dedup();
        let placed = ids.into_iter().map(|id| Placed {
            rule: super::super::rule::rule(&format!("- **[{id}]** It MUST be.")).unwrap().unwrap(),
            at: String::new(),
            place: String::new(),
        });
        placed.collect()
    }

    #[test]
    fn what_is_by_hand_is_kept_and_the_rest_follows_the_suite() {
        let found = "[R-FR-07]\nchecks = ['XX-99']\nwhy = 'hard'\n[R-XX-01]\nwhy = 'a promise'\n[R-XX-09]\nwhy = 'gone'\n";
        let text = settle(&rules(), found).unwrap();
        let trace: Trace = toml::from_str(&text).unwrap();
        assert!(!trace["R-FR-07"].checks.contains(&"XX-99".to_owned()));
        assert!(trace["R-FR-07"].vectors.contains(&"stray-text".to_owned()));
        assert_eq!(trace["R-FR-07"].why, None);
        assert_eq!(trace["R-XX-01"].why.as_deref(), Some("a promise"));
        assert!(!trace.contains_key("R-XX-09"));
        assert_eq!(settle(&rules(), &text).as_ref(), Ok(&text));
        assert!(settle(&rules(), "[R-FR-07]\nwhat = 1\n").is_err());
        // A check of a rule that is gone.
        assert!(settle(&[], "").is_err());
    }

    #[test]
    fn a_rule_that_nothing_shows_and_a_test_that_is_not_there_are_gaps() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let here = "xtask/src/spec/trace.rs";
        let by_hand = format!(
            "[R-XX-01]\ntests = ['{here}::gaps', '{here}::no_such_test', 'none.rs::gaps', 'gaps']\n"
        );
        let text = settle(&rules(), &by_hand).unwrap();
        let found = gaps(&rules(), &text, &root).unwrap();
        let begins: Vec<_> = found.iter().map(|it| &it[..9]).collect();
        assert_eq!(begins, ["[R-XX-02]", "[R-XX-01]", "[R-XX-01]", "[R-XX-01]"], "{found:?}");
    }
}
