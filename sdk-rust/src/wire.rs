//! What the I/O task and the author's code share: the conversation and what is open in it.
//!
//! Everybody who has something to send locks the conversation for as long as it
//! takes to put a frame into its outbox, and never over an await. Only the I/O task
//! reads and writes.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::Duration,
};

use bytes::Bytes;
use plugbay_protocol::{
    Announce, CallId, CancelReason, Conversation, Failure, Misuse, Note, Outgoing, Tick,
};
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use crate::{
    call::{Call, Cause},
    reply::Outcome,
};

/// Notes are lossy by nature: with this much unread by the host, none is added.
const NOTES_MAX: u64 = 256 << 10;
/// With this much unread by the host, items wait, whatever credit they have.
pub(crate) const ITEMS_MAX: u64 = 1 << 20;

/// One conversation and everything that hangs on it.
pub(crate) struct Wire {
    inner: Mutex<Inner>,
    /// The epoch of the conversation's time.
    started: Instant,
    /// Told when nothing is open any more besides the lifecycle.
    quiet: Notify,
    /// Told when a call to the host has ended, and so a slot is free.
    freed: Notify,
    /// Told when items may be added to the outbox again.
    pub(crate) room: Notify,
    /// Told when the plugin begins to drain, and when the conversation is over.
    turned: Notify,
}

pub(crate) struct Inner {
    pub(crate) conversation: Conversation,
    /// Calls whose code is still running.
    pub(crate) open: BTreeMap<CallId, Arc<Call>>,
    /// Calls to the host that have not ended.
    asked: BTreeMap<CallId, Asked>,
    /// Outcomes of calls whose own calls to the host have not ended. \[R-RV-04\]
    held: BTreeMap<CallId, Outcome>,
    /// Progress that came too soon after the one before.
    late: BTreeMap<CallId, (Instant, Note)>,
    /// Work that belongs to no call and is open.
    background: usize,
    /// What the author does when the host has gone.
    pub(crate) farewell: bool,
    phase: Phase,
    /// Activations that have begun.
    epoch: u64,
    /// The conversation may have events that nothing it has read has caused.
    pub(crate) stirred: bool,
    /// An item waits for the outbox to get shorter.
    pub(crate) crowded: bool,
    /// Wakes the I/O task; `None` while it is awake and will look anyway.
    sleeping: Option<Waker>,
}

/// What work without a call may be done. The stage of the conversation does not tell the
/// whole: what ends with an activation ends before the END that tells so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// All.
    Serving,
    /// All, but it should come to an end.
    Draining,
    /// None until the next activation.
    Settled,
    /// None ever again.
    Over,
}

