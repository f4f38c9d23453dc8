//! Looking around: tools, check, explain, schema, completions, man, and no command.

use std::fs;

use crate::stage::{Fixture, end, greeter, plugbay, run, run_in, start};

#[test]
fn tools_of_a_program_are_learnt_from_it() {
    let fixture = Fixture::of(&greeter());
    let ended = run(["tools", "--plugin", &fixture.command]).with(0, &[]);
    ended.and_prints(
        "TOOL   EFFECT  PLUGIN  DESCRIPTION
add    read    greet   Adds two numbers.
greet  read    greet   Greets somebody by name.
",
    );
    fixture.is_gone();
    let json = run(["tools", "--json", "--plugin", &greeter()]).with(0, &[]).json();
    assert_eq!(json[1]["name"], "greet");
    assert_eq!(json[1]["input_schema"]["properties"]["who"]["type"], "string");
    let ended = run(["tools", "--long", "--plugin", &greeter()]).with(0, &[]);
    assert!(ended.stdout.contains("    plugbay call --plugin "), "{ended:?}");
    assert!(ended.stdout.contains(" greet who=TEXT\n"), "{ended:?}");
}

#[test]
fn tools_of_a_program_that_is_no_plugin_are_an_error() {
    let fixture = Fixture::new("banner.py");
    run(["tools", "--plugin", &fixture.command]).with(1, &["PB0421"]).and_prints("");
    let json = run(["tools", "--json", "--plugin", &fixture.command]).with(1, &["PB0421"]).json();
    assert_eq!(json, serde_json::json!([]));
    fixture.is_gone();
}

#[test]
fn a_tool_that_is_withheld_is_told_with_the_reason() {
    let fixture = Fixture::new("bad_schema.py");
    let why = "tool greet of bad-schema: ";
    let ended = run(["tools", "--plugin", &fixture.command]).with(0, &["    Withheld ", why]);
    assert!(ended.stdout.contains("add ") && !ended.stdout.contains("greet "), "{ended:?}");
    let ended = run(["call", "--plugin", &fixture.command, "greet", "who=Ada"]);
    let why = "no tool is called \"greet\": plugin \"bad-schema\" may not offer it: the root of";
    ended.with(4, &["error[PB0403]", why]).and_prints("");
    fixture.is_gone();
}

#[test]
fn check_shows_every_problem_in_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plugbay.toml");
    fs::write(&path, "manifest = 1\n[plugins.a]\ncommand = [\"true\"]\nprefx = \"a\"\n[plugins.a.timeouts]\ncall = \"30\"\n").unwrap();
    let parts = [
        "error[PB0102]",
        "error[PB0103]",
        "plugbay.toml:4:1",
        "did you mean `prefix`?",
        "     Checked plugbay.toml: ",
        "2 errors",
    ];
    run_in(dir.path(), ["check"]).with(1, &parts).and_prints("");
    let json = run_in(dir.path(), ["check", "--json"]).with(1, &[]);
    assert_eq!(json.stderr, "");
    assert_eq!(json.json()["errors"], 2);
    fs::write(
        &path,
        "manifest = 1\n[defaults.sandbox]\nlevel = \"none\"\n[plugins.a]\ncommand = [\"true\"]\n",
    )
    .unwrap();
    let ended = run_in(dir.path(), ["check", "."]);
    assert!(!ended.stderr.contains('\x1b'));
    ended.with(0, &["     Checked .: 1 plugin, 0 tools, more tools from 1 plugin when started, no problems\n"]);
    let mut command = plugbay(["check", "--color", "always"]);
    command.current_dir(dir.path());
    assert!(end(start(command)).stderr.contains("\x1b[1m\x1b[32m     Checked\x1b[0m"));
}

#[test]
fn what_is_not_there_is_told_with_what_might_be_meant() {
    let dir = tempfile::tempdir().unwrap();
    for command in [&["tools"][..], &["run"], &["call", "x"]] {
        run_in(dir.path(), command)
            .with(2, &["no plugbay.toml and no plugin.toml", "--config", "--plugin", "plugbay new"])
            .and_prints("");
    }
    // There is nothing to check in a program.
    for command in [&["check"][..], &["check", "."]] {
        let ended = run_in(dir.path(), command);
        assert!(!ended.stderr.contains("--plugin"), "{ended:?}");
        ended.with(if command.len() == 1 { 2 } else { 1 }, &["plugbay new"]).and_prints("");
    }
    fs::write(dir.path().join("plugbay.toml"), "manifest = 1\n").unwrap();
    run_in(dir.path(), ["check", "plugbay.tml"]).with(4, &["did you mean `plugbay.toml`?"]);
    run_in(dir.path(), ["run"]).with(1, &["there is no plugin in plugbay.toml"]);
    run_in(dir.path(), ["tools"]).with(1, &["there is no plugin in plugbay.toml"]);
    run(["chek"]).with(2, &["similar", "'check'"]).and_prints("");
    run(["explain", "PB9999"]).with(4, &["no code", "--list"]).and_prints("");
}

