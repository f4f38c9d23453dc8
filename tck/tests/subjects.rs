//! The judge as people use it: on a fixture, on plugins, and on what is none.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

fn tck(args: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plugbay-tck"));
    let output = command.args(args).current_dir(ROOT).env("NO_COLOR", "1").output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

#[track_caller]
fn unfit(subject: &[&str], seen: &str) {
    let ended = tck(&[&["plugin", "--"], subject].concat());
    assert_eq!(ended.code, Some(3), "{subject:?}: {}{}", ended.out, ended.err);
    assert!(ended.err.contains(seen), "{subject:?}: {}", ended.err);
    assert_eq!(ended.out, "");
}

#[test]
fn the_reference_keeps_every_rule() {
    let ended =
        tck(&["sdk", "--time-scale", "3", "--json", "--", "python3", "tck/fixtures/reference.py"]);
    let report: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    let bad = report["results"].as_array().unwrap().iter().filter(|it| {
        // What is random in the machine and not in the fixture is a SHOULD.
        it["status"] != "pass" && it["status"] != "n/a" && it["status"] != "warn"
    });
    let bad: Vec<_> = bad.map(|it| format!("{} {}", it["id"], it["reason"])).collect();
    assert!(bad.is_empty(), "{bad:#?}");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(report["summary"]["must"]["pass"].as_u64().unwrap() > 160, "{}", report["summary"]);
    assert_eq!(report["plugin"]["level"], "L4");
}

#[test]
fn the_plugin_of_the_tutorial_keeps_every_rule() {
    let ended =
        tck(&["plugin", "--time-scale", "3", "--", "python3", "sdk-spec/tutorial/greet.py"]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    assert!(
        ended.out.contains("example.greet 1.0.0  L0 (no features), provides tool"),
        "{}",
        ended.out
    );
}

#[test]
fn what_is_no_plugin_is_told_apart() {
    unfit(&["cat"], "it sent our own HELLO back");
    unfit(&["true"], "it ended with exit code 0 and had not said HELLO");
    unfit(&["yes"], "where a frame was due");
    unfit(&["./no-such-program"], "cannot be started: No such file");
    unfit(&["no-such-program"], "there is no program no-such-program in PATH");
    unfit(
        &["README.md"],
        "there is no program README.md in PATH; for the file here, write ./README.md",
    );
    unfit(&["./README.md"], "is not executable; try: chmod +x ./README.md");
    unfit(&["sh", "-c", "echo welcome; sleep 60"], "\"welcome\\n\"");
    unfit(&["sh", "-c", "echo sorry >&2; exit 7"], "exit code 7");
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("text");
    fs::write(&script, "just words\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    unfit(&[script.to_str().unwrap()], "");
    let ended = tck(&["sdk", "--", "python3", "sdk-spec/tutorial/greet.py"]);
    assert_eq!(ended.code, Some(3));
    assert!(ended.err.contains("so it is no fixture"), "{}", ended.err);
}

#[test]
fn wrong_usage_is_told_apart() {
    for args in [
        &["plugin", "--check", "XX-99", "--", "cat"][..],
        &["plugin", "--group", "XX", "--", "cat"],
        &["plugin", "--time-scale", "0", "--", "cat"],
        &["plugin", "--settings", "no-such-file.toml", "--", "cat"],
        &["plugin", "--skip", "HS", "--check", "HS-01", "--", "cat"],
        &["plugin"],
        &["explain", "XX-99"],
    ] {
        let ended = tck(args);
        assert_eq!(ended.code, Some(2), "{args:?}: {}", ended.err);
        assert!(ended.err.contains("error"), "{args:?}: {}", ended.err);
    }
}

#[test]
fn a_fault_is_shown_with_its_conversation_in_every_form() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    // The plugin of the tutorial, but for one rule: it serves before it is active.
    let source = fs::read_to_string(Path::new(ROOT).join("sdk-spec/tutorial/greet.py")).unwrap();
    let wrong = source.replace("if not active and not activate:", "if False:");
    assert_ne!(source, wrong);
    fs::write(at("wrong.py"), wrong).unwrap();
    let (junit, badge) = (at("junit.xml"), at("badge.json"));
    let wrong = at("wrong.py");
    let args = ["--group", "IG", "--seed", "7", "--junit", &junit, "--badge", &badge];
    let subject = ["--", "python3", &wrong];
    let ended = tck(&[&["plugin"], &args[..], &subject].concat());
    assert_eq!(ended.code, Some(1), "{}{}", ended.out, ended.err);
    for part in [
        "✗ IG",
        "fail IG-01 refuses all it provides while it is Ready",
        "rules R-GT-01 R-GT-02",
        "expected  END #1 with failed_precondition, pb.inactive, retry safe",
        "◀ the first that differs",
        "again: plugbay-tck run --check IG-01 --seed 7 --verbose -- python3",
    ] {
        assert!(ended.out.contains(part), "{part:?} in {}", ended.out);
    }
    let junit = fs::read_to_string(&junit).unwrap();
    assert!(junit.contains("<testsuite name=\"IG the inactive gate\""), "{junit}");
    assert!(junit.contains("<failure type=\"fail\""), "{junit}");
    let badge: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&badge).unwrap()).unwrap();
    assert_eq!(badge["color"], "red");
    let tap = tck(&[&["plugin", "--group", "IG", "--tap"], &subject[..]].concat());
    assert!(tap.out.starts_with("TAP version 14\n1..9\nnot ok 1 - IG-01 "), "{}", tap.out);
    let gh = tck(&[&["plugin", "--check", "IG-01", "--gh"], &subject[..]].concat());
    assert!(gh.out.contains("::error title=IG-01 refuses all it provides"), "{}", gh.out);
    // Bodies are nobody's business unless asked for.
    let json = tck(&[&["plugin", "--check", "IG-01", "--json"], &subject[..]].concat());
    let report: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let transcript = report["results"][0]["transcript"].as_array().unwrap();
    assert!(transcript.iter().all(|line| line.get("body").is_none()), "{report:#}");
}

#[test]
fn the_checks_can_be_listed_and_explained() {
    let ended = tck(&["list", "--json"]);
    let list: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    let ids: Vec<&str> =
        list.as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert!(ids.contains(&"HS-01") && ids.len() > 170, "{}", ids.len());
    let guide = fs::read_to_string(Path::new(ROOT).join("tck/CHECKS.md")).unwrap();
    for id in ids {
        let ended = tck(&["explain", id]);
        assert_eq!(ended.code, Some(0));
        assert!(ended.out.contains("rules   R-"), "{}", ended.out);
        assert!(guide.contains(&format!("| {id} |")), "{id} is not in CHECKS.md");
    }
}
