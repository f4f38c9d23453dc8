//! Tries checks on a subject, several at a time, and gathers what came of them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};

use serde::{Serialize, Serializer};

use crate::{
    baseline::Known,
    case::{Case, Subject},
    check::{Check, Failure, Level, Mode, Need, Stop},
    record::Recording,
    sample,
    session::Conversation,
    transcript::Line,
};

/// How a check ended. Every report spells it as [`Status::as_str`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// The subject does what the rule says.
    Pass,
    /// It does not, and the rule is a MUST.
    Fail,
    /// It does not, and the rule is a SHOULD.
    Warn,
    /// It does not, as the baseline says.
    XFail,
    /// It does, and the baseline says otherwise: the baseline is stale.
    XPass,
    /// The subject does not declare what the check is about.
    Na,
    /// What has to work first did not.
    Blocked,
    /// It can be said neither way.
    Inconclusive,
    /// The suite's own fault.
    HarnessError,
}

impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl Status {
    pub const ALL: [Self; 9] = [
        Self::Pass,
        Self::Fail,
        Self::Warn,
        Self::XFail,
        Self::XPass,
        Self::Na,
        Self::Blocked,
        Self::Inconclusive,
        Self::HarnessError,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Warn => "warn",
            Self::XFail => "xfail",
            Self::XPass => "xpass",
            Self::Na => "n/a",
            Self::Blocked => "blocked",
            Self::Inconclusive => "inconclusive",
            Self::HarnessError => "harness-error",
        }
    }
}

/// What came of one check.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    pub id: &'static str,
    pub title: &'static str,
    pub group: &'static str,
    pub rules: Vec<&'static str>,
    pub level: Level,
    pub status: Status,
    /// How long it took, in milliseconds.
    pub ms: u64,
    /// Repeats what was random in it.
    pub seed: u64,
    /// Why it is not a pass, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why it may fail, if the baseline lists it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known: Option<Known>,
    /// What was due and what came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The check in whose conversation a watched rule was broken, if it was another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen_in: Option<&'static str>,
    /// The conversation that shows it. Empty unless something is wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub transcript: Vec<Line>,
    /// The last of what the subject wrote to stderr. Confidential.
    #[serde(skip)]
    pub stderr: String,
    /// The same conversation to be held again, if it was to be recorded.
    #[serde(skip)]
    pub recording: Option<Recording>,
    /// How its process ended by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<String>,
}

impl Outcome {
    pub(crate) fn new(check: &Check, seed: u64, status: Status) -> Self {
        Self {
            level: check.level,
            status,
            ..Self::passed(check.id, check.title, check.group(), check.rules.to_vec(), seed)
        }
    }

    /// One of a MUST with which nothing is wrong so far.
    pub(crate) fn passed(
        id: &'static str,
        title: &'static str,
        group: &'static str,
        rules: Vec<&'static str>,
        seed: u64,
    ) -> Self {
        Self {
            id,
            title,
            group,
            rules,
            level: Level::Must,
            status: Status::Pass,
            ms: 0,
            seed,
            reason: None,
            known: None,
            failure: None,
            seen_in: None,
            transcript: Vec::new(),
            stderr: String::new(),
            recording: None,
            exit: None,
        }
    }

    /// Why it is not a pass.
    pub(crate) fn stopped(&mut self, stop: Stop) {
        let (status, why) = match stop {
            Stop::Fail(failure) => {
                let failed = if self.level == Level::Must { Status::Fail } else { Status::Warn };
                (failed, Err(failure))
            }
            Stop::Blocked(failure) => (Status::Blocked, Err(failure)),
            Stop::Skip(why) => (Status::Na, Ok(why)),
            Stop::Inconclusive(why) => (Status::Inconclusive, Ok(why)),
            Stop::Fault(why) => (Status::HarnessError, Ok(why)),
            Stop::Interrupted => (Status::Inconclusive, Ok("interrupted".into())),
        };
        self.status = status;
        match why {
            Ok(why) => self.reason = Some(why),
            Err(failure) => self.failed(failure),
        }
    }

