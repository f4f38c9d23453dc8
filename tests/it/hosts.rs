//! What a host may do or suffer that no plugin should pay for, or live by.

use std::{env, fs, io::BufRead, thread, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use plugbay_supervisor::{Call, Caller, Supervisor, plan::Level};
use serde_json::json;

use crate::{
    alone::alone,
    kills::{VICTIM, kill_and_reap, live, marked, nothing_is_left, says, start_victim, wait_for},
    modes::ms,
    raw,
    world::Mark,
};

fn pid(number: u32) -> Pid {
    Pid::from_raw(i32::try_from(number).expect("a pid"))
}

/// The processes that a supervisor has started, which are its plugins' outer guards.
fn guards(supervisor: u32) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{supervisor}/task")).expect("it lives");
    let lists = threads.flatten().map(|it| fs::read_to_string(it.path().join("children")));
    let numbers = |text: String| {
        text.split_whitespace().map(|it| pid(it.parse().expect("a number"))).collect::<Vec<_>>()
    };
    lists.map_while(Result::ok).flat_map(numbers).collect()
}

/// A supervisor with one plugin, whose child hides. `forks`: and with a fork of itself.
fn host(kind: &str) {
    live(async {
        let plan = marked("p", "escape-child life=60", Level::Standard);
        let supervisor = Supervisor::builder().plugin(plan).start().expect("the plan is sound");
        supervisor.ready("p").await.expect("it comes up");
        if kind == "forks" {
            println!("{} is the fork", raw::fork_and_stay(60));
        }
        println!("is up");
        std::future::pending::<()>().await;
    });
}

#[test]
fn a_guard_that_is_stopped_ends_the_plugin_when_its_host_is_killed() {
    if let Ok(kind) = env::var(VICTIM) {
        return host(&kind);
    }
    let mark = Mark::new();
    let test = a_guard_that_is_stopped_ends_the_plugin_when_its_host_is_killed;
    let mut victim = start_victim(test, "plain", &mark);
    let mut said = says(&mut victim);
    wait_for(&mut said, "is up");
    let guards = guards(victim.id());
    assert_eq!(guards.len(), 1, "{guards:?}");
    kill(guards[0], Signal::SIGSTOP).expect("it is ours");
    kill_and_reap(&mut victim);
    nothing_is_left(&victim, &mark);
}

/// A pipe would be held open by whoever inherits its end; a descriptor of a process is not.
#[test]
fn a_fork_of_the_host_keeps_no_plugin_alive() {
    if let Ok(kind) = env::var(VICTIM) {
        return host(&kind);
    }
    let mark = Mark::new();
    let mut victim = start_victim(a_fork_of_the_host_keeps_no_plugin_alive, "forks", &mark);
    let mut said = says(&mut victim);
    let fork = wait_for(&mut said, "is the fork");
    let fork = fork.split(' ').find_map(|it| it.parse().ok()).expect("its number");
    wait_for(&mut said, "is up");
    kill_and_reap(&mut victim);
    let left = mark.wait_for(1);
    assert_eq!(left, [fork].into(), "the fork itself is the host's affair");
    kill(pid(fork), Signal::SIGKILL).expect("it is ours");
    nothing_is_left(&victim, &mark);
}

/// The signal that a parent's death sends comes when its *thread* ends.
#[test]
fn a_plugin_outlives_the_thread_that_started_it() {
    alone(async |world| {
        for level in [Level::None, Level::Standard] {
            let mut plan = world.plugin("p", "good");
            plan.sandbox.level = level;
            let started = thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.expect("a runtime can be built");
                let supervisor = runtime.block_on(async {
                    let supervisor = Supervisor::builder().plugin(plan).start();
                    let supervisor = supervisor.expect("the plan is sound");
                    supervisor.ready("p").await.expect("it comes up");
                    supervisor
                });
                (runtime, supervisor)
            });
            let (runtime, supervisor) = started.join().expect("it comes up");
            let used = thread::spawn(move || {
                let caller = Caller::trusted("test");
                let registry = supervisor.registry();
                for _ in 0..50 {
                    let call = registry.call(&caller, Call::new("pid", json!({})));
                    runtime.block_on(call).expect("it answers");
                }
                let starts = supervisor.plugin("p").expect("it is there").starts;
                runtime.block_on(supervisor.shutdown());
                starts
            });
            assert_eq!(used.join().expect("it answers"), 1, "{level:?}");
        }
    });
}

