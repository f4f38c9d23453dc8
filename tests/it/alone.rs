//! Each test in processes of its own, one for each kind of runtime.
//!
//! Only then do descriptors, zombies, children and memory belong to one test, so
//! that "nothing is left behind" can be said exactly while other tests run.

use std::{
    any::type_name,
    env, fs,
    fs::Permissions,
    io::Read,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
};

use crate::world::{
    CGROUPS, PROGRAMS, World, children, descriptors, enter_own_cgroup, eventually, hostile,
    patience, prisoner, remove_own_cgroup, zombies,
};

/// Tells a process of ours that it is to run one test, and on which runtime.
const ALONE: &str = "PLUGBAY_TEST_ALONE";
/// How the lines begin that are for whoever runs the tests: what came of a case, and what this
/// machine cannot try. `cargo xtask vm` counts them.
const TOLD: [&str; 5] = ["right: ", "wrong: ", "elsewhere: ", NOT_TRIED, "skipped: "];
pub(crate) const NOT_TRIED: &str = "not tried: ";
/// Who has no rights anywhere.
const NOBODY: u32 = 65_534;
/// Seconds, longer than any test takes on a busy machine; it only ends what hangs.
const HANGS: Duration = Duration::from_secs(150);

/// On what kind of machine a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum As {
    /// This one.
    Ourselves,
    /// One that allows nobody a namespace, as many containers.
    Restricted,
    /// This one, for a user without rights.
    Nobody,
    /// Both.
    RestrictedNobody,
}

/// Runs `body` in two processes of its own, on a single-threaded and on a
/// multi-threaded runtime, and fails if it leaves anything behind in either.
pub(crate) fn alone<F: AsyncFnOnce(&World)>(body: F) {
    alone_as(As::Ourselves, body);
}

/// The same as somebody else, or elsewhere.
pub(crate) fn alone_as<F: AsyncFnOnce(&World)>(who: As, body: F) {
    if let Ok(flavour) = env::var(ALONE) {
        return inside(&flavour, body);
    }
    // `it::calls::a_call_ends::{{closure}}`: the harness calls it without the crate.
    let name = type_name::<F>().trim_end_matches("::{{closure}}");
    let name = name.split_once("::").map_or(name, |(_, rest)| rest);
    let runs = ["current_thread", "multi_thread"];
    let is_nobody = matches!(who, As::Nobody | As::RestrictedNobody);
    let stage = is_nobody.then(readable_by_all);
    let runs = runs.map(|flavour| (flavour, start(name, flavour, who, stage.as_ref())));
    for (flavour, mut child) in runs {
        let said = [child.stdout.take().map(drain), child.stderr.take().map(drain)];
        let status = wait(&mut child);
        let said = said.into_iter().flatten().map(|it| it.join().expect("it only reads"));
        let said = said.collect::<Vec<_>>().join("\n");
        assert!(status, "on {flavour}:\n{said}");
        // A name that no test has would pass without this.
        assert!(said.contains("1 passed"), "{name} was not found:\n{said}");
        // Seen with `--show-output`. The first comes after what the harness says of the test.
        let start = |line: &str| TOLD.iter().filter_map(|it| line.find(it)).min();
        for line in said.lines().filter_map(|it| it.get(start(it)?..)) {
            println!("{line}, on {flavour}");
        }
        remove_own_cgroup(child.id());
    }
}

/// Our programs in a folder that everybody may read, wherever they were built.
fn readable_by_all() -> TempDir {
    let folder = tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir();
    let folder = folder.expect("a temporary folder can be made");
    let own = env::current_exe().expect("this is a file");
    for program in [own.as_path(), hostile(), prisoner()] {
        let copy = folder.path().join(program.file_name().expect("a file"));
        fs::hard_link(program, &copy)
            .or_else(|_| fs::copy(program, &copy).map(drop))
            .expect("a file can be copied");
    }
    folder
}

fn start(name: &str, flavour: &str, who: As, stage: Option<&TempDir>) -> Child {
    let own = env::current_exe().expect("this is a file");
    let at = |program: &Path| match (stage, program.file_name()) {
        (Some(stage), Some(name)) => stage.path().join(name),
        _ => program.to_owned(),
    };
    let mut command = match who {
        As::Ourselves | As::Nobody => Command::new(at(&own)),
        As::Restricted | As::RestrictedNobody => {
            let mut command = Command::new(at(prisoner()));
            command.arg("--restrict").arg(at(&own));
            command
        }
    };
    if let Some(stage) = stage {
        command.env(PROGRAMS, stage.path());
        if nix::unistd::geteuid().is_root() {
            // Who may make no cgroup, here either.
            command.uid(NOBODY).gid(NOBODY).env_remove(CGROUPS);
        }
    }
    command
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
    let hangs = patience(HANGS);
    let end = Instant::now() + hangs;
    loop {
        if let Some(status) = child.try_wait().expect("it is our child") {
            return status.success();
        }
        if end < Instant::now() {
            child.kill().expect("it is our child");
            child.wait().expect("it is our child");
            eprintln!("killed: it still ran after {hangs:?}");
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn inside<F: AsyncFnOnce(&World)>(flavour: &str, body: F) {
    let runtime = || runtime(flavour);
    enter_own_cgroup();
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
