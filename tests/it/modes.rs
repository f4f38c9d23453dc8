//! Every mode of the hostile fixture, and what becomes of it: a table.
//!
//! All of them live in one supervisor, several at a time, beside one good plugin
//! that must not notice.

use std::{
    collections::BTreeSet,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use plugbay_supervisor::{CallError, NotReady, PluginPlan, Reason};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::{
    alone::alone,
    stage::{Stage, brief, within},
    world::{hostile, patience},
};

/// Modes that misbehave at the same time.
const AT_ONCE: usize = 8;

/// A mode with its arguments, budgets that may run out, and what must come of it:
///
/// - `up: CALL; REASON RUNG`: it comes up, a call ends as CALL, and its process
///   ends for REASON on RUNG, by itself or because we stop it;
/// - `down: REASON; REASON RUNG`: it does not come up;
/// - `dies: REASON RUNG`: it comes up or not, and dies by itself;
/// - `stays: REASON RUNG`: it comes up, nobody calls it, and its process ends for REASON
///   on RUNG because we stop it.
type Row = (&'static str, fn(&mut PluginPlan), &'static str);

pub(crate) fn real(_: &mut PluginPlan) {}

pub(crate) fn no_hello(plan: &mut PluginPlan) {
    plan.timeouts.hello = patience(ms(300));
}

fn short_activate(plan: &mut PluginPlan) {
    plan.timeouts.activate = ms(300);
}

pub(crate) fn short_call(plan: &mut PluginPlan) {
    (plan.timeouts.call_idle, plan.timeouts.cancel_grace) = (ms(200), ms(200));
    short_drain(plan);
    short_ladder(plan);
}

fn short_total(plan: &mut PluginPlan) {
    plan.timeouts.call = ms(300);
    short_drain(plan);
}

pub(crate) fn short_drain(plan: &mut PluginPlan) {
    plan.timeouts.drain = ms(200);
}

pub(crate) fn early_ping(plan: &mut PluginPlan) {
    plan.timeouts.ping_after = ms(100);
    short_ladder(plan);
}

pub(crate) fn silence(plan: &mut PluginPlan) {
    (plan.timeouts.ping_after, plan.timeouts.ping_dead) = (ms(100), ms(300));
    short_ladder(plan);
}

fn short_close(plan: &mut PluginPlan) {
    plan.timeouts.exit_grace = ms(200);
}

/// Long enough for SIGTERM to work, too short for what is ignored.
pub(crate) fn short_ladder(plan: &mut PluginPlan) {
    (plan.timeouts.exit_grace, plan.timeouts.eof_grace) = (ms(200), ms(200));
}

pub(crate) fn short_ladder_all(plan: &mut PluginPlan) {
    short_ladder(plan);
    plan.timeouts.term_grace = ms(200);
}

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    // Correct plugins, however odd: they come up, answer, and leave at CLOSE.
    ("good", real, "up: ok; stopped close"),
    ("good calls=1", real, "up: ok; stopped close"),
    ("good frame=65536", real, "up: ok; stopped close"),
    ("serial", real, "up: ok; stopped close"),
    ("no-cookie", real, "up: ok; stopped close"),
    ("greases", real, "up: ok; stopped close"),
    ("byte-by-byte", real, "up: ok; stopped close"),
    ("byte-by-byte size=7", real, "up: ok; stopped close"),
    ("coalesced", real, "up: ok; stopped close"),
    ("wide-ints style=u64", real, "up: ok; stopped close"),
    ("wide-ints style=i64", real, "up: ok; stopped close"),
    ("wide-ints style=all", real, "up: ok; stopped close"),
    ("tiny-limits", real, "up: ok; stopped close"),
    ("exact-frame", real, "up: ok; stopped close"),
    ("ping-host", real, "up: ok; stopped close"),
    ("ping-host size=64", real, "up: ok; stopped close"),
    ("slow-activate", real, "up: ok; stopped close"),
    ("activate-provides", real, "up: ok; stopped close"),
    ("slow-hello", real, "up: ok; stopped close"),
    ("no-identity", real, "up: ok; stopped close"),
    ("note-unknown-id", real, "up: ok; stopped close"),
    ("backward-progress", real, "up: ok; stopped close"),
    ("closes-stderr", real, "up: ok; stopped close"),
    ("busy-deactivate", real, "up: ok; stopped close"),
    ("unoffered-feature", real, "up: ok; stopped close"),
    ("exit-status", real, "up: ok; stopped close"),
    ("slow-exit", real, "up: ok; stopped close"),
    ("is-error", real, "up: tool error; stopped close"),
    // Asking to be replaced as soon as it is up is heeded once it is old enough.
    ("retire", real, "dies: retired close"),
    // The handshake.
    ("banner", real, "down: not_a_frame; not_a_frame -|eof"),
    ("eager-hello", real, "down: violation; violation -|eof"),
    ("double-hello", real, "down: violation; violation -|eof"),
    ("note-first", real, "down: violation; violation -|eof"),
    ("end-first", real, "down: violation; violation -|eof"),
    ("huge-hello", real, "down: violation; violation -|eof"),
    ("no-limits", real, "down: violation; violation -|eof"),
    ("low-limits which=frame", real, "down: violation; violation -|eof"),
    ("low-limits which=window", real, "down: violation; violation -|eof"),
    ("low-limits which=calls", real, "down: violation; violation -|eof"),
    ("wrong-version", real, "down: version_unsupported; version_unsupported -|eof"),
    ("version-close", real, "down: version_unsupported; version_unsupported -|eof"),
    ("bad-manifest-body", real, "down: manifest_differs; manifest_differs -|eof"),
    ("silent", no_hello, "down: no_hello; no_hello -|eof"),
    // The manifest. A tool that cannot be listed is withheld, and its plugin serves the others.
    ("wrong-tools", real, "up: not found, not run, never again; stopped close"),
    ("bad-effect", real, "up: not found, not run, never again; stopped close"),
    ("many-tools", real, "up: not found, not run, never again; stopped close"),
    ("long-description", real, "up: not found, not run, never again; stopped close"),
    ("bad-names", real, "up: ok; stopped close"),
    ("duplicate-tools", real, "down: manifest_differs; manifest_differs -|eof"),
    ("bad-schema which=type", real, "up: not found, not run, never again; stopped close"),
    ("bad-schema which=array", real, "up: not found, not run, never again; stopped close"),
    ("bad-schema which=ref", real, "up: not found, not run, never again; stopped close"),
    ("bad-schema which=remote", real, "up: not found, not run, never again; stopped close"),
    ("bad-schema which=root", real, "up: not found, not run, never again; stopped close"),
    ("bad-schema which=none", real, "up: not found, not run, never again; stopped close"),
    ("bad-schema which=deep", real, "down: manifest_differs; manifest_differs -|eof"),
    // Frames.
    ("stray", real, "dies: not_a_frame -|eof"),
    ("bad-magic", real, "dies: not_a_frame -|eof"),
    ("garbage", real, "dies: not_a_frame -|eof"),
    ("flood-garbage", real, "dies: not_a_frame -|eof"),
    ("bad-type", real, "dies: violation -|eof"),
    ("bad-id which=ping", real, "dies: violation -|eof"),
    ("bad-id which=pong", real, "dies: violation -|eof"),
    ("bad-id which=hello", real, "dies: violation -|eof"),
    ("bad-id which=close", real, "dies: violation -|eof"),
    ("bad-gap", real, "dies: violation -|eof"),
    ("huge-frame", real, "dies: violation -|eof"),
    ("huge-frame send=4096", real, "dies: violation -|eof"),
    ("oversize-frame", real, "dies: violation -|eof"),
    ("fat-ping", real, "dies: violation -|eof"),
    ("end-unknown-id", real, "dies: violation -|eof"),
    ("call-host", real, "dies: violation -|eof"),
    ("bad-head on=ping", real, "dies: violation -|eof"),
    ("bad-head on=close", real, "dies: violation -|eof"),
    ("bad-head which=dup", real, "dies: violation -|eof"),
    ("bad-head which=dup-unknown", real, "dies: violation -|eof"),
    ("bad-head which=array", real, "dies: violation -|eof"),
    ("bad-head which=nil", real, "dies: violation -|eof"),
    ("bad-head which=int", real, "dies: violation -|eof"),
    ("bad-head which=empty", real, "dies: violation -|eof"),
    ("bad-head which=trailing", real, "dies: violation -|eof"),
    ("bad-head which=ext", real, "dies: violation -|eof"),
    ("bad-head which=utf8", real, "dies: violation -|eof"),
    ("bad-head which=intkey", real, "dies: violation -|eof"),
    ("bad-head which=deep", real, "dies: violation -|eof"),
    ("bad-head which=bigint", real, "dies: violation -|eof"),
    ("bad-head which=cut", real, "dies: violation -|eof"),
    ("bad-head which=liar", real, "dies: violation -|eof"),
    ("bad-head which=never", real, "dies: violation -|eof"),
    ("bad-head which=type", real, "dies: violation -|eof"),
    ("bad-head on=end at=call", real, "up: lost violation, may have run, again if idempotent; violation -|eof"),
    ("half-frame cut=header then=exit", real, "dies: exited -"),
    ("half-frame cut=header then=eof", real, "dies: exited -"),
    ("half-frame cut=header then=hang", silence, "dies: silent -|eof"),
    ("half-frame cut=head then=exit", real, "dies: exited -"),
    ("half-frame cut=head then=eof", real, "dies: exited -"),
    ("half-frame cut=head then=hang", silence, "dies: silent -|eof"),
    ("half-frame cut=gap then=exit", real, "dies: exited -"),
    ("half-frame cut=gap then=eof", real, "dies: exited -"),
    ("half-frame cut=gap then=hang", silence, "dies: silent -|eof"),
    ("half-frame cut=body then=exit", real, "dies: exited -"),
    ("half-frame cut=body then=eof", real, "dies: exited -"),
    ("half-frame cut=body then=hang", silence, "dies: silent -|eof"),
    // Calls.
    ("double-end", real, "up: ok; violation -|eof"),
    ("item-unnegotiated", real, "up: lost violation, may have run, again if idempotent; violation -|eof"),
    ("credit", real, "up: lost violation, may have run, again if idempotent; violation -|eof"),
    ("cancel-host", real, "up: lost violation, may have run, again if idempotent; violation -|eof"),
    ("swap-ids", short_call, "up: timed out idle, may have run, again if idempotent; stopped close"),
    ("never-answers", short_call, "up: timed out idle, may have run, again if idempotent; stopped close"),
    ("answers-late", short_call, "up: timed out idle, may have run, again if idempotent; stopped close"),
    ("ignores-cancel", real, "up: ok; stopped close"),
    ("chatty", short_total, "up: timed out deadline, may have run, again if idempotent; stopped close"),
    ("huge-result", real, "up: result too large, run, never again; stopped close"),
    ("small-bodies", real, "up: ok; stopped close"),
    ("deep-result", real, "up: bad result, run, never again; stopped close"),
    ("bad-result which=empty", real, "up: bad result, run, never again; stopped close"),
    ("bad-result which=cut", real, "up: bad result, run, never again; stopped close"),
    ("bad-result which=ext", real, "up: bad result, run, never again; stopped close"),
    ("bad-result which=never", real, "up: bad result, run, never again; stopped close"),
    ("bad-result which=trailing", real, "up: bad result, run, never again; stopped close"),
    ("bad-result which=dup", real, "up: bad result, run, never again; stopped close"),
    ("bad-result which=intkey", real, "up: bad result, run, never again; stopped close"),
    ("bad-result which=nil", real, "up: bad result, run, never again; stopped close"),
    ("bad-result which=array", real, "up: bad result, run, never again; stopped close"),
    ("bad-result which=content", real, "up: bad result, run, never again; stopped close"),
    ("bad-result which=block", real, "up: bad result, run, never again; stopped close"),
    ("bad-result which=huge", real, "up: bad result, run, never again; stopped close"),
    ("bad-result which=utf8", real, "up: bad result, run, never again; stopped close"),
    ("bad-end which=code", real, "up: failed unknown -, run, never again; stopped close"),
    ("bad-end which=err", real, "up: lost violation, may have run, again if idempotent; violation -|eof"),
    ("bad-end which=retry", real, "up: lost violation, may have run, again if idempotent; violation -|eof"),
    ("bad-end which=after", real, "up: lost violation, may have run, again if idempotent; violation -|eof"),
    ("bad-end which=reason", real, "up: failed internal -, run, never again; stopped close"),
    ("bad-end which=body", real, "up: failed internal -, run, never again; stopped close"),
    // The lifecycle.
    ("activate-error", real, "down: activate_failed; activate_failed -|eof"),
    ("activate-error code=unavailable retry=safe", real, "down: activate_failed; activate_failed -|eof"),
    ("activate-never", short_activate, "down: activate_timeout; activate_timeout -|eof"),
    ("activate-crash", real, "down: crashed; crashed -"),
    ("activate-bad-result", real, "down: manifest_differs; manifest_differs -|eof"),
    ("ignores-deactivate", short_drain, "up: ok; stopped close"),
    ("deactivate-error", real, "up: ok; stopped close"),
    ("early-deactivate", real, "up: ok; stopped close"),
    // Death, in every state.
    ("close-ok", real, "dies: closed -|eof"),
    ("close-error", real, "dies: closed -|eof"),
    ("exits-early", real, "down: exited; exited -"),
    ("exit-after-hello", real, "down: exited; exited -"),
    ("exit-on-call", real, "up: lost exited, may have run, again if idempotent; exited -"),
    ("crash-on-call", real, "up: lost crashed, may have run, again if idempotent; crashed -"),
    ("crash-after n=1", real, "up: lost crashed, may have run, again if idempotent; crashed -"),
    ("crash-loop", real, "dies: crashed -"),
    ("crash-loop ms=1", real, "dies: crashed -"),
    ("exit at=start", real, "down: exited; exited -"),
    ("crash at=start", real, "down: crashed; crashed -"),
    ("eof at=start", real, "down: no_hello; no_hello eof"),
    ("exit at=hello", real, "down: exited; exited -"),
    ("crash at=hello", real, "down: crashed; crashed -"),
    ("eof at=hello", real, "down: no_hello; no_hello eof"),
    ("exit at=ready", real, "down: exited; exited -"),
    ("crash at=ready", real, "down: crashed; crashed -"),
    ("eof at=ready", real, "down: no_hello; no_hello eof"),
    ("exit at=activating", real, "down: exited; exited -"),
    ("crash at=activating", real, "down: crashed; crashed -"),
    ("eof at=activating", real, "down: no_hello; no_hello eof"),
    ("exit", real, "dies: exited -"),
    ("crash", real, "dies: crashed -"),
    ("eof", real, "dies: closed_stdout eof"),
    ("exit at=call", real, "up: lost exited, may have run, again if idempotent; exited -"),
    ("crash at=call", real, "up: lost crashed, may have run, again if idempotent; crashed -"),
    ("eof at=call", real, "up: lost closed_stdout, may have run, again if idempotent; closed_stdout eof"),
    ("exit at=cancel", real, "up: ok; stopped close"),
    ("crash at=cancel", real, "up: ok; stopped close"),
    ("eof at=cancel", real, "up: ok; stopped close"),
    ("exit at=draining", real, "up: ok; exited -"),
    ("crash at=draining", real, "up: ok; crashed -"),
    ("eof at=draining", real, "up: ok; closed_stdout eof"),
    ("exit at=drained", real, "up: ok; stopped -|close|eof"),
    ("crash at=drained", real, "up: ok; stopped -|close|eof"),
    ("eof at=drained", real, "up: ok; stopped close|eof"),
    ("exit at=closing", real, "up: ok; stopped -|close|eof"),
    ("crash at=closing", real, "up: ok; stopped -|close|eof"),
    ("eof at=closing", real, "up: ok; stopped close|eof"),
    // Pipes.
    ("eof-before-hello", real, "down: no_hello; no_hello eof"),
    ("eof-in-ready", real, "down: no_hello; no_hello eof"),
    ("eof-in-activating", real, "down: no_hello; no_hello eof"),
    ("eof-in-active", real, "dies: closed_stdout eof"),
    ("eof-in-call", real, "up: lost closed_stdout, may have run, again if idempotent; closed_stdout eof"),
    ("eof-in-draining", real, "up: ok; closed_stdout eof"),
    ("closes-stdin", early_ping, "dies: closed_stdin term"),
    ("stops-reading", short_call, "up: timed out idle, may have run, again if idempotent; stopped term"),
    ("mute", short_call, "up: timed out idle, may have run, again if idempotent; stopped close|eof"),
    ("hang", short_call, "up: timed out idle, may have run, again if idempotent; stopped term"),
    ("stop-self", silence, "dies: silent term"),
    ("no-pong", silence, "dies: silent -|eof"),
    // Floods.
    ("flood-stdout", real, "up: ok; stopped close"),
    ("flood-progress", real, "up: ok; stopped close"),
    ("flood-big-notes", real, "up: ok; stopped close"),
    ("flood-unknown", real, "up: ok; stopped close"),
    ("flood-pings every_us=2000", real, "up: ok; stopped close"),
    ("flood-stderr", real, "up: ok; stopped close"),
    ("flood-stderr line=0", real, "up: ok; stopped close"),
    ("flood-ends", real, "dies: violation -|eof"),
    ("flood-calls", real, "dies: violation -|eof"),
    ("flood-pings deaf=1", short_ladder, "dies: violation term"),
    // The ladder.
    ("ignores-close", short_close, "up: ok; stopped eof"),
    ("ignores-eof", short_ladder, "up: ok; stopped term"),
    ("ignores-term", short_ladder_all, "up: ok; stopped kill"),
    ("fork-child", real, "up: ok; stopped close"),
    ("escape-child life=1", real, "up: ok; stopped close"),
    ("orphan", real, "dies: exited -"),
    ("orphan escape=1 life=1", real, "dies: exited -"),
];

