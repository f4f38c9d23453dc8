//! What the registry lists: names that are protected, withheld, prefixed, stable.

use plugbay_supervisor::{
    Call, Caller, Effect, Fact, LocalTool, Output, PluginPlan, Refused, State, Supervisor,
    ToolInfo, plan::RestartWhen,
};
use serde_json::json;

use crate::{
    alone::alone,
    calls::{declared, tool},
    stage::{Stage, brief, holds, within},
    world::World,
};

fn listed(stage: &Stage) -> Vec<String> {
    let tools = stage.registry.tools(&Caller::trusted("test"));
    tools.into_iter().map(|it| it.name).collect()
}

fn withheld(stage: &Stage) -> Vec<(String, String)> {
    stage.facts(|fact| match fact {
        Fact::Withheld { tool, plugin, .. } => Some((tool.clone(), plugin.to_string())),
        _ => None,
    })
}

fn pair(tool: &str, plugin: &str) -> (String, String) {
    (tool.into(), plugin.into())
}

fn clock() -> LocalTool {
    let schema = json!({ "type": "object" });
    let clock = LocalTool::new("echo", "Not the fixture's.", schema, async |_| {
        Ok(Output::text_of("local"))
    });
    clock.effect(Effect::Read)
}

fn named(world: &World, name: &str, mode: &str) -> PluginPlan {
    PluginPlan { name: name.into(), ..world.plugin(name, mode) }
}

#[test]
fn a_local_tools_name_cannot_be_taken() {
    alone(async |world| {
        let stage = world.start(
            Supervisor::builder().tool(clock()).plugin(world.plugin("p", "good tools=echo")),
        );
        stage.up("p").await;
        assert_eq!(stage.call("echo", json!({})).await.expect("it answers").text(), "local");
        holds("it to be withheld", || withheld(&stage) == [pair("echo", "p")]).await;
        stage.end().await;
    });
}

#[test]
fn a_local_tool_cannot_take_a_plugins_name_either() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good tools=echo")]);
        stage.up("p").await;
        let Refused { name, why } = stage.registry.add(clock()).expect_err("it is taken");
        assert_eq!((name.as_str(), why.as_str()), ("echo", "plugin \"p\" has that name"));
        let bad = LocalTool::new("no good", "", json!({}), async |_| Ok(Output::default()));
        assert!(stage.registry.add(bad).is_err());
        let bad = LocalTool::new("odd", "", json!({ "type": 7 }), async |_| Ok(Output::default()));
        assert!(stage.registry.add(bad).is_err());
        assert_eq!(listed(&stage), ["echo"]);
        stage.end().await;
    });
}

#[test]
fn where_two_plugins_want_one_name_neither_gets_it_and_others_keep_theirs() {
    alone(async |world| {
        let stage = world.supervise([
            named(world, "a", "good tools=echo,text"),
            named(world, "b", "good tools=echo,pid"),
        ]);
        stage.up("a").await;
        assert_eq!(listed(&stage), ["echo", "text"]);
        stage.up("b").await;
        assert_eq!(listed(&stage), ["pid", "text"]);
        assert_eq!(brief(&stage.call("echo", json!({})).await), "not found, not run, never again");
        stage.call("text", json!({})).await.expect("its name is its own");
        holds("it to be withheld", || withheld(&stage) == [pair("echo", "b")]).await;
        stage.end().await;
    });
}

#[test]
fn a_prefix_keeps_them_apart() {
    alone(async |world| {
        let with = |name: &str| {
            let mut plan = named(world, name, "good tools=echo,pid");
            plan.prefix = Some(name.into());
            plan
        };
        let stage = world.supervise([with("a"), with("b")]);
        stage.up("a").await;
        stage.up("b").await;
        assert_eq!(listed(&stage), ["a_echo", "a_pid", "b_echo", "b_pid"]);
        let pid = async |name| {
            stage.call(name, json!({})).await.expect("it answers").data.expect("data")["pid"]
                .clone()
        };
        assert_ne!(pid("a_pid").await, pid("b_pid").await);
        stage.end().await;
    });
}

