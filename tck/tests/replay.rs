//! A fault is recorded, held again, and made short.

mod terminal;

use std::{fs, path::Path};

use self::terminal::{ROOT, tck, ungated};

const RIGHT: &str = "tck/fixtures/reference.py";

/// The reference, but it takes CANCEL of what was never a call for a violation [R-CA-11].
fn wrong() -> String {
    let right = fs::read_to_string(Path::new(ROOT).join(RIGHT)).unwrap();
    let late = "        \"\"\"A frame that crossed our END.\"\"\"\n";
    assert_eq!(right.matches(late).count(), 1);
    let closes = "        if id > self.highest:\n            raise Violation(\"bad_id\")\n";
    right.replace(late, &format!("{late}{closes}"))
}

#[test]
fn a_recorded_walk_is_held_again_and_made_short() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (program, record, short) = (at("wrong.py"), at("record.jsonl"), at("short.jsonl"));
    fs::write(&program, wrong()).unwrap();
    let wrong = ["--", "python3", "-B", &program];
    let right = ["--", "python3", "-B", RIGHT];
    let ask = |args: &[&str], subject: &[&str], code| {
        let ended = tck(&[args, subject].concat());
        assert_eq!(ended.code, Some(code), "{args:?}: {}{}", ended.out, ended.err);
        ended
    };
    let run = ["sdk", "--check", "RB-06", "--seed", "7", "--time-scale", "3", "--record", &record];
    ask(&run, &wrong, 1);
    // Nobody else may read what was said.
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&record).unwrap());
    assert_eq!(mode & 0o077, 0);

    let again = ["replay", "--time-scale", "3"];
    let ended = ask(&[&again[..], &[&record]].concat(), &wrong, 0);
    assert!(ended.out.starts_with("RB-06 answers as it did\n"), "{}", ended.out);
    // Who does not have the fault is told from who has.
    let ended = ask(&[&again[..], &[&record]].concat(), &right, 1);
    assert!(ended.out.contains("RB-06 answers otherwise, line "), "{}", ended.out);

    let shrink = ["shrink", "--times", "1", "--time-scale", "1", "--out", &short, &record];
    let ended = ask(&shrink, &wrong, 0);
    // Alone if the fence after it found out, with one that waits for an END if that did.
    let (told, steps) = ended.out.split_once(" of 400 steps are enough:\n").unwrap();
    assert!(["1", "2"].contains(&told), "{}", ended.out);
    assert!(steps.contains("  1  cancel #"), "{}", ended.out);
    let ended = ask(&[&again[..], &[&short]].concat(), &wrong, 0);
    assert!(ended.out.contains("expected  "), "{}", ended.out);
    let ended = ask(&[&again[..], &[&short]].concat(), &right, 1);
    assert!(ended.out.contains("recorded  CLOSE #0"), "{}", ended.out);
    let ended = ask(&["shrink", "--out", &at("none"), &short], &right, 1);
    assert!(ended.out.contains("does not fail that way now"), "{}", ended.out);
    assert!(!Path::new(&at("none")).exists());
    ask(&["replay", &short], &["--", "./no-such-program"], 3);
}

#[test]
fn what_fails_is_recorded_whole_and_what_is_no_record_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (program, record) = (at("greet.py"), at("record.jsonl"));
    fs::write(&program, ungated()).unwrap();
    let subject = ["--", "python3", "-B", &program];
    let run = ["plugin", "--group", "IG", "--json", "--record", &record];
    let ended = tck(&[&run[..], &subject].concat());
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    let text = fs::read_to_string(&record).unwrap();
    let recorded = text.lines().filter(|line| line.starts_with("{\"record\":1,")).count();
    assert_eq!(ended.json()["summary"]["must"]["fail"], recorded);
    let ended = tck(&[&["replay", "--check", "IG-01", &record], &subject[..]].concat());
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    // Another answer, in a record that was tampered with, is a difference at its line.
    let bad_body =
        text.replace("696e76616c69645f617267756d656e74", "696e76616c69645f617267756d656e75");
    assert_ne!(text, bad_body);
    fs::write(&record, bad_body).unwrap();
    let ended = tck(&[&["replay", "--check", "IG-01", &record], &subject[..]].concat());
    assert_eq!(ended.code, Some(1), "{}{}", ended.out, ended.err);
    assert!(ended.out.contains("invalid_argumenu"), "{}", ended.out);

    for (args, why) in [
        (&["replay", "README.md"][..], "README.md: line 1: "),
        (&["replay", "no-such-file"], "No such file"),
        (&["replay", "--check", "HS-01", &record], "has nothing of HS-01"),
        (&["shrink", &record], "holds no random walk"),
    ] {
        let ended = tck(&[args, &["--", "cat"]].concat());
        assert_eq!(ended.code, Some(2), "{args:?}: {}", ended.err);
        assert!(ended.err.contains(why), "{args:?}: {}", ended.err);
    }
}