/// A call to the host.
struct Asked {
    /// The call of the host's that it serves.
    parent: Option<CallId>,
    /// `None` once it has been told.
    tell: Option<oneshot::Sender<Result<Bytes, Failure>>>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

impl Wire {
    pub(crate) fn new(announce: Announce) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Inner {
                conversation: Conversation::plugin(announce, Tick(0)),
                open: BTreeMap::new(),
                asked: BTreeMap::new(),
                held: BTreeMap::new(),
                late: BTreeMap::new(),
                background: 0,
                farewell: false,
                phase: Phase::Settled,
                epoch: 0,
                stirred: false,
                crowded: false,
                sleeping: None,
            }),
            started: Instant::now(),
            quiet: Notify::new(),
            freed: Notify::new(),
            room: Notify::new(),
            turned: Notify::new(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        // The conversation never panics half way, so poison says nothing about it.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A moment, as the conversation counts time.
    pub(crate) fn tick(&self, now: Instant) -> Tick {
        let ms = now.saturating_duration_since(self.started).as_millis();
        Tick(u64::try_from(ms).unwrap_or(u64::MAX))
    }

    /// The reverse of [`Self::tick`].
    pub(crate) fn instant(&self, Tick(ms): Tick) -> Option<Instant> {
        self.started.checked_add(Duration::from_millis(ms))
    }

    /// Answers a call, whose code has finished. Whoever comes second, or after the
    /// end of the conversation, is not heard: every call has exactly one END.
    pub(crate) fn end(&self, id: CallId, outcome: Outcome) {
        let mut inner = self.lock();
        inner.open.remove(&id);
        if inner.asked.values().any(|asked| asked.parent == Some(id)) {
            // Whoever made those calls has dropped them, or will be heard by nobody.
            inner.cancel_children(id, self.tick(Instant::now()));
            inner.held.insert(id, outcome);
            inner.wake();
            return;
        }
        self.end_now(&mut inner, id, outcome);
    }

    fn end_now(&self, inner: &mut Inner, id: CallId, outcome: Outcome) {
        if let Some((_, note)) = inner.late.remove(&id) {
            inner.conversation.note(Some(id), &note);
        }
        // A result that is too large has been answered with a fault by itself.
        let _over_or_too_large = inner.conversation.end(id, outcome);
        if inner.is_quiet() {
            self.quiet.notify_waiters();
        }
        inner.wake();
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.lock().is_quiet()
    }

    /// Waits until nothing is open besides the lifecycle.
    pub(crate) async fn quiet(&self) {
        loop {
            let told = self.quiet.notified();
            if self.is_quiet() {
                return;
            }
            told.await;
        }
    }

    /// Waits until no code of the author's runs, the farewell not counted.
    pub(crate) async fn still(&self) {
        loop {
            let told = self.quiet.notified();
            {
                let inner = self.lock();
                if inner.open.is_empty() && inner.background == 0 {
                    return;
                }
            }
            told.await;
        }
    }

    /// Like [`Self::quiet`], and from that moment on nothing more begins.
    pub(crate) async fn settle(&self) {
        loop {
            let told = self.quiet.notified();
            {
                let mut inner = self.lock();
                if inner.is_quiet() {
                    inner.phase = inner.phase.max(Phase::Settled);
                    return;
                }
            }
            told.await;
        }
    }

    /// Activation begins, and with it a new life for work without a call.
    pub(crate) fn serve(self: &Arc<Self>) -> Serving {
        let mut inner = self.lock();
        inner.epoch += 1;
        inner.turn(Phase::Serving);
        Serving { wire: Arc::clone(self), kept: false }
    }

    pub(crate) fn turn(&self, phase: Phase) {
        self.lock().turn(phase);
        self.turned.notify_waiters();
    }

    /// Waits until the plugin drains, or until more than that.
    pub(crate) async fn draining(&self, epoch: u64) {
        self.reached(epoch, Phase::Draining).await;
    }

    async fn reached(&self, epoch: u64, phase: Phase) {
        loop {
            let told = self.turned.notified();
            {
                let inner = self.lock();
                if phase <= inner.phase || inner.epoch != epoch {
                    return;
                }
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
    pub(crate) fn note_later(&self, id: CallId, due: Instant, note: Note) {
        let mut inner = self.lock();
        let first = inner.late.values().all(|(other, _)| due < *other);
        inner.late.insert(id, (due, note));
        if first {
            inner.wake();
        }
    }

    /// Items that came with this size have been used.
    pub(crate) fn taken(&self, id: CallId, size: u32) {
        let mut inner = self.lock();
        inner.conversation.taken(id, size);
        inner.wake();
    }

    /// The outbox has got shorter: whoever waits for that goes on.
    pub(crate) fn relieve(&self, inner: &mut Inner) {
        if inner.crowded && inner.conversation.outbox().len() < ITEMS_MAX / 2 {
            inner.crowded = false;
            self.room.notify_waiters();
        }
    }

    /// Calls the host, as soon as the host accepts one more.
    ///
    /// # Errors
    /// It cannot be sent.
    pub(crate) async fn ask(self: &Arc<Self>, call: &Outgoing<'_>) -> Result<Asking, Misuse> {
        loop {
            let freed = self.freed.notified();
            match self.try_ask(call) {
                Err(Misuse::Full { .. }) => freed.await,
                asked => return asked,
            }
        }
    }

    fn try_ask(self: &Arc<Self>, call: &Outgoing<'_>) -> Result<Asking, Misuse> {
        let now = self.tick(Instant::now());
        let mut inner = self.lock();
        if call.parent.is_none() && Phase::Settled <= inner.phase {
            return Err(Misuse::NotActive);
        }
        let id = inner.conversation.call(call, now)?;
        let (tell, outcome) = oneshot::channel();
        inner.asked.insert(id, Asked { parent: call.parent, tell: Some(tell) });
        inner.wake();
        Ok(Asking { wire: Arc::clone(self), id, outcome })
    }

    /// A call to the host has its outcome.
    pub(crate) fn answered(&self, id: CallId, outcome: Result<Bytes, Failure>) {
        // One whose budget was spent is open until the host ends it.
        let open = matches!(outcome, Err(Failure::Expired { .. }));
        if let Some(tell) = self.lock().asked.get_mut(&id).and_then(|asked| asked.tell.take()) {
            // Whoever gave it up does not listen any more.
            let _heard = tell.send(outcome);
        }
        if !open {
            self.released(id);
        }
    }

    /// A call to the host is over, and its slot free.
    pub(crate) fn released(&self, id: CallId) {
        let mut inner = self.lock();
        let Some(asked) = inner.asked.remove(&id) else { return };
        if let Some(parent) = asked.parent
            && inner.asked.values().all(|other| other.parent != Some(parent))
            && let Some(outcome) = inner.held.remove(&parent)
        {
            self.end_now(&mut inner, parent, outcome);
        }
        self.freed.notify_waiters();
        if inner.is_quiet() {
            self.quiet.notify_waiters();
        }
    }

    /// Work without a call begins.
    ///
    /// # Errors
    /// The plugin is not active.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<Task, Misuse> {
        let mut inner = self.lock();
        if Phase::Settled <= inner.phase {
            return Err(Misuse::NotActive);
        }
        inner.background += 1;
        Ok(Task { wire: Arc::clone(self), epoch: inner.epoch })
    }

    /// The conversation is over: everything that is still running should stop.
    pub(crate) fn give_all_up(&self) {
        let mut inner = self.lock();
        inner.late.clear();
        inner.held.clear();
        inner.turn(Phase::Over);
        for call in inner.open.values() {
            call.cancel(Cause::Shutdown);
        }
        self.turned.notify_waiters();
    }
}

/// A call to the host that is waited for. Dropping it gives the call up.
pub(crate) struct Asking {
    wire: Arc<Wire>,
    id: CallId,
    outcome: oneshot::Receiver<Result<Bytes, Failure>>,
}

impl Asking {
    /// Waits for its outcome; `None` if it was given up.
    pub(crate) async fn outcome(&mut self) -> Option<Result<Bytes, Failure>> {
        (&mut self.outcome).await.ok()
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if !self.outcome.is_terminated() {
            let now = self.wire.tick(Instant::now());
            let mut inner = self.wire.lock();
            inner.conversation.cancel(self.id, CancelReason::User, now);
            inner.stirred = true;
            inner.wake();
        }
    }
}

/// An activation that may still fail; if it does, its work in the background ends.
pub(crate) struct Serving {
    wire: Arc<Wire>,
    kept: bool,
}

impl Serving {
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if !self.kept {
            self.wire.turn(Phase::Settled);
        }
    }
}

/// Work without a call, open until it is dropped.
pub(crate) struct Task {
    wire: Arc<Wire>,
    epoch: u64,
}

impl Task {
    /// Waits until it must not go on.
    pub(crate) async fn given_up(&self) {
        self.wire.reached(self.epoch, Phase::Settled).await;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let mut inner = self.wire.lock();
        inner.background -= 1;
        if inner.is_quiet() {
            self.wire.quiet.notify_waiters();
        }
        inner.wake();
    }
}

impl Inner {
    /// A phase begins. What is over stays over.
    fn turn(&mut self, phase: Phase) {
        if self.phase != Phase::Over {
            self.phase = phase;
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn wake(&mut self) {
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

    /// Whether nothing is open besides the lifecycle, in either direction.
    fn is_quiet(&self) -> bool {
        self.conversation.open_calls() == 0 && self.asked.is_empty() && self.background == 0
    }

    /// Whether code of the author's is running.
    pub(crate) fn is_busy(&self) -> bool {
        !self.open.is_empty() || 0 < self.background || self.farewell
    }

    fn cancel_children(&mut self, parent: CallId, now: Tick) {
        let children = self.asked.iter().filter(|(_, asked)| asked.parent == Some(parent));
        for id in children.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.conversation.cancel(id, CancelReason::Parent, now);
        }
        self.stirred = true;
    }

    /// When time alone brings something to send, as the author's code has it.
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
}
