//! What two hand-written programs can do over the same pipes: blocking calls,
//! one thread each, no scheduler but the kernel's.

use std::{
    io::{Read, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use nix::fcntl::{FcntlArg, fcntl};

use crate::{
    child::{CHILD, RAW, Role},
    frame::{Add, Answer, Call, Frame, Inbox, put_call},
    harness::{Against, Budget, Figure, Measure, Promise, median, percentile},
};

/// Names that other measurements are held against.
pub(crate) const DEPTH_1: &str = "framed pipe, depth 1, p50";
pub(crate) const DEPTH_1_P99: &str = "framed pipe, depth 1, p99";
pub(crate) const DEPTH_64: &str = "framed pipe, depth 64";
pub(crate) const ECHO: &str = "raw pipe, 1 MiB echo";
pub(crate) const SPAWN: &str = "bare spawn to first byte";
pub(crate) const SPAWN_LARGE: &str = "bare spawn to first byte, large parent";
pub(crate) const MEMORY: &str = "bare child, private memory";
const RAW_P50: &str = "raw pipe, 64 B, p50";
const RAW_P99: &str = "raw pipe, 64 B, p99";

const fn figure(name: &'static str, unit: &'static str) -> Figure {
    Figure { name, unit, against: None }
}

const fn above(name: &'static str, unit: &'static str, floor: &'static str) -> Figure {
    Figure { name, unit, against: Some(Against { floor, promise: None }) }
}

pub(crate) const MEASURES: &[Measure] = &[
    Measure {
        name: "floor: raw ping-pong",
        figures: &[figure(RAW_P50, "us"), figure(RAW_P99, "us")],
        run: raw,
    },
    Measure {
        name: "floor: framed ping-pong",
        figures: &[above(DEPTH_1, "us", RAW_P50), above(DEPTH_1_P99, "us", RAW_P99)],
        run: depth_1,
    },
    Measure {
        name: "floor: framed, 64 at once",
        figures: &[figure(DEPTH_64, "calls/s")],
        run: depth_64,
    },
    Measure { name: "floor: large echo", figures: &[figure(ECHO, "ms")], run: echo },
    Measure {
        name: "floor: spawn",
        figures: &[figure(SPAWN, "ms"), figure(MEMORY, "KiB")],
        run: |budget| spawn(budget, 10 << 20),
    },
    Measure {
        name: "floor: spawn from a large parent",
        // Not a promise of plugbay's but what its promise rests on: a start that
        // copies no page tables.
        figures: &[Figure {
            name: SPAWN_LARGE,
            unit: "ms",
            against: Some(Against { floor: SPAWN, promise: Some(Promise::AtMost(1.5)) }),
        }],
        run: |budget| Ok(spawn(budget, budget.ballast)?[..1].to_vec()),
    },
];

/// A child of the floor and the two pipes to it.
struct Peer {
    child: Child,
    to: Option<ChildStdin>,
    from: ChildStdout,
}

impl Peer {
    fn start(role: Role) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        // An absolute path, no hook and no other user: std then starts it without
        // copying the parent.
        let mut child = Command::new(program)
            .args([CHILD, role.word()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a child")?;
        let to = child.stdin.take();
        let from = child.stdout.take().context("the child has no stdout")?;
        Ok(Self { child, to, from })
    }

    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let to = self.to.as_mut().context("the child has no stdin")?;
        to.write_all(bytes).context("cannot write to the child")
    }

    /// Makes both pipes hold this much.
    fn widen(&self, bytes: i32) -> anyhow::Result<()> {
        let to = self.to.as_ref().context("the child has no stdin")?;
        fcntl(to, FcntlArg::F_SETPIPE_SZ(bytes)).context("cannot widen the pipe to the child")?;
        fcntl(&self.from, FcntlArg::F_SETPIPE_SZ(bytes)).context("cannot widen the pipe back")?;
        Ok(())
    }

    /// Lets the child go and waits for it.
    fn stop(mut self) -> anyhow::Result<()> {
        self.to = None;
        let status = self.child.wait().context("cannot wait for the child")?;
        anyhow::ensure!(status.success(), "the child left with {status}");
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // After an error only: a child that was stopped is gone already.
        if self.to.is_some() {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

/// Repeats `once` for the time of one measurement after a tenth of it to get
/// warm, and returns what each took, in seconds.
fn time(budget: &Budget, mut once: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<Vec<f64>> {
    let warm = Instant::now() + budget.time / 10;
    while Instant::now() < warm {
        once()?;
    }
    let mut took = Vec::new();
    let end = Instant::now() + budget.time;
    // A handful at least: a budget may be shorter than what it measures.
    while took.len() < 5 || Instant::now() < end {
        let start = Instant::now();
        once()?;
        took.push(start.elapsed().as_secs_f64());
    }
    Ok(took)
}

fn p50_and_p99(took: &mut [f64]) -> Vec<f64> {
    vec![percentile(took, 0.50) * 1e6, percentile(took, 0.99) * 1e6]
}

fn raw(budget: &Budget) -> anyhow::Result<Vec<f64>> {
    let mut peer = Peer::start(Role::Raw)?;
    let mut bytes = [7; RAW];
    let mut took = time(budget, || {
        peer.write(&bytes)?;
        Ok(peer.from.read_exact(&mut bytes)?)
    })?;
    peer.stop()?;
    Ok(p50_and_p99(&mut took))
}

/// The caller's side: numbers the calls and checks the answers.
struct Caller {
    id: u32,
    out: Vec<u8>,
}

impl Caller {
    fn new() -> Self {
        Self { id: 1, out: Vec::new() }
    }

    /// Appends the next call to what is to be written.
    fn ask(&mut self) -> anyhow::Result<()> {
        let args = Add { a: self.id.into(), b: 1 };
        put_call(&mut self.out, self.id, &Call { name: "add", args })?;
        self.id += 2;
        Ok(())
    }

    fn check(frame: Frame<'_>) -> anyhow::Result<()> {
        let answer: Answer = rmp_serde::from_slice(frame.body)?;
        anyhow::ensure!(answer.data == u64::from(frame.id) + 1, "a wrong answer to {}", frame.id);
        Ok(())
    }
}

fn depth_1(budget: &Budget) -> anyhow::Result<Vec<f64>> {
    let mut peer = Peer::start(Role::Framed)?;
    let mut inbox = Inbox::new(64 << 10);
    let mut caller = Caller::new();
    let mut took = time(budget, || {
        caller.out.clear();
        caller.ask()?;
        peer.write(&caller.out)?;
        loop {
            anyhow::ensure!(inbox.fill(&mut peer.from)?, "the child is gone");
            if let Some(frame) = inbox.next() {
                return Caller::check(frame);
            }
        }
    })?;
    peer.stop()?;
    Ok(p50_and_p99(&mut took))
}

fn depth_64(budget: &Budget) -> anyhow::Result<Vec<f64>> {
    let mut peer = Peer::start(Role::Framed)?;
    let mut inbox = Inbox::new(64 << 10);
    let mut caller = Caller::new();
    for _ in 0..64 {
        caller.ask()?;
    }
    let mut answered = 0_u64;
    // One round: write all that may be asked, read once, check all that came.
    let mut round = |count: &mut u64| -> anyhow::Result<()> {
        peer.write(&caller.out)?;
        caller.out.clear();
        anyhow::ensure!(inbox.fill(&mut peer.from)?, "the child is gone");
        while let Some(frame) = inbox.next() {
            Caller::check(frame)?;
            caller.ask()?;
            *count += 1;
        }
        Ok(())
    };
    let warm = Instant::now() + budget.time / 10;
    while Instant::now() < warm {
        round(&mut 0)?;
    }
    let start = Instant::now();
    while start.elapsed() < budget.time {
        round(&mut answered)?;
    }
    let rate = answered as f64 / start.elapsed().as_secs_f64();
    // What is still under way is not awaited: the child reads it before the end
    // of its stdin, and may then find nobody who listens.
    drop(peer);
    Ok(vec![rate])
}

fn echo(budget: &Budget) -> anyhow::Result<Vec<f64>> {
    const PAYLOAD: usize = 1 << 20;
    let mut peer = Peer::start(Role::Echo)?;
    peer.widen(1 << 20)?;
    peer.write(&(PAYLOAD as u64).to_be_bytes())?;
    let payload: Vec<u8> = (0..PAYLOAD).map(|at| at as u8).collect();
    let mut back = vec![0; PAYLOAD];
    let mut took = time(budget, || {
        peer.write(&payload)?;
        Ok(peer.from.read_exact(&mut back)?)
    })?;
    anyhow::ensure!(back == payload, "the echo differs");
    peer.stop()?;
    Ok(vec![median(&mut took) * 1e3])
}

fn spawn(budget: &Budget, ballast: usize) -> anyhow::Result<Vec<f64>> {
    // Written, not only reserved: it is resident.
    let ballast = std::hint::black_box(vec![0xA5_u8; ballast]);
    let mut took = Vec::new();
    let mut private = Vec::new();
    let end = Instant::now() + budget.time;
    while took.len() < 5 || Instant::now() < end {
        let start = Instant::now();
        let mut peer = Peer::start(Role::FirstByte)?;
        let mut byte = [0];
        peer.from.read_exact(&mut byte).context("the child wrote nothing")?;
        took.push(start.elapsed().as_secs_f64());
        private.push(private_kib(peer.child.id())?);
        peer.stop()?;
        // So that one start does not pay for the end of the one before.
        std::thread::sleep(Duration::from_micros(200));
    }
    drop(ballast);
    Ok(vec![median(&mut took) * 1e3, median(&mut private)])
}

/// What a process would give back if it ended: pages that no other one shares.
pub(crate) fn private_kib(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let private = text.lines().filter(|line| line.starts_with("Private_"));
    let kib = private.filter_map(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
    Ok(kib.sum())
}
