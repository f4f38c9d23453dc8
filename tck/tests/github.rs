//! The action and the workflow that authors copy: they are YAML, they fit each other, and what the
//! action runs is a command line that the suite takes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use saphyr::{LoadableYamlNode, YamlOwned};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const TCK: &str = env!("CARGO_BIN_EXE_plugbay-tck");

fn read(name: &str) -> YamlOwned {
    let text = fs::read_to_string(Path::new(ROOT).join("tck/github").join(name)).unwrap();
    let mut documents = YamlOwned::load_from_str(&text).unwrap();
    assert_eq!(documents.len(), 1);
    documents.remove(0)
}

fn get<'a>(node: &'a YamlOwned, path: &[&str]) -> &'a YamlOwned {
    path.iter().fold(node, |node, key| {
        node.as_mapping_get(key).unwrap_or_else(|| panic!("{path:?} has no {key}"))
    })
}

fn keys(node: &YamlOwned) -> Vec<&str> {
    node.as_mapping().unwrap().keys().map(|key| key.as_str().unwrap()).collect()
}

/// The step of the action that judges, with a value for each of its inputs.
struct Action(YamlOwned);

impl Action {
    fn step(&self, with: &str) -> &YamlOwned {
        let steps = get(&self.0, &["runs", "steps"]).as_sequence().unwrap();
        let is_it = |step: &&YamlOwned| get(step, &["run"]).as_str().unwrap().contains(with);
        steps.iter().find(is_it).unwrap()
    }

    /// Runs its script as the runner does.
    fn judge(&self, folder: &Path, inputs: &[(&str, &str)]) -> Output {
        let step = self.step("plugbay-tck \"$MODE\"");
        let script = get(step, &["run"]).as_str().unwrap();
        assert!(!script.contains("${{"), "what an input holds must not be part of the script");
        let mut command = Command::new("bash");
        // The options that GitHub gives for `shell: bash`.
        command.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", script]);
        let bin = Path::new(TCK).parent().unwrap();
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", bin.display())).current_dir(folder);
        command.env("GITHUB_STEP_SUMMARY", folder.join("summary.md"));
        let env = get(step, &["env"]);
        for name in keys(env) {
            let source = get(env, &[name]).as_str().unwrap();
            let input = source.strip_prefix("${{ inputs.").and_then(|it| it.strip_suffix(" }}"));
            let input = input.unwrap_or_else(|| panic!("{name} is {source}"));
            let given = inputs.iter().find(|(key, _)| *key == input).map(|(_, value)| *value);
            let value = given
                .or_else(|| get(&self.0, &["inputs", input]).as_mapping_get("default")?.as_str());
            command.env(name, value.unwrap_or_else(|| panic!("{input} is a string, or required")));
        }
        command.output().unwrap()
    }
}

#[test]
fn the_action_runs_command_lines_that_the_suite_takes() {
    let action = Action(read("action.yml"));
    assert_eq!(get(&action.0, &["runs", "using"]).as_str(), Some("composite"));
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let greet = PathBuf::from(ROOT).join("sdk-spec/tutorial/greet.py").canonicalize().unwrap();
    // A name with a space in it, as a shell reads it.
    fs::copy(&greet, at("my greet.py")).unwrap();
    let ended = action.judge(folder.path(), &[("command", "python3 -B 'my greet.py'")]);
    let out = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(ended.status.code(), Some(0), "{out}{}", String::from_utf8_lossy(&ended.stderr));
    for name in ["report.html", "junit.xml", "badge.json", "failures.jsonl"] {
        assert!(at("tck-reports").join(name).exists(), "{name}");
    }
    assert!(fs::read_to_string(at("summary.md")).unwrap().contains("all that applies is kept"));

    // Every input in use: a wrong command line would end with 2, a program that is none with 3.
    fs::write(at("tck.toml"), "").unwrap();
    fs::write(at("known.toml"), "HS-01 = \"later\"\n").unwrap();
    let all = [
        ("mode", "sdk"),
        ("settings", "tck.toml"),
        ("baseline", "known.toml"),
        ("strict", "true"),
        ("time-scale", "0.5"),
        ("reports", "other"),
    ];
    let none = ("command", "./no-such-program --flag");
    let ended = action.judge(folder.path(), &[&all[..], &[none]].concat());
    assert_eq!(ended.status.code(), Some(3), "{}", String::from_utf8_lossy(&ended.stderr));
    let ended = action.judge(folder.path(), &[("time-scale", "no"), none]);
    assert_eq!(ended.status.code(), Some(2), "{}", String::from_utf8_lossy(&ended.stderr));
    let inputs = keys(get(&action.0, &["inputs"]));
    assert!(inputs.iter().all(|it| *it == "command" || all.iter().any(|(key, _)| key == it)));

    // It is built from where it lies.
    let build = get(action.step("cargo install"), &["run"]).as_str().unwrap();
    assert!(build.ends_with("--path \"$GITHUB_ACTION_PATH/..\""), "{build}");
    assert!(Path::new(ROOT).join("tck/github/../Cargo.toml").exists());
}

#[test]
fn the_workflow_uses_the_action_as_it_is() {
    let (workflow, action) = (read("workflow.yml"), read("action.yml"));
    let job = get(&workflow, &["jobs", "tck"]);
    let systems = get(job, &["strategy", "matrix", "os"]).as_sequence().unwrap();
    let systems: Vec<&str> = systems.iter().map(|it| it.as_str().unwrap()).collect();
    assert_eq!(systems, ["ubuntu-latest", "macos-latest"]);
    let steps = get(job, &["steps"]).as_sequence().unwrap();
    let ours = steps.iter().find(|step| {
        let uses = step.as_mapping_get("uses").and_then(|it| it.as_str());
        uses.is_some_and(|it| it.starts_with("plugbay/plugbay/tck/github@"))
    });
    let with = get(ours.expect("a step that uses the action"), &["with"]);
    let inputs = keys(get(&action, &["inputs"]));
    assert!(keys(with).iter().all(|key| inputs.contains(key)));
    assert!(keys(with).contains(&"command"));
    // And so do the lines that wait for an author who needs them.
    let text = fs::read_to_string(Path::new(ROOT).join("tck/github/workflow.yml")).unwrap();
    let optional: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("          # ")?.split(':').next())
        .collect();
    assert_eq!(optional, ["settings", "baseline"]);
    assert!(optional.iter().all(|key| inputs.contains(key)));
}
