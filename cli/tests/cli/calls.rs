//! Calls that go well, and calls that are refused before anything runs.

use std::{fs, process::Stdio};

use serde_json::json;

use crate::stage::{Fixture, end, greeter, plugbay, run, run_in, run_with, start};

#[test]
fn the_plugin_of_the_tutorial_answers() {
    let fixture = Fixture::of(&greeter());
    let ended = run(["call", "--plugin", &fixture.command, "greet", "who=Ada"]);
    assert_eq!(ended.stderr, "");
    ended.with(0, &[]).and_prints("hello, Ada\n");
    fixture.is_gone();
}

#[test]
fn values_are_typed_by_the_schema() {
    let call = |words: &[&str]| run(["call", "--plugin", &greeter()].iter().chain(words));
    call(&["greet", "who=007"]).with(0, &[]).and_prints("hello, 007\n");
    call(&["greet", "who=@@x"]).with(0, &[]).and_prints("hello, @x\n");
    call(&["add", "a=1", "b=2.5"]).with(0, &[]).and_prints("3.5\n");
    call(&["add", "--json", r#"{"a": 1}"#, "b=2"]).with(0, &[]).and_prints("3\n");
    call(&["add", "a:=1", "--args", r#"{"b": 2}"#]).with(0, &[]).and_prints("3\n");
    call(&["greet", r#"who:="x""#]).with(0, &[]).and_prints("hello, x\n");
}

#[test]
fn values_come_from_files_and_stdin() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("name.txt"), "Grace\n").unwrap();
    let call = ["call", "--plugin", &greeter(), "greet"].map(str::to_owned);
    let words = |more: &str| call.iter().cloned().chain([more.to_owned()]).collect::<Vec<_>>();
    run_in(dir.path(), words("who=@name.txt")).with(0, &[]).and_prints("hello, Grace\n");
    run_in(dir.path(), words("who=@nam.txt"))
        .with(4, &["`who`: cannot read `nam.txt`"])
        .and_prints("");
    run_with("stdin", words("who=@-")).with(0, &[]).and_prints("hello, stdin\n");
    let json = run_with(r#"{"who": "json"}"#, words("--json").into_iter().chain(["-".into()]));
    json.with(0, &[]).and_prints("hello, json\n");
    let twice = words("who=@-").into_iter().chain(["--json".into(), "-".into()]);
    run_with("{}", twice).with(2, &["stdin is named twice"]).and_prints("");
}

#[test]
fn wrong_arguments_are_all_told_and_nothing_runs() {
    let call = |words: &[&str]| run(["call", "--plugin", &greeter()].iter().chain(words));
    call(&["greet", "whoo=Ada"])
        .with(2, &["error[PB0402]", "no argument `whoo`; did you mean `who`?", "greet who=TEXT"])
        .and_prints("");
    call(&["greet"]).with(2, &["\"who\" is a required property", "who=TEXT"]).and_prints("");
    call(&["add", "a=x", "b=y"])
        .with(2, &["`a`: expected a number", "`b`: expected a number"])
        .and_prints("");
    call(&["greet", "Ada"]).with(2, &["expected key=value, found \"Ada\""]).and_prints("");
    call(&["greet", "--json", "[1]"]).with(2, &["expected an object", "-o json"]).and_prints("");
    call(&["gret", "who=Ada"]).with(4, &["error[PB0403]", "\"greet\""]).and_prints("");
    call(&["sing"]).with(4, &["error[PB0403]", "there are: add, greet"]).and_prints("");
    call(&["greet", "--timeout", "30"]).with(2, &["30s for seconds"]).and_prints("");
}

#[test]
fn an_answer_or_an_error_can_be_json() {
    let call =
        |words: &[&str]| run(["call", "-o", "json", "--plugin", &greeter()].iter().chain(words));
    let ended = call(&["greet", "who=Ada"]).with(0, &[]);
    let expected =
        json!({ "content": [{ "type": "text", "text": "hello, Ada" }], "is_error": false });
    assert_eq!(ended.json(), expected);
    let error = call(&["gret"]).with(4, &["PB0403"]).json();
    assert_eq!(error["error"]["code"], "PB0403");
    assert_eq!(error["error"]["ran"], "no");
    assert_eq!(error["error"]["exit"], 4);
}

/// Whoever parses stdout finds one object there, however early it fails.
#[test]
fn every_failure_after_the_command_line_is_json_where_that_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("bad.toml"), "manifest = 1\n[plugins.a]\ncommand = [\"./no\"]\n")
        .unwrap();
    fs::write(dir.path().join("none.toml"), "manifest = 1\n").unwrap();
    let greeter = greeter();
    #[rustfmt::skip]
    let table: &[(&[&str], i32, Option<&str>)] = &[
        (&["greet"],                                           2, None),
        (&["-c", "nowhere", "greet"],                          4, None),
        (&["-c", "bad.toml", "greet"],                         4, Some("PB0120")),
        (&["-c", "none.toml", "greet"],                        1, None),
        (&["--env", "A=1", "greet"],                           2, None),
        (&["--plugin", "a | b", "greet"],                      2, None),
        (&["--plugin", "./nowhere", "greet"],                  4, Some("PB0120")),
        (&["--plugin", "true", "greet"],                       1, Some("PB0507")),
        (&["--plugin", "sleep 60", "--timeout", "1s", "greet"], 6, Some("PB0505")),
        (&["--plugin", &greeter, "greet", "who"],              2, None),
        (&["--plugin", &greeter, "greet", "who=@nowhere"],     4, None),
        (&["--plugin", &greeter, "greet", "--json", "[]"],     2, None),
        (&["--plugin", &greeter, "greet", "whom=Ada"],         2, Some("PB0402")),
        (&["--plugin", &greeter, "sing"],                      4, Some("PB0403")),
    ];
    for (words, exit, code) in table {
        let ended =
            run_in(dir.path(), ["call", "-o", "json"].iter().chain(*words)).with(*exit, &[]);
        let error = &ended.json()["error"];
        assert_eq!((&error["exit"], &error["code"]), (&json!(exit), &json!(code)), "{words:?}");
        assert!(!error["message"].as_str().unwrap().is_empty(), "{words:?}: {error}");
    }
    let ended = run_in(dir.path(), ["call", "-o", "json", "-c", "bad.toml", "greet"]);
    assert_eq!(ended.json()["error"]["problems"][0]["code"], "PB0120", "{ended:?}");
}

#[test]
fn what_to_write_names_the_same_plugins() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("my greet.py");
    fs::copy(crate::stage::greet(), file).unwrap();
    let call = |words: &[&str]| {
        let plugin = ["call", "--plugin", "python3 'my greet.py'", "--env", "A=secret"];
        run_in(dir.path(), plugin.iter().chain(words))
            .with(if words[0] == "sing" { 4 } else { 2 }, &[])
    };
    let same = r#"--plugin "python3 'my greet.py'" --env A"#;
    let ended =
        call(&["greet"]).with(2, &[&format!("write: plugbay call {same} greet who=TEXT\n")]);
    assert!(!ended.stderr.contains("secret"), "{ended:?}");
    call(&["sing"]).with(4, &[&format!("`plugbay tools {same}` lists all")]);
    run_in(dir.path(), ["new", "greet", "--lang", "python"]).with(0, &[]);
    run_in(dir.path(), ["call", "-c", "greet", "greet", "whom=Ada"])
        .with(2, &["write: plugbay call --config greet greet who=TEXT\n"]);
}

#[test]
fn a_manifest_names_tools_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    let refuse = "[plugins.greet]\nfrom = \"greet\"\n[plugins.greet.approve]\nread = \"deny\"\n";
    run_in(dir.path(), ["new", "greet", "--lang", "python"]).with(0, &[]);
    run_in(dir.path(), ["call", "-c", "greet", "greet", "who=Ada"])
        .with(0, &[])
        .and_prints("hello, Ada\n");
    fs::write(dir.path().join("plugbay.toml"), format!("manifest = 1\n{refuse}")).unwrap();
    let ended = run_in(dir.path(), ["call", "greet", "who=Ada"]);
    ended.with(3, &["error[PB0502]", "greet may not be called"]).and_prints("");
    fs::write(dir.path().join("plugbay.toml"), "manifest = 1\n[plugins.greet]\nfrom = \"gret\"\n")
        .unwrap();
    let ended = run_in(dir.path(), ["call", "greet", "who=Ada"]);
    ended.with(4, &["error[PB0110]", "plugbay.toml:3", "did you mean `greet`?"]).and_prints("");
}

#[test]
fn a_bare_program_gets_only_the_variables_that_are_given() {
    let print = "sh -c 'echo A=$A B=$B C=$C >&2; exit 1'";
    let mut command = plugbay(["call", "--plugin", print, "--env", "A", "--env", "B=2=3", "x"]);
    command.env("A", "1").env("C", "never");
    end(start(command)).with(1, &["| A=1 B=2=3 C=\n"]).and_prints("");
    run(["call", "--plugin", "true", "--env", "NOT_SET_ANYWHERE", "x"])
        .with(2, &["it is not set here"]);
    run(["call", "--plugin", "true", "--env", "1=2", "x"]).with(2, &["variable's name"]);
    let why = "--env is for a program that --plugin names";
    run(["call", "--env", "A=1", "x"]).with(2, &[why, "[plugins.NAME.grant] env"]);
    run(["call", "--env", "A=1", "--config", ".", "x"]).with(2, &[why]);
}

#[test]
fn what_happens_is_told_when_asked() {
    let quiet = run(["call", "-q", "--plugin", &greeter(), "greet", "who=Ada"]);
    assert_eq!(quiet.stderr, "");
    let loud = run(["call", "-v", "--plugin", &greeter(), "greet", "who=Ada"]);
    loud.with(
        0,
        &[
            "    Starting greet (pid ",
            "       Ready greet, 2 tools: add, greet\n",
            "      Called greet: ok",
        ],
    )
    .and_prints("hello, Ada\n");
    let mut command = plugbay(["call", "--plugin", &greeter(), "greet", "who=Ada"]);
    command.env("RUST_LOG", "plugbay_supervisor=info");
    end(start(command)).with(0, &["spawned"]).and_prints("hello, Ada\n");
}

/// Whoever reads may leave early; that is no error of ours and no panic.
#[test]
fn a_reader_that_leaves_ends_it_quietly() {
    let mut command = plugbay(["explain", "--list"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let ended = end(child);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let mut command = plugbay(["explain", "--list"]);
    command.stdout(fs::File::options().write(true).open("/dev/full").unwrap());
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    end(child).with(1, &["cannot write to stdout"]);
}
