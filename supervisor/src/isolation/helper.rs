//! Starting the helper, and talking with it.
//!
//! It is run from a sealed memory file by the fast path of `posix_spawn`, so nothing
//! happens between fork and exec, and nothing has to be installed. Its script is a
//! sealed file too; its control socket is the only other thing it inherits.

use std::{
    ffi::CString,
    io::{self, IoSliceMut, Write},
    mem::MaybeUninit,
    net::Shutdown,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    path::Path,
    sync::OnceLock,
};

use nix::{
    spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn},
    sys::signal::SigSet,
    unistd::Pid,
};
use plugbay_shim::{
    Script, image,
    wire::{self, Command, Kind, Record},
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use tokio::{io::Interest, task::AbortHandle};

use super::{memory, proxy::Proxy};

/// Descriptors of ours that the child is to have under low numbers must not have low
/// numbers themselves, or one would be overwritten before it is copied.
pub(super) const LOW: RawFd = wire::PROGRAM + 1;

/// The helper's program, in memory once per supervisor.
#[derive(Debug, Default)]
pub(crate) struct Helper {
    program: OnceLock<OwnedFd>,
}

/// What the helper is to become, and what with.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) script: &'a Script,
    /// The arguments of the program to be, its name first.
    pub(crate) argv: &'a [String],
    /// The program to be, if it is in memory.
    pub(crate) program: Option<BorrowedFd<'a>>,
    /// Its whole environment.
    pub(crate) env: Vec<(&'a str, &'a str)>,
    /// Its stdin, stdout and stderr.
    pub(crate) pipes: [OwnedFd; 3],
}

impl Helper {
    /// Starts it.
    ///
    /// # Errors
    /// What the system said.
    pub(crate) fn start(&self, start: Start<'_>) -> io::Result<(Pid, UnixStream)> {
        let program = self.program()?;
        let (ours, theirs) = UnixStream::pair()?;
        let mut script = memory::file(c"plugbay-script")?;
        script.write_all(start.script.bytes())?;
        let script = memory::sealed(script)?;
        let control = memory::high(theirs.into())?;
        let [stdin, stdout, stderr] = start.pipes;
        let pipes = [memory::high(stdin)?, memory::high(stdout)?, memory::high(stderr)?];

        let mut actions = PosixSpawnFileActions::init()?;
        let pipes = pipes.iter().zip(0..);
        let others = [(&control, wire::CONTROL), (&script, wire::SCRIPT)];
        for (fd, number) in pipes.chain(others) {
            actions.add_dup2(fd.as_raw_fd(), number)?;
        }
        // Its number is high, as those of all files in memory.
        let to_be = start.program.unwrap_or(script.as_fd());
        actions.add_dup2(to_be.as_raw_fd(), wire::PROGRAM)?;
        // The host may ignore or block signals; its plugins do not inherit that.
        let mut attributes = PosixSpawnAttr::init()?;
        attributes.set_flags(
            PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK,
        )?;
        attributes.set_sigdefault(&SigSet::all())?;
        attributes.set_sigmask(&SigSet::empty())?;

        let argv = std::iter::once("plugbay-shim").chain(start.argv.iter().map(String::as_str));
        let argv = argv.map(text).collect::<io::Result<Vec<_>>>()?;
        let env = start.env.into_iter().map(|(name, value)| text(format!("{name}={value}")));
        let env = env.collect::<io::Result<Vec<_>>>()?;
        let path = format!("/proc/self/fd/{}", program.as_raw_fd());
        let pid = posix_spawn(Path::new(&path), &actions, &attributes, &argv, &env)?;
        ours.set_nonblocking(true)?;
        Ok((pid, ours))
    }

    fn program(&self) -> io::Result<&OwnedFd> {
        if let Some(program) = self.program.get() {
            return Ok(program);
        }
        let mut file = memory::file(c"plugbay-shim")?;
        file.write_all(image().ok_or(io::ErrorKind::Unsupported)?)?;
        let made = memory::sealed(file)?;
        // Of two that come at once the first stays.
        Ok(self.program.get_or_init(|| made))
    }
}

fn text(text: impl Into<Vec<u8>>) -> io::Result<CString> {
    let fault = "an argument or a variable holds a zero byte";
    CString::new(text).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, fault))
}

/// What the helper has said of a process and of its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// The operation that failed, and the error.
    pub(crate) failed: Option<(u32, i32)>,
    /// How the plugin's first process ended.
    pub(crate) main: Option<MainEnd>,
    /// That nothing is left, and how many processes the first had left behind.
    pub(crate) left: Option<u32>,
    /// That the helper waits for us to let it go.
    pub(crate) over: bool,
    /// What a probe asked for.
    pub(crate) answer: Option<u32>,
}

/// How a plugin's first process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MainEnd {
    /// As `wait` gives it.
    pub(crate) status: i32,
    /// User and system time of it and of the children that it waited for, in microseconds.
    pub(crate) cpu_micros: u64,
    /// The most memory that any one of these processes had resident, in KiB.
    pub(crate) resident_kib: u64,
}

