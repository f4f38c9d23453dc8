//! The contract runtime. What an engine thinks is its own; so most of it is tried with the
//! runtimes of contract tck, which do what they are told.

use super::bt::text_of;
use crate::{
    case::Case,
    check::{Check, Need, Stop, must},
    codec::{CALL, CANCEL, END, ITEM},
    list, map,
    session::{GRACE, Got, PROMPT, Session, code, refusal},
    value::Value,
};

const RUNTIME: &[Need] = &[Need::Active, Need::Kind("runtime")];
const PLATFORM: &[Need] = &[Need::Active, Need::Entry("runtime", "tck_runtime")];
const OWN: &[Need] = &[Need::Active, Need::Entry("runtime", "tck_own")];

/// Opens a session that has the tool `tck_add`.
fn open(s: &mut Session, entry: &str, name: &str, history: Value) -> Result<(), Stop> {
    let tool = map! {
        "name": "tck_add", "capability": "tck.add", "description": "Adds.",
        "input_schema": map! {"type": "object"}, "effect": "read",
    };
    let body = map! {"name": entry, "session": name, "tools": list![tool], "history": history};
    s.ask("session.open", body).map(|_| ())
}

/// A process with one session of the runtime that leaves its tools to us; what it calls
/// lies in the inbox.
fn opened(c: &mut Case<'_>) -> Result<Session, Stop> {
    let mut s = c.active()?;
    s.serve(false);
    open(&mut s, "tck_runtime", "one", list![])?;
    Ok(s)
}

fn message(role: &str, text: &str) -> Value {
    map! {"role": role, "content": list![map! {"type": "text", "text": text}]}
}

/// The body of a turn.
fn turn(name: &str, script: &str) -> Value {
    map! {"session": name, "input": list![map! {"type": "text", "text": script}]}
}

fn send(s: &mut Session, script: &str) -> u32 {
    s.call("session.send", turn("one", script))
}

/// What a turn says, until its END ok.
fn said(s: &mut Session, id: u32) -> Result<String, Stop> {
    let (items, end) = s.collect(id)?;
    s.is_ok(&end)?;
    let texts = items.iter().map(Got::value).filter(|item| item.str("t") == Some("text"));
    Ok(texts.filter_map(|item| item.str("d").map(str::to_owned)).collect())
}

/// That a turn says just this.
fn says(s: &mut Session, id: u32, due: &str) -> Result<(), Stop> {
    let seen = said(s, id)?;
    s.holds(seen == due, &format!("the text {due:?}"), format!("{seen:?}"))
}

/// The next call of the host for a turn.
fn called(s: &mut Session, turn: u32, method: &str) -> Result<Got, Stop> {
    let is_end = |got: &Got| got.is(END, turn);
    let got = s.expect(&format!("CALL {method}"), PROMPT, |got| got.kind == CALL || is_end(got))?;
    let method_is = got.head.str("method") == Some(method);
    if got.kind == CALL && method_is && got.head.int("parent") == Some(turn.into()) {
        return Ok(got);
    }
    Err(s.differs(&got, format!("CALL {method} with parent {turn}"), got.to_string()))
}

/// The receipt of a tool.
fn receipt(text: &str) -> Value {
    map! {"receipt": map! {"content": list![map! {"type": "text", "text": text}]}}
}

/// What has another session or a dead process behind it is no session.
fn unknown() -> crate::session::Refusal {
    refusal("not_found", "pb.unknown_session", "no")
}

