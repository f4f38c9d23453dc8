//! A plan becomes a process with three pipes, and nothing else is inherited.
//!
//! The fast path of `std` is kept on purpose: an absolute program, no `pre_exec`,
//! no uid change. Anything else makes `std` fork, which costs 20 ms at 500 MiB of
//! resident parent and 150 ms at 4 GiB, where this costs under a millisecond.

use std::{
    collections::BTreeMap,
    fs::DirBuilder,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            fs::DirBuilderExt,
            process::{CommandExt, ExitStatusExt},
        },
    },
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    sys::{
        signal::{self, Signal},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, getpgid, pipe2},
};
use plugbay_shim::wire;
use tokio::{net::unix::pipe, signal::unix as watch};

use crate::{
    digest::Program,
    hang::{self, Identity, Look},
    isolation::{
        Enclosure, Held, Remains, Walls,
        helper::{Control, Evidence, Start},
    },
    plan::{Level, Limits, PluginPlan},
    reason::{DigestFault, Reason},
};

/// A started process.
pub(crate) struct Launched {
    pub(crate) process: Process,
    pub(crate) stdin: pipe::Sender,
    pub(crate) stdout: pipe::Receiver,
    pub(crate) stderr: pipe::Receiver,
}

/// Starts the plugin's program: in a process group of its own, or behind the walls
/// that its level asks for.
///
/// # Errors
/// [`Reason::SpawnFailed`], with what the system said; or why the walls cannot stand.
pub(crate) fn launch(plan: &PluginPlan, enclosure: &Enclosure) -> Result<Launched, Reason> {
    let program = plan.command.first().map_or("", String::as_str);
    let failed = |error: io::Error| spawn_failed(program, &error);
    make_folders(plan)?;
    let pipes = Pipes::new(plan).map_err(failed)?;
    if plan.sandbox.level == Level::None {
        let verified = enclosure.verified.as_deref();
        if let Some(script) = verified.filter(|it| it.is_script()) {
            let file = script.path().display().to_string();
            return Err(Reason::NotVerified { file, fault: DigestFault::NeedsView });
        }
        return spawn(plan, verified, pipes).map_err(failed);
    }
    let walls = enclosure.walls(plan)?;
    spawn_behind(plan, enclosure, walls, pipes).map_err(failed)
}

/// What a plugin is granted and has to be there.
fn make_folders(plan: &PluginPlan) -> Result<(), Reason> {
    for grant in plan.sandbox.files.iter().filter(|it| it.make) {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&grant.path);
        made.map_err(|error| Reason::SetupFailed {
            step: format!("make the folder {}", grant.path.display()),
            error: error.to_string(),
            passing: is_passing(&error),
        })?;
    }
    Ok(())
}

/// Why there is no process.
pub(crate) fn spawn_failed(program: &str, error: &io::Error) -> Reason {
    Reason::SpawnFailed {
        program: program.to_owned(),
        error: explain(error),
        missing: error.kind() == io::ErrorKind::NotFound,
        passing: is_passing(error),
    }
}

/// Whether the system was only short of something, so that the same may work a moment later.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(
        errno,
        Some(
            Errno::EAGAIN
                | Errno::ENOMEM
                | Errno::EMFILE
                | Errno::ENFILE
                | Errno::EINTR
                // Somebody is writing the program just now.
                | Errno::ETXTBSY
        )
    )
}

/// Both ends of the three pipes. Close-on-exec from birth, so that no sibling inherits
/// an end and keeps a dead plugin's pipe open.
struct Pipes {
    theirs: [OwnedFd; 3],
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    /// Listened to before the spawn, so that an exit at once is not missed.
    child_signals: watch::Signal,
}

impl Pipes {
    fn new(plan: &PluginPlan) -> io::Result<Self> {
        if !plan.command.first().is_some_and(|program| program.starts_with('/')) {
            // A bare name would be searched in PATH at every start, and the search
            // forces the slow path besides.
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the program is not an absolute path",
            ));
        }
        let (child_in, stdin) = pipe2(OFlag::O_CLOEXEC)?;
        let (stdout, child_out) = pipe2(OFlag::O_CLOEXEC)?;
        let (stderr, child_err) = pipe2(OFlag::O_CLOEXEC)?;
        let child_signals = watch::signal(watch::SignalKind::child())?;
        Ok(Self { theirs: [child_in, child_out, child_err], stdin, stdout, stderr, child_signals })
    }
}

