//! Calls with items: they arrive in order, hold each other back, and end once.

use bytes::Bytes;
use plugbay_supervisor::{CallError, Caller, NotTaken, Ran, Reply, Request, State};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    alone::alone,
    languages::python,
    stage::{Stage, within},
    world::{World, kill},
};

const FIXTURE: &str = "tck/fixtures/reference.py";

/// A call of a fixture's method.
pub(crate) fn request(method: &str, args: &Value) -> Request {
    Request::new("p", format!("tck.{method}"), args)
}

pub(crate) async fn open(stage: &Stage, request: Request) -> Result<Reply, CallError> {
    let caller = Caller::trusted("test");
    within("a call to leave", stage.registry.request(&caller, request)).await
}

/// Calls and waits for the result.
pub(crate) async fn ask(stage: &Stage, method: &str, args: Value) -> Result<Value, CallError> {
    end_of(open(stage, request(method, &args)).await?).await
}

async fn end_of(reply: Reply) -> Result<Value, CallError> {
    let result = within("a result", reply.result()).await?;
    Ok(result.decode().expect("the fixture's results are JSON"))
}

fn fixture(world: &World) -> Stage {
    world.supervise([python(world, FIXTURE)])
}

async fn next(reply: &mut Reply) -> Option<Value> {
    let item = within("an item or the end of them", reply.next()).await?;
    Some(item.decode::<WithoutBytes>().expect("as the contract says").i.into())
}

/// An item of `tck.emit`.
#[derive(serde::Deserialize)]
struct WithoutBytes {
    i: u32,
}

#[test]
fn items_come_in_order_and_then_the_result() {
    alone(async |world| {
        let stage = fixture(world);
        // Ten times as much as may be on its way.
        let args = json!({ "n": 640, "size": 4096 });
        let mut reply = open(&stage, request("emit", &args)).await.expect("it is sent");
        for i in 0..640 {
            assert_eq!(next(&mut reply).await, Some(json!(i)));
        }
        assert_eq!(next(&mut reply).await, None);
        let result = end_of(reply).await.expect("it succeeds");
        assert_eq!(result, json!({ "n": 640 }));
        stage.end().await;
    });
}

#[test]
fn a_reader_that_stops_holds_up_its_stream_and_nothing_else() {
    alone(async |world| {
        let stage = fixture(world);
        // Without end.
        let mut endless = open(&stage, request("emit", &json!({ "size": 4096 }))).await.unwrap();
        assert_eq!(next(&mut endless).await, Some(json!(0)));
        for n in 0..50 {
            assert_eq!(ask(&stage, "echo", json!(n)).await.unwrap(), json!(n));
        }
        // What was on its way is still there.
        for i in 1..200 {
            assert_eq!(next(&mut endless).await, Some(json!(i)));
        }
        drop(endless);
        let gone = async {
            while ask(&stage, "state", json!({})).await.unwrap()["open_calls"] != json!(1) {}
        };
        within("the call that was dropped to be over", gone).await;
        stage.end().await;
    });
}

#[test]
fn a_result_can_be_had_without_its_items() {
    alone(async |world| {
        let stage = fixture(world);
        let result = ask(&stage, "emit", json!({ "n": 2000, "size": 1024 })).await;
        assert_eq!(result.unwrap(), json!({ "n": 2000 }));
        let failed = ask(&stage, "emit", json!({ "n": 9, "fail_at": 3 })).await.unwrap_err();
        let CallError::Failed { fault, .. } = &failed else { panic!("{failed:?}") };
        assert_eq!(fault.reason.as_deref(), Some("tck.fail_at"));
        stage.end().await;
    });
}

#[test]
fn previews_that_nobody_watches_do_not_stop_a_tool() {
    alone(async |world| {
        let stage = world.supervise([python(world, "tests/plugins/agent.py")]);
        stage.up("p").await;
        // Three times as much as may be on its way.
        let output = stage.call("chat", json!({ "n": 200 })).await.expect("it is paid for them");
        assert_eq!(output.text(), "done");
        stage.end().await;
    });
}

