//! A supervisor that is killed leaves nothing, whenever it is.
//!
//! The supervisor is a process of its own, this test's program again, with plugins that
//! start others, that hide them, that come and go all the time, and that must be killed.

use std::{
    any::type_name,
    env,
    io::{BufRead, BufReader},
    num::NonZero,
    process::{Child, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use plugbay_supervisor::{
    PluginPlan, Supervisor,
    isolation::Machine,
    plan::{Ceilings, Level, Plan},
};

use crate::world::{MARK, Mark, cgroups, command, enter_own_cgroup, eventually, remove_own_cgroup};

/// How often a supervisor is killed in each run of the tests.
const KILLS: u32 = 20;
/// And when somebody asks for it.
const KILLS_MANY: u32 = 300;
/// Tells a process of ours that it is a supervisor: what kind of one.
pub(crate) const VICTIM: &str = "PLUGBAY_TEST_VICTIM";

/// A plan for the fixture in a supervisor that is a victim itself.
pub(crate) fn marked(name: &str, mode: &str, level: Level) -> PluginPlan {
    let mut plan = PluginPlan::new(name, command(mode), "/");
    plan.env.insert(MARK.to_owned(), env::var(MARK).expect("it is marked"));
    plan.prefix = Some(name.into());
    plan.limits.processes = (level != Level::None).then_some(64);
    plan.sandbox.level = level;
    plan
}

/// Runs a victim's life on a runtime and in a cgroup of its own.
pub(crate) fn live<T>(life: impl Future<Output = T>) -> T {
    enter_own_cgroup();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be built").block_on(life)
}

/// A supervisor that says how far it is, and lives until it is killed. After it is up it
/// ends and starts one plugin again and again, which it has to kill each time.
fn victim(level: &str) {
    let level = if level == "none" { Level::None } else { Level::Standard };
    live(async {
        println!("tries the machine");
        Machine::here();
        println!("starts the plugins");
        let mut tough = marked("tough", "ignores-term life=60", level);
        for time in [
            &mut tough.timeouts.drain,
            &mut tough.timeouts.exit_grace,
            &mut tough.timeouts.eof_grace,
            &mut tough.timeouts.term_grace,
        ] {
            *time = Duration::from_millis(5);
        }
        let (memory_bytes, processes) = (Some(4 << 30), Some(512));
        let ceilings = Ceilings { memory_bytes, cpu_percent: Some(400), processes };
        let plan = Plan { plugins: vec![tough], ceilings };
        let mut builder = Supervisor::builder().plan(plan);
        for (name, mode) in [
            ("escapes", "escape-child life=60"),
            ("daemon", "kin way=daemon n=2 life=60"),
            ("hops", "kin way=hopper holds=none life=60"),
            ("good", "good life=60"),
        ] {
            if level != Level::None || name == "escapes" {
                builder = builder.plugin(marked(name, mode, level));
            }
        }
        let supervisor = builder.start().expect("the plan is sound");
        let names: Vec<String> = supervisor.plugins().into_iter().map(|it| it.name).collect();
        let ready = names.iter().map(|name| supervisor.ready(name));
        for it in futures::future::join_all(ready).await {
            it.expect("it comes up");
        }
        println!("is up");
        if level == Level::None {
            return std::future::pending().await;
        }
        loop {
            supervisor.stop("tough").await.expect("it is there");
            supervisor.resume("tough").expect("it is there");
            supervisor.ready("tough").await.expect("it comes up again");
        }
    });
}

/// Starts this program again, to be what the test of that name makes of itself.
pub(crate) fn start_victim<F>(_: F, kind: &str, mark: &Mark) -> Child {
    let name = type_name::<F>();
    let name = name.split_once("::").map_or(name, |(_, rest)| rest);
    Command::new(env::current_exe().expect("this is a file"))
        .args([name, "--exact", "--nocapture", "--test-threads=1", "--include-ignored"])
        .env(VICTIM, kind)
        .env(MARK, mark.pair().1)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the test binary starts")
}

/// What a victim says, line by line.
pub(crate) fn says(victim: &mut Child) -> BufReader<ChildStdout> {
    BufReader::new(victim.stdout.take().expect("a pipe"))
}

/// Reads up to a line that ends with this, and gives it whole.
pub(crate) fn wait_for(said: &mut impl BufRead, word: &str) -> String {
    let mut lines = said.lines().map(|line| line.expect("text"));
    lines.find(|line| line.ends_with(word)).unwrap_or_else(|| panic!("it never said {word:?}"))
}

pub(crate) fn kill_and_reap(victim: &mut Child) {
    victim.kill().expect("it is ours");
    victim.wait().expect("it is ours");
}

/// Nothing that a supervisor has started or made is there any more, soon.
pub(crate) fn nothing_is_left(victim: &Child, mark: &Mark) {
    eventually("all that it started to be gone", || mark.processes().is_empty());
    eventually("its cgroups to be gone", || cgroups(victim.id()).is_empty());
    remove_own_cgroup(victim.id());
}

#[test]
fn nothing_survives_a_supervisor_that_is_killed_at_any_moment() {
    if let Ok(level) = env::var(VICTIM) {
        return victim(&level);
    }
    kill_at_any_moment(nothing_survives_a_supervisor_that_is_killed_at_any_moment, KILLS);
}

#[test]
#[ignore = "takes minutes; see CONTRIBUTING.md"]
fn nothing_survives_in_many_kills() {
    if let Ok(level) = env::var(VICTIM) {
        return victim(&level);
    }
    kill_at_any_moment(nothing_survives_in_many_kills, KILLS_MANY);
}

/// While others have the processors, all happens in another order.
#[test]
#[ignore = "takes minutes; see CONTRIBUTING.md"]
fn nothing_survives_in_many_kills_on_a_busy_machine() {
    if let Ok(level) = env::var(VICTIM) {
        return victim(&level);
    }
    let (done, cores) = (AtomicBool::new(false), thread::available_parallelism());
    thread::scope(|scope| {
        for _ in 0..cores.map_or(2, NonZero::get) {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        // Also if it fails, or the others would never end.
        let _idle = Idle(&done);
        kill_at_any_moment(nothing_survives_in_many_kills_on_a_busy_machine, KILLS_MANY);
    });
}

struct Idle<'a>(&'a AtomicBool);

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Starts the supervisor that `test` is when it is a victim, and kills it, again and again.
fn kill_at_any_moment<F: Copy>(test: F, kills: u32) {
    for round in 0..kills {
        let mark = Mark::new();
        let mut victim = start_victim(test, "standard", &mark);
        let mut said = says(&mut victim);
        // Mostly while it starts its plugins, and as often while it kills one of them.
        let (moment, within) = match round % 5 {
            0 => ("tries the machine", 12_000),
            1 | 2 => ("starts the plugins", 40_000),
            _ => ("is up", 80_000),
        };
        wait_for(&mut said, moment);
        thread::sleep(Duration::from_micros(fastrand::u64(0..within)));
        kill_and_reap(&mut victim);
        nothing_is_left(&victim, &mark);
    }
    println!("{kills} supervisors killed, nothing left");
}

/// The same without walls, which shows that such a test can fail.
#[test]
fn without_a_keeper_something_survives() {
    if let Ok(level) = env::var(VICTIM) {
        return victim(&level);
    }
    let mark = Mark::new();
    let mut victim = start_victim(without_a_keeper_something_survives, "none", &mark);
    let mut said = says(&mut victim);
    wait_for(&mut said, "is up");
    let before = mark.wait_for(4);
    kill_and_reap(&mut victim);
    // The supervisor carries the mark too; the plugins leave at the end of their stdin or
    // are still ignoring it.
    let left = || -> Vec<u32> { mark.processes().intersection(&before).copied().collect() };
    eventually("one that reads its stdin to be gone", || left().len() <= 2);
    let left = left();
    assert!(!left.is_empty(), "the child that hides lives on");
    for pid in left {
        let pid = Pid::from_raw(i32::try_from(pid).expect("a pid"));
        kill(pid, Signal::SIGKILL).expect("it is ours");
    }
    mark.wait_for(0);
    remove_own_cgroup(victim.id());
}
