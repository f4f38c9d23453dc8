//! One subject: a process with three pipes, in a group of its own, that is gone when
//! we are done with it.
//!
//! One thread does it all with non-blocking pipes: nothing is read that nobody asked
//! for, so a check can stop reading, and writing never waits for a subject that does
//! not read.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, Read, Write},
    os::{
        fd::AsFd,
        unix::{fs::PermissionsExt, process::CommandExt, process::ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

/// What to start.
#[derive(Clone, Debug)]
pub struct Program {
    /// The program and its arguments; the first is an absolute path.
    pub argv: Vec<String>,
    /// All of its environment, but for the cookie.
    pub env: BTreeMap<String, String>,
}

/// The variables that every subject gets, if we have them: what programs need to
/// find each other and to speak the user's language. Everything else is asked for.
const PASSED_ON: &[&str] = &["PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ"];

/// Why nothing could be started.
#[derive(Clone, Debug)]
pub struct NotStarted(pub String);

impl Program {
    /// Finds the program as a shell would, so that what is wrong can be said.
    ///
    /// # Errors
    /// What is missing, and where it was looked for.
    pub fn find(argv: &[String], extra: BTreeMap<String, String>) -> Result<Self, NotStarted> {
        let Some((name, arguments)) = argv.split_first() else {
            return Err(NotStarted("no program was named".into()));
        };
        let program = if name.contains('/') { at_path(Path::new(name))? } else { in_path(name)? };
        let own = PASSED_ON.iter().filter_map(|key| Some((*key, std::env::var(key).ok()?)));
        let mut env: BTreeMap<String, String> =
            own.map(|(key, value)| (key.to_owned(), value)).collect();
        env.extend(extra);
        let argv = std::iter::once(program.display().to_string()).chain(arguments.iter().cloned());
        Ok(Self { argv: argv.collect(), env })
    }
}

fn at_path(path: &Path) -> Result<PathBuf, NotStarted> {
    let at = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let metadata = std::fs::metadata(&at)
        .map_err(|error| NotStarted(format!("{} cannot be started: {error}", path.display())))?;
    if metadata.is_dir() {
        return Err(NotStarted(format!("{} is a folder", path.display())));
    }
    if metadata.permissions().mode() & 0o111 == 0 {
        return Err(NotStarted(format!(
            "{0} is not executable; try: chmod +x {0}",
            path.display()
        )));
    }
    Ok(at)
}

fn in_path(name: &str) -> Result<PathBuf, NotStarted> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).find_map(|folder| at_path(&folder.join(name)).ok());
    found.ok_or_else(|| {
        let here = if Path::new(name).exists() {
            format!("; for the file here, write ./{name}")
        } else {
            String::new()
        };
        NotStarted(format!("there is no program {name} in PATH{here}"))
    })
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "ended with exit code {code}"),
            Self::Signal(number) => match Signal::try_from(*number) {
                Ok(signal) => write!(f, "was ended by {signal}"),
                Err(_) => write!(f, "was ended by signal {number}"),
            },
        }
    }
}

/// What one look at the pipes brought.
#[derive(Debug, Default)]
pub struct Turn {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Something was read or written, or a pipe was closed.
    pub moved: bool,
}

/// A started process. Dropping it kills its whole group.
#[derive(Debug)]
pub struct Process {
    child: Child,
    group: Pid,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    /// What is still to be written, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// stdin shall be closed once all of `out` is written.
    closing: bool,
    exit: Option<(Exit, Instant)>,
    buffer: Vec<u8>,
}

/// How long one look waits at most: an exit or an interruption closes no pipe of ours.
const LOOK: Duration = Duration::from_millis(25);

