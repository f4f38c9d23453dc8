//! What must hold besides the tests: form, lints, documentation, purity, fuzzing.

use std::{path::Path, process::Command};

use crate::demo::must;

/// How long each fuzz target runs here. Long enough to find a broken guard, short
/// enough for every change; real campaigns run by hand.
const FUZZ_SECONDS: &str = "15";

/// Runs all checks, each announced on stderr, and stops at the first that fails.
pub(crate) fn run(root: &Path, _: &[String]) -> Result<(), Vec<String>> {
    let cargo = |words: &str| {
        eprintln!("== cargo {words}");
        let mut command = Command::new(env!("CARGO"));
        command.args(words.split(' ')).current_dir(root);
        command
    };
    must(&mut cargo("fmt --all --check"))?;
    must(&mut cargo("clippy --workspace --all-targets -- -D warnings"))?;
    must(
        cargo("doc --workspace --no-deps --document-private-items")
            .env("RUSTDOCFLAGS", "-D warnings"),
    )?;
    pure(&mut cargo("tree --package plugbay-protocol --edges normal --prefix none"))?;
    let smoke = "run --release --manifest-path fuzz/Cargo.toml --bin smoke -- --seconds";
    must(&mut cargo(&format!("{smoke} {FUZZ_SECONDS}")))
}

/// The protocol has no clock, file, task or thread: it is `no_std`, which the
/// compiler checks, and nothing it needs brings a runtime along.
fn pure(tree: &mut Command) -> Result<(), Vec<String>> {
    let output = tree.output().map_err(|error| vec![format!("{tree:?}: {error}")])?;
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    let forbidden = ["tokio", "nix", "libc", "futures", "rmp-serde"];
    let found = names.lines().filter_map(|line| line.split(' ').next());
    let found: Vec<&str> = found.filter(|name| forbidden.contains(name)).collect();
    match (output.status.success(), found.as_slice()) {
        (true, []) => Ok(()),
        (true, found) => Err(vec![format!("plugbay-protocol depends on {}", found.join(", "))]),
        (false, _) => Err(vec![String::from_utf8_lossy(&output.stderr).into_owned()]),
    }
}
