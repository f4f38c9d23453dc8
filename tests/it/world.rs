//! What tests may look at outside their own process: the fixture, other
//! processes, descriptors, folders. And the guard that nothing is left behind.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use plugbay_supervisor::{Builder, PluginPlan};
use tempfile::TempDir;

use crate::stage::{Record, Stage};

/// Everything one test may use. [`alone`](crate::alone::alone) makes it, and looks
/// afterwards whether anything is left.
#[derive(Debug)]
pub(crate) struct World {
    mark: Mark,
    dir: TempDir,
    records: Mutex<Vec<Record>>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { mark: Mark::new(), dir: folder(), records: Mutex::default() }
    }

    /// A plan for the fixture in one mode, `plugin("greeter", "crash-after n=2")`.
    /// Its budgets are those of real life, so that only what a test makes short
    /// can run out on a busy machine.
    pub(crate) fn plugin(&self, name: &str, mode: &str) -> PluginPlan {
        self.program(name, command(mode))
    }

    /// A plan for any program.
    pub(crate) fn program(&self, name: &str, command: Vec<String>) -> PluginPlan {
        let mut plan = PluginPlan::new(name, command, self.dir.path());
        plan.env.extend([self.mark.pair()]);
        plan
    }

    /// Starts a supervisor whose facts are written down and checked.
    pub(crate) fn supervise(&self, plugins: impl IntoIterator<Item = PluginPlan>) -> Stage {
        let builder = plugins.into_iter().fold(Builder::default(), Builder::plugin);
        self.start(builder)
    }

    /// The same with more in the builder than plugins.
    pub(crate) fn start(&self, builder: Builder) -> Stage {
        let stage = Stage::new(builder.start().expect("the plan is sound"));
        self.records.lock().expect("no test panics here").push(stage.record());
        stage
    }

    /// A path in a folder that is gone after the test.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The processes of this test that live.
    pub(crate) fn processes(&self) -> BTreeSet<u32> {
        self.mark.processes()
    }

    /// Every supervisor of this test is truly gone, and what they said adds up.
    pub(crate) async fn check_facts(&self) {
        let records = std::mem::take(&mut *self.records.lock().expect("no test panics here"));
        for record in records {
            record.check().await;
        }
    }

    /// No process of this test is left.
    pub(crate) fn check_processes(&self) {
        self.mark.wait_for(0);
    }
}

/// Where our programs lie, if not where they were built.
pub(crate) const PROGRAMS: &str = "PLUGBAY_TEST_PROGRAMS";

/// The fixture's program, absolute.
pub(crate) fn hostile() -> &'static Path {
    static AT: OnceLock<PathBuf> = OnceLock::new();
    AT.get_or_init(|| program(env!("CARGO_BIN_EXE_plugbay-hostile")))
}

/// The program of the plugin that tries its walls, absolute.
pub(crate) fn prisoner() -> &'static Path {
    static AT: OnceLock<PathBuf> = OnceLock::new();
    AT.get_or_init(|| program(env!("CARGO_BIN_EXE_plugbay-prisoner")))
}

fn program(built: &str) -> PathBuf {
    match (std::env::var_os(PROGRAMS), Path::new(built).file_name()) {
        (Some(folder), Some(name)) => Path::new(&folder).join(name),
        _ => built.into(),
    }
}

/// A command line that starts the fixture: `command("crash-after n=2")`.
pub(crate) fn command(mode: &str) -> Vec<String> {
    let program = hostile().to_str().expect("the target directory has a UTF-8 path");
    [program].into_iter().chain(mode.split_whitespace()).map(str::to_owned).collect()
}

/// The name of the variable that marks the processes of one test.
pub(crate) const MARK: &str = "PLUGBAY_TEST_MARK";

/// Marks processes through their environment, which is inherited: plugins and
/// all that they start are found again, in whatever group or session they hide.
#[derive(Debug)]
pub(crate) struct Mark(String);

