//! The checks of the contracts: a fixture with all six kinds keeps every rule, and for each
//! check there is a mutant of it that this check finds.

use std::{
    collections::BTreeSet,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
};

use serde_json::Value;

use crate::terminal::{ROOT, tck};

const FIXTURE: &str = "tck/fixtures/bridges.py";
const GROUPS: &[&str] = &["BT", "BM", "BP", "BY", "BX", "BA"];

/// What is tried that the fixture does not pass, and why. A warning is told of `mutant` only:
/// what else is a SHOULD may be a machine that has no time.
fn kept_from(tried: &[&str], mutant: Option<&str>) -> Vec<(String, String)> {
    let arguments = mutant.map(|id| ["--mutant", id]);
    let arguments = arguments.as_ref().map_or(&[][..], |it| it);
    let subject = [&["--", "python3", "-B", FIXTURE], arguments].concat();
    let options = ["plugin", "--time-scale", "3", "--json"];
    let report = tck(&[&options[..], tried, &subject].concat()).json();
    let results = report["results"].as_array().unwrap();
    assert!(!results.is_empty(), "{report:#}");
    let is_slow = |it: &Value| it["status"] == "warn" && it["id"].as_str() != mutant;
    let bad = results.iter().filter(|it| it["status"] != "pass" && !is_slow(it));
    let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
    bad.map(|it| (text(&it["id"]), format!("{} {}", it["status"], it["reason"]))).collect()
}

/// The mutants: which check finds each, and which others may.
fn mutants() -> Vec<(String, BTreeSet<String>)> {
    let listed =
        Command::new("python3").args(["-B", FIXTURE, "--list-mutants"]).current_dir(ROOT).output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    let mutants = listed.lines().map(|line| {
        let (id, others) = line.split_once(' ').unwrap();
        (id.to_owned(), serde_json::from_str(others).unwrap())
    });
    mutants.collect()
}

/// Runs each mutant with these options. Its own check finds it, and no other that may not.
fn are_found(tried: impl Fn(&str) -> Vec<String> + Sync) {
    let mutants = mutants();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some((id, others)) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let tried = tried(id);
                    let tried: Vec<&str> = tried.iter().map(String::as_str).collect();
                    let found = kept_from(&tried, Some(id));
                    let ids: BTreeSet<&String> = found.iter().map(|(id, _)| id).collect();
                    assert!(ids.contains(id), "{id} does not find its mutant: {found:#?}");
                    let told = ids.iter().all(|it| *it == id || others.contains(*it));
                    assert!(told, "{id} and {others:?} may find it: {found:#?}");
                }
            });
        }
    });
}

#[test]
fn the_fixture_keeps_every_rule_of_the_contracts() {
    let groups: Vec<&str> = GROUPS.iter().flat_map(|group| ["--group", group]).collect();
    assert_eq!(kept_from(&groups, None), []);
}

#[test]
fn every_check_of_a_contract_finds_its_mutant() {
    let listed = tck(&["list", "--json"]).json();
    let checks = listed.as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap());
    let ours: Vec<&str> = checks.filter(|id| GROUPS.contains(&&id[..2])).collect();
    let mutants: Vec<String> = mutants().into_iter().map(|(id, _)| id).collect();
    assert_eq!(ours, mutants, "a mutant for each check, in order");
    are_found(|id| vec!["--check".into(), id.into()]);
}

#[test]
#[ignore = "takes minutes: every mutant and every check of its contract"]
fn no_other_check_of_a_contract_finds_a_mutant() {
    are_found(|id| vec!["--group".into(), id[..2].into()]);
}
