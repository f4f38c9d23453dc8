//! The tools of the fixture. All of them are honest; what is wrong with a mode
//! is wrong around them.

use std::{fs, io, os::unix::process::parent_id, process, sync::Arc, thread, time::Duration};

use nix::unistd::{Pid, getpgrp, getsid};
use plugbay_tests::wire::{Value, map};

use crate::{
    kin,
    plugin::{Fault, Plugin, Task},
};

/// Name, description, effect, idempotent, and the arguments: name and type.
type Entry =
    (&'static str, &'static str, &'static str, bool, &'static [(&'static str, &'static str)]);

const TOOLS: &[Entry] = &[
    (
        "echo",
        "Returns its arguments as data, and `text` as text.",
        "read",
        true,
        &[("text", "string")],
    ),
    (
        "text",
        "Returns one text, as a failure of the tool if `is_error`.",
        "read",
        true,
        &[("text", "string"), ("is_error", "boolean")],
    ),
    ("sleep", "Sleeps `ms`; ends early when cancelled.", "read", true, &[("ms", "integer")]),
    (
        "stubborn",
        "Sleeps `ms` and takes no notice of being cancelled.",
        "read",
        false,
        &[("ms", "integer")],
    ),
    (
        "spin",
        "Keeps one core busy for `ms`; takes no notice of being cancelled.",
        "read",
        false,
        &[("ms", "integer")],
    ),
    (
        "fail",
        "Fails with `code`, `reason`, `retry`, `after` and `msg`.",
        "write",
        false,
        &[
            ("code", "string"),
            ("reason", "string"),
            ("retry", "string"),
            ("after", "integer"),
            ("msg", "string"),
        ],
    ),
    (
        "progress",
        "Sends `n` notes of progress, one each `every_ms`, then ends.",
        "read",
        true,
        &[("n", "integer"), ("every_ms", "integer")],
    ),
    (
        "log",
        "Sends a log note at level `lvl` with `event` and `msg`, then ends.",
        "read",
        true,
        &[("lvl", "string"), ("event", "string"), ("msg", "string")],
    ),
    (
        "print",
        "Prints `text` to `fd` 1 or 2, as a careless author would.",
        "read",
        true,
        &[("fd", "integer"), ("text", "string")],
    ),
    ("pid", "Tells its process, group, session and signal masks.", "read", true, &[]),
    ("env", "Tells its whole environment, working directory and arguments.", "read", true, &[]),
    ("fds", "Tells its open file descriptors.", "read", true, &[]),
    ("head", "Returns the head of this very call.", "read", true, &[]),
    ("state", "Tells what this process has seen so far.", "read", true, &[]),
    ("big", "Returns `bytes` bytes of text.", "read", true, &[("bytes", "integer")]),
    (
        "exit",
        "Exits with `code` and never answers.",
        "write",
        false,
        &[("code", "integer"), ("say", "string")],
    ),
    (
        "crash",
        "Dies of `signal` and never answers.",
        "write",
        false,
        &[("signal", "string"), ("say", "string")],
    ),
];

/// The `provides` of a manifest with all tools, or with those named.
pub(crate) fn manifest(only: Option<&str>) -> Vec<Value> {
    offered(only).map(provide).collect()
}

fn offered(only: Option<&str>) -> impl Iterator<Item = &'static Entry> {
    let wanted = move |name| only.is_none_or(|list| list.split(',').any(|word| word == name));
    TOOLS.iter().filter(move |entry| wanted(entry.0))
}

fn provide(&(name, description, effect, idempotent, arguments): &Entry) -> Value {
    let property = |&(name, kind): &(&str, &str)| (name.into(), map([("type", kind.into())]));
    let properties = Value::Map(arguments.iter().map(property).collect());
    tool(name, description, effect, idempotent, schema(properties))
}

/// A schema of one object with these properties.
pub(crate) fn schema(properties: Value) -> Value {
    map([("type", "object".into()), ("properties", properties)])
}

