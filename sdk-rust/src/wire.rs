//! What the I/O task and the tools share: the conversation and its open calls.
//!
//! Everybody who has something to send locks the conversation for as long as it
//! takes to put a frame into its outbox, and never over an await. Only the I/O task
//! reads and writes.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    task::Waker,
    time::Duration,
};

use bytes::Bytes;
use plugbay_protocol::{
    Announce, CallId, CancelReason, Code, Conversation, Fault, Incoming, Note, Retry, Tick,
    contract,
};
use tokio::{sync::Notify, time::Instant};

use crate::{Error, activation::Activation, reply::Outcome};

/// Progress is told at most once in this time for each call; the last one always.
pub(crate) const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// Notes are lossy by nature: with this much unread by the host, none is added.
const NOTES_MAX: u64 = 256 << 10;

/// One conversation and everything that hangs on it.
pub(crate) struct Wire {
    inner: Mutex<Inner>,
    /// Told when the last call besides the lifecycle has ended.
    quiet: Notify,
}

pub(crate) struct Inner {
    pub(crate) conversation: Conversation,
    /// Calls whose code is still running.
    pub(crate) open: BTreeMap<CallId, Arc<Call>>,
    /// Progress that came too soon after the one before.
    late: BTreeMap<CallId, (Instant, Note)>,
    /// Wakes the I/O task; `None` while it is awake and will look anyway.
    sleeping: Option<Waker>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

impl Wire {
    pub(crate) fn new(announce: Announce) -> Arc<Self> {
        Arc::new(Self {
            // A plugin's conversation has no timers, so time is of no use to it.
            inner: Mutex::new(Inner {
                conversation: Conversation::plugin(announce, Tick(0)),
                open: BTreeMap::new(),
                late: BTreeMap::new(),
                sleeping: None,
            }),
            quiet: Notify::new(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        // The conversation never panics half way, so poison says nothing about it.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a call, whose code has finished. Whoever comes second, or after the
    /// end of the conversation, is not heard: every call has exactly one END.
    pub(crate) fn end(&self, id: CallId, outcome: Outcome) {
        let mut inner = self.lock();
        inner.open.remove(&id);
        if let Some((_, note)) = inner.late.remove(&id) {
            inner.conversation.note(Some(id), &note);
        }
        // A result that is too large has been answered with a fault by itself.
        let _over_or_too_large = inner.conversation.end(id, outcome);
        if inner.conversation.open_calls() == 0 {
            self.quiet.notify_waiters();
        }
        inner.wake();
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.lock().conversation.open_calls() == 0
    }

    /// Waits until no call is open besides the lifecycle.
    pub(crate) async fn quiet(&self) {
        loop {
            let told = self.quiet.notified();
            if self.is_quiet() {
                return;
            }
            told.await;
        }
    }

    pub(crate) fn note(&self, id: Option<CallId>, note: &Note) {
        let mut inner = self.lock();
        if inner.conversation.outbox().len() < NOTES_MAX {
            inner.conversation.note(id, note);
            inner.wake();
        }
    }

    /// Keeps a progress note until `due`, in place of the one that waited before.
    fn note_later(&self, id: CallId, due: Instant, note: Note) {
        let mut inner = self.lock();
        let first = inner.late.values().all(|(other, _)| due < *other);
        inner.late.insert(id, (due, note));
        if first {
            inner.wake();
        }
    }
}

impl Inner {
    fn wake(&mut self) {
        if let Some(waker) = self.sleeping.take() {
            waker.wake();
        }
    }

    /// Whoever adds something to send from now on calls this waker.
    pub(crate) fn sleep(&mut self, waker: &Waker) {
        if !self.sleeping.as_ref().is_some_and(|old| old.will_wake(waker)) {
            self.sleeping = Some(waker.clone());
        }
    }

    /// The I/O task is up and looks by itself.
    pub(crate) fn awake(&mut self) {
        self.sleeping = None;
    }

    /// When the next late note is due.
    pub(crate) fn next_late(&self) -> Option<Instant> {
        self.late.values().map(|(due, _)| *due).min()
    }

    /// Sends the late notes that are due.
    pub(crate) fn send_late(&mut self, now: Instant) {
        while let Some(id) = self.late.iter().find(|(_, (due, _))| *due <= now).map(|(id, _)| *id) {
            if let Some((_, note)) = self.late.remove(&id) {
                self.conversation.note(Some(id), &note);
            }
        }
    }

    /// The conversation is over: every call that is still running should stop.
    pub(crate) fn give_all_up(&mut self) {
        self.late.clear();
        for call in self.open.values() {
            call.cancel(Cause::Shutdown);
        }
    }
}

/// Why nobody wants the result of a call any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Cause {
    /// The caller said CANCEL.
    Cancelled = 1,
    /// Its total budget is spent, by our clock.
    Deadline = 2,
    /// One of its budgets is spent, by the caller's clock, which is usually first.
    Overdue = 3,
    /// The conversation is over, or will be.
    Shutdown = 4,
}

impl Cause {
    const ALL: [Self; 4] = [Self::Cancelled, Self::Deadline, Self::Overdue, Self::Shutdown];

    /// What to answer for code that had to be broken off. To a CANCEL that is
    /// `cancelled`, whatever its reason. \[R-CN-01\] \[R-TO-09\]
    pub(crate) fn fault(self) -> Fault {
        let code = match self {
            Self::Deadline => Code::DeadlineExceeded,
            Self::Cancelled | Self::Overdue | Self::Shutdown => Code::Cancelled,
        };
        Fault::new(code).retry(Retry::Maybe)
    }

    /// The same for code that breaks off by itself.
    pub(crate) fn error(self) -> Error {
        match self {
            Self::Cancelled => Error::cancelled(),
            Self::Deadline | Self::Overdue => Error::new(Code::DeadlineExceeded, "out of time"),
            Self::Shutdown => Error::unavailable("the host has gone"),
        }
    }
}

impl From<CancelReason> for Cause {
    fn from(reason: CancelReason) -> Self {
        match reason {
            CancelReason::User | CancelReason::Parent => Self::Cancelled,
            CancelReason::Deadline | CancelReason::Idle => Self::Overdue,
            CancelReason::Shutdown => Self::Shutdown,
        }
    }
}

/// One call, as its code sees it.
pub(crate) struct Call {
    pub(crate) id: CallId,
    pub(crate) wire: Arc<Wire>,
    pub(crate) activation: Arc<Activation>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) idle: Option<Duration>,
    /// 0, or a [`Cause`].
    cause: AtomicU8,
    told: Notify,
    progress: Mutex<Pace>,
}

#[derive(Default)]
struct Pace {
    /// When the last one was sent, or will be.
    at: Option<Instant>,
    n: u64,
}

impl Call {
    pub(crate) fn new(
        incoming: &Incoming,
        deadline: Option<Instant>,
        wire: Arc<Wire>,
        activation: Arc<Activation>,
    ) -> Self {
        Self {
            id: incoming.id,
            wire,
            activation,
            deadline,
            idle: incoming.idle.map(Duration::from_millis),
            cause: AtomicU8::new(0),
            told: Notify::new(),
            progress: Mutex::default(),
        }
    }

    /// Tells the call's code to stop. The first cause stays.
    pub(crate) fn cancel(&self, cause: Cause) {
        let first =
            self.cause.compare_exchange(0, cause as u8, Ordering::AcqRel, Ordering::Acquire);
        if first.is_ok() {
            self.told.notify_waiters();
        }
    }

    /// Why the result is not wanted any more, if so. Looks at the clock, so that a
    /// deadline counts even where nothing else could run.
    pub(crate) fn cause(&self) -> Option<Cause> {
        let told = self.cause.load(Ordering::Acquire);
        let told = Cause::ALL.into_iter().find(|cause| *cause as u8 == told);
        told.or_else(|| {
            self.deadline.filter(|at| *at <= Instant::now())?;
            self.cancel(Cause::Deadline);
            Some(Cause::Deadline)
        })
    }

    /// Waits until the result is not wanted any more.
    pub(crate) async fn given_up(&self) -> Cause {
        loop {
            let told = self.told.notified();
            if let Some(cause) = self.cause() {
                return cause;
            }
            match self.deadline {
                None => told.await,
                Some(at) => tokio::select! {
                    () = told => {}
                    () = tokio::time::sleep_until(at) => {}
                },
            }
        }
    }

    /// Tells how far the call has come, now or a little later.
    pub(crate) fn progress(&self, n: u64, total: Option<u64>, text: &str) {
        let mut pace = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        pace.n = pace.n.max(n);
        let body = if text.is_empty() { Bytes::new() } else { contract::message(text) };
        let note = Note::Progress { n: Some(pace.n), total, unit: None, body };
        let now = Instant::now();
        match pace.at {
            // One is waiting already: this one takes its place.
            Some(due) if now < due => self.wire.note_later(self.id, due, note),
            Some(sent) if now < sent + PROGRESS_EVERY => {
                pace.at = Some(sent + PROGRESS_EVERY);
                self.wire.note_later(self.id, sent + PROGRESS_EVERY, note);
            }
            _ => {
                pace.at = Some(now);
                self.wire.note(Some(self.id), &note);
            }
        }
    }
}
