//! What a caller gets: answers, failures, and what each says about running it again.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use plugbay_supervisor::{
    Block, Call, CallError, Caller, Effect, LocalTool, Output, ToolPlan, plan::PluginPlan,
};
use serde_json::{Value, json};

use crate::{
    alone::alone,
    stage::{brief, within},
    world::World,
};

#[test]
fn arguments_reach_the_tool_and_its_answer_the_caller_unchanged() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        stage.up("p").await;
        let args = json!({
            "text": "grüße, 世界 \u{1F600} \u{0} \n",
            "numbers": [0, -1, 1.5, 9007199254740991_u64, i64::MIN, u64::MAX],
            "nothing": null, "yes": true, "nested": { "a": [[], {}] },
        });
        let output = stage.call("echo", args.clone()).await.expect("it answers");
        assert_eq!(output.data, Some(args.clone()));
        assert_eq!(output.text(), args["text"]);
        stage.end().await;
    });
}

#[test]
fn a_failure_of_the_tool_is_an_answer() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        stage.up("p").await;
        let args = json!({ "text": "no such row", "is_error": true });
        let output = stage.call("text", args).await.expect("the call itself worked");
        assert!(output.is_error && output.text() == "no such row");
        stage.end().await;
    });
}

#[test]
fn a_fault_of_the_plugin_keeps_its_code_and_says_whether_it_ran() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        stage.up("p").await;
        let rows = [
            ("internal", "no", "failed internal acme.why, run, never again"),
            ("invalid_argument", "no", "failed invalid_argument acme.why, run, never again"),
            ("not_found", "no", "failed not_found acme.why, run, never again"),
            ("unavailable", "safe", "failed unavailable acme.why, not run, again"),
            (
                "unavailable",
                "maybe",
                "failed unavailable acme.why, may have run, again if idempotent",
            ),
            ("whatever", "sometimes", "failed unknown acme.why, run, never again"),
        ];
        for (code, retry, expected) in rows {
            let args =
                json!({ "code": code, "retry": retry, "reason": "acme.why", "msg": "words" });
            let answer = stage.call("fail", args).await;
            assert_eq!(brief(&answer), expected, "{code} {retry}");
            let error = answer.expect_err("it failed");
            assert!(error.to_string().contains("words"), "{error}");
            assert!(error.for_model().contains("words"), "{}", error.for_model());
            assert_eq!(error.code(), "PB0508");
        }
        let args = json!({ "code": "unavailable", "retry": "safe", "after": 2500 });
        let error = stage.call("fail", args).await.expect_err("it failed");
        assert_eq!(
            error.for_model(),
            "The tool failed: as you wish. It did not run. You may call it again after 3 seconds."
        );
        stage.end().await;
    });
}

#[test]
fn an_unknown_tool_is_not_found_and_the_nearest_one_allowed_is_named() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        stage.up("p").await;
        let near = |answer| match answer {
            Err(CallError::NotFound { near, .. }) => near,
            other => panic!("{other:?}"),
        };
        assert_eq!(near(stage.call("ehco", json!({})).await), Some("echo".into()));
        assert_eq!(near(stage.call("unheard_of", json!({})).await), None);
        let call = Call::new("ehco", json!({}));
        let stranger = Caller::new("stranger").allow("sleep");
        assert_eq!(near(stage.send(&stranger, call).await), None, "it may not use echo");
        stage.end().await;
    });
}

#[test]
fn what_a_dead_plugin_said_last_is_kept_for_the_operator_and_from_the_model() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        stage.up("p").await;
        let said = "thread main panicked: disk on fire";
        let answer = stage.call("crash", json!({ "signal": "SIGABRT", "say": said })).await;
        assert_eq!(brief(&answer), "lost crashed, may have run, again if idempotent");
        let error = answer.expect_err("it died");
        let CallError::Lost { last_words, .. } = &error else { panic!("{error}") };
        assert!(last_words.0.contains(said), "{:?}", last_words.0);
        assert!(!format!("{error} {error:?} {}", error.for_model()).contains(said));
        assert_eq!(error.to_string(), "p was ended by SIGABRT");
        assert_eq!(
            error.for_model(),
            "The tool stopped working during this call. \
             Nobody knows whether it ran: check before you call it again."
        );
        assert!(stage.plugin("p").expect("it is there").last_words.0.contains(said));
        stage.end().await;
    });
}

