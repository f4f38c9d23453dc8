//! Every `--help`, in one snapshot that is read as prose.

use crate::stage::run;

#[test]
fn help() {
    let mut all = String::new();
    let commands = [
        "",
        "run",
        "ps",
        "why",
        "logs",
        "restart",
        "stop",
        "resume",
        "limits",
        "limits show",
        "limits set",
        "limits test",
        "doctor",
        "call",
        "tools",
        "check",
        "new",
        "explain",
        "schema",
        "completions",
        "man",
    ];
    for command in commands {
        let words = command.split_whitespace().chain(["--help"]);
        let ended = run(words).with(0, &[]);
        assert_eq!(ended.stderr, "");
        all.push_str(&format!("==== plugbay {command}\n{}\n", ended.stdout));
    }
    insta::assert_snapshot!(all);
}
