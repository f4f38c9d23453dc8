//! A plugbay that runs, and the commands that look at it and steer it.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixDatagram, process::CommandExt},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use nix::sys::signal::Signal;
use plugbay_supervisor::isolation::Machine;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::stage::{Ended, Fixture, end, greeter, plugbay, send, start, wait_for};

/// A folder of its own for manifests, and one for sockets.
struct Place {
    dir: TempDir,
    run: TempDir,
}

impl Place {
    /// With this beside the head of a plugbay.toml.
    fn new(plugins: &str) -> Self {
        // Short, because a socket's path must be.
        let [dir, run] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        fs::write(dir.path().join("plugbay.toml"), format!("manifest = 1\n{plugins}")).unwrap();
        Self { dir, run }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = plugbay(words);
        command.current_dir(self.dir.path()).env("XDG_RUNTIME_DIR", self.run.path());
        command
    }

    #[track_caller]
    fn run(&self, words: &[&str]) -> Ended {
        end(start(self.command(words)))
    }

    /// Starts `plugbay run` and waits until it can be asked.
    #[track_caller]
    fn daemon(&self, words: &[&str]) -> Daemon {
        let mut child = start(self.command(&[&["run"], words].concat()));
        let stderr = wait_for(child.stderr.take().unwrap(), "Running ");
        Daemon { child, stderr }
    }

    /// What is left of sockets and locks.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.run.path().join("plugbay")).into_iter().flatten().flatten();
        entries.map(|it| it.file_name().to_string_lossy().into_owned()).collect()
    }

    /// One plugin, as `ps` has it.
    #[track_caller]
    fn plugin(&self, name: &str) -> Value {
        let all = self.run(&["ps", "--json"]).with(0, &[]).json();
        let plugins = all[0]["plugins"].as_array().unwrap().clone();
        plugins.into_iter().find(|it| it["name"] == name).unwrap_or_else(|| panic!("{all}"))
    }
}

struct Daemon {
    child: Child,
    stderr: thread::JoinHandle<String>,
}

impl Daemon {
    /// Ends it well. What it said on stderr.
    #[track_caller]
    fn end(self, place: &Place) -> String {
        send(&self.child, Signal::SIGTERM);
        let ended = end(self.child);
        let stderr = self.stderr.join().unwrap();
        assert_eq!(ended.code, Some(0), "{stderr}");
        assert_eq!(place.left(), [""; 0], "nothing is left");
        stderr
    }
}

fn plugin(name: &str, command: &str) -> String {
    let words = shlex::split(command).unwrap();
    format!("[plugins.{name}]\ncommand = {words:?}\n")
}

/// One that is well and one that dies at once and is given up at once.
fn two(greet: &Fixture) -> String {
    let bad = plugin("bad", "sh -c 'echo no key; echo WEATHER_KEY is not set >&2; exit 3'");
    let bad = bad.replace("echo no key; ", "");
    let budget = "[plugins.bad.restart]\nbudget = { restarts = 0, within = \"1m\" }\n";
    format!("{}{bad}{budget}", plugin("greet", &greet.command))
}

#[test]
fn what_a_plugin_did_instead_of_answering_is_told() {
    // A plugbay of which no plugin works goes down; this one stays.
    let (greet, mute) = (Fixture::of(&greeter()), Fixture::new("no_hello.py"));
    let rest = "[plugins.mute.timeouts]\nstart = \"1s\"\n[plugins.mute.restart]\n\
                budget = { restarts = 0, within = \"1m\" }\n";
    let (greet, mute) = (plugin("greet", &greet.command), plugin("mute", &mute.command));
    let place = Place::new(&format!("{greet}{mute}{rest}"));
    let daemon = place.daemon(&[]);
    let parts = ["error[PB0401]: mute did not say HELLO within 1s", "; it was "];
    place.run(&["restart", "mute"]).with(6, &parts);
    let why = place.run(&["why", "mute"]).with(0, &[]).stdout;
    for part in [
        "it did not say HELLO within 1s and was stopped; it was ",
        "\n  Last words  | waiting for something\n",
    ] {
        assert!(why.contains(part), "no {part:?} in {why}");
    }
    let known = place.run(&["why", "mute", "--json"]).with(0, &[]).json();
    let seen = &known["ends"][0]["seen"];
    // The CLOSE wakes it, and on a busy machine it is then ready to run and has no turn.
    let is_either = seen["doing"] == "waiting" || seen["doing"] == "busy";
    assert!(is_either && seen["unread_bytes"] == 0, "{known}");
    daemon.end(&place);
}

