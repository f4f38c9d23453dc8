//! Bytes with one fault each, named after it.

use super::{
    Expect, Invalid,
    Level::{self, L0, L2, L3, L4},
    Receiver::{self, Host, Plugin},
    State::{self, Active, Draining, Open, Ready, Start},
    bytes::{Frame, Piece, frame, stray},
    judge::FS_READ,
};

const LIMITS: &str = "a6'limits' 83 a5'frame' ce00100000 a6'window' ce00040000 a5'calls' 08";

/// name · rule · receiver · state · what is wrong · expected CLOSE code · bytes
type Row = (&'static str, &'static str, Receiver, State, &'static str, &'static str, Vec<Piece>);

pub(crate) fn all() -> Vec<Invalid> {
    let mut all = Vec::new();
    let levels: [(Level, Vec<Vec<Row>>); 4] = [
        (L0, vec![framing(), heads(), fields(), handshake(), ids_and_states()]),
        (L2, vec![streams()]),
        (L3, vec![reverse()]),
        (L4, vec![input()]),
    ];
    for (level, rows) in levels {
        for (name, rule, receiver, state, about, code, pieces) in rows.into_iter().flatten() {
            let (eof, expect) = (name.starts_with("truncated"), Expect::Close(code));
            all.push(Invalid { name, about, rule, receiver, state, level, pieces, eof, expect });
        }
    }
    all.extend(bodies());
    all.extend(without_right());
    all
}

/// A head, in a PING: no field of it matters, so the fault is the head's own.
fn head(notation: impl Into<String>) -> Vec<Piece> {
    frame(0x03, 0, notation).pieces()
}

#[rustfmt::skip]
fn framing() -> Vec<Row> {
    let call = || frame(0x10, 3, "82 a6'method' a9'tool.call' a8'deadline' cd7530").body("c0");
    let one = |frame: Frame| frame.pieces();
    vec![
        ("stray-text", "R-FR-07", Host, Start, "a banner where a frame is due", "protocol_error",
            stray("'listening on 8080' 0a")),
        ("stray-newline", "R-FR-07", Plugin, Active, "one byte is enough, and nothing is looked for after it", "protocol_error",
            stray("0a")),
        ("head-len-0", "R-FR-08", Plugin, Ready, "a head has at least the byte of an empty map", "protocol_error",
            one(frame(0x03, 0, ""))),
        ("gap-first-byte", "R-FR-04", Plugin, Ready, "the first byte of the gap is 01", "protocol_error",
            one(frame(0x03, 0, "80").body("2a").gap(0, 1))),
        ("gap-last-byte", "R-FR-04", Plugin, Active, "the last byte of the gap is ff", "protocol_error",
            one(call().gap(5, 0xff))),
        ("gap-missing", "R-FR-03", Plugin, Ready, "the body follows the head at once, so its first bytes are in the gap's place", "protocol_error",
            stray("c103 0001 00000000 00000010 80 ffffffffffffffffffffffffffffffff 000000")),
        ("frame-too-large", "R-FR-05", Plugin, Active, "4 GiB, and not one byte of it has come", "frame_too_large",
            one(frame(0x10, 3, "").head_len(30).body_len(u32::MAX))),
        ("frame-too-large-by-1", "R-FR-05", Plugin, Active, "1048577 bytes, of which the gap has 6", "frame_too_large",
            one(frame(0x10, 3, "").head_len(30).body_len(1_048_577 - 48))),
        ("unknown-frame-too-large", "R-FR-05", Host, Active, "what will be skipped has the same limit", "frame_too_large",
            one(frame(0xe0, 0, "").head_len(1).body_len(1 << 20))),
        ("hello-too-large", "R-FR-10", Plugin, Start, "HELLO has at most 1048576 bytes", "frame_too_large",
            one(frame(0x01, 0, "").head_len(60).body_len(1 << 20))),
        ("too-large-before-hello", "R-FR-10", Plugin, Start, "and everything else 65536 until HELLO has come", "frame_too_large",
            one(frame(0x90, 0, "").head_len(1).body_len(1 << 16))),
        ("unknown-critical-frame", "R-EX-02", Plugin, Ready, "type 3f", "unsupported_frame",
            one(frame(0x3f, 0, "80"))),
        ("unknown-frame-head-len-0", "R-FR-08", Plugin, Ready, "what will be skipped has a head too", "protocol_error",
            one(frame(0xe7, 0, ""))),
        ("unknown-frame-gap", "R-FR-04", Plugin, Ready, "and a gap of zeros", "protocol_error",
            one(frame(0xe7, 0, "80").body("2a").gap(2, 1))),
        ("hello-id", "R-FR-09", Plugin, Start, "HELLO with an id", "protocol_error",
            one(frame(0x01, 1, format!("82 a8'versions' 91 01 {LIMITS}")))),
        ("close-id", "R-FR-09", Plugin, Ready, "CLOSE with an id", "protocol_error",
            one(frame(0x02, 1, "81 a4'code' a2'ok'"))),
        ("ping-id", "R-FR-09", Plugin, Ready, "PING with an id", "protocol_error",
            one(frame(0x03, 1, "80"))),
        ("truncated-header", "R-FR-11", Plugin, Active, "the stream ends inside a header", "protocol_error",
            one(call().cut(5))),
        ("truncated-body", "R-FR-11", Host, Open, "the stream ends one byte early", "protocol_error",
            one(frame(0x12, 3, "80").body("c0c0").cut(17))),
    ]
}

