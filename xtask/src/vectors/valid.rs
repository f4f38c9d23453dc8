//! Bytes that mean something.

use plugbay_protocol::{
    Announce, CallId, CancelReason, Close, Code, Conversation, Fault, Features, Identity, Level,
    Limits, Note, Outgoing, Retry,
};
use serde_json::{Value, json};

use super::{
    Body,
    Level::{L0, L2, L3, L4},
    Meaning,
    Receiver::{self, Host, Plugin},
    State::{self, Active, Open, Ready, Start},
    Valid,
    bytes::{Frame, Piece, bytes, frame},
    judge::{FS_READ, NOW, Pair, carry, feed, pair},
};

/// The limits 1048576, 262144 and 8.
const LIMITS: &str = "a6'limits' 83 a5'frame' ce00100000 a6'window' ce00040000 a5'calls' 08";
/// `{"msg": "reading"}`
const MSG: &str = "81 a3'msg' a7'reading'";
/// `{"name": "greet", "args": {"who": "Ada"}}`
const GREET: &str = "82 a4'name' a5'greet' a4'args' 81 a3'who' a3'Ada'";
/// The manifest of a plugin with one tool.
const MANIFEST: &str = "82 a8'provides' 91 85 a4'kind' a4'tool' a4'name' a5'greet' \
    ab'description' b8'Greets somebody by name.' ac'input_schema' 81 a4'type' a6'object' \
    a6'effect' a4'read' a5'wants' 90";

fn vector(
    name: &'static str,
    receiver: Receiver,
    state: State,
    about: &'static str,
    frame: &Frame,
    meaning: Meaning,
) -> Valid {
    stream(name, receiver, state, about, frame.pieces(), vec![meaning])
}

fn stream(
    name: &'static str,
    receiver: Receiver,
    state: State,
    about: &'static str,
    pieces: Vec<Piece>,
    frames: Vec<Meaning>,
) -> Valid {
    Valid { name, about, receiver, state, level: L0, pieces, frames, remake: None }
}

impl Valid {
    fn made_by(mut self, remake: fn() -> Vec<u8>) -> Self {
        self.remake = Some(remake);
        self
    }

    fn at(mut self, level: super::Level) -> Self {
        self.level = level;
        self
    }
}

fn says(kind: &'static str, id: u32, head: Value) -> Meaning {
    Meaning { kind, id, head, body: Body::Empty }
}

impl Meaning {
    fn body(mut self, value: Value) -> Self {
        self.body = Body::Value(value);
        self
    }

    fn raw(mut self, notation: &str) -> Self {
        self.body = Body::Bytes(bytes(notation));
        self
    }
}