#[test]
fn what_runs_is_shown_and_why_and_what_it_said() {
    let greet = Fixture::of(&greeter());
    let place = Place::new(&two(&greet));
    place.run(&["ps"]).with(5, &["no plugbay runs", "start one: `plugbay run`"]).and_prints("");
    let daemon = place.daemon(&[]);
    let ps = place.run(&["ps"]).with(0, &["2 of 2 can take calls; plugbay with pid "]);
    let table: Vec<Vec<&str>> =
        ps.stdout.lines().map(|it| it.split_whitespace().collect()).collect();
    assert_eq!(table[0].join(" "), "PLUGIN STATE PID UP CALLS NOW MEMORY RESTARTS WHY");
    assert_eq!(table[1][..2], ["greet", "dormant"]);

    place.run(&["restart", "greet"]).with(0, &["   Restarted greet is active (pid "]);
    let greets = place.plugin("greet");
    assert_eq!((&greets["state"], &greets["starts"]), (&json!("active"), &json!(1)));
    assert!(1 << 20 < greets["memory"].as_u64().unwrap(), "{greets}");
    let parts = ["error[PB0507]: bad exited with status 3", "| WEATHER_KEY is not set"];
    place.run(&["restart", "bad"]).with(1, &parts);

    let why = place.run(&["why", "bad"]).with(0, &[]).stdout;
    for part in [
        "bad has been quarantined for ",
        "\n  Cause       it exited with status 3 before it was ready [PB0507], ",
        " and ended unasked\n",
        "\n  Last words  | WEATHER_KEY is not set\n",
        "\n  Next        it stays down until somebody resumes it\n",
        "\n  Then        plugbay resume bad\n",
        "\n  See also    plugbay logs bad\n              plugbay explain PB0507\n",
    ] {
        assert!(why.contains(part), "no {part:?} in {why}");
    }
    let why = place.run(&["why", "greet"]).with(0, &[]).stdout;
    assert!(why.starts_with("greet (example.greet 1.0.0) has been active for "), "{why}");
    let known = place.run(&["why", "bad", "--json"]).with(0, &[]).json();
    assert_eq!(known["ends"][0]["words"], json!(["WEATHER_KEY is not set"]), "{known}");
    place.run(&["why", "gret"]).with(4, &["the nearest name is \"greet\""]).and_prints("");

    let logs = place.run(&["logs", "bad"]).with(0, &[]).stdout;
    for part in
        ["Z bad * Starting bad (pid ", "Z bad | WEATHER_KEY is not set\n", "* Quarantined bad"]
    {
        assert!(logs.contains(part), "no {part:?} in {logs}");
    }
    assert!(!logs.contains("greet"), "{logs}");
    let last = place.run(&["logs", "-n", "1", "--json"]).with(0, &[]).json();
    assert!(last["event"].as_str().unwrap().starts_with("Quarantined bad"), "{last}");
    place.run(&["logs", "nobody"]).with(4, &["no plugin is called"]).and_prints("");
    daemon.end(&place);
    greet.is_gone();
}

#[test]
fn a_log_is_followed_until_its_plugbay_ends() {
    let greet = Fixture::of(&greeter());
    let place = Place::new(&two(&greet));
    let daemon = place.daemon(&["--start"]);
    let mut logs = start(place.command(&["logs", "greet", "-f"]));
    let out = wait_for(logs.stdout.take().unwrap(), "* Ready greet");
    place.run(&["stop", "greet"]).with(0, &["     Stopped greet is stopped"]);
    daemon.end(&place);
    end(logs).with(5, &["the running plugbay is gone"]);
    let out = out.join().unwrap();
    assert!(out.contains("* Stopped greet was stopped by the operator"), "{out}");
    assert!(!out.contains("bad"), "{out}");
    greet.is_gone();
}

