//! Puts this supervisor under `plugbay-tck host`: orders as lines of JSON in, answers and what
//! happens as lines of JSON out, as `tck/HOST.md` describes them. Whoever wants their own
//! supervisor judged writes the same for it.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, BufRead, Write},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use bytes::Bytes;
use plugbay_supervisor::{
    Builder, CallError, Caller, Code, Fact, Fault, Item, PluginPlan, Reason, Registry, Reply,
    Request, ServiceCall, Supervisor,
    plan::{Idle, Level, Restart, RestartWhen, Timeouts},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, oneshot};

/// A line of the judge's.
#[derive(Deserialize)]
struct Order {
    id: u64,
    #[serde(flatten)]
    what: What,
}

#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
enum What {
    Host { plugins: Vec<Plugin>, times: Times },
    Start { plugin: String },
    Call(Call),
    Cancel { call: u64 },
    Stop { plugin: String },
}

#[derive(Deserialize)]
struct Plugin {
    name: String,
    argv: Vec<String>,
    env: BTreeMap<String, String>,
    dir: PathBuf,
    grant: Vec<String>,
}

/// In milliseconds.
#[derive(Deserialize)]
struct Times {
    start: u64,
    cancel: u64,
    stop: u64,
}

#[derive(Deserialize)]
struct Call {
    plugin: String,
    method: String,
    args: Option<Value>,
    deadline: u64,
    scopes: Option<Vec<String>>,
    /// Items to send, so many of so many zero bytes.
    input: Option<Input>,
    /// How many items to take before no more is read.
    take: Option<usize>,
    /// Milliseconds before each item is taken.
    #[serde(default)]
    gap: u64,
}

#[derive(Clone, Copy, Deserialize)]
struct Input {
    n: usize,
    bytes: usize,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (orders, mut inbox) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            match serde_json::from_str::<Order>(&line) {
                Ok(order) => drop(orders.send(order)),
                Err(error) => eprintln!("not an order: {error}"),
            }
        }
    });
    let out = Out::new();
    let Some(Order { id, what: What::Host { plugins, times } }) = inbox.recv().await else {
        eprintln!("the first order is `host`");
        return;
    };
    let host = Host::new(plugins, &times, &out);
    out.say(&json!({ "id": id, "ok": { "name": "plugbay-supervisor", "version": env!("CARGO_PKG_VERSION") } }));
    while let Some(order) = inbox.recv().await {
        host.obey(order, &out);
    }
    host.supervisor.shutdown().await;
}

/// One writer, so that nothing waits for whoever reads.
#[derive(Clone)]
struct Out(std::sync::mpsc::Sender<String>);

impl Out {
    fn new() -> Self {
        let (lines, queue) = std::sync::mpsc::channel::<String>();
        thread::spawn(move || {
            let mut out = io::stdout().lock();
            while let Ok(line) = queue.recv() {
                if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
                    return;
                }
            }
        });
        Self(lines)
    }

    fn say(&self, line: &Value) {
        // Fails only once nobody reads.
        self.0.send(line.to_string()).ok();
    }
}

struct Host {
    supervisor: Supervisor,
    registry: Registry,
    caller: Caller,
    /// What ends the calls that are open.
    open: Arc<Mutex<HashMap<u64, oneshot::Sender<()>>>>,
}

