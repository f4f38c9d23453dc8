//! For programs: JSON, JUnit XML, TAP 14, GitHub and a badge.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::{
    baseline::Known,
    check::Level,
    report::Report,
    run::{Outcome, Status},
};

/// What [`json()`] and the report on an unfit subject look like: JSON Schema 2020-12.
pub const SCHEMA: &str = include_str!("../../schema/report.json");

/// JSON as [`SCHEMA`] describes it. Bodies are left out unless asked for.
pub fn json(report: &Report, bodies: bool) -> Value {
    let mut value = serde_json::to_value(report).unwrap_or(Value::Null);
    let results = value.get_mut("results").and_then(Value::as_array_mut);
    for line in results.into_iter().flatten().flat_map(|it| it.get_mut("transcript")) {
        for line in line.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            if !bodies {
                line.remove("body");
            }
        }
    }
    value
}

/// JUnit: a suite is a group, a case is a check.
pub fn junit(report: &Report) -> String {
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let of = |group: &str| report.results.iter().filter(|it| it.group == group).collect::<Vec<_>>();
    let failed = |all: &[&Outcome]| all.iter().filter(|it| is_failure(it)).count();
    let errors = |all: &[&Outcome]| all.iter().filter(|it| is_error(it)).count();
    let skipped = |all: &[&Outcome]| all.iter().filter(|it| is_skipped(it)).count();
    let seconds = |all: &[&Outcome]| all.iter().map(|it| it.ms).sum::<u64>() as f64 / 1000.0;
    let all: Vec<&Outcome> = report.results.iter().collect();
    let name = escape(&format!("{} {}", report.plugin.name, report.plugin.version));
    writeln!(
        out,
        "<testsuites name=\"{name}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{:.3}\">",
        all.len(),
        failed(&all),
        errors(&all),
        skipped(&all),
        seconds(&all),
    )
    .ok();
    for (letters, about) in super::groups() {
        let group = of(letters);
        if group.is_empty() {
            continue;
        }
        writeln!(
            out,
            "  <testsuite name=\"{letters} {about}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{:.3}\">",
            group.len(),
            failed(&group),
            errors(&group),
            skipped(&group),
            seconds(&group),
        )
        .ok();
        for outcome in group {
            case(&mut out, report, outcome);
        }
        out.push_str("  </testsuite>\n");
    }
    out.push_str("</testsuites>\n");
    out
}

fn is_failure(outcome: &Outcome) -> bool {
    matches!(outcome.status, Status::Fail | Status::XPass | Status::Blocked)
}

fn is_error(outcome: &Outcome) -> bool {
    matches!(outcome.status, Status::HarnessError | Status::Inconclusive)
}

fn is_skipped(outcome: &Outcome) -> bool {
    matches!(outcome.status, Status::Na | Status::XFail)
}

fn case(out: &mut String, report: &Report, outcome: &Outcome) {
    let name = escape(&format!("{} {}", outcome.id, outcome.title));
    let time = outcome.ms as f64 / 1000.0;
    let open = format!(
        "    <testcase classname=\"tck.{}\" name=\"{name}\" time=\"{time:.3}\"",
        outcome.group
    );
    let reason = outcome.known.as_ref().filter(|_| outcome.status == Status::XFail).map(known);
    let reason = escape(&reason.or_else(|| outcome.reason.clone()).unwrap_or_default());
    let status = outcome.status.as_str();
    if outcome.status == Status::Pass {
        writeln!(out, "{open}/>").ok();
        return;
    }
    writeln!(out, "{open}>").ok();
    if is_skipped(outcome) {
        writeln!(out, "      <skipped message=\"{status}: {reason}\"/>").ok();
    } else if outcome.status == Status::Warn {
        writeln!(out, "      <system-out>warning: {reason}</system-out>").ok();
    } else {
        let tag = if is_error(outcome) { "error" } else { "failure" };
        let text = escape(&text(report, outcome));
        writeln!(out, "      <{tag} type=\"{status}\" message=\"{reason}\">{text}</{tag}>").ok();
    }
    out.push_str("    </testcase>\n");
}

/// All about one check, as text, without bodies.
fn text(report: &Report, outcome: &Outcome) -> String {
    let mut text = format!("rules {}\n", outcome.rules.join(" "));
    for line in &outcome.transcript {
        writeln!(text, "{}", super::human::show(line, false)).ok();
    }
    writeln!(text, "again: {}", report.repeat(outcome)).ok();
    text
}

/// Text as XML and HTML take it, in elements and in attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for it in text.chars() {
        match it {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '\n' | '\t' => out.push(it),
            // XML has no way to say these.
            it if it.is_control() || matches!(it, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            it => out.push(it),
        }
    }
    out
}

