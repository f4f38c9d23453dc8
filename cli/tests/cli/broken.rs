//! Plugins that are none, or bad ones: each call ends, says why, and leaves nothing.

use std::{fs, os::unix::fs::PermissionsExt};

use crate::stage::{Fixture, run, run_in};

#[track_caller]
fn check(fixture: &Fixture, more: &[&str], code: i32, parts: &[&str]) {
    let words = ["call", "--plugin", &fixture.command, "greet", "who=Ada"];
    let ended = run(words.iter().chain(more));
    ended.with(code, parts).and_prints("");
    fixture.is_gone();
}

#[test]
fn a_banner_on_stdout_is_quoted() {
    let parts = [
        "error[PB0421]: banner wrote text",
        "it printed \"Welcome to greeter v1.4\\n\"",
        "stderr instead",
        "plugbay explain PB0421",
    ];
    check(&Fixture::new("banner.py"), &[], 1, &parts);
}

#[test]
fn a_flood_on_stdout_is_cut() {
    let fixture = Fixture::of("yes");
    check(&fixture, &[], 1, &["error[PB0421]: yes wrote text", "it printed \""]);
}

#[test]
fn a_program_that_never_says_hello_is_named_with_its_last_words() {
    let parts = [
        "error[PB0505]: no_hello was not ready within 2s",
        "has not answered the HELLO",
        "| waiting for something",
        "did not run",
    ];
    let parts = parts.map(|it| it.replace("no_hello", "no-hello"));
    check(
        &Fixture::new("no_hello.py"),
        &["--timeout", "2s"],
        6,
        &parts.each_ref().map(String::as_str),
    );
}

#[test]
fn who_waits_and_wants_to_know_is_told_what_for() {
    let fixture = Fixture::new("no_hello.py");
    let words = ["call", "-v", "--timeout", "5s", "--plugin", &fixture.command, "greet"];
    let parts = ["     Waiting for no-hello to say HELLO (", " s of 10 s)\n"];
    let ended = run(words).with(6, &parts);
    ended.and_prints("");
    fixture.is_gone();
    let fixture = Fixture::new("never.py");
    let words = ["call", "-v", "--timeout", "5s", "--plugin", &fixture.command, "greet", "who=Ada"];
    let parts = [
        "        Note never is of level L0 and sees no deadline: when --timeout is over",
        "     Waiting for the answer (",
    ];
    let ended = run(words).with(6, &parts);
    assert_eq!(ended.stderr.matches("Note").count(), 1, "{ended:?}");
    fixture.is_gone();
}

#[test]
fn a_flood_on_stderr_is_cut_and_what_is_not_shown_is_said() {
    // The same line, many different lines, and then its end.
    let program = "i=0; while [ $i -lt 3000 ]; do echo same; i=$((i+1)); done; seq 3000; exit 3";
    let fixture = Fixture::of(&format!("sh -c '({program}) >&2; exit 3'"));
    let dir = tempfile::tempdir().unwrap();
    let words = shlex::split(&fixture.command).unwrap();
    let run = |more: &[&str]| {
        let manifest = format!(
            "manifest = 1\n[plugins.p]\ncommand = {words:?}\n\
             [plugins.p.restart]\nbudget = {{ restarts = 0, within = \"1m\" }}\n"
        );
        fs::write(dir.path().join("plugbay.toml"), manifest).unwrap();
        run_in(dir.path(), ["run", "--start"].iter().chain(more))
    };
    let ended = run(&[]).with(1, &["           p | same\n", " Quarantined p "]);
    assert!(ended.stderr.lines().count() < 500, "{ended:?}");
    let number = |before: &str, after: &str| -> usize {
        let lines = ended.stderr.lines().filter_map(|line| {
            line.split_once(before)?.1.split_once(after)?.0.parse::<usize>().ok()
        });
        lines.sum()
    };
    let shown = ended.stderr.lines().filter(|it| it.starts_with("           p | ")).count();
    let once = ended.stderr.matches("(the same once more)").count();
    let (again, hidden) = (number("(the same ", " times"), number("| (", " lines are not"));
    let again = again + once;
    assert!(0 < again && 0 < hidden, "{ended:?}");
    let counts = once
        + ended.stderr.matches("times more)").count()
        + ended.stderr.matches("-v shows").count();
    // Unless the supervisor itself had to drop some, every line is accounted for.
    if !ended.stderr.contains("Dropped") && !ended.stderr.contains("Missed") {
        assert_eq!(shown - counts + again + hidden, 6000, "{ended:?}");
    }
    let last = "error: no plugin is left that could take a call\n   \
                = help: with --stay it goes on, for `plugbay why` and `plugbay resume`\n";
    assert!(ended.stderr.ends_with(last), "{ended:#?}");
    let all = run(&["-v"]).with(1, &["           p | same\n"]);
    assert!(3000 < all.stderr.lines().count() || all.stderr.contains("Missed"), "{all:?}");
    fixture.is_gone();
}

#[test]
fn a_program_that_only_sleeps_is_ended() {
    let fixture = Fixture::of("sh -c 'sleep 3600 & sleep 3600'");
    check(&fixture, &["--timeout", "1s"], 6, &["error[PB0505]: sh was not ready within 1s"]);
}

#[test]
fn a_program_that_gives_back_what_it_gets_is_no_plugin() {
    let fixture = Fixture::of("sh -c cat");
    let parts = ["error[PB0422]: cat sends back what it reads", "is this program a plugin?"];
    check(&fixture, &[], 1, &parts);
}

