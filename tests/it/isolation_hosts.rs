//! Plugins that may connect to some hosts and to no other.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, TcpListener, TcpStream},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use plugbay_supervisor::{
    Fact, Peer, PluginPlan,
    isolation::Machine,
    plan::{IfMissing, Item, Level, Network},
};
use serde_json::json;

use crate::{
    alone::{As, alone, alone_as},
    isolation::{attempt, walled},
    stage::{Stage, within},
    world::World,
};

/// A server that sends back what it reads, in capitals, and says what it was asked for.
struct Server {
    port: u16,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("it has one").port();
        let over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let streams = listener.incoming().map(|it| it.expect("a connection"));
            let streams = streams.take_while(|_| !stop.load(Ordering::SeqCst));
            let all: Vec<_> = streams.map(|it| thread::spawn(move || serve(it))).collect();
            all.into_iter().for_each(|it| it.join().expect("it only answers"));
        });
        Self { port, over, thread: Some(thread) }
    }

    fn at(&self, host: &str) -> String {
        format!("{host}:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        TcpStream::connect(self.at("127.0.0.1")).ok();
        self.thread.take().map(JoinHandle::join);
    }
}

fn serve(stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().expect("a copy"));
    let mut line = String::new();
    // Whoever leaves early leaves.
    reader.read_line(&mut line).ok();
    let mut rest = String::new();
    let is_page = line.starts_with("GET ");
    if is_page {
        while reader.read_line(&mut rest).is_ok_and(|it| 2 < it) {}
        let host = rest.lines().find(|it| it.starts_with("Host: ")).unwrap_or_default();
        rest = format!("HTTP/1.1 200 OK\r\n\r\n{} {host}", line.trim());
    } else {
        reader.read_to_string(&mut rest).ok();
        rest = (line + &rest).to_uppercase();
    }
    (&stream).write_all(rest.as_bytes()).ok();
}

fn plan(world: &World, level: Level, hosts: &[&str]) -> PluginPlan {
    let mut plan = walled(world, level);
    let hosts = hosts.iter().map(|it| it.parse::<Peer>().expect("a host and a port"));
    plan.sandbox.network = Network::Hosts(hosts.collect());
    plan
}

async fn refusal(stage: &Stage, of: &str) -> String {
    let refused = |fact: &Fact| match fact {
        Fact::Refused { to, why, .. } if to == of => Some(why.clone()),
        _ => None,
    };
    stage.fact("a refusal", refused).await
}

