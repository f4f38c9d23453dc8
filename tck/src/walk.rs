//! Random walks: steps of a host, what each must lead to, and how a walk that fails is made short.
//!
//! What must come is decided by [`Oracle`], which knows no bytes and no time, so that it can be held
//! against the model of the law (`model/tests/walk.rs`).

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{
    case::{Case, Subject},
    check::{Failure, Stop},
    codec::{END, Frame, NOTE},
    list, map,
    record::Recording,
    session::{ALREADY_ACTIVE, INACTIVE, Refusal, Session, UNIMPLEMENTED},
};

/// The check that takes a random walk.
const RANDOM: &str = "RB-06";

/// One thing that the host does. Calls have names of their own, so that a step means the same when
/// others are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    Activate,
    Deactivate,
    /// A call of a method that nobody has.
    Unknown,
    /// A call that takes a while.
    Sleep {
        call: u32,
        ms: u32,
    },
    /// CANCEL of a call, open or over.
    Cancel {
        call: u32,
    },
    /// Waits for the END of a call.
    Await {
        call: u32,
    },
    /// CANCEL of an id that was never a call.
    Stray {
        id: u32,
    },
    Note,
    Fence,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Activate => f.write_str("activate"),
            Self::Deactivate => f.write_str("deactivate"),
            Self::Unknown => f.write_str("call what nobody has"),
            Self::Sleep { call, ms } => write!(f, "call {call}: sleep {ms} ms"),
            Self::Cancel { call } => write!(f, "cancel call {call}"),
            Self::Await { call } => write!(f, "await call {call}"),
            Self::Stray { id } => write!(f, "cancel #{id}, which was never a call"),
            Self::Note => f.write_str("note"),
            Self::Fence => f.write_str("fence"),
        }
    }
}

/// A walk: what the plugin takes at once, and the steps.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Walk {
    /// The limit on calls of the plugin's HELLO, or 8 if that is more.
    pub calls: usize,
    pub steps: Vec<Step>,
}

/// How a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// Without error.
    Well,
    /// The same, or as cancelled: the CANCEL and the END may have crossed.
    WellOrCancelled,
    /// `failed_precondition`, `pb.inactive`.
    Inactive,
    /// `failed_precondition`, `pb.already_active`.
    AlreadyActive,
    /// `unimplemented`.
    Unimplemented,
    /// With an error; which, depends on whether the plugin is full.
    Refused,
}

/// What a step leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Due {
    /// It makes no sense here, and is not done.
    Nothing,
    /// It is sent, and nothing comes of it.
    Silence,
    /// The call is open, and ends later.
    Open,
    /// This END comes.
    End(Ending),
    /// These calls end, in any order, and then the step itself, well.
    Drain(Vec<(u32, Ending)>),
    Pong,
}

/// What the host knows, and so what is due.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Oracle {
    calls: usize,
    is_active: bool,
    /// The calls so far, and whether each is open, and cancelled.
    known: BTreeMap<u32, At>,
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Open,
    Cancelled,
    Over,
}

impl Oracle {
    /// After the handshake with a plugin that takes so many calls at once.
    #[must_use]
    pub fn new(calls: usize) -> Self {
        Self { calls, is_active: false, known: BTreeMap::new() }
    }

    /// The calls that are open, and how each must end.
    pub fn open(&self) -> impl Iterator<Item = (u32, Ending)> {
        self.known.iter().filter_map(|(call, at)| match at {
            At::Open => Some((*call, Ending::Well)),
            At::Cancelled => Some((*call, Ending::WellOrCancelled)),
            At::Over => None,
        })
    }