#[test]
fn every_hostile_mode_ends_as_the_table_says_and_no_sibling_notices() {
    alone(async |world| {
        let plan = |(at, (mode, tweak, _)): (usize, &Row)| {
            let mut plan = world.plugin(&format!("m{at}"), mode);
            plan.prefix = Some(format!("m{at}"));
            plan.restart.when = plugbay_supervisor::plan::RestartWhen::Never;
            tweak(&mut plan);
            plan
        };
        let plans = ROWS.iter().enumerate().map(plan);
        let stage =
            world.supervise(plans.chain([world.plugin("sibling", "good tools=pid life=300")]));
        stage.up("sibling").await;
        let done = Arc::new(AtomicBool::new(false));
        let sibling = tokio::spawn(undisturbed(stage.clone(), Arc::clone(&done)));
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        let rows = ROWS.iter().enumerate().map(|(at, &(mode, _, expected))| {
            let (stage, turns) = (stage.clone(), Arc::clone(&turns));
            tokio::spawn(async move {
                let _turn = turns.acquire().await.expect("it is never closed");
                let actual = live(&stage, &format!("m{at}"), expected).await;
                stage.call("pid", json!({})).await.expect("the sibling answers after each");
                (!fits(expected, &actual))
                    .then(|| format!("{mode}\n  expected {expected}\n  found    {actual}"))
            })
        });
        let mut wrong = Vec::new();
        for (row, (mode, ..)) in rows.collect::<Vec<_>>().into_iter().zip(ROWS) {
            wrong.extend(row.await.unwrap_or_else(|error| Some(format!("{mode}\n  {error}"))));
        }
        done.store(true, Ordering::Relaxed);
        let served = sibling.await;
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let served = served.expect("the sibling is not disturbed");
        assert!(0 < served, "the sibling was never called");
        assert_eq!(stage.starts("sibling"), 1);
        stage.end().await;
    });
}

