//! The one way out of a plugin's own network: a proxy that leads to the hosts it was
//! granted, and to no other.
//!
//! The plugin's network namespace has a loopback device and nothing else. The socket that
//! listens there was made inside and is held by us, so what connects to it comes out here,
//! where the name is judged, looked up and connected to. A plugin can leave the proxy
//! unused; then it reaches nothing.

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, lookup_host},
    sync::Semaphore,
    time::{sleep, timeout},
};

use super::request::{self, HEAD_MAX, Request};
use crate::{
    fact::{Fact, Facts},
    peer::{Peer, Target, reachable},
};

/// Where it listens in each plugin's own network, which has no other listener.
pub(crate) const PORT: u16 = 3128;

/// Connections of one plugin at once. More wait, as at any listener.
const OPEN_MAX: usize = 32;
/// Names of one plugin that are looked up at once: each look-up takes a thread.
const LOOKUPS_MAX: usize = 4;
/// From a connection to all of its request's head.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// From there to a connection with the host, and for one of its addresses.
const CONNECT_TIME: Duration = Duration::from_secs(20);
const ADDRESS_TIME: Duration = Duration::from_secs(6);
/// Without a byte either way.
const SILENCE: Duration = Duration::from_secs(600);
/// How much of a refused request is read, and for how long, so that its reply arrives.
const UNREAD_MAX: u64 = 64 << 10;
const UNREAD_TIME: Duration = Duration::from_secs(2);
/// What is moved at once, each way.
const PIECE: usize = 16 << 10;
/// How many different refusals of one process are told one by one.
const TOLD_MAX: usize = 32;

/// Variables by which programs find a proxy. The value that is a 1 is for Node.js, which
/// looks at the others only then.
pub(crate) fn env() -> impl Iterator<Item = (&'static str, String)> {
    let names =
        ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy"];
    let address = format!("http://127.0.0.1:{PORT}");
    let names = names.into_iter().map(move |name| (name, address.clone()));
    names.chain([("NODE_USE_ENV_PROXY", "1".to_owned())])
}

/// What one process of a plugin may reach.
#[derive(Debug)]
pub(crate) struct Proxy {
    plugin: Arc<str>,
    granted: Vec<Peer>,
    facts: Facts,
    lookups: Semaphore,
    told: Mutex<Told>,
}

/// What was refused so far.
#[derive(Debug, Default)]
struct Told {
    refused: HashSet<String>,
    /// Beyond those.
    untold: u64,
}

/// Why there is no connection.
#[derive(Debug)]
enum No {
    /// The plugin has not asked for one.
    Request(&'static str),
    /// It may not.
    Refused(String),
    /// The network's fault, or the host's.
    Failed(String),
}

impl No {
    /// The status of HTTP, and the words that follow.
    fn reply(&self) -> Vec<u8> {
        let (status, words) = match self {
            Self::Request(words) => ("400 Bad Request", *words),
            Self::Refused(words) => ("403 Forbidden", words.as_str()),
            Self::Failed(words) => ("502 Bad Gateway", words.as_str()),
        };
        let body = format!("plugbay: {words}\n");
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    }
}

impl Proxy {
    pub(crate) fn new(plugin: Arc<str>, granted: Vec<Peer>, facts: Facts) -> Self {
        let (lookups, told) = (Semaphore::new(LOOKUPS_MAX), Mutex::default());
        Self { plugin, granted, facts, lookups, told }
    }

