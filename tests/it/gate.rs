//! Who may call what, in which order a call is refused, and that a refused call
//! wakes nobody.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use plugbay_supervisor::{
    Call, Caller, Effect, LocalTool, Output, PluginPlan, Question, State, Supervisor,
    plan::{Approval, Approve},
};
use serde_json::json;

use crate::{
    alone::alone,
    calls::{declared, tool},
    stage::{Stage, brief, holds},
    world::World,
};

const DENIED: &str = "denied, not run, never again";

/// A plan with one tool of each effect.
fn effects(world: &World, approve: Approve) -> PluginPlan {
    let mut plan = declared(world, "good", &["echo", "text", "pid"]);
    let all = [("echo", Effect::Read), ("text", Effect::Draft), ("pid", Effect::Write)];
    plan.tools = all.map(|(name, effect)| tool(name, effect)).into();
    plan.approve = approve;
    plan
}

async fn as_caller(stage: &Stage, caller: &Caller, name: &str) -> String {
    brief(&stage.send(caller, Call::new(name, json!({}))).await)
}

#[test]
fn a_caller_may_use_what_it_was_allowed_and_sees_no_more() {
    alone(async |world| {
        let stage = world.supervise([declared(world, "good", &["echo", "text", "pid"])]);
        let planner = Caller::new("planner").allow("ec*").allow("pid");
        let listed = stage.registry.tools(&planner);
        let names = listed.iter().map(|it| it.name.as_str()).collect::<Vec<_>>();
        assert_eq!(names, ["echo", "pid"]);
        assert_eq!(as_caller(&stage, &planner, "text").await, DENIED);
        assert_eq!(as_caller(&stage, &Caller::new("nobody"), "echo").await, DENIED);
        assert_eq!(stage.starts("p"), 0, "who has no right wakes nobody");
        assert_eq!(as_caller(&stage, &planner, "echo").await, "ok");
        stage.end().await;
    });
}

#[test]
fn each_effect_follows_its_own_rule_and_writing_needs_a_yes_by_default() {
    alone(async |world| {
        let rows = [
            (Approve::default(), ["ok", "ok", DENIED]),
            (
                Approve { read: Approval::Deny, draft: Approval::Ask, write: Approval::Allow },
                [DENIED, DENIED, "ok"],
            ),
        ];
        for (approve, expected) in rows {
            let stage = world.supervise([effects(world, approve)]);
            let caller = Caller::new("model").allow("*");
            for (name, expected) in ["echo", "text", "pid"].into_iter().zip(expected) {
                assert_eq!(as_caller(&stage, &caller, name).await, expected, "{name}");
            }
            stage.end().await;
        }
    });
}

#[test]
fn a_trusted_caller_answers_for_itself_and_a_rule_that_denies_still_does() {
    alone(async |world| {
        let approve = Approve { read: Approval::Ask, draft: Approval::Ask, write: Approval::Deny };
        let stage = world.supervise([effects(world, approve)]);
        let person = Caller::trusted("person");
        assert_eq!(as_caller(&stage, &person, "echo").await, "ok");
        assert_eq!(as_caller(&stage, &person, "text").await, "ok");
        assert_eq!(as_caller(&stage, &person, "pid").await, DENIED);
        stage.end().await;
    });
}

#[test]
fn an_approver_is_asked_once_and_only_its_yes_lets_a_call_pass() {
    alone(async |world| {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let approver = move |question: Question| {
            counted.fetch_add(1, Ordering::Relaxed);
            async move {
                assert_eq!((question.tool.as_str(), question.effect), ("pid", Effect::Write));
                match question.caller.as_str() {
                    "yes" => true,
                    "panic" => panic!("nobody should notice"),
                    "dropped" => std::future::pending().await,
                    _ => false,
                }
            }
        };
        let plan = effects(world, Approve::default());
        let stage = world.start(Supervisor::builder().plugin(plan).approver(approver));
        let ask = |name| Caller::new(name).allow("*");
        for (name, expected) in [("no", DENIED), ("panic", DENIED)] {
            assert_eq!(as_caller(&stage, &ask(name), "pid").await, expected, "{name}");
        }
        let (dropped, hangs) = (ask("dropped"), stage.clone());
        let waits = tokio::spawn(async move { as_caller(&hangs, &dropped, "pid").await });
        holds("the question", || asked.load(Ordering::Relaxed) == 3).await;
        waits.abort();
        assert!(waits.await.expect_err("it was given up").is_cancelled());
        assert_eq!(stage.starts("p"), 0, "nobody was woken for a no");
        assert_eq!(as_caller(&stage, &ask("yes"), "pid").await, "ok");
        assert_eq!(asked.load(Ordering::Relaxed), 4);
        assert_eq!(as_caller(&stage, &ask("no"), "echo").await, "ok", "reading asks nobody");
        assert_eq!(asked.load(Ordering::Relaxed), 4);
        stage.end().await;
    });
}