/// What is written right before the end is in the pipe when the process is gone.
#[test]
fn the_end_of_a_long_farewell_is_heard() {
    alone(async |world| {
        let mut plan = world.plugin("p", "good");
        plan.restart.when = plugbay_supervisor::plan::RestartWhen::Never;
        plan.restart.budget = 100;
        let stage = world.supervise([plan]);
        for n in 0..20 {
            stage.up("p").await;
            let farewell = format!("{} farewell {n}", "x".repeat(300_000));
            let answer = stage.call("exit", json!({ "say": farewell })).await;
            let Err(CallError::Lost { last_words, reason, .. }) = answer else {
                panic!("{answer:?}")
            };
            let heard = last_words.0.len();
            let whole = last_words.0.ends_with(&format!("farewell {n}\n"));
            assert!(whole, "{heard} bytes and no farewell {n}: it {reason}");
        }
        stage.end().await;
    });
}

#[test]
fn a_plugin_killed_in_a_long_call_fails_all_its_calls_at_once() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        stage.up("p").await;
        let calls = [(); 5].map(|()| stage.spawn("sleep", json!({ "ms": 1_800_000 })));
        let pid = stage.plugin("p").expect("it is there").pid.expect("it runs");
        within("all calls to run", async { while stage.ask_state().await["open"] != 6 {} }).await;
        let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).expect("a pid"));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("it lives");
        for call in calls {
            let answer = call.await.expect("it ends");
            assert_eq!(brief(&answer), "lost killed, may have run, again if idempotent");
        }
        stage.end().await;
    });
}

#[test]
fn a_dead_plugin_starts_again_with_a_new_activation_and_serves() {
    alone(async |world| {
        let mut plan = world.plugin("p", "good");
        plan.restart.first = Duration::from_millis(10);
        let stage = world.supervise([plan]);
        stage.up("p").await;
        stage.call("crash", json!({})).await.expect_err("it dies");
        stage.until("p", plugbay_supervisor::State::Active).await;
        let state = stage.call("state", json!({})).await.expect("it serves").data.expect("data");
        assert_eq!((&state["activations"], stage.starts("p")), (&json!(1), 2));
        stage.end().await;
    });
}

#[test]
fn bad_arguments_are_told_with_their_places_and_wake_nobody() {
    alone(async |world| {
        let stage = world.supervise([declared(world, "good", &["echo"])]);
        let error = stage.call("echo", json!({ "text": 7, "more": [] })).await.expect_err("wrong");
        let CallError::BadArguments { problems, .. } = &error else { panic!("{error}") };
        assert_eq!(problems, &["/text: 7 is not of type \"string\""]);
        for wrong in [json!(null), json!([]), json!("text"), json!(1)] {
            let answer = stage.call("echo", wrong).await;
            assert_eq!(brief(&answer), "bad arguments, not run, never again");
        }
        assert_eq!(stage.starts("p"), 0, "nothing was started for it");
        stage.end().await;
    });
}

#[test]
fn arguments_larger_than_the_plugin_accepts_are_refused_and_it_lives_on() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "tiny-limits")]);
        stage.up("p").await;
        let answer = stage.call("echo", json!({ "text": "x".repeat(70_000) })).await;
        assert_eq!(brief(&answer), "bad arguments, not run, never again");
        let answer = stage.call("echo", json!({ "text": "x".repeat(60_000) })).await;
        assert_eq!(brief(&answer), "ok");
        assert_eq!(stage.starts("p"), 1);
        stage.end().await;
    });
}

