//! From the events of a conversation to the author's functions and back.
//!
//! The engine performs no I/O. Whoever drives it, the I/O task or a host in memory,
//! feeds the conversation and then calls [`Engine::turn`].

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{self, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use plugbay_protocol::{
    CallId, Code, Event, Fault, Incoming, Over, Retry, body_fields, check_body,
    contract::Deactivate, read_str,
};
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    Context, Entry, Method,
    activation::{Activation, optional},
    body,
    call::{Call, Inbox},
    plugin::{Offer, OnActivate, OnDeactivate},
    reply::Outcome,
    tool::{Running, Start, Tool},
    wire::{Phase, Wire},
};

type Work = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A plugin at work.
pub(crate) struct Engine<S> {
    pub(crate) wire: Arc<Wire>,
    life: Arc<Life<S>>,
    tools: BTreeMap<String, Tool<S>>,
    methods: BTreeMap<String, Served<S>>,
    /// Whether a call is tried at once, before a task is made for it. Most calls never
    /// wait, and on a runtime with one thread nothing is gained by letting them.
    at_once: bool,
    over: Option<Over>,
    /// When this turn began.
    now: Instant,
}

/// All that an author has written.
pub(crate) struct Author<S> {
    pub(crate) tools: Vec<Tool<S>>,
    pub(crate) entries: Vec<Entry<S>>,
    pub(crate) methods: Vec<Method<S>>,
    pub(crate) on_activate: OnActivate<S>,
    pub(crate) on_deactivate: Option<OnDeactivate<S>>,
}

/// A method, and the entry that it comes and goes with: its kind and name.
struct Served<S> {
    method: Method<S>,
    of: Option<(String, String)>,
}

/// What the lifecycle calls share with the engine.
struct Life<S> {
    offers: Vec<Offer>,
    on_activate: OnActivate<S>,
    on_deactivate: Option<OnDeactivate<S>>,
    active: Mutex<Option<Active<S>>>,
    /// The author has said goodbye to this activation, or tried to.
    parted: AtomicBool,
}

struct Active<S> {
    activation: Arc<Activation>,
    state: Arc<S>,
}

impl<S> Clone for Active<S> {
    fn clone(&self) -> Self {
        Self { activation: Arc::clone(&self.activation), state: Arc::clone(&self.state) }
    }
}