    /// What is due, after which the step is done.
    pub fn take(&mut self, step: Step) -> Due {
        let open = self.open().count();
        match step {
            Step::Activate if self.is_active => Due::End(Ending::AlreadyActive),
            Step::Activate => {
                self.is_active = true;
                Due::End(Ending::Well)
            }
            Step::Deactivate | Step::Unknown | Step::Sleep { .. } if !self.is_active => {
                Due::End(Ending::Inactive)
            }
            Step::Deactivate => {
                self.is_active = false;
                let open: Vec<_> = self.open().collect();
                self.known.values_mut().for_each(|at| *at = At::Over);
                Due::Drain(open)
            }
            Step::Unknown if open < self.calls => Due::End(Ending::Unimplemented),
            Step::Unknown => Due::End(Ending::Refused),
            Step::Sleep { call, .. } if open < self.calls && !self.known.contains_key(&call) => {
                self.known.insert(call, At::Open);
                Due::Open
            }
            Step::Sleep { .. } => Due::Nothing,
            Step::Cancel { call } => match self.known.get_mut(&call) {
                None => Due::Nothing,
                Some(At::Over) => Due::Silence,
                Some(at) => {
                    *at = At::Cancelled;
                    Due::Silence
                }
            },
            Step::Await { call } => {
                let ending = self.open().find(|(each, _)| *each == call);
                let Some((_, ending)) = ending else { return Due::Nothing };
                self.known.insert(call, At::Over);
                Due::End(ending)
            }
            Step::Stray { .. } | Step::Note => Due::Silence,
            Step::Fence => Due::Pong,
        }
    }
}

impl Walk {
    /// So many steps, most of which make sense where they stand.
    pub fn random(rng: &mut fastrand::Rng, calls: usize, steps: usize) -> Self {
        let mut oracle = Oracle::new(calls);
        let (mut walk, mut next) = (Self { calls, steps: Vec::new() }, 1);
        while walk.steps.len() < steps {
            let open: Vec<u32> = oracle.open().map(|(call, _)| call).collect();
            let one = |rng: &mut fastrand::Rng| open[rng.usize(..open.len())];
            let step = match rng.u32(0..13) {
                0 => Step::Activate,
                1 => Step::Deactivate,
                2 => Step::Unknown,
                3..=6 if open.len() < calls => {
                    next += 1;
                    Step::Sleep { call: next - 1, ms: rng.u32(0..12) }
                }
                7 if !open.is_empty() => Step::Cancel { call: one(rng) },
                8 if !open.is_empty() => Step::Await { call: one(rng) },
                9 => Step::Stray { id: rng.u32(1000..2000) * 2 + 100_001 },
                10 => Step::Note,
                // One that was, and may be over.
                11 if next > 1 => Step::Cancel { call: rng.u32(1..next) },
                _ => Step::Fence,
            };
            oracle.take(step);
            walk.steps.push(step);
        }
        walk
    }

    /// Does all steps in a session that is Ready, and ends it.
    ///
    /// # Errors
    /// What came instead of what was due.
    pub fn run(&self, s: &mut Session) -> Result<(), Stop> {
        s.walk = Some(self.clone());
        let mut oracle = Oracle::new(self.calls);
        let mut ids: BTreeMap<u32, u32> = BTreeMap::new();
        for (at, step) in self.steps.iter().enumerate() {
            let due = oracle.take(*step);
            if due == Due::Nothing {
                continue;
            }
            s.remark(format!("step {}: {step}", at + 1));
            let id = match *step {
                Step::Activate => s.call("plugin.activate", map! {"grant": list![]}),
                Step::Deactivate => s.call("plugin.deactivate", ()),
                Step::Unknown => s.call("grease.walk", ()),
                Step::Sleep { call, ms } => {
                    let id = s.call("tck.sleep", map! {"ms": ms});
                    ids.insert(call, id);
                    id
                }
                Step::Cancel { call } => {
                    let id = ids.get(&call).copied().unwrap_or(0);
                    s.cancel(id);
                    id
                }
                Step::Await { call } => ids.get(&call).copied().unwrap_or(0),
                Step::Stray { id } => {
                    s.cancel(id);
                    id
                }
                Step::Note => {
                    s.send(&Frame::new(NOTE, 0, &map! {"topic": "grease.walk"}, ()));
                    0
                }
                Step::Fence => {
                    s.fence()?;
                    0
                }
            };
            match due {
                Due::End(ending) => ends(s, id, ending)?,
                Due::Drain(open) => {
                    for (call, ending) in open {
                        ends(s, ids[&call], ending)?;
                    }
                    ends(s, id, Ending::Well)?;
                }
                Due::Nothing | Due::Silence | Due::Open | Due::Pong => {}
            }
        }
        let open: Vec<_> = oracle.open().collect();
        for (call, ending) in open {
            ends(s, ids[&call], ending)?;
        }
        s.fence()?;
        s.none("END of no call", |got| got.kind == END)?;
        s.goodbye()
    }
}