/// Calls a plugin now and then, is silent otherwise, and says how it went.
fn patient_host() {
    live(async {
        let mut plan = marked("p", "good life=60", Level::Standard);
        let times = &mut plan.timeouts;
        (times.ping_after, times.ping_dead) = (ms(50), ms(400));
        (times.call_idle, times.call, times.cancel_grace) = (ms(500), ms(5000), ms(200));
        let supervisor = Supervisor::builder().plugin(plan).start().expect("the plan is sound");
        supervisor.ready("p").await.expect("it comes up");
        let (registry, caller) = (supervisor.registry(), Caller::trusted("test"));
        println!("is up");
        for round in 0..STOPS {
            println!("calls");
            let call = Call::new("p_sleep", json!({ "ms": 150 }));
            let answer = registry.call(&caller, call).await;
            if let Err(error) = answer {
                println!("round {round}: {error}");
            }
        }
        println!("{} start", supervisor.plugin("p").expect("it is there").starts);
        println!("done");
        supervisor.shutdown().await;
    });
}

const STOPS: usize = 4;

/// What came while it was stopped has come in time, as far as it can know.
#[test]
fn a_host_that_was_stopped_blames_nobody_for_the_time() {
    if env::var(VICTIM).is_ok() {
        return patient_host();
    }
    let mark = Mark::new();
    let test = a_host_that_was_stopped_blames_nobody_for_the_time;
    let mut victim = start_victim(test, "patient", &mark);
    let mut said = says(&mut victim);
    wait_for(&mut said, "is up");
    for stop in 0..STOPS as u64 {
        wait_for(&mut said, "calls");
        // Before the answer, at about the time of it, and with a PING on its way.
        thread::sleep(Duration::from_millis(40 * stop));
        kill(pid(victim.id()), Signal::SIGSTOP).expect("it is ours");
        // Longer than every budget that it gives a plugin.
        thread::sleep(Duration::from_millis(900));
        kill(pid(victim.id()), Signal::SIGCONT).expect("it is ours");
    }
    let mut rest = Vec::new();
    for line in (&mut said).lines().map(|it| it.expect("text")) {
        if line.ends_with("done") {
            break;
        }
        rest.push(line);
    }
    assert_eq!(rest, ["1 start"]);
    // It reads on, or what the harness says last would go nowhere.
    said.lines().for_each(drop);
    assert!(victim.wait().expect("it is ours").success());
    nothing_is_left(&victim, &mark);
}

/// Some hosts ignore SIGCHLD, or collect every child there is.
#[test]
fn who_collects_our_children_costs_the_status_and_no_more() {
    alone(async |world| {
        let plan = |level| {
            let mut plan = world.plugin("p", "good");
            plan.sandbox.level = level;
            plan.restart.first = Duration::from_secs(3600);
            (plan.timeouts.exit_grace, plan.timeouts.drain) = (ms(200), ms(200));
            plan
        };
        // Behind walls the helper has told how it ended; without, nobody can know.
        for (level, kind) in [(Level::None, "status_lost"), (Level::Standard, "crashed")] {
            let stage = world.supervise([plan(level)]);
            stage.up("p").await;
            raw::ignore_children();
            stage.call("crash", json!({})).await.expect_err("it dies");
            assert_eq!(stage.exit("p").await.0.kind(), kind, "{level:?}");
            stage.end().await;
            // And one that goes when it is told to.
            let stage = world.supervise([plan(level)]);
            stage.up("p").await;
            stage.down("p").await;
            assert_eq!(stage.exit("p").await.0.kind(), "stopped", "{level:?}");
            stage.end().await;
        }
    });
}