#[rustfmt::skip]
fn heads() -> Vec<Row> {
    vec![
        ("head-array", "R-HD-01", Plugin, Ready, "an array", "protocol_error", head("90")),
        ("head-integer", "R-HD-01", Plugin, Ready, "an integer", "protocol_error", head("05")),
        ("head-nil", "R-HD-01", Plugin, Ready, "nil is no empty map", "protocol_error", head("c0")),
        ("head-trailing-byte", "R-HD-01", Plugin, Ready, "a byte after the map", "protocol_error", head("80 c0")),
        ("head-short", "R-HD-01", Plugin, Ready, "a key without its value", "protocol_error", head("81 a1'a'")),
        ("head-claims-65535-pairs", "R-HD-01", Plugin, Ready, "and has none", "protocol_error", head("deffff")),
        ("head-key-integer", "R-HD-02", Plugin, Ready, "a key that is 1", "protocol_error", head("81 01 01")),
        ("head-key-nil", "R-HD-02", Plugin, Ready, "a key that is nil", "protocol_error", head("81 c0 01")),
        ("head-key-twice", "R-HD-03", Plugin, Ready, "a key twice, with the same value even", "protocol_error",
            head("82 a1'a' 01 a1'a' 01")),
        ("head-key-twice-nested", "R-HD-03", Plugin, Ready, "a key twice in a map inside", "protocol_error",
            head("81 a1'a' 82 a1'b' 01 a1'b' 02")),
        ("head-extension", "R-HD-05", Plugin, Ready, "an extension type", "protocol_error", head("81 a1'a' d4 01 00")),
        ("head-unused-marker", "R-HD-05", Plugin, Ready, "the marker c1", "protocol_error", head("81 a1'a' c1")),
        ("head-not-utf8", "R-HD-05", Plugin, Ready, "a string that is not UTF-8", "protocol_error", head("81 a1'a' a2c080")),
        ("head-too-deep", "R-HD-06", Plugin, Ready, "9 containers inside one another", "protocol_error",
            head("81 a1'a' 9191919191919191 c0")),
        ("head-integer-too-large", "R-HD-07", Plugin, Ready, "2^53", "protocol_error",
            head("81 a1'a' cf0020000000000000")),
    ]
}