/// TAP 14.
pub fn tap(report: &Report) -> String {
    let mut out = format!("TAP version 14\n1..{}\n", report.results.len());
    for (at, outcome) in report.results.iter().enumerate() {
        let number = at + 1;
        let title =
            format!("{} {}", outcome.id, outcome.title).replace('\\', "\\\\").replace('#', "\\#");
        let reason = outcome.reason.as_deref().unwrap_or_default().replace(['\n', '\r'], " ");
        match outcome.status {
            Status::Pass => writeln!(out, "ok {number} - {title}").ok(),
            Status::Na => writeln!(out, "ok {number} - {title} # SKIP n/a: {reason}").ok(),
            Status::XFail => {
                let why = outcome.known.as_ref().map(known).unwrap_or_default();
                let why = why.replace(['\n', '\r'], " ");
                writeln!(out, "not ok {number} - {title} # TODO {why}").ok()
            }
            Status::Warn => {
                writeln!(out, "ok {number} - {title}").ok();
                yaml(&mut out, report, outcome)
            }
            _ => {
                writeln!(out, "not ok {number} - {title}").ok();
                yaml(&mut out, report, outcome)
            }
        };
    }
    out
}

/// A block of YAML, of which JSON strings are a part.
fn yaml(out: &mut String, report: &Report, outcome: &Outcome) -> Option<()> {
    let quoted = |text: &str| Value::from(text).to_string();
    writeln!(out, "  ---").ok()?;
    writeln!(out, "  status: {}", outcome.status.as_str()).ok()?;
    writeln!(out, "  message: {}", quoted(outcome.reason.as_deref().unwrap_or_default())).ok()?;
    writeln!(out, "  rules: {}", quoted(&outcome.rules.join(" "))).ok()?;
    writeln!(out, "  again: {}", quoted(&report.repeat(outcome))).ok()?;
    writeln!(out, "  transcript:").ok()?;
    for line in &outcome.transcript {
        writeln!(out, "    - {}", quoted(&super::human::show(line, false))).ok()?;
    }
    writeln!(out, "  ...").ok()
}

/// Annotations for the log of a GitHub workflow.
pub fn annotations(report: &Report) -> String {
    let mut out = String::new();
    for outcome in &report.results {
        let command = match outcome.status {
            Status::Pass | Status::Na => continue,
            Status::XFail => "notice",
            Status::Warn => "warning",
            _ => "error",
        };
        let data = |text: &str| text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
        let property = |text: &str| data(text).replace(':', "%3A").replace(',', "%2C");
        let title = property(&format!("{} {}", outcome.id, outcome.title));
        let reason = data(&told(outcome));
        writeln!(out, "::{command} title={title}::{reason}").ok();
    }
    out
}

/// The summary of a GitHub step, in Markdown.
pub fn summary(report: &Report) -> String {
    let (must, should) = (&report.summary.must, &report.summary.should);
    let cell =
        |text: &str| text.replace('|', "\\|").replace(['\n', '\r'], " ").replace('<', "&lt;");
    let mut out = format!(
        "### {} {}: {}/{} MUST, {}/{} SHOULD\n\n",
        cell(&report.plugin.name),
        cell(&report.plugin.version),
        must.pass,
        must.applied(),
        should.pass,
        should.applied(),
    );
    let bad = |it: &&Outcome| !matches!(it.status, Status::Pass | Status::Na);
    if !report.results.iter().any(|it| bad(&it)) {
        let words = ["protocol 1", report.plugin.level].join(", ");
        writeln!(out, "{}, all that applies is kept.", words.trim_end_matches(", ")).ok();
        return out;
    }
    out.push_str("| check | | what was seen |\n|---|---|---|\n");
    for outcome in report.results.iter().filter(bad) {
        let reason = cell(&told(outcome));
        writeln!(
            out,
            "| {} | {} | {}<br>{reason} |",
            outcome.id,
            outcome.status.as_str(),
            cell(outcome.title)
        )
        .ok();
    }
    out
}

/// The badge, as a shields.io endpoint takes it. Green only if everything that applies is kept.
pub fn badge(report: &Report) -> Value {
    let must = &report.summary.must;
    let kinds: Vec<&str> =
        report.plugin.kinds.iter().map(String::as_str).filter(|it| *it != "tck").collect();
    let all_kept = must.pass == must.applied() && must.pass > 0;
    let kept = format!("{}/{}", must.pass, must.applied());
    let words = [report.plugin.level, &kinds.join(" "), &kept];
    let words: Vec<&str> = words.into_iter().filter(|it| !it.is_empty()).collect();
    json!({
        "schemaVersion": 1,
        "label": "plugbay 1",
        "message": words.join(" · "),
        "color": if all_kept { "brightgreen" } else { "red" },
    })
}

/// Why a check may fail, and where that is followed up.
pub fn known(known: &Known) -> String {
    let issue = known.issue.as_deref().map(|issue| format!(" ({issue})")).unwrap_or_default();
    format!("{}{issue}", known.reason)
}

/// What was seen, and why it may be for now.
fn told(outcome: &Outcome) -> String {
    let seen = outcome.reason.as_deref().unwrap_or_default();
    match outcome.known.as_ref().filter(|_| outcome.status == Status::XFail) {
        Some(why) => format!("{seen}; known: {}", known(why)),
        None => seen.to_owned(),
    }
}

/// How binding a check is, as a word.
pub fn level(level: Level) -> &'static str {
    match level {
        Level::Must => "MUST",
        Level::Should => "SHOULD",
    }
}
