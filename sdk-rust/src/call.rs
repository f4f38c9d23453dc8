//! One call of the host's, as its code sees it: whether it is still wanted, and what flows
//! in it before its end.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use plugbay_protocol::{
    CallId, CancelReason, Code, Details, Fault, Incoming, Misuse, Note, Retry, contract,
};
use tokio::{sync::Notify, time::Instant};

use crate::{
    Error,
    activation::Activation,
    wire::{ITEMS_MAX, Wire},
};

/// Progress is told at most once in this time for each call; the last one always.
pub(crate) const PROGRESS_EVERY: Duration = Duration::from_millis(100);

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
    /// The whole of its budget, in milliseconds.
    pub(crate) budget: Option<u64>,
    pub(crate) details: Option<Arc<Details>>,
    /// The items of its caller, if its method takes any.
    pub(crate) inbox: Option<Box<Inbox>>,
    /// 0, or a [`Cause`].
    cause: AtomicU8,
    /// Told when it is given up, and when a stream of its own may go on.
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
        inbox: Option<Box<Inbox>>,
    ) -> Self {
        Self {
            id: incoming.id,
            wire,
            activation,
            deadline,
            idle: incoming.idle.map(Duration::from_millis),
            budget: incoming.deadline,
            details: incoming.details.clone(),
            inbox,
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
            if let Some(inbox) = &self.inbox {
                inbox.wake();
            }
        }
    }

    /// Its own stream has credit again.
    pub(crate) fn go_on(&self) {
        self.told.notify_waiters();
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
                at => tokio::select! {
                    () = told => {}
                    () = sleep_until(at) => {}
                },
            }
        }
    }

    /// Sends one item of the call's stream, as soon as there is credit and room for it. A
    /// host without streams gets none. \[R-ST-01\] \[R-ST-09\] \[R-MO-08\]
    pub(crate) async fn send(&self, item: &Bytes) -> Result<(), Error> {
        // Whoever always has an item and credit lets others have a turn nevertheless.
        tokio::task::consume_budget().await;
        loop {
            let told = self.told.notified();
            let room = self.wire.room.notified();
            if let Some(cause) = self.cause() {
                return Err(cause.error());
            }
            match self.try_send(item) {
                Ok(true) => return Ok(()),
                Ok(false) => tokio::select! {
                    () = told => {}
                    () = room => {}
                    () = sleep_until(self.deadline) => {}
                },
                Err(misuse) => return Err(unsendable(misuse)),
            }
        }
    }

    /// False if it has to wait.
    fn try_send(&self, item: &Bytes) -> Result<bool, Misuse> {
        let mut inner = self.wire.lock();
        if ITEMS_MAX <= inner.conversation.outbox().len() {
            inner.crowded = true;
            return Ok(false);
        }
        match inner.conversation.item(self.id, item) {
            Ok(()) => {
                inner.wake();
                Ok(true)
            }
            Err(Misuse::NotAgreed(_)) => Ok(true),
            Err(Misuse::NoCredit) => Ok(false),
            Err(misuse) => Err(misuse),
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

/// Never, without a moment.
async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn unsendable(misuse: Misuse) -> Error {
    match misuse {
        Misuse::TooLarge { .. } => Error::exhausted(format!("an item: {misuse}")),
        _ => Error::precondition("the call is over, so it has no more items"),
    }
}

/// The items that came for a call and that its code has not asked for yet. Credit bounds
/// them: what is here is never more than a window and one item. \[R-ST-10\]
#[derive(Default)]
pub(crate) struct Inbox(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// Each with the size of its frame.
    items: VecDeque<(Bytes, u32)>,
    /// No more will come.
    over: bool,
    waker: Option<Waker>,
}

impl Inbox {
    /// The items of a call; over from the start if it has none. \[R-ST-21\]
    pub(crate) fn new(open: bool) -> Box<Self> {
        Box::new(Self(Mutex::new(Waiting { over: !open, ..Waiting::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, item: Bytes, size: u32) {
        self.lock().items.push_back((item, size));
        self.wake();
    }

    pub(crate) fn end(&self) {
        self.lock().over = true;
        self.wake();
    }

    fn wake(&self) {
        let waker = self.lock().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The next one; `None` when it was the last.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<(Bytes, u32)>> {
        let mut waiting = self.lock();
        match waiting.items.pop_front() {
            None if !waiting.over => {
                waiting.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            item => Poll::Ready(item),
        }
    }
}