impl Host {
    fn new(plugins: Vec<Plugin>, times: &Times, out: &Out) -> Self {
        let mut builder = services(out);
        for plugin in plugins {
            builder = builder.plugin(plan(plugin, times));
        }
        let mut events = builder.events();
        let supervisor = builder.start().expect("the judge gives each plugin a name of its own");
        let told = out.clone();
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                if let Fact::Exited { plugin, reason, .. } = event.fact {
                    let (why, said) = (why(&reason), reason.to_string());
                    told.say(
                        &json!({ "event": "ended", "plugin": *plugin, "why": why, "said": said }),
                    );
                }
            }
        });
        let registry = supervisor.registry();
        Self { supervisor, registry, caller: Caller::trusted("judge"), open: Arc::default() }
    }

    fn obey(&self, order: Order, out: &Out) {
        let (id, out, supervisor) = (order.id, out.clone(), self.supervisor.clone());
        let (registry, caller) = (self.registry.clone(), self.caller.clone());
        match order.what {
            What::Host { .. } => out.say(&refused(id, "host comes once")),
            What::Start { plugin } => {
                tokio::spawn(async move {
                    out.say(&match supervisor.ready(&plugin).await {
                        Ok(()) => json!({ "id": id, "ok": provides(&registry, &caller, &plugin) }),
                        Err(error) => {
                            json!({ "id": id, "err": { "code": "unavailable" }, "said": error.to_string() })
                        }
                    });
                });
            }
            What::Call(call) => {
                let (cancel, cancelled) = oneshot::channel();
                let open = Arc::clone(&self.open);
                lock(&open).insert(id, cancel);
                tokio::spawn(async move {
                    let mut items = Vec::new();
                    let outcome = tokio::select! {
                        outcome = run(&registry, &caller, call, &mut items) => outcome,
                        // What is dropped is cancelled.
                        Ok(()) = cancelled => Err(Fault::new(Code::Cancelled)),
                    };
                    lock(&open).remove(&id);
                    out.say(&answer(id, outcome, items));
                });
            }
            What::Cancel { call } => {
                if let Some(cancel) = lock(&self.open).remove(&call) {
                    // Fails only if the call has just ended.
                    cancel.send(()).ok();
                }
                out.say(&json!({ "id": id, "ok": null }));
            }
            What::Stop { plugin } => {
                tokio::spawn(async move {
                    out.say(&match supervisor.stop(&plugin).await {
                        Ok(()) => json!({ "id": id, "ok": null }),
                        Err(error) => refused(id, &error.to_string()),
                    });
                });
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(id: u64, said: &str) -> Value {
    json!({ "id": id, "err": { "code": "invalid_argument" }, "said": said })
}

fn provides(registry: &Registry, caller: &Caller, plugin: &str) -> Vec<String> {
    let entries = registry.entries(caller).into_iter().filter(|it| it.plugin == plugin);
    let tools =
        registry.tools(caller).into_iter().filter(|it| it.plugin.as_deref() == Some(plugin));
    entries
        .map(|it| format!("{}.{}", it.kind, it.name))
        .chain(tools.map(|it| format!("tool.{}", it.name)))
        .collect()
}

/// One process for each start: what the judge wants to see of an end is that end.
fn plan(plugin: Plugin, times: &Times) -> PluginPlan {
    let mut plan = PluginPlan::new(plugin.name, plugin.argv, plugin.dir);
    let [start, cancel, stop] = [times.start, times.cancel, times.stop].map(Duration::from_millis);
    plan.env = plugin.env;
    plan.grant_scopes = plugin.grant;
    // The protocol is judged here; the walls have tests of their own.
    plan.sandbox.level = Level::None;
    plan.restart = Restart { when: RestartWhen::Never, ..Restart::default() };
    plan.idle = Idle { start_at_boot: false, stop_after: None };
    plan.limits.concurrency = 64;
    plan.limits.queue = 64;
    plan.limits.result_bytes = 8 << 20;
    plan.timeouts = Timeouts {
        hello: start,
        activate: start,
        cancel_grace: cancel,
        drain: stop,
        exit_grace: stop,
        ..Timeouts::default()
    };
    plan
}

/// What contract tck says of the suite as host.
fn services(out: &Out) -> Builder {
    let served = |out: &Out, call: &ServiceCall| {
        out.say(&json!({ "event": "served", "plugin": *call.plugin, "method": call.method }));
    };
    let echo = |out: &Out| {
        let out = out.clone();
        move |call: ServiceCall| {
            served(&out, &call);
            let value = Said::of(&call.body);
            async move { value.map_err(|why| Fault::new(Code::InvalidArgument).message(&why)) }
        }
    };
    let (wait, deny) = (out.clone(), out.clone());
    Supervisor::builder()
        .service("host.tck.echo", echo(out))
        .service("host.tck.named", echo(out))
        .service("host.tck.wait", move |call| {
            served(&wait, &call);
            std::future::pending::<Result<Said, Fault>>()
        })
        .service("host.tck.deny", move |call| {
            served(&deny, &call);
            async { Err::<Said, _>(Fault::new(Code::NotFound).because("tck.denied")) }
        })
}

async fn run(
    registry: &Registry,
    caller: &Caller,
    call: Call,
    items: &mut Vec<Value>,
) -> Result<Value, Fault> {
    let mut request = match &call.args {
        Some(args) => Request::new(call.plugin, call.method, args),
        None => Request::encoded(call.plugin, call.method, Bytes::new()),
    };
    request = request.deadline(Duration::from_millis(call.deadline));
    if let Some(scopes) = call.scopes {
        request = request.scopes(scopes);
    }
    if call.input.is_some() {
        request = request.with_input();
    }
    let as_fault = |error: CallError| Fault::from(&error);
    let mut reply = registry.request(caller, request).await.map_err(as_fault)?;
    if let (Some(input), Some(mut sink)) = (call.input, reply.input()) {
        tokio::spawn(async move {
            for _ in 0..input.n {
                // What the plugin does not take any more, its result says.
                if sink.send(&Binary(vec![0; input.bytes])).await.is_err() {
                    return;
                }
            }
            sink.end();
        });
    }
    take(&mut reply, call.take, call.gap, items).await?;
    let result = reply.result().await.map_err(as_fault)?;
    decode(&result)
}

/// Takes the items, or so many of them and then waits to be cancelled.
async fn take(
    reply: &mut Reply,
    most: Option<usize>,
    gap: u64,
    items: &mut Vec<Value>,
) -> Result<(), Fault> {
    while most.is_none_or(|most| items.len() < most) {
        if 0 < gap {
            tokio::time::sleep(Duration::from_millis(gap)).await;
        }
        match reply.next().await {
            Some(item) => items.push(decode(&item)?),
            None => return Ok(()),
        }
    }
    std::future::pending().await
}

fn decode(item: &Item) -> Result<Value, Fault> {
    let decoded = item.decode::<Said>();
    decoded.map(|said| said.0).map_err(|why| Fault::new(Code::Internal).message(&why))
}

fn answer(id: u64, outcome: Result<Value, Fault>, items: Vec<Value>) -> Value {
    let mut line = Map::from_iter([("id".to_owned(), id.into())]);
    match outcome {
        Ok(value) => drop(line.insert("ok".into(), value)),
        Err(fault) => {
            let said = fault.text().map(|text| text.to_string());
            let err = json!({ "code": fault.code.as_str(), "reason": fault.reason });
            line.insert("err".into(), err);
            line.insert("said".into(), said.into());
        }
    }
    line.insert("items".into(), items.into());
    line.into()
}

/// Why a process ended, in the judge's words.
fn why(reason: &Reason) -> &'static str {
    match reason {
        Reason::StoppedByOperator | Reason::Shutdown => "asked",
        Reason::Echo
        | Reason::NotAFrame { .. }
        | Reason::Violation { .. }
        | Reason::VersionUnsupported { .. }
        | Reason::ManifestDiffers { .. } => "protocol",
        Reason::ClosedWith { .. } => "closed",
        Reason::ActivateFailed { .. } => "refused",
        Reason::NoHello { alive: true, .. }
        | Reason::ActivateTimeout { .. }
        | Reason::CallStuck { .. }
        | Reason::Silent { .. } => "silent",
        Reason::NoHello { .. }
        | Reason::ClosedStdin
        | Reason::ClosedStdout
        | Reason::Exited { .. }
        | Reason::Signalled { .. } => "exited",
        _ => "other",
    }
}

/// Any MessagePack value as JSON: of binary it says how much and its SHA-256.
struct Said(Value);

impl Said {
    fn of(body: &Bytes) -> Result<Self, String> {
        Item(body.clone()).decode()
    }
}

impl Serialize for Said {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Said {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Visitor).map(Self)
    }
}

struct Visitor;

impl<'de> de::Visitor<'de> for Visitor {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, b: bool) -> Result<Value, E> {
        Ok(b.into())
    }

    fn visit_i64<E>(self, n: i64) -> Result<Value, E> {
        Ok(n.into())
    }

    fn visit_u64<E>(self, n: u64) -> Result<Value, E> {
        Ok(n.into())
    }

    fn visit_f64<E>(self, n: f64) -> Result<Value, E> {
        Ok(n.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Value, E> {
        let digest = Sha256::digest(bytes);
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(json!({ "len": bytes.len(), "sha256": hex }))
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Said(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut pairs: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, Said(value))) = pairs.next_entry::<String, _>()? {
            map.insert(key, value);
        }
        Ok(map.into())
    }
}

/// MessagePack's binary.
struct Binary(Vec<u8>);

impl Serialize for Binary {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}