/// One time after the other runs out, and each ends the command alike.
#[test]
fn whichever_time_runs_out_the_exit_code_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let stages = [
        ("no_hello.py", "start", &["error[PB0401]: p did not say HELLO within 1s"][..]),
        (
            "half_hello.py",
            "start",
            &["error[PB0401]: p sent 20 of the ", "bytes of its HELLO within 1s", "declares more"],
        ),
        ("no_activate.py", "activate", &["error[PB0426]: p did not answer plugin.activate"]),
        ("never.py", "call", &["error[PB0505]: p was silent for 1s"]),
        ("never.py", "call_max", &["error[PB0505]: p did not finish within 1s"]),
    ];
    for (file, time, parts) in stages {
        let fixture = Fixture::new(file);
        let words = shlex::split(&fixture.command).unwrap();
        let manifest = format!(
            "manifest = 1\n[plugins.p]\ncommand = {words:?}\n\
             [plugins.p.timeouts]\n{time} = \"1s\"\nstop = \"1s\"\n",
        );
        fs::write(dir.path().join("plugbay.toml"), manifest).unwrap();
        let ended = run_in(dir.path(), ["call", "-o", "json", "greet", "who=Ada"]);
        let ended = ended.with(6, parts);
        assert_eq!(ended.json()["error"]["exit"], 6, "{ended:?}");
        fixture.is_gone();
    }
}

#[test]
fn a_program_that_ends_at_once_is_no_plugin() {
    let fixture = Fixture::of("true");
    check(
        &fixture,
        &[],
        1,
        &["error[PB0507]: true exited with status 0", "is this program a plugin?"],
    );
    let fixture = Fixture::of("sh -c 'echo no config >&2; exit 3'");
    check(&fixture, &[], 1, &["error[PB0507]: sh exited with status 3", "| no config"]);
}

#[test]
fn a_crash_during_the_call_shows_the_last_words() {
    let parts = [
        "error[PB0507]: crash exited with status 7",
        "| no such table",
        "nobody knows whether the tool ran",
    ];
    check(&Fixture::new("crash.py"), &[], 1, &parts);
}

#[test]
fn a_call_that_is_never_answered_ends_with_its_budget() {
    let parts = [
        "error[PB0505]: never did not finish within 2s",
        "| called",
        "nobody knows whether the tool ran",
    ];
    check(&Fixture::new("never.py"), &["--timeout", "2s"], 6, &parts);
}

#[test]
fn silence_has_a_budget_of_its_own() {
    let parts = ["error[PB0505]: never was silent for 2s", "nobody knows whether the tool ran"];
    check(&Fixture::new("never.py"), &["--idle", "2s"], 6, &parts);
}

#[test]
fn a_tool_that_raises_shows_its_traceback() {
    let parts = ["error[PB0508]: raises answered internal", "| KeyError: 'Ada'"];
    check(&Fixture::new("raises.py"), &[], 1, &parts);
}

/// What was given cannot be taken back, and is not to be trusted either.
#[test]
fn a_second_answer_is_told_after_the_first() {
    let fixture = Fixture::new("twice.py");
    let ended = run(["call", "--plugin", &fixture.command, "greet", "who=Ada"]);
    let parts = ["error[PB0422]: twice broke the protocol", "after its answer"];
    ended.with(1, &parts).and_prints("hello, Ada\n");
    fixture.is_gone();
}

#[test]
fn an_activation_that_is_answered_twice_is_told() {
    let fixture = Fixture::new("twice_at_once.py");
    let ended = run(["call", "--plugin", &fixture.command, "greet", "who=Ada"]);
    ended.with(1, &["error[PB0422]: twice-at-once broke the protocol"]).and_prints("");
    fixture.is_gone();
}

#[test]
fn a_program_that_cannot_be_started_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str, mode: u32| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        format!("'{}'", path.display())
    };
    let plain = Fixture::of(&write("plain.py", "print(1)\n", 0o644));
    check(&plain, &[], 1, &["error[PB0121]", "plain.py` is not executable", "chmod +x"]);
    let text = Fixture::of(&write("text", "just some text\n", 0o755));
    check(&text, &[], 1, &["error[PB0510]: text could not be started", "#!/usr/bin/env python3"]);
    let script = Fixture::of(&write("script", "#!/nowhere/python\n", 0o755));
    check(&script, &[], 4, &["error[PB0120]: script could not be started", "the interpreter"]);
    let missing = Fixture::of(&format!("'{}'", dir.path().join("nothing-here").display()));
    check(&missing, &[], 4, &["error[PB0120]", "nothing-here`"]);
    let folder = Fixture::of(&format!("'{}'", dir.path().display()));
    check(&folder, &[], 4, &["error[PB0120]", "this is a folder"]);
    let unknown = Fixture::of("no-such-program-anywhere");
    check(
        &unknown,
        &[],
        4,
        &["error[PB0120]: there is no program `no-such-program-anywhere` in PATH"],
    );
}

#[test]
fn a_command_line_that_wants_a_shell_is_told_that_there_is_none() {
    let ended = run(["call", "--plugin", "echo hi | cat", "greet"]);
    ended.with(2, &["there is no shell to see `|`", "sh -c"]).and_prints("");
    run(["call", "--plugin", "echo 'hi", "greet"]).with(2, &["a quote is opened"]).and_prints("");
    run(["call", "--plugin", " ", "greet"]).with(2, &["expected a program"]).and_prints("");
}
