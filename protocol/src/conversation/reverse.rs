//! Calls of the plugin's: how they hang on the host's calls, from either end.

use alloc::{string::String, sync::Arc, vec::Vec};

use super::Conversation;
use crate::{
    error::{Fault, Misuse, Violation},
    event::{Event, Incoming, Outgoing},
    frame::{CallId, CancelReason, Code},
    hello::Features,
    reverse::{self, Parent, Verdict},
    scope,
    time::Tick,
};

impl Conversation {
    /// Says what is granted to the plugin from now on, in place of what was: the host
    /// right before it calls `plugin.activate`, the plugin when it reads that call. Until
    /// then it is nothing. \[R-LC-04\]
    pub fn grant(&mut self, scopes: Vec<String>) {
        self.grant = scopes;
    }

    /// Whether another call of the host could only wait for one of these, its own
    /// ancestors, to free one of so many slots. It must not wait then, but fail. \[R-RV-10\]
    ///
    /// The ancestors are calls of ours, on a host: those whose reverse calls led to it. The
    /// slots are as many as the plugin accepts, or fewer if the host lets fewer through.
    pub fn would_deadlock(&self, ancestors: &[CallId], slots: usize) -> bool {
        let work = self.ours.iter().filter(|(_, call)| call.step.is_none());
        slots <= work.filter(|(id, _)| ancestors.contains(&CallId(*id))).count()
    }

    /// Judges a reverse call of ours as the host would, and adds what it owes its parent.
    /// \[R-RV-05\] \[R-RV-13\] \[R-SC-07\]
    pub(super) fn may_call_host<'a>(
        &self,
        call: &Outgoing<'a>,
        now: Tick,
    ) -> Result<Outgoing<'a>, Misuse> {
        let mut call = call.clone();
        if call.details.as_ref().is_some_and(|details| details.scopes.is_some()) {
            return Err(Misuse::WrongEnd);
        }
        if !self.features.contains(Features::REVERSE) {
            return Err(Misuse::NotAgreed("reverse"));
        }
        let parent = call.parent.and_then(|id| self.theirs.get(id.0));
        let details = parent.and_then(|parent| parent.details.as_deref());
        let kind = Parent::of(call.parent.is_some(), parent.is_some());
        let narrowed = details.and_then(|details| details.scopes.as_deref());
        // Which names a glob lets through is the host's to judge, who knows what they are.
        match self.judge(kind, narrowed, |scopes| scope::name(scopes, call.method)) {
            Verdict::Run => {}
            Verdict::Deny => return Err(Misuse::NotGranted),
            Verdict::BadState if kind == Parent::Other => return Err(Misuse::NoSuchCall),
            Verdict::BadState => return Err(Misuse::NotActive),
        }
        let max = self.peer.calls;
        if usize::from(max) <= self.ours.len() {
            return Err(Misuse::Full { max });
        }
        let left = parent.and_then(|parent| parent.deadline).map(|at| at.since(now));
        call.deadline = least(call.deadline, left);
        if let Some(trace) = details.and_then(|details| details.trace.as_ref()) {
            let details = Arc::make_mut(call.details.get_or_insert_default());
            details.trace.get_or_insert_with(|| trace.clone());
        }
        Ok(call)
    }

    /// Judges a CALL from the plugin, and leaves of it what counts. `Err` in it is the
    /// answer to one that is refused. \[R-RV-02\]
    pub(super) fn admit_reverse(
        &mut self,
        call: &mut Incoming,
        now: Tick,
    ) -> Result<Result<(), Fault>, Violation> {
        let bad_state = |why| Err(Violation::State { kind: "CALL", why });
        if !self.features.contains(Features::REVERSE) {
            return bad_state("the feature \"reverse\" is not in use");
        }
        // Only a host can narrow. [R-RV-12]
        if let Some(details) = &mut call.details {
            Arc::make_mut(details).scopes = None;
        }
        let parent = call.parent.and_then(|id| self.ours.get(id.0));
        let kind = Parent::of(call.parent.is_some(), parent.is_some());
        let details = parent.and_then(|parent| parent.details.as_ref());
        let narrowed = details.and_then(|details| details.scopes.as_deref());
        let covers = |scopes: &[String]| scope::cover(scopes, &call.method, &call.body);
        let admitted = match self.judge(kind, narrowed, covers) {
            Verdict::BadState if kind == Parent::Other => {
                return bad_state("its parent is no open call");
            }
            Verdict::BadState => return bad_state("the plugin is not active"),
            Verdict::Deny => Err(reverse::denied()),
            Verdict::Run if usize::from(self.mine.limits.calls) <= self.theirs.len() => {
                Err(reverse::too_many())
            }
            // It has crossed our CANCEL, and would be ended at once. [R-RV-14]
            Verdict::Run if parent.is_some_and(|parent| parent.state.is_given_up()) => {
                Err(Fault::new(Code::Cancelled))
            }
            Verdict::Run => Ok(()),
        };
        // What is left of the parent's budget is all it has. [R-RV-06]
        call.deadline = least(call.deadline, parent.and_then(|parent| parent.left(now)));
        if let Some(parent) = call.parent {
            self.spoke(parent, now);
        }
        if let (Ok(()), Some(parent)) =
            (&admitted, call.parent.and_then(|id| self.ours.get_mut(id.0)))
        {
            parent.children += 1;
        }
        Ok(admitted)
    }

    /// By stage, parent and authority: the grant, what the parent leaves of it, and the
    /// right to work without a parent. \[R-SC-05\]
    fn judge(
        &self,
        parent: Parent,
        narrowed: Option<&[String]>,
        cover: impl Fn(&[String]) -> bool,
    ) -> Verdict {
        reverse::judge(self.stage, parent, || {
            let background = || scope::cover(&self.grant, scope::BACKGROUND, b"");
            cover(&self.grant)
                && narrowed.is_none_or(&cover)
                && (parent != Parent::Absent || background())
        })
    }

    /// The host gives a call of its own up, and with it its work for the reverse calls of
    /// that call. They are answered here, so that no service can keep them open.
    /// \[R-RV-08\]
    pub(super) fn withdraw_children(&mut self, of: CallId) {
        let children = self.theirs.iter().filter(|(_, call)| call.parent == Some(of));
        for id in children.map(|(id, _)| CallId(id)).collect::<Vec<_>>() {
            self.reply_end(id, &Fault::new(Code::Cancelled));
            self.close_theirs(id, false);
            self.events.push_back(Event::Withdrawn { id });
        }
    }

    /// The host has given a call up, and so is what we call for it. \[R-RV-07\]
    pub(super) fn cancel_children(&mut self, of: CallId, now: Tick) {
        let open = self.ours.iter().filter(|(_, call)| !call.state.is_given_up());
        let children = open.filter(|(_, call)| call.parent == Some(of));
        for id in children.map(|(id, _)| CallId(id)).collect::<Vec<_>>() {
            self.cancel(id, CancelReason::Parent, now);
        }
    }
}

/// The smaller of two budgets, of which either may be none.
fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}
