//! The form of what a plugin sends: section 1.4 of the spec as a table.

use crate::{
    codec::{CALL, CANCEL, CLOSE, CREDIT, END, Frame, HELLO, ITEM, NOTE, PING, PONG},
    value::{self, BODY, POLITE, Value},
};

/// The codes of errors [R-ER-03].
pub(crate) const CODES: [&str; 12] = [
    "cancelled",
    "deadline_exceeded",
    "invalid_argument",
    "not_found",
    "conflict",
    "permission_denied",
    "failed_precondition",
    "resource_exhausted",
    "unavailable",
    "unimplemented",
    "internal",
    "unknown",
];

/// The reasons of the registry: name, code, retry.
const REASONS: &[(&str, &str, &str)] = &[
    ("pb.inactive", "failed_precondition", "safe"),
    ("pb.already_active", "failed_precondition", "no"),
    ("pb.draining", "unavailable", "safe"),
    ("pb.too_many_calls", "resource_exhausted", "safe"),
    ("pb.busy", "failed_precondition", "safe"),
    ("pb.bad_body", "invalid_argument", "no"),
    ("pb.bad_args", "invalid_argument", "no"),
    ("pb.unknown_method", "unimplemented", "no"),
    ("pb.unknown_tool", "not_found", "no"),
    ("pb.scope_denied", "permission_denied", "no"),
    ("pb.missing_scope", "failed_precondition", "no"),
    ("pb.would_deadlock", "resource_exhausted", "no"),
    ("pb.frame_limit", "resource_exhausted", "no"),
    ("pb.unknown_entry", "not_found", "no"),
    ("pb.cannot", "invalid_argument", "no"),
    ("pb.unknown_model", "not_found", "no"),
    ("pb.too_long", "invalid_argument", "no"),
    ("pb.rate_limited", "resource_exhausted", "maybe"),
    ("pb.bad_credentials", "failed_precondition", "no"),
    ("pb.unknown_hook", "unimplemented", "no"),
    ("pb.full", "resource_exhausted", "no"),
    ("pb.unknown_profile", "not_found", "no"),
    ("pb.unenforceable", "failed_precondition", "no"),
    ("pb.too_many_boxes", "resource_exhausted", "safe"),
    ("pb.unknown_box", "not_found", "no"),
    ("pb.no_such_program", "not_found", "no"),
    ("pb.no_such_file", "not_found", "no"),
    ("pb.bad_path", "invalid_argument", "no"),
    ("pb.session_exists", "conflict", "no"),
    ("pb.unknown_session", "not_found", "no"),
    ("pb.turn_open", "failed_precondition", "safe"),
    ("pb.bad_history", "invalid_argument", "no"),
    ("pb.bad_file", "invalid_argument", "no"),
];

/// `^[a-z0-9]+(\.[a-z0-9_]+)+$` [R-ER-05].
pub(crate) fn is_reason(text: &str) -> bool {
    let words: Vec<&str> = text.split('.').collect();
    let is = |word: &str, more: &[u8]| {
        let allowed =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || more.contains(&byte);
        !word.is_empty() && word.bytes().all(allowed)
    };
    words.len() > 1 && is(words[0], b"") && words[1..].iter().all(|word| is(word, b"_"))
}

/// Whether a reason that is reserved stands with the code and retry of the registry
/// [R-ER-08]. An absent retry is `no` [R-ER-06].
pub(crate) fn may_say(reason: &str, code: &str, retry: Option<&str>) -> bool {
    let known = REASONS.iter().find(|(name, ..)| *name == reason);
    match known {
        Some((_, due, after)) => *due == code && *after == retry.unwrap_or("no"),
        None => !reason.starts_with("pb."),
    }
}

/// What a field holds.
enum Is {
    Str,
    Bool,
    /// From 0 to 2^bits - 1.
    Bits(u32),
    Any,
    Strings,
    Ints,
    Map(&'static [(&'static str, Is)]),
}

