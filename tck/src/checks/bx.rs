//! The contract sandbox. The programs that are run are those of any POSIX system; a box
//! without them is skipped.

use crate::{
    case::Case,
    check::{Check, Need, Stop, must, skip},
    codec::{END, ITEM},
    list, map,
    session::{GRACE, Got, PROMPT, Session, code, refusal},
    value::Value,
};

const SANDBOX: &[Need] = &[Need::Active, Need::Kind("sandbox")];
const UNKNOWN_BOX: (&str, &str) = ("not_found", "pb.unknown_box");
/// What is passed through `cat`: more than any window and any pipe.
const MANY: usize = 5 << 20;
/// The size of its pieces.
const PIECE: usize = 1 << 14;

/// What a program did.
struct Ran {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    end: Got,
}

/// A new box.
fn open(c: &Case<'_>, s: &mut Session) -> Result<String, Stop> {
    let name = c.entries("sandbox").first().and_then(|entry| entry.str("name")).unwrap_or("");
    let id = s.call("sandbox.open", map! {"name": name});
    let end = s.end(id)?;
    s.is_ok(&end)?;
    let opened = end.value().str("box").map(str::to_owned);
    opened.ok_or_else(|| s.differs(&end, "box, a string", end.value().to_string()))
}

fn close(s: &mut Session, name: &str) -> Result<(), Stop> {
    s.ask("sandbox.close", map! {"box": name}).map(|_| ())
}

/// The body that runs a program.
fn argv(name: &str, argv: &[&str]) -> Value {
    map! {"box": name, "argv": argv}
}

/// Starts a line of shell.
fn shell(s: &mut Session, name: &str, line: &str) -> u32 {
    s.call_in("sandbox.exec", argv(name, &["sh", "-c", line]))
}

/// That a box has the program at all.
fn has_program(end: &Got) -> Result<(), Stop> {
    match end.err().and_then(|err| err.str("reason")) {
        Some("pb.no_such_program") => Err(skip("the box has not the program that is run")),
        _ => Ok(()),
    }
}

/// What comes out of a program, as `input` goes in as credit allows, until its END.
fn attend(s: &mut Session, id: u32, input: &[u8]) -> Result<Ran, Stop> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut pieces = input.chunks(PIECE);
    let mut next = pieces.next();
    if next.is_none() {
        s.end_input(id);
    }
    loop {
        let waits = next.is_some();
        let what = format!("ITEM, CREDIT or END of #{id}");
        let got = s.until(&what, PROMPT, |s| {
            let got = s.take(|got| got.is(ITEM, id) || got.is(END, id));
            (got.is_some() || waits && s.credit_left(id) > 0).then_some(got)
        })?;
        match got {
            Some(end) if end.kind == END => return Ok(Ran { stdout, stderr, end }),
            Some(item) => {
                s.credit(id, item.size as u64);
                let value = item.value();
                let of = |key| value.get(key).and_then(Value::as_bin).unwrap_or(&[]).to_vec();
                stdout.extend(of("stdout"));
                stderr.extend(of("stderr"));
            }
            None => {
                if let Some(piece) = next.take() {
                    s.item(id, map! {"stdin": piece});
                    next = pieces.next();
                    if next.is_none() {
                        s.end_input(id);
                    }
                }
            }
        }
    }
}

/// Runs a line of shell without input.
fn run(s: &mut Session, name: &str, line: &str) -> Result<Ran, Stop> {
    let id = shell(s, name, line);
    let ran = attend(s, id, &[])?;
    has_program(&ran.end)?;
    Ok(ran)
}

/// That a program ended so.
fn ended(s: &Session, end: &Got, key: &str, due: impl Into<Value>) -> Result<(), Stop> {
    s.is_ok(end)?;
    let seen = end.value().get(key).cloned().unwrap_or(Value::Nil);
    s.same(end, key, &due.into(), &seen)
}

/// Waits for the first line that a program writes; its input stays open.
fn first_line(s: &mut Session, id: u32) -> Result<String, Stop> {
    let what = format!("ITEM of #{id}");
    let got = s.expect(&what, PROMPT, |got| got.is(ITEM, id) || got.is(END, id))?;
    has_program(&got)?;
    let value = got.value();
    let line = value.get("stdout").and_then(Value::as_bin).unwrap_or(&[]);
    Ok(String::from_utf8_lossy(line).trim().to_owned())
}

