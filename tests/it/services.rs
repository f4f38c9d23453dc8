//! What plugins may call at their host: with a scope, for as long as somebody waits.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use plugbay_supervisor::{
    Builder, Call, Caller, Code, Effect, Fact, Fault, LocalTool, Output, PluginPlan, Request,
    ServiceCall, State,
};
use serde_json::{Value, json};
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::Notify,
};

use crate::{
    alone::alone,
    languages::python,
    stage::{Stage, holds, within},
    streams::{ask, open, request},
    world::{World, kill},
};

/// The agent, granted these scopes.
fn agent(world: &World, scopes: &[&str]) -> PluginPlan {
    let mut plan = python(world, "tests/plugins/agent.py");
    plan.grant_scopes = scopes.iter().map(|it| (*it).to_owned()).collect();
    plan
}

/// Counts the services that run.
#[derive(Clone, Default)]
struct Running(Arc<AtomicUsize>);

impl Running {
    fn enter(&self) -> Self {
        self.0.fetch_add(1, Ordering::AcqRel);
        self.clone()
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

struct Leave(Running);

/// A host with the services that the agent wants. `wait` lasts until it is released.
fn services(running: &Running, release: &Arc<Notify>) -> Builder {
    let (running, release) = (running.clone(), Arc::clone(release));
    Builder::default()
        .service("host.tck.echo", async |call: ServiceCall| {
            let args: Value = call.args()?;
            let caller = call.caller.as_deref().unwrap_or("nobody").to_owned();
            Ok(json!({ "args": args, "plugin": &*call.plugin, "caller": caller }))
        })
        .service("host.tck.wait", move |_: ServiceCall| {
            let (leave, release) = (Leave(running.enter()), Arc::clone(&release));
            async move {
                release.notified().await;
                drop(leave);
                Ok::<_, Fault>(json!("released"))
            }
        })
        .service("host.tck.fail", async |_: ServiceCall| -> Result<(), Fault> {
            panic!("a service of the embedder's has a bug");
        })
}

fn reverse(method: &str, more: Value) -> Value {
    let mut args = json!({ "method": method });
    args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    args
}

fn stage(world: &World, scopes: &[&str]) -> (Stage, Running, Arc<Notify>) {
    let (running, release) = (Running::default(), Arc::new(Notify::new()));
    let builder = services(&running, &release).plugin(agent(world, scopes));
    (world.start(builder), running, release)
}

#[test]
fn a_service_is_called_with_a_scope_and_told_for_whom() {
    alone(async |world| {
        let (stage, ..) = stage(world, &["host.tck.echo", "host.tck.missing", "host.tck.fail"]);
        let echo = reverse("host.tck.echo", json!({ "args": { "a": 1 }, "n": 20, "parallel": 4 }));
        let results = ask(&stage, "reverse", echo).await.expect("it answers");
        let ok = json!({ "ok": { "args": { "a": 1 }, "plugin": "p", "caller": "test" } });
        assert_eq!(results["results"], json!(vec![ok; 20]));

        let unknown = ask(&stage, "reverse", reverse("host.tck.missing", json!({}))).await.unwrap();
        assert_eq!(unknown["results"][0]["err"]["reason"], json!("pb.unknown_method"));
        let panicked = ask(&stage, "reverse", reverse("host.tck.fail", json!({}))).await.unwrap();
        assert_eq!(panicked["results"][0]["err"]["code"], json!("internal"));

        let denied = ask(&stage, "reverse", reverse("host.tck.wait", json!({}))).await;
        assert!(denied.unwrap_err().to_string().contains("pb.scope_denied"));
        stage.end().await;
    });
}

#[test]
fn a_call_leaves_its_plugin_no_more_than_it_says() {
    alone(async |world| {
        let (stage, ..) = stage(world, &["host.tck.echo"]);
        let args = reverse("host.tck.echo", json!({}));
        let none: [&str; 0] = [];
        let reply = open(&stage, request("reverse", &args).scopes(none)).await.unwrap();
        let denied = reply.result().await.unwrap_err().to_string();
        assert!(denied.contains("pb.scope_denied"), "{denied}");
        let reply =
            open(&stage, request("reverse", &args).scopes(["host.tck.echo"])).await.unwrap();
        reply.result().await.expect("this much it may");
        stage.end().await;
    });
}

#[test]
fn a_service_stops_when_nobody_waits_for_it() {
    alone(async |world| {
        let (stage, running, _) = stage(world, &["host.tck.wait"]);
        let wait = reverse("host.tck.wait", json!({ "n": 3, "parallel": 3 }));
        let reply = open(&stage, request("reverse", &wait)).await.unwrap();
        holds("three services to run", || running.count() == 3).await;
        drop(reply);
        holds("them to be dropped with their call", || running.count() == 0).await;

        let reply = open(&stage, request("reverse", &wait)).await.unwrap();
        holds("three more to run", || running.count() == 3).await;
        kill(stage.plugin("p").unwrap().pid.expect("it runs"));
        holds("them to be dropped with their plugin", || running.count() == 0).await;
        within("the end", reply.result()).await.unwrap_err();
        stage.end().await;
        assert_eq!(running.count(), 0);
    });
}

#[test]
fn work_in_the_background_keeps_a_plugin_awake() {
    alone(async |world| {
        let (running, release) = (Running::default(), Arc::new(Notify::new()));
        let mut plan = agent(world, &["host.tck.wait", "host.background"]);
        plan.idle.stop_after = Some(std::time::Duration::from_millis(1));
        let mut clock = agent(world, &[]);
        clock.name = "q".into();
        let stage = world.start(services(&running, &release).plugin(plan).plugin(clock));
        let detached = reverse("host.tck.wait", json!({ "detach": true }));
        ask(&stage, "reverse", detached).await.expect("it goes on by itself");
        holds("the service to run", || running.count() == 1).await;
        let drains = || {
            let drain = |fact: &Fact| match fact {
                Fact::Became { plugin, state: State::Draining, .. } if **plugin == *"p" => Some(()),
                _ => None,
            };
            stage.facts(drain).len()
        };
        ask(&stage, "echo", json!(1)).await.expect("it is awake");
        let (starts, before) = (stage.starts("p"), drains());
        // Many times as long as it may be idle, and nobody calls it.
        let sleep = open(&stage, Request::new("q", "tck.sleep", &json!({ "ms": 100 }))).await;
        within("the other plugin", sleep.expect("it is sent").result()).await.expect("it sleeps");
        assert_eq!(
            (stage.starts("p"), stage.state("p"), drains()),
            (starts, State::Active, before)
        );
        release.notify_one();
        stage.until("p", State::Dormant).await;
        stage.end().await;
    });
}

/// A tool of the host's own.
fn add() -> LocalTool {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
    LocalTool::new("add", "Adds one.", schema, async |args| {
        Ok(Output::text_of((args["a"].as_i64().unwrap_or(0) + 1).to_string()))
    })
    .effect(Effect::Read)
}

async fn ask_for(stage: &Stage, name: &str, args: Value) -> String {
    let call = Call::new("ask", json!({ "name": name, "args": args }));
    let answer = stage.send(&Caller::new("model").allow("ask"), call).await;
    answer.expect("the tool itself answers").text()
}

#[test]
fn a_plugin_calls_tools_within_its_scope_and_under_everybodys_rules() {
    alone(async |world| {
        let write = LocalTool::new("erase", "Erases.", json!({ "type": "object" }), async |_| {
            Ok(Output::text_of("erased"))
        });
        let builder = Builder::default().tool(add()).tool(write);
        let plan = agent(world, &["host.tool.call[a*]", "host.tool.call[erase]"]);
        let stage = world.start(builder.plugin(plan));
        stage.up("p").await;
        assert_eq!(ask_for(&stage, "add", json!({ "a": 41 })).await, "42");
        let wrong = ask_for(&stage, "add", json!({ "a": "x" })).await;
        assert_eq!(wrong, "invalid_argument pb.bad_args no");
        assert_eq!(ask_for(&stage, "also", json!({})).await, "not_found pb.unknown_tool no");
        let denied = ask_for(&stage, "sub", json!({})).await;
        assert_eq!(denied, "permission_denied pb.scope_denied no");
        // It writes, and there is nobody who could approve.
        assert_eq!(ask_for(&stage, "erase", json!({})).await, "permission_denied None no");
        stage.end().await;
    });
}

/// The log line and the reverse call come in one read. Whoever hears of the line is there
/// before the service is, and gives the call up. \[R-RV-08\]
#[test]
fn a_service_does_not_begin_once_its_call_was_given_up() {
    alone(async |world| {
        if Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread {
            return; // There another thread may have begun with it before.
        }
        let begun = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&begun);
        let builder = Builder::default().service("host.tck.wait", move |_: ServiceCall| {
            count.fetch_add(1, Ordering::AcqRel);
            std::future::pending::<Result<(), Fault>>()
        });
        let stage = world.start(builder.plugin(agent(world, &["host.tck.wait"])));
        stage.up("p").await;
        let mut events = stage.events();
        let reply = open(&stage, request("hurry", &json!({}))).await.unwrap();
        let given_up = tokio::spawn(async move {
            while !matches!(events.next().await.unwrap().fact, Fact::Log { .. }) {}
            drop(reply);
        });
        within("the call to be given up", given_up).await.unwrap();
        // The plugin has had its answer by then.
        ask(&stage, "echo", json!({})).await.expect("it answers");
        assert_eq!(begun.load(Ordering::Acquire), 0);
        stage.end().await;
    });
}

#[test]
fn a_call_that_leads_back_to_where_no_slot_is_left_is_refused_at_once() {
    alone(async |world| {
        let mut plan = agent(world, &["host.tool.call"]);
        plan.env.insert("ASK_CALLS".into(), "2".into());
        let stage = world.start(Builder::default().tool(add()).plugin(plan));
        stage.up("p").await;
        let deep = |levels: usize| {
            let bottom = json!({ "name": "add", "args": { "a": 1 } });
            (1..levels).fold(bottom, |args, _| json!({ "name": "ask", "args": args }))
        };
        let ask_deep = async |levels| {
            let call = Call::new("ask", deep(levels));
            let answer = stage.send(&Caller::trusted("model"), call).await;
            answer.expect("the tool itself answers").text()
        };
        assert_eq!(ask_deep(1).await, "2");
        assert_eq!(ask_deep(2).await, "2", "the second slot is free");
        assert_eq!(ask_deep(3).await, "resource_exhausted pb.would_deadlock no");
        stage.end().await;
    });
}

#[test]
fn a_code_of_a_service_reaches_the_plugin() {
    alone(async |world| {
        let builder = Builder::default().service("host.tck.echo", async |_: ServiceCall| {
            let fault = Fault::new(Code::NotFound).because("acme.no_such_key").message("none");
            Err::<(), _>(fault)
        });
        let stage = world.start(builder.plugin(agent(world, &["host.tck.echo"])));
        let results = ask(&stage, "reverse", reverse("host.tck.echo", json!({}))).await.unwrap();
        let expected = json!({ "err": { "code": "not_found", "reason": "acme.no_such_key", "retry": "no" }, "msg": "none" });
        assert_eq!(results["results"], json!([expected]));
        stage.end().await;
    });
}