/// The heads; a name that ends in `?` may be absent.
fn head_of(kind: u8) -> &'static [(&'static str, Is)] {
    const LIMITS: &[(&str, Is)] =
        &[("frame", Is::Bits(32)), ("window", Is::Bits(32)), ("calls", Is::Bits(16))];
    const WHO: &[(&str, Is)] = &[("name?", Is::Str), ("version?", Is::Str), ("sdk?", Is::Str)];
    const ERR: &[(&str, Is)] =
        &[("code", Is::Str), ("reason?", Is::Str), ("retry?", Is::Str), ("after?", Is::Bits(53))];
    match kind {
        HELLO => &[
            ("version", Is::Bits(16)),
            ("features?", Is::Strings),
            ("limits", Is::Map(LIMITS)),
            ("plugin?", Is::Map(WHO)),
        ],
        CLOSE => &[("code", Is::Str), ("supported?", Is::Ints)],
        CALL => &[
            ("method", Is::Str),
            ("deadline?", Is::Bits(53)),
            ("idle?", Is::Bits(53)),
            ("in?", Is::Bool),
            ("parent?", Is::Bits(32)),
            ("key?", Is::Str),
            ("attempt?", Is::Bits(8)),
            ("trace?", Is::Any),
        ],
        END => &[("err?", Is::Map(ERR))],
        CANCEL => &[("reason?", Is::Str)],
        CREDIT => &[("n", Is::Bits(53))],
        NOTE => &[("topic", Is::Str)],
        _ => &[],
    }
}

/// The rest of the head of a NOTE.
fn note_of(topic: &str) -> &'static [(&'static str, Is)] {
    match topic {
        "log" => &[("lvl?", Is::Str), ("event?", Is::Str)],
        "progress" => &[("n?", Is::Bits(53)), ("total?", Is::Bits(53)), ("unit?", Is::Str)],
        "retire" => &[("reason?", Is::Str)],
        _ => &[],
    }
}

const SAYS: &[(&str, Is)] = &[("msg?", Is::Str), ("data?", Is::Any)];
const MANIFEST: &[(&str, Is)] = &[("wants?", Is::Strings)];
const ENTRY: &[(&str, Is)] = &[("kind", Is::Str), ("name", Is::Str)];

/// What is wrong with a frame from a plugin, if anything. `limit` is ours; `polite`
/// says that the body is the plugin's own.
pub(crate) fn fault(
    frame: &Frame,
    head: &Result<Value, String>,
    limit: usize,
    polite: bool,
) -> Option<String> {
    let known =
        [HELLO, CLOSE, PING, PONG, CALL, ITEM, END, CANCEL, CREDIT, NOTE].contains(&frame.kind);
    if frame.size() > limit {
        return Some(format!("{} bytes, over the limit of {limit} [R-FR-13]", frame.size()));
    }
    if !known && frame.kind < 0x80 {
        return Some("an unknown type that may not be skipped [R-EX-02]".into());
    }
    if frame.head.is_empty() {
        return Some("a head of no bytes [R-FR-08]".into());
    }
    if frame.gap.iter().any(|byte| *byte != 0) {
        return Some(format!("a gap that is not zero, {} [R-FR-04]", value::hex(&frame.gap)));
    }
    if !known {
        return None;
    }
    if matches!(frame.kind, HELLO | CLOSE | PING | PONG) && frame.id != 0 {
        return Some("an id where there is none [R-FR-09]".into());
    }
    if matches!(frame.kind, ITEM | END | CANCEL | CREDIT) && frame.id == 0 {
        return Some("the id 0, which is no call [R-CA-12]".into());
    }
    let head = match head {
        Ok(head) => head,
        Err(why) => return Some(format!("the head: {why}")),
    };
    let wrong = misfit(head, head_of(frame.kind), "the head")
        .or_else(|| misfit(head, note_of(head.str("topic").unwrap_or("")), "the head"));
    wrong.or_else(|| body_fault(frame, head, polite))
}

fn body_fault(frame: &Frame, head: &Value, polite: bool) -> Option<String> {
    if matches!(frame.kind, PING | PONG) {
        return (frame.body.len() > 64).then(|| "a body of more than 64 bytes [R-TO-07]".into());
    }
    if matches!(frame.kind, CANCEL | CREDIT) || frame.body.is_empty() {
        return None;
    }
    let body = match value::unpack(&frame.body, if polite { POLITE } else { BODY }) {
        Ok(body) => body,
        Err(why) => return Some(format!("the body: {why} [R-HD-10] [R-HD-15] [R-HD-17]")),
    };
    match frame.kind {
        HELLO => misfit(&body, MANIFEST, "the manifest").or_else(|| {
            let provides = body.get("provides")?;
            let Some(entries) = provides.as_list() else {
                return Some("provides is no array".into());
            };
            entries.iter().find_map(|entry| misfit(entry, ENTRY, "an entry"))
        }),
        CLOSE => misfit(&body, SAYS, "the body"),
        END if head.has("err") => misfit(&body, SAYS, "the body"),
        _ => None,
    }
}

