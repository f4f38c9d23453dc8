//! The stream of facts: complete, in order, honest about gaps, and blind to what
//! belongs to a tenant.

use plugbay_supervisor::{Call, Caller, Effect, Event, Fact, State, Supervisor};
use serde_json::json;

use crate::{
    alone::alone,
    calls::{declared, tool},
    stage::within,
    world::World,
};

/// A word that must never be seen in any fact.
const CANARY: &str = "canary-7f3a";

/// Whoever asks the supervisor for them comes too late for what is said in its start.
#[test]
fn events_can_be_had_before_anything_happens() {
    alone(async |world| {
        let mut plan = declared(world, "exits-early say=heard", &["echo"]);
        plan.restart.budget = 0;
        plan.tools.push(tool("no good", Effect::Read));
        plan.idle.start_at_boot = true;
        let builder = Supervisor::builder().plugin(plan);
        let (mut events, mut lines) = (builder.events(), builder.stderr());
        let supervisor = builder.start().expect("the plan is sound");
        let first = events.next().await.expect("it has started");
        assert_eq!(first.seq, 0);
        assert!(matches!(first.fact, Fact::Withheld { ref tool, .. } if tool == "no good"));
        let second = within("a fact", events.next()).await.expect("it goes on");
        assert!(matches!(second.fact, Fact::Spawned { .. }), "{second:?}");
        assert_eq!(within("a line", lines.recv()).await.expect("it goes on").line.0, "heard");
        within("its end", supervisor.shutdown()).await;
    });
}

/// One life of a plugin in which the canary is everywhere a tenant's words may be.
async fn sing(world: &World) -> Vec<Event> {
    let mut plan = world.plugin("p", "good");
    plan.restart.first = std::time::Duration::from_millis(1);
    plan.config = json!({ "key": CANARY });
    plan.env.insert("SECRET".into(), CANARY.into());
    plan.secrets.insert("token".into(), plugbay_supervisor::plan::Secret(CANARY.into()));
    let mut loud = world.plugin("loud", &format!("banner text={CANARY}"));
    loud.restart.budget = 0;
    let mut rude = world.plugin("rude", &format!("close-error msg={CANARY}"));
    rude.restart.budget = 0;
    let mut shy = world.plugin("shy", &format!("exits-early say={CANARY}"));
    shy.restart.budget = 0;
    for other in [&mut loud, &mut rude, &mut shy] {
        other.prefix = Some(other.name.clone());
    }
    let supervisor =
        [plan, loud, rude, shy].into_iter().fold(Supervisor::builder(), |all, it| all.plugin(it));
    let supervisor = supervisor.start().expect("the plan is sound");
    let mut events = supervisor.events();
    let registry = supervisor.registry();
    for name in ["p", "loud", "rude", "shy"] {
        within("an answer", supervisor.ready(name)).await.ok();
    }
    let caller = Caller::trusted("test");
    let rows = [
        ("echo", json!({ "text": CANARY })),
        ("text", json!({ "text": CANARY, "is_error": true })),
        ("fail", json!({ "msg": CANARY, "code": "internal" })),
        ("fail", json!({ "msg": CANARY, "code": "internal", "reason": CANARY })),
        ("log", json!({ "event": "acme.fine", "msg": CANARY })),
        ("print", json!({ "fd": 2, "text": CANARY })),
        ("echo", json!({ "text": [CANARY] })),
        ("exit", json!({ "say": CANARY })),
        ("echo", json!({ "text": CANARY })),
    ];
    for (tool, args) in rows {
        let call = Call::new(tool, args).on_progress(|_| {});
        let shown = format!("{call:?}");
        assert!(!shown.contains(CANARY), "{shown}");
        let answer = within("an answer", registry.call(&caller, call)).await;
        // Its Debug is a caller's own; what is logged by habit is the Debug of an error.
        if let Err(error) = &answer
            && !matches!(error, plugbay_supervisor::CallError::Failed { .. })
            && tool != "echo"
        {
            assert!(!format!("{error} {error:?}").contains(CANARY), "{error:?}");
        }
    }
    for status in supervisor.plugins() {
        let shown = format!("{status:?} {}", json_of(&status));
        assert!(!shown.contains(CANARY), "{shown}");
    }
    assert!(!format!("{supervisor:?} {registry:?}").contains(CANARY));
    within("the shutdown", supervisor.shutdown()).await;
    drop((supervisor, registry));
    let mut all = Vec::new();
    while let Some(event) = within("the end of the stream", events.next()).await {
        all.push(event);
    }
    all
}

fn json_of(status: &plugbay_supervisor::PluginStatus) -> String {
    serde_json::to_string(status).expect("a status can be written")
}

#[test]
fn no_argument_result_message_secret_or_stderr_shows_in_any_fact_or_status() {
    alone(async |world| {
        let facts = sing(world).await;
        assert!(20 < facts.len(), "{facts:?}");
        for event in &facts {
            let shown = format!("{event:?}");
            assert!(!shown.contains(CANARY), "{shown}");
            if let Fact::Became { reason, .. } | Fact::Exited { reason, .. } = &event.fact {
                assert!(!reason.to_string().contains(CANARY), "{reason}");
            }
        }
        let logged =
            |event: &Event| matches!(&event.fact, Fact::Log { event, .. } if event == "acme.fine");
        assert!(facts.iter().any(logged), "a log line's name is a fact: {facts:#?}");
    });
}