    fn failed(&mut self, failure: Failure) {
        self.reason = Some(format!("expected {}, saw {}", failure.expected, failure.seen));
        self.failure = Some(failure);
    }

    fn show(&mut self, conversation: &Conversation, record: bool) {
        self.recording =
            record.then(|| Recording::of(self.id, self.seed, self.failure.clone(), conversation));
        self.transcript = conversation.transcript.lines();
        self.stderr.clone_from(&conversation.stderr);
        self.exit = conversation.exit.map(|exit| exit.to_string());
    }
}

/// Whether a check applies, and if not, why.
///
/// # Errors
/// What the subject has not declared.
pub fn applies(check: &Check, subject: &Subject) -> Result<(), String> {
    if subject.mode == Mode::Plugin && !check.modes().contains(&Mode::Plugin) {
        return Err("needs a fixture with contract tck".into());
    }
    let profile = &subject.profile;
    for need in check.needs {
        let missing = match need {
            Need::Feature(name) => (!profile.features.contains(*name))
                .then(|| format!("feature {name} is not declared")),
            Need::Tck(name) => {
                (!profile.has("tck", name)).then(|| format!("tck.{name} is not provided"))
            }
            Need::Kind(kind) => (!profile.kinds().contains(*kind))
                .then(|| format!("nothing of kind {kind} is provided")),
            Need::Entry(kind, name) => {
                (!profile.has(kind, name)).then(|| format!("{need} is not provided"))
            }
            Need::Calls(n) => {
                (profile.calls < *n).then(|| format!("it accepts fewer than {n} calls at once"))
            }
            Need::Sample(method, word) => {
                let has = !sample::samples(subject, method, word).is_empty();
                (!has).then(|| format!("{need} is not in the settings"))
            }
            Need::Active => {
                profile.inactive.as_ref().map(|why| format!("it cannot be activated: {why}"))
            }
        };
        if let Some(missing) = missing {
            return Err(missing);
        }
    }
    Ok(())
}

/// A seed of its own for each check or plugin, so that one alone repeats what it did among all.
pub(crate) fn seed_of(name: &str, seed: u64) -> u64 {
    name.bytes()
        .fold(seed, |sum, byte| sum.rotate_left(7) ^ u64::from(byte).wrapping_mul(0x9E37_79B9))
}

