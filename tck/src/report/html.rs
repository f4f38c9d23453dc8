//! For people who were not there: one page that needs nothing but itself, with a picture of each
//! conversation that shows a fault.
//!
//! Whatever a plugin said stands on it as text and as nothing else: it is escaped, and the page
//! forbids itself scripts and everything from elsewhere.

use std::fmt::Write as _;

use crate::{
    check::Mode,
    report::{
        Report,
        human::{clean, label, show},
        machine,
    },
    run::{Outcome, Status},
    transcript::{Line, Side},
};

const STYLE: &str = include_str!("html.css");

/// Lines of a picture before the first that differs, and after it.
const BEFORE: usize = 30;
const AFTER: usize = 10;
/// Lines of a conversation that are written out at most; JSON has all.
const WRITTEN: usize = 2000;

/// The page. Bodies are left out unless asked for.
pub fn page(report: &Report, bodies: bool) -> String {
    let plugin = &report.plugin;
    let name = text(&format!("{} {}", plugin.name, plugin.version));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{name}: plugbay-tck</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{name}</h1>\n"
    );
    about(&mut out, report);
    groups(&mut out, report);
    for outcome in report.results.iter().filter(|it| is_told(it.status)) {
        one(&mut out, report, outcome, bodies);
    }
    out.push_str("</body>\n</html>\n");
    out
}

/// Whether a check has a part of the page for itself.
fn is_told(status: Status) -> bool {
    !matches!(status, Status::Pass | Status::Na)
}

/// Whatever it is, as text.
fn text(raw: &str) -> String {
    machine::escape(&clean(raw))
}

fn about(out: &mut String, report: &Report) {
    let (plugin, must, should) = (&report.plugin, &report.summary.must, &report.summary.should);
    let verdict = if report.exit_code(false) == 0 { "pass" } else { "fail" };
    write!(
        out,
        "<p class=\"verdict {verdict}\">{}/{} MUST, {}/{} SHOULD",
        must.pass,
        must.applied(),
        should.pass,
        should.applied()
    )
    .ok();
    let counted = [
        (must.xfail + should.xfail, "known to fail"),
        (report.stale.len(), "stale in the baseline"),
        (must.na + should.na, "not applicable"),
    ];
    for (n, what) in counted.iter().filter(|(n, _)| *n > 0) {
        write!(out, ", {n} {what}").ok();
    }
    out.push_str("</p>\n<dl>\n");
    let or_none = |words: &[String]| if words.is_empty() { "none".into() } else { words.join(" ") };
    let mut rows = match report.mode {
        Mode::Host => vec![("a host", "on plugins that each deviate in one thing".to_owned())],
        Mode::Plugin | Mode::Sdk => vec![
            ("level", plugin.level.to_owned()),
            ("features", or_none(&plugin.features)),
            ("provides", or_none(&plugin.kinds)),
        ],
    };
    rows.extend([
        ("command", plugin.command.join(" ")),
        ("seed", report.seed.to_string()),
        ("judged by", format!("plugbay-tck {}, spec {}", report.tck, report.spec)),
    ]);
    rows.extend(plugin.inactive.clone().map(|why| ("cannot be activated", why)));
    for (what, value) in rows {
        writeln!(out, "<dt>{what}</dt><dd>{}</dd>", text(&value)).ok();
    }
    out.push_str("</dl>\n");
}

