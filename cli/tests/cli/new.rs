//! New plugins work at once.

use std::fs;

use crate::stage::{run, run_in};

/// The Rust template is compiled and its own test is run here, as it is.
#[path = "../../templates/rust/main.rs"]
#[expect(dead_code, reason = "its `main` is for a program")]
mod template;

#[test]
fn a_python_plugin_works_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let ended = run_in(dir.path(), ["new", "notes", "--lang", "python"]);
    ended
        .with(0, &["Created plugin notes in notes/", "cd notes && plugbay call greet who=Ada"])
        .and_prints("");
    run_in(dir.path(), ["check", "notes"]).with(0, &["1 plugin, 2 tools, no problems"]);
    run_in(dir.path(), ["call", "-c", "notes", "greet", "who=Ada"])
        .with(0, &[])
        .and_prints("hello, Ada\n");
    run_in(&dir.path().join("notes"), ["call", "add", "a=1", "b=2"]).with(0, &[]).and_prints("3\n");
    let ended = run_in(dir.path(), ["new", "notes", "--lang", "rust"]);
    ended.with(1, &["`notes` is there already", "never overwrites"]);
    assert!(!dir.path().join("notes/Cargo.toml").exists());
}

#[test]
fn a_rust_plugin_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let sdk = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk-rust");
    let words = ["new", "my-tool", "--lang", "rust", "--dir", "deep/er", "--sdk-path", sdk];
    run_in(dir.path(), words).with(0, &["Created plugin my-tool in deep/er/", "cargo test"]);
    let read = |name: &str| fs::read_to_string(dir.path().join("deep/er").join(name)).unwrap();
    let cargo = read("Cargo.toml");
    assert!(
        cargo.contains("name = \"my-tool\"") && cargo.contains("plugbay-sdk = { path = \"/"),
        "{cargo}"
    );
    assert!(read("src/main.rs").contains("\"example.my-tool\""));
    assert!(read("plugin.toml").contains("\"target/debug/my-tool\""));
    // Not built yet: the check says so.
    run_in(dir.path(), ["check", "deep/er"]).with(1, &["error[PB0120]", "target/debug/my-tool"]);
    run_in(dir.path(), ["new", "other", "--lang", "rust"]).with(0, &[]);
    let cargo = fs::read_to_string(dir.path().join("other/Cargo.toml")).unwrap();
    assert!(
        cargo.contains(concat!("plugbay-sdk = \"", env!("CARGO_PKG_VERSION"), "\"")),
        "{cargo}"
    );
}

#[test]
fn a_name_that_cannot_be_one_is_refused() {
    run(["new", "My_Tool", "--lang", "rust"]).with(2, &["found 'M'", "did you mean `my-tool`?"]);
    run(["new", "../evil", "--lang", "python"]).with(2, &["found '.'"]);
    run(["new", "x", "--lang", "python", "--sdk-path", "."]).with(2, &["needs no SDK"]);
    run(["new", "x", "--lang", "rust", "--sdk-path", "/nowhere"])
        .with(4, &["no crate in `/nowhere`"]);
    run(["new", "x", "--lang", "cobol"]).with(2, &["rust", "python"]);
}