/// One entry of `provides`.
pub(crate) fn tool(
    name: &str,
    description: &str,
    effect: &str,
    idempotent: bool,
    input: Value,
) -> Value {
    map([
        ("kind", "tool".into()),
        ("name", name.into()),
        ("description", description.into()),
        ("input_schema", input),
        ("effect", effect.into()),
        ("idempotent", idempotent.into()),
    ])
}

/// Runs one call to its END.
pub(crate) fn run(plugin: &Arc<Plugin>, task: &Task, body: &Value) {
    let id = task.id;
    let name = body.get("name").and_then(Value::as_str).unwrap_or_default();
    let nothing = plugbay_tests::wire::empty();
    let args = body.get("args").unwrap_or(&nothing);
    let Some(entry) = offered(plugin.args.get("tools")).find(|entry| entry.0 == name) else {
        return plugin.fail(id, Fault::new("not_found", "no such tool").because("pb.unknown_tool"));
    };
    if !fits(args, entry.4) {
        // The host has the schema and should have seen it.
        plugin.doubt("R-TL-05", "arguments that do not fit the schema");
        let fault = Fault::new("invalid_argument", "the arguments do not fit the schema");
        return plugin.fail(id, fault.because("pb.bad_args"));
    }
    let text = |key: &str| args.get(key).and_then(Value::as_str);
    let number = |key: &str, default| args.get(key).and_then(Value::as_u64).unwrap_or(default);
    let pause = |ms| Duration::from_millis(ms);
    let say = |words: &str, data: Option<Value>| plugin.end(id, &plugin.result(words, data));
    match name {
        "echo" => say(text("text").unwrap_or_default(), Some(args.clone())),
        "text" => {
            let mut result = plugin.result(text("text").unwrap_or_default(), None);
            if args.get("is_error").and_then(Value::as_bool) == Some(true) {
                result.put("is_error", true);
            }
            plugin.end(id, &result);
        }
        "sleep" => {
            let ms = number("ms", 0);
            match task.pause(pause(ms)) {
                None => say(&format!("slept {ms} ms"), None),
                Some(reason) => cancelled(plugin, id, &reason),
            }
        }
        "stubborn" => {
            thread::sleep(pause(number("ms", 0)));
            say("done all the same", None);
        }
        "spin" => {
            let end = std::time::Instant::now() + pause(number("ms", 0));
            while std::time::Instant::now() < end {
                std::hint::spin_loop();
            }
            say("dizzy", None);
        }
        "fail" => plugin.fail(
            id,
            Fault {
                code: text("code").unwrap_or("internal"),
                reason: text("reason"),
                retry: text("retry").unwrap_or("no"),
                after: args.get("after").and_then(Value::as_u64),
                message: text("msg").unwrap_or("as you wish"),
            },
        ),
        "progress" => {
            let total = number("n", 3);
            for n in 1..=total {
                if let Some(reason) = task.pause(pause(number("every_ms", 0))) {
                    return cancelled(plugin, id, &reason);
                }
                plugin.progress(id, n, Some(total), &format!("step {n}"));
            }
            say(&format!("{total} steps"), None);
        }
        "log" => {
            let event = text("event").unwrap_or("hostile.log");
            plugin.log(text("lvl").unwrap_or("info"), event, text("msg").unwrap_or_default());
            say("logged", None);
        }
        "print" => {
            let text = text("text").unwrap_or("a line");
            if number("fd", 1) == 2 {
                eprintln!("{text}")
            } else {
                println!("{text}")
            }
            say("printed", None);
        }
        "pid" => facts(plugin, id, identity()),
        "env" => facts(plugin, id, environment()),
        "fds" => facts(plugin, id, descriptors()),
        "head" => facts(plugin, id, Ok(task.head.clone())),
        "state" => facts(plugin, id, Ok(state(plugin))),
        "big" => say(&"x".repeat(number("bytes", 0) as usize), None),
        "exit" => {
            eprintln!("{}", text("say").unwrap_or("exiting as asked"));
            plugin.pen.flush();
            process::exit(number("code", 1) as i32);
        }
        "crash" => {
            eprintln!("{}", text("say").unwrap_or("crashing as asked"));
            plugin.pen.flush();
            kin::die_of(text("signal").unwrap_or("SIGSEGV"));
        }
        // The list above has no other name.
        _ => plugin.fail(id, Fault::new("internal", "a tool without a body")),
    }
}

