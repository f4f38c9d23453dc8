//! That every measurement runs and yields a number. Not what number.

use std::process::Command;

use serde_json::Value;

#[test]
fn every_floor_is_measured_and_positive() {
    let output = Command::new(env!("CARGO_BIN_EXE_plugbay-bench"))
        .args(["--repeats", "2", "--ms", "10", "--ballast-mib", "16", "--json"])
        .output()
        .expect("the benchmark starts");
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{talk}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    let figures = report["figures"].as_array().expect("a list of figures");
    for name in [
        "raw pipe, 64 B, p50",
        "framed pipe, depth 1, p50",
        "framed pipe, depth 1, p99",
        "framed pipe, depth 64",
        "raw pipe, 1 MiB echo",
        "bare spawn to first byte",
        "bare spawn to first byte, large parent",
        "bare child, private memory",
    ] {
        let figure = figures.iter().find(|figure| figure["name"] == name).expect(name);
        let samples = figure["samples"].as_array().expect(name);
        assert_eq!(samples.len(), 2, "{name}");
        assert!(samples.iter().all(|value| value.as_f64() > Some(0.0)), "{name}: {samples:?}");
    }
}

#[test]
fn a_name_that_nothing_has_is_an_error_and_not_an_empty_table() {
    let output = Command::new(env!("CARGO_BIN_EXE_plugbay-bench"))
        .args(["--only", "no such thing"])
        .output()
        .expect("the benchmark starts");
    assert_eq!(output.status.code(), Some(70));
    assert!(output.stdout.is_empty());
}
