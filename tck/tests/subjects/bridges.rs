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

/// The checks of these groups that the fixture does not pass, and why.
fn kept_from(groups: &[&str], arguments: &[&str]) -> Vec<(String, String)> {
    let subject = [&["--", "python3", "-B", FIXTURE], arguments].concat();
    let groups: Vec<&str> = groups.iter().flat_map(|group| ["--group", group]).collect();
    let options = ["plugin", "--time-scale", "3", "--json"];
    let report = tck(&[&options[..], &groups, &subject].concat()).json();
    let results = report["results"].as_array().unwrap();
    assert!(!results.is_empty(), "{report:#}");
    let bad = results.iter().filter(|it| it["status"] != "pass");
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

#[test]
fn the_fixture_keeps_every_rule_of_the_contracts() {
    assert_eq!(kept_from(GROUPS, &[]), []);
}

#[test]
fn every_check_of_a_contract_finds_its_mutant_and_no_other_of_its_group_does() {
    let mutants = mutants();
    let listed = tck(&["list", "--json"]).json();
    let checks: Vec<&str> =
        listed.as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap()).collect();
    let ours = checks.iter().filter(|id| GROUPS.contains(&&id[..2]));
    assert!(ours.eq(mutants.iter().map(|(id, _)| id)), "a mutant for each check, in order");
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some((id, others)) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = kept_from(&[&id[..2]], &["--mutant", id]);
                    let ids: BTreeSet<&String> = found.iter().map(|(id, _)| id).collect();
                    assert!(ids.contains(id), "{id} does not find its mutant: {found:#?}");
                    let told = ids.iter().all(|it| *it == id || others.contains(*it));
                    assert!(told, "{id} and {others:?} may find it: {found:#?}");
                }
            });
        }
    });
}