pub(crate) fn all() -> Vec<Valid> {
    [
        hello(),
        close(),
        ping(),
        call(),
        end(),
        cancel_and_note(),
        unknown(),
        streams(),
        reverse(),
        input(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn hello() -> Vec<Valid> {
    let limits = json!({"frame": 1_048_576, "window": 262_144, "calls": 8});
    let floor = json!({"frame": 65_536, "window": 16_384, "calls": 1});
    vec![
        vector(
            "hello-host",
            Plugin,
            Start,
            "what a host says first",
            &frame(
                0x01,
                0,
                format!(
                    "84 a8'versions' 91 01 a8'features' 91 a5'async' {LIMITS} \
                     a4'host' 82 a4'name' a7'plugbay' a7'version' a5'0.1.0'"
                ),
            ),
            says(
                "HELLO",
                0,
                json!({"versions": [1], "features": ["async"], "limits": limits,
                       "host": {"name": "plugbay", "version": "0.1.0"}}),
            ),
        )
        .made_by(|| {
            Conversation::host(announce("plugbay", "0.1.0", None), NOW).outbox().take().to_vec()
        }),
        vector(
            "hello-host-smallest",
            Plugin,
            Start,
            "no features, no name, limits at their floor",
            &frame(
                0x01,
                0,
                "82 a8'versions' 91 01 a6'limits' 83 a5'frame' ce00010000 a6'window' cd4000 \
                 a5'calls' 01",
            ),
            says("HELLO", 0, json!({"versions": [1], "limits": floor})),
        ),
        vector(
            "hello-host-future",
            Plugin,
            Start,
            "GREASE: unknown versions, features, list entries and keys are ignored",
            &frame(
                0x01,
                0,
                format!(
                    "85 a8'versions' 94 01 02 cd0a0a a5'three' a8'features' 93 a5'async' \
                     a8'grease.x' 80 {LIMITS} a7'grease1' 81 a1'a' 93 c0 c3 cb3ff8000000000000 \
                     a4'host' c0"
                ),
            ),
            says(
                "HELLO",
                0,
                json!({"versions": [1, 2, 2570, "three"], "features": ["async", "grease.x", {}],
                       "limits": limits, "grease1": {"a": [null, true, 1.5]}, "host": null}),
            ),
        ),
        vector(
            "hello-plugin",
            Host,
            Start,
            "a serial plugin with one tool",
            &frame(
                0x01,
                0,
                "84 a7'version' 01 a8'features' 90 a6'limits' 83 a5'frame' ce00100000 \
                 a6'window' ce00040000 a5'calls' 01 a6'plugin' 82 a4'name' aa'acme.greet' \
                 a7'version' a5'1.0.0'",
            )
            .body(MANIFEST),
            says(
                "HELLO",
                0,
                json!({"version": 1, "features": [],
                       "limits": {"frame": 1_048_576, "window": 262_144, "calls": 1},
                       "plugin": {"name": "acme.greet", "version": "1.0.0"}}),
            )
            .body(json!({"provides": [{"kind": "tool", "name": "greet",
                "description": "Greets somebody by name.", "effect": "read",
                "input_schema": {"type": "object"}}], "wants": []})),
        )
        .made_by(|| {
            let mut plugin = announce("acme.greet", "1.0.0", None);
            plugin.features = Features::NONE;
            plugin.limits.calls = 1;
            plugin.manifest = bytes(MANIFEST).into();
            greeting(plugin)
        }),
        vector(
            "hello-plugin-sdk",
            Host,
            Start,
            "a plugin that reads while calls run, names its SDK, and provides nothing",
            &frame(
                0x01,
                0,
                format!(
                    "84 a7'version' 01 a8'features' 91 a5'async' {LIMITS} a6'plugin' 83 \
                     a4'name' aa'acme.greet' a7'version' a5'1.0.0' a3'sdk' ab'example 1.0'"
                ),
            ),
            says(
                "HELLO",
                0,
                json!({"version": 1, "features": ["async"], "limits": limits,
                       "plugin": {"name": "acme.greet", "version": "1.0.0", "sdk": "example 1.0"}}),
            ),
        )
        .made_by(|| greeting(announce("acme.greet", "1.0.0", Some("example 1.0")))),
    ]
}

fn close() -> Vec<Valid> {
    vec![
        vector(
            "close-ok",
            Plugin,
            Active,
            "the host lets the plugin go",
            &frame(0x02, 0, "81 a4'code' a2'ok'"),
            says("CLOSE", 0, json!({"code": "ok"})),
        )
        .made_by(|| {
            written(Active, |pair| {
                pair.host.close(Close::Ok, None);
                pair.host.outbox().take().to_vec()
            })
        }),
        vector(
            "close-version-unsupported",
            Host,
            Start,
            "a plugin that speaks version 1 and was offered others",
            &frame(0x02, 0, "82 a4'code' b3'version_unsupported' a9'supported' 91 01"),
            says("CLOSE", 0, json!({"code": "version_unsupported", "supported": [1]})),
        )
        .made_by(|| {
            answer_of_plugin(Start, &frame(0x01, 0, format!("82 a8'versions' 91 02 {LIMITS}")))
        }),
        vector(
            "close-bad-id",
            Host,
            Active,
            "with the id that was bad, for people",
            &frame(0x02, 0, "82 a4'code' a6'bad_id' a2'id' 02"),
            says("CLOSE", 0, json!({"code": "bad_id", "id": 2})),
        )
        .made_by(|| answer_of_plugin(Active, &frame(0x10, 2, "81 a6'method' a9'tool.call'"))),
        vector(
            "close-message",
            Host,
            Active,
            "words for people are in the body",
            &frame(0x02, 0, "81 a4'code' a8'internal'").body("81 a3'msg' ab'out of disk'"),
            says("CLOSE", 0, json!({"code": "internal"})).body(json!({"msg": "out of disk"})),
        )
        .made_by(|| {
            written(Active, |pair| {
                pair.plugin.close(Close::Internal, Some("out of disk"));
                pair.plugin.outbox().take().to_vec()
            })
        }),
        vector(
            "close-unknown-code",
            Plugin,
            Active,
            "counts as internal",
            &frame(0x02, 0, "81 a4'code' a8'grease_q'"),
            says("CLOSE", 0, json!({"code": "grease_q"})),
        ),
    ]
}

fn ping() -> Vec<Valid> {
    vec![
        vector(
            "ping",
            Plugin,
            Ready,
            "the body is any bytes",
            &frame(0x03, 0, "80").body("0102030405060708"),
            says("PING", 0, json!({})).raw("0102030405060708"),
        ),
        vector(
            "pong",
            Host,
            Ready,
            "the answer to ping",
            &frame(0x04, 0, "80").body("0102030405060708"),
            says("PONG", 0, json!({})).raw("0102030405060708"),
        )
        .made_by(|| answer_of_plugin(Ready, &frame(0x03, 0, "80").body("0102030405060708"))),
        vector(
            "ping-empty",
            Plugin,
            Ready,
            "no body, so no gap",
            &frame(0x03, 0, "80"),
            says("PING", 0, json!({})),
        ),
        vector(
            "ping-longest",
            Plugin,
            Ready,
            "64 bytes, none of them MessagePack",
            &frame(0x03, 0, "80").body("c1".repeat(64)),
            says("PING", 0, json!({})).raw(&"c1".repeat(64)),
        ),
        stream(
            "ping-twice",
            Plugin,
            Ready,
            "two frames in one piece",
            [frame(0x03, 0, "80").body("01"), frame(0x03, 0, "80").body("02")]
                .iter()
                .flat_map(Frame::pieces)
                .collect(),
            vec![says("PING", 0, json!({})).raw("01"), says("PING", 0, json!({})).raw("02")],
        ),
    ]
}

fn call() -> Vec<Valid> {
    let greet = json!({"name": "greet", "args": {"who": "Ada"}});
    vec![
        vector(
            "call-activate",
            Plugin,
            Ready,
            "the first call of all",
            &frame(0x10, 1, "82 a6'method' af'plugin.activate' a8'deadline' cd7530")
                .body("82 a5'grant' 90 a6'config' 80"),
            says("CALL", 1, json!({"method": "plugin.activate", "deadline": 30_000}))
                .body(json!({"grant": [], "config": {}})),
        )
        .made_by(|| {
            called(Ready, "plugin.activate", Some(30_000), None, "82 a5'grant' 90 a6'config' 80")
        }),
        vector(
            "call-tool",
            Plugin,
            Active,
            "a tool, with a total budget",
            &frame(0x10, 3, "82 a6'method' a9'tool.call' a8'deadline' cd7530").body(GREET),
            says("CALL", 3, json!({"method": "tool.call", "deadline": 30_000})).body(greet.clone()),
        )
        .made_by(|| called(Active, "tool.call", Some(30_000), None, GREET)),
        vector(
            "call-idle",
            Plugin,
            Active,
            "both budgets",
            &frame(0x10, 3, "83 a6'method' a9'tool.call' a8'deadline' ce000927c0 a4'idle' cd7530")
                .body(GREET),
            says("CALL", 3, json!({"method": "tool.call", "deadline": 600_000, "idle": 30_000}))
                .body(greet.clone()),
        )
        .made_by(|| called(Active, "tool.call", Some(600_000), Some(30_000), GREET)),
        vector(
            "call-no-body",
            Plugin,
            Active,
            "no budget, no body, a method of the plugin's own",
            &frame(0x10, 3, "81 a6'method' ac'acme.refresh'"),
            says("CALL", 3, json!({"method": "acme.refresh"})),
        )
        .made_by(|| called(Active, "acme.refresh", None, None, "")),
        vector(
            "call-deactivate",
            Plugin,
            Active,
            "idle stop",
            &frame(0x10, 3, "81 a6'method' b1'plugin.deactivate'").body("81 a7'if_idle' c3"),
            says("CALL", 3, json!({"method": "plugin.deactivate"})).body(json!({"if_idle": true})),
        )
        .made_by(|| called(Active, "plugin.deactivate", None, None, "81 a7'if_idle' c3")),
        vector(
            "call-gap-0",
            Plugin,
            Active,
            "header and head end at 32, so there is no gap",
            &frame(0x10, 3, "81 a6'method' ab'acme.lookup'").body("c3"),
            says("CALL", 3, json!({"method": "acme.lookup"})).body(json!(true)),
        )
        .made_by(|| called(Active, "acme.lookup", None, None, "c3")),
        vector(
            "call-gap-15",
            Plugin,
            Active,
            "header and head end at 33, so the gap is as long as it gets",
            &frame(0x10, 3, "81 a6'method' ac'acme.lookups'").body("c3"),
            says("CALL", 3, json!({"method": "acme.lookups"})).body(json!(true)),
        )
        .made_by(|| called(Active, "acme.lookups", None, None, "c3")),
        vector(
            "call-wide-markers",
            Plugin,
            Active,
            "the longest form of every marker",
            &frame(
                0x10,
                3,
                "df00000002 db00000006'method' db00000009'tool.call' \
                 db00000008'deadline' cf0000000000007530",
            )
            .body(
                "df00000002 db00000004'name' db00000005'greet' db00000004'args' \
                 df00000001 db00000003'who' db00000003'Ada'",
            ),
            says("CALL", 3, json!({"method": "tool.call", "deadline": 30_000})).body(greet.clone()),
        ),
        vector(
            "call-nil-fields",
            Plugin,
            Active,
            "nil is the same as absent",
            &frame(0x10, 3, "83 a6'method' a9'tool.call' a8'deadline' c0 a4'idle' c0").body(GREET),
            says("CALL", 3, json!({"method": "tool.call", "deadline": null, "idle": null}))
                .body(greet.clone()),
        ),
        vector(
            "call-unknown-keys",
            Plugin,
            Active,
            "fields that do not matter here and GREASE are ignored",
            &frame(
                0x10,
                3,
                "86 a6'method' a9'tool.call' a2'in' c2 a6'scopes' 90 a5'trace' 81 a2'tp' a1'x' \
                 a6'grease' fb a9'grease_no' cbbff8000000000000",
            )
            .body(GREET),
            says(
                "CALL",
                3,
                json!({"method": "tool.call", "in": false, "scopes": [], "trace": {"tp": "x"},
                       "grease": -5, "grease_no": -1.5}),
            )
            .body(greet),
        ),
        vector(
            "call-highest-id",
            Plugin,
            Active,
            "gaps in ids are fine; after this one the host needs a new connection",
            &frame(0x10, 0x7fff_ffff, "81 a6'method' ac'acme.refresh'"),
            says("CALL", 0x7fff_ffff, json!({"method": "acme.refresh"})),
        ),
        vector(
            "call-largest-integer",
            Plugin,
            Active,
            "2^53 - 1",
            &frame(0x10, 3, "82 a6'method' ac'acme.refresh' a8'deadline' cf001fffffffffffff"),
            says(
                "CALL",
                3,
                json!({"method": "acme.refresh", "deadline": 9_007_199_254_740_991_u64}),
            ),
        )
        .made_by(|| called(Active, "acme.refresh", Some((1 << 53) - 1), None, "")),
        vector(
            "call-deepest-head",
            Plugin,
            Active,
            "8 containers inside one another, the head counted",
            &frame(0x10, 3, "82 a6'method' ac'acme.refresh' a1'x' 91919191919191 c0"),
            says("CALL", 3, json!({"method": "acme.refresh", "x": [[[[[[[null]]]]]]]})),
        ),
        vector(
            "call-binary-body",
            Plugin,
            Active,
            "bytes stay bytes",
            &frame(0x10, 3, "81 a6'method' a8'acme.put'").body("81 a4'blob' c404 000d0aff"),
            says("CALL", 3, json!({"method": "acme.put"})).raw("81 a4'blob' c404 000d0aff"),
        )
        .made_by(|| called(Active, "acme.put", None, None, "81 a4'blob' c404 000d0aff")),
    ]
}

fn end() -> Vec<Valid> {
    const HELLO_ADA: &str = "81 a7'content' 91 82 a4'type' a4'text' a4'text' aa'hello, Ada'";
    vec![
        vector(
            "end-ok",
            Host,
            Open,
            "the result of a tool",
            &frame(0x12, 3, "80").body(HELLO_ADA),
            says("END", 3, json!({}))
                .body(json!({"content": [{"type": "text", "text": "hello, Ada"}]})),
        )
        .made_by(|| ended(3, Ok(HELLO_ADA))),
        vector(
            "end-empty",
            Host,
            Open,
            "success with nothing to say",
            &frame(0x12, 3, "80"),
            says("END", 3, json!({})),
        )
        .made_by(|| ended(3, Ok(""))),
        vector(
            "end-is-error",
            Host,
            Open,
            "the call worked, and what it has to tell is a failure",
            &frame(0x12, 3, "80").body(
                "82 a7'content' 91 82 a4'type' a4'text' a4'text' ac'no such file' a8'is_error' c3",
            ),
            says("END", 3, json!({})).body(
                json!({"content": [{"type": "text", "text": "no such file"}], "is_error": true}),
            ),
        ),
        vector(
            "end-inactive",
            Host,
            Open,
            "refused by the state gate",
            &frame(
                0x12,
                3,
                "81 a3'err' 83 a4'code' b3'failed_precondition' a6'reason' ab'pb.inactive' \
                 a5'retry' a4'safe'",
            ),
            says(
                "END",
                3,
                json!({"err": {"code": "failed_precondition", "reason": "pb.inactive",
                               "retry": "safe"}}),
            ),
        )
        .made_by(|| answer_of_plugin(Ready, &frame(0x10, 3, "81 a6'method' a9'tool.call'"))),
        vector(
            "end-cancelled",
            Host,
            Open,
            "the answer to CANCEL",
            &frame(0x12, 5, "81 a3'err' 82 a4'code' a9'cancelled' a5'retry' a2'no'"),
            says("END", 5, json!({"err": {"code": "cancelled", "retry": "no"}})),
        )
        .made_by(|| ended(5, Err(Fault::new(Code::Cancelled)))),
        vector(
            "end-error",
            Host,
            Open,
            "an error with all it can have",
            &frame(
                0x12,
                3,
                "81 a3'err' 84 a4'code' b2'resource_exhausted' a6'reason' aa'acme.quota' \
                 a5'retry' a5'maybe' a5'after' cd05dc",
            )
            .body("81 a3'msg' b6'the day has used it up'"),
            says(
                "END",
                3,
                json!({"err": {"code": "resource_exhausted", "reason": "acme.quota",
                               "retry": "maybe", "after": 1500}}),
            )
            .body(json!({"msg": "the day has used it up"})),
        )
        .made_by(|| {
            let mut fault = Fault::new(Code::ResourceExhausted)
                .because("acme.quota")
                .retry(Retry::Maybe)
                .message("the day has used it up");
            fault.after = Some(1500);
            ended(3, Err(fault))
        }),
        vector(
            "end-unknown-code",
            Host,
            Open,
            "an unknown code counts as unknown, an unknown retry as no",
            &frame(0x12, 3, "81 a3'err' 82 a4'code' a8'grease_q' a5'retry' a5'later'"),
            says("END", 3, json!({"err": {"code": "grease_q", "retry": "later"}})),
        ),
        vector(
            "end-late",
            Plugin,
            Active,
            "from the caller, about a call that is over: ignored",
            &frame(0x12, 1, "80"),
            says("END", 1, json!({})),
        ),
    ]
}

fn cancel_and_note() -> Vec<Valid> {
    vec![
        vector(
            "cancel",
            Plugin,
            Open,
            "the caller gives a call up",
            &frame(0x13, 7, "81 a6'reason' a4'user'"),
            says("CANCEL", 7, json!({"reason": "user"})),
        )
        .made_by(|| {
            written(Open, |pair| {
                pair.host.cancel(CallId(7), CancelReason::User, NOW);
                pair.host.outbox().take().to_vec()
            })
        }),
        vector(
            "cancel-no-reason",
            Plugin,
            Open,
            "counts as user",
            &frame(0x13, 7, "80"),
            says("CANCEL", 7, json!({})),
        ),
        vector(
            "cancel-never-opened",
            Plugin,
            Open,
            "ignored, like one that comes too late",
            &frame(0x13, 99, "81 a6'reason' a8'deadline'"),
            says("CANCEL", 99, json!({"reason": "deadline"})),
        ),
        vector(
            "note-progress",
            Host,
            Open,
            "3 of 10",
            &frame(0x90, 3, "83 a5'topic' a8'progress' a1'n' 03 a5'total' 0a").body(MSG),
            says("NOTE", 3, json!({"topic": "progress", "n": 3, "total": 10}))
                .body(json!({"msg": "reading"})),
        )
        .made_by(|| {
            let body = bytes(MSG).into();
            noted(Some(3), &Note::Progress { n: Some(3), total: Some(10), unit: None, body })
        }),
        vector(
            "note-log",
            Host,
            Open,
            "the event is loggable, the message is not",
            &frame(0x90, 0, "83 a5'topic' a3'log' a3'lvl' a4'warn' a5'event' aa'slow_query'")
                .body(MSG),
            says("NOTE", 0, json!({"topic": "log", "lvl": "warn", "event": "slow_query"}))
                .body(json!({"msg": "reading"})),
        )
        .made_by(|| {
            let body = bytes(MSG).into();
            noted(None, &Note::Log { level: Level::Warn, event: "slow_query".into(), body })
        }),
        vector(
            "note-retire",
            Host,
            Active,
            "please drain and replace me",
            &frame(0x90, 0, "82 a5'topic' a6'retire' a6'reason' a6'memory'"),
            says("NOTE", 0, json!({"topic": "retire", "reason": "memory"})),
        )
        .made_by(|| noted(None, &Note::Retire { reason: "memory".into() })),
        vector(
            "note-unknown-topic",
            Host,
            Active,
            "ignored",
            &frame(0x90, 0, "81 a5'topic' a8'grease.x'").body("01"),
            says("NOTE", 0, json!({"topic": "grease.x"})).body(json!(1)),
        ),
        vector(
            "note-progress-string",
            Host,
            Open,
            "n is a string, so nobody can use the note: ignored",
            &frame(0x90, 3, "82 a5'topic' a8'progress' a1'n' a1'3'"),
            says("NOTE", 3, json!({"topic": "progress", "n": "3"})),
        ),
        vector(
            "note-closed-call",
            Host,
            Active,
            "about a call that is over: ignored",
            &frame(0x90, 1, "82 a5'topic' a8'progress' a1'n' 01"),
            says("NOTE", 1, json!({"topic": "progress", "n": 1})),
        ),
    ]
}

fn unknown() -> Vec<Valid> {
    let ping = || frame(0x03, 0, "80").body("2a");
    let meaning = || vec![says("PING", 0, json!({})).raw("2a")];
    let before_ping =
        |first: Frame| [first.pieces(), ping().pieces()].into_iter().flatten().collect();
    vec![
        stream(
            "skip-grease",
            Plugin,
            Ready,
            "a type from 80 on is skipped, its head unread; the PING after it counts",
            before_ping(frame(0xe7, 77, "ffff").body("c1".repeat(20))),
            meaning(),
        ),
        stream(
            "skip-private",
            Host,
            Ready,
            "the same without a body",
            before_ping(frame(0xf0, 0, "80")),
            meaning(),
        ),
        stream(
            "skip-before-hello",
            Plugin,
            Start,
            "skipped frames do not count as the first one",
            [
                frame(0x80, 0, "80").pieces(),
                frame(0x01, 0, format!("82 a8'versions' 91 01 {LIMITS}")).pieces(),
            ]
            .into_iter()
            .flatten()
            .collect(),
            vec![says(
                "HELLO",
                0,
                json!({"versions": [1],
                       "limits": {"frame": 1_048_576, "window": 262_144, "calls": 8}}),
            )],
        ),
    ]
}

fn streams() -> Vec<Valid> {
    let item = |id, text: &str| frame(0x11, id, "80").body(text);
    let vectors = [
        vector(
            "item",
            Host,
            Open,
            "one element of a stream",
            &item(7, "82 a1't' a4'text' a1'd' a2'Hi'"),
            says("ITEM", 7, json!({})).body(json!({"t": "text", "d": "Hi"})),
        )
        .made_by(|| {
            written_at(Open, L2, |pair| {
                let item =
                    pair.plugin.item(CallId(7), &bytes("82 a1't' a4'text' a1'd' a2'Hi'").into());
                item.map(|()| pair.plugin.outbox().take().to_vec()).unwrap_or_default()
            })
        }),
        stream(
            "items-then-end",
            Host,
            Open,
            "two items, one of them nil, and the END after them; a bystander's END between",
            [item(7, "01"), frame(0x12, 3, "80"), item(7, "c0"), frame(0x12, 7, "80").body("02")]
                .iter()
                .flat_map(Frame::pieces)
                .collect(),
            vec![
                says("ITEM", 7, json!({})).body(json!(1)),
                says("END", 3, json!({})),
                says("ITEM", 7, json!({})).body(Value::Null),
                says("END", 7, json!({})).body(json!(2)),
            ],
        ),
        vector(
            "item-grease",
            Host,
            Open,
            "a head that will have fields one day",
            &frame(0x11, 7, "81 a6'grease' 01").body("c0"),
            says("ITEM", 7, json!({"grease": 1})).body(Value::Null),
        ),
        vector(
            "credit",
            Plugin,
            Open,
            "65536 bytes of items more",
            &frame(0x14, 7, "81 a1'n' ce00010000"),
            says("CREDIT", 7, json!({"n": 65_536})),
        ),
        vector(
            "credit-late",
            Plugin,
            Active,
            "for a call that is over: ignored",
            &frame(0x14, 1, "81 a1'n' 01"),
            says("CREDIT", 1, json!({"n": 1})),
        ),
        vector(
            "credit-never-opened",
            Plugin,
            Active,
            "for a call that never was: ignored",
            &frame(0x14, 99, "81 a1'n' 01"),
            says("CREDIT", 99, json!({"n": 1})),
        ),
        stream(
            "credit-after-cancel",
            Plugin,
            Open,
            "who has cancelled goes on paying for what it drops",
            [frame(0x13, 7, "80"), frame(0x14, 7, "81 a1'n' 11")]
                .iter()
                .flat_map(Frame::pieces)
                .collect(),
            vec![says("CANCEL", 7, json!({})), says("CREDIT", 7, json!({"n": 17}))],
        ),
    ];
    vectors.into_iter().map(|vector| vector.at(L2)).collect()
}

fn reverse() -> Vec<Valid> {
    let read = json!({"session": "s1", "call": "c1", "name": "fs_read", "args": {}});
    let vectors = [
        vector(
            "call-reverse",
            Host,
            Open,
            "a plugin calls its host for call 3; its ids are even",
            &frame(0x10, 4, "83 a6'method' ae'host.tool.call' a8'deadline' cd4e20 a6'parent' 03")
                .body(FS_READ),
            says("CALL", 4, json!({"method": "host.tool.call", "deadline": 20_000, "parent": 3}))
                .body(read.clone()),
        )
        .made_by(|| {
            written_at(Open, L3, |pair| {
                let call = Outgoing {
                    method: "host.tool.call",
                    deadline: Some(20_000),
                    parent: Some(CallId(3)),
                    body: bytes(FS_READ).into(),
                    ..Outgoing::default()
                };
                match pair.plugin.call(&call, NOW) {
                    Ok(_) => pair.plugin.outbox().take().to_vec(),
                    Err(_) => Vec::new(),
                }
            })
        }),
        vector(
            "call-reverse-background",
            Host,
            Active,
            "without parent; the grant has host.background",
            &frame(0x10, 2, "81 a6'method' ae'host.tool.call'").body(FS_READ),
            says("CALL", 2, json!({"method": "host.tool.call"})).body(read.clone()),
        ),
        vector(
            "call-reverse-scopes",
            Host,
            Open,
            "a plugin cannot narrow: its scopes are ignored",
            &frame(0x10, 4, "83 a6'method' ae'host.tool.call' a6'parent' 03 a6'scopes' 90")
                .body(FS_READ),
            says("CALL", 4, json!({"method": "host.tool.call", "parent": 3, "scopes": []}))
                .body(read),
        ),
        vector(
            "call-scopes",
            Plugin,
            Active,
            "the host narrows what this call may do; a scope of another form covers nothing",
            &frame(
                0x10,
                3,
                "82 a6'method' a9'tool.call' a6'scopes' 92 b4'host.tool.call[fs_*]' a1'?'",
            )
            .body(GREET),
            says(
                "CALL",
                3,
                json!({"method": "tool.call", "scopes": ["host.tool.call[fs_*]", "?"]}),
            )
            .body(json!({"name": "greet", "args": {"who": "Ada"}})),
        ),
        vector(
            "call-parent-of-host",
            Plugin,
            Open,
            "a host serves nobody: its parent is ignored",
            &frame(0x10, 9, "82 a6'method' a9'tool.call' a6'parent' 02").body(GREET),
            says("CALL", 9, json!({"method": "tool.call", "parent": 2}))
                .body(json!({"name": "greet", "args": {"who": "Ada"}})),
        ),
        vector(
            "call-trace",
            Plugin,
            Active,
            "whose trace it belongs to, and a name to know it by when it is sent again",
            &frame(
                0x10,
                3,
                "84 a6'method' a9'tool.call' a3'key' a4'9f3c' a7'attempt' 01 a5'trace' 81 a2'tp' \
                 d937'00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'",
            )
            .body(GREET),
            says(
                "CALL",
                3,
                json!({"method": "tool.call", "key": "9f3c", "attempt": 1,
                       "trace": {"tp": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}),
            )
            .body(json!({"name": "greet", "args": {"who": "Ada"}})),
        ),
        vector(
            "end-reverse",
            Plugin,
            Open,
            "the host's answer to call 2",
            &frame(0x12, 2, "80").body("81 a7'receipt' 81 a7'content' 90"),
            says("END", 2, json!({})).body(json!({"receipt": {"content": []}})),
        ),
        vector(
            "end-reverse-denied",
            Plugin,
            Open,
            "the host refuses call 2",
            &frame(
                0x12,
                2,
                "81 a3'err' 83 a4'code' b1'permission_denied' a6'reason' af'pb.scope_denied' \
                 a5'retry' a2'no'",
            ),
            says(
                "END",
                2,
                json!({"err": {"code": "permission_denied", "reason": "pb.scope_denied",
                               "retry": "no"}}),
            ),
        ),
        vector(
            "cancel-parent",
            Host,
            Open,
            "call 3 was cancelled, and so is what was called for it",
            &frame(0x13, 2, "81 a6'reason' a6'parent'"),
            says("CANCEL", 2, json!({"reason": "parent"})),
        )
        .made_by(|| {
            written_at(Open, L3, |pair| {
                frame(0x13, 3, "80")
                    .pieces()
                    .iter()
                    .for_each(|it| feed(&mut pair.plugin, &it.bytes));
                pair.plugin.outbox().take().to_vec()
            })
        }),
    ];
    vectors.into_iter().map(|vector| vector.at(L3)).collect()
}

fn input() -> Vec<Valid> {
    let vectors = [
        vector(
            "call-in",
            Plugin,
            Active,
            "items of the caller follow",
            &frame(0x10, 3, "82 a6'method' ac'sandbox.exec' a2'in' c3")
                .body("82 a3'box' a2'b1' a4'argv' 91 a3'cat'"),
            says("CALL", 3, json!({"method": "sandbox.exec", "in": true}))
                .body(json!({"box": "b1", "argv": ["cat"]})),
        )
        .made_by(|| {
            written_at(Active, L4, |pair| {
                let body = bytes("82 a3'box' a2'b1' a4'argv' 91 a3'cat'").into();
                let call =
                    Outgoing { method: "sandbox.exec", input: true, body, ..Outgoing::default() };
                match pair.host.call(&call, NOW) {
                    Ok(_) => pair.host.outbox().take().to_vec(),
                    Err(_) => Vec::new(),
                }
            })
        }),
        vector(
            "input",
            Plugin,
            Open,
            "an item of the caller",
            &frame(0x11, 7, "80").body("81 a5'stdin' c403'hi' 0a"),
            says("ITEM", 7, json!({})).raw("81 a5'stdin' c403'hi' 0a"),
        ),
        vector(
            "input-end",
            Plugin,
            Open,
            "the caller has nothing more to say",
            &frame(0x12, 7, "80"),
            says("END", 7, json!({})),
        )
        .made_by(|| {
            written_at(Open, L4, |pair| {
                pair.host.end_input(CallId(7));
                pair.host.outbox().take().to_vec()
            })
        }),
        vector(
            "input-late",
            Plugin,
            Active,
            "for a call that is over: ignored",
            &frame(0x11, 1, "80").body("c0"),
            says("ITEM", 1, json!({})).body(Value::Null),
        ),
        vector(
            "credit-for-input",
            Host,
            Open,
            "the callee pays too",
            &frame(0x14, 7, "81 a1'n' cd1000"),
            says("CREDIT", 7, json!({"n": 4096})),
        ),
        stream(
            "input-after-cancel",
            Plugin,
            Open,
            "what a caller still says after its CANCEL breaks nothing",
            [frame(0x13, 7, "80"), frame(0x11, 7, "80").body("c0"), frame(0x12, 7, "80")]
                .iter()
                .flat_map(Frame::pieces)
                .collect(),
            vec![
                says("CANCEL", 7, json!({})),
                says("ITEM", 7, json!({})).body(Value::Null),
                says("END", 7, json!({})),
            ],
        ),
    ];
    vectors.into_iter().map(|vector| vector.at(L4)).collect()
}

// ── How an implementation comes to write them ─────────────────────────────────

fn announce(name: &str, version: &str, sdk: Option<&str>) -> Announce {
    Announce {
        identity: Identity { sdk: sdk.map(Into::into), ..Identity::new(name, version) },
        features: Features::ASYNC,
        limits: Limits { frame: 1 << 20, window: 1 << 18, calls: 8 },
        ..Announce::default()
    }
}

/// What a plugin answers to a host's HELLO.
fn greeting(plugin: Announce) -> Vec<u8> {
    let mut host = Conversation::host(announce("plugbay", "0.1.0", None), NOW);
    let mut plugin = Conversation::plugin(plugin, NOW);
    carry(&mut host, &mut plugin);
    plugin.outbox().take().to_vec()
}

/// What somebody writes in a state; nothing if the state cannot be reached, which
/// then shows as a difference.
fn written(state: State, act: impl FnOnce(&mut Pair) -> Vec<u8>) -> Vec<u8> {
    written_at(state, L0, act)
}

fn written_at(
    state: State,
    level: super::Level,
    act: impl FnOnce(&mut Pair) -> Vec<u8>,
) -> Vec<u8> {
    pair(state, level).map(|mut pair| act(&mut pair)).unwrap_or_default()
}

/// What a plugin answers at once to a frame.
fn answer_of_plugin(state: State, frame: &Frame) -> Vec<u8> {
    written(state, |pair| {
        frame.pieces().iter().for_each(|piece| feed(&mut pair.plugin, &piece.bytes));
        pair.plugin.outbox().take().to_vec()
    })
}

fn called(
    state: State,
    method: &str,
    deadline: Option<u64>,
    idle: Option<u64>,
    body: &str,
) -> Vec<u8> {
    written(state, |pair| {
        let body = bytes(body).into();
        let call = Outgoing { method, deadline, idle, body, ..Outgoing::default() };
        match pair.host.call(&call, NOW) {
            Ok(_) => pair.host.outbox().take().to_vec(),
            Err(_) => Vec::new(),
        }
    })
}

fn ended(id: u32, outcome: Result<&str, Fault>) -> Vec<u8> {
    written(Open, |pair| match pair.plugin.end(CallId(id), outcome.map(|b| bytes(b).into())) {
        Ok(()) => pair.plugin.outbox().take().to_vec(),
        Err(_) => Vec::new(),
    })
}

fn noted(id: Option<u32>, note: &Note) -> Vec<u8> {
    written(Open, |pair| {
        pair.plugin.note(id.map(CallId), note);
        pair.plugin.outbox().take().to_vec()
    })
}
