//! What a tool knows about the call it is answering.

use std::{fmt, sync::Arc, time::Duration};

pub use plugbay_protocol::Level;
use plugbay_protocol::{Details, Features, Note, Trace, contract};
use tokio::{runtime::Handle, time::Instant};

use crate::{
    Activation, Error, HostCall, IntoBody,
    ask::{Caller, is_granted},
    call::Call,
};

/// One call, seen from inside a tool: how long it may take, whether anybody still
/// wants its result, and where to say how far it has come. Cheap to clone.
///
/// `S` is what [`Plugin::on_activate`](crate::Plugin::on_activate) returned.
pub struct Context<S = ()> {
    pub(crate) call: Arc<Call>,
    pub(crate) state: Arc<S>,
}

impl<S> Context<S> {
    /// What the plugin made when it became active.
    pub fn state(&self) -> &Arc<S> {
        &self.state
    }

    /// What the operator gave to the plugin.
    pub fn activation(&self) -> &Activation {
        &self.call.activation
    }

    /// When the caller stops waiting; `None` if it never does.
    pub fn deadline(&self) -> Option<Instant> {
        self.call.deadline
    }

    /// The time until [`Self::deadline`]; zero once it has passed.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline().map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// The whole of its budget, as the caller gave it.
    pub fn budget(&self) -> Option<Duration> {
        self.call.budget.map(Duration::from_millis)
    }

    /// The longest silence the caller puts up with. [`Self::progress`] breaks it: a tool
    /// that works for long calls it at least twice in this time. \[R-TO-10\]
    pub fn idle(&self) -> Option<Duration> {
        self.call.idle
    }

    /// Whether nobody wants the result any more: the caller has cancelled, the deadline
    /// has passed or the host has gone.
    ///
    /// A plain tool asks this between two pieces of work; see also [`Self::check`].
    pub fn is_cancelled(&self) -> bool {
        self.call.cause().is_some()
    }

    /// Waits until [`Self::is_cancelled`].
    ///
    /// An async tool rarely needs it: after a cancel it is polled once more and then
    /// dropped at the await where it stands.
    pub async fn cancelled(&self) {
        self.call.given_up().await;
    }

    /// For `ctx.check()?` between two pieces of work.
    ///
    /// # Errors
    /// Nobody wants the result any more, and its code says why: `cancelled`, because the
    /// caller said so; `deadline_exceeded`, because it waited long enough; `unavailable`,
    /// because the host has gone. What is worth keeping for a next attempt may depend on it.
    pub fn check(&self) -> Result<(), Error> {
        self.call.cause().map_or(Ok(()), |cause| Err(cause.error()))
    }

    /// Says how far the call has come: `n` of `total`, and a word about it, or `""`.
    ///
    /// Call it as often as you like: at most ten a second are sent, and the last one
    /// always. Each breaks the silence that [`Self::idle`] is about.
    pub fn progress(&self, n: u64, total: impl Into<Option<u64>>, message: &str) {
        self.call.progress(n, total.into(), message);
    }

    /// Writes a line to the host's log, with this call's id. `event` is a constant that
    /// names what happened and never holds data; `message` may. Lines are lost if the
    /// host does not read.
    pub fn log(&self, level: Level, event: &'static str, message: &str) {
        let body = contract::message(message);
        let note = Note::Log { level, event: event.into(), body };
        self.call.wire.note(Some(self.call.id), &note);
    }

    /// Sends one item before the result: of a tool, a preview of its answer, such as a
    /// [`Reply`](crate::Reply); of another method, what its contract says. \[R-TL-12\]
    ///
    /// It waits while the host has no room for it, so whoever makes items makes no more of
    /// them than are wanted. A host without streams gets none: see [`Self::streams`].
    ///
    /// # Errors
    /// Nobody wants the result any more, as with [`Self::check`]; or the item is larger than
    /// the host accepts.
    pub async fn send(&self, item: impl IntoBody) -> Result<(), Error> {
        let item = item.into_body();
        let item = item.map_err(|why| Error::internal(format!("an item: {why}")))?;
        self.call.send(&item).await
    }

    /// Whether the host takes items.
    pub fn streams(&self) -> bool {
        self.call.wire.lock().conversation.features().contains(Features::STREAM)
    }

    /// Calls the host for this call, within what is granted. The cancel of this call
    /// cancels that one as well.
    ///
    /// ```
    /// use plugbay_sdk::{Context, Error};
    /// use serde_json::{Value, json};
    ///
    /// async fn total(ctx: Context, (): ()) -> Result<String, Error> {
    ///     let args = json!({"session": "s", "call": "c", "name": "fs_read", "args": {}});
    ///     let answer: Value = ctx.call("host.tool.call", args).await?;
    ///     Ok(answer["receipt"]["content"][0]["text"].to_string())
    /// }
    /// ```
    pub fn call<R>(&self, method: &str, args: impl IntoBody) -> HostCall<R> {
        Caller::Call(Arc::clone(&self.call)).ask(method, args)
    }

    /// Whether this call has the right to call such a method: what is granted, as far as the
    /// caller leaves it. A scope may narrow the right further, to some names. \[R-SC-07\]
    pub fn may_call(&self, method: &str) -> bool {
        is_granted(self.call.activation.grant(), self.call.details.as_deref(), method)
    }

    /// What the caller leaves of the grant; `None`: all of it.
    pub fn scopes(&self) -> Option<&[String]> {
        self.details().and_then(|details| details.scopes.as_deref())
    }

    /// A random name of this piece of work, the same when it is sent again: an idempotent
    /// tool answers then what it answered the first time. \[R-TL-13\]
    pub fn key(&self) -> Option<&str> {
        self.details().and_then(|details| details.key.as_deref())
    }

    /// How often this piece of work was sent before.
    pub fn attempt(&self) -> u8 {
        self.details().map_or(0, |details| details.attempt)
    }

    /// The distributed trace that the call belongs to.
    pub fn trace(&self) -> Option<&Trace> {
        self.details().and_then(|details| details.trace.as_ref())
    }

    fn details(&self) -> Option<&Details> {
        self.call.details.as_deref()
    }

    /// Waits for something async in a plain function, such as [`Self::send`] or
    /// [`Self::call`].
    ///
    /// # Panics
    /// In an async one, which can await it.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        Handle::current().block_on(future)
    }

    /// The same call for a tool that was written for plugins without state.
    pub(crate) fn stateless(&self) -> Context {
        Context { call: Arc::clone(&self.call), state: Arc::new(()) }
    }
}

impl<S> Clone for Context<S> {
    fn clone(&self) -> Self {
        Self { call: Arc::clone(&self.call), state: Arc::clone(&self.state) }
    }
}

impl<S> fmt::Debug for Context<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("id", &self.call.id).finish_non_exhaustive()
    }
}
