//! `plugbay-tck vectors` as people use it: on the reference's codec, on one with a fault, and on
//! what does not answer.

mod terminal;

use std::{fs, path::Path};

use plugbay_tck::report::machine;

use self::terminal::{ROOT, tck, ungated};

const ADAPTER: [&str; 4] = ["--", "python3", "-B", "tck/fixtures/vectors.py"];

#[test]
fn the_reference_reads_every_vector_for_a_plugin() {
    let ended = tck(&[&["vectors", "--time-scale", "3"], &ADAPTER[..]].concat());
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    assert_eq!(ended.out, "120/120 vectors, 63 not applicable\n");
    let codec = ["vectors", "--codec", "--receiver", "plugin", "--json"];
    let ended = tck(&[&codec[..], &ADAPTER].concat());
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    let report = ended.json();
    let schema = serde_json::from_str(machine::SCHEMA).unwrap();
    assert!(jsonschema::draft202012::new(&schema).unwrap().is_valid(&report), "{report:#}");
    let ids: Vec<&str> =
        report["vectors"].as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert!(ids.contains(&"invalid/gap-missing") && !ids.contains(&"invalid/call-id-even"));
    assert_eq!(report["summary"]["n/a"], 0);
}

/// Each of these forgets one rule, and the vectors that are named after it must tell.
#[test]
fn a_codec_with_a_fault_fails_the_vectors_of_its_rule() {
    let faults = [
        (
            "if any(gap):",
            "if False:",
            &["gap-first-byte", "gap-last-byte", "unknown-frame-gap"][..],
        ),
        ("if unique and key in table:", "if False:", &["head-key-twice", "head-key-twice-nested"]),
        ("self.limits[\"frame\"]\n", "1 << 40\n", &["frame-too-large", "frame-too-large-by-1"]),
        (
            "Violation(\"bad_id\", \"used before\")",
            "Violation(\"bad_state\")",
            &["call-id-lower", "call-id-reused"],
        ),
        // And one that reads a valid frame as another.
        ("form.unpack_from(data, at)[0], at", "min(form.unpack_from(data, at)[0], 2**40), at", &[]),
    ];
    for (find, replace, due) in faults {
        let folder = tempfile::tempdir().unwrap();
        for name in ["reference.py", "vectors.py"] {
            let text = fs::read_to_string(Path::new(ROOT).join("tck/fixtures").join(name)).unwrap();
            let wrong = text.replacen(find, replace, 1);
            assert!(name == "vectors.py" || wrong != text, "there is no {find:?}");
            fs::write(folder.path().join(name), wrong).unwrap();
        }
        let adapter = folder.path().join("vectors.py");
        let ended = tck(&["vectors", "--json", "--", "python3", "-B", adapter.to_str().unwrap()]);
        assert_eq!(ended.code, Some(1), "{find}: {}{}", ended.out, ended.err);
        let report = ended.json();
        let all = report["vectors"].as_array().unwrap();
        let failed = all.iter().filter(|it| it["status"] == "fail");
        let failed: Vec<&str> = failed.map(|it| it["id"].as_str().unwrap()).collect();
        for name in due {
            assert!(failed.contains(&format!("invalid/{name}").as_str()), "{find}: {failed:?}");
        }
        if due.is_empty() {
            assert!(failed.contains(&"valid/call-largest-integer"), "{find}: {failed:?}");
        }
    }
}

#[test]
fn what_does_not_answer_is_told_apart() {
    let unfit_within = |scale: &str, subject: &[&str], seen: &str| {
        let ended = tck(&[&["vectors", "--time-scale", scale, "--"], subject].concat());
        assert_eq!(ended.code, Some(3), "{subject:?}: {}{}", ended.out, ended.err);
        assert!(ended.err.contains(seen), "{subject:?}: {}", ended.err);
    };
    let unfit = |subject: &[&str], seen: &str| unfit_within("1", subject, seen);
    unfit(&["cat"], "it wrote a line that is no answer: unknown field `eof`");
    unfit(&["true"], "it ended with exit code 0 instead of an answer");
    unfit(&["yes"], "it wrote a line that is no answer");
    // Waiting is all that is to be seen here, so it may be short.
    unfit_within("0.1", &["sh", "-c", "exec sleep 60"], "it did not answer in 1 s");
    unfit(&["sh", "-c", "exec cat /dev/zero"], "bytes and no end of a line");
    // A plugin is no receiver that answers lines.
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("greet.py");
    fs::write(&plugin, ungated()).unwrap();
    unfit(&["python3", plugin.to_str().unwrap()], "instead of an answer");
    unfit(&["./no-such-program"], "No such file");
    let skips = "sed -u 's/.*\"id\":\"\\([^\"]*\\)\".*/{\"id\":\"\\1\",\"skip\":\"no\"}/'";
    unfit(&["sh", "-c", skips], "it skips all that it is asked");
    // Who stops in the middle fails from there on.
    let two = "sed -u 's/.*\"id\":\"\\([^\"]*\\)\".*/{\"id\":\"\\1\",\"close\":\"x\"}/;2q'";
    let ended = tck(&["vectors", "--json", "--", "sh", "-c", two]);
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    let report = ended.json();
    let reason = |at: usize| report["vectors"][at]["reason"].as_str().unwrap();
    assert!(reason(1).starts_with("expected "), "{}", reason(1));
    assert!(reason(2).contains("instead of an answer"), "{}", reason(2));
    assert!(reason(3).starts_with("not asked, because of "), "{}", reason(3));
    for args in [&["--vector", "valid/none"][..], &["--receiver", "both"]] {
        let ended = tck(&[&["vectors"], args, &["--", "cat"]].concat());
        assert_eq!(ended.code, Some(2), "{}", ended.err);
    }
}
