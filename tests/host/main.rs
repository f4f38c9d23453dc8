//! The whole zoo against this supervisor, judged by the suite that shares no code with it; and hosts
//! with one fault each, which the suite must find. In a program of its own, so that it runs alone.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use plugbay_tck::{
    host::{
        Terms, probe, run,
        zoo::{Animal, Zoo, all},
    },
    process::Program,
    run::{Outcome, Status},
};

/// One at a time: both load the machine, and have clocks.
static ALONE: Mutex<()> = Mutex::new(());

const ADAPTER: &str = env!("CARGO_BIN_EXE_plugbay-host");

fn terms(scale: f64, jobs: usize) -> Terms {
    Terms { seed: 7, scale, jobs, interrupted: Arc::default() }
}

fn program(argv: &[&str]) -> Program {
    let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
    Program::find(&argv, BTreeMap::new()).unwrap()
}

fn animals(names: &[&str]) -> Vec<&'static Animal> {
    let all = all().iter().filter(|it| names.is_empty() || names.contains(&it.name));
    let found: Vec<_> = all.collect();
    assert!(names.len() <= found.len(), "{names:?}");
    found
}

#[test]
fn this_supervisor_brings_every_plugin_of_the_zoo_to_the_end_that_the_spec_names() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (zoo, adapter) = (Zoo::open().unwrap(), program(&[ADAPTER]));
    let terms = terms(2.0, 8);
    assert_eq!(probe(&adapter, &terms).unwrap().name, "plugbay-supervisor");
    let all = animals(&[]);
    let mut outcomes = run(&adapter, &zoo, &all, &terms, &|_| ());
    assert_eq!(outcomes.len(), all.len());
    let failed = |it: &&Outcome| it.status != Status::Pass;
    // On a busy machine a plugin may be too slow to show what it is.
    let again: Vec<&str> = outcomes.iter().filter(failed).map(|it| it.id).collect();
    if !again.is_empty() {
        let slow = Terms { scale: 6.0, jobs: 2, ..terms };
        outcomes = run(&adapter, &zoo, &animals(&again), &slow, &|_| ());
    }
    let bad: Vec<_> = outcomes.iter().filter(failed).map(|it| (it.id, &it.reason)).collect();
    assert!(bad.is_empty(), "{bad:#?}");
    assert!(all.len() >= 194, "{}", all.len());
}

/// What the judge says of a host that is right but for this.
const FAULTS: &[(&str, &str, &str)] = &[
    ("loses", "plain", "expected an answer to order"),
    ("twice", "plain", "expected one answer to each order"),
    ("blocked", "plain", "expected the healthy sibling to answer meanwhile"),
    ("wrong", "plain", "in step echo, saw another result"),
    ("item", "plain", "in step emit, saw item 0 is"),
    ("code", "plain", "expected tck.fail to end with not_found tck.missing"),
    ("patient", "plain", "saw nothing of it in"),
    ("deaf", "plain", "expected tck.sleep to end with cancelled"),
    ("accepts", "HS-01", "expected a start that fails"),
    ("quiet", "plain", "expected one end told of each of the 1 processes"),
    ("guesses", "CA-06", "in step bad-note because of protocol, saw exited"),
    ("kills", "CA-06", "expected the plugin to read CLOSE bad_state, saw no CLOSE"),
    ("offers", "plain", "expected nothing to be offered that may not be, saw tck.more"),
    ("serves", "SC-04", "expected no call of host.tck.deny to reach the service"),
    ("leaves", "plain", "expected nothing to be left of the subject, saw 1 processes"),
    ("zombie", "plain", "was never waited for"),
    ("crashes", "CA-06", "saw the adapter ended with exit code 101"),
    ("fails", "plain", "expected the adapter to end with 0"),
    ("stays", "plain", "expected the adapter to end when its stdin does"),
    ("restarts", "plain", "expected the plugin to be left alone in step fail"),
    ("breaks", "plain", "expected the host to keep the rules towards the subject"),
];

#[test]
fn a_host_with_one_fault_is_found_out() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let zoo = Zoo::open().unwrap();
    let twin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tck/fixtures/host_twin.py");
    let twin = twin.to_str().unwrap();
    let judge = |fault: &str, name: &str, scale: f64| {
        let adapter = program(&["python3", "-B", "-S", twin, fault, "--", ADAPTER]);
        let outcomes = run(&adapter, &zoo, &animals(&[name]), &terms(scale, 1), &|_| ());
        outcomes.into_iter().next().unwrap()
    };
    let none = judge("none", "plain", 4.0);
    assert_eq!(none.status, Status::Pass, "{:?}", none.reason);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while let Some((fault, name, due)) =
                    FAULTS.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let is_found = |scale| {
                        let Outcome { status, reason, .. } = judge(fault, name, scale);
                        let reason = reason.unwrap_or_default();
                        let is_due = status == Status::Fail && reason.contains(due);
                        if is_due { Ok(()) } else { Err(format!("{fault}: {status:?} {reason}")) }
                    };
                    // On a busy machine something else may come too late before it is seen.
                    is_found(1.0).or_else(|_| is_found(3.0)).unwrap();
                }
            });
        }
    });
}