impl Process {
    /// # Errors
    /// What the system says.
    pub fn start(program: &Program, cookie: bool) -> io::Result<Self> {
        let (name, arguments) = program.argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(name);
        command.args(arguments).env_clear().envs(&program.env).process_group(0);
        if cookie {
            command.env("PLUGBAY_PROTOCOL", "1");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let group = Pid::from_raw(child.id() as i32);
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let process = Self {
            child,
            group,
            stdin,
            stdout,
            stderr,
            out: Vec::new(),
            sent: 0,
            closing: false,
            exit: None,
            buffer: vec![0; 1 << 16],
        };
        unblock(process.stdin.as_ref())?;
        unblock(process.stdout.as_ref())?;
        unblock(process.stderr.as_ref())?;
        Ok(process)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives bytes to write, and writes what the pipe takes.
    pub fn write(&mut self, bytes: &[u8]) {
        if self.stdin.is_some() && !self.closing {
            self.out.extend_from_slice(bytes);
            self.flush();
        }
    }

    /// Bytes that the pipe has not taken yet.
    pub fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Closes stdin, after what is still to be written.
    pub fn close_stdin(&mut self) {
        self.closing = true;
        self.flush();
    }

    /// Closes our end of stdout: whoever writes to it gets an error.
    pub fn close_stdout(&mut self) {
        self.stdout = None;
    }

    /// Whether stdout may still bring something.
    pub fn is_stdout_open(&self) -> bool {
        self.stdout.is_some()
    }

    /// Whether the subject can still be written to.
    pub fn is_stdin_open(&self) -> bool {
        self.stdin.is_some()
    }

    fn flush(&mut self) -> bool {
        let mut moved = false;
        while let Some(pipe) = self.stdin.as_mut().filter(|_| self.sent < self.out.len()) {
            match pipe.write(&self.out[self.sent..]) {
                Ok(n) => {
                    self.sent += n;
                    moved = true;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    // Nobody reads any more; what it said before is still to be read.
                    self.stdin = None;
                    self.sent = self.out.len();
                    moved = true;
                }
            }
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
            if self.closing {
                self.stdin = None;
            }
        }
        moved
    }

    /// Looks at the pipes once, for at most `wait` and a little at a time: writes what
    /// is to be written and reads what is there, stdout only if `reading`.
    pub fn turn(&mut self, wait: Duration, reading: bool) -> Turn {
        let mut turn = Turn { moved: self.flush(), ..Turn::default() };
        let wait = if turn.moved { Duration::ZERO } else { wait.min(LOOK) };
        let mut fds = Vec::with_capacity(3);
        if let Some(pipe) = self.stdout.as_ref().filter(|_| reading) {
            fds.push(PollFd::new(pipe.as_fd(), PollFlags::POLLIN));
        }
        if let Some(pipe) = &self.stderr {
            fds.push(PollFd::new(pipe.as_fd(), PollFlags::POLLIN));
        }
        if let Some(pipe) = self.stdin.as_ref().filter(|_| self.sent < self.out.len()) {
            fds.push(PollFd::new(pipe.as_fd(), PollFlags::POLLOUT));
        }
        if fds.is_empty() {
            // Only its exit is awaited, which no pipe tells of.
            std::thread::sleep(wait.min(Duration::from_millis(2)));
        } else {
            poll(&mut fds, PollTimeout::try_from(wait).unwrap_or(PollTimeout::ZERO)).ok();
        }
        turn.moved |= self.flush();
        if reading {
            turn.moved |= drain(&mut self.stdout, &mut self.buffer, &mut turn.stdout);
        }
        turn.moved |= drain(&mut self.stderr, &mut self.buffer, &mut turn.stderr);
        turn
    }

    /// How it ended, if it has.
    pub fn exit(&mut self) -> Option<Exit> {
        if self.exit.is_none() {
            let status = self.child.try_wait().ok().flatten()?;
            let exit = match (status.code(), status.signal()) {
                (Some(code), _) => Exit::Code(code),
                (None, signal) => Exit::Signal(signal.unwrap_or(0)),
            };
            self.exit = Some((exit, Instant::now()));
        }
        self.exit.map(|(exit, _)| exit)
    }

    /// When we noticed that it had ended.
    pub fn exit_at(&self) -> Option<Instant> {
        self.exit.map(|(_, at)| at)
    }

    /// Whether processes of its group are left. Signal 0 only asks.
    pub fn has_group(&self) -> bool {
        killpg(self.group, None).is_ok()
    }

    /// Signals the whole group.
    pub fn signal(&self, signal: Signal) {
        // An empty group is what a signal is to lead to.
        killpg(self.group, signal).ok();
    }

    /// Kills the whole group and waits for its leader.
    pub fn kill(&mut self) {
        if self.exit().is_some() && !self.has_group() {
            return;
        }
        self.signal(Signal::SIGKILL);
        // Bounded, because the kernel may hold a process that it cannot end.
        for _ in 0..2000 {
            if self.exit().is_some() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn unblock(pipe: Option<&impl AsFd>) -> io::Result<()> {
    let Some(pipe) = pipe else { return Ok(()) };
    let flags = OFlag::from_bits_retain(fcntl(pipe, FcntlArg::F_GETFL)?);
    fcntl(pipe, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// The most that one look takes from a pipe, so that a subject that floods us cannot
/// keep us from looking at the clock.
const GULP: usize = 1 << 20;

/// Reads what is there. Closes what is over.
fn drain<R: Read>(pipe: &mut Option<R>, buffer: &mut [u8], into: &mut Vec<u8>) -> bool {
    let mut moved = false;
    while let Some(reader) = pipe.as_mut().filter(|_| into.len() < GULP) {
        match reader.read(buffer) {
            Ok(0) => *pipe = None,
            Ok(n) => into.extend_from_slice(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => *pipe = None,
        }
        moved = true;
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Process {
        let argv = ["sh", "-c", script].map(str::to_owned);
        let program =
            Program::find(&argv, BTreeMap::from([("GIVEN".into(), "yes".into())])).unwrap();
        Process::start(&program, true).unwrap()
    }

    fn finish(process: &mut Process) -> (String, String, Exit) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        loop {
            let turn = process.turn(LOOK, true);
            out.extend(turn.stdout);
            err.extend(turn.stderr);
            if let Some(exit) = process.exit().filter(|_| !turn.moved) {
                return (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap(), exit);
            }
        }
    }

    #[test]
    fn it_speaks_hears_and_ends() {
        let mut process =
            shell("read line; echo \"$line $PLUGBAY_PROTOCOL $GIVEN\"; echo words >&2; exit 3");
        process.write(b"hello\n");
        let (out, err, exit) = finish(&mut process);
        assert_eq!((out.as_str(), err.as_str(), exit), ("hello 1 yes\n", "words\n", Exit::Code(3)));
    }

    #[test]
    fn a_subject_that_does_not_read_holds_nobody_up_and_its_children_die_with_it() {
        let mut process = shell("sleep 1000 & sleep 1000");
        process.write(&vec![0; 1 << 22]);
        assert!(process.unsent() > 0);
        assert!(process.exit().is_none());
        process.kill();
        assert_eq!(process.exit(), Some(Exit::Signal(Signal::SIGKILL as i32)));
        while process.has_group() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_cannot_be_started_is_told_apart() {
        let find = |name: &str| Program::find(&[name.to_owned()], BTreeMap::new()).unwrap_err().0;
        assert!(find("no-such-program-here").contains("in PATH"));
        assert!(find("/etc/passwd").contains("not executable"));
        assert!(find("/tmp").contains("a folder"));
        assert!(find("/no/such/file").contains("No such file"));
    }
}
