//! One call on its way to a plugin: wakes it if need be, waits for a slot, sends, and
//! says in the caller's words why there is no result.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use plugbay_protocol::{Budget, Failure, Features, Outgoing};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, timeout_at},
};

use crate::{
    call::Terms,
    error::{CallError, Ran, presentable},
    gate::Place,
    keeper::Order,
    life::Life,
    link::{Link, NotSent, Pending, Waiter},
    registry::{Bounds, Cell, inactive},
    service::Origin,
    status::{Condition, told},
    stream::Outlet,
};

/// A call that is on the wire, and the start of the process that has it.
pub(crate) type Sent = (u64, Pending);

/// One call on its way to a plugin.
pub(crate) struct Errand<'a> {
    pub(crate) cell: &'a Arc<Cell>,
    pub(crate) what: What<'a>,
    pub(crate) budgets: Budgets,
}

/// What is to be sent.
pub(crate) struct What<'a> {
    /// What the caller calls it: the tool, or the plugin and the method.
    pub(crate) name: &'a str,
    pub(crate) method: &'a str,
    /// Makes the arguments, once there is somebody to send them to.
    pub(crate) body: &'a (dyn Fn() -> Bytes + Sync),
    pub(crate) terms: &'a Terms,
    /// Where the items go; without one they are dropped.
    pub(crate) outlet: Option<&'a Outlet>,
    /// Whether items of the caller follow.
    pub(crate) input: bool,
    /// On whose behalf, if that matters to anybody.
    pub(crate) origin: Option<&'a Arc<Origin>>,
}

/// How long it may take, and what that is measured by.
pub(crate) struct Budgets {
    /// The bounds that held when it began.
    pub(crate) bounds: Arc<Bounds>,
    /// In the caller's words, if it said so.
    deadline: Option<Duration>,
    idle: Option<Duration>,
    began: Instant,
}

impl Budgets {
    pub(crate) fn new(bounds: Arc<Bounds>, terms: &Terms, began: Instant) -> Self {
        Self { bounds, deadline: terms.deadline, idle: terms.idle, began }
    }

    /// For the whole call, waiting included.
    fn total(&self) -> Duration {
        self.deadline.unwrap_or(self.bounds.timeouts.call)
    }

    fn silence(&self) -> Duration {
        self.idle.unwrap_or(self.bounds.timeouts.call_idle)
    }

    /// The deadline and the silence budget for the head, in milliseconds from now.
    ///
    /// A plugin without `async` cannot report while it works, so for it silence is
    /// the whole call. \[R-TO-05\]
    fn for_head(&self, features: Features, left: Duration) -> (u64, Option<u64>) {
        let idle = self.silence();
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
        match (features.contains(Features::ASYNC), self.deadline) {
            (true, _) if idle < left => (ms(left), Some(ms(idle))),
            (true, _) | (false, Some(_)) => (ms(left), None),
            (false, None) => (ms(left.min(idle)), None),
        }
    }

    /// Which budget was spent, and how large it was. What went out as the deadline to
    /// a plugin without `async` may have been the silence budget.
    fn spent(&self, budget: Budget, sent: Duration) -> (Budget, Duration) {
        let (idle, total) = (self.silence(), self.total());
        match budget {
            Budget::Idle => (Budget::Idle, sent),
            Budget::Deadline if self.deadline.is_none() && sent == idle && idle < total => {
                (Budget::Idle, idle)
            }
            Budget::Deadline => (Budget::Deadline, total),
        }
    }
}

