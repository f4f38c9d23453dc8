//! What a plugin keeps in its state folder: measured, and told when it is too much.

use std::{fs, time::Duration};

use plugbay_supervisor::{
    Fact, PluginPlan, State,
    plan::{FileGrant, Level, STATE},
};
use serde_json::json;

use crate::{
    alone::alone,
    isolation::{attempt, walled},
    stage::{Stage, within},
    world::World,
};

const MIB: u64 = 1 << 20;

/// A plan with a state folder, `state` of this test.
fn keeping(world: &World, level: Level, bytes: u64) -> PluginPlan {
    let mut plan = walled(world, level);
    let path = world.path("state");
    plan.env.insert(STATE.to_owned(), path.display().to_string());
    plan.sandbox.files.push(FileGrant { path, write: true, make: true });
    plan.limits.state_bytes = Some(bytes);
    plan
}

async fn fill(stage: &Stage, world: &World, file: &str, bytes: u64) -> Option<String> {
    let path = world.path("state").join(file);
    let args = json!({ "deed": "fill", "what": path, "number": bytes });
    stage.call("try", args).await.ok().map(|it| it.text())
}

/// What was found in the folder at the last look.
async fn found(stage: &Stage) -> Option<u64> {
    let held = stage.hold("p").await.expect("it is there");
    held.iter().find(|it| it.key == "state").expect("it has one").used
}

async fn has_found(stage: &Stage, bytes: u64) {
    within("a look at the folder", async {
        while found(stage).await.is_none_or(|it| it < bytes) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

#[test]
fn a_plugin_that_keeps_too_much_is_ended_and_stays_down_until_there_is_room() {
    alone(async |world| {
        for level in [Level::Standard, Level::None] {
            let stage = world.supervise([keeping(world, level, 8 * MIB)]);
            stage.up("p").await;
            assert_eq!(fill(&stage, world, "a", 7 * MIB).await.as_deref(), Some("ok"));
            has_found(&stage, 7 * MIB).await;
            assert_eq!(stage.plugin("p").expect("it is there").state, State::Active);
            assert_eq!(stage.starts("p"), 1, "as much as it may");

            fill(&stage, world, "b", 5 * MIB).await;
            let (reason, _) = stage.exit("p").await;
            assert_eq!((reason.kind(), reason.code()), ("state_too_large", Some("PB0517")));
            assert!(reason.to_string().contains("where its limit is 8MiB"), "{reason}");
            assert_eq!(reason.private(), Some("a has 7MiB"));

            // As it is, it does not come up again; nobody is asked to.
            stage.call("try", json!({ "deed": "wait" })).await.expect_err("it is down");
            let active = |stage: &Stage| {
                let all = stage.facts(|fact| match fact {
                    Fact::Became { state: State::Active, .. } => Some(()),
                    _ => None,
                });
                all.len()
            };
            let before = active(&stage);
            stage.resume("p").expect("it is there");
            let error = within("an answer", stage.ready("p")).await.expect_err("it is full");
            assert!(error.to_string().contains("in its state folder"), "{error}");
            assert_eq!(active(&stage), before, "it was not let in");

            // With more room it is.
            let mut plan = stage.plan("p").expect("it is there");
            plan.limits.state_bytes = Some(64 * MIB);
            stage.set_bounds("p", plan.limits, plan.timeouts).expect("it is there");
            stage.resume("p").expect("it is there");
            stage.up("p").await;
            assert!(found(&stage).await.is_some_and(|it| 12 * MIB <= it));
            stage.end().await;
            fs::remove_dir_all(world.path("state")).expect("it is there");
        }
    });
}

/// One file alone is kept from being larger than what its plugin may write at all.
#[test]
fn a_single_burst_is_bounded_by_the_system() {
    alone(async |world| {
        let mut plan = keeping(world, Level::Standard, 4 * MIB);
        plan.limits.memory_bytes = None;
        let stage = world.supervise([plan.clone()]);
        stage.up("p").await;
        assert_eq!(fill(&stage, world, "a", 80 * MIB).await, None);
        let (reason, _) = stage.exit("p").await;
        let kinds = ["file_too_large", "state_too_large"];
        assert!(kinds.contains(&reason.kind()), "{reason}");
        let size = fs::metadata(world.path("state").join("a")).expect("it is there").len();
        // On a slow disk the measuring is there first.
        let is_cut = reason.kind() == "file_too_large";
        assert!(if is_cut { size == 64 * MIB } else { size <= 64 * MIB }, "{reason}: {size}");
        stage.end().await;

        // Not where it may write elsewhere, where other files may be as large as they are.
        let path = world.path("elsewhere");
        fs::create_dir(&path).expect("a folder can be made");
        fs::remove_file(world.path("state").join("a")).expect("it is there");
        plan.sandbox.files.push(FileGrant { path: path.clone(), write: true, make: false });
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let file = path.join("a").display().to_string();
        assert_eq!(attempt(&stage, "fill", &file, 80 * MIB).await, "ok");
        stage.end().await;
    });
}
