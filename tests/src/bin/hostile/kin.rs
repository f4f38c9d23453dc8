//! Other processes: grandchildren that will not leave, and the alarm that makes
//! every process leave in the end.

use std::{
    fs::File,
    io::{self, Write},
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::Duration,
};

use nix::{
    sys::{
        resource::{Resource, setrlimit},
        signal::{SigSet, Signal, kill, raise},
    },
    unistd::{Pid, alarm, getppid, setpgid, setsid},
};

use plugbay_tests::wire::{Frame, empty, kind};

use crate::{args::Args, plugin::Plugin, raw};

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

/// Starts a process that ignores every polite signal and hides in some `way`. It `holds`
/// all three pipes, or one of them, or none.
pub(crate) fn start(plugin: &Plugin, way: &str, holds: &str, life: u64) -> io::Result<Child> {
    let mut command = itself(GRANDCHILD)?;
    command.arg(format!("life={life}")).arg(format!("way={way}"));
    command.args(plugin.args.get("beat").map(|file| format!("beat={file}")));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if holds == "all" {
        command.stdin(plugin.stdin.duplicate()?);
    }
    if let ("all" | "stdout", Some(pipe)) = (holds, plugin.pen.duplicate()?) {
        command.stdout(pipe);
    }
    if let "all" | "stderr" = holds {
        command.stderr(Stdio::inherit());
    }
    command.spawn()
}

pub(crate) fn grandchild(args: &Args) -> ExitCode {
    ignore_term();
    let done = match args.text("way", "plain") {
        "plain" => Ok(()),
        "group" => setpgid(Pid::from_raw(0), Pid::from_raw(0)).map_err(io::Error::from),
        "session" => setsid().map(drop).map_err(io::Error::from),
        // The usual way: its own child has no parent that could be asked for it.
        "daemon" => setsid().map_err(io::Error::from).and_then(|_| again(args, "plain")),
        "stopped" => start_guardian(args)
            .and_then(|_| kill(Pid::this(), Signal::SIGSTOP).map_err(io::Error::from)),
        "hopper" => hop(args),
        "bomb" => loop {
            // Refused: another may have room soon.
            if again(args, "bomb").is_err() {
                beat(args).ok();
                thread::sleep(Duration::from_millis(20));
            }
        },
        // A frame of ten bytes, of which seven are there, and then somebody else's.
        "half" => return half(),
        _ => args.wrong("way", "plain, group, session, daemon, stopped, hopper, bomb or half"),
    };
    match done {
        Ok(()) if args.text("way", "plain") == "daemon" => ExitCode::SUCCESS,
        Ok(()) => park(),
        Err(error) => {
            eprintln!("plugbay-hostile: cannot hide: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts one more with the pipes that this one has.
fn again(args: &Args, way: &str) -> io::Result<()> {
    let mut command = itself(GRANDCHILD)?;
    command.arg(format!("life={}", args.number("life", 60))).arg(format!("way={way}"));
    command.args(args.get("beat").map(|file| format!("beat={file}")));
    command.args(args.get("left").map(|left| format!("left={left}")));
    command.spawn().map(drop)
}

/// One byte more in a file that is looked at from outside.
fn beat(args: &Args) -> io::Result<()> {
    match args.get("beat") {
        Some(file) => File::options().append(true).create(true).open(file)?.write_all(b"."),
        None => Ok(()),
    }
}

/// Lives for a millisecond, in a session of its own, and leaves another like it: whoever
/// looks for it finds a number that is nobody's. Each writes a byte into a file, which tells
/// that there still is one.
fn hop(args: &Args) -> io::Result<()> {
    // Half a minute's worth, should nobody end it.
    let left = args.number("left", 20_000);
    beat(args)?;
    thread::sleep(Duration::from_millis(1));
    // Fails for the leader of a session, which has one already.
    setsid().ok();
    let mut command = itself(GRANDCHILD)?;
    command.arg(format!("life={}", args.number("life", 60)));
    command.args(["way=hopper".to_owned(), format!("left={}", left.saturating_sub(1))]);
    command.args(args.get("beat").map(|file| format!("beat={file}")));
    // Others of its kind may have taken all there is for a moment.
    while 0 < left && command.spawn().is_err() {
        thread::sleep(Duration::from_millis(1));
    }
    std::process::exit(0)
}

fn half() -> ExitCode {
    let bytes = Frame::new(kind::PING, 0, empty()).bytes();
    match io::stdout().write_all(&bytes[..7]).and_then(|()| io::stdout().flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Starts a process that kills this one at the end of its life: a stopped
/// process does not hear its alarm.
pub(crate) fn start_guardian(args: &Args) -> io::Result<Child> {
    let life = args.number("life", 60);
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
    // The runtime of Rust ignores it.
    if signal == Signal::SIGPIPE {
        raw::restore(signal).ok();
    }
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
