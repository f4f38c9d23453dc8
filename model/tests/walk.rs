//! The oracle of the suite's random walks is held against the tables of the law, in every order of
//! steps: `plugbay-tck` shares no code with anything, so nothing else keeps the two together.

use plugbay_model::table::{At, Side, Verdict, gate, receive};
use plugbay_tck::walk::{Due, Ending, Oracle, Step};
use stateright::{Checker, Model, Property};

/// The calls that there are, and how many the plugin takes at once: one fewer, so that it is full.
const CALLS: [u32; 3] = [1, 2, 3];
const AT_ONCE: usize = 2;

/// A line of the law read wrong, which must be found.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// A plugin that is not active runs what it is called for.
    NoGate,
    /// CANCEL of a call that is over is a violation.
    LateCancel,
    /// CANCEL changes nothing.
    DeafToCancel,
    /// A second activation runs.
    ActiveTwice,
}

/// What the law says about a host's steps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Law {
    stage: &'static str,
    calls: [At; 3],
}

impl Law {
    fn at(&mut self, call: u32) -> &mut At {
        &mut self.calls[call as usize - 1]
    }

    /// What the plugin's gate does with a call: `None` if it runs it.
    fn gate(&self, method: &'static str, fault: Option<Fault>) -> Option<Ending> {
        let line = match (fault, self.stage, method) {
            (Some(Fault::NoGate), "Ready", "tool.call") => "run",
            (Some(Fault::ActiveTwice), "Active", "plugin.activate") => "run",
            _ => gate(self.stage, method),
        };
        match line {
            "run" => None,
            "END failed_precondition pb.inactive retry safe" => Some(Ending::Inactive),
            "END failed_precondition pb.already_active retry no" => Some(Ending::AlreadyActive),
            other => panic!("no walk meets {other:?}"),
        }
    }

    /// How a call ends that is here: the caller accepts its END.
    fn end(&mut self, call: u32) -> Option<Ending> {
        let at = self.at(call);
        let ending = if at.is_cancelled() { Ending::WellOrCancelled } else { Ending::Well };
        let Verdict::Accept(next) = receive(Side::Caller, *at, "END") else { return None };
        *at = next;
        Some(ending)
    }

    fn take(&mut self, step: Step, fault: Option<Fault>) -> Due {
        let open = self.calls.iter().filter(|at| at.is_open()).count();
        let silent = |verdict| match verdict {
            Verdict::Accept(_) | Verdict::Drop | Verdict::Ignore => Due::Silence,
            // A host does not do what ends the conversation.
            Verdict::Close(_) => Due::Nothing,
        };
        match step {
            Step::Activate => match self.gate("plugin.activate", fault) {
                Some(ending) => Due::End(ending),
                None => {
                    self.stage = "Active";
                    Due::End(Ending::Well)
                }
            },
            Step::Deactivate => match self.gate("plugin.deactivate", fault) {
                Some(ending) => Due::End(ending),
                None => {
                    let all = CALLS.map(|call| (call, self.end(call)));
                    self.stage = "Ready";
                    let ended = all.into_iter().filter_map(|(call, end)| Some((call, end?)));
                    Due::Drain(ended.collect())
                }
            },
            Step::Unknown => match self.gate("tool.call", fault) {
                Some(ending) => Due::End(ending),
                None if open < AT_ONCE => Due::End(Ending::Unimplemented),
                None => Due::End(Ending::Refused),
            },
            Step::Sleep { call, .. } => match self.gate("tool.call", fault) {
                Some(ending) => Due::End(ending),
                // A walk does not fill the plugin up: what it refuses then would depend on time.
                None if open == AT_ONCE => Due::Nothing,
                None => match receive(Side::Callee, *self.at(call), "CALL") {
                    Verdict::Accept(next) => {
                        *self.at(call) = next;
                        Due::Open
                    }
                    _ => Due::Nothing,
                },
            },
            // A name that was never a call has no id; ids like that are strays.
            Step::Cancel { call } if *self.at(call) == At::Unused => Due::Nothing,
            Step::Cancel { call } => {
                let at = *self.at(call);
                let verdict = match fault {
                    Some(Fault::LateCancel) if at == At::Closed => Verdict::Close("bad_state"),
                    Some(Fault::DeafToCancel) => Verdict::Ignore,
                    _ => receive(Side::Callee, at, "CANCEL"),
                };
                if let Verdict::Accept(next) = verdict {
                    *self.at(call) = next;
                }
                silent(verdict)
            }
            Step::Await { call } => self.end(call).map_or(Due::Nothing, Due::End),
            Step::Stray { .. } => silent(receive(Side::Callee, At::Unused, "CANCEL")),
            Step::Note => silent(receive(Side::Callee, At::Unused, "NOTE")),
            Step::Fence => Due::Pong,
        }
    }
}

/// Both, and whether they have said the same so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Both {
    oracle: Oracle,
    law: Law,
    agree: bool,
    met: Option<Due>,
}

struct Walks(Option<Fault>);

impl Model for Walks {
    type State = Both;
    type Action = Step;

    fn init_states(&self) -> Vec<Both> {
        let law = Law { stage: "Ready", calls: [At::Unused; 3] };
        vec![Both { oracle: Oracle::new(AT_ONCE), law, agree: true, met: None }]
    }

    fn actions(&self, state: &Both, actions: &mut Vec<Step>) {
        if !state.agree {
            return;
        }
        actions.extend([Step::Activate, Step::Deactivate, Step::Unknown, Step::Note, Step::Fence]);
        actions.push(Step::Stray { id: 100_001 });
        for call in CALLS {
            actions.extend([
                Step::Sleep { call, ms: 0 },
                Step::Cancel { call },
                Step::Await { call },
            ]);
        }
    }

    fn next_state(&self, state: &Both, step: Step) -> Option<Both> {
        let mut next = state.clone();
        let (says, is) = (next.oracle.take(step), next.law.take(step, self.0));
        next.agree = says == is;
        next.met = Some(says);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the oracle says what the law says", |_, both: &Both| both.agree),
            // What holds of nothing would hold as well.
            Property::sometimes(
                "two end as one drains",
                |_, both: &Both| matches!(&both.met, Some(Due::Drain(open)) if open.len() == 2),
            ),
            Property::sometimes("one is full", |_, both: &Both| {
                both.met == Some(Due::End(Ending::Refused))
            }),
            Property::sometimes("one was cancelled", |_, both: &Both| {
                both.met == Some(Due::End(Ending::WellOrCancelled))
            }),
        ]
    }
}

#[test]
fn the_oracle_of_random_walks_says_what_the_law_says() {
    let checker = Walks(None).checker().spawn_bfs().join();
    println!("walk: {} states", checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn each_line_read_wrong_is_found() {
    for fault in [Fault::NoGate, Fault::LateCancel, Fault::DeafToCancel, Fault::ActiveTwice] {
        let checker = Walks(Some(fault)).checker().spawn_bfs().join();
        let found = checker.discovery("the oracle says what the law says");
        let path = found.unwrap_or_else(|| panic!("{fault:?} is not found"));
        println!("{fault:?}: {:?}", path.into_actions());
    }
}