/// Does it for all, so many at a time, until it is interrupted. The results are in the order of what they
/// came of.
pub fn each<T: Sync, R: Send>(
    all: &[T],
    jobs: usize,
    interrupted: &AtomicBool,
    act: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(one) = all.get(at) else { return };
                    if interrupted.load(Ordering::Relaxed) {
                        return;
                    }
                    let result = act(one);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// A broken rule that is watched everywhere, and where that was seen.
struct Seen {
    id: &'static str,
    by: &'static str,
    failure: Failure,
    conversation: Conversation,
}

/// The checks that take longest, most of it asleep or in many processes. They begin first, so that nothing is
/// left to wait for when all others are done.
pub const LONG: [&str; 7] = ["RB-02", "RB-03", "RB-04", "RB-10", "CO-07", "RS-01", "RS-03"];

/// The checks in the order in which they begin, each with its place in the list.
fn in_turn(checks: &[&'static Check]) -> Vec<(usize, &'static Check)> {
    let mut order: Vec<_> = checks.iter().copied().enumerate().collect();
    order.sort_by_key(|(_, check)| !LONG.contains(&check.id));
    order
}

/// Tries the checks, the [`LONG`] ones first, and tells `heard` of each as it ends. The outcomes are in
/// the order of the checks.
pub fn run(
    subject: &Subject,
    checks: &[&'static Check],
    seed: u64,
    jobs: usize,
    heard: &(dyn Fn(&Outcome) + Sync),
) -> Vec<Outcome> {
    let seen: Mutex<Vec<Seen>> = Mutex::default();
    let mut done = each(&in_turn(checks), jobs, &subject.interrupted, |&(at, check)| {
        let (outcome, conversations) = one(subject, check, seed_of(check.id, seed));
        for conversation in conversations {
            gather(check.id, conversation, &seen);
        }
        heard(&outcome);
        (at, outcome)
    });
    done.sort_by_key(|(at, _)| *at);
    let mut outcomes: Vec<Outcome> = done.into_iter().map(|(_, outcome)| outcome).collect();
    let seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    for broken in seen {
        tell(&mut outcomes, broken, seed, subject.record);
    }
    outcomes
}

/// Puts what the monitor of a conversation has found where all can see it.
fn gather(by: &'static str, conversation: Conversation, seen: &Mutex<Vec<Seen>>) {
    for violation in conversation.violations.clone() {
        let mut all = seen.lock().unwrap_or_else(PoisonError::into_inner);
        // The first is enough; that of its own check is the best.
        let known = all.iter().position(|it| it.id == violation.check);
        let better = known.is_none_or(|at| all[at].by != violation.check && by == violation.check);
        if better {
            let failure = Failure {
                expected: violation.expected,
                seen: violation.seen,
                conversation: None,
                entry: Some(violation.entry),
            };
            let it = Seen { id: violation.check, by, failure, conversation: copy(&conversation) };
            match known {
                Some(at) => all[at] = it,
                None => all.push(it),
            }
        }
    }
}

fn copy(conversation: &Conversation) -> Conversation {
    Conversation {
        transcript: conversation.transcript.clone(),
        stderr: conversation.stderr.clone(),
        exit: conversation.exit,
        cookie: conversation.cookie,
        walk: conversation.walk.clone(),
        ..Conversation::default()
    }
}

/// A broken rule is told under the check that it belongs to.
fn tell(outcomes: &mut Vec<Outcome>, broken: Seen, seed: u64, record: bool) {
    let Some(check) = crate::checks::find(broken.id) else { return };
    let at = outcomes.iter().position(|it| it.id == broken.id).unwrap_or_else(|| {
        outcomes.push(Outcome::new(check, seed_of(check.id, seed), Status::Pass));
        outcomes.len() - 1
    });
    let outcome = &mut outcomes[at];
    if matches!(outcome.status, Status::Fail | Status::Warn) {
        return;
    }
    outcome.stopped(Stop::Fail(broken.failure));
    outcome.seen_in = (broken.by != broken.id).then_some(broken.by);
    outcome.show(&broken.conversation, record);
}

/// Tries one check.
fn one(subject: &Subject, check: &'static Check, seed: u64) -> (Outcome, Vec<Conversation>) {
    let mut outcome = Outcome::new(check, seed, Status::Pass);
    if let Err(why) = applies(check, subject) {
        outcome.status = Status::Na;
        outcome.reason = Some(why);
        return (outcome, Vec::new());
    }
    let begun = Instant::now();
    let mut case = Case::new(subject, seed);
    let verdict = catch_unwind(AssertUnwindSafe(|| (check.run)(&mut case)));
    outcome.ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let conversations = case.conversations();
    let stop = match verdict {
        Ok(Ok(())) => return (outcome, conversations),
        Ok(Err(stop)) => stop,
        Err(_panic) => {
            Stop::Fault("the check panicked; stderr of the suite has the details".into())
        }
    };
    outcome.stopped(stop);
    if let Some(failure) = &outcome.failure {
        let at = failure.conversation.unwrap_or_else(|| conversations.len().saturating_sub(1));
        if let Some(conversation) = conversations.get(at) {
            outcome.show(conversation, subject.record);
        }
    }
    (outcome, conversations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks;

    #[test]
    fn long_checks_begin_first_and_keep_their_places() {
        let all: Vec<&'static Check> = checks::all().collect();
        let order = in_turn(&all);
        let (long, rest) = order.split_at(LONG.len());
        assert!(long.iter().all(|(_, check)| LONG.contains(&check.id)), "each exists, once");
        assert!(rest.is_sorted_by_key(|(at, _)| *at), "all others are in order");
        assert!(order.iter().all(|(at, check)| all[*at].id == check.id));
        assert_eq!(order.len(), all.len());
    }
}