/// A fault by which walks are told to fail in the same way: of which check, and what was due,
/// whatever ids and times it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    check: String,
    expected: String,
}

impl Fault {
    pub fn new(check: &str, failure: &Failure) -> Self {
        let expected = failure.expected.chars().filter(|it| !it.is_ascii_digit()).collect();
        Self { check: check.to_owned(), expected }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, expected {}", self.check, self.expected)
    }
}

impl Walk {
    /// Takes the walk with a new process, and records it if it shows the fault.
    ///
    /// # Errors
    /// If it could not be taken at all.
    pub fn shows(&self, fault: &Fault, subject: &Subject) -> Result<Option<Recording>, Stop> {
        let mut case = Case::new(subject, 0);
        let mut session = case.ready()?;
        let taken = self.run(&mut session);
        drop(session);
        let own = match taken {
            Ok(()) => None,
            Err(Stop::Fail(failure)) => Some((RANDOM, failure)),
            Err(stop) => return Err(stop),
        };
        let Some(conversation) = case.conversations().pop() else { return Ok(None) };
        let watched = conversation.violations.iter().map(|broken| {
            let (expected, seen) = (broken.expected.clone(), broken.seen.clone());
            let entry = Some(broken.entry);
            (broken.check, Failure { expected, seen, conversation: None, entry })
        });
        let mut all = own.into_iter().chain(watched);
        let shown = all.find(|(check, failure)| Fault::new(check, failure) == *fault);
        Ok(shown.map(|(check, failure)| Recording::of(check, 0, Some(failure), &conversation)))
    }
}

fn ends(s: &mut Session, id: u32, due: Ending) -> Result<(), Stop> {
    let end = s.end(id)?;
    let refused = |due: &Refusal| s.is_refusal(&end, due);
    match due {
        Ending::Well => s.is_ok(&end),
        Ending::WellOrCancelled => {
            let code = end.err().and_then(|err| err.str("code"));
            if code == Some("cancelled") { Ok(()) } else { s.is_ok(&end) }
        }
        Ending::Inactive => refused(&INACTIVE),
        Ending::AlreadyActive => refused(&ALREADY_ACTIVE),
        Ending::Unimplemented => refused(&UNIMPLEMENTED),
        Ending::Refused if end.err().is_some() => Ok(()),
        Ending::Refused => Err(s.differs(&end, format!("END #{id} with an error"), "none")),
    }
}

