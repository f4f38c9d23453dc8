//! What a plugin can do to its host, in 94 numbered cases, and what is said and left of each.
//!
//! After every case: the reason is the right one, a sibling was called all the while and did
//! not notice, and nothing is left, neither processes nor zombies, descriptors, cgroups,
//! mounts, shared memory or files. What this machine cannot try is printed, with what it
//! would take.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    panic::AssertUnwindSafe,
    path::Path,
    pin::Pin,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use nix::libc;
use plugbay_supervisor::{
    CallError, Fact, NotReady, PluginPlan, Reason, State, digest_of,
    isolation::Machine,
    plan::{FileGrant, Level, RestartWhen},
};
use serde_json::json;

use crate::{
    alone::{As, NOT_TRIED, alone, alone_as},
    isolation::{attempt, walled},
    modes::{
        early_ping, fits, live, ms, no_hello, real, short_call, short_drain, short_ladder,
        short_ladder_all, silence, undisturbed,
    },
    stage::{Stage, brief, holds, within},
    world::{World, cgroups, children, descriptors, patience, trace, zombies},
};

const MIB: u64 = 1 << 20;
/// Only turns a leftover into a failure.
const LEAVES_WITHIN: Duration = Duration::from_secs(30);

/// One case, or a part of one.
struct Case {
    number: u8,
    name: &'static str,
    level: Level,
    needs: &'static [Need],
    act: Act,
}

