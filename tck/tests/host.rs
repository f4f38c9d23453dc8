//! `plugbay-tck host` as people use it: its reports, on an adapter that starts nothing, and what it says
//! of programs that are none. What it says of a host that works is tried where one is built, in `tests/host`.

mod terminal;

use std::fs;

use plugbay_tck::report::machine;

use self::terminal::{tck, tck_in};

/// An adapter that says who it is and can start nothing.
const IDLE: &str = r#"
import json, sys
for line in sys.stdin:
    order = json.loads(line)
    answer = {"ok": {"name": "idle", "version": "1"}} if order["do"] == "host" else {"err": {"code": "unavailable"}}
    print(json.dumps(dict(answer, id=order["id"])), flush=True)
"#;

const ADAPTER: [&str; 5] = ["--", "python3", "-S", "-c", IDLE];

#[test]
fn a_host_that_does_nothing_fails_in_every_report() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (junit, html, badge) = (file("junit.xml"), file("page.html"), file("badge.json"));
    let asked = ["host", "--only", "CN-09", "--only", "benign", "--skip", "serial", "--seed", "5"];
    let files = ["--junit", &junit, "--html", &html, "--badge", &badge];
    let ended = tck(&[&asked[..], &files, &["--json"], &ADAPTER].concat());
    assert_eq!(ended.code, Some(1), "{}{}", ended.out, ended.err);
    let report = ended.json();
    let schema = serde_json::from_str(machine::SCHEMA).unwrap();
    let schema = jsonschema::draft202012::new(&schema).unwrap();
    let wrong: Vec<_> = schema.iter_errors(&report).map(|it| it.to_string()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!((&report["mode"], &report["plugin"]["name"]), (&"host".into(), &"idle".into()));
    let results = report["results"].as_array().unwrap();
    let ids: Vec<&str> = results.iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert_eq!((ids.len(), ids[0], ids[1]), (7, "CN-09", "plain"));
    for result in results {
        assert_eq!(result["failure"]["expected"], "the healthy sibling to start");
        assert!(result["rules"][0].as_str().unwrap().starts_with("R-"));
    }
    // A report of plugins has what a host has not.
    let mut other = report.clone();
    other["mode"] = "plugin".into();
    assert!(!schema.is_valid(&other));
    let text = fs::read_to_string(junit).unwrap();
    assert!(
        text.contains("<testsuite name=\"benign odd and legal\" tests=\"6\" failures=\"6\""),
        "{text}"
    );
    assert!(fs::read_to_string(html).unwrap().contains("CN-09"));
    assert!(fs::read_to_string(badge).unwrap().contains("0/7"));

    let ended = tck(&[&asked[..], &["--tap"], &ADAPTER].concat());
    assert!(ended.out.contains("1..7") && ended.out.contains("not ok 1 - CN-09"), "{}", ended.out);
    let ended = tck(&[&asked[..], &ADAPTER].concat());
    assert!(
        ended.out.contains("idle 1  a host") && ended.out.contains("✗ benign"),
        "{}",
        ended.out
    );
    assert!(ended.out.contains("plugbay-tck host --only CN-09 --seed 5"), "{}", ended.out);
}

#[test]
fn what_is_no_adapter_is_told_at_once() {
    for (command, seen) in [
        (&["true"][..], "the adapter ended with exit code 0"),
        (&["yes"], "a line as HOST.md describes it"),
        (&["cat"], "a line as HOST.md describes it"),
        (&["no-such-adapter"], "there is no program no-such-adapter"),
        (&["sh", "-c", "echo words >&2; exit 3"], "words"),
    ] {
        let ended = tck(&[&["host", "--only", "plain", "--"], command].concat());
        assert_eq!(ended.code, Some(3), "{command:?}: {}{}", ended.out, ended.err);
        assert!(ended.err.contains(seen), "{command:?}: {}", ended.err);
    }
    let ended = tck(&["host", "--json", "--", "true"]);
    assert_eq!((ended.code, &ended.json()["error"]["kind"]), (Some(3), &"unfit".into()));
}

#[test]
fn without_python_and_for_a_plugin_that_is_not_there_it_says_so() {
    let empty = tempfile::tempdir().unwrap();
    let path = [("PATH", empty.path().to_str().unwrap())];
    let ended = tck_in(&["host", "--", "/bin/true"], &path);
    assert_eq!(ended.code, Some(3), "{}{}", ended.out, ended.err);
    assert!(ended.err.contains("the zoo needs Python 3"), "{}", ended.err);
    for (option, name) in [("--only", "CN-99"), ("--skip", "XX")] {
        let ended = tck(&["host", option, name, "--", "true"]);
        assert_eq!(ended.code, Some(2), "{}", ended.err);
        assert!(ended.err.contains(name), "{}", ended.err);
    }
    let ended = tck(&["host", "--only", "CN-09", "--skip", "CN", "--", "true"]);
    assert_eq!(ended.code, Some(2), "{}", ended.err);
}