#[test]
fn an_approver_that_thinks_too_long_says_no_and_one_that_thinks_costs_no_budget() {
    alone(async |world| {
        let caller = Caller::new("model").allow("*");
        let ask = || Supervisor::builder().plugin(effects(world, Approve::default()));
        let late = ask().approver(async |_| std::future::pending().await);
        let stage = world.start(late.approval_wait(Duration::from_millis(50)));
        assert_eq!(as_caller(&stage, &caller, "pid").await, DENIED);
        stage.end().await;
        // It thinks for longer than the call may take, and the call has all of its time.
        let thinks = Duration::from_secs(2);
        let stage = world.start(ask().approver(move |_| async move {
            tokio::time::sleep(thinks).await;
            true
        }));
        stage.up("p").await;
        let call = Call::new("pid", json!({})).deadline(thinks);
        stage.send(&caller, call).await.expect("the budget begins with the yes");
        stage.end().await;
    });
}

#[test]
fn an_approver_that_panics_before_it_answers_says_no() {
    alone(async |world| {
        let approver = |question: Question| -> std::future::Ready<bool> {
            panic!("no answer to {}", question.tool)
        };
        let plan = effects(world, Approve::default());
        let stage = world.start(Supervisor::builder().plugin(plan).approver(approver));
        let caller = Caller::new("model").allow("*");
        assert_eq!(as_caller(&stage, &caller, "pid").await, DENIED);
        stage.end().await;
    });
}

#[test]
fn nobody_is_asked_about_a_call_that_is_refused_anyway() {
    alone(async |world| {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let approver = move |_: Question| {
            counted.fetch_add(1, Ordering::Relaxed);
            std::future::ready(true)
        };
        let plan = effects(world, Approve::default());
        let stage = world.start(Supervisor::builder().plugin(plan).approver(approver));
        let caller = Caller::new("model").allow("pid");
        let wrong = Call::new("pid", json!([]));
        assert_eq!(brief(&stage.send(&caller, wrong).await), "bad arguments, not run, never again");
        stage.down("p").await;
        assert_eq!(
            as_caller(&stage, &caller, "pid").await,
            "inactive stopped stopped, not run, never again"
        );
        assert_eq!(asked.load(Ordering::Relaxed), 0);
        stage.end().await;
    });
}

/// Denied, inactive, busy, bad arguments: a call that has all four faults at once
/// is mended one by one.
#[test]
fn the_order_of_refusals_is_denied_inactive_busy_bad_arguments() {
    alone(async |world| {
        let mut plan = declared(world, "good", &["echo", "sleep"]);
        (plan.limits.concurrency, plan.limits.queue) = (1, 0);
        let stage = world.supervise([plan]);
        stage.down("p").await;
        let wrong = || Call::new("echo", json!({ "text": 7 }));
        let stranger = Caller::new("stranger");
        let allowed = Caller::new("model").allow("*");
        assert_eq!(brief(&stage.send(&stranger, wrong()).await), DENIED);
        assert_eq!(
            brief(&stage.send(&allowed, wrong()).await),
            "inactive stopped stopped, not run, never again"
        );
        stage.resume("p").expect("it is in the plan");
        stage.until("p", State::Dormant).await;
        stage.up("p").await;
        let running = stage.spawn("sleep", json!({ "ms": 600_000 }));
        stage.a_call_starts().await;
        assert_eq!(brief(&stage.send(&allowed, wrong()).await), "busy, not run, again");
        running.abort();
        holds("a free place", || stage.inside("p") == 0).await;
        assert_eq!(
            brief(&stage.send(&allowed, wrong()).await),
            "bad arguments, not run, never again"
        );
        stage.end().await;
    });
}

#[test]
fn a_local_tool_that_writes_needs_a_yes_too() {
    alone(async |world| {
        let schema = json!({ "type": "object" });
        let erase = LocalTool::new("erase", "Erases.", schema, async |_| Ok(Output::default()));
        let stage = world.start(Supervisor::builder().tool(erase));
        let model = Caller::new("model").allow("*");
        assert_eq!(as_caller(&stage, &model, "erase").await, DENIED);
        assert_eq!(as_caller(&stage, &Caller::trusted("person"), "erase").await, "ok");
        stage.end().await;
    });
}

#[test]
fn only_granted_tools_are_listed_and_only_granted_scopes_are_handed_over() {
    alone(async |world| {
        let mut plan = world.plugin("p", "good");
        plan.grant_tools = vec!["s*".into()];
        // Also what it does not want, which it does not get.
        plan.grant_scopes = vec!["host.kv.get".into(), "host.kv.put".into()];
        plan.config = json!({ "root": "/data" });
        plan.secrets.insert("token".into(), plugbay_supervisor::plan::Secret("hunter2".into()));
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let caller = Caller::trusted("test");
        let names = stage.registry.tools(&caller).into_iter().map(|it| it.name);
        assert_eq!(names.collect::<Vec<_>>(), ["sleep", "spin", "state", "stubborn"]);
        assert_eq!(as_caller(&stage, &caller, "echo").await, "not found, not run, never again");
        let state = stage.call("state", json!({})).await.expect("it answers");
        let data = state.data.expect("data");
        assert_eq!(data["grant"], json!(["host.kv.get"]));
        assert_eq!(data["config"], json!({ "root": "/data" }));
        assert_eq!(data["secrets"], json!(["token"]));
        stage.end().await;
    });
}
