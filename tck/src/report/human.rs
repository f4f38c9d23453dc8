//! For people at a terminal: a line for each group, and everything about what failed.

use std::fmt::Write as _;

use crate::{
    check::Mode,
    report::{Report, machine},
    run::{Outcome, Status},
    transcript::{Line, Side},
};

const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// How much is shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Detail {
    /// Every check has a line.
    pub verbose: bool,
    /// Bodies are shown. They may hold what is nobody's business.
    pub bodies: bool,
}

/// Lines of a transcript before the first that differs, and after it.
const BEFORE: usize = 12;
const AFTER: usize = 4;

fn colour(status: Status) -> &'static str {
    match status {
        Status::Pass | Status::XFail => GREEN,
        Status::Na => DIM,
        Status::Warn | Status::Inconclusive => YELLOW,
        Status::Fail | Status::XPass | Status::Blocked | Status::HarnessError => RED,
    }
}

/// The whole report, with colours; whoever prints it takes them out where they are not
/// wanted.
pub fn render(report: &Report, detail: Detail) -> String {
    let mut out = String::new();
    let name = format!("{} {}", clean(&report.plugin.name), clean(&report.plugin.version));
    if report.mode == Mode::Host {
        writeln!(
            out,
            "{BOLD}{}{PLAIN}  a host, on plugins that each deviate in one thing",
            name.trim()
        )
        .ok();
    } else {
        about(&mut out, report, &name);
    }
    out.push('\n');
    for (letters, about) in super::groups() {
        let group: Vec<&Outcome> = report.results.iter().filter(|it| it.group == letters).collect();
        if group.is_empty() {
            continue;
        }
        group_line(&mut out, letters, about, &group);
        if detail.verbose {
            for outcome in group {
                let status = outcome.status;
                let why = match &outcome.known {
                    Some(known) => Some(format!("known: {}", machine::known(known))),
                    None => outcome.reason.clone(),
                };
                let why = why.map(|why| format!("  {DIM}{}{PLAIN}", clean(&why)));
                let why = why.filter(|_| status != Status::Pass).unwrap_or_default();
                let (on, word) = (colour(status), status.as_str());
                writeln!(out, "   {on}{word:<6}{PLAIN} {} {}{why}", outcome.id, outcome.title).ok();
            }
        }
    }
    for outcome in &report.results {
        let is_brief = matches!(outcome.status, Status::XFail | Status::XPass) && !detail.verbose;
        if is_brief || matches!(outcome.status, Status::Pass | Status::Na) {
            continue;
        }
        out.push('\n');
        one(&mut out, report, outcome, detail);
    }
    if !report.stale.is_empty() {
        writeln!(out).ok();
        let stale = report.stale.join(" ");
        writeln!(out, "{RED}stale{PLAIN} the baseline lists what passes; take out {stale}").ok();
    }
    out.push('\n');
    verdict(&mut out, report);
    out
}

fn about(out: &mut String, report: &Report, name: &str) {
    let plugin = &report.plugin;
    let features = if plugin.features.is_empty() {
        "no features".into()
    } else {
        clean(&plugin.features.join(" "))
    };
    writeln!(out, "{BOLD}{name}{PLAIN}  {} ({features}), provides {}", plugin.level, kinds(report))
        .ok();
    if let Some(why) = &plugin.inactive {
        writeln!(out, "{YELLOW}it cannot be activated{PLAIN}: {}", clean(why)).ok();
        writeln!(
            out,
            "   = tell how in the settings: --settings tck.toml with [activate] config, secrets"
        )
        .ok();
    }
}

fn kinds(report: &Report) -> String {
    let kinds = &report.plugin.kinds;
    if kinds.is_empty() { "nothing".into() } else { clean(&kinds.join(" ")) }
}

fn group_line(out: &mut String, letters: &str, about: &str, group: &[&Outcome]) {
    let count = |wanted: &[Status]| group.iter().filter(|it| wanted.contains(&it.status)).count();
    let (pass, na) = (count(&[Status::Pass, Status::XFail]), count(&[Status::Na]));
    let (warn, applied) = (count(&[Status::Warn, Status::Inconclusive]), group.len() - na);
    let bad = applied - pass - warn;
    let on = if bad > 0 {
        RED
    } else if warn > 0 {
        YELLOW
    } else if applied == 0 {
        DIM
    } else {
        GREEN
    };
    let sign = if bad > 0 {
        "✗"
    } else if applied == 0 {
        "–"
    } else {
        "✓"
    };
    write!(out, "{on}{sign} {letters}{PLAIN}  {about:<34} {pass}/{applied}").ok();
    if na > 0 {
        write!(out, "  {DIM}{na} n/a{PLAIN}").ok();
    }
    let others =
        group.iter().filter(|it| !matches!(it.status, Status::Pass | Status::Na | Status::XFail));
    let names: Vec<String> =
        others.map(|it| format!("{}{}{PLAIN}", colour(it.status), it.id)).collect();
    if !names.is_empty() {
        write!(out, "  {}", names.join(" ")).ok();
    }
    out.push('\n');
}

