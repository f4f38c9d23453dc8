//! The judge as a person starts it, and a subject with one fault.

use std::{fs, path::Path, process::Command};

use serde_json::Value;

pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}

/// Runs it at the root of the repository.
pub(crate) fn tck(args: &[&str]) -> Ended {
    tck_in(args, &[])
}

/// The same with more environment.
pub(crate) fn tck_in(args: &[&str], env: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plugbay-tck"));
    command.args(args).current_dir(ROOT).env("NO_COLOR", "1").envs(env.iter().copied());
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// The plugin of the tutorial but for one rule: it serves before it is active, so that IG-01
/// and others fail.
#[allow(dead_code, reason = "not every test judges a plugin")]
pub(crate) fn ungated() -> String {
    let right = fs::read_to_string(Path::new(ROOT).join("sdk-spec/tutorial/greet.py")).unwrap();
    let wrong = right.replace("if not active and not activate:", "if False:");
    assert_ne!(right, wrong);
    wrong
}