impl<S: Send + Sync + 'static> Engine<S> {
    pub(crate) fn new(
        wire: Arc<Wire>,
        author: Author<S>,
        offers: Vec<Offer>,
        at_once: bool,
    ) -> Self {
        let Author { tools, entries, methods, on_activate, on_deactivate } = author;
        let tools = tools.into_iter().map(|tool| (tool.provide.name.clone(), tool)).collect();
        let of_none = methods.into_iter().map(|method| Served { method, of: None });
        let of_entries =
            entries.into_iter().flat_map(|Entry { kind, name, needs, methods, .. }| {
                methods.into_iter().map(move |method| Served {
                    method: method.needs(needs),
                    of: Some((kind.clone(), name.clone())),
                })
            });
        let methods = of_none.chain(of_entries);
        let life = Life {
            offers,
            on_activate,
            on_deactivate,
            active: Mutex::new(None),
            parted: AtomicBool::new(true),
        };
        Self {
            wire,
            life: Arc::new(life),
            tools,
            methods: methods.map(|it| (it.method.name.clone(), it)).collect(),
            at_once,
            over: None,
            now: Instant::now(),
        }
    }

    /// Works off what the conversation has to say. Returns how it ended, once it has.
    pub(crate) fn turn(&mut self, now: Instant) -> Option<&Over> {
        // What came in one read came at one moment.
        self.now = now;
        loop {
            // A statement of its own, so that the lock is gone before anything runs.
            let event = self.wire.lock().conversation.poll();
            match event {
                None => return self.over.as_ref(),
                Some(Event::Called(incoming)) => self.called(incoming),
                Some(Event::CancelRequested { id, reason }) => {
                    self.about(id, |call| call.cancel(reason.into()));
                }
                Some(Event::Item { id, body, size }) => self.item(id, body, size),
                Some(Event::InputEnded { id }) => {
                    self.about(id, |call| call.inbox.iter().for_each(|inbox| inbox.end()));
                }
                Some(Event::Credit { id }) => self.about(id, Call::go_on),
                Some(Event::Ended { id, outcome }) => self.wire.answered(id, outcome),
                Some(Event::Released { id }) => self.wire.released(id),
                Some(Event::Over(over)) => {
                    self.give_all_up();
                    self.over = Some(over);
                }
                // The rest is for hosts.
                Some(_) => {}
            }
        }
    }

    /// Tells a call something, if its code is still running.
    fn about(&self, id: CallId, tell: impl FnOnce(&Call)) {
        let call = self.wire.lock().open.get(&id).cloned();
        if let Some(call) = call {
            tell(&call);
        }
    }

    fn item(&self, id: CallId, body: Bytes, size: u32) {
        if id.0.is_multiple_of(2) {
            // One of the host's answer to a call of ours, where nobody looks at them.
            return self.wire.taken(id, size);
        }
        // Without credit for those that nobody takes. [R-ST-20]
        self.about(id, |call| {
            if let Some(inbox) = &call.inbox {
                inbox.push(body, size);
            }
        });
    }

    /// The host has gone: what runs is broken off, and then the author says goodbye.
    pub(crate) fn give_all_up(&self) {
        self.wire.give_all_up();
        if self.life.on_deactivate.is_none() || self.life.parted.load(Ordering::Acquire) {
            return;
        }
        let life = Arc::clone(&self.life);
        let wire = Arc::clone(&self.wire);
        wire.lock().farewell = true;
        let mut work = Guarded::new(async move {
            wire.still().await;
            life.part().await;
            Ok(NO_ARGS)
        });
        let wire = Arc::clone(&self.wire);
        tokio::spawn(async move {
            // What a panic said is on stderr, and nobody waits for more.
            let _outcome = (&mut work).await;
            let mut inner = wire.lock();
            inner.farewell = false;
            inner.wake();
        });
    }

    fn called(&self, incoming: Incoming) {
        match &*incoming.method {
            "tool.call" if !self.tools.is_empty() => self.tool_call(&incoming),
            "plugin.activate" => self.activate(&incoming),
            "plugin.deactivate" => self.deactivate(&incoming),
            _ => self.method_call(&incoming),
        }
    }

    fn method_call(&self, incoming: &Incoming) {
        let unknown = || Fault::new(Code::Unimplemented).because("pb.unknown_method");
        let served = self.methods.get(&*incoming.method).filter(|served| {
            self.wire.lock().conversation.features().contains(served.method.needs)
        });
        let Some((served, active)) = served.zip(self.life.active().clone()) else {
            return self.wire.end(incoming.id, Err(unknown()));
        };
        let provided = |(kind, name): &(String, String)| active.activation.provides(kind, name);
        if !served.of.as_ref().is_none_or(provided) {
            return self.wire.end(incoming.id, Err(unknown()));
        }
        if let Err(why) = check_body(&incoming.body) {
            return self.wire.end(incoming.id, Err(body::bad_body(why)));
        }
        let inbox = served.method.takes.then(|| Inbox::new(incoming.input));
        self.start(&served.method.start, incoming, active, incoming.body.clone(), inbox);
    }

    fn start(
        &self,
        start: &Start<S>,
        incoming: &Incoming,
        active: Active<S>,
        args: Bytes,
        inbox: Option<Box<Inbox>>,
    ) {
        let call = self.call(incoming, active.activation, inbox);
        let context = Context { call: Arc::clone(&call), state: active.state };
        match start(context, args) {
            Running::Async(work) => self.run(call, work, true),
            Running::Plain(work) => run_plain(call, work),
        }
    }

    fn tool_call(&self, incoming: &Incoming) {
        match self.find(incoming) {
            Err(fault) => self.wire.end(incoming.id, Err(fault)),
            Ok((tool, active, args)) => self.start(&tool.start, incoming, active, args, None),
        }
    }

    /// Which tool, under which activation, with which arguments.
    fn find(&self, incoming: &Incoming) -> Result<(&Tool<S>, Active<S>, Bytes), Fault> {
        let [name, args] = body_fields(&incoming.body, ["name", "args"]).map_err(body::bad_body)?;
        let name = name.map_or(Some(""), read_str);
        let name = name.ok_or_else(|| body::bad_body("name: it is no string"))?;
        let active = self.life.active().clone();
        // The gate has let the call through, so there is one.
        let active = active.ok_or_else(|| Fault::new(Code::Internal))?;
        let tool = self.tools.get(name).filter(|_| active.activation.provides("tool", name));
        let tool = tool.ok_or_else(|| self.no_such_tool(name, &active.activation))?;
        // No arguments, or nil, mean the same as no argument in a map.
        let args = args.filter(|args| *args != [0xc0]);
        Ok((tool, active, args.map_or(NO_ARGS, |args| incoming.body.slice_ref(args))))
    }

    fn no_such_tool(&self, name: &str, activation: &Activation) -> Fault {
        let names = self.tools.keys().map(String::as_str);
        let names: Vec<&str> = names.filter(|name| activation.provides("tool", name)).collect();
        let text = format!("no tool {name:?} here; there is {}", names.join(", "));
        Fault::new(Code::NotFound).because("pb.unknown_tool").message(&text)
    }

    fn activate(&self, incoming: &Incoming) {
        let serving = self.wire.serve();
        let activation = match Activation::read(&incoming.body, &self.wire, incoming.id) {
            Ok(activation) => Arc::new(activation),
            Err(fault) => return self.wire.end(incoming.id, Err(fault)),
        };
        self.wire.lock().conversation.grant(activation.grant().to_vec());
        let life = Arc::clone(&self.life);
        let call = self.call(incoming, Arc::clone(&activation), None);
        let features = self.wire.lock().conversation.features();
        let work = Box::pin(async move {
            let made = (life.on_activate)(Arc::clone(&activation)).await;
            let state = made.map_err(|e| e.into_fault(Code::FailedPrecondition))?;
            let narrowed = activation.is_narrowed();
            let offered = |offer: &&Offer| {
                offer.suits(features) && activation.provides(&offer.kind, &offer.name)
            };
            let provides =
                narrowed.then(|| life.offers.iter().filter(offered).map(|it| &it.entry).collect());
            let answer = body::encode(&Activated { provides }, 1).map_err(body::bad_body)?;
            *life.active() = Some(Active { activation, state: Arc::new(state) });
            life.parted.store(false, Ordering::Release);
            serving.keep();
            Ok(answer)
        });
        self.run(call, work, true);
    }

    /// Drains: waits for the open calls, and only then gives up the state. \[R-LC-09\]
    fn deactivate(&self, incoming: &Incoming) {
        let asked = body_fields(&incoming.body, ["if_idle"]).map_err(body::bad_body).and_then(
            |[if_idle]| optional(if_idle).map_err(|why| body::bad_body(format!("if_idle: {why}"))),
        );
        let asked = asked.map(|if_idle| Deactivate { if_idle });
        match asked {
            Err(fault) => self.wire.end(incoming.id, Err(fault)),
            Ok(Deactivate { if_idle: true }) if !self.wire.is_quiet() => {
                let busy = Fault::new(Code::FailedPrecondition).because("pb.busy");
                self.wire.end(incoming.id, Err(busy.retry(Retry::Safe)));
            }
            Ok(_) => {
                let life = Arc::clone(&self.life);
                let none = Activation::none(&self.wire, incoming.id);
                let call = self.call(incoming, Arc::new(none), None);
                let given_up = Arc::clone(&call);
                self.wire.turn(Phase::Draining);
                let work = Box::pin(async move {
                    let wire = &given_up.wire;
                    tokio::select! {
                        biased;
                        () = wire.quiet() => {}
                        cause = given_up.given_up() => {
                            wire.turn(Phase::Serving);
                            return Err(cause.fault());
                        }
                    }
                    life.part().await;
                    // What the farewell has begun ends here as well.
                    wire.settle().await;
                    Ok(NO_ARGS)
                });
                // Once the farewell has begun it is not broken off.
                self.run(call, work, false);
            }
        }
    }

    fn call(
        &self,
        incoming: &Incoming,
        activation: Arc<Activation>,
        inbox: Option<Box<Inbox>>,
    ) -> Arc<Call> {
        let budget = incoming.deadline.map(Duration::from_millis);
        let deadline = budget.and_then(|budget| self.now.checked_add(budget));
        Arc::new(Call::new(incoming, deadline, Arc::clone(&self.wire), activation, inbox))
    }

    /// Runs async work, at once as far as it goes without waiting.
    fn run(&self, call: Arc<Call>, work: Work, droppable: bool) {
        let mut work = Guarded(Some(work));
        if self.at_once
            && let Poll::Ready(outcome) =
                Pin::new(&mut work).poll(&mut task::Context::from_waker(Waker::noop()))
        {
            return self.wire.end(call.id, outcome);
        }
        self.wire.lock().open.insert(call.id, Arc::clone(&call));
        tokio::spawn(async move {
            let outcome = if droppable {
                tokio::select! {
                    biased;
                    outcome = &mut work => outcome,
                    cause = call.given_up() => {
                        work.abandon();
                        Err(cause.fault())
                    }
                }
            } else {
                work.await
            };
            call.wire.end(call.id, outcome);
        });
    }
}