/// What a plugin calls an event, or gives as its reason to leave, is shown to an
/// operator: short, and without what a terminal would obey.
#[test]
fn a_plugins_words_cannot_steer_a_terminal() {
    alone(async |world| {
        let long = "x".repeat(200);
        let mut plan = world.plugin("p", &format!("retire at=call reason=\u{1b}[31m{long}"));
        plan.restart.first = std::time::Duration::from_millis(1);
        let stage = world.supervise([plan]);
        stage.up("p").await;
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        let args = json!({ "event": format!("\u{1b}[2J\n{long}"), "msg": "" });
        stage.call("log", args).await.expect("it answers");
        let event = stage.fact("the log line", |fact| match fact {
            Fact::Log { event, .. } => Some(event.clone()),
            _ => None,
        });
        let shown = [event.await, stage.exit("p").await.0.to_string()];
        for text in shown {
            assert!(text.contains("\u{fffd}["), "{text:?}");
            assert!(!text.chars().any(char::is_control) && text.len() < 120, "{text:?}");
        }
        stage.end().await;
    });
}

#[test]
fn a_life_is_told_in_order() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        stage.up("p").await;
        // The state may be seen a moment before it is said.
        let active =
            |fact: &Fact| matches!(fact, Fact::Became { state: State::Active, .. }).then_some(());
        stage.fact("it to be active", active).await;
        stage.call("echo", json!({})).await.expect("it answers");
        stage.call("nothing", json!({})).await.expect_err("there is none");
        stage.down("p").await;
        let last =
            |fact: &Fact| matches!(fact, Fact::Became { state: State::Stopped, .. }).then_some(());
        stage.fact("the last of them", last).await;
        let told = stage.facts(|fact| {
            Some(match fact {
                Fact::Spawned { .. } => "spawned".to_owned(),
                Fact::Greeted { id, version, .. } => format!("greeted {id} {version}"),
                Fact::Became { state, reason, .. } => format!("{state}: {}", reason.kind()),
                Fact::Exited { reason, rung, .. } => format!("exited: {} {rung:?}", reason.kind()),
                Fact::CallStarted { tool, caller, .. } => format!("{caller} calls {tool}"),
                Fact::CallEnded { outcome, ran, .. } => format!("{outcome} {ran:?}"),
                other => format!("{other:?}"),
            })
        });
        assert_eq!(
            told,
            [
                "spawned",
                "starting: starting",
                "greeted plugbay.hostile 0.1.0",
                "active: running",
                "test calls echo",
                "ok Yes",
                "draining: stopped",
                "stopping: stopped",
                "exited: stopped Some(\"close\")",
                "stopped: stopped",
            ]
        );
        stage.end().await;
    });
}

#[test]
fn a_reader_that_is_too_slow_is_told_how_many_events_it_missed() {
    alone(async |world| {
        let mut plan = world.plugin("p", "good");
        plan.restart.first = std::time::Duration::from_millis(1);
        let builder = Supervisor::builder().plugin(plan);
        let supervisor = builder.start().expect("the plan is sound");
        let registry = supervisor.registry();
        let mut slow = supervisor.events();
        within("the plugin", supervisor.ready("p")).await.expect("it comes up");
        let caller = Caller::trusted("test");
        let wrong = || registry.call(&caller, Call::new("echo", json!([])));
        // Two facts each, or one.
        for _ in 0..6000 {
            wrong().await.expect_err("they are wrong");
        }
        let mut quick = supervisor.events();
        let (mut missed, mut seen, mut next) = (0, 0, None);
        wrong().await.expect_err("they are wrong");
        let last = within("an event", quick.next()).await.expect("it is open").seq;
        while next.is_none_or(|next| next <= last) {
            let event = within("an event", slow.next()).await.expect("it is open");
            assert_eq!(event.seq, *next.get_or_insert(0), "no gap that nobody announced");
            let step = match event.fact {
                Fact::Missed { count } => {
                    missed += count;
                    count
                }
                _ => 1,
            };
            seen += step;
            next = next.map(|next| next + step);
        }
        assert!(0 < missed && seen == last + 1, "{missed} of {seen}, the last is {last}");
        within("the shutdown", supervisor.shutdown()).await;
    });
}

#[test]
fn log_lines_and_stderr_above_their_rate_are_counted_and_not_passed_on() {
    alone(async |world| {
        let stage = world.supervise([
            world.plugin("chatty", "flood-stdout n=200000 every_us=100"),
            world.plugin("loud", "flood-stderr bytes=20000000 life=300"),
        ]);
        stage.up("chatty").await;
        stage.up("loud").await;
        let dropped = async |name: &'static str, kind: &'static str| {
            stage
                .fact("a count of what was dropped", |fact| match fact {
                    Fact::Dropped { plugin, what, count } if **plugin == *name && *what == kind => {
                        Some(*count)
                    }
                    _ => None,
                })
                .await
        };
        assert!(0 < dropped("chatty", "log lines").await);
        assert!(0 < dropped("loud", "stderr bytes").await);
        stage.end().await;
    });
}

#[test]
fn lines_of_stderr_reach_who_listens_and_are_private_in_debug() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        let mut lines = stage.stderr();
        stage.up("p").await;
        let args = json!({ "fd": 2, "text": format!("{CANARY} one\ntwo") });
        stage.call("print", args).await.expect("it answers");
        for expected in [format!("{CANARY} one"), "two".to_owned()] {
            let line = within("a line", lines.recv()).await.expect("it is open");
            assert!(!format!("{line:?}").contains(CANARY));
            assert_eq!((&*line.plugin, line.line.0), ("p", expected));
        }
        stage.end().await;
    });
}
