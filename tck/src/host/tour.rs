//! What a host is asked to do with a plugin: the steps of a tour through contract tck, each with the
//! outcome that is due if the plugin keeps every rule.

use serde_json::{Map, Value as Json, json};
use sha2::{Digest, Sha256};

use crate::value::hex;

/// What the plugins provide; what a mutant provides beyond that is not to be offered.
#[rustfmt::skip]
pub const ENTRIES: [&str; 12] = [
    "tck.echo", "tck.sleep", "tck.stubborn", "tck.spin", "tck.fail", "tck.note", "tck.stray", "tck.state",
    "tck.emit", "tck.reverse", "tck.sink", "tck.pipe",
];

/// What the plugins may call at their host. `host.background` is not among it.
pub const GRANT: [&str; 4] =
    ["host.tck.echo", "host.tck.wait", "host.tck.deny", "host.tck.named[a_*]"];

/// How a call ends that nothing is wrong with.
#[derive(Clone, Debug, PartialEq)]
pub enum Due {
    Is(Json),
    /// Well, with whatever result.
    Well,
    Fails(&'static str, Option<&'static str>),
}

/// One call.
#[derive(Clone, Debug)]
pub struct Ask {
    pub method: String,
    pub args: Option<Json>,
    /// Milliseconds; by default [`DEADLINE`].
    pub deadline: u64,
    pub scopes: Option<Vec<&'static str>>,
    pub input: Option<(usize, usize)>,
    pub take: Option<usize>,
    /// Milliseconds before each item is taken.
    pub gap: u64,
    pub due: Due,
    /// How it ends if it does so before it is cancelled.
    pub early: Option<Due>,
    pub items: Vec<Json>,
}

/// How long a call may take that should take no time.
pub const DEADLINE: u64 = 5000;

/// What is done with the calls of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// They are awaited.
    Await,
    /// They are cancelled after so many milliseconds, and not before the sibling has answered.
    Cancel(u64),
    /// They are cancelled in the same breath.
    CancelAtOnce,
}

/// Some calls at once.
#[derive(Clone, Debug)]
pub struct Step {
    pub name: &'static str,
    /// The entries of contract tck without which it is left out.
    pub needs: &'static [&'static str],
    pub asks: Vec<Ask>,
    pub way: Way,
    /// Which services of the host may be reached meanwhile, and how often.
    pub served: Option<(&'static str, usize)>,
}

impl Ask {
    fn new(method: &str, args: Json, due: Due) -> Self {
        Self {
            method: format!("tck.{method}"),
            args: Some(args),
            deadline: DEADLINE,
            scopes: None,
            input: None,
            take: None,
            gap: 0,
            due,
            early: None,
            items: Vec::new(),
        }
    }

    fn input(self, n: usize, bytes: usize) -> Self {
        Self { input: Some((n, bytes)), ..self }
    }

    fn items(self, items: impl IntoIterator<Item = Json>) -> Self {
        Self { items: items.into_iter().collect(), ..self }
    }

    fn take(self, n: usize) -> Self {
        Self { take: Some(n), ..self }
    }

    fn gap(self, gap: u64) -> Self {
        Self { gap, ..self }
    }

    fn deadline(self, deadline: u64) -> Self {
        Self { deadline, ..self }
    }