#[test]
fn the_callers_items_arrive_and_both_directions_go_on_at_once() {
    alone(async |world| {
        let stage = fixture(world);
        let request = || request("sink", &json!({})).with_input();
        let mut reply = open(&stage, request()).await.expect("it is sent");
        let mut input = reply.input().expect("it was asked for");
        assert!(reply.input().is_none(), "there is one");
        let mut sum = Sha256::new();
        for n in 0..300_u32 {
            let chunk = vec![n as u8; 2048];
            sum.update(&chunk);
            // Binary: marker, length, bytes.
            let item = [&[0xc5, 0x08, 0x00][..], &chunk].concat();
            within("credit", input.send_encoded(item.into())).await.expect("it takes all");
        }
        input.end();
        let result = end_of(reply).await.expect("it succeeds");
        let sum: String = sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(result, json!({ "n": 300, "bytes": 300 * 2048, "sha256": sum }));

        let mut reply = open(&stage, Request::new("p", "tck.pipe", &json!({})).with_input())
            .await
            .expect("it is sent");
        let mut input = reply.input().expect("it was asked for");
        let write = async {
            for n in 0..500 {
                input.send(&json!({ "n": n, "pad": "x".repeat(1000) })).await.expect("credit");
            }
            input.end();
        };
        let read = async {
            for n in 0..500 {
                let item: Value = reply.next().await.expect("it echoes").decode().expect("JSON");
                assert_eq!(item["n"], json!(n));
            }
            assert!(reply.next().await.is_none());
        };
        within("both ways", async { tokio::join!(write, read) }).await;
        let result = end_of(reply).await.expect("it succeeds");
        assert_eq!(result, json!({ "n": 500 }));
        stage.end().await;
    });
}

#[test]
fn an_item_after_the_end_and_one_too_large_are_told() {
    alone(async |world| {
        let stage = fixture(world);
        let request = request("sink", &json!({ "stop_at": 1 })).with_input();
        let mut reply = open(&stage, request).await.expect("it is sent");
        let mut input = reply.input().expect("it was asked for");
        let large = input.send_encoded(Bytes::from(vec![0xc0; 2 << 20])).await;
        assert!(matches!(large, Err(NotTaken::TooLarge { .. })), "{large:?}");
        input.send_encoded(Bytes::from_static(&[0xc4, 1, 7])).await.expect("it takes one");
        assert!(next(&mut reply).await.is_none());
        let over =
            async { while input.send_encoded(Bytes::from_static(&[0xc4, 1, 7])).await.is_ok() {} };
        within("the call to be over", over).await;
        assert_eq!(input.send(&json!(null)).await, Err(NotTaken::Over));
        assert_eq!(end_of(reply).await.expect("it succeeds")["n"], json!(1));
        stage.end().await;
    });
}

#[test]
fn a_plugin_that_dies_ends_its_streams_with_the_cause() {
    alone(async |world| {
        let stage = fixture(world);
        let mut reply = open(&stage, request("emit", &json!({ "size": 10 }))).await.unwrap();
        assert_eq!(next(&mut reply).await, Some(json!(0)));
        let pid = stage.plugin("p").unwrap().pid.expect("it runs");
        kill(pid);
        let lost = within("the end", reply.result()).await.unwrap_err();
        assert!(matches!(lost, CallError::Lost { .. }), "{lost:?}");
        assert_eq!(lost.ran(), Ran::Unknown);
        stage.end().await;
    });
}

#[test]
fn what_is_no_method_for_this_door_is_not_there() {
    alone(async |world| {
        let stage = fixture(world);
        let refused = |request| async { open(&stage, request).await.unwrap_err() };
        for method in ["tool.call", "plugin.deactivate"] {
            let error = refused(Request::new("p", method, &json!({}))).await;
            assert!(matches!(error, CallError::NotFound { .. }), "{method}: {error:?}");
        }
        let error = refused(Request::new("q", "tck.echo", &json!({}))).await;
        assert!(matches!(error, CallError::NotFound { .. }), "{error:?}");
        let nobody = Caller::new("nobody").allow("p/tck.sleep");
        let denied = stage.registry.request(&nobody, request("echo", &json!({}))).await;
        assert!(matches!(denied, Err(CallError::Denied { .. })), "{denied:?}");
        assert_eq!((stage.starts("p"), stage.state("p")), (0, State::Dormant), "nobody was woken");
        assert!(stage.registry.entries(&Caller::trusted("test")).is_empty());
        stage.up("p").await;
        let entries = stage.registry.entries(&Caller::trusted("test"));
        let names: Vec<&str> = entries.iter().map(|it| it.name.as_str()).collect();
        assert!(names.contains(&"emit") && names.contains(&"pipe"), "{names:?}");
        let unknown = ask(&stage, "nothing", json!({})).await.unwrap_err();
        assert!(unknown.to_string().contains("pb.unknown_method"), "{unknown}");
        stage.end().await;
    });
}