#[test]
fn a_result_may_be_as_large_as_the_limit_and_not_a_byte_larger() {
    alone(async |world| {
        let mut plan = world.plugin("p", "good");
        plan.limits.result_bytes = 1000;
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let mut fits = 0;
        for bytes in 900..1000 {
            let answer = stage.call("big", json!({ "bytes": bytes })).await;
            match brief(&answer).as_str() {
                "ok" => {
                    assert_eq!(fits, bytes - 900, "once too large, always too large");
                    fits += 1;
                }
                "result too large, run, never again" => {
                    let CallError::BadResult { why, .. } = answer.expect_err("too large") else {
                        panic!("it was too large")
                    };
                    if fits == bytes - 900 {
                        assert_eq!(why, "1001 bytes, where at most 1000 are allowed");
                    }
                }
                other => panic!("{other}"),
            }
        }
        assert!((1..100).contains(&fits));
        stage.end().await;
    });
}

#[test]
fn data_must_be_there_and_fit_the_promised_schema() {
    alone(async |world| {
        let mut plan = declared(world, "good", &["echo", "text"]);
        for tool in &mut plan.tools {
            tool.output_schema = Some(json!({ "type": "object", "required": ["text"] }));
        }
        let stage = world.supervise([plan]);
        let rows = [
            ("echo", json!({ "text": "there" }), "ok"),
            ("echo", json!({}), "bad result, run, never again"),
            ("text", json!({}), "bad result, run, never again"),
            ("text", json!({ "is_error": true }), "tool error"),
        ];
        for (tool, args, expected) in rows {
            assert_eq!(brief(&stage.call(tool, args.clone()).await), expected, "{tool} {args}");
        }
        stage.end().await;
    });
}

#[test]
fn progress_arrives_in_order_before_the_answer() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        stage.up("p").await;
        let told = Arc::new(Mutex::new(Vec::new()));
        let call = Call::new("progress", json!({ "n": 20 })).on_progress({
            let told = Arc::clone(&told);
            move |progress| told.lock().expect("nobody panics").push(progress)
        });
        stage.send(&Caller::trusted("test"), call).await.expect("it answers");
        let told = told.lock().expect("nobody panics").clone();
        let steps = told.iter().map(|it| (it.n, it.total, it.message.clone()));
        let expected = (1..=20).map(|n| (Some(n), Some(20), Some(format!("step {n}"))));
        assert!(steps.eq(expected), "{told:?}");
        stage.end().await;
    });
}

#[test]
fn a_caller_that_panics_at_progress_harms_nobody() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "good")]);
        stage.up("p").await;
        let call = Call::new("progress", json!({ "n": 3 })).on_progress(|_| panic!("on purpose"));
        stage.send(&Caller::trusted("test"), call).await.expect("it answers");
        stage.call("echo", json!({ "text": "still there" })).await.expect("it answers");
        assert_eq!(stage.starts("p"), 1);
        stage.end().await;
    });
}

#[test]
fn answers_find_their_callers_in_any_order_and_at_any_size() {
    alone(async |world| {
        let mut plan = world.plugin("p", "good");
        (plan.limits.concurrency, plan.limits.queue) = (16, 64);
        plan.limits.result_bytes = 1 << 20;
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let calls = (0..64).map(|n: usize| {
            let text = format!("{n} {}", "x".repeat(if n.is_multiple_of(8) { 300_000 } else { n }));
            (text.clone(), stage.spawn("echo", json!({ "text": text })))
        });
        for (text, call) in calls.collect::<Vec<_>>() {
            let output = call.await.expect("it ends").expect("it answers");
            assert!(output.text() == text, "somebody else's answer");
        }
        stage.end().await;
    });
}