fn one(out: &mut String, report: &Report, outcome: &Outcome, detail: Detail) {
    let (on, word) = (colour(outcome.status), outcome.status.as_str());
    writeln!(out, "{on}{word}{PLAIN} {BOLD}{}{PLAIN} {}", outcome.id, outcome.title).ok();
    writeln!(out, "   = rules {}", outcome.rules.join(" ")).ok();
    if let Some(by) = outcome.seen_in {
        writeln!(
            out,
            "   = this rule is watched in all conversations; it was broken in that of {by}"
        )
        .ok();
    }
    match (&outcome.failure, &outcome.reason) {
        (Some(failure), _) => {
            writeln!(out, "   expected  {}", clean(&failure.expected)).ok();
            writeln!(out, "   saw       {}", clean(&failure.seen)).ok();
        }
        (None, Some(reason)) => {
            writeln!(out, "   {}", clean(reason)).ok();
        }
        (None, None) => {}
    }
    conversation(out, outcome, detail);
    if let Some(exit) = &outcome.exit {
        writeln!(out, "   = its process {exit}").ok();
    }
    let words: Vec<&str> = outcome.stderr.lines().rev().take(6).collect();
    if !words.is_empty() {
        writeln!(out, "   = its last words on stderr:").ok();
        for line in words.iter().rev() {
            writeln!(out, "       | {}", clean(line)).ok();
        }
    }
    writeln!(out, "   {DIM}again:{PLAIN} {}", report.repeat(outcome)).ok();
}

fn conversation(out: &mut String, outcome: &Outcome, detail: Detail) {
    let lines = &outcome.transcript;
    if lines.is_empty() {
        return;
    }
    let entry = outcome.failure.as_ref().and_then(|failure| failure.entry);
    let around = entry.unwrap_or(lines.len().saturating_sub(1));
    let from = if detail.verbose { 0 } else { around.saturating_sub(BEFORE) };
    let to = if detail.verbose { lines.len() } else { (around + AFTER + 1).min(lines.len()) };
    if from > 0 {
        writeln!(out, "   {DIM}… {from} before{PLAIN}").ok();
    }
    for (at, line) in lines.iter().enumerate().take(to).skip(from) {
        let here = entry == Some(at);
        let (on, mark) = if here { (RED, "  ◀ the first that differs") } else { ("", "") };
        writeln!(out, "   {on}{}{mark}{PLAIN}", show(line, detail.bodies)).ok();
    }
    if to < lines.len() {
        writeln!(out, "   {DIM}… {} after{PLAIN}", lines.len() - to).ok();
    }
}

/// One line of a transcript. `>` is what the suite sent.
pub fn show(line: &Line, bodies: bool) -> String {
    let arrow = if line.side == Side::Host { '>' } else { '<' };
    let at = line.at_us as f64 / 1000.0;
    format!("{at:>9.1} {arrow} {}", label(line, bodies))
}

/// The same without time and direction.
pub fn label(line: &Line, bodies: bool) -> String {
    let mut text = match line.id {
        Some(id) => format!("{:<6} #{id} {}", line.kind, clean(&line.text)),
        None if line.kind == "bytes" => format!("bytes  {}", clean(&line.text)),
        None => format!("({})", clean(&line.text)),
    };
    if line.body_len > 0 && line.id.is_some() {
        match line.body.as_ref().filter(|_| bodies) {
            Some(body) => write!(text, " | {}", clean(body)).ok(),
            None => write!(text, " | {} B", line.body_len).ok(),
        };
    }
    text
}

fn verdict(out: &mut String, report: &Report) {
    let (must, should) = (&report.summary.must, &report.summary.should);
    let bad = must.fail
        + must.blocked
        + must.harness_error
        + must.inconclusive
        + must.xpass
        + should.xpass;
    let on = if bad > 0 { RED } else { GREEN };
    write!(out, "{on}{BOLD}{}/{} MUST{PLAIN}", must.pass, must.applied()).ok();
    write!(out, ", {}/{} SHOULD", should.pass, should.applied()).ok();
    let na = must.na + should.na;
    let known = must.xfail + should.xfail;
    if known > 0 {
        write!(out, ", {known} known to fail").ok();
    }
    if na > 0 {
        write!(out, ", {na} not applicable").ok();
    }
    writeln!(out, "   {DIM}seed {}{PLAIN}", report.seed).ok();
}

/// What a plugin says must not steer the terminal.
pub fn clean(text: &str) -> String {
    let cut: String = text.chars().take(600).collect();
    let more = if cut.len() < text.len() { "…" } else { "" };
    let shown = cut.chars().map(|it| if it.is_control() { '\u{fffd}' } else { it });
    shown.chain(more.chars()).collect()
}
