//! Runs the command, and fails rather than hangs.

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Far more than anything here takes. Only a hang gets that far.
pub(crate) const HANG: Duration = Duration::from_secs(120);

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Checks the exit code and that stderr has all these parts.
    #[track_caller]
    pub(crate) fn with(self, code: i32, parts: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        for part in parts {
            assert!(self.stderr.contains(part), "no {part:?} in {self:#?}");
        }
        assert!(!self.stderr.contains("PB0901") && !self.stderr.contains("panicked"), "{self:#?}");
        self
    }

    /// Checks that stdout is exactly this.
    #[track_caller]
    pub(crate) fn and_prints(self, stdout: &str) {
        assert_eq!(self.stdout, stdout, "{self:#?}");
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

pub(crate) fn plugbay<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plugbay"));
    for name in ["NO_COLOR", "CLICOLOR_FORCE", "CLICOLOR", "RUST_LOG"] {
        command.env_remove(name);
    }
    // Not where the user's own are.
    command.env("XDG_RUNTIME_DIR", env!("CARGO_TARGET_TMPDIR"));
    command.env("COLUMNS", "100").stdin(Stdio::null());
    command.args(words);
    command
}

/// Runs to the end.
#[track_caller]
pub(crate) fn run<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>) -> Ended {
    end(start(plugbay(words)))
}

/// As [`run`], in this folder.
#[track_caller]
pub(crate) fn run_in<S: AsRef<OsStr>>(dir: &Path, words: impl IntoIterator<Item = S>) -> Ended {
    let mut command = plugbay(words);
    command.current_dir(dir);
    end(start(command))
}

/// As [`run`], with this on stdin.
#[track_caller]
pub(crate) fn run_with<S: AsRef<OsStr>>(stdin: &str, words: impl IntoIterator<Item = S>) -> Ended {
    let mut command = plugbay(words);
    command.stdin(Stdio::piped());
    let mut child = start(command);
    // Who does not read it gets none of it.
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).ok();
    end(child)
}

pub(crate) fn start(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[track_caller]
pub(crate) fn end(mut child: Child) -> Ended {
    let pid = Pid::from_raw(child.id().cast_signed());
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (done, wait) = mpsc::channel();
    thread::spawn(move || {
        let stdout = thread::spawn(move || stdout.map_or(String::new(), text));
        let stderr = stderr.map_or(String::new(), text);
        let stdout = stdout.join().unwrap();
        let code = child.wait().unwrap().code();
        done.send(Ended { code, stdout, stderr }).ok();
    });
    wait.recv_timeout(HANG).unwrap_or_else(|_| {
        kill(pid, Signal::SIGKILL).ok();
        panic!("the command hangs");
    })
}

pub(crate) fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}

/// Waits for a line that has this in it, and goes on reading what follows.
#[track_caller]
pub(crate) fn wait_for(
    from: impl Read + Send + 'static,
    part: &'static str,
) -> thread::JoinHandle<String> {
    let (seen, wait) = mpsc::channel();
    let all = thread::spawn(move || {
        let mut all = String::new();
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if line.contains(part) {
                seen.send(()).ok();
            }
            all.push_str(&line);
            all.push('\n');
        }
        all
    });
    wait.recv_timeout(HANG).unwrap_or_else(|_| panic!("{part:?} never came"));
    all
}

fn text(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The plugin of the tutorial.
pub(crate) fn greet() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk-spec/tutorial/greet.py")
}

/// The command line of the tutorial's plugin.
pub(crate) fn greeter() -> String {
    format!("python3 '{}'", greet().display())
}

/// A fixture with a mark of its own, by which whatever is left of it is found.
#[derive(Debug)]
pub(crate) struct Fixture {
    pub(crate) command: String,
    mark: String,
}

impl Fixture {
    pub(crate) fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        Self::of(&format!("python3 -B '{}'", path.display()))
    }

    pub(crate) fn of(command: &str) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mark = format!("mark={}-{number}-end", std::process::id());
        Self { command: format!("{command} {mark}"), mark }
    }

    /// Checks that no process of it is left. One that was just killed is given the
    /// moment that the kernel takes; one that was not would stay for an hour.
    #[track_caller]
    pub(crate) fn is_gone(&self) {
        let began = Instant::now();
        let mut left = self.left();
        while !left.is_empty() && began.elapsed() < HANG {
            thread::sleep(Duration::from_millis(10));
            left = self.left();
        }
        assert!(left.is_empty(), "{:?} is left as {left:?}", self.command);
    }

    fn left(&self) -> Vec<PathBuf> {
        let all = fs::read_dir("/proc").unwrap().flatten().map(|it| it.path());
        all.filter(|path| {
            // A process may end while we look.
            let line = fs::read(path.join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&self.mark)
        })
        .collect()
    }
}