#[rustfmt::skip]
fn fields() -> Vec<Row> {
    let one = |kind, id, head: &str| frame(kind, id, head).pieces();
    vec![
        ("call-without-method", "R-HD-09", Plugin, Ready, "no method", "protocol_error",
            one(0x10, 1, "80")),
        ("call-method-nil", "R-HD-09", Plugin, Ready, "nil is absent", "protocol_error",
            one(0x10, 1, "81 a6'method' c0")),
        ("call-method-integer", "R-HD-09", Plugin, Ready, "the method is 5", "protocol_error",
            one(0x10, 1, "81 a6'method' 05")),
        ("call-deadline-negative", "R-HD-09", Plugin, Ready, "the deadline is -1", "protocol_error",
            one(0x10, 1, "82 a6'method' af'plugin.activate' a8'deadline' ff")),
        ("call-deadline-float", "R-HD-09", Plugin, Ready, "the deadline is 1.5", "protocol_error",
            one(0x10, 1, "82 a6'method' af'plugin.activate' a8'deadline' cb3ff8000000000000")),
        ("call-idle-string", "R-HD-09", Plugin, Ready, "the idle budget is a string", "protocol_error",
            one(0x10, 1, "82 a6'method' af'plugin.activate' a4'idle' a2'30'")),
        ("close-without-code", "R-HD-09", Plugin, Ready, "no code", "protocol_error",
            one(0x02, 0, "80")),
        ("end-err-without-code", "R-HD-09", Host, Open, "an error without a code", "protocol_error",
            one(0x12, 3, "81 a3'err' 80")),
        ("end-err-string", "R-HD-09", Host, Open, "an error that is a string", "protocol_error",
            one(0x12, 3, "81 a3'err' a4'oops'")),
        ("end-retry-boolean", "R-HD-09", Host, Open, "retry is true", "protocol_error",
            one(0x12, 3, "81 a3'err' 82 a4'code' a8'internal' a5'retry' c3")),
        ("cancel-reason-integer", "R-HD-09", Plugin, Open, "the reason is 1", "protocol_error",
            one(0x13, 3, "81 a6'reason' 01")),
        ("note-without-topic", "R-HD-09", Host, Active, "no topic", "protocol_error",
            one(0x90, 0, "80")),
        ("ping-too-long", "R-TO-07", Plugin, Ready, "65 bytes", "protocol_error",
            frame(0x03, 0, "80").body("00".repeat(65)).pieces()),
    ]
}

#[rustfmt::skip]
fn handshake() -> Vec<Row> {
    let hello = |head: &str| frame(0x01, 0, head).pieces();
    vec![
        ("first-frame-ping", "R-HS-03", Plugin, Start, "PING before HELLO", "bad_state",
            frame(0x03, 0, "80").pieces()),
        ("first-frame-call", "R-HS-03", Plugin, Start, "CALL before HELLO", "bad_state",
            frame(0x10, 1, "81 a6'method' af'plugin.activate'").pieces()),
        ("first-frame-note", "R-HS-03", Host, Start, "even a NOTE", "bad_state",
            frame(0x90, 0, "81 a5'topic' a3'log'").pieces()),
        ("hello-twice", "R-HS-07", Plugin, Ready, "a second HELLO", "bad_state",
            hello(&format!("82 a8'versions' 91 01 {LIMITS}"))),
        ("hello-other-versions", "R-HS-05", Plugin, Start, "versions 2 and 2570", "version_unsupported",
            hello(&format!("82 a8'versions' 92 02 cd0a0a {LIMITS}"))),
        ("hello-no-versions", "R-HS-05", Plugin, Start, "no versions at all", "version_unsupported",
            hello(&format!("81 {LIMITS}"))),
        ("hello-version-not-offered", "R-HS-05", Host, Start, "the plugin chose 2, which was not offered", "version_unsupported",
            hello(&format!("82 a7'version' 02 {LIMITS}"))),
        ("hello-without-limits", "R-HD-09", Plugin, Start, "no limits", "protocol_error",
            hello("81 a8'versions' 91 01")),
        ("hello-frame-below-floor", "R-HS-06", Plugin, Start, "frame 65535", "protocol_error",
            hello("82 a8'versions' 91 01 a6'limits' 83 a5'frame' cdffff a6'window' cd4000 a5'calls' 01")),
        ("hello-window-below-floor", "R-HS-06", Plugin, Start, "window 16383", "protocol_error",
            hello("82 a8'versions' 91 01 a6'limits' 83 a5'frame' ce00010000 a6'window' cd3fff a5'calls' 01")),
        ("hello-calls-0", "R-HS-06", Host, Start, "calls 0", "protocol_error",
            hello("82 a7'version' 01 a6'limits' 83 a5'frame' ce00010000 a6'window' cd4000 a5'calls' 00")),
        ("hello-calls-65536", "R-HD-09", Host, Start, "calls does not fit a u16", "protocol_error",
            hello("82 a7'version' 01 a6'limits' 83 a5'frame' ce00010000 a6'window' cd4000 a5'calls' ce00010000")),
    ]
}