#[test]
fn every_code_has_its_page() {
    let list = run(["explain", "--list"]).with(0, &[]).stdout;
    let json = run(["explain", "--list", "--json"]).with(0, &[]).json();
    assert_eq!(list.lines().count(), json.as_array().unwrap().len());
    let page = run(["explain", "421"]).with(0, &[]);
    assert!(page.stdout.starts_with("# PB0421: "), "{page:?}");
    assert!(page.stdout.ends_with("exit code 1. `plugbay explain --list` shows all codes.\n"));
    let page = run(["explain", "--color", "always", "PB0401"]).with(0, &[]).stdout;
    assert!(page.starts_with("\x1b[1mPB0401: ") && !page.contains("```"), "{page}");
    assert!(page.contains("exit code 6"), "{page}");
    run(["explain"]).with(2, &["expected a code", "--list"]).and_prints("");
    let page = run(["explain", "pb0421", "--json"]).with(0, &[]).json();
    assert_eq!(page["code"], "PB0421");
}

#[test]
fn schemas_are_schemas() {
    for file in ["plugin", "host"] {
        let schema = run(["schema", file]).with(0, &[]).json();
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    }
}

#[test]
fn shells_and_manuals_know_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(["completions", shell]).with(0, &[]).stdout;
        assert!(script.contains("explain"), "{shell}");
    }
    let page = run(["man"]).with(0, &[]).stdout;
    assert!(page.contains(".TH plugbay 1") && page.contains("interrupted"), "{page}");
    let dir = tempfile::tempdir().unwrap();
    let man = dir.path().join("man1");
    run(["man", "--dir", man.to_str().unwrap()]).with(0, &["Wrote 18 pages"]).and_prints("");
    let call = fs::read_to_string(man.join("plugbay-call.1")).unwrap();
    assert!(call.contains("key=@file"), "{call}");
}

#[test]
fn no_command_says_where_to_begin() {
    // Where nothing runs, unlike beside the other tests.
    let nowhere = tempfile::tempdir().unwrap();
    let mut command = plugbay::<&str>([]);
    command.env("XDG_RUNTIME_DIR", nowhere.path());
    let ended = end(start(command)).with(0, &[]);
    assert!(ended.stdout.contains("plugbay new") && ended.stdout.contains("plugbay --help"));
}

#[test]
fn a_granted_path_that_is_not_there_is_told_before_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let maps = dir.path().join("maps");
    let manifest = |sandbox: &str| {
        let grant = format!("fs = [{{ path = \"{}\", access = \"read\" }}]", maps.display());
        let plugin = "[plugins.a]\ncommand = [\"true\"]\n[plugins.a.grant]\n";
        let text = format!("manifest = 1\n[defaults.sandbox]\n{sandbox}\n{plugin}{grant}\n");
        fs::write(dir.path().join("plugbay.toml"), text).unwrap();
    };
    manifest("level = \"strict\"");
    let parts = ["error[PB0511]: `a` would not be started: cannot show ", "correct the grant"];
    run_in(dir.path(), ["check"]).with(1, &parts);
    // Where it is not shown, nobody misses it.
    manifest("level = \"none\"");
    run_in(dir.path(), ["check"]).with(0, &["1 warning"]);
    manifest("level = \"strict\"\nprefer = [\"files\"]");
    run_in(dir.path(), ["check"]).with(0, &["no problems"]);
    fs::create_dir(&maps).unwrap();
    manifest("level = \"strict\"");
    run_in(dir.path(), ["check"]).with(0, &["no problems"]);
}

#[test]
fn digests_are_printed_and_compared() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plugbay.toml");
    let program = dir.path().join("run.py");
    let head = "manifest = 1\n[defaults.sandbox]\nlevel = \"standard\"\n";
    let command = "command = [\"python3\", \"run.py\"]\n";
    let plugin = format!("{head}[plugins.a]\n{command}");
    fs::write(&path, &plugin).unwrap();
    fs::write(&program, "print()\n").unwrap();
    let printed = run_in(dir.path(), ["check", "--digests"]).with(0, &["no problems"]).stdout;
    let file = program.canonicalize().unwrap().display().to_string();
    assert!(printed.starts_with("[plugins.a]\ndigest = \"sha256:"), "{printed}");
    assert!(printed.ends_with(&format!("   # {file}\n")), "{printed}");

    // What it prints is what it accepts, as long as the file is that one.
    fs::write(&path, format!("{head}{printed}{command}")).unwrap();
    run_in(dir.path(), ["check"]).with(0, &["no problems"]);
    fs::write(&program, "print(1)\n").unwrap();
    let parts = ["error[PB0518]", "`a` would not be started", "is due", "plugbay check --digests"];
    run_in(dir.path(), ["check"]).with(1, &parts);
    let json = run_in(dir.path(), ["check", "--json"]).with(1, &[]).json();
    assert_eq!(json["problems"][0]["code"], "PB0518", "{json}");
    let changed = run_in(dir.path(), ["check", "--digests"]).with(1, &parts).stdout;
    assert!(changed.contains("digest = ") && changed != printed, "{changed}");
    fs::remove_file(&program).unwrap();
    let gone = run_in(dir.path(), ["check", "--digests"]).with(1, &["error[PB0518]"]).stdout;
    assert!(gone.starts_with("# [plugins.a]: ") && gone.contains(&file), "{gone}");
}