/// Writes a file, and END of that.
fn write(s: &mut Session, name: &str, path: &str, content: &[u8]) -> Result<Got, Stop> {
    let id = s.call_in("sandbox.write", map! {"box": name, "path": path});
    s.item(id, Value::from(content));
    s.end_input(id);
    s.end(id)
}

/// Reads a file, and END of that.
fn read(s: &mut Session, name: &str, path: &str) -> Result<(Vec<u8>, Got), Stop> {
    let id = s.call("sandbox.read", map! {"box": name, "path": path});
    let (items, end) = s.collect(id)?;
    let bytes = items.iter().flat_map(|it| it.value().as_bin().unwrap_or(&[]).to_vec()).collect();
    Ok((bytes, end))
}

pub(super) const CHECKS: &[Check] = &[
    must("BX-01", "tells what a program returned, whatever that is", &["R-SB-02"], SANDBOX, |c| {
        let mut s = c.active()?;
        let name = open(c, &mut s)?;
        for (line, due) in [("true", 0), ("exit 1", 1), ("exit 77", 77)] {
            let ran = run(&mut s, &name, line)?;
            ended(&s, &ran.end, "exit", due)?;
        }
        close(&mut s, &name)
    }),
    must(
        "BX-02",
        "passes all of the input on, and all of the output",
        &["R-SB-03"],
        SANDBOX,
        |c| {
            let mut s = c.active()?;
            let name = open(c, &mut s)?;
            let input: Vec<u8> = std::iter::repeat_with(|| c.rng.u8(..)).take(MANY).collect();
            let id = s.call_in("sandbox.exec", argv(&name, &["cat"]));
            let ran = attend(&mut s, id, &input)?;
            has_program(&ran.end)?;
            ended(&s, &ran.end, "exit", 0)?;
            let seen = format!("{} bytes, or others", ran.stdout.len());
            s.holds(ran.stdout == input, &format!("the {MANY} bytes that went in"), seen)?;
            close(&mut s, &name)
        },
    ),
    must("BX-03", "keeps stdout and stderr apart, and each in order", &["R-SB-03"], SANDBOX, |c| {
        let mut s = c.active()?;
        let name = open(c, &mut s)?;
        let line = "for i in 1 2 3 4; do echo out $i; echo err $i >&2; done";
        let ran = run(&mut s, &name, line)?;
        ended(&s, &ran.end, "exit", 0)?;
        for (seen, word) in [(&ran.stdout, "out"), (&ran.stderr, "err")] {
            let due: String = (1..=4).map(|n| format!("{word} {n}\n")).collect();
            let seen = String::from_utf8_lossy(seen);
            s.holds(seen == due, &format!("{due:?}"), format!("{seen:?}"))?;
        }
        close(&mut s, &name)
    }),
    must(
        "BX-04",
        "ends all that runs when it is cancelled",
        &["R-SB-04", "R-SB-05"],
        SANDBOX,
        |c| {
            let mut s = c.active()?;
            let name = open(c, &mut s)?;
            // It holds no pipe of ours, so that nothing but its END waits for it.
            let line = "sleep 30 </dev/null >/dev/null 2>&1 & echo $!; wait";
            let id = shell(&mut s, &name, line);
            let pid = first_line(&mut s, id)?;
            s.cancel(id);
            let end = s.end_within(id, GRACE)?;
            s.is_refusal(&end, &code("cancelled"))?;
            // What is dead and not yet taken note of has no status any more but Z.
            let alive = format!("kill -0 {pid} && ! grep -s 'State:.Z' /proc/{pid}/status");
            let ran = run(&mut s, &name, &alive)?;
            s.holds(ran.end.value().int("exit") != Some(0), "no process left of it", &pid)?;
            close(&mut s, &name)
        },
    ),
    must("BX-05", "ends a program in time", &["R-SB-05"], SANDBOX, |c| {
        let mut s = c.active()?;
        let name = open(c, &mut s)?;
        let body = argv(&name, &["sleep", "30"]);
        let id = s.call("sandbox.exec", body.clone().with("timeout", 200));
        let end = s.end(id)?;
        has_program(&end)?;
        ended(&s, &end, "timed_out", true)?;
        let id = s.call_head(map! {"method": "sandbox.exec", "deadline": 200}, body);
        s.refused(id, &code("deadline_exceeded"))?;
        close(&mut s, &name)
    }),
    must(
        "BX-06",
        "knows no box that is not open, and no profile that it has not",
        &["R-SB-01", "R-SB-09", "R-SB-11", "R-ER-16"],
        SANDBOX,
        |c| {
            super::leaves_out(c, "sandbox", list!["async", "stream", "reverse"])?;
            let mut s = c.active()?;
            let body = map! {"profile": "tck_no_such_profile"};
            let id = s.call("sandbox.open", body);
            s.refused(id, &refusal("not_found", "pb.unknown_profile", "no"))?;
            let due = refusal(UNKNOWN_BOX.0, UNKNOWN_BOX.1, "no");
            let closed = open(c, &mut s)?;
            close(&mut s, &closed)?;
            let left = open(c, &mut s)?;
            s.deactivate()?;
            let body = c.activation(&mut s);
            let end = s.activate(body)?;
            s.is_ok(&end)?;
            for name in [closed.as_str(), left.as_str(), "tck_no_such_box"] {
                let id = s.call("sandbox.exec", argv(name, &["true"]));
                s.refused(id, &due)?;
                let end = write(&mut s, name, "file", b"x")?;
                s.is_refusal(&end, &due)?;
                let (_, end) = read(&mut s, name, "file")?;
                s.is_refusal(&end, &due)?;
            }
            super::serves(c, &mut s)
        },
    ),
    must(
        "BX-07",
        "keeps boxes apart, and paths within them",
        &["R-SB-07", "R-SB-08"],
        SANDBOX,
        |c| {
            let mut s = c.active()?;
            let (mine, other) = (open(c, &mut s)?, open(c, &mut s)?);
            let end = write(&mut s, &mine, "a/file", b"mine")?;
            s.is_ok(&end)?;
            let (bytes, end) = read(&mut s, &mine, "a/file")?;
            s.is_ok(&end)?;
            s.holds(bytes == b"mine", "what was written", format!("{bytes:?}"))?;
            let (_, end) = read(&mut s, &other, "a/file")?;
            s.is_refusal(&end, &refusal("not_found", "pb.no_such_file", "no"))?;
            let ran = run(&mut s, &other, "test -e a/file")?;
            ended(&s, &ran.end, "exit", 1)?;
            let due = refusal("invalid_argument", "pb.bad_path", "no");
            run(&mut s, &mine, "ln -s / out")?;
            for path in ["../file", "a/../../file", "/etc/passwd", "out/etc/passwd"] {
                let (_, end) = read(&mut s, &mine, path)?;
                s.is_refusal(&end, &due)?;
                let end = write(&mut s, &mine, path, b"x")?;
                s.is_refusal(&end, &due)?;
            }
            close(&mut s, &mine)?;
            close(&mut s, &other)
        },
    ),
    must(
        "BX-08",
        "passes signals on and says of which it died",
        &["R-SB-06", "R-SB-12"],
        SANDBOX,
        |c| {
            let mut s = c.active()?;
            let name = open(c, &mut s)?;
            for signal in ["TERM", "INT"] {
                let id = shell(&mut s, &name, "trap - INT; echo ready; exec sleep 30");
                first_line(&mut s, id)?;
                s.item(id, map! {"signal": "NO_SUCH_SIGNAL"});
                s.item(id, map! {"tck_grease": true});
                s.item(id, map! {"signal": signal});
                let end = s.end(id)?;
                ended(&s, &end, "signal", signal)?;
            }
            close(&mut s, &name)
        },
    ),
    must("BX-09", "closes a box as often as it is asked to", &["R-SB-10"], SANDBOX, |c| {
        let mut s = c.active()?;
        let name = open(c, &mut s)?;
        let id = shell(&mut s, &name, "echo ready; exec sleep 30");
        first_line(&mut s, id)?;
        let closing = s.call("sandbox.close", map! {"box": name.clone()});
        let end = s.end_within(id, GRACE)?;
        let closed = s.end(closing)?;
        s.is_ok(&closed)?;
        s.before(&end, &closed)?;
        close(&mut s, &name)?;
        close(&mut s, "tck_no_such_box")
    }),
];
