//! Manifests as people meet them: files that are wrong, and what is said about
//! each; files that are right, and the plan they become.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use plugbay_supervisor::{
    manifest::{
        self, Code, Loaded, Report, Severity, Surroundings, load_file_with, load_folder_with,
        load_text, schema,
    },
    plan::{
        Approval, Ceilings, Effect, FileGrant, IfMissing, Item, Level, Network, PluginPlan,
        RestartWhen, Secret,
    },
};

/// Relative, so that no report has the path of this machine.
const FOLDER: &str = "tests/manifests";

fn around() -> Surroundings {
    let env = [
        ("PATH", "/usr/bin:/bin"),
        ("HOME", "/home/ada"),
        ("LANG", "C.UTF-8"),
        ("GEOCODE_REGION", "no"),
        ("TICKETS_TOKEN", "t-1234"),
        ("CREDENTIALS_DIRECTORY", "tests/manifests/credentials"),
        ("NOT_GRANTED", "x"),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    Surroundings { env, os: "linux".to_owned() }
}

fn around_without(name: &str) -> Surroundings {
    let mut around = around();
    around.env.remove(name);
    around
}

fn wrong_files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(FOLDER)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "toml"))
        .collect();
    files.sort();
    assert!(40 <= files.len(), "only {} wrong files", files.len());
    files
}

fn load_wrong(path: &Path) -> Loaded {
    // Credentials exist only under systemd.
    load_file_with(path, &around_without("CREDENTIALS_DIRECTORY"))
}

/// What a person reads, without the notes that every file would get.
fn shown(report: &Report) -> String {
    let mut report = report.clone();
    report.problems.retain(|it| it.severity != Severity::Note);
    report.render(false)
}

#[test]
fn every_wrong_file_is_told_what_is_wrong() {
    for path in wrong_files() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let Loaded { plan, invalid, report } = load_wrong(&path);
        assert!(!report.problems.is_empty(), "{name}: nothing was found");
        let running: Vec<&str> = plan.plugins.iter().map(|it| it.name.as_str()).collect();
        let invalid: Vec<&str> = invalid.iter().map(|it| it.name.as_str()).collect();
        let text = format!(
            "{}\n({}; run: {}; invalid: {})\n",
            shown(&report),
            report.summary(),
            if running.is_empty() { "none".to_owned() } else { running.join(", ") },
            if invalid.is_empty() { "none".to_owned() } else { invalid.join(", ") },
        );
        let here = env!("CARGO_MANIFEST_DIR");
        assert!(!text.contains(here) && !text.contains("/home/"), "{name} shows where it ran");
        assert!(!text.contains("horse"), "{name} shows a secret");
        insta::assert_snapshot!(name, text);
    }
}

#[test]
fn a_wrong_file_reads_the_same_for_a_program() {
    let Loaded { report, .. } = load_wrong(&Path::new(FOLDER).join("key-unknown.toml"));
    let json = report.to_json();
    assert_eq!(json["errors"], 1);
    assert_eq!(json["warnings"], 0);
    let problem = &json["problems"][0];
    assert_eq!(problem["code"], "PB0102");
    assert_eq!(problem["severity"], "error");
    assert_eq!(problem["message"], "unknown key `openfiles`");
    assert_eq!(problem["at"]["file"], "tests/manifests/key-unknown.toml");
    assert_eq!((&problem["at"]["line"], &problem["at"]["column"]), (&4.into(), &1.into()));
    assert_eq!(problem["suggestion"]["replacement"], "open_files");
}

#[test]
fn no_secret_is_in_anything_that_is_shown() {
    for path in wrong_files() {
        let loaded = load_wrong(&path);
        let json = loaded.report.to_json().to_string();
        let shown = format!("{}{json}{:?}", loaded.report.render(true), loaded.report);
        assert!(!shown.contains("horse"), "{}", path.display());
        assert!(!shown.contains("ghp_0123"), "{}", path.display());
    }
    let Loaded { plan, .. } = good("everything");
    let shown = format!("{plan:?}");
    assert!(!shown.contains("the key") && !shown.contains("t-1234"), "{shown}");
}