    /// Serves until it is dropped. All connections are this future's own, so that they end
    /// with it.
    pub(crate) async fn serve(self, listener: OwnedFd) {
        let listener = std::net::TcpListener::from(listener);
        let made = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
        let Ok(listener) = made else { return };
        let mut open = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some(()) = open.next(), if !open.is_empty() => {}
                accepted = listener.accept(), if open.len() < OPEN_MAX => match accepted {
                    Ok((stream, _)) => open.push(self.one(stream)),
                    // We have no descriptor left, and may have one later.
                    Err(_) => sleep(Duration::from_millis(100)).await,
                },
            }
        }
    }

    /// One connection of the plugin, to its end.
    async fn one(&self, mut plugin: TcpStream) {
        let begun = timeout(HEAD_TIME, head(&mut plugin)).await;
        let (request, rest) = match begun {
            Ok(Ok(Ok(begun))) => begun,
            Ok(Ok(Err(words))) => return answer(&mut plugin, &No::Request(words)).await,
            // It has left, or says nothing.
            Ok(Err(_)) | Err(_) => return,
        };
        let connected = timeout(CONNECT_TIME, self.connect(&request.to)).await;
        let late = || Err(No::Failed(format!("{} does not answer", request.to)));
        let mut host = match connected.unwrap_or_else(|_| late()) {
            Ok(host) => host,
            Err(no) => {
                if let No::Refused(why) = &no {
                    self.refused(&request.to, why);
                }
                return answer(&mut plugin, &no).await;
            }
        };
        let greeted = match &request.head {
            None => plugin.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await,
            Some(head) => host.write_all(head).await,
        };
        // Whichever of them has left, there is nobody to tell.
        if greeted.is_ok() && host.write_all(&rest).await.is_ok() {
            pump(&mut plugin, &mut host).await;
        }
    }

    async fn connect(&self, to: &Peer) -> Result<TcpStream, No> {
        let refused = |why: &str| Err(No::Refused(format!("{to} {why}")));
        if !self.granted.iter().any(|it| it.covers(to)) {
            return refused("was not granted");
        }
        let addresses = match to.target() {
            Target::Address(address) => vec![address],
            Target::Name(name) => {
                let failed = |error: io::Error| No::Failed(format!("{to}: {error}"));
                let found = self.look_up(name, to.port()).await.map_err(failed)?;
                let may = reachable(&self.granted, to, &found);
                if let (true, Some(first)) = (may.is_empty(), found.first()) {
                    return refused(&format!(
                        "is at {first}, which is not public and was not granted itself"
                    ));
                }
                may
            }
        };
        let mut last = format!("{to} has no address");
        for address in addresses {
            let address = SocketAddr::new(address, to.port());
            match timeout(ADDRESS_TIME, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = format!("{to} ({address}): {error}"),
                Err(_) => last = format!("{to} ({address}) does not answer"),
            }
        }
        Err(No::Failed(last))
    }

    async fn look_up(&self, name: &str, port: u16) -> io::Result<Vec<IpAddr>> {
        let _turn = self.lookups.acquire().await.map_err(io::Error::other)?;
        Ok(lookup_host((name, port)).await?.map(|it| it.ip()).collect())
    }

    /// Says it once for each peer, and not for more than a person would read.
    fn refused(&self, to: &Peer, why: &str) {
        let to = to.to_string();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.refused.contains(&to) {
            return;
        }
        if told.refused.len() == TOLD_MAX {
            told.untold += 1;
            return;
        }
        let plugin = Arc::clone(&self.plugin);
        told.refused.insert(to.clone());
        self.facts.say(Fact::Refused { plugin, to, why: why.to_owned() });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let told = self.told.get_mut().unwrap_or_else(PoisonError::into_inner);
        if 0 < told.untold {
            let plugin = Arc::clone(&self.plugin);
            let (what, count) = ("refused connections", told.untold);
            self.facts.say(Fact::Dropped { plugin, what, count });
        }
    }
}

/// The first request on a connection, and what came behind its head.
async fn head(plugin: &mut TcpStream) -> io::Result<Result<(Request, Vec<u8>), &'static str>> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        // Not into more room than a head may take.
        let mut piece = (&mut *plugin).take((HEAD_MAX - bytes.len()) as u64);
        if piece.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match request::read(&bytes) {
            Ok(None) => {}
            Ok(Some(request)) => {
                let rest = bytes.split_off(request.length);
                return Ok(Ok((request, rest)));
            }
            Err(words) => return Ok(Err(words)),
        }
    }
}

async fn answer(plugin: &mut TcpStream, no: &No) {
    // Fails only if nobody listens; a reply is smaller than what the kernel keeps.
    let said = async {
        plugin.write_all(&no.reply()).await?;
        plugin.shutdown().await?;
        // What is closed with data unread is reset, and with it goes the reply.
        let mut rest = plugin.take(UNREAD_MAX);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    timeout(UNREAD_TIME, said).await.map(drop).ok();
}

/// Moves bytes both ways until both have ended, one has failed, or both are silent.
async fn pump(plugin: &mut TcpStream, host: &mut TcpStream) {
    let moved = AtomicU64::new(0);
    let ((from_plugin, to_plugin), (from_host, to_host)) = (plugin.split(), host.split());
    let both = async {
        let out = one_way(from_plugin, to_host, &moved);
        // One that has failed ends the other.
        tokio::try_join!(out, one_way(from_host, to_plugin, &moved)).ok();
    };
    let silence = async {
        let mut seen = None;
        while seen != Some(moved.load(Ordering::Relaxed)) {
            seen = Some(moved.load(Ordering::Relaxed));
            sleep(SILENCE).await;
        }
    };
    tokio::select! {
        () = both => {}
        () = silence => {}
    }
}

async fn one_way(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    moved: &AtomicU64,
) -> io::Result<()> {
    let mut bytes = vec![0; PIECE];
    loop {
        let count = from.read(&mut bytes).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&bytes[..count]).await?;
        moved.fetch_add(1, Ordering::Relaxed);
    }
}
