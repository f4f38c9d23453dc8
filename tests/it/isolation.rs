//! Walls around plugins: what a plugin cannot do, and that it runs nevertheless.
//!
//! Every deed of a table is also done without walls, where it works: a test that could
//! not fail would show nothing.

use std::{
    fs,
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
};
use plugbay_supervisor::{
    PluginPlan, State,
    isolation::Machine,
    plan::{FileGrant, IfMissing, Item, Level, Network},
};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    alone::{As, alone, alone_as},
    stage::{Stage, holds, within},
    world::{World, prisoner},
};

/// A plan for the plugin that tries its walls.
pub(crate) fn walled(world: &World, level: Level) -> PluginPlan {
    let program = prisoner().to_str().expect("a plain path").to_owned();
    let mut plan = world.program("p", vec![program]);
    plan.sandbox.level = level;
    plan.restart.first = Duration::from_secs(3600);
    plan
}

/// What became of a deed: `ok` with what it gave, or the system's error.
pub(crate) async fn attempt(stage: &Stage, deed: &str, what: &str, number: u64) -> String {
    let args = json!({ "deed": deed, "what": what, "number": number });
    stage.call("try", args).await.unwrap_or_else(|error| panic!("{deed} {what}: {error}")).text()
}

/// A folder that no plugin is granted, with a secret in it.
struct Elsewhere {
    folder: TempDir,
    secret: String,
}