#[test]
fn a_name_no_model_accepts_or_a_schema_that_is_none_withholds_the_tool_and_not_the_plugin() {
    alone(async |world| {
        let stage = world.supervise([named(world, "p", "bad-names tools=echo")]);
        stage.up("p").await;
        assert_eq!(listed(&stage), ["echo"]);
        holds("all of them to be withheld", || withheld(&stage).len() == 8).await;
        stage.end().await;
        for which in ["type", "array", "ref", "remote", "root", "none"] {
            let stage = world.supervise([world.plugin("p", &format!("bad-schema which={which}"))]);
            stage.up("p").await;
            assert_eq!(listed(&stage), [""; 0], "{which}");
            holds("it to be withheld", || withheld(&stage) == [pair("odd", "p")]).await;
            stage.end().await;
        }
    });
}

#[test]
fn why_a_name_is_withheld_is_told_to_those_who_may_use_it_and_to_nobody_else() {
    alone(async |world| {
        let with = |name: &str, mode: &str| PluginPlan {
            prefix: Some(name.into()),
            ..named(world, name, mode)
        };
        let mut granted = with("granted", "good tools=echo,text");
        granted.grant_tools = vec!["echo".into()];
        let stage = world.supervise([
            granted,
            with("schema", "bad-schema which=type"),
            PluginPlan {
                prefix: Some("narrow".into()),
                ..declared(world, "activate-provides keep=echo", &["echo", "text"])
            },
            named(world, "a", "good tools=echo"),
            named(world, "b", "good tools=echo"),
        ]);
        for plugin in ["granted", "schema", "p", "a", "b"] {
            stage.up(plugin).await;
        }
        let (trusted, stranger) = (Caller::trusted("test"), Caller::new("stranger").allow("x"));
        for (name, why) in [
            ("granted_text", "plugin \"granted\" may not offer it: the operator does not grant it"),
            ("schema_odd", "plugin \"schema\" may not offer it: the root of its schema"),
            ("narrow_text", "plugin \"p\" may not offer it: it does not provide it now"),
            ("echo", "plugin \"a\" and plugin \"b\" want this name, so neither gets it"),
        ] {
            let error = stage.send(&trusted, Call::new(name, json!({}))).await.expect_err(name);
            let text = error.to_string();
            assert!(text.starts_with(&format!("no tool is called {name:?}: {why}")), "{text}");
            assert_eq!(stage.registry.find(&trusted, name), Err(error));
            let error = stage.send(&stranger, Call::new(name, json!({}))).await.expect_err(name);
            assert_eq!(error.to_string(), format!("no tool is called {name:?}"));
            assert_eq!(error.for_model(), format!("There is no tool named {name}."));
        }
        stage.end().await;
    });
}

/// An agent's list of tools does not change because a plugin is ill, and no other plugin
/// comes into its names meanwhile.
#[test]
fn a_quarantined_plugin_keeps_its_names() {
    alone(async |world| {
        let mut ill = PluginPlan { name: "ill".into(), ..declared(world, "crash", &["echo"]) };
        ill.restart.budget = 0;
        let stage = world.supervise([ill, named(world, "heir", "good tools=echo,pid")]);
        stage.ready("ill").await.ok();
        stage.until("ill", State::Quarantined).await;
        let tool = stage.registry.tool("echo").expect("it stays listed");
        assert_eq!((tool.plugin.as_deref(), tool.state), (Some("ill"), State::Quarantined));
        stage.up("heir").await;
        assert_eq!(listed(&stage), ["pid"], "the heir does not get what is claimed");
        let error = stage.call("echo", json!({})).await.expect_err("two want it");
        assert!(error.to_string().contains("plugin \"ill\" and plugin \"heir\""), "{error}");
        stage.end().await;
    });
}

#[test]
fn an_unknown_effect_is_the_worst() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "bad-effect")]);
        stage.up("p").await;
        let ToolInfo { effect, .. } = stage.registry.tool("odd").expect("it is listed");
        assert_eq!(effect, Effect::Write);
        stage.end().await;
    });
}

#[test]
fn an_operators_word_on_an_effect_beats_the_plugins() {
    alone(async |world| {
        let mut plan = world.plugin("p", "good tools=echo,pid");
        plan.effects = vec![("ec*".into(), Effect::Write)];
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let effect = |name| stage.registry.tool(name).expect("it is listed").effect;
        assert_eq!((effect("echo"), effect("pid")), (Effect::Write, Effect::Read));
        stage.end().await;
    });
}

