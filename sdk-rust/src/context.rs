//! What a tool knows about the call it is answering.

use std::{fmt, sync::Arc, time::Duration};

pub use plugbay_protocol::Level;
use plugbay_protocol::{Note, contract};
use tokio::time::Instant;

use crate::{Activation, Error, wire::Call};

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