#[rustfmt::skip]
fn ids_and_states() -> Vec<Row> {
    let call = |id| frame(0x10, id, "81 a6'method' a9'tool.call'").pieces();
    let end = |id| frame(0x12, id, "80").pieces();
    let two = |a: Vec<Piece>, b: Vec<Piece>| a.into_iter().chain(b).collect::<Vec<_>>();
    vec![
        ("call-id-0", "R-CA-02", Plugin, Active, "0 is the connection", "bad_id", call(0)),
        ("call-id-even", "R-CA-02", Plugin, Active, "even ids are the plugin's", "bad_id", call(2)),
        ("call-id-reused", "R-CA-02", Plugin, Active, "call 3 twice", "bad_id", two(call(3), call(3))),
        ("call-id-lower", "R-CA-02", Plugin, Active, "call 3 after call 5", "bad_id", two(call(5), call(3))),
        ("call-id-of-the-host", "R-CA-02", Host, Active, "a plugin that calls with an odd id", "bad_id", call(9)),
        ("call-without-reverse", "R-CA-11", Host, Active, "a plugin that calls its host", "bad_state", call(2)),
        ("call-in-without-stream-in", "R-ST-16", Plugin, Active, "a call with an input that nobody agreed to", "bad_state",
            frame(0x10, 3, "82 a6'method' a9'tool.call' a2'in' c3").pieces()),
        ("item-without-stream", "R-CA-11", Host, Open, "an ITEM that nobody agreed to", "bad_state",
            frame(0x11, 3, "80").body("c0").pieces()),
        ("credit-without-stream", "R-CA-11", Plugin, Open, "a CREDIT that nobody agreed to", "bad_state",
            frame(0x14, 3, "81 a1'n' 01").pieces()),
        ("item-id-0", "R-CA-12", Host, Open, "an ITEM of no call", "bad_id",
            frame(0x11, 0, "80").body("c0").pieces()),
        ("end-id-0", "R-CA-12", Host, Open, "an END of no call", "bad_id", end(0)),
        ("cancel-id-0", "R-CA-12", Plugin, Open, "a CANCEL of no call", "bad_id",
            frame(0x13, 0, "80").pieces()),
        ("end-never-opened", "R-CA-10", Host, Open, "the END of a call that was never made", "bad_id", end(9)),
        ("end-twice", "R-CA-10", Host, Open, "a second END", "bad_state", two(end(3), end(3))),
        ("end-from-caller", "R-CA-10", Plugin, Open, "the caller cannot end a call", "bad_state", end(3)),
        ("end-of-nothing-from-caller", "R-CA-10", Plugin, Open, "nor one that was never made", "bad_id", end(9)),
        ("cancel-from-callee", "R-CA-10", Host, Open, "only the caller cancels", "bad_state",
            frame(0x13, 3, "80").pieces()),
        ("deactivate-ends-first", "R-LC-09", Host, Draining, "END of plugin.deactivate with three calls open", "bad_state", end(9)),
    ]
}