#[test]
fn a_plugin_is_stopped_resumed_and_restarted() {
    let greet = Fixture::of(&greeter());
    let place = Place::new(&format!(
        "{}[plugins.off]\ncommand = [\"true\"]\nenabled = false\n",
        two(&greet)
    ));
    let daemon = place.daemon(&[]);
    place.run(&["call", "greet", "who=Ada"]).with(0, &[]).and_prints("hello, Ada\n");
    place
        .run(&["stop", "greet"])
        .with(0, &["Stopped greet is stopped: it was stopped by the operator"]);
    greet.is_gone();
    let parts = ["error[PB0503]: greet takes no calls", "`plugbay resume greet` lifts it"];
    place.run(&["call", "greet", "who=Ada"]).with(1, &parts).and_prints("");
    let resumed = place.run(&["resume", "greet", "--json"]).with(0, &[]).json();
    assert_eq!((&resumed["state"], &resumed["pid"]), (&json!("dormant"), &Value::Null));
    place.run(&["call", "greet", "who=Ada"]).with(0, &[]).and_prints("hello, Ada\n");
    let before = place.plugin("greet")["pid"].clone();
    place.run(&["restart", "greet"]).with(0, &["Restarted greet is active"]);
    assert_ne!(place.plugin("greet")["pid"], before);
    for order in ["stop", "resume", "restart"] {
        place.run(&[order, "gret"]).with(4, &["the nearest name is \"greet\"", "plugbay ps"]);
        place.run(&[order, "off"]).with(1, &["error[PB0503]: off cannot be started or stopped"]);
    }
    daemon.end(&place);
    greet.is_gone();
}

#[test]
fn limits_are_shown_and_changed_while_a_plugin_runs() {
    let greet = Fixture::of(&greeter());
    let limits = "[plugins.greet.limits]\nqueue = 4\nmemory = \"64MiB\"\n";
    let place = Place::new(&format!("{}{limits}", plugin("greet", &greet.command)));
    let daemon = place.daemon(&[]);
    let show =
        place.run(&["limits", "show", "greet"]).with(0, &["Unenforced limits.memory = 64MiB"]);
    let row = |ended: &Ended, key: &str| -> String {
        let row = ended.stdout.lines().find(|it| it.split_whitespace().next() == Some(key));
        row.unwrap_or_else(|| panic!("{ended:?}")).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row(&show, "queue"), "queue 4 manifest from the next call -");
    let said = "Unenforced greet: limits.memory = 64MiB; `plugbay why greet` says more\n";
    place.run(&["ps"]).with(0, &[said]);
    assert_eq!(row(&show, "call"), "call 30s default from the next call -");
    assert_eq!(row(&show, "frame"), "frame 1MiB default from the next process -");
    place.run(&["call", "greet", "who=Ada"]).with(0, &[]).and_prints("hello, Ada\n");
    let parts = [
        "         Set result 256KiB -> 1KiB, from the next call on\n",
        "         Set cancel 5s -> 1s, from its next process on\n",
        "        Help `plugbay restart greet` gives it another process\n",
    ];
    place
        .run(&["limits", "set", "greet", "result=1KiB", "cancel=1s"])
        .with(0, &parts)
        .and_prints("");
    let long = format!("who={}", "x".repeat(2000));
    place.run(&["call", "greet", &long]).with(1, &["error[PB0412]"]).and_prints("");
    let show = place.run(&["limits", "show", "greet"]);
    assert_eq!(row(&show, "result"), "result 1KiB changed, was 256KiB from the next call -");
    let json = place.run(&["limits", "set", "greet", "queue=4", "--json"]).with(0, &[]).json();
    let queue = json!({"key": "queue", "value": "4", "from": "manifest", "was": null, "at_once": true, "holds": null, "used": null, "refused": null});
    assert_eq!(json["bounds"][3], queue);
    place.run(&["limits", "set", "greet", "queue=4"]).with(0, &["Unchanged"]);

    let set = |change: &str| place.run(&["limits", "set", "greet", change]);
    set("queu=5").with(1, &["error[PB0102]: unknown key `queu`", "did you mean `queue`?"]);
    set("call=45").with(1, &["error[PB0103]"]);
    set("memory=1GiB").with(1, &["error[PB0701]", "queue, calls"]);
    set("queue").with(2, &["expected KEY=VALUE", "queue=64"]);
    place.run(&["limits", "set", "gret", "queue=5"]).with(4, &["the nearest name is \"greet\""]);
    place.run(&["limits", "set", "greet"]).with(2, &["KEY=VALUE"]);
    daemon.end(&place);
    greet.is_gone();
}

