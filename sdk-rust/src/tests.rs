//! The SDK against a host in memory, in virtual time.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use bytes::Bytes;
use plugbay_protocol::{
    Announce, Code, Conversation, Event, Failure, Fault, Outgoing, Retry, Tick,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    Activation, Block, Context, Effect, Error, Level, Plugin, Reply, Tool,
    testing::{Failed, Host},
};

const SECOND: Duration = Duration::from_secs(1);

fn plugin() -> Plugin {
    Plugin::new("test.plugin", "1.0.0")
}

/// A host with a plugin of one tool, `it`.
async fn host(tool: Tool) -> Host {
    Host::start(plugin().tool(tool)).await
}

/// Sets a flag when dropped.
struct Flag(Arc<AtomicBool>);

impl Flag {
    fn new() -> (Self, Arc<AtomicBool>) {
        let flag = Arc::new(AtomicBool::new(false));
        (Self(Arc::clone(&flag)), flag)
    }
}

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::SeqCst)
}

fn failed(result: Result<crate::testing::Output, Failed>) -> Failed {
    result.expect_err("the call must fail")
}

// ── Results ────────────────────────────────────────────────────────────────────

async fn answer<T, F>(make: F) -> crate::testing::Output
where
    T: Serialize + Send + 'static,
    F: Fn() -> T + Send + Sync + 'static,
{
    let tool = Tool::new("it", move |_: Context, (): ()| {
        let value = make();
        async { Ok::<_, Error>(value) }
    });
    host(tool).await.call("it", json!({})).await.expect("the call succeeds")
}

fn text(text: &str) -> Block {
    Block::Text { text: text.into() }
}

#[tokio::test(start_paused = true)]
async fn a_string_is_one_text_and_nothing_is_nothing() {
    for output in [
        answer(|| "hello".to_owned()).await,
        answer(|| "hello").await,
        answer(|| std::borrow::Cow::Borrowed("hello")).await,
        answer(|| text("hello")).await,
        answer(|| vec![text("hello")]).await,
        answer(|| Reply::text("hello")).await,
    ] {
        assert_eq!(output.content, [text("hello")]);
        assert_eq!(output.data::<Value>(), None);
        assert!(!output.is_error);
    }
    assert_eq!(answer(|| ()).await.content, []);
}