#[rustfmt::skip]
fn streams() -> Vec<Row> {
    let item = |id| frame(0x11, id, "80").body("c0").pieces();
    let credit = |id, n: &str| frame(0x14, id, format!("81 a1'n' {n}")).pieces();
    // The window has 16384 bytes, and one item may overdraw it.
    let large = || frame(0x11, 7, "80").body(format!("c5 3fed {}", "00".repeat(0x3fed))).pieces();
    vec![
        ("item-never-opened", "R-CA-10", Host, Open, "an ITEM of a call that was never made", "bad_id", item(9)),
        ("item-after-end", "R-CA-10", Host, Active, "an ITEM of a call that has ended", "bad_state", item(1)),
        ("item-from-caller", "R-CA-11", Plugin, Open, "items go from callee to caller without stream.in", "bad_state", item(3)),
        ("item-without-credit", "R-ST-05", Host, Open, "one ITEM of the whole window, and one more", "flow_error",
            large().into_iter().chain(item(7)).collect()),
        ("credit-from-callee", "R-CA-11", Host, Open, "and credit from caller to callee", "bad_state", credit(3, "01")),
        ("credit-0", "R-ST-06", Plugin, Open, "CREDIT of nothing", "flow_error", credit(3, "00")),
        ("credit-overflow", "R-ST-06", Plugin, Open, "2^31 - 1 besides the window that is there already", "flow_error",
            credit(3, "ce7fffffff")),
        ("credit-without-n", "R-HD-09", Plugin, Open, "CREDIT of how much?", "protocol_error", frame(0x14, 3, "80").pieces()),
        ("credit-id-0", "R-CA-12", Plugin, Open, "CREDIT for no call", "bad_id", credit(0, "01")),
    ]
}

#[rustfmt::skip]
fn reverse() -> Vec<Row> {
    let call = |id, parent: &str| {
        frame(0x10, id, format!("82 a6'method' ae'host.tool.call' a6'parent' {parent}")).body(FS_READ).pieces()
    };
    vec![
        ("reverse-in-ready", "R-RV-03", Host, Ready, "a plugin that calls before it is activated", "bad_state",
            frame(0x10, 2, "81 a6'method' ae'host.tool.call'").body(FS_READ).pieces()),
        ("reverse-parent-closed", "R-RV-03", Host, Open, "for a call that has ended", "bad_state", call(4, "01")),
        ("reverse-parent-never-opened", "R-RV-03", Host, Open, "for a call that was never made", "bad_state", call(4, "09")),
        ("reverse-parent-own", "R-RV-03", Host, Open, "for a call of its own", "bad_state", call(4, "02")),
        ("reverse-id-odd", "R-CA-02", Host, Open, "odd ids are the host's", "bad_id", call(9, "03")),
        ("reverse-id-reused", "R-CA-02", Host, Open, "call 2 twice", "bad_id", call(2, "03")),
        ("parent-ends-first", "R-RV-04", Host, Open, "END of call 3 while call 2 serves it", "bad_state",
            frame(0x12, 3, "80").pieces()),
        ("reverse-end-never-opened", "R-CA-10", Plugin, Open, "END of a call that the plugin never made", "bad_id",
            frame(0x12, 4, "80").pieces()),
        ("reverse-cancel-from-host", "R-CA-10", Plugin, Open, "only the plugin cancels its call", "bad_state",
            frame(0x13, 2, "80").pieces()),
        ("reverse-scopes-string", "R-HD-09", Host, Open, "scopes mean nothing here, and have a type nevertheless", "protocol_error",
            frame(0x10, 4, "83 a6'method' ae'host.tool.call' a6'parent' 03 a6'scopes' a1'x'").pieces()),
    ]
}