impl Evidence {
    fn take(&mut self, record: Record) {
        match Kind::of(record.kind) {
            Some(Kind::SetupFailed) => self.failed = Some((record.a, record.b.cast_signed())),
            Some(Kind::MainExited) => {
                let [user, system, resident_kib] = record.words;
                let cpu_micros = user + system;
                let status = record.a.cast_signed();
                self.main = Some(MainEnd { status, cpu_micros, resident_kib });
            }
            Some(Kind::TreeEmpty) => self.left = Some(record.a),
            Some(Kind::Over) => self.over = true,
            Some(Kind::Answer) => self.answer = Some(record.a),
            Some(Kind::Started | Kind::Listening) | None => {}
        }
    }
}

/// Reads what has come or will, and a descriptor that comes with it. False at the end: nobody
/// is left who could say more.
fn read_record(
    from: &UnixStream,
    evidence: &mut Evidence,
    listener: &mut Option<OwnedFd>,
) -> io::Result<bool> {
    loop {
        // Each is sent in one piece, and a piece of this size is never cut.
        let mut bytes = [0; wire::RECORD_BYTES];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut room);
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        let got = match recvmsg(from, parts, &mut beside, RecvFlags::CMSG_CLOEXEC) {
            Ok(got) => got,
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
                *listener = descriptors.next();
            }
        }
        if got.bytes != wire::RECORD_BYTES || got.flags.contains(ReturnFlags::CTRUNC) {
            return Ok(false);
        }
        evidence.take(Record::from_bytes(&bytes));
        return Ok(true);
    }
}

/// The same for all that has come, of a socket that does not block.
fn read_records(
    from: &UnixStream,
    evidence: &mut Evidence,
    listener: &mut Option<OwnedFd>,
) -> io::Result<bool> {
    while read_record(from, evidence, listener)? {}
    Ok(false)
}

/// The supervisor's end of the control socket.
#[derive(Debug)]
pub(crate) struct Control {
    socket: UnixStream,
    /// The same, for tokio.
    watched: tokio::net::UnixStream,
    open: bool,
    evidence: Evidence,
    /// Until there is something that it could listen at.
    proxy: Option<Box<Proxy>>,
    served: Option<Served>,
}

/// A proxy at work, which ends with the process.
#[derive(Debug)]
struct Served(AbortHandle);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Control {
    pub(crate) fn new(socket: UnixStream, proxy: Option<Proxy>) -> io::Result<Self> {
        let watched = tokio::net::UnixStream::from_std(socket.try_clone()?)?;
        let (evidence, proxy) = (Evidence::default(), proxy.map(Box::new));
        Ok(Self { socket, watched, open: true, evidence, proxy, served: None })
    }

    pub(crate) fn command(&self, command: Command) {
        // Fails only if nobody is left to obey: then there is nothing to command.
        (&self.socket).write_all(&[command as u8]).ok();
    }

    /// The helper has nothing to say or to do any more: it is let go, or ends the plugin if
    /// that lives.
    pub(crate) fn shut(&mut self) {
        // Fails only if nobody is there any more.
        self.socket.shutdown(Shutdown::Both).ok();
        self.open = false;
    }

    /// Takes note of what comes, until the helper waits to be let go. Cancel safe.
    pub(crate) async fn listen(&mut self) {
        while self.open {
            if self.watched.readable().await.is_err() {
                break;
            }
            let (socket, evidence) = (&self.socket, &mut self.evidence);
            let mut listener = None;
            let read = self
                .watched
                .try_io(Interest::READABLE, || read_records(socket, evidence, &mut listener));
            if let Some((proxy, listener)) = listener.and_then(|it| Some((self.proxy.take()?, it)))
            {
                let task = tokio::spawn(proxy.serve(listener));
                self.served = Some(Served(task.abort_handle()));
            }
            // Nothing more for now, or nothing more at all.
            self.open = matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
            if self.evidence.over {
                return;
            }
        }
        std::future::pending().await
    }

    /// Whether the helper waits to be let go.
    pub(crate) fn is_over(&self) -> bool {
        self.open && self.evidence.over
    }

    /// All there is, once the helper waits or has ended.
    pub(crate) fn evidence(&mut self) -> &Evidence {
        if self.open {
            // Empty, or at the end: it is all one now.
            read_records(&self.socket, &mut self.evidence, &mut None).ok();
        }
        &self.evidence
    }
}

/// The same for a thread: waits for the end of a helper that becomes no program, and lets
/// it go.
pub(crate) fn evidence_of(socket: UnixStream) -> io::Result<Evidence> {
    socket.set_nonblocking(false)?;
    let mut evidence = Evidence::default();
    while !evidence.over && read_record(&socket, &mut evidence, &mut None)? {}
    evidence.over = false;
    Ok(evidence)
}
