//! The process's side of the conversation: its pipes, its cookie, its exit code.
//!
//! Fd 0 and 1 are taken away from the author before anything else happens: copies that
//! no child inherits carry the frames, and what is left in their place is harmless.

use std::{
    env,
    fs::File,
    io::{self, IoSlice},
    mem,
    os::fd::{AsFd, OwnedFd},
    pin::{Pin, pin},
    process::{self, ExitCode},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use nix::fcntl::{FcntlArg, fcntl};
use plugbay_protocol::{Close, Over};
use tokio::{
    io::{AsyncReadExt, AsyncWrite},
    net::unix::pipe,
    runtime::{self, Handle, RuntimeFlavor},
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, Sleep},
};

use crate::{Plugin, engine::Engine, wire::Inner};

/// How long tools may take to stop once nobody listens, and a CLOSE to leave.
const FAREWELL: Duration = Duration::from_millis(500);
/// From this many bytes in one go a larger pipe pays.
const LARGE: usize = 128 << 10;
/// What an ordinary user may ask for.
const LARGE_PIPE: i32 = 1 << 20;
/// Pieces in one write.
const PIECES: usize = 16;

/// Exit code of a plugin that was not started as one.
const NOT_STARTED_BY_A_HOST: u8 = 2;

pub(crate) fn run<S: Send + Sync + 'static>(plugin: Plugin<S>) -> ExitCode {
    let pipes = match take_pipes(&plugin) {
        Ok(pipes) => pipes,
        Err(code) => return code,
    };
    let mut builder = runtime::Builder::new_current_thread();
    match builder.enable_io().enable_time().build() {
        Ok(runtime) => {
            let code = runtime.block_on(converse(plugin, pipes));
            runtime.shutdown_background();
            code.unwrap_or_else(|code| code)
        }
        Err(error) => {
            eprintln!("{}: starting a runtime: {error}", plugin.identity().name);
            ExitCode::FAILURE
        }
    }
}

pub(crate) async fn serve<S: Send + Sync + 'static>(plugin: Plugin<S>) -> ExitCode {
    let pipes = match take_pipes(&plugin) {
        Ok(pipes) => pipes,
        Err(code) => return code,
    };
    match converse(plugin, pipes).await {
        Ok(code) => code,
        // Code of the author's is still running on a thread that nothing can stop, and
        // their runtime would wait for it.
        Err(_) => process::exit(0),
    }
}

/// Private copies of fd 0 and 1, if this process was started as a plugin.
fn take_pipes<S: Send + Sync + 'static>(
    plugin: &Plugin<S>,
) -> Result<(OwnedFd, OwnedFd), ExitCode> {
    if env::var_os("PLUGBAY_PROTOCOL").is_none_or(|version| version != "1") {
        eprintln!("{}", introduction(plugin));
        return Err(NOT_STARTED_BY_A_HOST.into());
    }
    take_fds().map_err(|error| {
        eprintln!("{}: taking over stdin and stdout: {error}", plugin.identity().name);
        NOT_STARTED_BY_A_HOST.into()
    })
}

fn take_fds() -> io::Result<(OwnedFd, OwnedFd)> {
    // These copies are close-on-exec and numbered above 2.
    let wire_in = io::stdin().as_fd().try_clone_to_owned()?;
    let wire_out = io::stdout().as_fd().try_clone_to_owned()?;
    nix::unistd::dup2_stdout(io::stderr())?;
    nix::unistd::dup2_stdin(File::open("/dev/null")?)?;
    Ok((wire_in, wire_out))
}

/// What somebody reads who starts a plugin by hand. \[R-PR-01\]
fn introduction<S: Send + Sync + 'static>(plugin: &Plugin<S>) -> String {
    let id = plugin.identity();
    let program = env::args().next().unwrap_or_else(|| "./plugin".into());
    let mut try_this = format!("plugbay call --plugin '{program}'");
    if let Some(tool) = plugin.provides().next() {
        try_this += &format!(" {}", tool.name);
        let required = tool.input_schema.get("required").and_then(|names| names.as_array());
        for name in required.into_iter().flatten().filter_map(|name| name.as_str()) {
            try_this += &format!(" {name}=…");
        }
    }
    format!(
        "{} {} is a plugbay plugin and is started by its host. Try: {try_this}",
        id.name, id.version
    )
}