#[test]
fn the_wrong_files_show_every_code_about_manifests() {
    let mut shown = BTreeSet::new();
    for path in wrong_files() {
        shown.extend(load_wrong(&path).report.problems.iter().map(|it| it.code));
    }
    let about_manifests = |code: &&Code| {
        let group = &code.as_str()[..4];
        ["PB01", "PB02", "PB03", "PB07"].contains(&group)
    };
    let missing: Vec<&Code> =
        Code::ALL.iter().filter(about_manifests).filter(|it| !shown.contains(it)).collect();
    assert!(missing.is_empty(), "no wrong file for {missing:?}");
}

/// Each page has an example that shows its code, and repairs that do not.
#[test]
fn the_pages_tell_the_truth() {
    let mut examples = 0;
    for &code in Code::ALL {
        let page = code.page();
        let (before, repair) = page.split_once("\n## How to fix it\n").unwrap();
        for (is_example, part) in [(true, before), (false, repair)] {
            for (name, text) in fences(part) {
                let dir = Path::new(FOLDER).join("plugins");
                let report = load_text(name, text, &dir, &around()).report;
                let found: Vec<Code> = report.problems.iter().map(|it| it.code).collect();
                assert_eq!(found.contains(&code), is_example, "{code}:\n{}", report.render(false));
                assert!(is_example || !report.has_errors(), "{code}:\n{}", report.render(false));
                examples += 1;
            }
        }
    }
    assert!(40 < examples, "only {examples} examples");
}

/// The file's name and text of each fence that begins with "```toml NAME".
fn fences(page: &str) -> impl Iterator<Item = (&str, &str)> {
    page.split("```toml ").skip(1).map(|rest| {
        let (name, rest) = rest.split_once('\n').unwrap();
        (name, rest.split_once("```").unwrap().0)
    })
}

fn good(name: &str) -> Loaded {
    let mut around = around();
    let credentials = std::path::absolute("tests/manifests/files/credentials").unwrap();
    let credentials = credentials.to_str().unwrap().to_owned();
    around.env.insert("CREDENTIALS_DIRECTORY".to_owned(), credentials);
    let path = Path::new(FOLDER).join("good").join(format!("{name}.toml"));
    let loaded = load_file_with(path, &around);
    assert!(!loaded.report.has_errors(), "{}", loaded.report.render(false));
    assert_eq!(loaded.invalid, []);
    loaded
}

fn plugin<'a>(loaded: &'a Loaded, name: &str) -> &'a PluginPlan {
    loaded.plan.plugins.iter().find(|it| it.name == name).unwrap()
}

#[test]
fn the_smallest_file_lists_the_tools_and_grants_nothing_else() {
    let loaded = good("smallest");
    let hello = plugin(&loaded, "hello");
    let folder = std::path::absolute("tests/manifests/good/../plugins/hello").unwrap();
    assert_eq!(hello.command, [folder.join("bin/hello").to_str().unwrap()]);
    assert_eq!(hello.dir, folder);
    assert_eq!(hello.identity, Some(("acme.hello".to_owned(), "1.0.0".to_owned())));
    assert!(!hello.discover && hello.enabled);
    assert_eq!(hello.tools.len(), 1);
    let tool = &hello.tools[0];
    assert_eq!((tool.name.as_str(), tool.effect, tool.idempotent), ("greet", Effect::Read, true));
    assert_eq!(tool.input_schema["required"], serde_json::json!(["who"]));
    assert_eq!(hello.grant_tools, ["greet"]);
    assert!(hello.grant_scopes.is_empty() && hello.secrets.is_empty());
    assert_eq!(hello.env.keys().collect::<Vec<_>>(), ["HOME", "LANG", "PATH"]);
    assert_eq!(hello.config, serde_json::json!({}));
    let plain = PluginPlan::new("hello", Vec::new(), "/");
    assert_eq!((&hello.limits, &hello.timeouts), (&plain.limits, &plain.timeouts));
    assert_eq!((&hello.restart, &hello.idle), (&plain.restart, &plain.idle));
    assert_eq!((hello.approve, &hello.degraded), (plain.approve, &plain.degraded));
    // Said once: there is no sandbox.
    let codes: Vec<Code> = loaded.report.problems.iter().map(|it| it.code).collect();
    assert_eq!(codes, [Code::PB0703]);
}