    fn scopes(self, scopes: &[&'static str]) -> Self {
        Self { scopes: Some(scopes.to_vec()), ..self }
    }

    /// The order for it.
    pub fn order(&self, plugin: &str, scale: f64) -> Map<String, Json> {
        let mut order = Map::new();
        order.insert("plugin".into(), plugin.into());
        order.insert("method".into(), self.method.clone().into());
        order.insert("deadline".into(), ms(self.deadline, scale).into());
        if let Some(args) = &self.args {
            order.insert("args".into(), args.clone());
        }
        if let Some(scopes) = &self.scopes {
            order.insert("scopes".into(), scopes.clone().into());
        }
        if let Some((n, bytes)) = self.input {
            order.insert("input".into(), json!({ "n": n, "bytes": bytes }));
        }
        if let Some(take) = self.take {
            order.insert("take".into(), take.into());
        }
        if 0 < self.gap {
            order.insert("gap".into(), self.gap.into());
        }
        order
    }
}

/// A time in milliseconds, stretched for slow machines.
pub fn ms(time: u64, scale: f64) -> u64 {
    (time as f64 * scale) as u64
}

/// How an adapter says binary.
fn binary(bytes: &[u8]) -> Json {
    json!({ "len": bytes.len(), "sha256": hex(&Sha256::digest(bytes)) })
}

/// The items of `tck.emit`.
fn emitted(n: usize, size: usize) -> impl Iterator<Item = Json> {
    (0..n).map(move |i| json!({ "i": i, "d": binary(&vec![(i % 256) as u8; size]) }))
}

/// What a sibling is asked, and answers.
pub fn greeting(words: &str) -> Ask {
    let args = json!({ "to": words });
    Ask::new("echo", args.clone(), Due::Is(args))
}

/// A call that takes so many milliseconds.
pub fn sleep(ms: u64) -> Ask {
    Ask::new("sleep", json!({ "ms": ms }), Due::Is(json!({})))
}

/// A reverse call that the host has refused: the plugin may not make it.
pub fn refused() -> Json {
    json!({ "code": "permission_denied", "reason": "pb.scope_denied", "retry": "no" })
}

fn step(name: &'static str, needs: &'static [&'static str], asks: impl Into<Vec<Ask>>) -> Step {
    Step { name, needs, asks: asks.into(), way: Way::Await, served: None }
}

impl Step {
    fn way(self, way: Way) -> Self {
        Self { way, ..self }
    }

    fn served(self, method: &'static str, times: usize) -> Self {
        Self { served: Some((method, times)), ..self }
    }
}

/// The whole tour. What is random in it follows from the seed.
pub fn steps(random: &mut fastrand::Rng) -> Vec<Step> {
    let text: String = (0..random.usize(..40_000)).map(|_| random.alphanumeric()).collect();
    let value = json!({ "text": text, "list": [null, true, random.u32(..), -1, { "π": "é\n" }] });
    let size = random.usize(10_000..30_000);
    let nothing = || json!({});
    let denied = Due::Fails("permission_denied", Some("pb.scope_denied"));
    let reverse = |args: Json, results: Json| {
        Ask::new("reverse", args, Due::Is(json!({ "results": results })))
    };
    let throw = || Ask::new("fail", json!({ "throw": true }), Due::Fails("internal", None));
    let cancelled = || Due::Fails("cancelled", None);
    let note =
        |topic: &str| json!({ "topic": topic, "count": 3, "msg": "a word", "event": "tck.word" });
    let zeros = |n: usize, bytes: usize| {
        let all = vec![0; n * bytes];
        json!({ "n": n, "bytes": all.len(), "sha256": hex(&Sha256::digest(&all)) })
    };
    vec![
        step("echo", &["echo"], [Ask::new("echo", value.clone(), Due::Is(value))]),
        step(
            "echo-nothing",
            &["echo"],
            [Ask { args: None, ..Ask::new("echo", nothing(), Due::Is(Json::Null)) }],
        ),
        step(
            "fail",
            &["fail"],
            [Ask::new(
                "fail",
                json!({ "code": "not_found", "reason": "tck.missing", "msg": "not here" }),
                Due::Fails("not_found", Some("tck.missing")),
            )],
        ),
        step(
            "fail-later",
            &["fail"],
            [Ask::new(
                "fail",
                json!({ "code": "unavailable", "retry": "safe", "after": 10 }),
                Due::Fails("unavailable", None),
            )],
        ),
        step("throw", &["fail"], [throw(), throw()]),
        step(
            "unknown",
            &[],
            [Ask::new(
                "nothing",
                nothing(),
                Due::Fails("unimplemented", Some("pb.unknown_method")),
            )],
        ),
        step(
            "unknown-case",
            &["echo"],
            [Ask::new("ECHO", nothing(), Due::Fails("unimplemented", Some("pb.unknown_method")))],
        ),
        step(
            "bad-note",
            &["note"],
            [Ask::new("note", nothing(), Due::Fails("invalid_argument", Some("pb.bad_body")))],
        ),
        step("progress", &["note"], [Ask::new("note", note("progress"), Due::Is(json!({})))]),
        step("log", &["note"], [Ask::new("note", note("log"), Due::Is(json!({})))]),
        step(
            "print",
            &["stray"],
            [Ask::new(
                "stray",
                json!({ "text": "words on stdout", "via": "print" }),
                Due::Is(json!({})),
            )],
        ),
        step(
            "flood-stderr",
            &["stray"],
            [Ask::new(
                "stray",
                json!({ "text": "words", "via": "stderr", "bytes": 300_000 }),
                Due::Is(json!({})),
            )],
        ),
        step(
            "emit",
            &["emit"],
            [Ask::new("emit", json!({ "n": 20, "size": 50 }), Due::Is(json!({ "n": 20 })))
                .items(emitted(20, 50))],
        ),
        step(
            "emit-none",
            &["emit"],
            [Ask::new("emit", json!({ "n": 0 }), Due::Is(json!({ "n": 0 })))],
        ),
        step(
            "emit-many",
            &["emit"],
            [Ask::new("emit", json!({ "n": 1000 }), Due::Is(json!({ "n": 1000 })))
                .items(std::iter::repeat_n(Json::Null, 1000))],
        ),
        step(
            "emit-large",
            &["emit"],
            [Ask::new("emit", json!({ "n": 60, "size": size }), Due::Is(json!({ "n": 60 })))
                .items(emitted(60, size))],
        ),
        step(
            "emit-huge",
            &["emit"],
            [Ask::new("emit", json!({ "n": 2, "size": 700_000 }), Due::Is(json!({ "n": 2 })))
                .items(emitted(2, 700_000))],
        ),
        step(
            "emit-two",
            &["emit"],
            [
                Ask::new("emit", json!({ "n": 30, "size": 3000 }), Due::Is(json!({ "n": 30 })))
                    .items(emitted(30, 3000)),
                Ask::new("emit", json!({ "n": 30, "size": 200 }), Due::Is(json!({ "n": 30 })))
                    .items(emitted(30, 200)),
            ],
        ),
        step(
            "emit-slow",
            &["emit"],
            [Ask::new("emit", json!({ "n": 30, "size": 30_000 }), Due::Is(json!({ "n": 30 })))
                .items(emitted(30, 30_000))
                .gap(3)],
        ),
        step(
            "emit-fail",
            &["emit"],
            [Ask::new(
                "emit",
                json!({ "n": 5, "size": 200, "fail_at": 3 }),
                Due::Fails("unavailable", Some("tck.fail_at")),
            )
            .items(emitted(3, 200))],
        ),
        step(
            "sink",
            &["sink"],
            [Ask::new("sink", nothing(), Due::Is(zeros(10, 1000))).input(10, 1000)],
        ),
        step(
            "sink-much",
            &["sink"],
            [Ask::new("sink", nothing(), Due::Is(zeros(40, 40_000)))
                .input(40, 40_000)
                .deadline(2500)],
        ),
        step(
            "sink-part",
            &["sink"],
            [Ask::new("sink", json!({ "stop_at": 2 }), Due::Is(zeros(2, 5000))).input(50, 5000)],
        ),
        step("sink-nothing", &["sink"], [Ask::new("sink", nothing(), Due::Is(zeros(0, 0)))]),
        step(
            "pipe",
            &["pipe"],
            [Ask::new("pipe", nothing(), Due::Is(json!({ "n": 30 })))
                .input(30, 9000)
                .items(std::iter::repeat_n(binary(&[0; 9000]), 30))],
        ),
        step(
            "reverse",
            &["reverse"],
            [reverse(
                json!({ "method": "host.tck.echo", "args": { "q": [1] }, "n": 2 }),
                json!([{ "ok": { "q": [1] } }, { "ok": { "q": [1] } }]),
            )],
        )
        .served("host.tck.echo", 2),
        step(
            "reverse-many",
            &["reverse"],
            [reverse(
                json!({ "method": "host.tck.echo", "args": "q", "n": 20, "parallel": 4 }),
                vec![json!({ "ok": "q" }); 20].into(),
            )],
        )
        .served("host.tck.echo", 20),
        step(
            "reverse-deny",
            &["reverse"],
            [reverse(
                json!({ "method": "host.tck.deny" }),
                json!([{ "err": { "code": "not_found", "reason": "tck.denied", "retry": "no" } }]),
            )],
        )
        .served("host.tck.deny", 1),
        step(
            "reverse-glob",
            &["reverse"],
            [reverse(
                json!({ "method": "host.tck.named", "args": { "name": "a_1" } }),
                json!([{ "ok": { "name": "a_1" } }]),
            )],
        )
        .served("host.tck.named", 1),
        step(
            "reverse-other",
            &["reverse"],
            [reverse(
                json!({ "method": "host.tck.named", "args": { "name": "b_1" } }),
                json!([{ "err": refused() }]),
            )],
        ),
        step(
            "reverse-ungranted",
            &["reverse"],
            [Ask::new(
                "reverse",
                json!({ "method": "host.tool.call", "args": { "name": "x" } }),
                denied.clone(),
            )],
        ),
        step(
            "narrow",
            &["reverse"],
            [Ask::new("reverse", json!({ "method": "host.tck.echo" }), denied.clone()).scopes(&[])],
        ),
        step(
            "background",
            &["reverse"],
            [Ask::new("reverse", json!({ "method": "host.tck.echo", "detach": true }), denied)],
        ),
        step("spin", &["spin"], [Ask::new("spin", json!({ "ms": 50 }), Due::Is(json!({})))]),
        step("many", &["sleep"], vec![sleep(20); 40]),
        step("beside", &["sleep", "echo"], [sleep(200), greeting("beside")]),
        step(
            "deadline",
            &["sleep"],
            [Ask { due: Due::Fails("deadline_exceeded", None), ..sleep(60_000).deadline(300) }],
        ),
        step("cancel", &["sleep"], [Ask { due: cancelled(), ..sleep(60_000) }])
            .way(Way::Cancel(10)),
        step("cancel-at-once", &["sleep"], [Ask { due: cancelled(), ..sleep(60_000) }])
            .way(Way::CancelAtOnce),
        step(
            "cancel-stubborn",
            &["stubborn"],
            [Ask {
                early: Some(Due::Is(json!({}))),
                ..Ask::new("stubborn", json!({ "ms": 250 }), cancelled())
            }],
        )
        .way(Way::Cancel(10)),
        step(
            "cancel-stream",
            &["emit"],
            [Ask::new("emit", json!({ "size": 300 }), cancelled()).take(3)],
        )
        .way(Way::Cancel(150)),
        step(
            "cancel-reverse",
            &["reverse"],
            [Ask::new("reverse", json!({ "method": "host.tck.wait" }), cancelled())],
        )
        .way(Way::Cancel(30))
        .served("host.tck.wait", 1),
        step("state", &["state"], [Ask::new("state", nothing(), Due::Well)]),
        step(
            "child",
            &["stray"],
            [Ask::new(
                "stray",
                json!({ "text": "words", "via": "child", "stay": true }),
                Due::Well,
            )],
        ),
        step("echo-last", &["echo"], [greeting("last")]),
    ]
}
