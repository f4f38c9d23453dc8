//! The other side: finds a running plugbay, asks it one thing, reads the answer.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    time::timeout,
};

use super::{
    is_ours,
    place::{Key, folder, sockets},
    wire::{Hello, Line, Request, VERSION},
};
use crate::{
    args::Target,
    exit::Exit,
    trouble::{Outcome, Trouble},
};

/// How long a daemon may take to say who it is; one that hangs is as good as none.
const HELLO_MAX: Duration = Duration::from_secs(10);

/// A connection to a daemon that has said who it is.
#[derive(Debug)]
pub(crate) struct Client {
    socket: PathBuf,
    stream: BufReader<UnixStream>,
    pub(crate) hello: Hello,
}

impl Client {
    /// The daemon at this socket; `None` if nobody listens there.
    pub(crate) async fn at(socket: &Path) -> Outcome<Option<Self>> {
        let shown = socket.display();
        let cannot = |why: String| no_daemon(format!("cannot reach plugbay at `{shown}`: {why}"));
        let stream = match UnixStream::connect(socket).await {
            Ok(stream) => stream,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(cannot(error.to_string())),
        };
        // A tool's arguments are not for whoever put a socket there.
        let user = stream.peer_cred().map_err(|it| cannot(it.to_string()))?.uid();
        if !is_ours(user) && !nix::unistd::geteuid().is_root() {
            return Err(cannot(format!("it belongs to the user with id {user}")));
        }
        let mut stream = BufReader::new(stream);
        let first = timeout(HELLO_MAX, line(&mut stream)).await;
        let silent =
            |_| Err(cannot("it says nothing".into()).help(format!("its pid is in `{shown}.lock`")));
        let hello = match first.unwrap_or_else(silent)? {
            Some(Line::Hello(hello)) if hello.control == VERSION => hello,
            Some(Line::Hello(hello)) => {
                let (theirs, version) = (hello.control, hello.version);
                return Err(cannot(format!(
                    "it is plugbay {version} and speaks version {theirs} of the control \
                     protocol, and this one speaks {VERSION}"
                )));
            }
            Some(Line::Error(error)) => return Err(Trouble::from_wire(error)),
            _ => return Err(cannot("it has too many connections, or is no plugbay".into())),
        };
        Ok(Some(Self { socket: socket.to_owned(), stream, hello }))
    }

    /// Another connection to the same place.
    pub(crate) async fn again(&self) -> Outcome<Self> {
        Self::at(&self.socket).await?.ok_or_else(|| lost("nobody listens there any more"))
    }

    /// The daemon that a command line means: the named one, the one that runs the named
    /// plugins, the one that runs what is in this folder, or the only one.
    pub(crate) async fn find(target: &Target) -> Outcome<Self> {
        if let Some(socket) = &target.control {
            let none = || {
                let shown = socket.display();
                let run = target.source.command("run");
                no_daemon(format!("no plugbay listens at `{shown}`"))
                    .help(format!("start one: `{run} --control {shown}`"))
            };
            return Self::at(socket).await?.ok_or_else(none);
        }
        let source = &target.source;
        if source.is_named() {
            let none = || no_daemon("no plugbay runs these plugins").help(start(target));
            return Self::at(&Key::of(source)?.socket()).await?.ok_or_else(none);
        }
        if let Ok(key) = Key::of(source)
            && let Some(here) = Self::at(&key.socket()).await?
        {
            return Ok(here);
        }
        let mut all = Self::all().await;
        match (all.pop(), all.len()) {
            (Some(only), 0) => Ok(only),
            (None, _) => {
                Err(no_daemon(format!("no plugbay runs here, says `{}`", folder().display()))
                    .help(start(target)))
            }
            (Some(last), _) => {
                all.push(last);
                let trouble = Trouble::usage("several plugbays run; name one of them");
                let help = |it: &Self| format!("--config or --plugin for {}", it.hello.from);
                Err(all.iter().map(help).fold(trouble, Trouble::help))
            }
        }
    }

    /// All that run, of this user.
    pub(crate) async fn all() -> Vec<Self> {
        // At once, since one that has been stopped keeps whoever asks waiting.
        let sockets = sockets();
        let all = futures::future::join_all(sockets.iter().map(|it| Self::at(it))).await;
        // One that does not answer well is none for this purpose.
        all.into_iter().flatten().flatten().collect()
    }

    /// Asks, gives each item to `each`, and returns the answer.
    ///
    /// # Errors
    /// What the daemon says, or that it went away.
    pub(crate) async fn ask(
        mut self,
        request: &Request,
        mut each: impl FnMut(Value) -> Outcome<()>,
    ) -> Outcome<Value> {
        // Plain data always becomes JSON.
        let mut text = serde_json::to_vec(request).unwrap_or_default();
        text.push(b'\n');
        let sent = self.stream.get_mut().write_all(&text).await;
        sent.map_err(|it| lost(&it.to_string()))?;
        loop {
            match line(&mut self.stream).await? {
                Some(Line::Item(value)) => each(value)?,
                Some(Line::End(value)) => return Ok(value),
                Some(Line::Error(error)) => return Err(Trouble::from_wire(error)),
                Some(Line::Hello(_)) => {}
                None => return Err(lost("it ended in the middle of the answer")),
            }
        }
    }
}

/// The next line; `None` at the end.
async fn line(stream: &mut BufReader<UnixStream>) -> Outcome<Option<Line>> {
    let mut text = Vec::new();
    let read = stream.read_until(b'\n', &mut text).await;
    read.map_err(|it| lost(&it.to_string()))?;
    if !text.ends_with(b"\n") {
        return Ok(None);
    }
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|error| no_daemon(format!("what answers there is no plugbay: {error}")))
}

fn no_daemon(message: impl Into<String>) -> Trouble {
    Trouble::new(Exit::NoDaemon, message)
}

fn lost(why: &str) -> Trouble {
    no_daemon(format!("the running plugbay is gone: {why}"))
}

fn start(target: &Target) -> String {
    format!("start one: `{}`", target.source.command("run"))
}

/// Where to attach to, if somebody listens there.
pub(crate) async fn attachable(target: &Target) -> Outcome<Option<Client>> {
    let socket: PathBuf = match &target.control {
        Some(socket) => socket.clone(),
        // What is wrong with it is said by whoever needs it.
        None => match Key::of(&target.source) {
            Ok(key) => key.socket(),
            Err(_) => return Ok(None),
        },
    };
    Client::at(&socket).await
}