#[test]
fn calls_and_tools_use_the_plugbay_that_runs_the_same() {
    let greet = Fixture::of(&greeter());
    let place = Place::new(&plugin("greet", &greet.command));
    place
        .run(&["call", "--attach", "greet", "who=Ada"])
        .with(5, &["no plugbay runs"])
        .and_prints("");
    let daemon = place.daemon(&[]);
    let attached = ["    Attached to plugbay with pid "];
    place.run(&["call", "-v", "greet", "who=Ada"]).with(0, &attached).and_prints("hello, Ada\n");
    place.run(&["call", "-v", "-c", ".", "add", "a=1", "b=2"]).with(0, &attached).and_prints("3\n");
    let json =
        place.run(&["call", "--attach", "-o", "json", "greet", "who=Ada"]).with(0, &[]).json();
    assert_eq!(json["content"][0]["text"], "hello, Ada");
    let alone =
        place.run(&["call", "-v", "--no-attach", "greet", "who=Ada"]).with(0, &["Starting greet"]);
    alone.and_prints("hello, Ada\n");
    let greets = place.plugin("greet");
    assert_eq!((&greets["starts"], &greets["calls_ended"]), (&json!(1), &json!(3)));

    let tools = place.run(&["tools", "-v"]).with(0, &attached).stdout;
    assert!(tools.contains("greet  read    greet   Greets somebody by name.\n"), "{tools}");
    let long = place.run(&["tools", "--long"]).with(0, &[]).stdout;
    assert!(long.contains("    plugbay call greet who=TEXT\n"), "{long}");
    let json = place.run(&["tools", "--json"]).with(0, &[]).json();
    assert_eq!(json[1]["name"], "greet");

    // Errors are the same as without it.
    let write = "write: plugbay call greet who=TEXT";
    place
        .run(&["call", "greet", "whom=Ada"])
        .with(2, &["error[PB0402]", "did you mean `who`?", write]);
    place.run(&["call", "greet"]).with(2, &["\"who\" is a required property", write]);
    let error =
        place.run(&["call", "-o", "json", "gret"]).with(4, &["`plugbay tools` lists all"]).json();
    assert_eq!((&error["error"]["code"], &error["error"]["ran"]), (&json!("PB0403"), &json!("no")));
    let note = "Note greet is of level L0";
    place
        .run(&["call", "--timeout", "9s", "greet", "who=Ada"])
        .with(0, &[note])
        .and_prints("hello, Ada\n");
    daemon.end(&place);
    greet.is_gone();
}

#[test]
fn who_leaves_an_attached_call_cancels_it() {
    let never = Fixture::new("never.py");
    let place = Place::new(&plugin("never", &never.command));
    let mut child = start(place.command(&["run", "--json"]));
    let (stderr, out) = (child.stderr.take().unwrap(), child.stdout.take().unwrap());
    let stderr = wait_for(stderr, "Running ");
    let call = start(place.command(&["call", "greet", "who=Ada"]));
    let events = wait_for(out, "\"call_started\"");
    send(&call, Signal::SIGINT);
    end(call).with(130, &["error[PB0506]: interrupted"]);
    send(&child, Signal::SIGTERM);
    send(&child, Signal::SIGTERM);
    end(child);
    drop(stderr.join());
    let events = events.join().unwrap();
    assert!(events.contains("\"call_dropped\""), "{events}");
    never.is_gone();
}

#[test]
fn one_plugbay_runs_the_same_plugins_and_takes_over_from_one_that_was_killed() {
    let greet = Fixture::of(&greeter());
    let place = Place::new(&plugin("greet", &greet.command));
    let mut daemon = place.daemon(&[]);
    let pid = daemon.child.id();
    let second = place.run(&["run", "-c", "plugbay.toml"]);
    second
        .with(3, &[&format!("error: another plugbay (pid {pid}) runs the same"), "--control PATH"]);
    // At another place, and found there.
    let socket = place.run.path().join("own/a.sock");
    let socket = socket.to_str().unwrap();
    let other = place.daemon(&["--control", socket]);
    let ps = place.run(&["ps", "--control", socket, "--json"]).with(0, &[]).json();
    assert_eq!(ps[0]["pid"], other.child.id());
    place
        .run(&["call", "--control", socket, "greet", "who=Ada"])
        .with(0, &[])
        .and_prints("hello, Ada\n");
    send(&other.child, Signal::SIGTERM);
    end(other.child);
    assert!(!Path::new(socket).exists());

    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    assert_eq!(place.left().len(), 2, "a socket that nobody listens at, and its lock");
    place.run(&["ps"]).with(5, &["no plugbay runs"]);
    place.run(&["call", "greet", "who=Ada"]).with(0, &[]).and_prints("hello, Ada\n");
    let daemon = place.daemon(&[]);
    place.run(&["ps"]).with(0, &[]);
    daemon.end(&place);
    greet.is_gone();
}

