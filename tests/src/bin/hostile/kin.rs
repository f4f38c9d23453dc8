//! Other processes: grandchildren that will not leave, and the alarm that makes
//! every process leave in the end.

use std::{
    io,
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::Duration,
};

use nix::{
    sys::{
        resource::{Resource, setrlimit},
        signal::{SigSet, Signal, kill, raise},
    },
    unistd::{alarm, getppid, setsid},
};

use crate::{args::Args, plugin::Plugin};

/// The mode that a process started by a fault runs in.
pub(crate) const GRANDCHILD: &str = "--grandchild";
/// The mode that ends a process which cannot end itself.
pub(crate) const GUARDIAN: &str = "--guardian";

/// Kills this process after `seconds`, whatever its threads do, and lets no
/// crash leave a core file.
pub(crate) fn bound_life(seconds: u64) {
    alarm::set(u32::try_from(seconds).unwrap_or(u32::MAX).max(1));
    if let Err(error) = setrlimit(Resource::RLIMIT_CORE, 0, 0) {
        eprintln!("plugbay-hostile: crashes may leave core files: {error}");
    }
}

/// Blocks SIGTERM, SIGINT and SIGHUP in this thread and all it starts, which
/// for a process without handlers is as good as ignoring them.
pub(crate) fn ignore_term() {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        set.add(signal);
    }
    set.thread_block().expect("the set is valid");
}

/// Starts a process that holds all three pipes and ignores every polite signal.
pub(crate) fn start_grandchild(plugin: &Plugin, escape: bool) -> io::Result<Child> {
    let pipe = plugin.pen.duplicate()?;
    let mut command = itself(GRANDCHILD)?;
    command.arg(format!("life={}", plugin.args.number("life", 60)));
    command.arg(format!("escape={}", u8::from(escape)));
    command.stdin(plugin.stdin.duplicate()?);
    command.stdout(pipe.map_or_else(Stdio::null, Stdio::from));
    command.spawn()
}

pub(crate) fn grandchild(args: &Args) -> ExitCode {
    ignore_term();
    if args.number("escape", 0) == 1
        && let Err(error) = setsid()
    {
        eprintln!("plugbay-hostile: cannot leave the session: {error}");
    }
    park()
}

/// Starts a process that kills this one at the end of its life: a stopped
/// process does not hear its alarm.
pub(crate) fn start_guardian(plugin: &Plugin) -> io::Result<Child> {
    let life = plugin.args.number("life", 60);
    let mut command = itself(GUARDIAN)?;
    command.args([format!("life={}", life + 5), format!("after={life}")]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

pub(crate) fn guardian(args: &Args) -> ExitCode {
    let ward = getppid();
    let step = Duration::from_millis(50);
    for _ in 0..args.number("after", 60) * 20 {
        thread::sleep(step);
        if getppid() != ward {
            return ExitCode::SUCCESS;
        }
    }
    match kill(ward, Signal::SIGKILL) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn itself(mode: &str) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(mode);
    Ok(command)
}

/// Dies of `name` (`SIGSEGV` or `SEGV`).
pub(crate) fn die_of(name: &str) -> ! {
    let name = name.to_uppercase();
    let full = if name.starts_with("SIG") { name } else { format!("SIG{name}") };
    let Ok(signal) = full.parse::<Signal>() else {
        eprintln!("plugbay-hostile: expected the name of a signal, found {full:?}");
        std::process::exit(2)
    };
    let mut only = SigSet::empty();
    only.add(signal);
    // More than once: the Rust runtime's own handler for SIGSEGV and SIGBUS lets
    // the first one pass and only then restores the default.
    for _ in 0..3 {
        let unblocked = only.thread_unblock();
        // To this thread: one that is sent to the process may wait for another thread,
        // and two that wait are one.
        let sent = unblocked.and_then(|()| raise(signal));
        if let Err(error) = sent {
            eprintln!("plugbay-hostile: cannot send {full}: {error}");
        }
        thread::sleep(Duration::from_millis(1));
    }
    // A signal whose default is not death.
    park()
}

/// Does nothing until the alarm.
pub(crate) fn park() -> ! {
    loop {
        thread::park();
    }
}