impl Mark {
    /// One that no other test and no other run has.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// What to put into a plugin's environment.
    pub(crate) fn pair(&self) -> (String, String) {
        (MARK.into(), self.0.clone())
    }

    /// The processes that carry the mark, zombies not included (their
    /// environment is gone; see [`zombies`]).
    pub(crate) fn processes(&self) -> BTreeSet<u32> {
        let needle = format!("{MARK}={}", self.0).into_bytes();
        pids().filter(|pid| Self::is_on(*pid, &needle)).collect()
    }

    fn is_on(pid: u32, needle: &[u8]) -> bool {
        match fs::read(format!("/proc/{pid}/environ")) {
            Ok(environ) => environ.split(|byte| *byte == 0).any(|pair| pair == needle),
            // An ordinary user may not read that of a guard: it has what its parent has, which
            // is one of ours or this process.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => match stat(pid) {
                Some(('Z' | 'X', _)) | None => false,
                Some((_, parent)) => parent == std::process::id() || Self::is_on(parent, needle),
            },
            // A process that ends while it is looked at does not count.
            Err(_) => false,
        }
    }

    /// Waits until `count` processes carry the mark, and fails after a time that
    /// no test needs unless it hangs.
    pub(crate) fn wait_for(&self, count: usize) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        eventually(&format!("{count} processes with the mark {}", self.0), || {
            found = self.processes();
            found.len() == count
        });
        found
    }
}

/// How many times longer than elsewhere a test waits before it says that something hangs: a
/// whole number, for machines that are emulated. Of a plugin's budgets only that for HELLO
/// depends on it, within which it has to come as far as to its fault.
const PATIENCE: &str = "PLUGBAY_TEST_PATIENCE";

/// A time that only turns a hang into a failure, on this machine.
pub(crate) fn patience(time: Duration) -> Duration {
    time * std::env::var(PATIENCE).map_or(1, |it| it.parse().expect("a whole number"))
}

/// Waits until something holds. The time limit only turns a hang into a failure.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = patience(Duration::from_secs(30));
    let end = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < end, "waited {limit:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Children of this process that are dead and not waited for.
pub(crate) fn zombies() -> BTreeSet<u32> {
    let own = std::process::id();
    pids().filter(|pid| matches!(stat(*pid), Some(('Z', parent)) if parent == own)).collect()
}

/// All processes that this one is the parent of, zombies included.
pub(crate) fn children() -> BTreeSet<u32> {
    let own = std::process::id();
    pids().filter(|pid| matches!(stat(*pid), Some((_, parent)) if parent == own)).collect()
}

/// The most memory this process has ever had resident, in bytes.
pub(crate) fn peak_memory() -> u64 {
    status("VmHWM:")
}

/// A line of this process's status that holds kilobytes, in bytes.
fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number.and_then(|it| it.parse::<u64>().ok()).expect("a number of kB") * 1024
}

/// State letter and parent of a process.
pub(crate) fn stat(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, parentheses included.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted");
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// What this process's descriptors point at, by number.
pub(crate) fn descriptors() -> Vec<(u32, PathBuf)> {
    let entries = fs::read_dir("/proc/self/fd").expect("/proc is mounted");
    // The directory's own descriptor is closed again by the time it is read.
    let mut open: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some((number, fs::read_link(entry.path()).ok()?))
        })
        .filter(|(_, target)| !target.to_string_lossy().ends_with("/fd"))
        .collect();
    open.sort();
    open
}

/// Whether a descriptor of this process passes to every program it starts.
pub(crate) fn is_inherited(fd: u32) -> bool {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|it| u32::from_str_radix(it.trim(), 8).ok());
    // O_CLOEXEC
    flags.is_some_and(|flags| flags & 0o2_000_000 == 0)
}