#[test]
fn several_plugbays_are_shown_and_one_must_be_named() {
    let greet = Fixture::of(&greeter());
    let place = Place::new(&plugin("greet", &greet.command));
    let first = place.daemon(&[]);
    let second = place.daemon(&["--plugin", "sh -c 'sleep 60'"]);
    let elsewhere = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| {
        let mut command = place.command(words);
        command.current_dir(elsewhere.path());
        end(start(command))
    };
    let ps = run(&["ps"]).with(0, &[]).stdout;
    assert!(ps.contains("plugbay.toml (pid ") && ps.contains("sh (pid "), "{ps}");
    let parts = ["several plugbays run; name one", "for plugbay.toml", "for sh"];
    run(&["why", "greet"]).with(2, &parts).and_prints("");
    assert_eq!(place.run(&["why", "greet"]).code, Some(0), "the one that runs what is here");
    // Without a command, what runs is shown.
    assert!(run(&[]).with(0, &[]).stdout.contains("PLUGIN"));
    send(&second.child, Signal::SIGTERM);
    send(&second.child, Signal::SIGTERM);
    end(second.child);
    // With one left, it is the one.
    assert_eq!(run(&["why", "greet"]).code, Some(0));
    first.end(&place);
    greet.is_gone();
}

#[test]
fn a_plugbay_that_stays_waits_for_somebody_to_resume() {
    let greet = Fixture::of(&greeter());
    let place = Place::new(&two(&greet).replace(&plugin("greet", &greet.command), ""));
    let daemon = place.daemon(&["--start", "--stay"]);
    // However far its first process is.
    place.run(&["restart", "bad"]).with(1, &["error[PB0507]"]);
    while place.plugin("bad")["state"] != "quarantined" {}
    place.run(&["resume", "bad"]).with(0, &["Resumed bad is dormant"]);
    daemon.end(&place);
    let known = place.run(&["ps", "--control", "/nowhere/a.sock"]);
    let parts = ["no plugbay listens at `/nowhere/a.sock`", "run --control /nowhere/a.sock`"];
    known.with(5, &parts).and_prints("");
}

#[test]
fn without_a_private_place_the_plugins_run_all_the_same() {
    let greet = Fixture::of(&greeter());
    let place = Place::new(&plugin("greet", &greet.command));
    let mut command = place.command(&["run"]);
    command.env("XDG_RUNTIME_DIR", "/nowhere/at/all");
    let mut child = start(command);
    let stderr = wait_for(child.stderr.take().unwrap(), "Running 1 plugin");
    send(&child, Signal::SIGTERM);
    end(child).with(0, &[]);
    let stderr = stderr.join().unwrap();
    let why = "the folder of the control socket, `/nowhere/at/all/plugbay`, cannot be made";
    assert!(stderr.contains("Unattended") && stderr.contains(why), "{stderr}");
    // Whoever asks for a place wants it.
    let open = place.dir.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    let socket = open.join("a.sock");
    let ended = place.run(&["run", "--control", socket.to_str().unwrap()]);
    ended.with(1, &["can be entered by others (mode 755)", "chmod 700"]).and_prints("");
    greet.is_gone();
}

/// What the page says to type, typed.
#[test]
fn the_client_in_the_documentation_works() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/control.md"));
    let page = page.unwrap();
    let client = page.split_once("<<'PY'\n").unwrap().1.split_once("\nPY\n").unwrap().0;
    let greet = Fixture::of(&greeter());
    let place = Place::new(&plugin("greet", &greet.command));
    let daemon = place.daemon(&[]);
    let mut python = Command::new("python3");
    python.args(["-c", client]).env("XDG_RUNTIME_DIR", place.run.path());
    let ended = end(start(python)).with(0, &[]);
    assert!(
        ended.stdout.contains("\"hello\"") && ended.stdout.contains("\"dormant\""),
        "{ended:?}"
    );
    daemon.end(&place);
}

