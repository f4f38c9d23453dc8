//! What is told of a run: in every form, whatever came of it.

mod terminal;

use std::fs;

use plugbay_tck::{report::machine, run::Status};
use serde_json::Value;
use tempfile::TempDir;

use self::terminal::{tck, tck_in, ungated};

/// A folder with plugins that have a fault each, made of the one of the tutorial.
struct Subjects(TempDir);

impl Subjects {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.at(name), text).unwrap();
        self.at(name)
    }

    /// It serves before it is active.
    fn ungated(&self) -> String {
        self.write("greet.py", &ungated())
    }

    /// It greets once in its life, and then never again: nothing that needs a handshake works.
    fn shy(&self) -> String {
        let marker = self.at("marker");
        let text = format!(
            "if [ -e {marker} ]; then exit 1; fi; touch {marker}; exec python3 sdk-spec/tutorial/greet.py"
        );
        self.write("shy.sh", &text)
    }
}

#[track_caller]
fn conforms(report: &Value) {
    let schema: Value = serde_json::from_str(machine::SCHEMA).unwrap();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    // Of the two forms, the one that is meant, so that what is wrong can be read.
    let meant = if report.get("error").is_some() { "unfit" } else { "report" };
    let mut one = schema.clone();
    one["oneOf"] = serde_json::json!([{ "$ref": format!("#/$defs/{meant}") }]);
    let errors: Vec<String> = jsonschema::draft202012::new(&one)
        .unwrap()
        .iter_errors(report)
        .flat_map(|error| error.to_string().lines().take(3).map(str::to_owned).collect::<Vec<_>>())
        .collect();
    assert!(validator.is_valid(report), "{errors:#?}");
}

fn statuses(report: &Value) -> Vec<&str> {
    report["results"].as_array().unwrap().iter().map(|it| it["status"].as_str().unwrap()).collect()
}

#[test]
fn every_report_is_what_the_schema_says() {
    let subjects = Subjects::new();
    let (ungated, shy) = (subjects.ungated(), subjects.shy());
    let cases: [(&[&str], i32, &[&str]); 5] = [
        (&["--group", "HS", "--", "python3", "sdk-spec/tutorial/greet.py"], 0, &["pass"]),
        (&["--group", "IG", "--", "python3", &ungated], 1, &["fail", "pass"]),
        (&["--group", "IG", "--bodies", "--", "python3", &ungated], 1, &["fail"]),
        (&["--group", "ST", "--", "python3", "sdk-spec/tutorial/greet.py"], 0, &["n/a"]),
        (&["--group", "IG", "--", "sh", &shy], 1, &["blocked"]),
    ];
    for (args, code, due) in cases {
        let ended = tck(&[&["plugin", "--json"], args].concat());
        assert_eq!(ended.code, Some(code), "{args:?}: {}{}", ended.out, ended.err);
        let report = ended.json();
        conforms(&report);
        for status in due {
            assert!(statuses(&report).contains(status), "{status} in {:?}", statuses(&report));
        }
        let counted = |status: &str| {
            let of = |level: &str| report["summary"][level][status].as_u64().unwrap();
            of("must") + of("should")
        };
        for status in Status::ALL.map(Status::as_str) {
            let told = statuses(&report).iter().filter(|it| **it == status).count() as u64;
            assert_eq!(counted(status), told, "{status} in {args:?}");
        }
    }
    let ended = tck(&["plugin", "--json", "--", "true"]);
    assert_eq!(ended.code, Some(3));
    conforms(&ended.json());
    assert_eq!(ended.json()["error"]["kind"], "unfit");
}

#[test]
fn the_schema_can_be_printed_and_knows_every_status() {
    let ended = tck(&["schema"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), machine::SCHEMA));
    let schema = ended.json();
    let known = schema["$defs"]["status"]["enum"].as_array().unwrap();
    let all: Vec<Value> = Status::ALL.map(|it| it.as_str().into()).to_vec();
    assert_eq!(*known, all);
    for status in Status::ALL {
        assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
    }
    // A report that is not one is refused, so the tests above can fail.
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    for wrong in [serde_json::json!({}), serde_json::json!({"tck": "0", "error": {}})] {
        assert!(!validator.is_valid(&wrong), "{wrong}");
    }
}