#[test]
fn everything_that_can_be_written_arrives_in_the_plan() {
    let loaded = good("everything");
    let names: Vec<&str> = loaded.plan.plugins.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["geocode", "tickets", "vault"], "in the order of the file");

    let geocode = plugin(&loaded, "geocode");
    assert_eq!(geocode.prefix.as_deref(), Some("geo"));
    assert_eq!(geocode.grant_tools, ["lookup"], "only what is granted");
    let tools: Vec<&str> = geocode.tools.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(tools, ["lookup", "save_place"], "the others are known, for the handshake");
    assert!(geocode.tools[0].output_schema.is_some());
    assert_eq!(geocode.grant_scopes, ["kv.get", "kv.put"], "a pattern means what is asked for");
    let later = loaded.report.problems.iter().filter(|it| it.code == Code::PB0114);
    let later: Vec<&str> = later.map(|it| it.message.as_str()).collect();
    assert_eq!(later, ["`control` is planned and has no effect yet"], "and what is granted works");
    let names: Vec<_> = geocode.env.keys().collect();
    assert_eq!(names, ["GEOCODE_REGION", "HOME", "LANG", "PATH", "PLUGBAY_STATE"]);
    assert_eq!(geocode.env["PLUGBAY_STATE"], "/var/lib/plugbay/geocode");
    assert_eq!(geocode.secrets["GEOCODE_KEY"], Secret("the key".to_owned()), "without a newline");
    let config = serde_json::json!({
        "region": "no", "layers": ["streets", "rail"], "since": "2026-01-31",
        "limits": { "results": 5, "radius_km": 2.5 },
    });
    assert_eq!(geocode.config, config);
    let limits = &geocode.limits;
    assert_eq!((limits.frame_bytes, limits.result_bytes), (1 << 20, 256 << 10));
    assert_eq!((limits.concurrency, limits.queue), (2, 32), "the plugin's own word wins");
    assert_eq!(limits.calls_per_minute, Some(120));
    assert_eq!(limits.stderr_bytes_per_second, 64 << 10);
    assert_eq!((limits.memory_bytes, limits.cpu_percent), (Some(128 << 20), Some(100)));
    assert_eq!((limits.processes, limits.open_files), (Some(32), Some(256)));
    assert_eq!(limits.file_bytes, Some(100 << 20));
    let sandbox = &geocode.sandbox;
    assert_eq!((sandbox.level, sandbox.if_missing), (Level::Standard, IfMissing::Warn));
    assert_eq!(sandbox.prefer, [Item::Memory, Item::Cpu]);
    assert!(
        sandbox.private_tmp
            && sandbox.network == Network::Hosts(vec!["api.geocode.example:443".parse().unwrap()])
    );
    let path = "/var/lib/plugbay/geocode".into();
    assert_eq!(sandbox.files, [FileGrant { path, write: true, make: true }]);
    let times = &geocode.timeouts;
    let seconds = Duration::from_secs;
    assert_eq!((times.hello, times.activate), (seconds(10), seconds(20)));
    assert_eq!((times.call_idle, times.call), (seconds(45), seconds(600)));
    assert_eq!((times.cancel_grace, times.drain), (seconds(2), seconds(15)));
    let stop = (times.exit_grace, times.eof_grace, times.term_grace);
    assert_eq!(stop, (seconds(10), seconds(2), seconds(4)), "16 s in all");
    let restart = &geocode.restart;
    assert_eq!((restart.when, restart.jitter), (RestartWhen::OnFailure, 0.2));
    assert_eq!((restart.first, restart.max), (Duration::from_millis(250), seconds(30)));
    assert_eq!((restart.budget, restart.within), (5, seconds(600)));
    assert!(geocode.idle.start_at_boot);
    assert_eq!(geocode.idle.stop_after, None);
    assert_eq!(geocode.approve.write, Approval::Ask);

    let tickets = plugin(&loaded, "tickets");
    assert_eq!(tickets.command[1..], ["--project", "x"]);
    assert!(tickets.discover && tickets.tools.is_empty() && tickets.identity.is_none());
    assert_eq!(tickets.grant_tools, ["search_*", "get_ticket"]);
    let effects: BTreeMap<&str, Effect> =
        tickets.effects.iter().map(|(pattern, effect)| (pattern.as_str(), *effect)).collect();
    assert_eq!(effects.len(), 3);
    assert_eq!(tickets.effects[0].0, "get_ticket", "a name before a pattern");
    assert_eq!(tickets.effects[2].0, "*", "the widest pattern last");
    assert_eq!(tickets.secrets["TICKETS_TOKEN"], Secret("t-1234".to_owned()));
    assert_eq!(tickets.secrets["OTHER"], Secret("from systemd".to_owned()));
    assert_eq!(tickets.approve.write, Approval::Deny);
    let sandbox = &tickets.sandbox;
    assert_eq!((sandbox.level, &sandbox.network), (Level::Strict, &Network::None));
    assert!(sandbox.files.is_empty() && !tickets.env.contains_key("PLUGBAY_STATE"));

    let vault = plugin(&loaded, "vault");
    assert!(!vault.enabled && vault.secrets.is_empty(), "what is off is handed nothing");
}

