//! `requirements/1.0.toml`: every rule as data, for whoever tracks them elsewhere.
//!
//! What the pages say (words, keyword, place) is written from the pages. At which
//! level a rule begins to matter and whom it binds is decided by people: it stands in
//! the file and is kept.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Placed;

pub(super) const FILE: &str = "sdk-spec/requirements/1.0.toml";

const HEADER: &str = "\
# Every rule of protocol 1, in the order of the pages. `cargo xtask spec --write` writes it from them and keeps `level`
# and `binds`, which people decide:
#
#   level     the lowest level whose implementation can meet it; \"extension\": optional at every level
#   binds     who has to keep it: \"plugin\", \"host\" or \"both\"
#   contract  the contract or extension that it belongs to; none: the protocol itself

";

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct File {
    protocol: u16,
    #[serde(default)]
    requirement: Vec<Requirement>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Requirement {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<Level>,
    #[serde(skip_serializing_if = "Option::is_none")]
    binds: Option<Binds>,
    keyword: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    contract: Option<String>,
    text: String,
    r#where: String,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
enum Level {
    L0,
    L1,
    L2,
    L3,
    L4,
    #[serde(rename = "extension")]
    Extension,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Binds {
    Plugin,
    Host,
    Both,
}

/// What the file should say, given what it says.
///
/// # Errors
/// It is no such file.
pub(super) fn settle(rules: &[Placed], found: &str) -> Result<String, String> {
    let found: File = toml::from_str(found).map_err(|why| why.to_string())?;
    let decided: BTreeMap<_, _> =
        found.requirement.into_iter().map(|it| (it.id.clone(), it)).collect();
    let requirement = rules.iter().map(|placed| {
        let decided = decided.get(&placed.rule.id);
        Requirement {
            id: placed.rule.id.clone(),
            level: decided.and_then(|it| it.level),
            binds: decided.and_then(|it| it.binds),
            keyword: placed.rule.keyword.to_owned(),
            contract: contract(&placed.place),
            text: placed.rule.text.clone(),
            r#where: placed.place.clone(),
        }
    });
    let file = File { protocol: 1, requirement: requirement.collect() };
    toml::to_string(&file).map(|text| format!("{HEADER}{text}")).map_err(|why| why.to_string())
}

/// What people have not decided yet.
///
/// # Errors
/// It is no such file.
pub(super) fn undecided(text: &str) -> Result<Vec<String>, String> {
    let file: File = toml::from_str(text).map_err(|why| why.to_string())?;
    let open = file.requirement.iter().filter(|it| it.level.is_none() || it.binds.is_none());
    Ok(open.map(|it| format!("[{}]: expected its level and whom it binds", it.id)).collect())
}

/// `contracts/tool.md#toolcall` is about `tool`, `01-wire.md#11-frame` about no contract.
fn contract(place: &str) -> Option<String> {
    let page = place.split_once('/')?.1;
    Some(page.split_once(".md")?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_decided_is_kept_and_the_rest_follows_the_pages() {
        let placed = |line: &str, place: &str| Placed {
            rule: super::super::rule::rule(line).unwrap().unwrap(),
            at: String::new(),
            place: place.to_owned(),
        };
        let rules = [
            placed("- **[R-FR-01]** A frame MUST be whole.", "01-wire.md#11-frame"),
            placed("- **[R-TL-01]** A root MUST be an object.", "contracts/tool.md#provide"),
        ];
        let first = settle(&rules, "protocol = 1").unwrap();
        assert_eq!(undecided(&first).unwrap().len(), 2);
        let by_hand = "keyword = \"MUST\"\ntext = \"A frame";
        assert!(first.contains(by_hand), "{first}");
        let decided = first
            .replace(by_hand, "level = \"L0\"\nbinds = \"both\"\nkeyword = \"MUST\"\ntext = \"Old");
        let second = settle(&rules, &decided).unwrap();
        assert!(second.contains("level = \"L0\"\nbinds = \"both\"") && second.contains("A frame"));
        assert!(second.contains("contract = \"tool\""));
        assert_eq!(
            undecided(&second).unwrap(),
            ["[R-TL-01]: expected its level and whom it binds"]
        );
        // A rule that is gone is gone here too.
        assert!(!settle(&rules[..1], &second).unwrap().contains("R-TL-01"));
        assert!(settle(&rules, "requirement = 1").is_err());
    }
}