impl Elsewhere {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let secret = folder.path().join("secret");
        fs::write(&secret, "hidden").expect("it is ours");
        Self { secret: text(&secret), folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("a plain path").to_owned()
}

const LEVELS: [Level; 2] = [Level::Standard, Level::Strict];

/// Does each deed without walls and behind them. Without, it works.
async fn compare(world: &World, prepare: impl Fn(), table: &[(&str, &str, u64, &[&str])]) {
    for level in [Level::None, Level::Standard, Level::Strict] {
        let stage = world.supervise([walled(world, level)]);
        stage.up("p").await;
        prepare();
        for (deed, what, number, expected) in table {
            let outcome = attempt(&stage, deed, what, *number).await;
            let is_right = match level {
                Level::None => outcome.starts_with("ok"),
                _ => expected.contains(&outcome.as_str()),
            };
            assert!(is_right, "{level:?}: {deed} {what} {number}: {outcome}");
        }
        stage.end().await;
    }
}

#[test]
fn a_plugin_runs_behind_walls_and_answers() {
    alone(async |world| {
        for level in LEVELS {
            let mut plan = world.plugin("p", "good");
            plan.sandbox.level = level;
            let stage = world.supervise([plan]);
            stage.up("p").await;
            stage.call("echo", json!({})).await.expect("it answers");
            assert_eq!(stage.plugin("p").expect("it is there").degraded, [""; 0]);
            stage.down("p").await;
            assert_eq!(stage.state("p"), State::Stopped);
            stage.end().await;
        }
    });
}

#[test]
fn what_was_not_granted_is_not_there() {
    alone(async |world| {
        let elsewhere = Elsewhere::new();
        let secret = elsewhere.secret.as_str();
        let name = elsewhere.folder.path().file_name().expect("a name").to_str().expect("plain");
        let around = text(&world.path("..").join(name).join("secret"));
        let folder = text(elsewhere.folder.path());
        let by_process = format!("/proc/self/root{secret}");
        let gone: &[&str] = &["ENOENT"];
        compare(
            world,
            || (),
            &[
                ("read", secret, 0, gone),
                ("read", &around, 0, gone),
                ("read", &by_process, 0, gone),
                ("by link", secret, 0, gone),
                ("list", &folder, 0, gone),
                ("mode", secret, 0, gone),
                ("owner", secret, 0, gone),
                ("time", secret, 0, gone),
                ("write", secret, 0, gone),
                ("list", "/sys", 0, gone),
                ("list", "/var", 0, gone),
            ],
        )
        .await;
    });
}

#[test]
fn what_may_be_read_cannot_be_changed() {
    alone(async |world| {
        let prepare = || fs::write(world.path("own"), "text").expect("it is ours");
        let own = text(&world.path("own"));
        let new = text(&world.path("new"));
        let shut: &[&str] = &["EROFS", "EACCES"];
        compare(
            world,
            prepare,
            &[
                ("write", &own, 0, shut),
                ("write", &new, 0, shut),
                ("mode", &own, 0, shut),
                ("owner", &own, 0, shut),
                ("time", &own, 0, shut),
                ("move", &own, 0, &["EROFS", "EACCES", "EXDEV"]),
            ],
        )
        .await;
        let stage = world.supervise([walled(world, Level::Standard)]);
        stage.up("p").await;
        assert_eq!(attempt(&stage, "read", &own, 0).await, "ok text");
        // The system's settings belong to root, which may be who we are.
        for path in ["/proc/sys/kernel/core_pattern", "/usr/new", "/etc/passwd", "/new", "/dev/x"] {
            let outcome = attempt(&stage, "write", path, 0).await;
            assert!(["EROFS", "EACCES"].contains(&outcome.as_str()), "{path}: {outcome}");
        }
        stage.end().await;
    });
}

#[test]
fn a_grant_is_what_it_says_and_no_more() {
    alone(async |world| {
        for level in LEVELS {
            let elsewhere = Elsewhere::new();
            let (read, write) = (elsewhere.path("read"), elsewhere.path("write"));
            for folder in [&read, &write] {
                fs::create_dir(folder).expect("it is ours");
                fs::write(folder.join("file"), "content").expect("it is ours");
            }
            // A link in a folder that it may change leads nowhere from inside.
            let link = write.join("link");
            std::os::unix::fs::symlink(&elsewhere.secret, &link).expect("it is ours");
            let mut plan = walled(world, level);
            plan.sandbox.files = vec![
                FileGrant { path: read.clone(), write: false, make: false },
                FileGrant { path: write.clone(), write: true, make: false },
            ];
            let stage = world.supervise([plan]);
            stage.up("p").await;
            let at = |folder: &Path, name: &str| text(&folder.join(name));
            let shut = ["EROFS", "EACCES"];
            assert_eq!(attempt(&stage, "read", &at(&read, "file"), 0).await, "ok content");
            let outcome = attempt(&stage, "write", &at(&read, "file"), 0).await;
            assert!(shut.contains(&outcome.as_str()), "{outcome}");
            assert_eq!(attempt(&stage, "write", &at(&write, "new"), 0).await, "ok");
            assert_eq!(fs::read_to_string(write.join("new")).expect("it is there"), "written");
            assert_eq!(attempt(&stage, "mode", &at(&write, "new"), 0).await, "ok");
            assert_eq!(attempt(&stage, "remove", &at(&write, "file"), 0).await, "ok");
            assert_eq!(attempt(&stage, "read", &at(&write, "link"), 0).await, "ENOENT");
            assert_eq!(attempt(&stage, "read", &elsewhere.secret, 0).await, "ENOENT");
            stage.end().await;
        }
    });
}

#[test]
fn a_grant_of_what_is_not_there_is_named() {
    alone(async |world| {
        let mut plan = walled(world, Level::Standard);
        plan.sandbox.files =
            vec![FileGrant { path: "/not/there".into(), write: false, make: false }];
        let stage = world.supervise([plan]);
        let error = within("an answer", stage.ready("p")).await.expect_err("it cannot start");
        let said = error.to_string();
        assert!(said.contains("cannot show /not/there: No such file"), "{said}");
        stage.end().await;
    });
}

#[test]
fn its_temporary_files_are_its_own_and_gone_when_it_is() {
    alone(async |world| {
        let stage = world.supervise([walled(world, Level::Standard)]);
        stage.up("p").await;
        assert_eq!(attempt(&stage, "write", "/tmp/plugbay-mine", 0).await, "ok");
        assert_eq!(attempt(&stage, "write", "/dev/shm/plugbay-mine", 0).await, "ok");
        assert!(!Path::new("/tmp/plugbay-mine").exists());
        assert_eq!(attempt(&stage, "variable", "HOME", 0).await, "ok /tmp");
        stage.restart("p").expect("it is in the plan");
        stage.up("p").await;
        assert_eq!(attempt(&stage, "read", "/tmp/plugbay-mine", 0).await, "ENOENT");
        stage.end().await;
    });
}

#[test]
fn there_is_no_network_of_any_kind() {
    alone(async |world| {
        let elsewhere = Elsewhere::new();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("it has one").port();
        let host = format!("127.0.0.1:{port}");
        let path = elsewhere.path("socket");
        let _at = UnixListener::bind(&path).expect("it is ours");
        let hidden = format!("plugbay-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&hidden).expect("a name");
        let _hidden = UnixListener::bind_addr(&address).expect("it is free");
        let shut: &[&str] = &["EACCES"];
        compare(
            world,
            || (),
            &[
                ("tcp", &host, 0, shut),
                ("udp", &host, 0, shut),
                ("fast open", "", port.into(), shut),
                ("socket", "2 1 262", 0, shut),
                ("socket", "16 3 0", 0, shut),
                ("socket", "10 1 0", 0, shut),
                ("socket at", &text(&path), 0, &["ENOENT"]),
                // By Landlock, or because strict walls have a network namespace.
                ("abstract socket", &hidden, 0, &["EPERM", "ECONNREFUSED"]),
            ],
        )
        .await;
        // What was granted works, and nothing beside it.
        for level in LEVELS {
            let mut plan = walled(world, level);
            plan.sandbox.network = Network::All;
            let stage = world.supervise([plan]);
            stage.up("p").await;
            assert_eq!(attempt(&stage, "tcp", &host, 0).await, "ok");
            assert_eq!(attempt(&stage, "udp", &host, 0).await, "ok");
            assert_eq!(attempt(&stage, "socket", "17 3 0", 0).await, "EACCES");
            assert_eq!(attempt(&stage, "socket at", &text(&path), 0).await, "ENOENT");
            stage.end().await;
        }
    });
}

#[test]
fn a_system_call_that_breaks_out_fails() {
    alone(async |world| {
        let number = |it: libc::c_long| u64::try_from(it).expect("a number");
        for level in LEVELS {
            let stage = world.supervise([walled(world, level)]);
            stage.up("p").await;
            for (call, args, expected) in [
                (libc::SYS_unshare, "268435456 0 0 0", "EPERM"),
                (libc::SYS_clone, "268435473 0 0 0", "EPERM"),
                (libc::SYS_clone3, "0 0 0 0", "ENOSYS"),
                (libc::SYS_setns, "0 0 0 0", "EPERM"),
                (libc::SYS_mount, "0 0 0 0", "EPERM"),
                (libc::SYS_pivot_root, "0 0 0 0", "EPERM"),
                (libc::SYS_ptrace, "16902 1 0 0", "EPERM"),
                (libc::SYS_process_vm_readv, "1 0 0 0", "EPERM"),
                (libc::SYS_bpf, "0 0 0 0", "EPERM"),
                (libc::SYS_keyctl, "0 0 0 0", "EPERM"),
                (libc::SYS_io_uring_setup, "8 0 0 0", "ENOSYS"),
                (libc::SYS_ioctl, "0 21522 0 0", "EPERM"),
                (libc::SYS_shmget, "0 4096 438 0", "EPERM"),
                // On no list: strict walls let pass only what is.
                (
                    libc::SYS_mq_notify,
                    "0 0 0 0",
                    if level == Level::Strict { "ENOSYS" } else { "EBADF" },
                ),
            ] {
                let outcome = attempt(&stage, "call", args, number(call)).await;
                assert_eq!(outcome, expected, "{level:?}: {call}");
            }
            assert!(
                attempt(&stage, "call", "0 0 0 0", number(libc::SYS_getpid))
                    .await
                    .starts_with("ok")
            );
            stage.end().await;
        }
    });
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_call_by_the_rules_of_another_machine_is_the_end_and_said_so() {
    alone(async |world| {
        let x32 = 0x4000_0000 | u64::try_from(libc::SYS_getpid).expect("a number");
        for (deed, number) in [("call as 32 bits", 0), ("call", x32)] {
            let stage = world.supervise([walled(world, Level::Standard)]);
            stage.up("p").await;
            let args = json!({ "deed": deed, "number": number });
            stage.call("try", args).await.expect_err("it dies");
            let (reason, rung) = stage.exit("p").await;
            assert_eq!((reason.kind(), rung), ("forbidden_call", None), "{deed}");
            holds("it to stay down", || stage.state("p") == State::Quarantined).await;
            stage.end().await;
        }
    });
}

#[test]
fn other_processes_are_out_of_reach() {
    alone(async |world| {
        for level in LEVELS {
            let stage = world.supervise([walled(world, level)]);
            stage.up("p").await;
            assert_eq!(attempt(&stage, "processes", "", 0).await, "ok 1 2");
            let outcome = attempt(&stage, "signal", "", std::process::id().into()).await;
            assert!(["ESRCH", "EPERM"].contains(&outcome.as_str()), "{outcome}");
            for deed in ["kill the keeper", "stop the keeper"] {
                // The kernel or Landlock: it has no effect either way.
                attempt(&stage, deed, "", 0).await;
            }
            let starts = stage.starts("p");
            assert!(attempt(&stage, "pid", "", 0).await.starts_with("ok"));
            assert_eq!(stage.starts("p"), starts);
            stage.down("p").await;
            stage.end().await;
        }
    });
}

#[test]
fn it_has_no_privilege_and_can_win_none() {
    alone(async |world| {
        for level in LEVELS {
            let stage = world.supervise([walled(world, level)]);
            stage.up("p").await;
            for (line, expected) in [
                ("CapInh:", "0000000000000000"),
                ("CapPrm:", "0000000000000000"),
                ("CapEff:", "0000000000000000"),
                ("CapBnd:", "0000000000000000"),
                ("CapAmb:", "0000000000000000"),
                ("NoNewPrivs:", "1"),
                ("Seccomp:", "2"),
                ("SigBlk:", "0000000000000000"),
            ] {
                assert_eq!(
                    attempt(&stage, "status", line, 0).await,
                    format!("ok {expected}"),
                    "{line}"
                );
            }
            assert_eq!(attempt(&stage, "limit", "Max core file size", 0).await, "ok 0 0 bytes");
            stage.end().await;
        }
    });
}

/// A descriptor that the host has opened without care is not the plugin's.
#[test]
fn nothing_is_inherited_by_accident() {
    alone(async |world| {
        let file = fs::File::open("/dev/null").expect("it is there");
        let careless = fcntl(&file, FcntlArg::F_DUPFD(200)).expect("it is free");
        for level in [Level::None, Level::Standard, Level::Strict] {
            let stage = world.supervise([walled(world, level)]);
            stage.up("p").await;
            let open = attempt(&stage, "descriptors", "", 0).await;
            let is_open = open.split(' ').any(|it| it == careless.to_string());
            assert_eq!(is_open, level == Level::None, "{level:?}: {open}");
            stage.end().await;
        }
        nix::unistd::close(careless).expect("it is ours");
    });
}

#[test]
fn programs_that_it_may_read_can_be_run() {
    alone(async |world| {
        for level in LEVELS {
            let stage = world.supervise([walled(world, level)]);
            stage.up("p").await;
            assert_eq!(
                attempt(&stage, "run", "/bin/pwd", 0).await,
                format!("ok {}", world.path("").display().to_string().trim_end_matches('/'))
            );
            stage.end().await;
        }
    });
}

/// What ordinary programs do works behind the strictest walls.
#[test]
fn interpreters_threads_and_children_work() {
    const PYTHON: &str = r#"
import asyncio, hashlib, multiprocessing, os, ssl, subprocess, sys, tempfile, threading
done = []
thread = threading.Thread(target=lambda: done.append(1))
thread.start(); thread.join()
assert subprocess.check_output([sys.executable, '-c', 'print(1)']).strip() == b'1'
with tempfile.NamedTemporaryFile() as file:
    file.write(b'x'); file.flush()
with multiprocessing.Pool(2) as pool:
    assert pool.map(abs, [-1, -2]) == [1, 2]
assert asyncio.run(asyncio.sleep(0, 'slept')) == 'slept'
hashlib.sha256(os.urandom(16)); ssl.create_default_context()
print('python', len(done))
"#;
    const NODE: &str = r#"
const { Worker } = require('worker_threads');
const { execFileSync } = require('child_process');
const fs = require('fs');
const code = Uint8Array.of(0,97,115,109,1,0,0,0,1,5,1,96,0,1,127,3,2,1,0,7,5,1,1,102,0,0,10,6,1,4,0,65,7,11);
const seven = new WebAssembly.Instance(new WebAssembly.Module(code)).exports.f();
new WebAssembly.Memory({ initial: 1 });
execFileSync(process.execPath, ['-e', '0']);
fs.writeFileSync('/tmp/x', require('crypto').randomBytes(8));
new Worker('require("worker_threads").parentPort.postMessage(1)', { eval: true })
    .on('message', (one) => console.log('node', seven, one));
"#;
    alone(async |world| {
        for level in LEVELS {
            let stage = world.supervise([walled(world, level)]);
            stage.up("p").await;
            for (program, flag, code, expected) in [
                ("/bin/sh", "-c", "(echo sh | cat) 2>&1", "ok sh"),
                ("/usr/bin/python3", "-c", PYTHON, "ok python 1"),
                ("/usr/bin/node", "-e", NODE, "ok node 7 1"),
            ] {
                if !Path::new(program).exists() {
                    eprintln!("skipped: there is no {program}");
                    continue;
                }
                let file = world.path("program");
                fs::write(&file, code).expect("it is ours");
                let script = format!("{program} {flag} \"$(cat {})\" 2>&1", text(&file));
                assert_eq!(attempt(&stage, "shell", &script, 0).await, expected, "{level:?}");
            }
            stage.end().await;
        }
    });
}

/// A plugin in Python, by an interpreter from wherever this machine has one.
#[test]
fn the_tutorials_plugin_greets_behind_walls() {
    alone(async |world| {
        for level in LEVELS {
            let mut plan = crate::languages::python(world, "sdk-spec/tutorial/greet.py");
            plan.sandbox.level = level;
            let script = plan.command[1].clone();
            plan.sandbox.files = vec![FileGrant { path: script.into(), write: false, make: false }];
            let stage = world.supervise([plan]);
            stage.up("p").await;
            let output = stage.call("greet", json!({ "who": "Ada" })).await.expect("it answers");
            assert_eq!(output.text(), "hello, Ada");
            stage.end().await;
        }
    });
}

/// A machine that allows nobody a namespace.
#[test]
fn what_a_machine_lacks_is_a_refusal_that_helps() {
    alone_as(As::Restricted, async |world| {
        assert!(Machine::here().processes.is_err(), "it is restricted");
        let stage = world.supervise([walled(world, Level::Standard)]);
        let error = within("an answer", stage.ready("p")).await.expect_err("it cannot start");
        let said = error.to_string();
        // An ordinary user needs a user namespace before any other.
        let first = match nix::unistd::geteuid().is_root() {
            true => "a PID namespace",
            false => "a user namespace",
        };
        for part in ["cannot be held to `tree`", first, "to mend it, run"] {
            assert!(said.contains(part), "{part:?} in {said}");
        }
        assert_eq!(stage.state("p"), State::Quarantined);
        assert_eq!(stage.plugin("p").expect("it is there").reason.code(), Some("PB0512"));
        stage.end().await;
    });
}

#[test]
fn what_a_machine_lacks_can_be_waived_and_is_shown() {
    alone_as(As::Restricted, async |world| {
        let elsewhere = Elsewhere::new();
        for waive_all in [true, false] {
            let mut plan = walled(world, Level::Standard);
            match waive_all {
                true => plan.sandbox.if_missing = IfMissing::Warn,
                false => plan.sandbox.prefer = vec![Item::Tree, Item::Files, Item::Network],
            }
            let stage = world.supervise([plan]);
            stage.up("p").await;
            let degraded = stage.plugin("p").expect("it is there").degraded;
            let items: Vec<_> = degraded.iter().filter_map(|it| it.split(' ').next()).collect();
            // Before version 6 of Landlock only a namespace shuts the last kind of socket.
            let is_scoped = Machine::here().landlock.as_ref().is_ok_and(|it| 6 <= *it);
            let expected: &[&str] =
                if is_scoped { &["tree", "files"] } else { &["tree", "files", "network"] };
            assert_eq!(items, expected, "{degraded:?}");
            // What can be had is still there.
            assert_eq!(attempt(&stage, "read", &elsewhere.secret, 0).await, "EACCES");
            assert_eq!(attempt(&stage, "tcp", "127.0.0.1:9", 0).await, "EACCES");
            assert!(attempt(&stage, "daemon", "", 0).await.starts_with("ok"));
            stage.down("p").await;
            holds("all of it to be gone", || world.processes().is_empty()).await;
            stage.end().await;
        }
    });
}

#[test]
fn the_same_walls_stand_for_a_user_without_rights() {
    alone_as(As::Nobody, async |world| {
        let machine = Machine::here();
        assert!(machine.is_ordinary_user);
        if let Err(lack) = &machine.processes {
            return eprintln!("skipped: {}", lack.cause);
        }
        let elsewhere = Elsewhere::new();
        for level in LEVELS {
            let stage = world.supervise([walled(world, level)]);
            stage.up("p").await;
            assert_eq!(stage.plugin("p").expect("it is there").degraded, [""; 0]);
            assert_eq!(attempt(&stage, "read", &elsewhere.secret, 0).await, "ENOENT");
            assert_eq!(attempt(&stage, "tcp", "127.0.0.1:9", 0).await, "EACCES");
            assert_eq!(attempt(&stage, "processes", "", 0).await, "ok 1 2");
            for line in ["CapEff:", "CapBnd:"] {
                assert_eq!(attempt(&stage, "status", line, 0).await, "ok 0000000000000000");
            }
            assert!(attempt(&stage, "daemon", "", 0).await.starts_with("ok"));
            stage.down("p").await;
            assert_eq!(world.processes(), [].into());
            stage.end().await;
        }
    });
}