/// `${workspace}` is the folder of the file that grants it, and `${state}` has a place
/// also if nobody says which.
#[test]
fn variables_in_paths_are_folders() {
    let grant = |path: &str| {
        let text = format!(
            "manifest = 1\n[plugins.p]\ncommand = [\"/bin/true\"]\n[plugins.p.grant]\n\
             fs = [{{ path = \"{path}\", access = \"read\" }}]\n"
        );
        load_text("plugbay.toml", &text, Path::new("/srv/agent"), &around())
    };
    for (path, expected, make) in [
        ("${workspace}", "/srv/agent", false),
        ("${workspace}/data/x", "/srv/agent/data/x", false),
        ("${state}", "/home/ada/.local/state/plugbay/p", true),
        ("${state}/cache", "/home/ada/.local/state/plugbay/p/cache", true),
        ("/srv/maps", "/srv/maps", false),
    ] {
        let loaded = grant(path);
        let path = PathBuf::from(expected);
        let files = &plugin(&loaded, "p").sandbox.files;
        assert_eq!(*files, [FileGrant { path, write: false, make }]);
    }
}

/// What a digest stands for follows from the command alone. An author's file is not covered,
/// so an option of the interpreter that it names is a fault.
#[test]
fn a_digest_stands_for_one_file_of_the_command() {
    let digest = format!("sha256:{}", "0A".repeat(32));
    let load = |rest: &str| {
        let text = format!("manifest = 1\n[plugins.p]\ndigest = \"{digest}\"\n{rest}\n");
        load_text("plugbay.toml", &text, Path::new(FOLDER), &around())
    };
    for (command, word) in [("[\"/bin/true\"]", 0), ("[\"/bin/sh\", \"-e\", \"run\"]", 2)] {
        let loaded = load(&format!("command = {command}"));
        let found = plugin(&loaded, "p").digest.expect("it has one");
        assert_eq!((found.sha256, found.word), ([10; 32], word), "{command}");
    }
    let dir = tempfile::tempdir().unwrap();
    for (command, expected) in
        [("[\"/bin/sh\", \"run\"]", None), ("[\"/bin/sh\", \"-e\", \"run\"]", Some("PB0518"))]
    {
        let text = format!(
            "manifest = 1\n[plugin]\nid = \"x.p\"\nversion = \"1.0.0\"\n[run]\ncommand = {command}\n"
        );
        fs::write(dir.path().join("plugin.toml"), text).unwrap();
        let loaded = load(&format!("from = \"{}\"", dir.path().display()));
        let errors = loaded.report.problems.iter().filter(|it| it.severity == Severity::Error);
        let codes: Vec<&str> = errors.map(|it| it.code.as_str()).collect();
        assert_eq!(codes, expected.into_iter().collect::<Vec<_>>(), "{command}");
    }
}