/// The whole of it, for whoever runs it: a granted host is reached, and nothing else.
async fn a_list(world: &World) {
    let (server, other) = (Server::new(), Server::new());
    let hidden = format!("plugbay-hosts-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&hidden).expect("a name");
    let _hidden = UnixListener::bind_addr(&address).expect("it is free");
    let elsewhere = tempfile::tempdir().expect("a temporary folder can be made");
    let path = elsewhere.path().join("socket");
    let _at = UnixListener::bind(&path).expect("it is ours");
    let path = path.to_str().expect("a plain path").to_owned();
    for level in [Level::Standard, Level::Strict] {
        let (host, local) = (server.at("127.0.0.1"), server.at("localhost"));
        let stage = world.supervise([plan(world, level, &[&host, &local])]);
        stage.up("p").await;
        assert_eq!(stage.plugin("p").expect("it is there").degraded, [""; 0]);
        let tries =
            async |deed: &str, what: &str, number| attempt(&stage, deed, what, number).await;
        for to in [&host, &local, &server.at("LOCALHOST")] {
            assert_eq!(tries("by proxy", to, 0).await, "ok 200 PING", "{to}");
            let page = tries("page by proxy", to, 0).await;
            assert_eq!(page, format!("ok 200 GET /page HTTP/1.1 Host: {to}"));
        }
        // Another port, another name, and other ways to write an address.
        for to in [&other.at("127.0.0.1"), "a.example:443", &server.at("[::ffff:127.0.0.2]")] {
            let peer: Peer = to.parse().expect("a host and a port");
            let said = tries("by proxy", to, 0).await;
            assert_eq!(said, format!("ok 403 plugbay: {peer} was not granted"));
            assert_eq!(refusal(&stage, &peer.to_string()).await, format!("{peer} was not granted"));
        }
        for to in [server.at("127.1"), server.at("2130706433"), "a".into(), "*.a:1".into()] {
            let said = tries("by proxy", &to, 0).await;
            assert!(said.starts_with("ok 400 plugbay: expected"), "{to}: {said}");
        }
        // Beside the proxy there is nothing.
        for (deed, what, number, expected) in [
            ("tcp", host.as_str(), 0, "ECONNREFUSED"),
            ("tcp", "192.0.2.1:80", 0, "ENETUNREACH"),
            ("fast open", "", server.port.into(), "ECONNREFUSED"),
            ("udp", &host, 0, "EACCES"),
            ("socket", "2 1 262", 0, "EACCES"),
            ("socket", "2 3 1", 0, "EACCES"),
            ("socket", "16 3 0", 0, "EACCES"),
            ("socket", "40 1 0", 0, "EACCES"),
            ("socket at", &path, 0, "ENOENT"),
        ] {
            assert_eq!(tries(deed, what, number).await, expected, "{level:?}: {deed} {what}");
        }
        let outcome = tries("abstract socket", &hidden, 0).await;
        assert!(["EPERM", "ECONNREFUSED"].contains(&outcome.as_str()), "{outcome}");
        stage.restart("p").expect("it is in the plan");
        stage.up("p").await;
        assert_eq!(tries("by proxy", &host, 0).await, "ok 200 PING");
        stage.end().await;
    }
}

#[test]
fn a_list_of_hosts_is_what_it_says_and_no_more() {
    alone(async |world| a_list(world).await);
}

#[test]
fn a_list_of_hosts_holds_for_an_ordinary_user() {
    alone_as(As::Nobody, async |world| a_list(world).await);
}

#[test]
fn a_name_that_is_granted_does_not_lead_into_the_house() {
    alone(async |world| {
        let server = Server::new();
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname");
        let names = own
            .into_iter()
            .map(|it| it.trim().to_owned())
            .chain(["ip6-loopback", "a.localhost"].map(str::to_owned));
        let mut found = None;
        for name in names.filter(|it| server.at(it).parse::<Peer>().is_ok()) {
            let at = tokio::net::lookup_host((name.as_str(), 1)).await;
            let is_inside = |it: IpAddr| match it {
                IpAddr::V4(it) => it.is_loopback() || it.is_private(),
                IpAddr::V6(it) => it.is_loopback(),
            };
            if at.is_ok_and(|mut at| at.all(|it| is_inside(it.ip()))) {
                found = Some(name);
                break;
            }
        }
        let Some(name) = found else { return eprintln!("skipped: no such name is known here") };
        let to = server.at(&name);
        let stage = world.supervise([plan(world, Level::Standard, &[&to])]);
        stage.up("p").await;
        let said = attempt(&stage, "by proxy", &to, 0).await;
        assert!(said.starts_with("ok 403 plugbay") && said.contains("is not public"), "{said}");
        stage.end().await;
    });
}

#[test]
fn what_is_no_request_is_answered_and_hangs_nobody() {
    alone(async |world| {
        let server = Server::new();
        let host = server.at("127.0.0.1");
        let stage = world.supervise([plan(world, Level::Standard, &[&host, "127.0.0.1:1"])]);
        stage.up("p").await;
        for words in ["\u{5}\u{1}\u{0}\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "\r\n\r\nx\r\n\r\n"] {
            let said = attempt(&stage, "words to proxy", words, 0).await;
            assert!(said.starts_with("ok 400 plugbay: expected"), "{words:?}: {said}");
        }
        let long = format!("CONNECT a:1 HTTP/1.1\r\nX: {}", "x".repeat(20_000));
        let said = attempt(&stage, "words to proxy", &long, 0).await;
        assert_eq!(said, "ok 400 plugbay: expected a shorter head");
        assert_eq!(attempt(&stage, "words to proxy", "CONNECT a", 0).await, "ok");
        // Granted, and nobody is there.
        let said = attempt(&stage, "by proxy", "127.0.0.1:1", 0).await;
        assert!(said.starts_with("ok 502 plugbay: 127.0.0.1:1"), "{said}");
        // More than are served at once wait, and are served.
        let said = attempt(&stage, "connections until", &host, 32).await;
        assert_eq!(said, "ok 200 PING");
        stage.end().await;
    });
}

#[test]
fn refusals_are_told_once_and_a_flood_is_counted() {
    alone(async |world| {
        let stage = world.supervise([plan(world, Level::Standard, &["a.example:443"])]);
        stage.up("p").await;
        for port in (1..=40).chain(1..=40) {
            attempt(&stage, "by proxy", &format!("b.example:{port}"), 0).await;
        }
        stage.end().await;
        let told = stage.facts(|fact| match fact {
            Fact::Refused { plugin, .. } if **plugin == *"p" => Some(()),
            _ => None,
        });
        assert_eq!(told.len(), 32);
        let dropped = |fact: &Fact| match fact {
            Fact::Dropped { what: "refused connections", count, .. } => Some(*count),
            _ => None,
        };
        assert_eq!(stage.fact("a count", dropped).await, 16);
    });
}

#[test]
fn without_a_network_of_its_own_a_list_is_refused_or_visibly_open() {
    alone_as(As::Restricted, async |world| {
        assert!(Machine::here().network.is_err());
        let server = Server::new();
        let host = server.at("127.0.0.1");
        let mut refused = plan(world, Level::Standard, &["a.example:443"]);
        refused.sandbox.prefer = vec![Item::Tree, Item::Files];
        let stage = world.supervise([refused.clone()]);
        let error = within("an answer", stage.ready("p")).await.expect_err("it cannot start");
        assert!(error.to_string().contains("cannot be held to `network`"), "{error}");
        stage.end().await;

        refused.sandbox.if_missing = IfMissing::Warn;
        let stage = world.supervise([refused]);
        stage.up("p").await;
        let degraded = stage.plugin("p").expect("it is there").degraded;
        let said = "network is not enforced: it reaches every host that its user can";
        assert!(degraded.iter().any(|it| it.starts_with(said)), "{degraded:?}");
        assert_eq!(attempt(&stage, "variable", "HTTPS_PROXY", 0).await, "ok");
        assert_eq!(attempt(&stage, "tcp", &host, 0).await, "ok");
        let args = json!({ "deed": "by proxy", "what": host });
        let said = stage.call("try", args).await.expect("it answers").text();
        assert_eq!(said, "EDESTADDRREQ");
        stage.end().await;
    });
}