fn groups(out: &mut String, report: &Report) {
    for (letters, about) in super::groups() {
        let group: Vec<&Outcome> = report.results.iter().filter(|it| it.group == letters).collect();
        if group.is_empty() {
            continue;
        }
        let count = |status| group.iter().filter(|it| it.status == status).count();
        let (pass, applied) = (count(Status::Pass), group.len() - count(Status::Na));
        let class = match (applied, pass == applied) {
            (0, _) => "na",
            (_, true) => "pass",
            (_, false) => "fail",
        };
        writeln!(
            out,
            "<details><summary class=\"{class}\"><b>{letters}</b> {about} {pass}/{applied}</summary>\n<table>"
        )
        .ok();
        for outcome in group {
            let status = outcome.status;
            let id = outcome.id;
            let id =
                if is_told(status) { format!("<a href=\"#{id}\">{id}</a>") } else { id.to_owned() };
            let why = match &outcome.known {
                Some(known) => machine::known(known),
                None => outcome.reason.clone().unwrap_or_default(),
            };
            writeln!(
                out,
                "<tr><td class=\"{}\">{}</td><td>{id}</td><td>{}<br><small>{}</small></td></tr>",
                class_of(status),
                status.as_str(),
                text(outcome.title),
                text(&why)
            )
            .ok();
        }
        out.push_str("</table></details>\n");
    }
}

fn class_of(status: Status) -> &'static str {
    match status {
        Status::Pass => "pass",
        Status::Na | Status::XFail => "na",
        Status::Warn | Status::Inconclusive => "warn",
        Status::Fail | Status::XPass | Status::Blocked | Status::HarnessError => "fail",
    }
}

fn one(out: &mut String, report: &Report, outcome: &Outcome, bodies: bool) {
    let (id, status) = (outcome.id, outcome.status);
    writeln!(
        out,
        "<section id=\"{id}\">\n<h2><span class=\"{}\">{}</span> {id} {}</h2>\n<p>rules {}</p>",
        class_of(status),
        status.as_str(),
        text(outcome.title),
        outcome.rules.join(" ")
    )
    .ok();
    if let Some(known) = &outcome.known {
        writeln!(out, "<p>in the baseline: {}</p>", text(&machine::known(known))).ok();
    }
    if let Some(by) = outcome.seen_in {
        writeln!(
            out,
            "<p>This rule is watched in all conversations; it was broken in that of {by}.</p>"
        )
        .ok();
    }
    match (&outcome.failure, &outcome.reason) {
        (Some(failure), _) => writeln!(
            out,
            "<dl><dt>expected</dt><dd>{}</dd><dt>saw</dt><dd>{}</dd></dl>",
            text(&failure.expected),
            text(&failure.seen)
        )
        .ok(),
        (None, Some(reason)) => writeln!(out, "<p>{}</p>", text(reason)).ok(),
        (None, None) => None,
    };
    if !outcome.transcript.is_empty() {
        picture(out, outcome, bodies);
        written(out, &outcome.transcript, bodies);
    }
    if let Some(exit) = &outcome.exit {
        writeln!(out, "<p>Its process {}.</p>", text(exit)).ok();
    }
    if !outcome.stderr.is_empty() {
        out.push_str("<details><summary>its last words on stderr</summary><pre>");
        let lines: Vec<&str> = outcome.stderr.lines().collect();
        for line in &lines[lines.len().saturating_sub(20)..] {
            writeln!(out, "{}", text(line)).ok();
        }
        out.push_str("</pre></details>\n");
    }
    let again = machine::escape(&report.repeat(outcome));
    writeln!(out, "<p>again:</p>\n<pre class=\"again\">{again}</pre>\n</section>").ok();
}

fn written(out: &mut String, lines: &[Line], bodies: bool) {
    out.push_str("<details><summary>the whole conversation</summary><pre>");
    for line in lines.iter().take(WRITTEN) {
        writeln!(out, "{}", machine::escape(&show(line, bodies))).ok();
    }
    if lines.len() > WRITTEN {
        writeln!(out, "… {} more, which --json has", lines.len() - WRITTEN).ok();
    }
    out.push_str("</pre></details>\n");
}

/// Where the host and the plugin stand, and how high a line is, in pixels.
const HOST: usize = 100;
const PLUGIN: usize = 860;
const ROW: usize = 30;
/// Characters that fit between the two.
const FITS: usize = 100;