#[test]
fn what_is_not_enforced_is_shown_with_the_plugin() {
    let loaded = good("everything");
    let geocode = &plugin(&loaded, "geocode").degraded;
    insta::assert_snapshot!("degraded", geocode.join("\n"));
    let ceilings =
        Ceilings { memory_bytes: Some(2 << 30), cpu_percent: Some(150), processes: Some(256) };
    assert_eq!(loaded.plan.ceilings, ceilings);
    let tickets = &plugin(&loaded, "tickets").degraded;
    assert!(!tickets.iter().any(|it| it.starts_with("grant.net")), "{tickets:?}");
    // Each is warned of once, however many plugins it holds for.
    let overflow = loaded.report.problems.iter().filter(|it| it.message.contains("overflow"));
    assert_eq!(overflow.count(), 1);
    // Who has no sandbox is not counted to the others.
    let bare = load_wrong(&Path::new(FOLDER).join("limits-not-enforced.toml"));
    let hello = &plugin(&bare, "hello").degraded;
    for words in ["host.memory = 2GiB ", "host.cpu = 150% "] {
        assert!(hello.iter().any(|it| it.starts_with(words)), "{hello:?}");
    }
}

#[test]
fn a_folder_of_plugins_runs_under_safe_rules() {
    let loaded = load_folder_with(Path::new(FOLDER).join("plugins"), &around());
    let names: Vec<&str> = loaded.plan.plugins.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["geocode", "hello", "places"]);
    let invalid: Vec<&str> = loaded.invalid.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(invalid, ["broken", "vault"], "a fault, and a secret that nobody gives");
    let geocode = plugin(&loaded, "geocode");
    assert!(geocode.grant_scopes.is_empty() && geocode.secrets.is_empty());
    assert!(!geocode.env.contains_key("GEOCODE_REGION"), "asked for, and not granted");
    assert_eq!(geocode.grant_tools, ["save_place"], "`lookup` is also a tool of `places`");
    insta::assert_snapshot!("folder", loaded.report.render(false));
}

#[test]
fn a_folder_may_be_one_plugin_or_none() {
    let one = load_folder_with(Path::new(FOLDER).join("plugins/hello"), &around());
    assert_eq!(one.plan.plugins.len(), 1);
    for (folder, code) in [("plugins/empty", Code::PB0110), ("gone", Code::PB0110)] {
        let none = load_folder_with(Path::new(FOLDER).join(folder), &around());
        assert!(none.plan.plugins.is_empty());
        let codes: Vec<Code> = none.report.problems.iter().map(|it| it.code).collect();
        assert_eq!(codes, [code], "{folder}");
    }
}

#[test]
fn a_bare_command_is_found_and_granted_little() {
    let dir = Path::new(FOLDER).join("plugins/hello");
    let dir = std::path::absolute(dir).unwrap();
    let argv = ["./bin/hello".to_owned(), "--loud".to_owned()];
    let plan = manifest::command_with("hello", &argv, &dir, &around()).unwrap();
    assert_eq!(plan.command, [dir.join("bin/hello").to_str().unwrap(), "--loud"]);
    assert!(plan.discover && plan.grant_scopes.is_empty() && plan.secrets.is_empty());
    assert_eq!(plan.env.keys().collect::<Vec<_>>(), ["HOME", "LANG", "PATH"]);

    #[rustfmt::skip]
    let table: [(&str, &[&str], Code); 5] = [
        ("hello",    &[],                    Code::PB0120),
        ("hello",    &[""],                  Code::PB0120),
        ("hello",    &["./bin/gone"],        Code::PB0120),
        ("hello",    &["./plugin.toml"],     Code::PB0121),
        ("he llo",   &["./bin/hello"],       Code::PB0107),
    ];
    for (name, argv, code) in table {
        let argv: Vec<String> = argv.iter().map(|it| (*it).to_owned()).collect();
        let problem = manifest::command_with(name, &argv, &dir, &around()).unwrap_err();
        assert_eq!(problem.code, code, "{argv:?}");
    }
}

