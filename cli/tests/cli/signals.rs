//! Ctrl-C and SIGTERM: everything ends, nothing is left.

use nix::sys::signal::Signal;

use crate::stage::{Fixture, end, greeter, plugbay, run, send, start, wait_for};

#[test]
fn ctrl_c_cancels_a_call() {
    let fixture = Fixture::new("never.py");
    let mut child =
        start(plugbay(["call", "-v", "--plugin", &fixture.command, "greet", "who=Ada"]));
    let stderr = wait_for(child.stderr.take().unwrap(), "| called");
    send(&child, Signal::SIGINT);
    let ended = end(child);
    let stderr = stderr.join().unwrap();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(130), ""), "{stderr}");
    assert!(stderr.contains("error[PB0506]: interrupted"), "{stderr}");
    fixture.is_gone();
}

#[test]
fn a_second_ctrl_c_does_not_wait() {
    let fixture = Fixture::new("never.py");
    let mut child =
        start(plugbay(["call", "-v", "--plugin", &fixture.command, "greet", "who=Ada"]));
    drop(wait_for(child.stderr.take().unwrap(), "| called"));
    // The second may come before or after the call was given up.
    send(&child, Signal::SIGINT);
    send(&child, Signal::SIGTERM);
    assert_eq!(end(child).code, Some(130));
    fixture.is_gone();
}

#[test]
fn run_ends_well_when_told_to() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let fixture = Fixture::of(&greeter());
        let mut child = start(plugbay(["run", "--json", "--plugin", &fixture.command]));
        let stdout = wait_for(child.stdout.take().unwrap(), "\"active\"");
        send(&child, signal);
        let ended = end(child).with(0, &["Running 1 plugin", "Stopping 1 plugin"]);
        let stdout = stdout.join().unwrap();
        let events: Vec<serde_json::Value> =
            stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let facts: Vec<&str> = events.iter().map(|it| it["fact"].as_str().unwrap()).collect();
        assert!(
            facts.starts_with(&["spawned"]) && facts.contains(&"exited"),
            "{facts:?} {ended:?}"
        );
        let seqs = events.iter().map(|it| it["seq"].as_u64().unwrap());
        assert!(seqs.eq(0..events.len() as u64), "{stdout}");
        fixture.is_gone();
    }
}

#[test]
fn run_shows_what_plugins_say_and_do() {
    let fixture = Fixture::of("sh -c 'echo hello there >&2; exit 3'");
    let ended = run(["run", "--plugin", &fixture.command]);
    let parts = [
        "    Starting sh (pid ",
        "          sh | hello there\n",
        "       Ended sh exited with status 3 before it was ready [PB0507]",
        "     Waiting ",
        " Quarantined sh ",
        "error: no plugin is left that could take a call",
    ];
    ended.with(1, &parts).and_prints("");
    fixture.is_gone();
}

#[test]
fn run_outlives_no_reader() {
    let fixture = Fixture::of(&greeter());
    let mut child = start(plugbay(["run", "--json", "--plugin", &fixture.command]));
    drop(child.stdout.take());
    end(child).with(0, &[]);
    fixture.is_gone();
}