#[test]
fn a_baseline_lets_pass_what_is_known_and_must_not_be_stale() {
    let subjects = Subjects::new();
    let ungated = subjects.ungated();
    let subject = ["--", "python3", &ungated];
    let written = subjects.at("written.toml");
    let ended =
        tck(&[&["plugin", "--group", "IG", "--write-baseline", &written], &subject[..]].concat());
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    let baseline = fs::read_to_string(&written).unwrap();
    assert!(baseline.contains("\nIG-01 = 'expected "), "{baseline}");
    assert!(!baseline.contains("IG-06"), "{baseline}");

    let (summary, junit) = (subjects.at("summary.md"), subjects.at("junit.xml"));
    let args = ["plugin", "--group", "IG", "--gh", "--junit", &junit, "--json", "--baseline"];
    let ended =
        tck_in(&[&args[..], &[&written], &subject].concat(), &[("GITHUB_STEP_SUMMARY", &summary)]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    let (notice, json) = ended.out.split_once("\n{").unwrap();
    assert!(notice.starts_with("::notice title=IG-01 "), "{notice}");
    let report: Value = serde_json::from_str(&format!("{{{json}")).unwrap();
    conforms(&report);
    assert!(statuses(&report).contains(&"xfail") && !statuses(&report).contains(&"fail"));
    assert_eq!(report["stale"], serde_json::json!([]));
    let summary = fs::read_to_string(summary).unwrap();
    assert!(
        summary.contains("| IG-01 | xfail |") && summary.contains("; known: expected "),
        "{summary}"
    );
    let junit = fs::read_to_string(junit).unwrap();
    assert!(junit.contains("<skipped message=\"xfail: expected "), "{junit}");
    let known = ["--baseline", &written];
    let ended = tck(&[&["plugin", "--group", "IG", "--tap"], &known[..], &subject].concat());
    assert!(ended.out.contains("not ok 1 - IG-01 "), "{}", ended.out);
    assert!(ended.out.contains(" # TODO expected "), "{}", ended.out);

    let stale = format!("{baseline}\n[IG-06]\nreason = \"soon\"\nissue = \"#7\"\n");
    let stale = subjects.write("stale.toml", &stale);
    let known = ["--baseline", &stale];
    let ended = tck(&[&["plugin", "--group", "IG", "--json"], &known[..], &subject].concat());
    assert_eq!(ended.code, Some(1), "{}{}", ended.out, ended.err);
    let report = ended.json();
    conforms(&report);
    assert_eq!(report["stale"], serde_json::json!(["IG-06"]));
    let ended = tck(&[&["plugin", "--group", "IG"], &known[..], &subject].concat());
    let told = "stale the baseline lists what passes; take out IG-06";
    assert!(ended.out.contains(told) && ended.out.contains("known to fail"), "{}", ended.out);

    // What the run would not try can be neither known nor stale.
    for (args, why) in [
        (&["plugin", "--group", "HS"][..], "lists IG-01, "),
        (
            &["plugin", "--group", "IG", "--skip", "IG-06"],
            "lists IG-06, which this run would not try",
        ),
    ] {
        let ended = tck(&[args, &known, &subject].concat());
        assert_eq!(ended.code, Some(2), "{}", ended.err);
        assert!(ended.err.contains(why), "{}", ended.err);
    }
    let unknown = subjects.write("unknown.toml", "XX-01 = \"a\"\n");
    let ended = tck(&[&["plugin", "--baseline", &unknown], &subject[..]].concat());
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.contains("XX-01 is no check"), "{}", ended.err);
}

#[test]
fn a_page_shows_each_fault_and_runs_nothing_that_a_plugin_says() {
    let subjects = Subjects::new();
    // A plugin that says in every place that it has what a page must not run.
    let evil = "<script>alert(1)</script><img src=x onerror=a> \" ' & ]]>";
    let right = ungated();
    let wrong = right.replace("example.greet", "<script>alert(1)</script>");
    assert_ne!(right, wrong);
    let shout = format!("import sys\nsys.stderr.write({evil:?} + chr(10))\nsys.stderr.flush()\n");
    let wrong = subjects.write("evil.py", &format!("{shout}{wrong}"));
    let page = subjects.at("page.html");
    let args = ["plugin", "--group", "IG", "--group", "HS", "--seed", "7", "--html", &page];
    let ended = tck(&[&args[..], &["--", "python3", &wrong, evil]].concat());
    assert_eq!(ended.code, Some(1), "{}{}", ended.out, ended.err);
    let page = fs::read_to_string(page).unwrap();

    assert!(page.contains("<h1>&lt;script&gt;alert(1)&lt;/script&gt; "), "{page}");
    assert!(page.contains("&lt;img src=x onerror=a&gt; &quot; &apos; &amp; ]]&gt;"), "{page}");
    // Only what the suite writes is markup: no tag but these, and nothing from elsewhere.
    let tags: std::collections::BTreeSet<&str> = page
        .split('<')
        .skip(1)
        .map(|it| it.split([' ', '>', '\n']).next().unwrap().trim_start_matches('/'))
        .collect();
    let known = "!doctype a b body br circle dd defs details dl dt g h1 h2 head html marker meta p \
                 path pre rect section small span style summary svg table td text title tr";
    let known: std::collections::BTreeSet<&str> = known.split_whitespace().collect();
    assert!(tags.is_subset(&known), "{:?}", tags.difference(&known).collect::<Vec<_>>());
    for outside in ["http:", "https:", "src=\"", "@import", "url(h"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("default-src 'none'") && page.contains("prefers-color-scheme: dark"));

    let from = page.find("<section id=\"IG-01\">").unwrap();
    let section = &page[from..from + page[from..].find("</section>").unwrap()];
    for part in
        ["<svg ", "<g class=\"differs\"><title>END ", "the first that differs", "expected</dt>"]
    {
        assert!(section.contains(part), "{part} in {section}");
    }
    assert_eq!(section.matches("class=\"differs\"").count(), 1);
    let again = "again\">plugbay-tck run --check IG-01 --seed 7 --verbose -- python3 ";
    assert!(section.contains(again), "{section}");
    assert!(!section.contains("Ada"), "a body without --bodies: {section}");
    // It is well-formed, so that no text has opened or closed anything.
    let mut open = Vec::new();
    for tag in page.split('<').skip(2).map(|it| it.split('>').next().unwrap()) {
        let name = tag.split([' ', '\n']).next().unwrap();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{tag}"),
            None if tag.ends_with('/') || ["meta", "br"].contains(&name) => {}
            None => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?}");
}