/// Who said what to whom, from top to bottom; the first that differs stands out, or what never came.
fn picture(out: &mut String, outcome: &Outcome, bodies: bool) {
    let lines = &outcome.transcript;
    let entry = outcome.failure.as_ref().and_then(|failure| failure.entry);
    let around = entry.unwrap_or(lines.len() - 1);
    let (from, to) = (around.saturating_sub(BEFORE), (around + AFTER + 1).min(lines.len()));
    let missing = outcome.failure.as_ref().filter(|failure| failure.entry.is_none());
    let rows = to - from + usize::from(missing.is_some());
    let height = (rows + 2) * ROW;
    if from > 0 {
        writeln!(out, "<p class=\"more\">… {from} before</p>").ok();
    }
    writeln!(
        out,
        "<svg viewBox=\"0 0 960 {height}\" role=\"img\" aria-label=\"the conversation, from top to bottom\">\n\
         <defs><marker id=\"tip-{0}\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" orient=\"auto\">\
         <path d=\"M0 0L8 4L0 8z\"/></marker></defs>\n\
         <text class=\"who\" x=\"{HOST}\" y=\"18\">host</text><text class=\"who\" x=\"{PLUGIN}\" y=\"18\">plugin</text>\n\
         <path class=\"life\" d=\"M{HOST} 26V{height}M{PLUGIN} 26V{height}\"/>",
        outcome.id
    )
    .ok();
    for (at, line) in lines.iter().enumerate().take(to).skip(from) {
        let y = (at - from + 2) * ROW;
        row(out, outcome.id, line, y, entry == Some(at), bodies);
    }
    if let Some(failure) = missing {
        let y = (to - from + 2) * ROW;
        let (short, whole) = (cut(&failure.expected), text(&failure.expected));
        writeln!(
            out,
            "<g class=\"missing\"><title>expected {whole}</title>\
             <path d=\"M{PLUGIN} {y}H{HOST}\" marker-end=\"url(#tip-{})\"/>\
             <text x=\"480\" y=\"{}\">not so: {short}</text></g>",
            outcome.id,
            y - 6
        )
        .ok();
    }
    out.push_str("</svg>\n");
    if to < lines.len() {
        writeln!(out, "<p class=\"more\">… {} after</p>", lines.len() - to).ok();
    }
}

fn row(out: &mut String, id: &str, line: &Line, y: usize, is_first: bool, bodies: bool) {
    let said = label(line, bodies);
    let class = match (is_first, line.side) {
        (true, _) => "differs",
        (false, Side::Host) => "host",
        (false, Side::Plugin) => "plugin",
    };
    write!(out, "<g class=\"{class}\"><title>{}</title>", text(&said)).ok();
    if is_first {
        let (top, mark) = (y - 22, "the first that differs");
        write!(
            out,
            "<rect x=\"0\" y=\"{top}\" width=\"960\" height=\"{ROW}\"><title>{mark}</title></rect>"
        )
        .ok();
    }
    write!(
        out,
        "<text class=\"time\" x=\"4\" y=\"{y}\">{:.1} ms</text>",
        line.at_us as f64 / 1000.0
    )
    .ok();
    let (from, to) = match line.side {
        Side::Host => (HOST, PLUGIN),
        Side::Plugin => (PLUGIN, HOST),
    };
    if line.kind == "event" {
        write!(out, "<circle cx=\"{from}\" cy=\"{}\" r=\"4\"/>", y - 4).ok();
    } else {
        write!(out, "<path d=\"M{from} {y}H{to}\" marker-end=\"url(#tip-{id})\"/>").ok();
    }
    writeln!(out, "<text x=\"480\" y=\"{}\">{}</text></g>", y - 6, cut(&said)).ok();
}

/// As much of it as fits between the two, as text.
fn cut(said: &str) -> String {
    let short: String = said.chars().take(FITS).collect();
    let more = if short.len() < said.len() { "…" } else { "" };
    text(&format!("{short}{more}"))
}