fn spawn(plan: &PluginPlan, verified: Option<&Program>, pipes: Pipes) -> io::Result<Launched> {
    let (program, arguments) = plan.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let [child_in, child_out, child_err] = pipes.theirs;
    // Looked up by the child, before its descriptors are closed.
    let run = verified.map(|it| format!("/proc/self/fd/{}", it.memory().as_raw_fd()));
    let child = Command::new(run.as_deref().unwrap_or(program))
        .arg0(program)
        .args(arguments)
        .current_dir(&plan.dir)
        .env_clear()
        .envs(&plan.env)
        .env("PLUGBAY_PROTOCOL", "1")
        .stdin(Stdio::from(child_in))
        .stdout(Stdio::from(child_out))
        .stderr(Stdio::from(child_err))
        .process_group(0)
        .spawn()?;
    let process = Process::new(child.id(), pipes.child_signals, Kind::Direct(child));
    launched(process, pipes.stdin, pipes.stdout, pipes.stderr)
}

/// The same by way of the helper, which builds the walls and becomes the program.
fn spawn_behind(
    plan: &PluginPlan,
    enclosure: &Enclosure,
    walls: Walls,
    pipes: Pipes,
) -> io::Result<Launched> {
    let own = [("PLUGBAY_PROTOCOL", "1")].into_iter().chain(walls.env());
    let env = plan.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let env: BTreeMap<&str, &str> = env.chain(own).collect();
    let verified = enclosure.verified.as_deref();
    let argv = verified.map(|it| it.argv(&plan.command));
    let (pid, control) = enclosure.helper().start(Start {
        script: walls.script(),
        argv: argv.as_deref().unwrap_or(&plan.command),
        program: verified.map(Program::memory),
        env: env.into_iter().collect(),
        pipes: pipes.theirs,
    })?;
    let control = Control::new(control, enclosure.proxy(plan, &walls)).inspect_err(|_| {
        // Without a hand on it, it may not live.
        signal::kill(pid, Signal::SIGKILL).and_then(|()| waitpid(pid, None)).ok();
    })?;
    let kind = Kind::Behind { control, walls: Box::new(walls) };
    let process = Process::new(pid.as_raw().unsigned_abs(), pipes.child_signals, kind);
    launched(process, pipes.stdin, pipes.stdout, pipes.stderr)
}

fn launched(
    process: Process,
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
) -> io::Result<Launched> {
    Ok(Launched {
        process,
        stdin: pipe::Sender::from_owned_fd(stdin)?,
        stdout: pipe::Receiver::from_owned_fd(stdout)?,
        stderr: pipe::Receiver::from_owned_fd(stderr)?,
    })
}

/// Says what a refused start most likely means.
fn explain(error: &io::Error) -> String {
    let hint = match error.raw_os_error() {
        Some(code) if code == Errno::ENOENT as i32 => {
            " (the file, the interpreter in its first line, or the working directory is missing)"
        }
        Some(code) if code == Errno::EACCES as i32 => {
            " (is it executable, and is every folder above it readable?)"
        }
        Some(code) if code == Errno::ENOEXEC as i32 => {
            " (it is neither a program for this machine nor a script with `#!` in its first line)"
        }
        _ => "",
    };
    format!("{error}{hint}")
}

/// How often it is looked whether one whose end nobody tells us of is gone.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A process and its group, or the helper and all behind it. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Process {
    number: u32,
    signals: watch::Signal,
    /// The process, while its number is certainly ours: until it is reaped.
    leader: Option<Pid>,
    kind: Kind,
    /// How it ended, once that is known; it may still be in the way of being reaped.
    told: Option<Exit>,
    /// Whom a helper kept that had to be killed, and who may outlive it in the kernel.
    kept: Option<Identity>,
    /// Children of ours that we did not start: it has made them so, by a clone that gives
    /// them its own parent. They are in its group, have been killed, and wait for us.
    strangers: Vec<Pid>,
    /// What was found behind walls, once it has ended.
    remains: Option<Remains>,
}

#[derive(Debug)]
enum Kind {
    /// The leader is the plugin.
    Direct(Child),
    /// The leader is the helper, and the plugin lies behind it.
    Behind { control: Control, walls: Box<Walls> },
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal {
        signal: i32,
        core: bool,
    },
    /// It never became the plugin.
    NotStarted(Reason),
    /// The system ended it, and there is evidence of why.
    Ended(Reason),
    /// Somebody else reaped it, or ended the helper.
    Lost,
}