#[tokio::test(start_paused = true)]
async fn any_other_value_is_data_and_its_json_as_text() {
    #[derive(Clone, Serialize)]
    struct Place {
        lat: f64,
        name: Option<String>,
        from: IpAddr,
    }
    let place = Place { lat: 1.5, name: None, from: [127, 0, 0, 1].into() };
    let output = answer(move || place.clone()).await;
    let json = json!({"lat": 1.5, "name": null, "from": "127.0.0.1"});
    assert_eq!(output.text(), r#"{"lat":1.5,"name":null,"from":"127.0.0.1"}"#);
    assert_eq!(output.data::<Value>(), Some(json));
    assert_eq!(answer(|| 42).await.text(), "42");
    assert_eq!(answer(|| 42).await.data::<u8>(), Some(42));
}

#[tokio::test(start_paused = true)]
async fn data_that_the_wire_does_not_allow_takes_its_json_form() {
    let output = answer(|| BTreeMap::from([(1, "one")])).await;
    assert_eq!(output.data::<Value>(), Some(json!({"1": "one"})));
}

#[tokio::test(start_paused = true)]
async fn bytes_stay_bytes_in_blocks_and_in_data() {
    let file = || Block::File { mime: "x/y".into(), bin: vec![0, 255] };
    assert_eq!(answer(move || vec![file()]).await.content, [file()]);

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Blob(#[serde(with = "serde_bytes")] Vec<u8>);
    let output = answer(|| Blob(vec![0, 255])).await;
    assert_eq!(output.data::<Blob>(), Some(Blob(vec![0, 255])));
    let raw = output.data::<serde_bytes::ByteBuf>();
    assert_eq!(raw.as_deref().map(Vec::as_slice), Some(&[0, 255][..]));
}

#[tokio::test(start_paused = true)]
async fn a_reply_says_what_it_was_told_to() {
    let output = answer(|| Reply::text("a").block(text("b")).data(json!({"n": 1})).failed()).await;
    assert_eq!(output.text(), "ab");
    assert_eq!(output.data::<Value>(), Some(json!({"n": 1})));
    assert!(output.is_error);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_too_large_says_so() {
    let tool = Tool::new("it", async |_: Context, (): ()| Ok::<_, Error>("x".repeat(2 << 20)));
    let host = host(tool).await;
    let failed = failed(host.call("it", json!({})).await);
    assert_eq!(failed.code, Code::ResourceExhausted);
    assert_eq!(failed.reason.as_deref(), Some("pb.frame_limit"));
}

#[tokio::test(start_paused = true)]
async fn a_result_that_cannot_be_encoded_is_internal() {
    struct Stubborn;
    impl Serialize for Stubborn {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("no"))
        }
    }
    let tool = Tool::new("it", async |_: Context, (): ()| Ok::<_, Error>(Stubborn));
    assert_eq!(failed(host(tool).await.call("it", json!({})).await).code, Code::Internal);
}

// ── Errors ─────────────────────────────────────────────────────────────────────

#[tokio::test(start_paused = true)]
async fn a_failed_tool_is_a_result_and_a_failed_call_is_not() {
    #[derive(Deserialize, JsonSchema)]
    struct Which {
        which: String,
    }
    let tool = Tool::new("it", async |_: Context, Which { which }: Which| match which.as_str() {
        "tool" => Err(Error::tool("the door is locked")),
        "foreign" => which.parse::<u8>().map(drop).map_err(Error::from),
        "busy" => Err(Error::unavailable("later").because("lock.held").retry_after(SECOND)),
        _ => Err(Error::not_found("no such door").because("Not A Reason")),
    });
    let host = host(tool).await;
    let output = host.call("it", json!({"which": "tool"})).await.unwrap();
    assert!(output.is_error);
    assert_eq!(output.text(), "the door is locked");
    let output = host.call("it", json!({"which": "foreign"})).await.unwrap();
    assert!(output.is_error);
    assert_eq!(output.text(), "invalid digit found in string");
    let busy = failed(host.call("it", json!({"which": "busy"})).await);
    assert_eq!((busy.code, busy.retry), (Code::Unavailable, Retry::Safe));
    assert_eq!(busy.reason.as_deref(), Some("lock.held"));
    let missing = failed(host.call("it", json!({"which": ""})).await);
    assert_eq!((missing.code, missing.reason), (Code::NotFound, None));
    assert_eq!(missing.message.as_deref(), Some("no such door"));
}

#[tokio::test(start_paused = true)]
async fn any_error_type_will_do_as_a_tool_s_own() {
    let tool = Tool::plain("it", |_: Context, (): ()| "x".parse::<i32>());
    let output = host(tool).await.call("it", json!({})).await.unwrap();
    assert!(output.is_error);
    assert_eq!(output.text(), "invalid digit found in string");
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_internal_and_tells_nothing_to_the_caller() {
    let at_once =
        Tool::new("at_once", async |_: Context, (): ()| -> Result<(), Error> { panic!("secret") });
    let later = Tool::new("later", async |_: Context, (): ()| -> Result<(), Error> {
        sleep(SECOND).await;
        panic!("secret")
    });
    let plain =
        Tool::plain("plain", |_: Context, (): ()| -> Result<(), Error> { panic!("secret") });
    let host = Host::start(plugin().tool(at_once).tool(later).tool(plain)).await;
    for name in ["at_once", "later", "plain"] {
        let failed = failed(host.call(name, json!({})).await);
        assert_eq!((failed.code, failed.retry), (Code::Internal, Retry::Maybe), "{name}");
        assert!(!failed.message.unwrap().contains("secret"), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_being_dropped_still_ends_the_call() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in drop");
        }
    }
    let tool = Tool::new("it", async |_: Context, (): ()| {
        let _bomb = Bomb;
        std::future::pending::<Result<(), Error>>().await
    });
    let host = host(tool).await;
    let call = host.call("it", json!({})).start();
    tokio::task::yield_now().await;
    call.cancel();
    assert_eq!(failed(call.await).code, Code::Cancelled);
    assert_eq!(host.ends().len(), 2);
}

// ── Arguments ──────────────────────────────────────────────────────────────────

#[tokio::test(start_paused = true)]
async fn arguments_go_straight_into_the_authors_type() {
    #[derive(Serialize, Deserialize, JsonSchema)]
    struct Args {
        #[serde(with = "serde_bytes")]
        #[schemars(with = "Vec<u8>")]
        blob: Vec<u8>,
        from: IpAddr,
        ratio: f64,
        #[serde(default)]
        tags: Vec<String>,
    }
    let tool = Tool::new("it", async |_: Context, args: Args| {
        Ok::<_, Error>(format!("{:?} {} {} {}", args.blob, args.from, args.ratio, args.tags.len()))
    });
    let host = host(tool).await;
    let args = Args { blob: vec![0, 255], from: [10, 0, 0, 1].into(), ratio: 3.0, tags: vec![] };
    assert_eq!(host.call("it", &args).await.unwrap().text(), "[0, 255] 10.0.0.1 3 0");
    // As a model sends it: bytes as a list, a whole number where a fraction may stand.
    let args = json!({"blob": [1], "from": "::1", "ratio": 3});
    assert_eq!(host.call("it", args).await.unwrap().text(), "[1] ::1 3 0");
}

#[tokio::test(start_paused = true)]
async fn arguments_that_do_not_fit_name_the_place() {
    #[derive(Deserialize, JsonSchema)]
    struct Args {
        points: Vec<Point>,
    }
    #[derive(Deserialize, JsonSchema)]
    struct Point {
        x: u8,
    }
    let tool = Tool::plain("it", |_: Context, args: Args| {
        Ok::<_, Error>(args.points.iter().map(|p| p.x).sum::<u8>())
    });
    let host = host(tool).await;
    let wrong = failed(host.call("it", json!({"points": [{"x": 1}, {"x": "?"}]})).await);
    assert_eq!(wrong.code, Code::InvalidArgument);
    assert_eq!(wrong.reason.as_deref(), Some("pb.bad_args"));
    let message = wrong.message.unwrap();
    assert!(message.contains("points[1].x") && message.contains("expected u8"), "{message}");
    let missing = failed(host.call("it", json!({})).await);
    assert_eq!(missing.message.as_deref(), Some("args: missing field `points`"));
}

#[tokio::test(start_paused = true)]
async fn what_json_can_only_say_in_its_own_way_fits_too() {
    let tool = Tool::new("it", async |_: Context, args: BTreeMap<u32, String>| {
        Ok::<_, Error>(args[&7].clone())
    });
    assert_eq!(host(tool).await.call("it", json!({"7": "x"})).await.unwrap().text(), "x");
}

#[tokio::test(start_paused = true)]
async fn a_tool_without_arguments_takes_none_in_every_spelling() {
    let tool = Tool::new("it", async |_: Context, (): ()| Ok::<_, Error>("here"));
    let host = host(tool).await;
    for body in [
        &b"\x81\xa4name\xa2it"[..],
        b"\x82\xa4name\xa2it\xa4args\xc0",
        b"\x82\xa4args\x80\xa4name\xa2it",
    ] {
        assert_eq!(host.call_raw("tool.call", body).await.unwrap().text(), "here");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_none_is_the_caller_s_fault_and_only_that_call_s() {
    let tool = Tool::new("it", async |_: Context, (): ()| Ok::<_, Error>("here"));
    let host = host(tool).await;
    for body in [
        &b"\xc1"[..],
        b"\x90",
        b"\x81\xa4name",
        b"\x81\xa4name\x07",
        b"\x82\xa4name\xa2it\xa4args\xd4\x01\x00",
        b"\x82\xa4name\xa2it\xa4name\x07",
    ] {
        let failed = failed(host.call_raw("tool.call", body).await);
        assert_eq!(failed.code, Code::InvalidArgument, "{body:x?}");
        assert_eq!(failed.reason.as_deref(), Some("pb.bad_body"), "{body:x?}");
    }
    for body in [&b"\xc1"[..], b"\x81\xa7if_idle\x07"] {
        let failed = failed(host.call_raw("plugin.deactivate", body).await);
        assert_eq!(failed.reason.as_deref(), Some("pb.bad_body"), "{body:x?}");
    }
    assert_eq!(host.call("it", json!({})).await.unwrap().text(), "here");
    let last_counts = b"\x82\xa4name\x07\xa4name\xa2it";
    host.call_raw("tool.call", last_counts).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_does_not_exist_is_named() {
    let tool = Tool::new("it", async |_: Context, (): ()| Ok::<_, Error>(()));
    let host = host(tool).await;
    let failed_tool = failed(host.call("ti", json!({})).await);
    assert_eq!(failed_tool.code, Code::NotFound);
    assert_eq!(failed_tool.message.as_deref(), Some("no tool \"ti\" here; there is it"));
    let failed_method = failed(host.call_raw("memory.get", b"").await);
    assert_eq!(failed_method.code, Code::Unimplemented);
    assert_eq!(failed_method.reason.as_deref(), Some("pb.unknown_method"));
}

// ── Cancel and deadline ────────────────────────────────────────────────────────

#[tokio::test(start_paused = true)]
async fn a_cancelled_async_tool_is_dropped_at_once() {
    let (flag, dropped) = Flag::new();
    let flag = Mutex::new(Some(flag));
    let tool = Tool::new("it", move |ctx: Context, (): ()| {
        let flag = flag.lock().unwrap().take();
        async move {
            ctx.progress(1, None, "waiting");
            sleep(1000 * SECOND).await;
            drop(flag);
            Ok::<_, Error>(())
        }
    });
    let host = host(tool).await;
    let before = Instant::now();
    let mut call = host.call("it", json!({})).start();
    assert!(call.progress().await.is_some());
    assert!(!is_set(&dropped));
    call.cancel();
    let failed = failed(call.await);
    assert_eq!((failed.code, failed.retry), (Code::Cancelled, Retry::Maybe));
    assert!(is_set(&dropped));
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_async_tool_gets_one_more_turn_to_react() {
    let tool = Tool::new("it", async |ctx: Context, (): ()| {
        tokio::select! {
            () = sleep(1000 * SECOND) => Ok::<_, Error>("slept"),
            () = ctx.cancelled() => Ok("half of it"),
        }
    });
    let host = host(tool).await;
    let call = host.call("it", json!({})).start();
    tokio::task::yield_now().await;
    call.cancel();
    assert_eq!(call.await.unwrap().text(), "half of it");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_plain_tool_is_told_and_holds_its_slot_until_it_returns() {
    let (told, hear) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let tool = Tool::plain("it", move |ctx: Context, (): ()| {
        while !ctx.is_cancelled() {
            std::thread::yield_now();
        }
        told.send(ctx.check().unwrap_err().code()).unwrap();
        wait.lock().unwrap().recv().unwrap();
        ctx.check()?;
        Ok::<_, Error>("never")
    });
    let host = host(tool).await;
    let call = host.call("it", json!({})).start();
    // It has to be running, or the cancel would come first.
    tokio::task::yield_now().await;
    call.cancel();
    let code = tokio::task::spawn_blocking(move || hear.recv().unwrap()).await.unwrap();
    assert_eq!(code, Some(Code::Cancelled));
    assert_eq!(host.ends().len(), 1, "only the activation has ended");
    go.send(()).unwrap();
    assert_eq!(failed(call.await).code, Code::Cancelled);
    assert_eq!(host.ends().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_sdk_itself_ends_a_call_whose_deadline_has_passed() {
    let (flag, dropped) = Flag::new();
    let flag = Mutex::new(Some(flag));
    let tool = Tool::new("it", move |ctx: Context, (): ()| {
        let flag = flag.lock().unwrap().take();
        async move {
            assert_eq!(ctx.remaining(), Some(2 * SECOND));
            sleep(SECOND).await;
            assert_eq!(ctx.remaining(), Some(SECOND));
            assert!(!ctx.is_cancelled());
            sleep(10 * SECOND).await;
            drop(flag);
            Ok::<_, Error>(())
        }
    });
    let host = host(tool).await;
    let before = Instant::now();
    let call = host.call("it", json!({})).deadline(2 * SECOND).start();
    assert_eq!(failed(call.await).code, Code::DeadlineExceeded);
    assert_eq!(before.elapsed(), 2 * SECOND);
    sleep(20 * SECOND).await;
    assert!(is_set(&dropped));
    assert_eq!(host.ends().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_the_call_even_if_the_host_never_cancels() {
    let tool = Tool::new("it", async |_: Context, (): ()| {
        sleep(1000 * SECOND).await;
        Ok::<_, Error>(())
    });
    let mut engine = plugin().tool(tool).engine(true).unwrap();
    // A host whose clock stands still.
    let now = Tick(0);
    let mut host = Conversation::host(Announce::default(), now);
    let mut carry = |host: &mut Conversation| {
        let wire = Arc::clone(&engine.wire);
        wire.lock().conversation.buffer().extend_from_slice(&host.outbox().take());
        wire.lock().conversation.received(now);
        engine.turn(Instant::now());
        host.buffer().extend_from_slice(&wire.lock().conversation.outbox().take());
        host.received(now);
        std::iter::from_fn(|| host.poll()).last()
    };
    carry(&mut host);
    let activate = Outgoing { method: "plugin.activate", ..Outgoing::default() };
    host.call(&activate, now).unwrap();
    carry(&mut host);
    let body = Bytes::from_static(b"\x81\xa4name\xa2it");
    let call = Outgoing { method: "tool.call", deadline: Some(2000), body, ..Outgoing::default() };
    let id = host.call(&call, now).unwrap();
    assert_eq!(carry(&mut host), None);
    sleep(Duration::from_millis(1999)).await;
    assert_eq!(carry(&mut host), None);
    sleep(Duration::from_millis(2)).await;
    let fault = Fault::new(Code::DeadlineExceeded).retry(Retry::Maybe);
    let outcome = Err(Failure::Fault(fault));
    assert_eq!(carry(&mut host), Some(Event::Ended { id, outcome }));
}

#[tokio::test(start_paused = true)]
async fn a_plain_tool_sees_its_deadline_pass_by_itself() {
    let tool = Tool::plain("it", |ctx: Context, (): ()| {
        // Longer than any machine needs to get here is not needed: the budget is zero.
        ctx.check()?;
        Ok::<_, Error>("in time")
    });
    let host = host(tool).await;
    let call = host.call("it", json!({})).deadline(Duration::ZERO).start();
    assert_eq!(failed(call.await).code, Code::DeadlineExceeded);
}

#[tokio::test(start_paused = true)]
async fn a_tool_learns_why_nobody_wants_its_result() {
    let codes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&codes);
    let tool = Tool::new("it", move |ctx: Context, (): ()| {
        let seen = Arc::clone(&seen);
        async move {
            ctx.cancelled().await;
            let error = ctx.check().unwrap_err();
            seen.lock().unwrap().push(error.code().unwrap());
            Err::<(), _>(error)
        }
    });
    let host = host(tool).await;
    let cancelled = host.call("it", json!({})).start();
    tokio::task::yield_now().await;
    cancelled.cancel();
    assert_eq!(failed(cancelled.await).code, Code::Cancelled);
    for call in
        [host.call("it", json!({})).deadline(SECOND), host.call("it", json!({})).idle(SECOND)]
    {
        assert_eq!(failed(call.await).code, Code::DeadlineExceeded);
        sleep(SECOND).await;
    }
    let lost = host.call("it", json!({})).start();
    tokio::task::yield_now().await;
    host.close();
    assert_eq!(failed(lost.await).code, Code::Unavailable);
    sleep(SECOND).await;
    use Code::{Cancelled, DeadlineExceeded, Unavailable};
    assert_eq!(
        *codes.lock().unwrap(),
        [Cancelled, DeadlineExceeded, DeadlineExceeded, Unavailable]
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_has_one_end_however_cancel_deadline_and_result_race() {
    // The result is ready in the same instant as the deadline and the cancel.
    for cancel_at in [0, 1, 2] {
        let tool = Tool::new("it", async |_: Context, (): ()| {
            sleep(SECOND).await;
            Ok::<_, Error>(())
        });
        let host = host(tool).await;
        let call = host.call("it", json!({})).deadline(SECOND).start();
        // It has to have left, or the host simply takes it back.
        tokio::task::yield_now().await;
        sleep(cancel_at * SECOND).await;
        call.cancel();
        drop(call);
        sleep(20 * SECOND).await;
        assert_eq!(host.ends().iter().filter(|(id, _)| *id == 3).count(), 1);
        assert!(host.call("it", json!({})).await.is_ok(), "the conversation goes on");
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_conversation_stops_everything() {
    let (flag, dropped) = Flag::new();
    let flag = Mutex::new(Some(flag));
    let (told, hear) = mpsc::channel();
    let wait = Tool::new("wait", move |_: Context, (): ()| {
        let flag = flag.lock().unwrap().take();
        async move {
            sleep(1000 * SECOND).await;
            drop(flag);
            Ok::<_, Error>(())
        }
    });
    let spin = Tool::plain("spin", move |ctx: Context, (): ()| {
        while !ctx.is_cancelled() {
            std::thread::yield_now();
        }
        told.send(()).unwrap();
        Ok::<_, Error>(())
    });
    let host = Host::start(plugin().tool(wait).tool(spin)).await;
    let waiting = host.call("wait", json!({})).start();
    let spinning = host.call("spin", json!({})).start();
    tokio::task::yield_now().await;
    host.close();
    assert_eq!(failed(waiting.await).code, Code::Unavailable);
    assert_eq!(failed(spinning.await).code, Code::Unavailable);
    tokio::task::spawn_blocking(move || hear.recv().unwrap()).await.unwrap();
    sleep(SECOND).await;
    assert!(is_set(&dropped));
}

// ── Progress and log ───────────────────────────────────────────────────────────

#[tokio::test(start_paused = true)]
async fn progress_comes_at_most_ten_times_a_second_and_the_last_always() {
    let tool = Tool::new("it", async |ctx: Context, (): ()| {
        for n in 1..=1000 {
            ctx.progress(n, 1000, "counting");
            sleep(Duration::from_millis(1)).await;
        }
        Ok::<_, Error>(())
    });
    let host = host(tool).await;
    let mut call = host.call("it", json!({})).start();
    let mut seen = Vec::new();
    while let Some(progress) = call.progress().await {
        assert_eq!(progress.total, Some(1000));
        assert_eq!(progress.message.as_deref(), Some("counting"));
        seen.extend(progress.n);
    }
    assert!(call.await.is_ok());
    assert!((10..=11).contains(&seen.len()), "{seen:?}");
    assert!(seen.is_sorted(), "{seen:?}");
    assert_eq!((seen[0], seen.last()), (1, Some(&1000)));
}

#[tokio::test(start_paused = true)]
async fn progress_held_back_is_told_even_if_the_tool_falls_silent() {
    let tool = Tool::new("it", async |ctx: Context, (): ()| {
        ctx.progress(1, None, "");
        ctx.progress(3, None, "");
        ctx.progress(2, None, "back?");
        sleep(100 * SECOND).await;
        Ok::<_, Error>(())
    });
    let host = host(tool).await;
    let before = Instant::now();
    let mut call = host.call("it", json!({})).start();
    assert_eq!(call.progress().await.unwrap().n, Some(1));
    let last = call.progress().await.unwrap();
    assert_eq!((last.n, last.message.as_deref()), (Some(3), Some("back?")));
    assert_eq!(before.elapsed(), Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn progress_held_back_is_told_before_the_end() {
    let tool = Tool::new("it", async |ctx: Context, (): ()| {
        for n in 1..=5 {
            ctx.progress(n, 5, "");
        }
        Ok::<_, Error>(())
    });
    let host = host(tool).await;
    let mut call = host.call("it", json!({})).start();
    assert_eq!(call.progress().await.unwrap().n, Some(1));
    assert_eq!(call.progress().await.unwrap().n, Some(5));
    assert_eq!(call.progress().await, None);
}

#[tokio::test(start_paused = true)]
async fn progress_breaks_the_silence() {
    let tool = Tool::new("it", async |ctx: Context, (): ()| {
        for n in 0..10 {
            sleep(SECOND).await;
            ctx.progress(n, 10, "");
        }
        assert_eq!(ctx.idle(), Some(2 * SECOND));
        Ok::<_, Error>("done")
    });
    let host = host(tool).await;
    let output = host.call("it", json!({})).idle(2 * SECOND).await.unwrap();
    assert_eq!(output.text(), "done");
}

#[tokio::test(start_paused = true)]
async fn a_log_line_reaches_the_host() {
    let tool = Tool::plain("it", |ctx: Context, (): ()| {
        ctx.log(Level::Warn, "cache.cold", "three files");
        Ok::<_, Error>(())
    });
    let host = host(tool).await;
    host.call("it", json!({})).await.unwrap();
    let [log] = &host.logs()[..] else { panic!("one line") };
    assert_eq!((log.level, log.event.as_str()), (Level::Warn, "cache.cold"));
    assert_eq!(log.message.as_deref(), Some("three files"));
}

// ── Life ───────────────────────────────────────────────────────────────────────

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    greeting: String,
}

impl Default for Config {
    fn default() -> Self {
        Self { greeting: "hello".into() }
    }
}

fn greeter() -> Plugin<Config> {
    Plugin::new("test.greeter", "1.0.0")
        .tool(Tool::new("ping", async |_: Context, (): ()| Ok::<_, Error>("pong")))
        .on_activate(async |activation: Arc<Activation>| activation.config::<Config>())
        .tool(Tool::new("greet", async |ctx: Context<Config>, (): ()| {
            Ok::<_, Error>(ctx.state().greeting.clone())
        }))
}

#[tokio::test(start_paused = true)]
async fn the_operators_configuration_becomes_the_state_of_every_call() {
    let host = Host::new(greeter());
    host.activate(json!({"greeting": "moin"})).await.unwrap();
    assert_eq!(host.call("greet", json!({})).await.unwrap().text(), "moin");
    assert_eq!(host.call("ping", json!({})).await.unwrap().text(), "pong");
    host.deactivate().await.unwrap();
    let inactive = failed(host.call("greet", json!({})).await);
    assert_eq!(inactive.reason.as_deref(), Some("pb.inactive"));
    // Nil is no configuration, and no configuration is the default.
    host.activate(Value::Null).await.unwrap();
    assert_eq!(host.call("greet", json!({})).await.unwrap().text(), "hello");
}

#[tokio::test(start_paused = true)]
async fn an_activation_that_fails_says_why_and_can_be_repeated() {
    let host = Host::new(greeter());
    let wrong = host.activate(json!({"greetin": 1})).await.unwrap_err();
    assert_eq!(wrong.code, Code::InvalidArgument);
    assert!(wrong.message.as_deref().unwrap().starts_with("config: greetin: unknown field"));
    assert_eq!(host.activate_with(1, &[]).await.unwrap_err().code, Code::InvalidArgument);
    assert!(host.activate(json!({})).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_activation_can_fail_in_every_way_and_none_is_final() {
    let tries = Arc::new(AtomicUsize::new(0));
    let plugin = plugin().on_activate(move |activation: Arc<Activation>| {
        let n = tries.fetch_add(1, Ordering::SeqCst);
        async move {
            match n {
                0 => panic!("once"),
                1 => drop("x".parse::<u8>()?),
                2 => sleep(1000 * SECOND).await,
                _ => {}
            }
            activation.secret("KEY").map(ToOwned::to_owned)
        }
    });
    let host = Host::new(plugin);
    let code = |failed: Result<(), Failed>| failed.unwrap_err().code;
    assert_eq!(code(host.activate(json!({})).await), Code::Internal);
    assert_eq!(code(host.activate(json!({})).await), Code::FailedPrecondition);
    let slow = host.call_raw("plugin.activate", b"").deadline(SECOND).start();
    assert_eq!(failed(slow.await).code, Code::DeadlineExceeded);
    sleep(SECOND).await;
    let unset = host.activate(json!({})).await.unwrap_err();
    assert_eq!(unset.message.as_deref(), Some("the secret \"KEY\" is not set"));
    assert!(host.activate_with(json!({}), &[("KEY", "k")]).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_debug_print_shows_no_secret_and_no_configuration() {
    let shown = Arc::new(Mutex::new(String::new()));
    let show = Arc::clone(&shown);
    let plugin = plugin().on_activate(move |activation: Arc<Activation>| {
        *show.lock().unwrap() = format!("{activation:?}");
        async { Ok::<_, Error>(()) }
    });
    Host::new(plugin).activate_with(json!({"a": "hidden"}), &[("KEY", "hidden")]).await.unwrap();
    let shown = shown.lock().unwrap();
    assert!(shown.contains("KEY") && !shown.contains("hidden"), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn deactivate_waits_for_open_calls_then_says_goodbye_then_drops_the_state() {
    let order = Arc::new(Mutex::new(Vec::new()));
    struct State(Arc<Mutex<Vec<&'static str>>>);
    impl Drop for State {
        fn drop(&mut self) {
            self.0.lock().unwrap().push("drop");
        }
    }
    let seen = Arc::clone(&order);
    let plugin = plugin()
        .on_activate(move |_| {
            let seen = Arc::clone(&seen);
            async { Ok::<_, Error>(State(seen)) }
        })
        .on_deactivate(async |state: Arc<State>| state.0.lock().unwrap().push("goodbye"))
        .tool(Tool::new("it", async |ctx: Context<State>, (): ()| {
            sleep(10 * SECOND).await;
            ctx.state().0.lock().unwrap().push("call");
            Ok::<_, Error>(())
        }));
    let host = Host::start(plugin).await;
    let call = host.call("it", json!({})).start();
    tokio::task::yield_now().await;
    let before = Instant::now();
    host.deactivate().await.unwrap();
    assert_eq!(before.elapsed(), 10 * SECOND);
    assert!(call.await.is_ok());
    assert_eq!(host.ends().iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3, 5]);
    assert_eq!(*order.lock().unwrap(), ["call", "goodbye", "drop"]);
}

#[tokio::test(start_paused = true)]
async fn deactivate_if_idle_never_costs_a_call() {
    let tool = Tool::new("it", async |_: Context, (): ()| {
        sleep(SECOND).await;
        Ok::<_, Error>("done")
    });
    let host = host(tool).await;
    let call = host.call("it", json!({})).start();
    tokio::task::yield_now().await;
    let busy = host.deactivate_if_idle().await.unwrap_err();
    assert_eq!((busy.code, busy.retry), (Code::FailedPrecondition, Retry::Safe));
    assert_eq!(busy.reason.as_deref(), Some("pb.busy"));
    assert_eq!(call.await.unwrap().text(), "done");
    assert_eq!(host.call("it", json!({})).await.unwrap().text(), "done");
    host.deactivate_if_idle().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_is_given_up_leaves_the_plugin_active() {
    let tool = Tool::new("it", async |_: Context, (): ()| {
        sleep(100 * SECOND).await;
        Ok::<_, Error>("done")
    });
    let host = host(tool).await;
    let call = host.call("it", json!({})).start();
    tokio::task::yield_now().await;
    let drain = host.call_raw("plugin.deactivate", b"").start();
    sleep(SECOND).await;
    drain.cancel();
    assert_eq!(failed(drain.await).code, Code::Cancelled);
    let again = host.call("it", json!({})).start();
    assert_eq!(call.await.unwrap().text(), "done");
    assert_eq!(again.await.unwrap().text(), "done");
}

#[tokio::test(start_paused = true)]
async fn a_farewell_that_has_begun_is_not_broken_off() {
    let plugin = plugin().on_deactivate(async |_| sleep(10 * SECOND).await);
    let host = Host::start(plugin).await;
    let before = Instant::now();
    let farewell = host.call_raw("plugin.deactivate", b"").deadline(2 * SECOND).start();
    sleep(SECOND).await;
    farewell.cancel();
    assert!(farewell.await.is_ok());
    assert_eq!(before.elapsed(), 10 * SECOND);
    host.activate(json!({})).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn calls_run_side_by_side_up_to_the_announced_number() {
    let tool = || {
        Tool::new("it", async |_: Context, (): ()| {
            sleep(SECOND).await;
            Ok::<_, Error>(())
        })
    };
    let host = Host::start(plugin().concurrency(3).tool(tool())).await;
    let before = Instant::now();
    let calls = [(); 3].map(|()| host.call("it", json!({})).start());
    let refused = failed(host.call("it", json!({})).await);
    assert_eq!(refused.reason.as_deref(), Some("pb.too_many_calls"));
    for call in calls {
        assert!(call.await.is_ok());
    }
    assert_eq!(before.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_with_many_threads_makes_a_task_of_every_call() {
    let tool = Tool::new("it", async |_: Context, args: Value| {
        if args["panic"] == true {
            panic!("as asked");
        }
        // A runtime's own context is there, and the call is one that can be dropped.
        assert!(tokio::task::try_id().is_some());
        Ok::<_, Error>(args)
    });
    let host = Host::open(plugin().tool(tool), false);
    host.activate(json!({})).await.unwrap();
    assert_eq!(host.call("it", json!({"a": 1})).await.unwrap().text(), r#"{"a":1}"#);
    assert_eq!(failed(host.call("it", json!({"panic": true})).await).code, Code::Internal);
    assert_eq!(failed(host.call("it", json!([])).await).code, Code::InvalidArgument);
    host.deactivate().await.unwrap();
}

// ── Manifest ───────────────────────────────────────────────────────────────────

#[tokio::test(start_paused = true)]
async fn the_manifest_is_made_of_types_and_doc_comments() {
    /// Finds places.
    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Find {
        /// What to look for.
        #[expect(dead_code, reason = "only its schema is of interest")]
        query: String,
        #[expect(dead_code, reason = "only its schema is of interest")]
        limit: Option<u8>,
    }
    #[derive(Serialize, JsonSchema)]
    struct Found {
        hits: u32,
    }
    let find = Tool::new("find", async |_: Context, _: Find| Ok::<_, Error>(Found { hits: 0 }))
        .effect(Effect::Read)
        .idempotent()
        .returns::<Found>();
    let reset = Tool::new("reset", async |_: Context, (): ()| Ok::<_, Error>(()))
        .describe("Forgets everything.");
    let any = Tool::new("any", async |_: Context, args: Value| Ok::<_, Error>(args));
    #[derive(Deserialize, JsonSchema)]
    #[serde(tag = "kind")]
    enum Shape {
        Dot,
        Line {
            #[expect(dead_code, reason = "only its schema is of interest")]
            length: u8,
        },
    }
    let shape = Tool::new("shape", async |_: Context, _: Shape| Ok::<_, Error>(()));
    let host = Host::new(plugin().tool(find).tool(reset).tool(any).tool(shape));
    let [find, reset, any, shape] = &host.tools()[..] else { panic!("four tools") };
    assert_eq!(shape.input_schema["type"], "object");
    assert_eq!(shape.input_schema["oneOf"][1]["required"], json!(["kind", "length"]));
    assert_eq!(find.description, "Finds places.");
    assert_eq!(find.effect.as_deref(), Some("read"));
    assert!(find.idempotent && !reset.idempotent);
    let limit =
        json!({"type": ["integer", "null"], "format": "uint8", "minimum": 0, "maximum": 255});
    assert_eq!(
        find.input_schema,
        json!({
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What to look for."},
                "limit": limit,
            },
            "required": ["query"],
            "additionalProperties": false,
        })
    );
    assert_eq!(find.output_schema.as_ref().unwrap()["required"], json!(["hits"]));
    assert_eq!(reset.description, "Forgets everything.");
    assert_eq!(reset.effect.as_deref(), Some("write"));
    assert_eq!(reset.input_schema["type"], "object");
    assert_eq!(any.input_schema, json!({"type": "object"}));
}

#[test]
fn what_cannot_be_offered_is_refused_with_every_reason() {
    let tool = |name: &str| Tool::new(name, async |_: Context, (): ()| Ok::<_, Error>(()));
    let list = Tool::new("list", async |_: Context, _: Vec<u8>| Ok::<_, Error>(1));
    let list = list.returns::<u8>();
    let wrong = Plugin::new("Not An Id", "").tool(tool("1st")).tool(tool("a")).tool(tool("a"));
    let problems = wrong.tool(list).engine(true).err().unwrap();
    let wanted = [
        "id \"Not An Id\"",
        "version",
        "\"1st\"",
        "two tools",
        "arguments of \"list\"",
        "data of \"list\"",
    ];
    assert_eq!(problems.len(), wanted.len(), "{problems:#?}");
    for (problem, wanted) in problems.iter().zip(wanted) {
        assert!(problem.contains(wanted), "{problem}");
    }
}