/// Folders of cgroups that a supervisor with this number has made.
pub(crate) fn cgroups(pid: u32) -> Vec<String> {
    let name = format!("plugbay-{pid}-");
    let mut found = Vec::new();
    let mut open = vec![Path::new("/sys/fs/cgroup").to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|it| it.is_dir()) {
                if entry.file_name().to_string_lossy().starts_with(&name) {
                    found.push(entry.path().display().to_string());
                }
                open.push(entry.path());
            }
        }
    }
    found
}

/// A cgroup of version 2 in which this user may make others and move processes. Each process
/// that runs a test has one of its own in it: a supervisor divides its cgroup, and version 2
/// allows that only to who is alone in it.
pub(crate) const CGROUPS: &str = "PLUGBAY_TEST_CGROUPS";

fn own_cgroup(pid: u32) -> Option<PathBuf> {
    Some(Path::new(&std::env::var_os(CGROUPS)?).join(format!("test-{pid}")))
}

/// Moves this process into a cgroup of its own, where there is a place for them.
pub(crate) fn enter_own_cgroup() {
    let pid = std::process::id();
    let Some(own) = own_cgroup(pid) else { return };
    let entered =
        fs::create_dir(&own).and_then(|()| fs::write(own.join("cgroup.procs"), pid.to_string()));
    entered.unwrap_or_else(|error| panic!("{}: {error}", own.display()));
}

/// Removes the cgroup of a test's process that is gone, which only works if nothing is left in it.
pub(crate) fn remove_own_cgroup(pid: u32) {
    let Some(own) = own_cgroup(pid) else { return };
    eventually("nothing to be left in the cgroup of a test", || {
        // Where its supervisor has gone to divide the one above.
        fs::remove_dir(own.join("supervisor")).ok();
        fs::remove_dir(&own).ok();
        !own.exists()
    });
}

/// A folder that is gone after the test.
pub(crate) fn folder() -> TempDir {
    tempfile::Builder::new()
        .prefix("plugbay-test-")
        .tempdir()
        .expect("a folder for temporary files")
}

/// The events of a fixture started with `trace=FILE`, as (pid, event).
pub(crate) fn trace(file: &Path) -> Vec<(u32, String)> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = |line: &str| {
        let (pid, event) = line.split_once(' ').expect("a traced line starts with a pid");
        (pid.parse().expect("a pid is a number"), event.to_owned())
    };
    text.lines().map(line).collect()
}

/// Ends a process that is ours, at once.
pub(crate) fn kill(pid: u32) {
    let pid = nix::unistd::Pid::from_raw(pid.try_into().expect("a process id"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("it lives");
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::Write,
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn a_marked_process_is_found_while_it_lives_and_a_zombie_until_it_is_reaped() {
        let mark = Mark::new();
        let (key, value) = mark.pair();
        let dir = folder();
        let file = dir.path().join("trace");
        let argv = command(&format!("good life=30 trace={}", file.display()));
        let mut child = Command::new(&argv[0])
            .args(&argv[1..])
            .env(key, value)
            .env("PLUGBAY_PROTOCOL", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the fixture starts");
        let pid = child.id();
        assert_eq!(mark.wait_for(1), BTreeSet::from([pid]));
        assert!(Mark::new().processes().is_empty(), "another mark finds nothing");
        child.stdin.take().expect("piped").write_all(b"").expect("open");
        eventually("the fixture to leave at the end of its stdin", || zombies().contains(&pid));
        assert!(mark.processes().is_empty());
        assert!(child.wait().expect("it is a child").success());
        assert!(!zombies().contains(&pid));
        let events: Vec<String> = trace(&file).into_iter().map(|(_, event)| event).collect();
        assert_eq!(events, ["start", "eof", "exit"]);
    }

    #[test]
    fn an_open_file_shows_up_among_the_descriptors() {
        let dir = folder();
        let path = dir.path().join("open");
        let holds = || descriptors().iter().any(|(_, target)| *target == path);
        let file = File::create(&path).expect("a writable folder");
        assert!(holds());
        drop(file);
        assert!(!holds());
    }
}