#[test]
fn a_large_call_and_a_large_answer_pass_each_other_with_both_pipes_full() {
    alone(async |world| {
        let mut plan = world.plugin("p", "good frame=8388608");
        (plan.limits.frame_bytes, plan.limits.result_bytes) = (8 << 20, 8 << 20);
        let stage = world.supervise([plan]);
        stage.up("p").await;
        let text = "y".repeat(3 << 20);
        let calls = [(); 4].map(|()| stage.spawn("echo", json!({ "text": text })));
        for call in calls {
            let output = call.await.expect("it ends").expect("it answers");
            assert!(output.text() == text);
        }
        stage.end().await;
    });
}

#[test]
fn a_plugin_that_serves_one_call_at_a_time_is_never_given_two() {
    alone(async |world| {
        for mode in ["serial", "tiny-limits"] {
            let trace = world.path(mode);
            let mode = format!("{mode} trace={}", trace.display());
            let stage = world.supervise([world.plugin("p", &mode)]);
            stage.up("p").await;
            let calls = [(); 20].map(|()| stage.spawn("sleep", json!({ "ms": 1 })));
            for call in calls {
                call.await.expect("it ends").expect("it answers");
            }
            stage.end().await;
            assert_eq!(accusations(&trace), [""; 0]);
        }
    });
}

/// What the fixture has to say against its host.
fn accusations(trace: &std::path::Path) -> Vec<String> {
    let events = crate::world::trace(trace).into_iter().map(|(_, event)| event);
    events.filter(|it| it.starts_with("accuse") || it.starts_with("doubt")).collect()
}

#[test]
fn a_local_tool_is_called_like_any_other_and_its_panic_is_its_own() {
    alone(async |world| {
        let schema = || json!({ "type": "object", "properties": { "n": { "type": "integer" } } });
        let double = LocalTool::new("double", "Doubles.", schema(), async |args: Value| {
            let n = args["n"].as_i64().ok_or("no number")?;
            assert!(n != 13, "unlucky");
            Ok(Output::text_of((2 * n).to_string()))
        });
        let stage = world.start(
            plugbay_supervisor::Supervisor::builder()
                .tool(double.effect(Effect::Read))
                .plugin(world.plugin("p", "good")),
        );
        stage.up("p").await;
        let rows = [
            (json!({ "n": 4 }), "ok"),
            (json!({}), "tool error"),
            (json!({ "n": "four" }), "bad arguments, not run, never again"),
            (json!({ "n": 13 }), "failed internal -, run, never again"),
        ];
        for (args, expected) in rows {
            assert_eq!(brief(&stage.call("double", args.clone()).await), expected, "{args}");
        }
        let names = |it: &plugbay_supervisor::ToolInfo| it.name.clone();
        let caller = Caller::trusted("test");
        let listed = stage.registry.tools(&caller).iter().map(names).collect::<BTreeSet<_>>();
        assert!(listed.contains("double") && listed.contains("echo"), "{listed:?}");
        stage.end().await;
    });
}

#[test]
fn an_unknown_block_is_tolerated_and_named() {
    alone(async |world| {
        let stage = world.supervise([world.plugin("p", "greases")]);
        stage.up("p").await;
        let output = stage.call("text", json!({ "text": "hi" })).await.expect("it answers");
        assert_eq!(output.content, [Block::Unknown, Block::Text { text: "hi".into() }]);
        stage.end().await;
    });
}

/// A plan whose manifest names these tools of the fixture, so that they are listed
/// while it sleeps.
pub(crate) fn declared(world: &World, mode: &str, tools: &[&str]) -> PluginPlan {
    let mut plan = world.plugin("p", mode);
    plan.discover = false;
    let listed = tools.join(",");
    plan.command.push(format!("tools={listed}"));
    plan.tools = tools.iter().map(|name| tool(name, Effect::Read)).collect();
    plan
}

/// One tool as a manifest names it.
pub(crate) fn tool(name: &str, effect: Effect) -> ToolPlan {
    ToolPlan {
        name: name.into(),
        description: format!("The fixture's {name}."),
        input_schema: json!({
            "type": "object",
            "properties": { "text": { "type": "string" }, "ms": { "type": "integer" } },
        }),
        output_schema: None,
        effect,
        idempotent: false,
    }
}
