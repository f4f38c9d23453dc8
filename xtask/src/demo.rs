//! The main job, shown: four real plugins and a local tool under an agent loop.

use std::{path::Path, process::Command};

/// Builds the example plugins and runs the agent loop on them.
pub(crate) fn run(root: &Path, _: &[String]) -> Result<(), Vec<String>> {
    // The example manifests name programs in this folder, wherever cargo builds by default.
    let target = root.join("target");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--package", "plugbay-examples", "--package", "plugbay"]);
    must(build.arg("--target-dir").arg(&target).current_dir(root))?;
    must(Command::new(target.join("debug/example-agent-loop")).current_dir(root))
}

/// Runs a command that must succeed.
pub(crate) fn must(command: &mut Command) -> Result<(), Vec<String>> {
    let why = match command.status() {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    Err(vec![format!("{command:?}: {why}")])
}