#[test]
fn a_file_that_is_not_there_is_a_problem_like_any_other() {
    let loaded = load_file_with("tests/manifests/no-such-file.toml", &around());
    assert_eq!(
        loaded.report.render(false),
        "error[PB0110]: cannot read `tests/manifests/no-such-file.toml`: there is no such file or \
         folder\n"
    );
}

#[test]
fn other_bytes_than_text_are_a_problem_like_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plugbay.toml");
    fs::write(&path, b"manifest = 1\n# \xff\n").unwrap();
    let report = load_file_with(&path, &around()).report;
    assert_eq!(report.problems[0].code, Code::PB0101);
    assert!(report.problems[0].message.ends_with("is not UTF-8 text (line 2)"));
}

#[test]
fn a_switched_off_plugin_may_lack_its_program() {
    let text = "manifest = 1\n[plugins.gone]\ncommand = [\"./gone\"]\nenabled = false\n";
    let loaded = load_text("plugbay.toml", text, Path::new("/"), &around());
    assert!(!loaded.report.has_errors(), "{}", loaded.report.render(false));
    assert!(!plugin(&loaded, "gone").enabled);
    assert_eq!(loaded.report.count(Severity::Warning), 1);
}

#[test]
fn one_budget_of_calls_drags_the_other_along() {
    let times = |text: &str| {
        let text = format!(
            "manifest = 1\n[plugins.a]\ncommand = [\"true\"]\n[plugins.a.timeouts]\n{text}"
        );
        let loaded = load_text("plugbay.toml", &text, Path::new("/"), &around());
        let times = &plugin(&loaded, "a").timeouts;
        (times.call_idle.as_secs(), times.call.as_secs())
    };
    assert_eq!(times(""), (30, 600));
    assert_eq!(times("call = \"20m\""), (1200, 1200), "no total below the silence");
    assert_eq!(times("call_max = \"5s\""), (5, 5), "no silence above the total");
    assert_eq!(times("call = \"2s\"\ncall_max = \"5s\""), (2, 5));
}

/// The plugin still provides it, and the engine must not take that for a lie.
#[test]
fn a_withheld_tool_is_known_and_not_granted() {
    let loaded = load_wrong(&Path::new(FOLDER).join("schema-invalid.toml"));
    let hello = plugin(&loaded, "hello");
    assert_eq!(hello.tools[0].name, "greet");
    assert!(hello.grant_tools.is_empty());
    let loaded = load_wrong(&Path::new(FOLDER).join("prefix-too-long.toml"));
    let places = plugin(&loaded, "places");
    assert_eq!((places.tools.len(), places.grant_tools.as_slice()), (2, &["lookup".into()][..]));
}

#[test]
fn a_switched_off_plugin_is_not_refused() {
    let text = "manifest = 1\n[defaults.sandbox]\nlevel = \"none\"\nif_missing = \"refuse\"\n\
                [defaults.limits]\nopen_files = 64\n[plugins.hello]\nfrom = \"hello\"\nenabled = false\n";
    let dir = Path::new(FOLDER).join("plugins");
    let loaded = load_text("plugbay.toml", text, &dir, &around());
    assert_eq!(loaded.invalid, []);
    assert!(plugin(&loaded, "hello").dir.is_absolute());
    assert_eq!(plugin(&loaded, "hello").degraded.len(), 1);
}

/// Neither a name nor a path can steer the terminal of who reads about it.
#[test]
fn control_characters_reach_no_terminal() {
    let text = "manifest = 1\n[plugins.\"a\\u001b[31m\"]\nfrom = \"h\\u001b[31m\"\n";
    let loaded = load_text("plug\u{1b}bay.toml", text, Path::new(FOLDER), &around());
    let why = &loaded.invalid[0];
    let shown = format!("{}{}{}", loaded.report.render(false), why.name, why.why);
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
}