impl Errand<'_> {
    /// Brings the call to the plugin. One that is `sent_again` was refused unrun by a
    /// process that is going down, and waits for the next.
    ///
    /// # Errors
    /// It was not sent.
    pub(crate) async fn send(&self, place: Place, sent_again: bool) -> Result<Sent, CallError> {
        let total = self.budgets.total();
        let until = self.budgets.began + total;
        let mut place = Some(place);
        if let Some(sent) = self.send_now(&mut place, until, sent_again) {
            return sent;
        }
        timeout_at(until, self.wake_and_send(&mut place, until)).await.unwrap_or_else(|_| {
            let (budget, waited, ran) = (Budget::Deadline, total, Ran::No);
            Err(CallError::TimedOut { plugin: self.plugin(), budget, waited, ran })
        })
    }

    fn plugin(&self) -> Arc<str> {
        Arc::clone(&self.cell.name)
    }

    /// Sends the call if the plugin is up and has a slot free: the usual case, and
    /// one that needs no further look at the clock and no waiting.
    fn send_now(
        &self,
        place: &mut Option<Place>,
        until: Instant,
        sent_again: bool,
    ) -> Option<Result<Sent, CallError>> {
        let now = self.cell.condition.borrow();
        let link = now.link.as_ref().filter(|_| now.life == Life::Active && !sent_again)?;
        let permit = link.slot_now()?;
        self.send_on(&now, link, permit, place, (self.budgets.began, until))
    }

    /// Sends the call to the process that is up, waking one if none is.
    async fn wake_and_send(
        &self,
        place: &mut Option<Place>,
        until: Instant,
    ) -> Result<Sent, CallError> {
        let mut condition = self.cell.condition.subscribe();
        // A start that fails after we came is ours to report, an old failure is not.
        let mut waited = false;
        let before = condition.borrow().before();
        loop {
            let now = Arc::clone(&condition.borrow_and_update());
            if now.is_dead_since(before) {
                return Err(self.not_started(&now));
            }
            if let (Life::Active, Some(link)) = (now.life, &now.link)
                && let Some(permit) = self.slot(link).await?
            {
                let span = (Instant::now(), until);
                if let Some(sent) = self.send_on(&now, link, permit, place, span) {
                    return sent;
                }
            } else if !now.wakes() {
                return Err(match waited {
                    // It is going down, and why is not known yet.
                    true if now.is_dying() => lost(self.cell, now.starts, false).await,
                    true => self.not_started(&now),
                    false => inactive(self.cell, &now),
                });
            }
            // Said in every state that may wait: a dormant plugin starts, one that is
            // going to sleep starts again. Fails only if the keeper is gone.
            let wanted = now.dies() || self.cell.orders.send(Order::Want(before)).is_ok();
            if !wanted || condition.changed().await.is_err() {
                // The keeper's last word came before it went.
                let last = Arc::clone(&condition.borrow());
                return Err(inactive(self.cell, &last));
            }
            waited = true;
        }
    }

    /// Waits for a slot, unless only its own ancestors could free one. \[R-RV-10\]
    async fn slot(&self, link: &Link) -> Result<Option<OwnedSemaphorePermit>, CallError> {
        if let Some(permit) = link.slot_now() {
            return Ok(Some(permit));
        }
        if self.what.origin.is_some_and(|origin| link.would_deadlock(&origin.ancestors)) {
            return Err(CallError::WouldDeadlock { plugin: self.plugin() });
        }
        Ok(link.slot().await)
    }

    /// Sends the call on one connection; the span is from now until its deadline.
    /// `None` if the connection takes no more calls.
    fn send_on(
        &self,
        condition: &Condition,
        link: &Link,
        permit: OwnedSemaphorePermit,
        place: &mut Option<Place>,
        (now, until): (Instant, Instant),
    ) -> Option<Result<Sent, CallError>> {
        let left = until.saturating_duration_since(now);
        let (deadline, idle) = self.budgets.for_head(link.features(), left);
        let outgoing = Outgoing {
            method: self.what.method,
            deadline: Some(deadline),
            idle,
            input: self.what.input,
            details: self.what.terms.details.clone(),
            body: (self.what.body)(),
            ..Outgoing::default()
        };
        let waiter = Waiter {
            on_progress: self.what.terms.on_progress.clone(),
            permit: Some(permit),
            place: place.take(),
            outlet: self.what.outlet.cloned(),
            origin: self.what.origin.cloned(),
        };
        match link.call(&outgoing, waiter, now) {
            Ok(pending) => Some(Ok((condition.starts, pending))),
            Err((NotSent::Closed, waiter)) => {
                *place = waiter.place;
                None
            }
            Err((why, _)) => {
                let tool = self.what.name.to_owned();
                Some(Err(CallError::BadArguments { tool, problems: vec![why.to_string()] }))
            }
        }
    }

    fn not_started(&self, now: &Condition) -> CallError {
        self.cell.lost(Arc::clone(&now.reason), now.end.last_words.clone(), Ran::No)
    }
}

/// What a failure of a call that was sent is to its caller; `run` is the start of the
/// process that had it.
pub(crate) async fn failed(
    cell: &Arc<Cell>,
    budgets: &Budgets,
    run: u64,
    failure: Failure,
) -> CallError {
    let plugin = || Arc::clone(&cell.name);
    match failure {
        Failure::Expired { budget, ms, sent } => {
            let ran = if sent { Ran::Unknown } else { Ran::No };
            let (budget, waited) = budgets.spent(budget, Duration::from_millis(ms));
            CallError::TimedOut { plugin: plugin(), budget, waited, ran }
        }
        Failure::Lost { sent } => lost(cell, run, sent).await,
        Failure::Fault(fault) => CallError::Failed { plugin: plugin(), fault: presentable(fault) },
    }
}

/// The plugin died under the call. Its keeper is finding out why; that takes as
/// long as the stop ladder, and we wait for a part of it.
async fn lost(cell: &Arc<Cell>, run: u64, sent: bool) -> CallError {
    let mut condition = cell.condition.subscribe();
    let (reason, last_words) = match told(&mut condition, run).await {
        Some(now) => (Arc::clone(&now.end.reason), now.end.last_words.clone()),
        None => (Arc::clone(&cell.condition.borrow().reason), cell.last_words()),
    };
    cell.lost(reason, last_words, if sent { Ran::Unknown } else { Ran::No })
}
