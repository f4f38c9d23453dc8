//! `plugbay check`: every problem of the manifests, in its place.

use plugbay_supervisor::{
    digest_of,
    manifest::{Loaded, Severity},
};

use crate::{
    args::Check,
    exit::Exit,
    render::{BAD, GOOD, Screen, Status, WARN, one_line},
    source::{self, Source},
    trouble::Outcome,
};

pub(super) fn check(args: &Check, screen: &Screen) -> Outcome {
    let config = args.path.clone().or_else(|| args.config.clone());
    let path = Source { config, ..Source::default() }.path()?;
    let mut loaded = source::load(&path);
    loaded.compare();
    let exit = if loaded.report.has_errors() { Exit::Bad } else { Exit::Fine };
    if args.json {
        return screen.json(&loaded.report.to_json()).map(|()| exit);
    }
    screen.report(&loaded.report);
    if args.digests {
        screen.data(&digests(&loaded))?;
    }
    let style = match exit {
        Exit::Fine if loaded.report.count(Severity::Warning) == 0 => GOOD,
        Exit::Fine => WARN,
        _ => BAD,
    };
    screen.status(&Status::new(style, "Checked", summary(&path.display().to_string(), &loaded)));
    Ok(exit)
}

/// What would accept the plugins' programs as they are now.
fn digests(loaded: &Loaded) -> String {
    let lines = loaded.plan.plugins.iter().map(|plan| match digest_of(plan) {
        Ok((file, digest)) => {
            let file = one_line(&file.display().to_string());
            format!("[plugins.{}]\ndigest = \"{digest}\"   # {file}\n", plan.name)
        }
        Err((file, error)) => {
            let file = one_line(&file.display().to_string());
            format!("# [plugins.{}]: {file}: {error}\n", plan.name)
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn summary(from: &str, loaded: &Loaded) -> String {
    let count = |n: usize, word: &str| match n {
        1 => format!("1 {word}"),
        n => format!("{n} {word}s"),
    };
    let plugins = &loaded.plan.plugins;
    let tools: usize = plugins.iter().map(|it| it.tools.len()).sum();
    let unknown = plugins.iter().filter(|it| it.discover && it.tools.is_empty()).count();
    let mut parts = vec![count(plugins.len(), "plugin"), count(tools, "tool")];
    if 0 < unknown {
        parts.push(format!("more tools from {} when started", count(unknown, "plugin")));
    }
    if !loaded.invalid.is_empty() {
        parts.push(format!("{} cannot run", count(loaded.invalid.len(), "plugin")));
    }
    parts.push(loaded.report.summary());
    format!("{from}: {}", parts.join(", "))
}
