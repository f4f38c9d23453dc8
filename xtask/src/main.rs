//! All automation of this repository: `cargo xtask help`.

mod check;
mod demo;
mod mutants;
mod spec;
mod vectors;
mod vm;
mod zoo;

use std::{path::Path, process::ExitCode};

/// One thing that can be asked for. A task that fails says what is wrong, a line each.
struct Task {
    name: &'static str,
    about: &'static str,
    run: fn(root: &Path, arguments: &[String]) -> Result<(), Vec<String>>,
}

const TASKS: &[Task] = &[
    Task {
        name: "demo",
        about: "build the example plugins and run an agent loop on them",
        run: demo::run,
    },
    Task {
        name: "check",
        about: "format, lints, documentation, purity and a short fuzz; the tests come apart",
        run: check::run,
    },
    Task {
        name: "mutants",
        about: "take each guard of a mutants.toml away and expect its test to fail",
        run: mutants::run,
    },
    Task {
        name: "spec",
        about: "check that sdk-spec keeps its own promises: ids, links, examples, the tutorial",
        run: spec::run,
    },
    Task {
        name: "vectors",
        about: "write sdk-spec/vectors and tck/vectors.jsonl; with --check compare instead, and try them on the protocol",
        run: vectors::run,
    },
    Task {
        name: "zoo",
        about: "judge plugins that each break one rule, and plugins that are odd and break none",
        run: zoo::run,
    },
    Task {
        name: "vm",
        about: "try the walls and the unit file in a guest with cgroup v2 and systemd",
        run: vm::run,
    },
];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "help".into());
    let arguments: Vec<String> = arguments.collect();
    let Some(task) = TASKS.iter().find(|task| task.name == name) else {
        println!("cargo xtask TASK\n");
        TASKS.iter().for_each(|task| println!("  {:10}{}", task.name, task.about));
        return ExitCode::from(if name == "help" { 0 } else { 2 });
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    match (task.run)(&root, &arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problems) => {
            problems.iter().for_each(|problem| eprintln!("{problem}"));
            eprintln!("{name}: {} problem(s)", problems.len());
            ExitCode::FAILURE
        }
    }
}