/// One life of one mode, told in the table's words. Its tools begin with its name.
pub(crate) async fn live(stage: &Stage, name: &str, expected: &str) -> String {
    let told = |(reason, rung): (Arc<Reason>, Option<&str>)| {
        format!("{} {}", reason.kind(), rung.unwrap_or("-"))
    };
    let ready = within("a plugin to be up or down", stage.ready(name)).await;
    if expected.starts_with("dies") {
        return format!("dies: {}", told(stage.exit(name).await));
    }
    if let Err(why) = ready {
        let NotReady::Down { reason, .. } = why else { panic!("{why}") };
        return format!("down: {}; {}", reason.kind(), told(stage.exit(name).await));
    }
    if expected.starts_with("stays") {
        stage.down(name).await;
        return format!("stays: {}", told(stage.exit(name).await));
    }
    let answer = stage.call(&format!("{name}_echo"), json!({ "text": "hi" })).await;
    if !matches!(answer, Err(CallError::Lost { .. })) {
        stage.down(name).await;
    }
    format!("up: {}; {}", brief(&answer), told(stage.exit(name).await))
}

/// Where a row names several rungs, the plugin leaves at about the same time and
/// any of them may be the last.
pub(crate) fn fits(expected: &str, actual: &str) -> bool {
    let (most, rungs) = expected.rsplit_once(' ').expect("a row ends with its rungs");
    rungs.split('|').any(|rung| actual == format!("{most} {rung}"))
}

/// Calls the sibling again and again; every call is answered by the same process.
pub(crate) async fn undisturbed(stage: Stage, done: Arc<AtomicBool>) -> usize {
    let mut served = 0;
    loop {
        let answer = stage.call("pid", json!({})).await.expect("the sibling answers");
        assert!(answer.data.is_some());
        served += 1;
        if done.load(Ordering::Relaxed) {
            return served;
        }
        tokio::time::sleep(ms(2)).await;
    }
}

#[test]
fn every_mode_of_the_fixture_has_a_row() {
    let list = Command::new(hostile()).arg("--list").output().expect("the fixture starts");
    let list = String::from_utf8(list.stdout).expect("its list is UTF-8");
    let word = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let modes = list.lines().filter_map(word).collect::<BTreeSet<_>>();
    let rows = ROWS.iter().map(|(mode, ..)| *mode).chain(crate::cases::modes());
    let rows = rows.filter_map(word).collect::<BTreeSet<_>>();
    assert_eq!(rows, modes, "the tables (left) and the fixture's --list (right)");
}