/// Makes a walk shorter for as long as `fails` says that what is left fails as the whole did: delta
/// debugging over the steps, then sleeps of no time. The result is minimal: without any one step it
/// does not fail any more.
///
/// # Errors
/// Those of `fails`.
pub fn shrink<E>(walk: &Walk, mut fails: impl FnMut(&Walk) -> Result<bool, E>) -> Result<Walk, E> {
    let with = |steps: Vec<Step>| Walk { calls: walk.calls, steps };
    let mut steps = walk.steps.clone();
    let mut pieces = 2;
    while !steps.is_empty() {
        let size = steps.len().div_ceil(pieces);
        let mut shorter = None;
        for from in (0..steps.len()).step_by(size) {
            let mut left = steps.clone();
            left.drain(from..(from + size).min(steps.len()));
            if fails(&with(left.clone()))? {
                shorter = Some(left);
                break;
            }
        }
        match shorter {
            Some(left) => {
                steps = left;
                pieces = (pieces - 1).max(2);
            }
            None if size == 1 => break,
            None => pieces = (pieces * 2).min(steps.len()),
        }
    }
    for at in 0..steps.len() {
        let Step::Sleep { call, ms } = steps[at] else { continue };
        let mut left = steps.clone();
        left[at] = Step::Sleep { call, ms: 0 };
        if ms > 0 && fails(&with(left.clone()))? {
            steps = left;
        }
    }
    Ok(with(steps))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(seed: u64) -> Walk {
        Walk::random(&mut fastrand::Rng::with_seed(seed), 8, 400)
    }

    #[test]
    fn a_walk_goes_everywhere_and_the_seed_repeats_it() {
        assert_eq!(random(7), random(7));
        assert_ne!(random(7), random(8));
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..20 {
            let (walk, mut oracle) = (random(seed), Oracle::new(8));
            assert_eq!(walk.steps.len(), 400);
            for step in walk.steps {
                let due = match oracle.take(step) {
                    Due::Drain(open) if open.is_empty() => "drain of nothing".into(),
                    Due::Drain(_) => "drain".into(),
                    other => format!("{other:?}"),
                };
                seen.insert(due);
            }
        }
        for due in [
            "drain",
            "drain of nothing",
            "Silence",
            "Open",
            "Pong",
            "End(Well)",
            "End(WellOrCancelled)",
            "End(Inactive)",
            "End(AlreadyActive)",
            "End(Unimplemented)",
        ] {
            assert!(seen.contains(due), "{due} in {seen:?}");
        }
    }

    #[test]
    fn a_step_that_makes_no_sense_is_not_done() {
        let mut oracle = Oracle::new(1);
        let mut take = |step| oracle.take(step);
        assert_eq!(take(Step::Cancel { call: 1 }), Due::Nothing);
        assert_eq!(take(Step::Await { call: 1 }), Due::Nothing);
        assert_eq!(take(Step::Activate), Due::End(Ending::Well));
        assert_eq!(take(Step::Sleep { call: 1, ms: 1 }), Due::Open);
        assert_eq!(take(Step::Sleep { call: 1, ms: 1 }), Due::Nothing);
        assert_eq!(take(Step::Sleep { call: 2, ms: 1 }), Due::Nothing);
        assert_eq!(take(Step::Unknown), Due::End(Ending::Refused));
        assert_eq!(take(Step::Cancel { call: 1 }), Due::Silence);
        assert_eq!(take(Step::Deactivate), Due::Drain(vec![(1, Ending::WellOrCancelled)]));
        assert_eq!(take(Step::Await { call: 1 }), Due::Nothing);
    }

    /// The fault needs three steps in order, far apart.
    #[test]
    fn what_is_left_after_shrinking_is_all_that_is_needed() {
        let mut walk = random(7);
        let needed = [Step::Sleep { call: 901, ms: 9 }, Step::Note, Step::Cancel { call: 901 }];
        for (at, step) in [(50, needed[0]), (200, needed[1]), (390, needed[2])] {
            walk.steps.insert(at, step);
        }
        let mut tries = 0;
        let short = shrink(&walk, |walk| {
            tries += 1;
            let mut steps = walk.steps.iter();
            let sleeps = |step: &Step| matches!(step, Step::Sleep { call: 901, .. });
            let has = steps.any(sleeps)
                && steps.any(|step| *step == needed[1])
                && steps.any(|step| *step == needed[2]);
            Ok::<_, ()>(has)
        });
        let due = [Step::Sleep { call: 901, ms: 0 }, Step::Note, Step::Cancel { call: 901 }];
        assert_eq!(short.unwrap().steps, due);
        assert!(tries < 400, "{tries}");
        assert_eq!(shrink(&walk, |_| Err("stop")), Err("stop"));
        let none = shrink(&walk, |_| Ok::<_, ()>(true)).unwrap();
        assert_eq!(none.steps, []);
    }
}
