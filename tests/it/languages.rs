//! Plugins that are not the fixture: the tutorial's Python, written against the
//! spec alone, and the Rust SDK's example.

use std::{path::Path, process::Command};

use plugbay_supervisor::Effect;
use serde_json::json;

use crate::{
    alone::alone,
    stage::{brief, holds},
    world::World,
};

/// A file of this repository.
fn file(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the workspace");
    root.join(path).to_str().expect("a UTF-8 path").into()
}

/// A Python script by its own first line needs `env` and a PATH.
pub(crate) fn python(world: &World, path: &str) -> plugbay_supervisor::PluginPlan {
    let found = Command::new("/usr/bin/env")
        .args(["python3", "-c", "import sys; print(sys.executable)"])
        .output()
        .expect("Python 3 is needed for this test");
    let python = String::from_utf8(found.stdout).expect("a UTF-8 path").trim().to_owned();
    world.program("p", vec![python, file(path)])
}

#[test]
fn the_tutorials_plugin_greets() {
    alone(async |world| {
        let mut plan = python(world, "sdk-spec/tutorial/greet.py");
        plan.approve.write = plugbay_supervisor::plan::Approval::Allow;
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let output = stage.call("greet", json!({ "who": "Ada 🦀" })).await.expect("it answers");
        assert_eq!(output.text(), "hello, Ada 🦀");
        let output = stage.call("add", json!({ "a": 2, "b": 0.5 })).await.expect("it answers");
        assert_eq!(output.text(), "2.5");
        let wrong = stage.call("greet", json!({ "who": 7 })).await;
        assert_eq!(brief(&wrong), "bad arguments, not run, never again");
        let calls = (0..20).map(|n| stage.call("greet", json!({ "who": n.to_string() })));
        for (n, answer) in futures::future::join_all(calls).await.into_iter().enumerate() {
            assert_eq!(answer.expect("it answers").text(), format!("hello, {n}"));
        }
        stage.down("p").await;
        let (reason, rung) = stage.exit("p").await;
        assert_eq!((reason.kind(), rung), ("stopped", Some("close")));
        stage.end().await;
    });
}

#[test]
fn the_sdks_example_greets_and_its_stray_print_lands_in_stderr() {
    alone(async |world| {
        let program = env!("CARGO_BIN_EXE_plugbay-hello").to_owned();
        let stage = world.supervise([world.program("p", vec![program])]);
        stage.up("p").await;
        let tool = stage.registry.tool("greet").expect("it is listed");
        assert_eq!((tool.effect, tool.idempotent), (Effect::Read, true));
        assert_eq!(tool.description, "Greets somebody by name.");
        let output = stage.call("greet", json!({ "who": "Ada" })).await.expect("it answers");
        assert_eq!(output.text(), "hello, Ada");
        let words = || stage.plugin("p").expect("it is there").last_words;
        holds("the stray print", || words().0 == "this lands in stderr\n").await;
        stage.down("p").await;
        let (reason, rung) = stage.exit("p").await;
        assert_eq!((reason.kind(), rung), ("stopped", Some("close")));
        stage.end().await;
    });
}

#[test]
fn started_by_hand_they_say_what_they_are_and_exit_with_two() {
    let python = |path: &str| {
        let mut command = Command::new("/usr/bin/env");
        command.args(["python3", &file(path)]);
        command
    };
    let hello = Command::new(env!("CARGO_BIN_EXE_plugbay-hello"));
    let fixture = {
        let mut command = Command::new(crate::world::hostile());
        command.arg("good");
        command
    };
    for mut command in [python("sdk-spec/tutorial/greet.py"), hello, fixture] {
        let output = command.env_remove("PLUGBAY_PROTOCOL").output().expect("it starts");
        assert_eq!(output.status.code(), Some(2), "{command:?}");
        assert!(output.stdout.is_empty(), "{command:?}");
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(said.lines().count(), 1, "{command:?}: {said}");
        assert!(said.contains("plugbay"), "{command:?}: {said}");
    }
}
