//! From the events of a conversation to the author's functions and back.
//!
//! The engine performs no I/O. Whoever drives it, the I/O task or a host in memory,
//! feeds the conversation and then calls [`Engine::turn`].

use std::{
    cell::Cell,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{self, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use plugbay_protocol::{
    Code, Event, Fault, Incoming, Over, Retry, body_fields,
    contract::{Activated, Deactivate},
    read_str,
};
use tokio::time::Instant;

use crate::{
    Context,
    activation::{Activation, optional},
    body,
    plugin::{OnActivate, OnDeactivate},
    reply::Outcome,
    tool::{Running, Tool},
    wire::{Call, Wire},
};

type Work = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A plugin at work.
pub(crate) struct Engine<S> {
    pub(crate) wire: Arc<Wire>,
    life: Arc<Life<S>>,
    tools: BTreeMap<String, Tool<S>>,
    /// Whether a call is tried at once, before a task is made for it. Most calls never
    /// wait, and on a runtime with one thread nothing is gained by letting them.
    at_once: bool,
    over: Option<Over>,
    /// When this turn began, once somebody has asked.
    now: Cell<Option<Instant>>,
}

/// What the lifecycle calls share with the engine.
struct Life<S> {
    on_activate: OnActivate<S>,
    on_deactivate: Option<OnDeactivate<S>>,
    active: Mutex<Option<Active<S>>>,
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
        tools: Vec<Tool<S>>,
        on_activate: OnActivate<S>,
        on_deactivate: Option<OnDeactivate<S>>,
        at_once: bool,
    ) -> Self {
        let tools = tools.into_iter().map(|tool| (tool.provide.name.clone(), tool)).collect();
        let life = Life { on_activate, on_deactivate, active: Mutex::new(None) };
        Self { wire, life: Arc::new(life), tools, at_once, over: None, now: Cell::default() }
    }

    /// Works off what the conversation has to say. Returns how it ended, once it has.
    pub(crate) fn turn(&mut self) -> Option<&Over> {
        // What came in one read came at one moment.
        self.now.set(None);
        loop {
            // A statement of its own, so that the lock is gone before anything runs.
            let event = self.wire.lock().conversation.poll();
            match event {
                None => return self.over.as_ref(),
                Some(Event::Called(incoming)) => self.called(incoming),
                Some(Event::CancelRequested { id, reason }) => {
                    let call = self.wire.lock().open.get(&id).cloned();
                    if let Some(call) = call {
                        call.cancel(reason.into());
                    }
                }
                Some(Event::Over(over)) => {
                    self.wire.lock().give_all_up();
                    self.over = Some(over);
                }
                // The rest is for hosts.
                Some(_) => {}
            }
        }
    }

    fn called(&self, incoming: Incoming) {
        match &*incoming.method {
            "tool.call" => self.tool_call(&incoming),
            "plugin.activate" => self.activate(&incoming),
            "plugin.deactivate" => self.deactivate(&incoming),
            _ => {
                let fault = Fault::new(Code::Unimplemented).because("pb.unknown_method");
                self.wire.end(incoming.id, Err(fault));
            }
        }
    }

    fn tool_call(&self, incoming: &Incoming) {
        match self.find(incoming) {
            Err(fault) => self.wire.end(incoming.id, Err(fault)),
            Ok((tool, active, args)) => {
                let call = self.call(incoming, active.activation);
                let context = Context { call: Arc::clone(&call), state: active.state };
                match (tool.start)(context, args) {
                    Running::Async(work) => self.run(call, work, true),
                    Running::Plain(work) => run_plain(call, work),
                }
            }
        }
    }

    /// Which tool, under which activation, with which arguments.
    fn find(&self, incoming: &Incoming) -> Result<(&Tool<S>, Active<S>, Bytes), Fault> {
        let [name, args] = body_fields(&incoming.body, ["name", "args"]).map_err(body::bad_body)?;
        let name = name.map_or(Some(""), read_str);
        let name = name.ok_or_else(|| body::bad_body("name: it is no string"))?;
        let tool = self.tools.get(name).ok_or_else(|| self.no_such_tool(name))?;
        let active = self.life.active().clone();
        // The gate has let the call through, so there is one.
        let active = active.ok_or_else(|| Fault::new(Code::Internal))?;
        // No arguments, or nil, mean the same as no argument in a map.
        let args = args.filter(|args| *args != [0xc0]);
        Ok((tool, active, args.map_or(NO_ARGS, |args| incoming.body.slice_ref(args))))
    }

    fn no_such_tool(&self, name: &str) -> Fault {
        let names: Vec<&str> = self.tools.keys().map(String::as_str).collect();
        let text = format!("no tool {name:?} here; there is {}", names.join(", "));
        Fault::new(Code::NotFound).because("pb.unknown_tool").message(&text)
    }

    fn activate(&self, incoming: &Incoming) {
        match Activation::read(&incoming.body) {
            Err(fault) => self.wire.end(incoming.id, Err(fault)),
            Ok(activation) => {
                let activation = Arc::new(activation);
                let life = Arc::clone(&self.life);
                let call = self.call(incoming, Arc::clone(&activation));
                let work = Box::pin(async move {
                    let made = (life.on_activate)(Arc::clone(&activation)).await;
                    let state = made.map_err(|e| e.into_fault(Code::FailedPrecondition))?;
                    *life.active() = Some(Active { activation, state: Arc::new(state) });
                    body::encode(&Activated::default(), 1).map_err(body::bad_body)
                });
                self.run(call, work, true);
            }
        }
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
                let call = self.call(incoming, Arc::default());
                let given_up = Arc::clone(&call);
                let work = Box::pin(async move {
                    tokio::select! {
                        biased;
                        () = given_up.wire.quiet() => {}
                        cause = given_up.given_up() => return Err(cause.fault()),
                    }
                    let state = life.active().as_ref().map(|active| Arc::clone(&active.state));
                    if let (Some(goodbye), Some(state)) = (&life.on_deactivate, state) {
                        goodbye(state).await;
                    }
                    // Out of the lock before the author's Drop runs.
                    let gone = life.active().take();
                    drop(gone);
                    Ok(NO_ARGS)
                });
                // Once the farewell has begun it is not broken off.
                self.run(call, work, false);
            }
        }
    }

    fn call(&self, incoming: &Incoming, activation: Arc<Activation>) -> Arc<Call> {
        let deadline = incoming.deadline.and_then(|ms| {
            let now = self.now.get().unwrap_or_else(Instant::now);
            self.now.set(Some(now));
            now.checked_add(Duration::from_millis(ms))
        });
        Arc::new(Call::new(incoming, deadline, Arc::clone(&self.wire), activation))
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
    fn active(&self) -> std::sync::MutexGuard<'_, Option<Active<S>>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An empty map.
const NO_ARGS: Bytes = Bytes::from_static(&[0x80]);

/// What the panic said is on stderr, where it belongs. \[R-ER-08\]
fn panicked() -> Fault {
    let text = "the plugin panicked; its stderr has the details";
    Fault::new(Code::Internal).retry(Retry::Maybe).message(text)
}

/// A future of the author's: a panic in it, or in its drop, is an outcome.
struct Guarded(Option<Work>);

impl Guarded {
    /// Drops what is inside.
    fn abandon(&mut self) {
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