impl Process {
    fn new(number: u32, signals: watch::Signal, kind: Kind) -> Self {
        let leader = i32::try_from(number).ok().map(Pid::from_raw);
        let (told, kept, strangers, remains) = (None, None, Vec::new(), None);
        Self { number, signals, leader, kind, told, kept, strangers, remains }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.number
    }

    pub(crate) fn remains(&self) -> Option<Remains> {
        self.remains
    }

    /// The leader, while what is behind it has not ended.
    fn guard(&self) -> Option<u32> {
        self.leader.filter(|_| self.told.is_none()).map(|it| it.as_raw().unsigned_abs())
    }

    /// Holds it to other limits of the system, and says what holds; nothing without walls.
    pub(crate) fn hold(&mut self, limits: &Limits) -> Vec<Held> {
        let guard = self.guard();
        match &mut self.kind {
            Kind::Behind { walls, .. } => walls.hold(limits, guard),
            Kind::Direct(_) => Vec::new(),
        }
    }

    /// Holds it to what was changed while it was being started, as [`Walls::settle`].
    pub(crate) fn settle(&mut self, limits: &Limits, are_others: bool) -> bool {
        let guard = self.guard();
        match &mut self.kind {
            Kind::Behind { walls, .. } => walls.settle(limits, are_others, guard),
            Kind::Direct(_) => false,
        }
    }

    /// Asks it to go. Harmless once it has been reaped.
    pub(crate) fn terminate(&self) {
        match &self.kind {
            Kind::Behind { control, .. } => control.command(wire::Command::Terminate),
            Kind::Direct(_) => {
                self.signal_group(Signal::SIGTERM);
                // A stopped process acts on nothing but SIGKILL until it is continued.
                self.signal_group(Signal::SIGCONT);
            }
        }
    }

    /// What it is doing. `None` if that cannot be seen.
    pub(crate) fn look(&self) -> Option<Look> {
        let leader = self.leader?.as_raw().unsigned_abs();
        match &self.kind {
            Kind::Direct(_) => hang::look(leader),
            Kind::Behind { walls, .. } => {
                let mut look = hang::look(hang::first_below(leader, walls.guards())?)?;
                look.held_up = walls.held_up();
                Some(look)
            }
        }
    }

    /// Ends it, and all that it has started as far as that can be found.
    pub(crate) fn kill(&self) {
        match &self.kind {
            Kind::Behind { control, .. } => control.command(wire::Command::Kill),
            Kind::Direct(_) => self.signal_group(Signal::SIGKILL),
        }
    }

    /// Ends a helper that does not obey, which takes the plugin with it, unless the kernel
    /// holds that.
    pub(crate) fn kill_helper(&mut self) {
        if let (Kind::Behind { .. }, Some(leader)) = (&self.kind, self.leader) {
            let kept = hang::first_below(leader.as_raw().unsigned_abs(), 1);
            self.kept = kept.and_then(Identity::of).or(self.kept);
            // Fails only if it has ended.
            signal::kill(leader, Signal::SIGKILL).ok();
        }
    }

    /// Ends it at once, and wants to hear nothing of how.
    fn end(&mut self) {
        match &mut self.kind {
            Kind::Behind { control, .. } => control.shut(),
            Kind::Direct(_) => self.kill(),
        }
    }

    fn signal_group(&self, signal: Signal) {
        if let Some(group) = self.leader {
            // Fails only if the group is empty, which is what we want of it.
            signal::killpg(group, signal).ok();
        }
    }

    /// Waits until it has ended, and all that it has started; reaps it. Cancel safe.
    pub(crate) async fn wait(&mut self) -> Exit {
        loop {
            if let Some(exit) = self.ended() {
                return exit;
            }
            // Nobody is told of the end of another's child.
            let is_kept = self.leader.is_none() && self.kept.is_some();
            let more = tokio::select! {
                more = self.signals.recv() => more,
                () = listen(&mut self.kind) => Some(()),
                () = tokio::time::sleep(LOOK_AGAIN), if is_kept => Some(()),
            };
            if more.is_none() {
                return Exit::Lost;
            }
        }
    }

