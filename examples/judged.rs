//! The examples keep the rules of the protocol: each is judged as any plugin would be.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::Path,
    process::Command,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use plugbay_tck::{
    case::Subject,
    check::{Check, Mode},
    checks,
    probe::probe,
    process::Program,
    run::{Status, run},
    settings::Settings,
};

/// The machine may be busy with all the other tests.
const SCALE: f64 = 3.0;

/// Judges a plugin as its folder says how to activate it.
#[track_caller]
fn judge(name: &str, command: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut settings = Settings::load(&folder.join(name).join("tck.toml")).unwrap();
    // The settings are written for the root of the repository.
    let scratch = tempfile::tempdir().unwrap();
    let scratch = scratch.path().to_str().unwrap();
    if let Some(config) = &mut settings.activate.config {
        let text = config.to_string();
        let text = text.replace("examples/", &format!("{}/", folder.display()));
        *config = serde_json::from_str(&text.replace("target/fetched", scratch)).unwrap();
    }
    judge_as(Mode::Plugin, settings, name, command, 75);
}

/// Every check that applies passes, and there are at least so many of them.
#[track_caller]
fn judge_as(mode: Mode, settings: Settings, name: &str, command: &[&str], least: usize) {
    let command: Vec<String> = command.iter().map(|it| (*it).to_owned()).collect();
    let program = Program::find(&command, BTreeMap::new()).unwrap();
    let interrupted = Arc::new(AtomicBool::new(false));
    let profile = probe(&program, &settings, SCALE, &interrupted).unwrap();
    assert_eq!(profile.inactive, None, "{name} can be activated");
    let budget = Duration::from_secs(60);
    let (scale, record) = (SCALE, false);
    let subject = Subject { program, mode, settings, profile, scale, budget, record, interrupted };
    let all: Vec<&'static Check> = checks::all().collect();
    let outcomes = run(&subject, &all, 1, 4, &|_| {});
    let bad =
        outcomes.iter().filter(|it| !matches!(it.status, Status::Pass | Status::Na | Status::Warn));
    let bad: Vec<String> = bad.map(|it| format!("{} {:?}", it.id, it.reason)).collect();
    assert!(bad.is_empty(), "{name}: {bad:#?}");
    let passed = outcomes.iter().filter(|it| it.status == Status::Pass).count();
    assert!(least < passed, "{name}: {passed} checks passed");
}

#[test]
fn search() {
    judge("search", &[env!("CARGO_BIN_EXE_example-search")]);
}

#[test]
fn sqlite() {
    judge("sqlite", &[env!("CARGO_BIN_EXE_example-sqlite")]);
}

#[test]
fn fetcher() {
    judge("fetcher", &[env!("CARGO_BIN_EXE_example-fetcher")]);
}

#[test]
fn textkit() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/textkit/textkit.py");
    judge("textkit", &["python3", script]);
}

/// What the suite sees of it is what every plugin gets from the SDK.
#[test]
fn the_sdk_keeps_every_rule() {
    let command = [env!("CARGO_BIN_EXE_plugbay-fixture")];
    judge_as(Mode::Sdk, Settings::default(), "fixture", &command, 165);
}

/// A stranger's plugin: written in C from `sdk-spec/` alone, with threads and no SDK of ours. Its
/// fixture shares all but the tools with it, and so shows that the rest keeps every rule.
#[test]
fn digest_in_c() {
    let source = |file| format!("{}/digest-c/{file}.c", env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    for (program, mode, least) in [("digest", Mode::Plugin, 75), ("fixture", Mode::Sdk, 120)] {
        let built = folder.path().join(program);
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-pedantic", "-pthread", "-o"]).arg(&built);
        cc.args([source(program), source("plugbay"), source("sha256")]);
        let output = match cc.output() {
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                // Not by a macro, whose output a test that passes keeps to itself.
                let loud = b"\n*** NOT TESTED: there is no C compiler cc, so examples/digest-c was not built\n\n";
                return io::stderr().write_all(loud).unwrap();
            }
            output => output.unwrap(),
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{said}");
        judge_as(mode, Settings::default(), program, &[built.to_str().unwrap()], least);
    }
}
