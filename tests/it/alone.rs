//! Each test in processes of its own, one for each kind of runtime.
//!
//! Only then do descriptors, zombies, children and memory belong to one test, so
//! that "nothing is left behind" can be said exactly while other tests run.

use std::{
    any::type_name,
    env,
    io::Read,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
};

use crate::world::{World, children, descriptors, eventually, zombies};

/// Tells a process of ours that it is to run one test, and on which runtime.
const ALONE: &str = "PLUGBAY_TEST_ALONE";
/// Longer than any test takes on a busy machine; it only ends what hangs.
const HANGS: Duration = Duration::from_secs(150);

/// Runs `body` in two processes of its own, on a single-threaded and on a
/// multi-threaded runtime, and fails if it leaves anything behind in either.
pub(crate) fn alone<F: AsyncFnOnce(&World)>(body: F) {
    if let Ok(flavour) = env::var(ALONE) {
        return inside(&flavour, body);
    }
    // `it::calls::a_call_ends::{{closure}}`: the harness calls it without the crate.
    let name = type_name::<F>().trim_end_matches("::{{closure}}");
    let name = name.split_once("::").map_or(name, |(_, rest)| rest);
    let runs = ["current_thread", "multi_thread"].map(|flavour| (flavour, start(name, flavour)));
    for (flavour, mut child) in runs {
        let said = [child.stdout.take().map(drain), child.stderr.take().map(drain)];
        let status = wait(&mut child);
        let said = said.into_iter().flatten().map(|it| it.join().expect("it only reads"));
        let said = said.collect::<Vec<_>>().join("\n");
        assert!(status, "on {flavour}:\n{said}");
        // A name that no test has would pass without this.
        assert!(said.contains("1 passed"), "{name} was not found:\n{said}");
    }
}

fn start(name: &str, flavour: &str) -> Child {
    Command::new(env::current_exe().expect("this is a file"))
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(ALONE, flavour)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the test binary starts")
}

fn drain(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).expect("a pipe can be read");
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Whether it ended well. One that hangs is killed.
fn wait(child: &mut Child) -> bool {
    let end = Instant::now() + HANGS;
    loop {
        if let Some(status) = child.try_wait().expect("it is our child") {
            return status.success();
        }
        if end < Instant::now() {
            child.kill().expect("it is our child");
            child.wait().expect("it is our child");
            eprintln!("killed: it still ran after {HANGS:?}");
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn inside<F: AsyncFnOnce(&World)>(flavour: &str, body: F) {
    let runtime = || runtime(flavour);
    // What tokio opens once and keeps is open before we count.
    let warm = runtime();
    let watched = warm.block_on(async { signal(SignalKind::child()) });
    drop(watched.expect("a signal can be watched"));
    drop(warm);
    let before = descriptors();
    let world = World::new();
    let runtime = runtime();
    runtime.block_on(async {
        body(&world).await;
        world.check_facts().await;
    });
    drop(runtime);
    world.check_processes();
    assert_eq!(zombies(), [].into(), "children that nobody waited for");
    eventually("all children to be gone", || children().is_empty());
    assert_eq!(descriptors(), before, "descriptors that nobody closed");
}

fn runtime(flavour: &str) -> Runtime {
    let mut builder = match flavour {
        "multi_thread" => Builder::new_multi_thread(),
        _ => Builder::new_current_thread(),
    };
    builder.worker_threads(2).enable_all().build().expect("a runtime can be built")
}