    /// How it ended, if it and all that it has started have. Reaps what can be.
    pub(crate) fn ended(&mut self) -> Option<Exit> {
        if self.leader.is_some() {
            if let Kind::Behind { control, .. } = &self.kind
                && control.is_over()
            {
                self.tell();
            }
            match self.peek() {
                Ok(false) => {}
                Ok(true) => self.reap(),
                Err(_) => self.lost(),
            }
        }
        let is_gone = self.leader.is_none() && !self.has_others();
        self.told.clone().filter(|_| is_gone)
    }

    /// Takes down how the plugin ended, while its cgroups are there, and lets the helper go.
    fn tell(&mut self) {
        if let Kind::Behind { control, walls } = &mut self.kind {
            if self.told.is_none() {
                let (exit, remains) = walls.explain(control.evidence());
                (self.told, self.remains) = (Some(exit), Some(remains));
                walls.release();
            }
            control.shut();
        }
    }

    /// Somebody else has collected it. The helper may have told how the plugin ended.
    fn lost(&mut self) {
        self.leader = None;
        if let Kind::Behind { control, .. } = &mut self.kind
            && !matches!(control.evidence(), Evidence { main: None, failed: None, .. })
        {
            self.tell();
        }
        self.told.get_or_insert(Exit::Lost);
    }