/// What is done, and what must come of it.
enum Act {
    /// A mode of the fixture, with budgets that may run out; its life in the words of
    /// [`crate::modes`], and a part of what is said of its end.
    Mode(&'static str, fn(&mut PluginPlan), &'static str, &'static str),
    /// What the prisoner tries, each with what the system may answer. It lives.
    Deeds(fn(&mut PluginPlan), &'static [Deed]),
    /// A deed that ends it: deed, number, reason, and a part of what is said of it.
    Death(fn(&mut PluginPlan), &'static str, u64, &'static str, &'static str),
    /// What fits into none of these.
    Own(Procedure),
    /// Another test tries it: its name.
    Test(&'static str),
}

type Deed = (&'static str, &'static str, u64, &'static [&'static str]);
type Procedure = for<'a> fn(&'a World, &'a Case) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// What a machine must have for a case to be tried.
#[derive(Clone, Copy, Debug)]
enum Need {
    Walls,
    Memory,
    Cpu,
    Processes,
    Program(&'static str),
    Root,
    X86,
}

impl Need {
    fn missing(self) -> Option<String> {
        let machine = Machine::here();
        let cgroups = &machine.cgroups;
        let lack = match self {
            Self::Walls => [&machine.processes, &machine.files, &machine.calls]
                .into_iter()
                .find_map(|it| it.as_ref().err()),
            Self::Memory => cgroups.memory.as_ref().err(),
            Self::Cpu => cgroups.cpu.as_ref().err(),
            // Or by the count of a user namespace.
            Self::Processes => match machine.is_ordinary_user && machine.processes.is_ok() {
                true => None,
                false => cgroups.processes.as_ref().err(),
            },
            Self::Program(path) => {
                return (!Path::new(path).exists()).then(|| format!("there is no {path}"));
            }
            Self::Root => {
                return (!nix::unistd::geteuid().is_root()).then(|| "this is not root".into());
            }
            Self::X86 => {
                return (!cfg!(target_arch = "x86_64")).then(|| "this is no x86-64".into());
            }
        };
        lack.map(|it| it.cause.clone())
    }
}

const fn case(number: u8, name: &'static str, act: Act) -> Case {
    Case { number, name, level: Level::Standard, needs: &[Need::Walls], act }
}

impl Case {
    const fn at(self, level: Level) -> Self {
        Self { level, ..self }
    }

    const fn with(self, needs: &'static [Need]) -> Self {
        Self { needs, ..self }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "case {} ({}, {})", self.number, self.name, self.level.as_str())
    }
}

/// Few enough to be harmless, also if nobody ends them.
fn few(plan: &mut PluginPlan) {
    plan.limits.processes = Some(64);
    short_ladder(plan);
    short_drain(plan);
}

fn roomy(plan: &mut PluginPlan) {
    plan.limits.memory_bytes = Some(64 * MIB);
}

fn slow(plan: &mut PluginPlan) {
    short_call(plan);
    plan.timeouts.drain = ms(100);
    plan.timeouts.cancel_grace = ms(100);
}

fn slower(plan: &mut PluginPlan) {
    // So little that also a busy machine gives it that much.
    plan.limits.cpu_percent = Some(3);
    plan.timeouts.hello = patience(plan.timeouts.hello);
    slow(plan);
}

fn impatient(plan: &mut PluginPlan) {
    short_call(plan);
    // Longer than the call's silence and the grace.
    plan.timeouts.drain = ms(2000);
}

use Act::{Death, Deeds, Mode, Own, Test};
use Level::{None as Bare, Strict};
use Need::{Cpu, Memory, Processes, Program, Root, Walls, X86};

const EROFS: &[&str] = &["EROFS", "EACCES", "EPERM"];
const EPERM: &[&str] = &["EPERM"];
const ENOENT: &[&str] = &["ENOENT"];
const EACCES: &[&str] = &["EACCES"];
/// Of the system, and no plugin's.
const SHADOW: &str = "/etc/shadow";

#[rustfmt::skip]
const LIFECYCLE: &[Case] = &[
    case(1, "exits 0 before the handshake", Mode("exit at=start code=0", real, "down: exited; exited -", "exited with status 0 before it was ready")),
    case(2, "exits 1 at every start", Own(|world, case| Box::pin(trips_its_budget(world, case)))),
    case(3, "never shakes hands", Mode("silent", no_hello, "down: no_hello; no_hello -|eof", "did not say HELLO within ")),
    case(3, "stops itself before it", Mode("stop-self at=start", no_hello, "down: no_hello; no_hello term|kill", " and was stopped; it was stopped by a signal")),
    case(4, "speaks another version", Own(|world, case| Box::pin(is_not_tried_again(world, case, "wrong-version", "version_unsupported")))),
    case(5, "shakes hands too late", Mode("slow-hello ms=400", |plan| plan.timeouts.hello = ms(300), "down: no_hello; no_hello -|eof|term", "did not say HELLO within 300ms")),
    case(6, "dies of SIGSEGV", Mode("crash at=call say=here", real, "up: lost crashed, may have run, again if idempotent; crashed -", "was ended by SIGSEGV")),
    case(7, "aborts", Mode("crash at=call signal=SIGABRT", real, "up: lost crashed, may have run, again if idempotent; crashed -", "was ended by SIGABRT")),
    case(8, "panics", Mode("panic", real, "up: lost exited, may have run, again if idempotent; exited -", "exited with status 101")),
    case(8, "panics, and says so", Own(|world, case| Box::pin(last_words(world, case, "panic", "the disk is on fire")))),
    case(9, "fills its stack", Mode("overflow", real, "up: lost crashed, may have run, again if idempotent; crashed -", "was ended by SIG")),
    case(9, "fills its stack, and says so", Own(|world, case| Box::pin(last_words(world, case, "overflow", "has overflowed its stack")))),
    case(10, "a throw that nobody catches", Own(|world, case| Box::pin(script(world, case, "/usr/bin/node", "throw new Error('boom')", "Error: boom")))).with(&[Walls, Program("/usr/bin/node")]),
    case(11, "an exception that nobody catches", Own(|world, case| Box::pin(script(world, case, "/usr/bin/python3", "raise RuntimeError('boom')", "RuntimeError: boom")))).with(&[Walls, Program("/usr/bin/python3")]),
    case(12, "kills itself", Mode("crash at=call signal=SIGKILL", roomy, "up: lost killed, may have run, again if idempotent; killed -", "was ended by SIGKILL, which plugbay did not send")).with(&[Walls, Memory]),
    case(13, "is ended by SIGTERM when told to go", Mode("ignores-eof", short_ladder, "up: ok; stopped term", "")),
    case(13, "is ended by SIGPIPE when told to go", Mode("crash at=closing signal=SIGPIPE", real, "up: ok; stopped -|close|eof", "")),
    case(14, "ignores every polite word", Mode("ignores-term", short_ladder_all, "up: ok; stopped kill", "")),
    case(15, "exits with the code of a start that is wrong", Own(|world, case| Box::pin(is_not_tried_again(world, case, "exit at=hello code=2", "exited")))),
    case(16, "cannot be executed", Own(|world, case| Box::pin(cannot_start(world, case)))),
    case(16, "cannot be executed", Own(|world, case| Box::pin(cannot_start(world, case)))).at(Bare),
    case(17, "its program is replaced between check and exec", Own(|world, case| Box::pin(replaced(world, case)))),
    case(17, "its program is replaced between check and exec", Own(|world, case| Box::pin(replaced(world, case)))).at(Strict),
    case(17, "its program is replaced between two starts", Own(|world, case| Box::pin(replaced_later(world, case)))),
    case(17, "its program is replaced between two starts", Own(|world, case| Box::pin(replaced_later(world, case)))).at(Bare).with(&[]),
];

#[rustfmt::skip]
const TREES: &[Case] = &[
    case(18, "children in its group", Mode("kin n=3", few, "stays: stopped -|close|eof", "")).with(&[Walls, Processes]),
    case(19, "children in groups of their own", Mode("kin n=3 way=group", few, "stays: stopped -|close|eof", "")).with(&[Walls, Processes]),
    case(20, "children in sessions of their own", Mode("kin n=3 way=session", few, "stays: stopped -|close|eof", "")).with(&[Walls, Processes]),
    case(21, "a daemon that ignores TERM, HUP and INT", Mode("kin way=daemon", few, "stays: stopped -|close|eof", "")).with(&[Walls, Processes]),
    case(22, "a daemon whose parent leaves at once", Own(|world, case| Box::pin(leaves_behind(world, case, "kin way=session leave=1")))).with(&[Walls, Processes]),
    case(23, "children that are stopped", Mode("kin n=2 way=stopped", few, "stays: stopped -|close|eof", "")).with(&[Walls, Processes]),
    case(24, "a hopper", Own(|world, case| Box::pin(hops(world, case, 1)))).with(&[Walls, Processes]),
    case(25, "eight hoppers", Own(|world, case| Box::pin(hops(world, case, 8)))).with(&[Walls, Processes]),
    case(25, "eight hoppers", Own(|world, case| Box::pin(hops(world, case, 8)))).at(Strict).with(&[Walls, Processes]),
    case(26, "a fork bomb", Own(|world, case| Box::pin(refused(world, case, "bomb life=20")))).with(&[Walls, Processes]),
    case(27, "a child of its parent", Mode("sibling", few, "stays: stopped close", "")).with(&[Walls, Processes]),
    case(27, "a child of its parent", Own(|world, case| Box::pin(sibling(world, case)))).at(Bare),
    case(28, "waits in the kernel for a child", Mode("vfork life=20", few, "stays: stopped term|kill", "")).with(&[Walls, Processes]),
    case(29, "its first thread is dead and another lives", Mode("leaderless", few, "stays: stopped eof|term|kill", "")).with(&[Walls, Processes]),
    case(30, "a bomb of threads", Own(|world, case| Box::pin(refused(world, case, "threads")))).with(&[Walls, Processes]),
    case(31, "a child holds stdout and its parent leaves", Own(|world, case| Box::pin(leaves_behind(world, case, "kin holds=stdout leave=1")))).with(&[Walls, Processes]),
    case(31, "a child holds stdout and its parent leaves", Own(|world, case| Box::pin(leaves_a_pipe_held(world, case, "kin holds=stdout leave=1")))).at(Bare).with(&[]),
    case(32, "a child holds stderr and its parent leaves", Own(|world, case| Box::pin(leaves_behind(world, case, "kin holds=stderr leave=1")))).with(&[Walls, Processes]),
    case(32, "a child holds stderr and its parent leaves", Own(|world, case| Box::pin(leaves_a_pipe_held(world, case, "kin holds=stderr leave=1")))).at(Bare).with(&[]),
    case(33, "is in the kernel and cannot be killed", Own(|world, case| Box::pin(unkillable(world, case)))).with(&[Walls, Root, Program("/usr/sbin/fsfreeze"), Program("/usr/sbin/mkfs.ext4"), Program("/dev/loop-control")]),
];

#[rustfmt::skip]
const HOSTS: &[Case] = &[
    case(34, "its host is killed while nothing happens", Test("kills::nothing_survives_a_supervisor_that_is_killed_at_any_moment")),
    case(35, "its host is killed while it starts", Test("kills::nothing_survives_a_supervisor_that_is_killed_at_any_moment")),
    case(36, "its host is killed while it is killed", Test("kills::nothing_survives_a_supervisor_that_is_killed_at_any_moment")),
    case(37, "its guard is stopped, and its host killed", Test("hosts::a_guard_that_is_stopped_ends_the_plugin_when_its_host_is_killed")),
    case(38, "its guard is killed", Test("isolation_kill::who_kills_a_guard_kills_the_plugin_and_is_told_from_a_crash")),
    case(39, "the process 1 of its namespace is killed", Own(|world, case| Box::pin(loses_its_init(world, case)))),
    case(40, "its host has forked, and is killed", Test("hosts::a_fork_of_the_host_keeps_no_plugin_alive")),
    case(41, "the thread that started it ends", Test("hosts::a_plugin_outlives_the_thread_that_started_it")),
    case(42, "its host is stopped, and goes on", Test("hosts::a_host_that_was_stopped_blames_nobody_for_the_time")),
    case(43, "its host lets the system collect it", Test("hosts::who_collects_our_children_costs_the_status_and_no_more")),
    case(44, "tries to end or to stop its keepers", Deeds(real, &[
        ("kill the keeper", "", 0, &["ok", "EPERM"]), ("stop the keeper", "", 0, &["ok", "EPERM"]),
        ("kill all", "", 0, &["ok", "EPERM", "ESRCH"]), ("call", "16902 1 0 0", libc::SYS_ptrace as u64, EPERM),
        ("read", "/proc/1/environ", 0, EACCES), ("read", "/proc/1/fd/3", 0, EACCES),
        ("processes", "", 0, &["ok 1 2"]),
    ])),
    case(44, "tries to end or to stop its keepers", Deeds(real, &[
        ("kill the keeper", "", 0, &["ok", "EPERM"]), ("stop the keeper", "", 0, &["ok", "EPERM"]),
        ("kill all", "", 0, &["ok", "EPERM", "ESRCH"]), ("processes", "", 0, &["ok 1 2"]),
    ])).at(Strict),
];

#[rustfmt::skip]
const STDIO: &[Case] = &[
    case(45, "text on stdout", Mode("stray", real, "dies: not_a_frame -|eof", "wrote text or other bytes to stdout between frames")),
    case(45, "text on stdout", Mode("banner", real, "down: not_a_frame; not_a_frame -|eof", "before its HELLO")),
    case(46, "a mark of byte order first", Mode("prefix which=bom", real, "down: not_a_frame; not_a_frame -|eof", "before its HELLO")),
    case(46, "a line feed first", Mode("prefix which=newline", real, "down: not_a_frame; not_a_frame -|eof", "before its HELLO")),
    case(46, "a space first", Mode("prefix which=space", real, "down: not_a_frame; not_a_frame -|eof", "before its HELLO")),
    case(47, "a body of no byte and of one", Mode("small-bodies", real, "up: ok; stopped close", "")),
    case(47, "the largest frame", Mode("exact-frame", real, "up: ok; stopped close", "")),
    case(47, "a frame that is a byte too large", Mode("oversize-frame", real, "dies: violation -|eof", "")),
    case(47, "a frame of four thousand million bytes", Mode("huge-frame send=4096", real, "dies: violation -|eof", "")),
    case(48, "exits within a header", Mode("half-frame cut=header then=exit", real, "dies: exited -", "")),
    case(48, "exits with 0 within a body", Mode("half-frame cut=body then=exit code=0", real, "dies: violation -", "")),
    case(49, "a byte at a time in its HELLO", Mode("byte-by-byte ms=20", no_hello, "down: no_hello; no_hello -|eof|term", "bytes of its HELLO within ")),
    case(49, "a byte at a time in a result", Mode("drip", impatient, "up: timed out idle, may have run, again if idempotent; call_stuck close|eof|term", "did not end a cancelled call")),
    case(50, "cuts between all bytes", Mode("byte-by-byte", real, "up: ok; stopped close", "")),
    case(51, "five million lists in each other", Mode("deep-result depth=5000000", real, "up: failed resource_exhausted pb.frame_limit, run, never again; stopped close", "")),
    case(51, "ten thousand lists in each other", Mode("deep-result", real, "up: bad result, run, never again; stopped close", "")),
    case(52, "a map of four thousand million", Mode("bad-result which=huge", real, "up: bad result, run, never again; stopped close", "")),
    case(52, "a list of four thousand million", Mode("bad-result which=huge-list", real, "up: bad result, run, never again; stopped close", "")),
    case(52, "four thousand million bytes", Mode("bad-result which=huge-bytes", real, "up: bad result, run, never again; stopped close", "")),
    case(52, "an extension of four thousand million bytes", Mode("bad-result which=huge-ext", real, "up: bad result, run, never again; stopped close", "")),
    case(52, "a head of four thousand million entries", Mode("bad-head which=liar", real, "dies: violation -|eof", "")),
    case(53, "bytes behind a head", Mode("bad-head which=trailing", real, "dies: violation -|eof", "")),
    case(53, "a key twice", Mode("bad-head which=dup", real, "dies: violation -|eof", "")),
    case(53, "text that is no UTF-8", Mode("bad-head which=utf8", real, "dies: violation -|eof", "")),
    case(53, "a number of more than 63 bits", Mode("bad-head which=bigint", real, "dies: violation -|eof", "")),
    case(53, "no number", Mode("bad-result which=nan", real, "up: bad result, run, never again; stopped close", "")),
    case(53, "bytes behind a result", Mode("bad-result which=trailing", real, "up: bad result, run, never again; stopped close", "")),
    case(54, "an answer that nobody waits for", Mode("end-unknown-id", real, "dies: violation -|eof", "")),
    case(54, "two answers", Mode("double-end", real, "up: ok; violation -|eof", "")),
    case(54, "an answer before any call", Mode("end-first", real, "down: violation; violation -|eof", "")),
    case(55, "a flood of notes", Mode("flood-stdout", real, "up: ok; stopped close", "")),
    case(55, "a flood of the largest notes", Mode("flood-big-notes", real, "up: ok; stopped close", "")),
    case(56, "never reads, and is called ten thousand times", Own(|world, case| Box::pin(crowd(world, case)))),
    case(57, "never answers", Mode("never-answers", impatient, "up: timed out idle, may have run, again if idempotent; call_stuck close|eof|term", "did not end a cancelled call within 200ms and was stopped; it was waiting")),
    case(58, "answers after it was cancelled", Mode("answers-late", short_call, "up: timed out idle, may have run, again if idempotent; stopped close|eof|term", "")),
    case(59, "closes stdout", Mode("eof-in-active", real, "dies: closed_stdout eof", "")),
    case(60, "closes stdin", Mode("closes-stdin", early_ping, "dies: closed_stdin term", "")),
    case(61, "closes stderr", Mode("closes-stderr", real, "up: ok; stopped close", "")),
    case(62, "a flood of stderr without a line", Mode("flood-stderr line=0", real, "up: ok; stopped close", "")),
    case(63, "frames to stderr and words to stdout", Mode("swapped", real, "down: not_a_frame; not_a_frame -|eof", "")),
    case(64, "changes its pipes", Mode("meddles", real, "up: ok; stopped close", "")),
    case(65, "two of it write", Mode("interleave", real, "dies: violation|not_a_frame -|eof", "")),
];

#[rustfmt::skip]
const RESOURCES: &[Case] = &[
    case(66, "twice the memory that it may have", Death(roomy, "memory", 128 * MIB, "out_of_memory", "its limit of 64MiB")).with(&[Walls, Memory]),
    case(67, "a file in memory as large as that", Death(roomy, "file in memory", 128 * MIB, "out_of_memory", "its limit of 64MiB")).with(&[Walls, Memory]),
    case(68, "a child that takes too much memory", Own(|world, case| Box::pin(child_takes_too_much(world, case)))).with(&[Walls, Memory]),
    case(69, "a terabyte of addresses, untouched", Deeds(roomy, &[("reserve", "", 1 << 40, &["ok"])])).with(&[Walls, Memory]),
    case(70, "a loop", Own(|world, case| Box::pin(spins(world, case, slow, "it was busy")))),
    case(70, "a bound on processor time of its own", Death(real, "processor time", 1, "cpu_time_spent", "used up its processor time")),
    case(71, "ignores the end of its processor time", Death(real, "processor time, unmoved", 1, "killed", "which plugbay did not send")),
    case(72, "opens all files it may", Deeds(|plan| plan.limits.open_files = Some(64), &[("files until", "", 64, &["EMFILE"]), ("files until", "", 16, &["ok 16"])])),
    case(73, "a file that is too large", Death(|plan| plan.limits.file_bytes = Some(4 * MIB), "file of", 8 * MIB, "file_too_large", "its limit of 4MiB")),
    case(73, "the same, unmoved", Deeds(|plan| plan.limits.file_bytes = Some(4 * MIB), &[("file of, unmoved", "", 8 * MIB, &["EFBIG"])])),
    case(74, "more files than its folder holds", Deeds(roomy, &[("many files", "", 200_000, &["ENOSPC"]), ("list", "/dev", 0, &["ok fd full null ptmx pts random shm stderr stdin stdout tty urandom zero", "*"])])).with(&[Walls, Memory]),
    case(75, "is held up by its limit", Own(|world, case| Box::pin(spins(world, case, slower, "kept from more by its limit")))).with(&[Walls, Cpu]),
    case(76, "stops itself", Mode("stop-self", silence, "dies: silent -|eof|term", "it was stopped by a signal")),
    case(77, "lifts its own limits", Deeds(|plan| { roomy(plan); plan.limits.open_files = Some(64); }, &[
        ("put", "/proc/self/oom_score_adj -1000", 0, EROFS), ("raise", "", 4096, EPERM),
        ("list", "/sys/fs/cgroup", 0, ENOENT), ("put", "/sys/fs/cgroup/cgroup.procs 0", 0, ENOENT),
    ])).with(&[Walls, Memory]),
    case(78, "a core file", Deeds(real, &[("limit", "Max core file size", 0, &["ok 0 0 bytes"])])),
    case(78, "a crash without a core file", Death(real, "end by", 11, "crashed", "was ended by SIGSEGV")),
    case(79, "memory that stays", Deeds(real, &[
        ("lock", "", MIB, &["ENOMEM", "EPERM", "EAGAIN"]), ("call", "1886151266 4096 950 0", libc::SYS_shmget as u64, EPERM),
        ("call", "0 66 384 0", libc::SYS_mq_open as u64, EPERM), ("write", "/dev/shm/plugbay-left", 0, &["ok"]),
        ("write", "/tmp/plugbay-left", 0, &["ok"]),
    ])),
];

#[rustfmt::skip]
const WALLS: &[Case] = &[
    case(80, "reads what is not its own", Own(|world, case| Box::pin(reads(world, case)))),
    case(80, "reads what is not its own", Own(|world, case| Box::pin(reads(world, case)))).at(Strict),
    case(81, "changes files of the host", Deeds(real, &[
        ("mode", "/etc/passwd", 0, EROFS), ("owner", "/etc/passwd", 0, EROFS), ("time", "/etc/passwd", 0, EROFS),
        ("attribute", "/etc/passwd", 0, &["EROFS", "EACCES", "EPERM", "EOPNOTSUPP"]), ("move", "/etc/passwd", 0, &["EROFS", "EACCES", "EXDEV"]),
        ("link", "/etc/passwd", 0, &["EROFS", "EACCES", "EXDEV", "EPERM"]), ("write", "/usr/bin/new", 0, EROFS),
    ])),
    case(82, "leaves its folder by links and dots", Deeds(real, &[
        ("by link", SHADOW, 0, ENOENT), ("read", "/tmp/../etc/shadow", 0, ENOENT), ("read", "/proc/self/root/etc/shadow", 0, ENOENT),
        ("read", "/proc/1/root/etc/shadow", 0, &["ENOENT", "EACCES"]), ("call", "0 0 0 0", libc::SYS_mount as u64, EPERM),
        ("call", "0 0 0 0", libc::SYS_open_by_handle_at as u64, EPERM),
    ])),
    case(83, "runs what it may not", Own(|world, case| Box::pin(runs(world, case)))),
    case(84, "reaches a network of any kind", Test("isolation::there_is_no_network_of_any_kind")),
    case(85, "asks the kernel's other door", Deeds(real, &[("call", "8 0 0 0", libc::SYS_io_uring_setup as u64, &["ENOSYS"])])),
    case(85, "asks the kernel's other door", Deeds(real, &[("call", "8 0 0 0", libc::SYS_io_uring_setup as u64, &["ENOSYS"])])).at(Strict),
    case(86, "makes namespaces and mounts", Deeds(real, &[
        ("call", "268435456 0 0 0", libc::SYS_unshare as u64, EPERM), ("call", "268435473 0 0 0", libc::SYS_clone as u64, EPERM),
        ("call", "0 0 0 0", libc::SYS_clone3 as u64, &["ENOSYS"]), ("call", "0 0 0 0", libc::SYS_setns as u64, EPERM),
        ("call", "0 0 0 0", libc::SYS_mount as u64, EPERM), ("call", "0 0 0 0", libc::SYS_pivot_root as u64, EPERM),
        ("call", "0 0 0 0", libc::SYS_chroot as u64, EPERM),
    ])),
    case(87, "calls by the rules of 32 bits", Death(real, "call as 32 bits", 0, "forbidden_call", "another kind of machine")).with(&[Walls, X86]),
    case(87, "calls by the rules of x32", Death(real, "call", 0x4000_0000 | libc::SYS_getpid as u64, "forbidden_call", "another kind of machine")).with(&[Walls, X86]),
    case(88, "looks into other processes and the kernel", Deeds(real, &[
        ("call", "0 0 0 0", libc::SYS_bpf as u64, EPERM), ("call", "0 0 0 0", libc::SYS_perf_event_open as u64, EPERM),
        ("call", "16902 1 0 0", libc::SYS_ptrace as u64, EPERM), ("call", "1 0 0 0", libc::SYS_process_vm_readv as u64, EPERM),
        ("call", "0 0 0 0", libc::SYS_pidfd_getfd as u64, EPERM), ("call", "0 0 0 0", libc::SYS_userfaultfd as u64, EPERM),
    ])),
    case(89, "runs what would give it rights", Deeds(real, &[("status", "NoNewPrivs:", 0, &["ok 1"]), ("status", "CapBnd:", 0, &["ok 0000000000000000"]), ("status", "CapEff:", 0, &["ok 0000000000000000"])])),
    case(90, "types into the operator's terminal", Deeds(real, &[("call", "0 21522 0 0", libc::SYS_ioctl as u64, EPERM), ("write", "/dev/tty", 0, &["ENOENT", "EACCES", "EROFS", "ENXIO"])])),
    case(91, "looks for descriptors that were left open", Test("isolation::nothing_is_inherited_by_accident")),
    case(92, "looks for variables of its host", Deeds(real, &[("variables", "", 0, &["ok HOME PLUGBAY_PROTOCOL PLUGBAY_TEST_MARK TMPDIR"])])),
    case(93, "a machine without walls", Test("isolation::what_a_machine_lacks_is_a_refusal_that_helps")),
    case(94, "good plugins of all kinds behind strict walls", Test("isolation::interpreters_threads_and_children_work")),
    case(94, "a script of the shell", Own(|world, case| Box::pin(script(world, case, "/bin/sh", "echo boom >&2; exit 1", "boom")))).at(Strict),
    case(94, "all that its limits give", Deeds(|plan| { roomy(plan); plan.limits.processes = Some(16); plan.limits.open_files = Some(64); plan.limits.file_bytes = Some(4 * MIB); }, &[
        ("memory", "", 40 * MIB, &["ok 41943040"]), ("processes until", "", 6, &["ok 6"]), ("files until", "", 40, &["ok 40"]), ("file of", "", 4 * MIB, &["ok"]),
    ])).at(Strict).with(&[Walls, Memory, Processes]),
];

const ALL: [&[Case]; 6] = [LIFECYCLE, TREES, HOSTS, STDIO, RESOURCES, WALLS];

/// The fixture's modes that are tried here.
pub(crate) fn modes() -> impl Iterator<Item = &'static str> {
    // Those of the procedures below, which the table does not name.
    let named = ["bomb", "threads", "sibling", "kin"];
    let rows = ALL.into_iter().flatten().filter_map(|it| match it.act {
        Mode(mode, ..) => Some(mode),
        _ => None,
    });
    rows.chain(named)
}

#[test]
fn no_case_is_missing_and_those_that_other_tests_try_are_tried() {
    let numbers: BTreeSet<u8> = ALL.into_iter().flatten().map(|it| it.number).collect();
    assert_eq!(numbers, (1..=94).collect());
    let own = std::env::current_exe().expect("this is a file");
    let list = Command::new(own).arg("--list").output().expect("the test binary starts");
    let list = String::from_utf8(list.stdout).expect("a list of names");
    for case in ALL.into_iter().flatten() {
        if let Test(name) = case.act {
            assert!(list.lines().any(|it| it == format!("{name}: test")), "{case}: no test {name}");
        }
    }
}

macro_rules! tried {
    ($($name:ident: $cases:expr;)*) => {
        $(
            #[test]
            fn $name() {
                alone(async |world| try_all(world, $cases).await);
            }
        )*

        /// The same for a user without rights.
        mod unprivileged {
            use super::*;

            $(
                #[test]
                fn $name() {
                    alone_as(As::Nobody, async |world| try_all(world, $cases).await);
                }
            )*
        }
    };
}

tried! {
    plugins_that_come_and_go_wrongly: LIFECYCLE;
    plugins_that_start_others: TREES;
    plugins_whose_keepers_are_attacked: HOSTS;
    plugins_that_break_the_protocol: STDIO;
    plugins_that_take_too_much: RESOURCES;
    plugins_that_try_the_walls: WALLS;
}

async fn try_all(world: &World, cases: &[Case]) {
    // What is opened once and kept is open before anything is counted.
    let warm = world.supervise([world.plugin("p", "good")]);
    warm.up("p").await;
    warm.end().await;
    drop(warm);
    let mut wrong = Vec::new();
    for case in cases {
        if let Some(lack) = case.needs.iter().find_map(|it| it.missing()) {
            println!("{NOT_TRIED}{case}: {lack}");
            continue;
        }
        if let Test(name) = case.act {
            println!("elsewhere: {case}: {name}");
            continue;
        }
        let before = Traces::of(world);
        let tried = async {
            match case.act {
                Test(_) => unreachable!("it has its own test"),
                Mode(mode, tweak, expected, says) => {
                    mode_ends(world, case, mode, tweak, expected, says).await;
                }
                Deeds(tweak, deeds) => deeds_fail(world, case, tweak, deeds).await,
                Death(tweak, deed, number, kind, says) => {
                    deed_ends(world, case, tweak, (deed, number), kind, says).await;
                }
                Own(own) => own(world, case).await,
            }
            let left = tokio::time::timeout(patience(LEAVES_WITHIN), async {
                while Traces::of(world) != before {
                    tokio::time::sleep(ms(5)).await;
                }
            });
            if left.await.is_err() {
                assert_eq!(Traces::of(world), before, "{case}: something is left");
            }
        };
        // All are tried, so that one look tells which of them are wrong.
        let is_right = AssertUnwindSafe(tried).catch_unwind().await.is_ok();
        println!("{}: {case}", if is_right { "right" } else { "wrong" });
        if !is_right {
            wrong.push(case.to_string());
            // So that it is not taken for what was there before the next one.
            let ended = tokio::time::timeout(patience(LEAVES_WITHIN), async {
                while !world.processes().is_empty() {
                    tokio::time::sleep(ms(5)).await;
                }
            });
            ended.await.ok();
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// All that a plugin could leave behind. What other tests leave meanwhile is not in it.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    processes: BTreeSet<u32>,
    zombies: BTreeSet<u32>,
    children: BTreeSet<u32>,
    descriptors: Vec<(u32, std::path::PathBuf)>,
    cgroups: Vec<String>,
    /// Those in our folder, and those that hold namespaces.
    mounts: BTreeSet<String>,
    shared: BTreeSet<String>,
    files: BTreeSet<String>,
}

impl Traces {
    fn of(world: &World) -> Self {
        let folder = world.path("").display().to_string();
        let lines = |path: &str, is_it: &dyn Fn(&str) -> bool| {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.lines().filter(|line| is_it(line)).map(str::to_owned).collect()
        };
        let names = |folder: &str| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|it| it.path().display().to_string())
        };
        let left = |it: &String| it.contains("plugbay-left");
        Self {
            processes: world.processes(),
            zombies: zombies(),
            children: children(),
            descriptors: descriptors(),
            cgroups: cgroups(std::process::id()),
            mounts: lines("/proc/self/mountinfo", &|it| {
                it.contains(folder.trim_end_matches('/')) || it.contains(" nsfs ")
            }),
            // The key that case 79 asks for.
            shared: lines("/proc/sysvipc/shm", &|it| {
                it.split_whitespace().next() == Some("1886151266")
            }),
            files: ["/tmp", "/var/tmp", "/dev/shm"]
                .into_iter()
                .flat_map(names)
                .filter(left)
                .collect(),
        }
    }
}

/// A supervisor with the plugin of a case and a sibling, which is called all the while.
struct Scene {
    stage: Stage,
    done: Arc<AtomicBool>,
    sibling: tokio::task::JoinHandle<usize>,
}

/// A case that fails leaves nothing to the ones after it.
impl Drop for Scene {
    fn drop(&mut self) {
        self.sibling.abort();
    }
}

impl Scene {
    async fn new(world: &World, plan: PluginPlan) -> Self {
        let stage = world.supervise([plan, world.plugin("sibling", "good tools=pid life=300")]);
        stage.up("sibling").await;
        let done = Arc::new(AtomicBool::new(false));
        let sibling = tokio::spawn(undisturbed(stage.clone(), Arc::clone(&done)));
        Self { stage, done, sibling }
    }

    /// Ends all, if the sibling has not noticed anything.
    async fn end(mut self, case: &Case) {
        self.stage.call("pid", json!({})).await.expect("the sibling answers afterwards");
        self.done.store(true, Ordering::Relaxed);
        let served = within("the sibling", &mut self.sibling).await;
        let served = served.unwrap_or_else(|error| panic!("{case}: the sibling: {error}"));
        assert!(0 < served, "{case}: the sibling was never called");
        assert_eq!(self.stage.starts("sibling"), 1, "{case}");
        self.stage.end().await;
    }
}

fn fixture(world: &World, case: &Case, mode: &str) -> PluginPlan {
    let mut plan = world.plugin("p", mode);
    plan.prefix = Some("p".into());
    plan.sandbox.level = case.level;
    plan.restart.when = RestartWhen::Never;
    plan
}

async fn mode_ends(
    world: &World,
    case: &Case,
    mode: &str,
    tweak: fn(&mut PluginPlan),
    expected: &str,
    says: &str,
) {
    let mut plan = fixture(world, case, mode);
    tweak(&mut plan);
    let scene = Scene::new(world, plan).await;
    let actual = if mode == "drip" || mode == "never-answers" {
        // It is cancelled, and the grace runs out, before anybody stops it.
        let ready = within("the plugin", scene.stage.ready("p")).await;
        ready.unwrap_or_else(|error| panic!("{case}: {error}"));
        let answer = scene.stage.call("p_echo", json!({ "text": "hi" })).await;
        let (reason, rung) = scene.stage.exit("p").await;
        format!("up: {}; {} {}", brief(&answer), reason.kind(), rung.unwrap_or("-"))
    } else {
        live(&scene.stage, "p", expected).await
    };
    let is_right = fits(expected, &actual) || {
        // Two reasons may stand for one fault, whichever comes first.
        let (most, rungs) = expected.rsplit_once(' ').expect("a row ends with its rungs");
        let (form, kinds) = most.rsplit_once(' ').expect("and before them with its reasons");
        kinds.split('|').any(|kind| fits(&format!("{form} {kind} {rungs}"), &actual))
    };
    assert!(is_right, "{case}: {mode}\n  expected {expected}\n  found    {actual}");
    let (reason, _) = scene.stage.exit("p").await;
    assert!(reason.to_string().contains(says), "{case}: no {says:?} in {reason}");
    scene.end(case).await;
}

fn prison(world: &World, case: &Case, tweak: fn(&mut PluginPlan)) -> PluginPlan {
    let mut plan = walled(world, case.level);
    plan.restart.when = RestartWhen::Never;
    tweak(&mut plan);
    plan
}

async fn deeds_fail(world: &World, case: &Case, tweak: fn(&mut PluginPlan), deeds: &[Deed]) {
    let scene = Scene::new(world, prison(world, case, tweak)).await;
    scene.stage.up("p").await;
    for (deed, what, number, expected) in deeds {
        let outcome = attempt(&scene.stage, deed, what, *number).await;
        let is_right = expected.iter().any(|it| *it == outcome || *it == "*");
        assert!(is_right, "{case}: {deed} {what} {number}: {outcome}, and not {expected:?}");
    }
    scene.stage.down("p").await;
    assert_eq!(scene.stage.exit("p").await.0.kind(), "stopped", "{case}");
    scene.end(case).await;
}

async fn deed_ends(
    world: &World,
    case: &Case,
    tweak: fn(&mut PluginPlan),
    (deed, number): (&str, u64),
    kind: &str,
    says: &str,
) {
    let scene = Scene::new(world, prison(world, case, tweak)).await;
    scene.stage.up("p").await;
    let answer = scene.stage.call("try", json!({ "deed": deed, "number": number })).await;
    assert!(answer.is_err(), "{case}: it answered {answer:?}");
    let (reason, rung) = scene.stage.exit("p").await;
    assert_eq!((reason.kind(), rung), (kind, None), "{case}: {reason}");
    let said = reason.to_string();
    assert!(said.contains(says) && !said.contains("core"), "{case}: no {says:?} in {said}");
    scene.end(case).await;
}

// ── What fits into no table ────────────────────────────────────────────────────

async fn trips_its_budget(world: &World, case: &Case) {
    let mut plan = fixture(world, case, "exit at=start");
    plan.restart.when = RestartWhen::OnFailure;
    (plan.restart.first, plan.restart.max, plan.restart.budget) = (ms(10), ms(20), 5);
    let scene = Scene::new(world, plan).await;
    within("an answer", scene.stage.ready("p")).await.expect_err("it never comes up");
    scene.stage.until("p", State::Quarantined).await;
    let status = scene.stage.plugin("p").expect("it is there");
    assert_eq!((status.reason.kind(), status.starts), ("quarantined", 6), "{case}");
    scene.end(case).await;
}

async fn is_not_tried_again(world: &World, case: &Case, mode: &str, kind: &str) {
    let mut plan = fixture(world, case, mode);
    plan.restart.when = RestartWhen::OnFailure;
    plan.restart.first = ms(1);
    let scene = Scene::new(world, plan).await;
    within("an answer", scene.stage.ready("p")).await.expect_err("it never comes up");
    scene.stage.until("p", State::Quarantined).await;
    let status = scene.stage.plugin("p").expect("it is there");
    assert_eq!((status.reason.kind(), status.starts), (kind, 1), "{case}");
    scene.end(case).await;
}

/// What it said last is kept for the operator, with each call that it took along. (One of them may have come
/// late and have started another.)
async fn last_words(world: &World, case: &Case, mode: &str, words: &str) {
    let scene = Scene::new(world, fixture(world, case, mode)).await;
    scene.stage.up("p").await;
    let calls = [(); 3].map(|()| scene.stage.spawn("p_echo", json!({})));
    for call in calls {
        match call.await.expect("it ends").expect_err("and has no answer") {
            CallError::Lost { last_words, .. } => {
                assert!(last_words.0.contains(words), "{case}: no {words:?} in {last_words:?}");
            }
            other => panic!("{case}: {other}"),
        }
    }
    let status = scene.stage.plugin("p").expect("it is there");
    assert!(status.last_words.0.contains(words), "{case}: no {words:?} in {status:?}");
    scene.end(case).await;
}

/// Writes a program.
fn executable(world: &World, name: &str, bytes: &[u8], mode: u32) -> String {
    let path = world.path(name);
    fs::write(&path, bytes).expect("it is ours");
    fs::set_permissions(&path, Permissions::from_mode(mode)).expect("it is ours");
    path.to_str().expect("a plain path").to_owned()
}

async fn script(world: &World, case: &Case, program: &str, text: &str, words: &str) {
    let text = format!("#!{program}\n{text}\n");
    let command = vec![executable(world, "script", text.as_bytes(), 0o755)];
    let mut plan = world.program("p", command);
    plan.sandbox.level = case.level;
    plan.restart.when = RestartWhen::Never;
    let scene = Scene::new(world, plan).await;
    let error = within("an answer", scene.stage.ready("p")).await.expect_err("it never comes up");
    let NotReady::Down { reason, last_words, .. } = error else { panic!("{case}: {error}") };
    let said = "exited with status 1 before it was ready";
    assert_eq!(reason.to_string(), said, "{case}: {last_words:?}");
    assert!(last_words.0.contains(words), "{case}: no {words:?} in {:?}", last_words.0);
    scene.end(case).await;
}

/// Five programs that are none.
async fn cannot_start(world: &World, case: &Case) {
    let write = |name, bytes: &[u8], mode| executable(world, name, bytes, mode);
    // A header for a machine that there never was.
    let mut header = fs::read(crate::world::hostile()).expect("it may be read");
    header.truncate(4096);
    header[18..20].copy_from_slice(&0xBEEF_u16.to_le_bytes());
    for (program, said) in [
        (world.path("nothing").to_str().expect("a plain path").to_owned(), "is missing"),
        (write("plain", b"#!/bin/sh\n", 0o644), "is it executable"),
        (write("foreign", &header, 0o755), "neither a program for this machine"),
        (write("alien", b"#!/nowhere/python\n", 0o755), "the interpreter in its first line"),
        (write("dos", b"#!/bin/sh\r\necho\r\n", 0o755), "the interpreter in its first line"),
    ] {
        let mut plan = world.program("p", vec![program.clone()]);
        plan.sandbox.level = case.level;
        plan.restart.first = ms(1);
        let scene = Scene::new(world, plan).await;
        let error = within("an answer", scene.stage.ready("p")).await.expect_err("no program");
        scene.stage.until("p", State::Quarantined).await;
        let status = scene.stage.plugin("p").expect("it is there");
        let found = (status.reason.kind(), status.starts);
        assert_eq!(found, ("spawn_failed", 1), "{case}: {program}: {error}");
        assert!(error.to_string().contains(said), "{case}: no {said:?} in {error}");
        scene.end(case).await;
    }
}

/// The script's interpreter waits until another script has its place, and then opens it by its
/// name: it finds what was compared. Also if the interpreter is named in the command.
async fn replaced(world: &World, case: &Case) {
    let flags = world.path("flags");
    fs::create_dir_all(&flags).expect("it is ours");
    let (here, go) = (flags.join("here"), flags.join("go"));
    let waits = format!(
        "#!/bin/sh\n: > {}\nwhile [ ! -e {} ]; do sleep 0.01; done\nexec /bin/sh \"$@\"\n",
        here.display(),
        go.display()
    );
    let interpreter = executable(world, "sh", waits.as_bytes(), 0o755);
    let fixture = crate::world::hostile().to_owned();
    let good = format!("#!{interpreter}\nexec {} good\n", fixture.display());
    let other = format!("#!{interpreter}\nexit 66\n");
    for (in_place, is_named) in [(false, false), (true, false), (false, true), (true, true)] {
        let script = executable(world, "script", good.as_bytes(), 0o755);
        let command = match is_named {
            // Seen from the folder that it runs in.
            true => vec![interpreter.clone(), "script".to_owned()],
            false => vec![script.clone()],
        };
        let mut plan = world.program("p", command);
        plan.prefix = Some("p".into());
        plan.sandbox.level = case.level;
        plan.restart.when = RestartWhen::Never;
        let grant = |path: &Path, write| FileGrant { path: path.to_owned(), write, make: false };
        plan.sandbox.files = vec![grant(&flags, true), grant(&fixture, false)];
        let mut digest = digest_of(&plan).expect("it can be read").1;
        assert_eq!(digest.word, usize::from(is_named), "{case}");
        digest.word = usize::from(is_named);
        plan.digest = Some(digest);
        let scene = Scene::new(world, plan).await;
        let ready = scene.stage.ready("p");
        let replace = async {
            while !here.exists() {
                tokio::time::sleep(ms(1)).await;
            }
            match in_place {
                true => drop(executable(world, "script", other.as_bytes(), 0o755)),
                false => {
                    let other = executable(world, "other", other.as_bytes(), 0o755);
                    fs::rename(other, &script).expect("it is ours");
                }
            }
            fs::write(&go, "").expect("it is ours");
        };
        let (ready, ()) = within("an answer", futures::future::join(ready, replace)).await;
        let how = format!("{case}: in place {in_place}, named {is_named}");
        ready.unwrap_or_else(|error| panic!("{how}: {error}"));
        assert_eq!(
            brief(&scene.stage.call("p_echo", json!({ "text": "hi" })).await),
            "ok",
            "{how}"
        );
        scene.stage.down("p").await;
        scene.end(case).await;
        fs::remove_file(&here).and_then(|()| fs::remove_file(&go)).expect("they are ours");
    }
}

/// What was compared once is compared again, and named if it is another.
async fn replaced_later(world: &World, case: &Case) {
    let program = executable(
        world,
        "program",
        &fs::read(crate::world::hostile()).expect("it may be read"),
        0o755,
    );
    let mut plan = world.program("p", vec![program, "good".to_owned()]);
    plan.prefix = Some("p".into());
    plan.sandbox.level = case.level;
    plan.digest = Some(digest_of(&plan).expect("it can be read").1);
    let changed = plan.clone();
    let scene = Scene::new(world, plan).await;
    scene.stage.up("p").await;
    assert_eq!(brief(&scene.stage.call("p_echo", json!({ "text": "hi" })).await), "ok", "{case}");
    scene.stage.down("p").await;
    executable(world, "program", b"#!/bin/sh\n", 0o755);
    scene.stage.restart("p").expect("it is there");
    let error = within("an answer", scene.stage.ready("p")).await.expect_err("another program");
    scene.stage.until("p", State::Quarantined).await;
    let found = digest_of(&changed).expect("it can be read").1.to_string();
    let status = scene.stage.plugin("p").expect("it is there");
    assert_eq!(
        (status.reason.kind(), status.reason.code()),
        ("not_verified", Some("PB0518")),
        "{case}: {error}"
    );
    assert!(error.to_string().contains(&found), "{case}: no {found} in {error}");
    scene.end(case).await;
}

async fn leaves_behind(world: &World, case: &Case, mode: &str) {
    let mut plan = fixture(world, case, mode);
    few(&mut plan);
    let scene = Scene::new(world, plan).await;
    within("an answer", scene.stage.ready("p")).await.ok();
    let (reason, rung) = scene.stage.exit("p").await;
    assert_eq!((reason.kind(), rung), ("exited", None), "{case}");
    let left = scene.stage.facts(|fact| match fact {
        Fact::Remains { left_behind, .. } => Some(*left_behind),
        _ => None,
    });
    assert_eq!(left, [1], "{case}");
    scene.end(case).await;
}

/// Without walls it is found by its group.
async fn leaves_a_pipe_held(world: &World, case: &Case, mode: &str) {
    let scene = Scene::new(world, fixture(world, case, mode)).await;
    within("an answer", scene.stage.ready("p")).await.ok();
    let (reason, rung) = scene.stage.exit("p").await;
    assert_eq!((reason.kind(), rung), ("exited", None), "{case}");
    scene.end(case).await;
}

/// Processes that are never found under the number that they were seen with: they write as
/// long as they live.
async fn hops(world: &World, case: &Case, n: u32) {
    let folder = world.path("beats");
    fs::create_dir_all(&folder).expect("it is ours");
    let beat = folder.join("beat");
    fs::write(&beat, "").expect("it is ours");
    let mode = format!("kin way=hopper n={n} holds=none life=40 beat={}", beat.display());
    let mut plan = fixture(world, case, &mode);
    few(&mut plan);
    plan.sandbox.files = vec![FileGrant { path: folder, write: true, make: false }];
    let beats = || fs::metadata(&beat).expect("it is there").len();
    let scene = Scene::new(world, plan).await;
    scene.stage.up("p").await;
    holds("hops", || 50 < beats()).await;
    scene.stage.down("p").await;
    let at_the_end = beats();
    tokio::time::sleep(ms(50)).await;
    assert_eq!(beats(), at_the_end, "{case}: it hops on");
    scene.end(case).await;
}

/// It goes on until the system refuses, which is counted.
async fn refused(world: &World, case: &Case, mode: &str) {
    let folder = world.path("beats");
    fs::create_dir_all(&folder).expect("it is ours");
    let [file, beat] = ["trace", "beat"].map(|it| folder.join(it));
    for file in [&file, &beat] {
        fs::write(file, "").expect("it is ours");
    }
    let mode = format!("{mode} trace={} beat={}", file.display(), beat.display());
    let mut plan = fixture(world, case, &mode);
    few(&mut plan);
    plan.sandbox.files = vec![FileGrant { path: folder, write: true, make: false }];
    let scene = Scene::new(world, plan).await;
    scene.stage.up("p").await;
    if mode.starts_with("bomb") {
        let beats = || fs::metadata(&beat).expect("it is there").len();
        holds("a process to be refused", || 0 < beats()).await;
    } else {
        let told = || trace(&file).iter().any(|(_, it)| it.ends_with("refused true"));
        holds("a thread to be refused", told).await;
        scene.stage.call("p_echo", json!({})).await.expect("it goes on as before");
    }
    scene.stage.call("pid", json!({})).await.expect("the sibling answers");
    scene.stage.down("p").await;
    scene.stage.exit("p").await;
    let refused = scene.stage.facts(|fact| match fact {
        Fact::Remains { refused, .. } => Some(*refused),
        _ => None,
    });
    // Only a cgroup counts it.
    let is_counted = Machine::here().cgroups.processes.is_ok();
    assert_eq!(refused.iter().any(|it| 0 < *it), is_counted, "{case}: {refused:?}");
    scene.end(case).await;
}

/// Without walls the system allows it, and makes it a child of ours.
async fn sibling(world: &World, case: &Case) {
    let file = world.path("trace");
    let mode = format!("sibling life=30 trace={}", file.display());
    let scene = Scene::new(world, fixture(world, case, &mode)).await;
    scene.stage.up("p").await;
    let started = || trace(&file).iter().any(|(_, it)| it.starts_with("sibling "));
    holds("the sibling of the plugin", started).await;
    scene.stage.down("p").await;
    assert_eq!(scene.stage.exit("p").await.0.kind(), "stopped", "{case}");
    scene.end(case).await;
}

/// A file system that takes no writes until it is thawed, and its image.
struct Frozen {
    at: std::path::PathBuf,
}

impl Frozen {
    fn new(world: &World) -> Self {
        let (image, at) = (world.path("image"), world.path("frozen"));
        fs::create_dir_all(&at).expect("it is ours");
        fs::File::create(&image).and_then(|it| it.set_len(8 * MIB)).expect("it is ours");
        let (image, folder) = (image.display().to_string(), at.display().to_string());
        tool("/usr/sbin/mkfs.ext4", &["-q", &image]);
        tool("/bin/mount", &["-o", "loop", &image, &folder]);
        Self { at }
    }

    fn freeze(&self, how: &str) {
        tool("/usr/sbin/fsfreeze", &[how, &self.at.display().to_string()]);
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let at = self.at.display().to_string();
        // Fails where it is thawed already, and that is well.
        Command::new("/usr/sbin/fsfreeze")
            .args(["-u", &at])
            .stderr(std::process::Stdio::null())
            .status()
            .ok();
        tool("/bin/umount", &["-l", &at]);
    }
}

fn tool(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().expect("it is there");
    assert!(status.success() || std::thread::panicking(), "{program} {arguments:?}: {status}");
}

async fn unkillable(world: &World, case: &Case) {
    let frozen = Frozen::new(world);
    let mut plan = prison(world, case, slow);
    plan.timeouts.term_grace = ms(100);
    plan.sandbox.files = vec![FileGrant { path: frozen.at.clone(), write: true, make: false }];
    let scene = Scene::new(world, plan).await;
    scene.stage.up("p").await;
    frozen.freeze("-f");
    let file = frozen.at.join("file").display().to_string();
    let answer = scene.stage.call("try", json!({ "deed": "write", "what": file })).await;
    assert!(brief(&answer).starts_with("timed out"), "{case}: {}", brief(&answer));
    let (reason, rung) = scene.stage.exit("p").await;
    assert_eq!((reason.kind(), rung), ("unkillable", Some("kill")), "{case}: {reason}");
    assert!(reason.to_string().contains("it was"), "{case}: {reason}");
    scene.stage.until("p", State::Quarantined).await;
    let pid = world.processes();
    assert!(!pid.is_empty(), "{case}: it is still there");
    scene.end(case).await;
    frozen.freeze("-u");
    holds("the kernel to let it go", || world.processes().is_empty()).await;
}

async fn loses_its_init(world: &World, case: &Case) {
    let mut plan = fixture(world, case, "kin way=session");
    few(&mut plan);
    let scene = Scene::new(world, plan).await;
    scene.stage.up("p").await;
    let guard = scene.stage.plugin("p").expect("it is there").pid.expect("it runs");
    let list = fs::read_to_string(format!("/proc/{guard}/task/{guard}/children"));
    let init = list.expect("it is there").trim().parse().expect("one number");
    let init = nix::unistd::Pid::from_raw(init);
    nix::sys::signal::kill(init, nix::sys::signal::Signal::SIGKILL).expect("it is ours");
    let (reason, _) = scene.stage.exit("p").await;
    assert_eq!(reason.kind(), "helper_lost", "{case}");
    scene.end(case).await;
}

async fn crowd(world: &World, case: &Case) {
    let mut plan = fixture(world, case, "stops-reading");
    short_call(&mut plan);
    plan.timeouts.drain = ms(500);
    (plan.limits.concurrency, plan.limits.queue) = (8, 32);
    let scene = Scene::new(world, plan).await;
    scene.stage.up("p").await;
    let before = crate::world::peak_memory();
    let text = "x".repeat(4096);
    // In parties, so that whoever writes down what is said keeps up.
    let mut parties = Vec::new();
    for party in 1..=50 {
        let (stage, text) = (scene.stage.clone(), text.clone());
        parties.push(tokio::spawn(async move {
            let calls = (0..200).map(|_| stage.call("p_echo", json!({ "text": text })));
            futures::future::join_all(calls).await
        }));
        let ended = |fact: &Fact| matches!(fact, Fact::CallEnded { .. }).then_some(());
        holds("most to be refused", || 200 * party - 40 <= scene.stage.facts(ended).len()).await;
    }
    let answers = futures::future::join_all(parties).await;
    let answers: Vec<_> = answers.into_iter().flat_map(|it| it.expect("all end")).collect();
    let mut told = BTreeMap::new();
    for answer in &answers {
        *told.entry(brief(answer)).or_insert(0) += 1;
    }
    let count = |word: &str| -> usize {
        told.iter().filter(|(it, _)| it.starts_with(word)).map(|(_, count)| count).sum()
    };
    assert_eq!(count("ok"), 0, "{case}: {told:?}");
    // Each of its processes takes eight and lets as many wait as may, until it is ended.
    let lives = usize::try_from(scene.stage.starts("p")).expect("a few");
    assert!(10_000 - (lives + 1) * (8 + 32) <= count("busy"), "{case}: {lives}: {told:?}");
    let grown = crate::world::peak_memory() - before;
    // The futures of the calls themselves, and what forty of them send.
    assert!(grown < 96 * MIB, "{case}: the peak grew by {grown} bytes");
    scene.stage.down("p").await;
    scene.end(case).await;
}

/// Version 2 of cgroups ends all together, version 1 the child alone.
async fn child_takes_too_much(world: &World, case: &Case) {
    let scene = Scene::new(world, prison(world, case, roomy)).await;
    scene.stage.up("p").await;
    let args = json!({ "deed": "memory of a child", "number": 128 * MIB });
    let survives = match scene.stage.call("try", args).await {
        Ok(output) => {
            assert_eq!(output.text(), "ok signal: 9 (SIGKILL)", "{case}");
            scene.stage.down("p").await;
            true
        }
        Err(_) => false,
    };
    let (reason, _) = scene.stage.exit("p").await;
    let kind = if survives { "stopped" } else { "out_of_memory" };
    assert_eq!(reason.kind(), kind, "{case}");
    let killed = scene.stage.facts(|fact| match fact {
        Fact::Remains { killed, .. } => Some(*killed),
        _ => None,
    });
    assert!(killed.iter().sum::<u64>() > 0, "{case}: {killed:?}");
    scene.end(case).await;
}

/// A call that never ends, and what is said of the plugin's end.
async fn spins(world: &World, case: &Case, tweak: fn(&mut PluginPlan), says: &str) {
    let scene = Scene::new(world, prison(world, case, tweak)).await;
    scene.stage.up("p").await;
    let answer = scene.stage.call("try", json!({ "deed": "work", "number": 30_000 })).await;
    assert!(brief(&answer).starts_with("timed out"), "{case}: {}", brief(&answer));
    let (reason, _) = scene.stage.exit("p").await;
    assert_eq!(reason.kind(), "call_stuck", "{case}");
    assert!(reason.to_string().contains(says), "{case}: no {says:?} in {reason}");
    assert!(matches!(&*reason, Reason::CallStuck { seen: Some(_), .. }), "{case}: {reason:?}");
    scene.end(case).await;
}

async fn reads(world: &World, case: &Case) {
    let elsewhere = crate::world::folder();
    let secret = elsewhere.path().join("secret");
    fs::write(&secret, "hidden").expect("it is ours");
    let secret = secret.display().to_string();
    let own = format!("/proc/{}/environ", std::process::id());
    let scene = Scene::new(world, prison(world, case, real)).await;
    scene.stage.up("p").await;
    for path in [SHADOW, "/root/.ssh/id_ed25519", &secret, &own] {
        assert_eq!(attempt(&scene.stage, "read", path, 0).await, "ENOENT", "{case}: {path}");
    }
    scene.end(case).await;
}

/// A program that was not granted, by its path, by the loader, and from memory, where what
/// runs is behind the same walls.
async fn runs(world: &World, case: &Case) {
    let elsewhere = crate::world::folder();
    let program = elsewhere.path().join("program");
    fs::copy("/bin/true", &program).expect("it may be copied");
    let program = program.display().to_string();
    let scene = Scene::new(world, prison(world, case, real)).await;
    scene.stage.up("p").await;
    assert_eq!(attempt(&scene.stage, "run", &program, 0).await, "ENOENT", "{case}");
    let loaded = attempt(&scene.stage, "run by the loader", &program, 0).await;
    assert!(loaded == "ENOENT" || loaded.contains("exit status: 127"), "{case}: {loaded}");
    let ran = attempt(&scene.stage, "run from memory", "", 0).await;
    assert!(ran.starts_with("ok") || ran == "EACCES", "{case}: {ran}");
    assert_eq!(attempt(&scene.stage, "read", &program, 0).await, "ENOENT", "{case}");
    scene.end(case).await;
}