pub(super) const CHECKS: &[Check] = &[
    must("BA-01", "says something and ends its turn with a reason", &["R-RU-03"], PLATFORM, |c| {
        let mut s = opened(c)?;
        let id = send(&mut s, "say hello to you");
        let (items, end) = s.collect(id)?;
        s.is_ok(&end)?;
        let texts: Vec<Value> = items.iter().map(Got::value).collect();
        let said: String = texts.iter().filter_map(|item| item.str("d")).collect();
        s.holds(said == "hello to you", "the text \"hello to you\"", format!("{said:?}"))?;
        let value = end.value();
        s.same(&end, "reason", &"stop", &value.str("reason").unwrap_or("nothing"))?;
        let id = send(&mut s, "say more");
        says(&mut s, id, "more")
    }),
    must(
        "BA-02",
        "does not know a session that is not open",
        &["R-RU-01", "R-RU-08", "R-ER-16"],
        RUNTIME,
        |c| {
            super::leaves_out(c, "runtime", list!["async", "reverse", "stream.in"])?;
            let mut s = c.active()?;
            let id = s.call("session.send", turn("tck_no_such_session", "say no"));
            s.refused(id, &unknown())?;
            let name =
                c.entries("runtime").first().and_then(|entry| entry.str("name")).unwrap_or("");
            open(&mut s, name, "one", list![])?;
            let id = s.call("session.open", map! {"name": name, "session": "one"});
            s.refused(id, &refusal("conflict", "pb.session_exists", "no"))?;
            s.deactivate()?;
            let body = c.activation(&mut s);
            let end = s.activate(body)?;
            s.is_ok(&end)?;
            let id = send(&mut s, "say no");
            s.refused(id, &unknown()).map(|_| ())
        },
    ),
    must("BA-03", "refuses a second turn while one is open", &["R-RU-05"], PLATFORM, |c| {
        let mut s = opened(c)?;
        let id = send(&mut s, "ask for it");
        let asked = called(&mut s, id, "host.approval.request")?;
        let second = send(&mut s, "say no");
        s.refused(second, &refusal("failed_precondition", "pb.turn_open", "safe"))?;
        s.answer(asked.id, map! {"decision": "approve"});
        says(&mut s, id, "approve")?;
        let id = send(&mut s, "say yes");
        says(&mut s, id, "yes")
    }),
    must(
        "BA-04",
        "calls only the tools of its session, each call by a name of its own",
        &["R-RU-11", "R-RU-16"],
        PLATFORM,
        |c| {
            let mut s = opened(c)?;
            let mut names = std::collections::BTreeSet::new();
            for _ in 0..2 {
                let id = send(&mut s, "both tck_add {\"a\":1}");
                for due in [map! {"a": 1}, map! {"a": 1, "second": true}] {
                    let call = called(&mut s, id, "host.tool.call")?;
                    let value = call.value();
                    let text = |key: &str| value.str(key).unwrap_or("nothing").to_owned();
                    s.same(&call, "session", &"one".to_owned(), &text("session"))?;
                    s.same(&call, "name", &"tck_add".to_owned(), &text("name"))?;
                    let args = value.get("args").cloned().unwrap_or(Value::Nil);
                    s.same(&call, "args", &due, &args)?;
                    let fresh = value.str("call").is_some() && names.insert(text("call"));
                    s.holds(fresh, "a call that the session has not used", &value)?;
                    s.answer(call.id, receipt("done"));
                }
                says(&mut s, id, "done done")?;
            }
            let id = send(&mut s, "tool tck_no_such_tool {}");
            said(&mut s, id)?;
            s.none("CALL of what is no tool of the session", |got| got.kind == CALL)
        },
    ),
    must("BA-05", "goes on with the receipt of a tool", &["R-RU-17"], PLATFORM, |c| {
        let mut s = opened(c)?;
        for due in ["four", "five"] {
            let id = send(&mut s, "tool tck_add {\"a\":2}");
            let call = called(&mut s, id, "host.tool.call")?;
            s.answer(call.id, receipt(due));
            says(&mut s, id, due)?;
        }
        Ok(())
    }),
    must("BA-06", "takes receipts in any order and keeps its own", &["R-RU-12"], PLATFORM, |c| {
        let mut s = opened(c)?;
        let id = send(&mut s, "both tck_add {}");
        let first = called(&mut s, id, "host.tool.call")?;
        let second = called(&mut s, id, "host.tool.call")?;
        s.answer(second.id, receipt("two"));
        s.fence()?;
        s.none("END before the other receipt", |got| got.is(END, id))?;
        s.answer(first.id, receipt("one"));
        says(&mut s, id, "one two")
    }),
    must("BA-07", "goes on when a tool fails", &["R-RU-13"], PLATFORM, |c| {
        let mut s = opened(c)?;
        for due in ["permission_denied", "unavailable"] {
            let id = send(&mut s, "tool tck_add {}");
            let call = called(&mut s, id, "host.tool.call")?;
            s.refuse(call.id, map! {"code": due, "retry": "no"});
            says(&mut s, id, &format!("failed {due}"))?;
        }
        let id = send(&mut s, "say more");
        says(&mut s, id, "more")
    }),
    must("BA-08", "obeys who is asked for approval", &["R-RU-14", "R-RU-15"], PLATFORM, |c| {
        let mut s = opened(c)?;
        let answers = [
            (map! {"decision": "approve"}, "approve"),
            (map! {"decision": "edit", "args": map! {"a": 1}}, "edit {\"a\":1}"),
            (map! {"decision": "reject"}, "reject"),
            (map! {"decision": "reply", "reply": "not today"}, "reply not today"),
            (map! {"decision": "tck_grease"}, "reject"),
            (map! {}, "reject"),
        ];
        for (answer, due) in answers {
            let id = send(&mut s, "ask for it");
            let asked = called(&mut s, id, "host.approval.request")?;
            let value = asked.value();
            s.same(&asked, "session", &"one", &value.str("session").unwrap_or("nothing"))?;
            s.same(&asked, "summary", &"for it", &value.str("summary").unwrap_or("nothing"))?;
            s.answer(asked.id, answer);
            says(&mut s, id, due)?;
        }
        let id = send(&mut s, "ask for it");
        let asked = called(&mut s, id, "host.approval.request")?;
        s.refuse(asked.id, map! {"code": "deadline_exceeded", "retry": "no"});
        says(&mut s, id, "reject")
    }),
    must(
        "BA-09",
        "gives up a tool with its turn, and not its session",
        &["R-RU-04"],
        PLATFORM,
        |c| {
            let mut s = opened(c)?;
            let id = send(&mut s, "tool tck_add {}");
            let call = called(&mut s, id, "host.tool.call")?;
            s.cancel(id);
            s.expect("CANCEL of the tool", PROMPT, |got| got.is(CANCEL, call.id))?;
            s.refuse(call.id, map! {"code": "cancelled", "retry": "no"});
            s.refused(id, &code("cancelled"))?;
            let id = send(&mut s, "say again");
            says(&mut s, id, "again")
        },
    ),
    must(
        "BA-10",
        "ignores that a turn is cancelled which is over",
        &["R-CN-03", "R-RU-04"],
        PLATFORM,
        |c| {
            let mut s = opened(c)?;
            let id = send(&mut s, "say one");
            says(&mut s, id, "one")?;
            s.cancel(id);
            s.fence_silent()?;
            let id = send(&mut s, "say two");
            says(&mut s, id, "two")
        },
    ),
    must("BA-11", "ends the open turn of a session that is closed", &["R-RU-06"], PLATFORM, |c| {
        let mut s = opened(c)?;
        let id = send(&mut s, "tool tck_add {}");
        let call = called(&mut s, id, "host.tool.call")?;
        let closing = s.call("session.close", map! {"session": "one"});
        // Its tool is given up first; a plugin that does not is told by what comes.
        let got = s.expect("CANCEL of the tool", PROMPT, |got| {
            got.is(CANCEL, call.id) || got.is(END, closing)
        })?;
        if got.kind == END {
            return Err(s.differs(
                &got,
                "END of the turn before END of session.close",
                got.to_string(),
            ));
        }
        s.refuse(call.id, map! {"code": "cancelled", "retry": "no"});
        let closed = s.end(closing)?;
        s.is_ok(&closed)?;
        let turn = s.end(id)?;
        s.before(&turn, &closed)?;
        s.ask("session.close", map! {"session": "one"})?;
        let id = send(&mut s, "say no");
        s.refused(id, &unknown()).map(|_| ())
    }),
    must("BA-12", "goes on from a history as if it had lived it", &["R-RU-02"], PLATFORM, |c| {
        let mut s = opened(c)?;
        let id = send(&mut s, "remember the teapot");
        says(&mut s, id, "ok")?;
        let id = send(&mut s, "recall");
        says(&mut s, id, "the teapot")?;
        s.signal(nix::sys::signal::Signal::SIGKILL);
        s.exits(GRACE)?;
        let mut s = c.active()?;
        let history = list![message("user", "remember the teapot"), message("assistant", "ok")];
        open(&mut s, "tck_runtime", "one", history)?;
        let id = send(&mut s, "recall");
        says(&mut s, id, "the teapot")
    }),
    must(
        "BA-13",
        "leaves it to its host how long a tool may take",
        &["R-TO-03", "R-RU-13"],
        PLATFORM,
        |c| {
            let mut s = opened(c)?;
            let idle = 200;
            let head = map! {"method": "session.send", "deadline": 60_000, "idle": idle};
            let id = s.call_head(head, turn("one", "tool tck_add {}"));
            let call = called(&mut s, id, "host.tool.call")?;
            s.linger(std::time::Duration::from_millis(3 * idle))?;
            s.none("END while its tool runs", |got| got.is(END, id))?;
            s.answer(call.id, receipt("late"));
            says(&mut s, id, "late")
        },
    ),
    must("BA-14", "tells the result of each tool that it runs itself", &["R-RU-09"], OWN, |c| {
        let mut s = c.active()?;
        open(&mut s, "tck_own", "one", list![])?;
        let id = send(&mut s, "both tck_add {}");
        let (items, end) = s.collect(id)?;
        s.is_ok(&end)?;
        let of = |kind: &str| -> Vec<String> {
            let items = items.iter().filter(|it| it.kind == ITEM).map(Got::value);
            let items = items.filter(|item| item.str("t") == Some(kind));
            items.map(|item| item.str("call").unwrap_or("nothing").to_owned()).collect()
        };
        let (calls, results) = (of("tool_call"), of("tool_result"));
        s.holds(calls.len() == 2, "two tool_call items", calls.join(" "))?;
        let expected = format!("a tool_result for each of {}", calls.join(" "));
        s.holds(calls == results, &expected, results.join(" "))?;
        let receipts = items.iter().map(Got::value).filter_map(|item| item.get("receipt").cloned());
        let good = receipts.into_iter().all(|it| text_of(it.get("content")) == "own");
        s.holds(good, "receipts with the text \"own\"", "others")
    }),
    must("BA-15", "keeps sessions apart", &["R-RU-07"], PLATFORM, |c| {
        let mut s = opened(c)?;
        open(&mut s, "tck_runtime", "two", list![])?;
        let each = [("one", "the teapot"), ("two", "the kettle")];
        let all = |s: &mut Session, script: &dyn Fn(&str) -> String| {
            each.map(|(name, fact)| s.call("session.send", turn(name, &script(fact))))
        };
        for id in all(&mut s, &|fact| format!("remember {fact}")) {
            says(&mut s, id, "ok")?;
        }
        let ids = all(&mut s, &|_| "recall".to_owned());
        for (id, (_, fact)) in ids.into_iter().zip(each) {
            says(&mut s, id, fact)?;
        }
        Ok(())
    }),
];