    /// Whether the leader has ended, without reaping it.
    fn peek(&self) -> nix::Result<bool> {
        use nix::sys::wait::{Id, waitid};
        let Some(pid) = self.leader else { return Err(Errno::ECHILD) };
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        loop {
            match waitid(Id::Pid(pid), flags) {
                Ok(WaitStatus::StillAlive) => return Ok(false),
                // A signal of real time, of which nix has no name, ended it.
                Ok(_) | Err(Errno::EINVAL) => return Ok(true),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn reap(&mut self) {
        let Some(leader) = self.leader else { return };
        if let Kind::Direct(_) = &self.kind {
            // While the dead leader still holds the group's number.
            self.signal_group(Signal::SIGKILL);
            let own = hang::children(std::process::id()).into_iter();
            let own = own.map(|pid| Pid::from_raw(pid.cast_signed()));
            // Its number is theirs until we reap them.
            self.strangers =
                own.filter(|pid| *pid != leader && getpgid(Some(*pid)) == Ok(leader)).collect();
        }
        self.leader = None;
        match &mut self.kind {
            Kind::Direct(child) => self.told = Some(child.wait().map_or(Exit::Lost, Exit::of)),
            Kind::Behind { .. } => {
                // It has ended, and nobody but us waits for it.
                waitpid(leader, None).ok();
                self.tell();
            }
        }
    }

    /// Reaps the strangers that have ended. Whether any has not, or whom a helper kept.
    fn has_others(&mut self) -> bool {
        let lives = |pid: &Pid| {
            let ended = waitpid(*pid, Some(WaitPidFlag::WNOHANG));
            matches!(ended, Ok(WaitStatus::StillAlive) | Err(Errno::EINTR))
        };
        self.strangers.retain(lives);
        self.kept = self.kept.filter(Identity::lives);
        !self.strangers.is_empty() || self.kept.is_some()
    }
}

impl Exit {
    pub(crate) fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal { signal, core: status.core_dumped() },
            (None, None) => Self::Lost,
        }
    }
}

async fn listen(kind: &mut Kind) {
    match kind {
        Kind::Behind { control, .. } => control.listen().await,
        Kind::Direct(_) => std::future::pending().await,
    }
}

impl Drop for Process {
    /// The supervisor was dropped without a shutdown: nothing may be left behind.
    /// SIGKILL cannot be refused, so the wait is short.
    fn drop(&mut self) {
        for end in [Self::end, Self::kill_helper] {
            if self.leader.is_some() {
                end(self);
            }
            // Bounded, because the kernel may hold a process it cannot end.
            for _ in 0..50 {
                if self.ended().is_some() {
                    return;
                }
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, sync::Arc};

    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::{
        digest::{digest_of, tests::verified},
        fact::Facts,
        isolation::{Ceiling, Lack, Machine},
        plan::{Ceilings, FileGrant, IfMissing},
    };

    fn no_ceiling() -> Arc<Ceiling> {
        Arc::new(Ceiling::new(Ceilings::default()))
    }

    /// A program that prints a word, compared with its digest and then replaced: by another
    /// file under its name, or in place.
    fn replaced(level: Level, in_place: bool) -> (tempfile::TempDir, PluginPlan, Enclosure) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("echo");
        fs::copy("/bin/echo", &path).unwrap();
        let command = [path.to_str().unwrap(), "what was compared"].map(str::to_owned);
        let mut plan = PluginPlan::new("p", command.into(), dir.path());
        plan.sandbox.level = level;
        plan.digest = Some(digest_of(&plan).unwrap().1);
        let mut enclosure = Enclosure::new(Arc::default(), Facts::new(), no_ceiling());
        enclosure.verified = verified(&plan, None).unwrap();
        let other = if in_place { path } else { dir.path().join("other") };
        fs::write(&other, "#!/bin/sh\necho another\n").unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
        if !in_place {
            fs::rename(&other, dir.path().join("echo")).unwrap();
        }
        (dir, plan, enclosure)
    }

    async fn prints(launched: Launched) -> String {
        let Launched { mut process, mut stdout, .. } = launched;
        let mut text = String::new();
        stdout.read_to_string(&mut text).await.unwrap();
        process.wait().await;
        text
    }

    #[tokio::test]
    async fn what_was_compared_runs_whoever_changes_the_file_then() {
        let mut levels = vec![Level::None];
        match &Machine::here().files {
            Ok(()) => levels.extend([Level::Standard, Level::Strict]),
            Err(lack) => eprintln!("behind walls: skipped: {}", lack.cause),
        }
        for level in levels {
            for in_place in [false, true] {
                let (_dir, plan, enclosure) = replaced(level, in_place);
                let launched = launch(&plan, &enclosure).unwrap();
                assert_eq!(prints(launched).await, "what was compared\n", "{level:?} {in_place}");
            }
        }
    }

    /// Then it is run from memory, by its descriptor.
    #[tokio::test]
    async fn the_same_where_a_machine_has_walls_and_no_view() {
        let mut machine = Machine::here().clone();
        let none = Lack { cause: "it is a test".to_owned(), fix: String::new() };
        machine.files = Err(none);
        let (_dir, mut plan, enclosure) = replaced(Level::Standard, false);
        plan.sandbox.if_missing = IfMissing::Warn;
        let walls =
            Walls::new(&plan, &no_ceiling(), &machine, enclosure.verified.as_deref()).unwrap();
        let launched = spawn_behind(&plan, &enclosure, walls, Pipes::new(&plan).unwrap()).unwrap();
        assert_eq!(prints(launched).await, "what was compared\n");
    }

    /// What lies beside the program is shown as it is; only so long as the plugin cannot put
    /// anything there.
    #[test]
    fn a_program_in_a_folder_that_the_plugin_may_change_is_refused() {
        let Ok(()) = &Machine::here().files else { return };
        let (dir, mut plan, enclosure) = replaced(Level::Standard, false);
        let (path, make) = (dir.path().to_owned(), false);
        plan.sandbox.files = vec![FileGrant { path, write: true, make }];
        let refused =
            Walls::new(&plan, &no_ceiling(), Machine::here(), enclosure.verified.as_deref());
        let reason = refused.map(drop).unwrap_err();
        let Reason::NotVerified { fault: DigestFault::MayBeChanged { folder }, .. } = reason else {
            panic!("{reason}")
        };
        assert_eq!(folder, dir.path().to_str().unwrap());
    }

    /// Its interpreter would open it by its name.
    #[tokio::test]
    async fn a_script_is_refused_where_another_could_be_put_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("script");
        fs::write(&path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let command = vec![path.to_str().unwrap().to_owned()];
        let mut plan = PluginPlan::new("p", command, dir.path());
        plan.digest = Some(digest_of(&plan).unwrap().1);
        let mut enclosure = Enclosure::new(Arc::default(), Facts::new(), no_ceiling());
        enclosure.verified = verified(&plan, None).unwrap();
        let refused = launch(&plan, &enclosure).map(drop).unwrap_err();
        let is_due = |it| matches!(it, Reason::NotVerified { fault: DigestFault::NeedsView, .. });
        assert!(is_due(refused.clone()), "{refused}");
        let mut machine = Machine::here().clone();
        let none = Lack { cause: "it is a test".to_owned(), fix: String::new() };
        machine.files = Err(none);
        plan.sandbox.level = Level::Standard;
        plan.sandbox.if_missing = IfMissing::Warn;
        let refused =
            Walls::new(&plan, &no_ceiling(), &machine, enclosure.verified.as_deref()).unwrap_err();
        assert!(is_due(refused.clone()), "{refused}");
    }
}
