//! Walls around plugins: what a plugin cannot reach, and that it runs nevertheless.

use plugbay_supervisor::{PluginPlan, State, isolation::Machine, plan::Level};
use serde_json::json;

use crate::{alone::alone, world::World};

/// A plan for the fixture behind walls.
fn walled(world: &World, mode: &str, level: Level) -> PluginPlan {
    let mut plan = world.plugin("p", mode);
    plan.sandbox.level = level;
    plan
}

#[test]
fn a_plugin_runs_behind_walls_and_answers() {
    eprintln!("{:#?}", Machine::here());
    alone(async |world| {
        for level in [Level::Standard, Level::Strict] {
            let stage = world.supervise([walled(world, "good", level)]);
            stage.up("p").await;
            stage.call("echo", json!({})).await.expect("it answers");
            assert_eq!(stage.plugin("p").expect("it is there").degraded, [""; 0]);
            stage.down("p").await;
            assert_eq!(stage.state("p"), State::Stopped);
            stage.end().await;
        }
    });
}