/// Runs blocking work on a thread of its own.
fn run_plain(call: Arc<Call>, work: Box<dyn FnOnce() -> Outcome + Send>) {
    call.wire.lock().open.insert(call.id, Arc::clone(&call));
    let spare = Arc::clone(&call);
    let spawned = catch_unwind(AssertUnwindSafe(|| {
        tokio::task::spawn_blocking(move || {
            let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(panicked()));
            call.wire.end(call.id, outcome);
        })
    }));
    if spawned.is_err() {
        let none = Fault::new(Code::ResourceExhausted).retry(Retry::Maybe);
        spare.wire.end(spare.id, Err(none.message("there is no thread for it")));
    }
}

impl<S> Life<S> {
    /// Says goodbye, once for each activation, and drops what it made.
    async fn part(&self) {
        let state = self.active().as_ref().map(|active| Arc::clone(&active.state));
        if let (Some(goodbye), Some(state)) = (&self.on_deactivate, state)
            && !self.parted.swap(true, Ordering::AcqRel)
        {
            goodbye(state).await;
        }
        // Out of the lock before the author's Drop runs.
        let gone = self.active().take();
        drop(gone);
    }

    fn active(&self) -> std::sync::MutexGuard<'_, Option<Active<S>>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer to `plugin.activate`.
#[derive(Serialize)]
struct Activated<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    provides: Option<Vec<&'a Value>>,
}

/// An empty map.
const NO_ARGS: Bytes = Bytes::from_static(body::EMPTY_MAP);

/// What the panic said is on stderr, where it belongs. \[R-ER-08\]
fn panicked() -> Fault {
    let text = "the plugin panicked; its stderr has the details";
    Fault::new(Code::Internal).retry(Retry::Maybe).message(text)
}

/// A future of the author's: a panic in it, or in its drop, is an outcome.
pub(crate) struct Guarded(Option<Work>);

impl Guarded {
    pub(crate) fn new(work: impl Future<Output = Outcome> + Send + 'static) -> Self {
        Self(Some(Box::pin(work)))
    }

    /// Drops what is inside.
    pub(crate) fn abandon(&mut self) {
        let inner = self.0.take();
        // What the panic said is on stderr; there is no other outcome to change.
        let _panicked = catch_unwind(AssertUnwindSafe(|| drop(inner)));
    }
}

impl Future for Guarded {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Outcome> {
        let Some(work) = &mut self.0 else { return Poll::Ready(Err(panicked())) };
        let outcome = match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(outcome)) => outcome,
            Err(_) => Err(panicked()),
        };
        self.abandon();
        Poll::Ready(outcome)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl std::fmt::Debug for Guarded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Guarded")
    }
}