#[rustfmt::skip]
fn input() -> Vec<Row> {
    let item = |id| frame(0x11, id, "80").body("c0").pieces();
    let end = |id| frame(0x12, id, "80").pieces();
    let two = |a: Vec<Piece>, b: Vec<Piece>| a.into_iter().chain(b).collect::<Vec<_>>();
    vec![
        ("input-of-call-without-in", "R-CA-10", Plugin, Open, "call 3 has no input", "bad_state", item(3)),
        ("input-never-opened", "R-CA-10", Plugin, Open, "an ITEM of a call that was never made", "bad_id", item(9)),
        ("input-after-its-end", "R-CA-10", Plugin, Open, "an ITEM after the END of the input", "bad_state", two(end(7), item(7))),
        ("input-ends-twice", "R-CA-10", Plugin, Open, "a second END of the input", "bad_state", two(end(7), end(7))),
    ]
}

/// Reverse calls that authority does not cover. The connection lives on.
fn without_right() -> Vec<Invalid> {
    let rows: [(&str, &str, &str, Vec<Piece>); 3] = [
        (
            "reverse-not-granted",
            "R-SC-06",
            "the grant covers fs_* only",
            frame(0x10, 4, "82 a6'method' ae'host.tool.call' a6'parent' 03")
                .body("81 a4'name' a7'db_read'")
                .pieces(),
        ),
        (
            "reverse-narrowed-away",
            "R-SC-08",
            "the scopes of call 5 are none",
            frame(0x10, 4, "82 a6'method' ae'host.tool.call' a6'parent' 05").body(FS_READ).pieces(),
        ),
        (
            "reverse-method-not-granted",
            "R-SC-06",
            "whether the host has the method is told to nobody without right",
            frame(0x10, 4, "82 a6'method' a9'host.nope' a6'parent' 03").pieces(),
        ),
    ];
    let refused = |(name, rule, about, pieces)| Invalid {
        name,
        about,
        rule,
        receiver: Host,
        state: Open,
        level: L3,
        pieces,
        eof: false,
        expect: Expect::Refused("permission_denied", "pb.scope_denied"),
    };
    rows.into_iter().map(refused).collect()
}

/// Bodies of call 3. The connection lives on.
fn bodies() -> Vec<Invalid> {
    let rows: [(&str, &str, &str, String); 9] = [
        ("body-trailing-byte", "R-HD-10", "a second value", "c0 c0".into()),
        ("body-short", "R-HD-10", "a map without its pair", "81".into()),
        ("body-unused-marker", "R-HD-10", "the marker c1", "c1".into()),
        ("body-extension", "R-HD-10", "an extension type", "91 d6ff 00000000".into()),
        ("body-key-integer", "R-HD-10", "a key that is 1", "81 01 01".into()),
        ("body-not-utf8", "R-HD-10", "a string that is not UTF-8", "a2c080".into()),
        (
            "body-claims-4-gib",
            "R-HD-10",
            "an array that claims 2^32 - 1 items",
            "ddffffffff".into(),
        ),
        (
            "body-too-deep",
            "R-HD-11",
            "129 arrays inside one another",
            format!("{}c0", "91".repeat(129)),
        ),
        (
            "body-far-too-deep",
            "R-HD-11",
            "10000 arrays inside one another: refused without running out of stack",
            format!("{}c0", "91".repeat(10_000)),
        ),
    ];
    rows.into_iter()
        .map(|(name, rule, about, body)| Invalid {
            name,
            about,
            rule,
            receiver: Plugin,
            state: Active,
            level: L0,
            pieces: frame(0x10, 3, "81 a6'method' a9'tool.call'").body(body).pieces(),
            eof: false,
            expect: Expect::BadBody,
        })
        .collect()
}