/// Only root can become another user, and only then is there something to see.
#[test]
fn another_user_cannot_connect() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let greet = Fixture::of(&greeter());
    let place = Place::new(&plugin("greet", &greet.command));
    // The folder itself can be entered; what is in it is what protects.
    let socket = place.run.path().join("own/a.sock");
    let daemon = place.daemon(&["--control", socket.to_str().unwrap()]);
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(place.run.path(), open.clone()).unwrap();
    let nobody = || {
        let mut command = plugbay(["ps", "--control", socket.to_str().unwrap()]);
        command.uid(65_534).gid(65_534).current_dir("/");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map(end)
    };
    // A build that others may not read cannot be tried.
    if let Ok(ended) = nobody() {
        ended.with(5, &["cannot reach plugbay", "Permission denied"]).and_prints("");
        // Somebody has opened the doors: the user is looked at all the same.
        fs::set_permissions(socket.parent().unwrap(), open).unwrap();
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
        let ended = nobody().unwrap();
        // Whichever of the two notices first.
        assert!(matches!(ended.code, Some(3 | 5)), "{ended:?}");
        assert!(ended.stderr.contains("another user") || ended.stderr.contains("belongs to"));
    }
    daemon.end(&place);
    greet.is_gone();
}

#[test]
fn systemd_is_told_how_it_goes() {
    let greet = Fixture::of(&greeter());
    let place = Place::new(&two(&greet));
    let path = place.dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let mut command = place.command(&["run", "--start", "--stay"]);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "1000000");
    let child = start(command);
    let said = std::cell::RefCell::new(Vec::new());
    let until = |part: &str| {
        socket.set_read_timeout(Some(crate::stage::HANG)).unwrap();
        while !said.borrow().iter().any(|it: &String| it.contains(part)) {
            let mut bytes = [0; 512];
            let len = socket.recv(&mut bytes).unwrap_or_else(|it| panic!("no {part:?}: {it}"));
            said.borrow_mut().push(String::from_utf8_lossy(&bytes[..len]).into_owned());
        }
    };
    until("READY=1");
    until("1 active, 1 quarantined (bad is quarantined");
    until("WATCHDOG=1");
    send(&child, Signal::SIGTERM);
    until("STOPPING=1");
    end(child).with(0, &[]);
    let said = said.into_inner();
    assert_eq!(said.iter().filter(|it| *it == "READY=1").count(), 1, "{said:?}");
    greet.is_gone();
}

#[test]
fn bounds_on_all_plugins_are_shown_and_changed_while_they_run() {
    let greet = Fixture::of(&greeter());
    let table = "[plugins.greet.limits]\nmemory = \"3GiB\"\ncpu = \"90%\"\n\
                 [host]\nmemory = \"2GiB\"\ncpu = \"50%\"\n";
    let place = Place::new(&format!("{}{table}", plugin("greet", &greet.command)));
    let daemon = place.daemon(&[]);
    let show = |parts: &[&str]| {
        let ended = place.run(&["limits", "show", "--host"]).with(0, &[]);
        let words: Vec<&str> = ended.stdout.split_whitespace().collect();
        let said = words.join(" ");
        assert!(parts.iter().all(|it| said.contains(it)), "{said}");
    };
    // More is promised than there is: that is allowed, and shown.
    show(&["memory 2GiB manifest 3.0 GiB", "cpu 50% manifest 90%", "processes - default 0 -"]);
    let set = |change: &[&str]| place.run(&[&["limits", "set", "--host"], change].concat());
    match &Machine::here().cgroups.memory {
        Ok(()) => {
            let said = "Set memory 2GiB -> 4GiB, from the first plugin on";
            set(&["memory=4GiB"]).with(0, &[said]);
            show(&["memory 4GiB changed, was 2GiB 3.0 GiB"]);
        }
        Err(_) => drop(set(&["memory=4GiB"]).with(1, &["nothing here can enforce it"])),
    }
    let words = "Refused processes stays unset: no limit of this kind was set when plugbay started";
    let refused = set(&["processes=64"]).with(1, &[words]);
    assert_eq!(refused.stderr.matches("Refused").count(), 1, "nothing that was not asked for");
    set(&["memroy=4GiB"]).with(1, &["did you mean `memory`?"]);
    set(&["state_dir=/x"]).with(1, &["error[PB0701]", "memory, cpu, processes"]);
    set(&["greet", "memory=4GiB"]).with(2, &["expected KEY=VALUE", "and no plugin"]);
    place.run(&["limits", "show"]).with(2, &["<PLUGIN | --host>"]);
    daemon.end(&place);
    greet.is_gone();
}