/// The first field that is not as it should be.
fn misfit(value: &Value, fields: &[(&str, Is)], what: &str) -> Option<String> {
    if value.as_map().is_none() {
        return Some(format!("{what} is {} and no map", value.type_name()));
    }
    fields.iter().find_map(|(name, is)| {
        let key = name.trim_end_matches('?');
        match value.get(key) {
            None if name.ends_with('?') => None,
            None => Some(format!("{what} has no {key}")),
            Some(field) => unlike(field, is, key),
        }
    })
}

fn unlike(value: &Value, is: &Is, key: &str) -> Option<String> {
    let every =
        |fits: fn(&Value) -> bool| value.as_list().is_some_and(|items| items.iter().all(fits));
    let good = match is {
        Is::Str => value.as_str().is_some(),
        Is::Bool => value.as_bool().is_some(),
        Is::Bits(bits) => value.as_int().is_some_and(|int| (0..1_i128 << bits).contains(&int)),
        Is::Any => true,
        Is::Strings => every(|each| each.as_str().is_some()),
        Is::Ints => every(|each| each.as_int().is_some()),
        Is::Map(fields) => return misfit(value, fields, key),
    };
    (!good).then(|| format!("{key} is {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{list, map};

    fn faults(kind: u8, id: u32, head: Value, body: impl crate::codec::Body) -> Option<String> {
        fault(&Frame::new(kind, id, &head, body), &Ok(head.clone()), 1 << 16, true)
    }

    #[test]
    fn good_frames_have_no_fault() {
        let limits = map! {"frame": 1 << 20, "window": 1 << 16, "calls": 8};
        let entry = map! {"kind": "tool", "name": "x", "more": 1};
        let hello = map! {"version": 1, "limits": limits, "new": true};
        assert_eq!(faults(HELLO, 0, hello, map! {"provides": list![entry]}), None);
        assert_eq!(
            faults(END, 3, map! {"err": map! {"code": "internal", "retry": ()}}, map! {"msg": "x"}),
            None
        );
        assert_eq!(faults(NOTE, 3, map! {"topic": "progress", "n": 1}, ()), None);
        assert_eq!(faults(0xE7, 9, Value::map(), vec![0xC1]), None);
    }

    #[test]
    fn each_fault_is_found() {
        let of = |kind, id, head| faults(kind, id, head, ()).unwrap_or_default();
        assert_eq!(of(HELLO, 0, map! {"limits": 3}), "the head has no version");
        assert_eq!(of(END, 3, map! {"err": map! {"code": "x", "retry": true}}), "retry is true");
        assert_eq!(of(CREDIT, 3, map! {"n": -1}), "n is -1");
        assert_eq!(of(CALL, 2, map! {"method": "a.b", "attempt": 256}), "attempt is 256");
        assert!(of(PING, 1, Value::map()).contains("R-FR-09"));
        assert!(of(ITEM, 0, Value::map()).contains("R-CA-12"));
        assert!(of(0x3F, 0, Value::map()).contains("R-EX-02"));
        assert!(faults(ITEM, 1, Value::map(), vec![0xC1]).unwrap().contains("the body"));
        assert!(faults(ITEM, 1, Value::map(), vec![0; 1 << 16]).unwrap().contains("R-FR-13"));
        let twice = Value::Map(vec![("a".into(), 1.into()), ("a".into(), 2.into())]);
        assert!(faults(END, 1, Value::map(), twice).unwrap().contains("twice"));
    }

    #[test]
    fn reasons_have_a_form_and_the_reserved_ones_a_use() {
        assert!(is_reason("acme.quota_used_up") && is_reason("a.b.c"));
        assert!(
            !is_reason("acme") && !is_reason("a_b.c") && !is_reason("a..b") && !is_reason("A.b")
        );
        assert!(may_say("pb.inactive", "failed_precondition", Some("safe")));
        assert!(may_say("pb.bad_body", "invalid_argument", None));
        assert!(!may_say("pb.inactive", "failed_precondition", None));
        assert!(!may_say("pb.foo", "internal", None));
    }
}