/// Whether arguments are an object with properties of these types.
fn fits(args: &Value, types: &[(&str, &str)]) -> bool {
    let right = |kind: &str, value: &Value| match (kind, value) {
        ("string", Value::Str(_)) | ("integer", Value::Int(_)) | ("boolean", Value::Bool(_)) => {
            true
        }
        ("integer", Value::Float(x)) => x.fract() == 0.0,
        _ => false,
    };
    let present = |name: &str| match args {
        Value::Map(pairs) => pairs.iter().find(|(key, _)| key.as_str() == Some(name)),
        _ => None,
    };
    let held =
        |(name, kind): &(&str, &str)| present(name).is_none_or(|(_, value)| right(kind, value));
    matches!(args, Value::Map(_)) && types.iter().all(held)
}

fn cancelled(plugin: &Plugin, id: u32, reason: &str) {
    let message = format!("cancelled: {reason}");
    plugin.fail(id, Fault::new("cancelled", &message));
}

fn facts(plugin: &Plugin, id: u32, data: io::Result<Value>) {
    match data {
        Ok(data) => plugin.end(id, &plugin.result(&format!("{data:?}"), Some(data))),
        Err(error) => plugin.fail(id, Fault::new("internal", &error.to_string())),
    }
}

fn identity() -> io::Result<Value> {
    // Not the main thread's: while that starts a thread, all its signals are blocked.
    let status = fs::read_to_string("/proc/thread-self/status")?;
    let field = |name: &str| {
        let found = status.lines().find_map(|line| line.strip_prefix(name));
        Value::from(found.unwrap_or_default().trim())
    };
    Ok(map([
        ("pid", process::id().into()),
        ("ppid", parent_id().into()),
        ("pgid", getpgrp().as_raw().into()),
        ("sid", getsid(Some(Pid::this()))?.as_raw().into()),
        ("blocked", field("SigBlk:")),
        ("ignored", field("SigIgn:")),
    ]))
}

fn environment() -> io::Result<Value> {
    let lossy = |text: std::ffi::OsString| Value::from(text.to_string_lossy().into_owned());
    let pairs = std::env::vars_os().map(|(key, value)| (lossy(key), lossy(value)));
    Ok(map([
        ("env", Value::Map(pairs.collect())),
        ("dir", lossy(std::env::current_dir()?.into())),
        ("args", std::env::args_os().map(lossy).collect::<Vec<_>>().into()),
    ]))
}

fn descriptors() -> io::Result<Value> {
    let mut open = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        // The descriptor of this very directory is gone by the time it is read.
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let number = entry.file_name().to_string_lossy().into_owned();
        open.push((number.into(), target.to_string_lossy().into_owned().into()));
    }
    Ok(map([("fds", Value::Map(open))]))
}

fn state(plugin: &Plugin) -> Value {
    let life = plugin.life();
    let part = |key: &str| {
        life.activation.as_ref().and_then(|body| body.get(key)).cloned().unwrap_or(Value::Nil)
    };
    // Names only: a secret's value has no business in a result.
    let secrets = match part("secrets") {
        Value::Map(pairs) => pairs.into_iter().map(|(name, _)| name).collect(),
        _ => Vec::new(),
    };
    map([
        ("activations", life.activations.into()),
        ("calls", life.calls.into()),
        ("refused", life.refused.into()),
        ("open", life.open.len().into()),
        ("peak", life.peak.into()),
        ("cancels", life.cancels.into()),
        ("pings", life.pings.into()),
        ("pongs", life.pongs.iter().cloned().map(Value::Bin).collect::<Vec<_>>().into()),
        ("features", life.features.clone().into()),
        ("hello", life.hello.clone().unwrap_or(Value::Nil)),
        ("grant", part("grant")),
        ("config", part("config")),
        ("secrets", secrets.into()),
    ])
}