/// A fault in `[defaults]` is everybody's: a limit must not be missing in silence.
#[test]
fn a_fault_outside_of_the_plugins_stops_all_of_them() {
    let text = "manifest = 1\n[defaults.limits]\nqueu = 1\n[plugins.hello]\nfrom = \"hello\"\n";
    let dir = Path::new(FOLDER).join("plugins");
    let loaded = load_text("plugbay.toml", text, &dir, &around());
    assert!(loaded.plan.plugins.is_empty());
    assert_eq!(loaded.invalid.len(), 1);
    assert_eq!(loaded.invalid[0].why, "the file has a fault outside of its plugins' tables");
}

/// The value of a secret stays out of every quotation, wherever the fault is.
#[test]
fn a_line_with_a_secret_is_not_quoted_with_it() {
    for line in [
        "KEY = \"horse\"",
        "KEY = { value = \"horse\", files = \"horse\" }",
        "KEY = horse",
        "KEY = \"horse",
        "KEY = '''\nhorse\n'''",
        "KEY = [\"horse\"]",
        "KEY = { file = \"/nowhere\", pasword = \"horse\" }",
        "KEY = { password = { of = \"horse\" } }",
        "KEY = { env = \"KEY\" } \"horse\"",
    ] {
        let text = format!(
            "manifest = 1\n[plugins.vault]\nfrom = \"vault\"\n[plugins.vault.secrets]\n{line}\n"
        );
        let dir = Path::new(FOLDER).join("plugins");
        let report = load_text("plugbay.toml", &text, &dir, &around()).report;
        assert!(report.has_errors(), "{line}");
        let shown = format!("{}{}{report:?}", report.render(false), report.to_json());
        assert!(!shown.contains("horse"), "{line}:\n{}", report.render(false));
    }
}

mod schemas {
    use super::*;

    fn validator(schema: &serde_json::Value) -> jsonschema::Validator {
        jsonschema::draft202012::meta::validate(schema).unwrap();
        jsonschema::draft202012::options().offline().build(schema).unwrap()
    }

    fn as_json(path: &Path) -> serde_json::Value {
        let table: toml::Table = fs::read_to_string(path).unwrap().parse().unwrap();
        serde_json::to_value(table).unwrap()
    }

    /// What is checked in is what the structs say. With `UPDATE_SCHEMAS=1` the
    /// files are written instead.
    #[test]
    fn the_files_are_current() {
        for (name, schema) in [("plugin", schema::plugin()), ("plugbay", schema::host())] {
            let path = Path::new("schema").join(format!("{name}.json"));
            let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
            if std::env::var_os("UPDATE_SCHEMAS").is_some() {
                fs::write(&path, &text).unwrap();
            }
            assert_eq!(fs::read_to_string(&path).unwrap(), text, "run with UPDATE_SCHEMAS=1");
        }
    }

    #[test]
    fn what_loads_is_valid_against_them() {
        let host = validator(&schema::host());
        for name in ["smallest", "everything"] {
            let json = as_json(&Path::new(FOLDER).join("good").join(format!("{name}.toml")));
            let errors: Vec<String> = host.iter_errors(&json).map(|it| it.to_string()).collect();
            assert_eq!(errors, [""; 0], "{name}");
        }
        let plugin = validator(&schema::plugin());
        for name in ["hello", "geocode", "places", "vault"] {
            let json = as_json(&Path::new(FOLDER).join("plugins").join(name).join("plugin.toml"));
            let errors: Vec<String> = plugin.iter_errors(&json).map(|it| it.to_string()).collect();
            assert_eq!(errors, [""; 0], "{name}");
        }
    }

    /// An editor sees the faults of form that a load would find.
    #[test]
    fn what_does_not_load_is_not_valid_either() {
        let host = validator(&schema::host());
        for name in [
            "key-unknown",
            "table-unknown",
            "duration-without-unit",
            "size-in-megabytes",
            "number-as-text",
            "switch-as-text",
            "command-as-shell-line",
            "version-missing",
            "version-newer",
            "level-unknown",
            "secret-from-two-places",
            "secret-in-the-file",
            "plugin-name-with-a-dot",
        ] {
            let json = as_json(&Path::new(FOLDER).join(format!("{name}.toml")));
            assert!(!host.is_valid(&json), "{name}");
        }
    }