/// Talks until the conversation is over. `Err` with the exit code if code of the author's
/// is still running then.
async fn converse<S: Send + Sync + 'static>(
    plugin: Plugin<S>,
    (wire_in, wire_out): (OwnedFd, OwnedFd),
) -> Result<ExitCode, ExitCode> {
    let name = plugin.identity().name.clone();
    let not_a_pipe = |what: &str, error: io::Error| {
        eprintln!("{name}: expected a pipe on {what}: {error}");
        Ok(NOT_STARTED_BY_A_HOST.into())
    };
    let reader = match pipe::Receiver::from_owned_fd(wire_in) {
        Ok(reader) => reader,
        Err(error) => return not_a_pipe("stdin", error),
    };
    let writer = match pipe::Sender::from_owned_fd(wire_out) {
        Ok(writer) => writer,
        Err(error) => return not_a_pipe("stdout", error),
    };
    let at_once = Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread;
    let engine = match plugin.engine(at_once) {
        Ok(engine) => engine,
        Err(problems) => {
            for problem in problems {
                eprintln!("{name}: {problem}");
            }
            return Ok(NOT_STARTED_BY_A_HOST.into());
        }
    };
    let task = Link {
        engine,
        reader: Some(reader),
        writer: Some(writer),
        grown: Grown::default(),
        timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
        // Without it the signal ends the process as it always does.
        sigterm: signal(SignalKind::terminate()).ok(),
        leaving: None,
    };
    // A task of its own: what an author awaits it beside cannot slow it down.
    let mut task = AbortOnDrop(tokio::spawn(task));
    match (&mut task.0).await {
        Ok(Parting { code, busy: false }) => Ok(code),
        Ok(Parting { code, busy: true }) => {
            eprintln!("{name}: a tool did not stop in time");
            Err(code)
        }
        // Only if the runtime is being torn down.
        Err(_) => Ok(ExitCode::FAILURE),
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<Parting>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How the I/O task ended.
struct Parting {
    code: ExitCode,
    /// Whether code of the author's is still running.
    busy: bool,
}

/// The one task that reads and writes. Each poll reads what there is, runs what it asks
/// for, and writes everything in one go.
struct Link<S> {
    engine: Engine<S>,
    /// `None` once there is nothing to read any more.
    reader: Option<pipe::Receiver>,
    /// `None` once nobody reads.
    writer: Option<pipe::Sender>,
    grown: Grown,
    /// For late progress, and for the farewell.
    timer: Pin<Box<Sleep>>,
    sigterm: Option<Signal>,
    /// Since the conversation is over: when to leave, and with which code.
    leaving: Option<(Instant, ExitCode)>,
}

/// Whether a pipe has been enlarged, or an attempt was refused.
#[derive(Default)]
struct Grown {
    reader: bool,
    writer: bool,
}

impl<S: Send + Sync + 'static> Future for Link<S> {
    type Output = Parting;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Parting> {
        let this = self.get_mut();
        let wire = Arc::clone(&this.engine.wire);
        wire.lock().awake();
        loop {
            let mut again = false;
            // A statement of its own, so that the lock is gone before anything runs.
            while let Poll::Ready(now) = { this.read(&mut wire.lock(), cx) } {
                again = true;
                // All frames of one read are dispatched before anything is written.
                this.turn(now);
            }
            let mut inner = wire.lock();
            again |= this.pass_time(&mut inner, cx);
            if mem::take(&mut inner.stirred) {
                drop(inner);
                this.turn(Instant::now());
                continue;
            }
            this.write(&mut inner, cx);
            if this.leaving.is_none() && (this.writer.is_none() || this.is_terminated(cx)) {
                // Nobody reads the answers, so nobody needs them.
                this.leave(ExitCode::SUCCESS);
                drop(inner);
                this.engine.give_all_up();
                continue;
            }
            if let Some((at, code)) = this.leaving {
                let idle = !inner.is_busy();
                let unwritten = !inner.conversation.outbox().is_empty() && this.writer.is_some();
                if idle && !unwritten || at <= Instant::now() {
                    return Poll::Ready(Parting { code, busy: !idle });
                }
            }
            if !again {
                inner.sleep(cx.waker());
                return Poll::Pending;
            }
        }
    }
}

impl<S: Send + Sync + 'static> Link<S> {
    /// Tells the engine what the conversation has heard.
    fn turn(&mut self, now: Instant) {
        let over = self.engine.turn(now).map(exit_code);
        if let Some(code) = over
            && self.leaving.is_none()
        {
            self.leave(code);
        }
    }

    /// Whether somebody has asked this process to go. \[R-PR-13\]
    fn is_terminated(&mut self, cx: &mut Context<'_>) -> bool {
        self.sigterm.as_mut().is_some_and(|signal| signal.poll_recv(cx).is_ready())
    }

    /// Ready if the conversation has heard something new: when it has.
    fn read(&mut self, inner: &mut Inner, cx: &mut Context<'_>) -> Poll<Instant> {
        let Some(reader) = &mut self.reader else { return Poll::Pending };
        let buffer = inner.conversation.buffer();
        let got = ready!(pin!(reader.read_buf(buffer)).poll(cx));
        if !self.grown.reader && LARGE <= buffer.len() {
            self.grown.reader = true;
            enlarge(reader);
        }
        let now = Instant::now();
        match got {
            Ok(n) if 0 < n => inner.conversation.received(self.engine.wire.tick(now)),
            // A pipe that cannot be read has ended as well.
            _ => {
                self.reader = None;
                inner.conversation.eof();
            }
        }
        Poll::Ready(now)
    }

    /// As much as the pipe takes. It wakes us when it takes more.
    fn write(&mut self, inner: &mut Inner, cx: &mut Context<'_>) {
        let outbox = inner.conversation.outbox();
        while let Some(writer) = &mut self.writer
            && !outbox.is_empty()
        {
            if !self.grown.writer && LARGE as u64 <= outbox.len() {
                self.grown.writer = true;
                enlarge(writer);
            }
            let (pieces, count) = outbox.pieces::<PIECES>();
            let writer = Pin::new(writer);
            let written = match &pieces[..count] {
                [one] => writer.poll_write(cx, one),
                _ => writer.poll_write_vectored(cx, &pieces.map(IoSlice::new)[..count]),
            };
            match written {
                Poll::Pending => break,
                Poll::Ready(Ok(n)) if 0 < n => outbox.advance(n),
                Poll::Ready(_) => self.writer = None,
            }
        }
        self.engine.wire.relieve(inner);
    }

    /// True if time has brought something to write.
    fn pass_time(&mut self, inner: &mut Inner, cx: &mut Context<'_>) -> bool {
        let leave = self.leaving.map(|(at, _)| at);
        let mut sent = false;
        let wire = Arc::clone(&self.engine.wire);
        let own = |inner: &Inner| inner.conversation.deadline().and_then(|tick| wire.instant(tick));
        while let Some(due) = inner.next_late().into_iter().chain(leave).chain(own(inner)).min() {
            if self.timer.deadline() != due {
                self.timer.as_mut().reset(due);
            }
            if self.timer.as_mut().poll(cx).is_pending() || leave == Some(due) {
                break;
            }
            inner.send_late(due);
            inner.conversation.tick(wire.tick(due));
            inner.stirred = true;
            sent = true;
        }
        sent
    }

    fn leave(&mut self, code: ExitCode) {
        self.reader = None;
        self.leaving = Some((Instant::now() + FAREWELL, code));
    }
}

/// Larger pipes make large bodies faster. A refusal (the user has many already) is fine.
fn enlarge(pipe: &impl AsFd) {
    let _refused = fcntl(pipe, FcntlArg::F_SETPIPE_SZ(LARGE_PIPE));
}

/// What the end of a conversation means for the process. \[R-PR-05\]
fn exit_code(over: &Over) -> ExitCode {
    match over {
        Over::Closed { code: Close::Ok, .. } | Over::Eof => ExitCode::SUCCESS,
        Over::Closed { code, message, .. } => {
            let words = message.as_deref().unwrap_or_default();
            eprintln!("the host closed the conversation: {} {words}", code.as_str());
            ExitCode::FAILURE
        }
        Over::Broken(violation) => {
            eprintln!("the host broke the protocol: {violation}");
            ExitCode::FAILURE
        }
    }
}