#[test]
fn a_thousand_tools_and_a_description_of_a_megabyte_are_no_trouble() {
    alone(async |world| {
        let mut many = named(world, "many", "many-tools n=1000");
        many.limits.frame_bytes = 1 << 20;
        let stage = world.supervise([many, named(world, "long", "long-description")]);
        stage.up("many").await;
        stage.up("long").await;
        assert_eq!(listed(&stage).len(), 1001);
        let odd = stage.registry.tool("odd").expect("it is listed");
        assert_eq!(odd.description.len(), 1_000_000);
        stage.end().await;
    });
}

#[test]
fn a_plugin_with_more_tools_than_any_model_reads_is_turned_away() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "many-tools n=1025")]);
        assert!(within("an answer", stage.ready("p")).await.is_err());
        stage.until("p", State::Quarantined).await;
        let reason = stage.plugin("p").expect("it is there").reason;
        assert_eq!(
            reason.to_string(),
            "was turned away: it provides 1025 things, at most 1024 are accepted"
        );
        stage.end().await;
    });
}

#[test]
fn a_manifest_is_the_law_for_what_a_plugin_may_provide() {
    alone(async |world| {
        let mut plan = declared(world, "good", &["echo"]);
        plan.command.pop();
        plan.command.push("tools=echo,pid".into());
        plan.restart.when = RestartWhen::Never;
        let stage = world.supervise([plan]);
        let error = within("an answer", stage.ready("p")).await.expect_err("it provides more");
        assert_eq!(
            error.to_string(),
            "p was turned away: it provides the tool \"pid\", \
             which plugin.toml does not name"
        );
        stage.end().await;
    });
}

#[test]
fn an_identity_in_the_manifest_must_be_the_one_in_the_handshake() {
    alone(async |world| {
        let mut plan = world.plugin("p", "good name=acme.other version=2.0.0");
        plan.identity = Some(("acme.hello".into(), "2.0.0".into()));
        let stage = world.supervise([plan]);
        let error = within("an answer", stage.ready("p")).await.expect_err("it is another");
        assert!(error.to_string().contains("it says it is acme.other 2.0.0"), "{error}");
        stage.end().await;
    });
}

#[test]
fn what_a_plugin_does_not_provide_after_all_is_not_listed() {
    alone(async |world| {
        // The manifest names three, the handshake two, activation one.
        let mut plan = declared(world, "activate-provides keep=echo", &["echo", "text"]);
        plan.tools.push(tool("pid", Effect::Read));
        let stage = world.supervise([plan]);
        assert_eq!(listed(&stage), ["echo", "pid", "text"]);
        stage.up("p").await;
        assert_eq!(listed(&stage), ["echo"]);
        stage.end().await;
    });
}

#[test]
fn a_tool_keeps_its_generation_until_it_changes() {
    alone(async |world| {
        let count = world.path("lives");
        let mode = format!("many-tools n=2 first=1 count={}", count.display());
        let mut plan = world.plugin("p", &mode);
        plan.restart.first = std::time::Duration::from_millis(1);
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let before = stage.registry.tool("tool_0").expect("its first life has it").generation;
        stage.restart("p").expect("it is in the plan");
        holds("its second life", || stage.starts("p") == 2 && stage.state("p") == State::Active)
            .await;
        assert!(stage.registry.tool("tool_0").is_none(), "its second life has others");
        let after = stage.registry.tool("echo").expect("like this one").generation;
        assert!(before < after);
        stage.restart("p").expect("it is in the plan");
        holds("its third life", || stage.starts("p") == 3 && stage.state("p") == State::Active)
            .await;
        assert_eq!(stage.registry.tool("echo").expect("the same again").generation, after);
        stage.end().await;
    });
}

#[test]
fn two_plugins_of_one_name_are_refused_before_anything_starts() {
    alone(async |world| {
        let plans = [world.plugin("p", "good"), world.plugin("p", "good")];
        let builder = plans.into_iter().fold(Supervisor::builder(), |all, it| all.plugin(it));
        let error = builder.start().expect_err("two of one name");
        assert_eq!(error.to_string(), "\"p\" cannot be added: two plugins have this name");
    });
}