    /// Each key says what it means: editors show it.
    #[test]
    fn every_key_has_a_description() {
        fn walk(value: &serde_json::Value, path: &str, bare: &mut Vec<String>) {
            let Some(map) = value.as_object() else { return };
            let keys = map.get("properties").and_then(|it| it.as_object()).into_iter().flatten();
            for (name, key) in keys {
                if key.get("description").is_none() {
                    bare.push(format!("{path}.{name}"));
                }
            }
            for (name, inner) in map {
                walk(inner, &format!("{path}.{name}"), bare);
            }
        }
        for schema in [schema::host(), schema::plugin()] {
            let mut bare = Vec::new();
            walk(&schema, "", &mut bare);
            assert_eq!(bare, [""; 0]);
        }
    }
}

mod anything {
    use proptest::prelude::*;

    use super::*;

    /// Pieces of real manifests, so that random files get past the parser.
    #[rustfmt::skip]
    fn line() -> impl Strategy<Value = String> {
        let keys = prop::sample::select(vec![
            "manifest", "from", "command", "prefix", "memory", "call", "tools", "net", "fs", "to",
            "path", "access", "name", "kind", "input", "effect", "file", "env", "id", "version",
            "budget", "jitter", "stop", "enabled", "config", "secrets", "plugins", "\"a b\"", "x.y",
        ]);
        let values = prop::sample::select(vec![
            "1", "\"30s\"", "\"\"", "true", "[]", "{}", "[\"*\"]", "\"./hello\"", "nan", "-1",
            "1979-05-27", "{ file = \"/\" }", "{ env = \"HOME\" }", "[{ to = \"a:1\" }]", "\"é\"",
            "[[[]]]", "{ type = \"object\" }", "0x7fffffffffffffffff", "\"ghp_0123456789abcdefghij\"",
            "'''\n\n'''", "\"${state}\"", "\"1GiB\"", "99999999999999999999",
        ]);
        let tables = prop::sample::select(vec![
            "[plugins.hello]", "[plugins.é]", "[plugins.hello.grant]", "[plugins.hello.secrets]",
            "[plugins]", "[[plugins]]", "[plugins.hello.limits]", "[defaults.timeouts]", "[host]",
            "[plugin]", "[run]", "[[provides]]", "[asks]", "[[asks.secret]]", "[needs]",
            "[plugins.hello.config]", "[plugins.hello.effects]", "[run.on.linux]",
        ]);
        prop_oneof![
            3 => (keys, values).prop_map(|(key, value)| format!("{key} = {value}")),
            2 => tables.prop_map(str::to_owned),
            1 => "\\PC{0,20}",
        ]
    }

    fn check(text: &str) {
        for name in ["plugbay.toml", "plugin.toml", "other.toml"] {
            let dir = Path::new(FOLDER).join("plugins");
            let report = load_text(name, text, &dir, &around()).report;
            let shown = [report.render(false), report.render(true), report.to_json().to_string()];
            assert!(shown.iter().all(|it| !it.contains("ghp_0123")), "{}", shown[0]);
            for problem in &report.problems {
                assert!(!problem.message.is_empty());
                for place in problem.at.iter().chain(&problem.also) {
                    assert!(1 <= place.line && 1 <= place.column);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

        #[test]
        fn random_manifests_never_panic(lines in prop::collection::vec(line(), 0..20)) {
            check(&format!("manifest = 1\n{}\n", lines.join("\n")));
            check(&lines.join("\r\n"));
        }

        #[test]
        fn random_text_never_panics(text in "\\PC{0,200}|[\\x00-\\x7f]{0,200}") {
            check(&text);
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("plugbay.toml");
            fs::write(&path, &bytes).unwrap();
            let report = load_file_with(&path, &around()).report;
            prop_assert!(!report.problems.is_empty() && !report.render(false).is_empty());
        }
    }
}
