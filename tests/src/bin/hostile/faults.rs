//! The modes: each of them deviates from a correct plugin in exactly one way.

use std::{
    io::{self, Write},
    process,
    sync::Arc,
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, dup2_stderr, dup2_stdout},
};
use plugbay_tests::wire::{self, Frame, INTEGER_MAX, Value, Width, empty, kind, map};

use crate::{
    args::Args,
    kin,
    pen::Style,
    plugin::{Fault, Flow, Habits, Plugin, Point, Rung, Scene, Strike, limits},
    tools, trees,
};

/// One way to be.
#[derive(Debug)]
pub(crate) struct Mode {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Where the fault strikes unless `at=` says otherwise.
    pub(crate) at: Option<Point>,
    pub(crate) strike: Option<Strike>,
    pub(crate) shape: fn(&Args, &mut Habits),
}

const fn habit(name: &'static str, about: &'static str, shape: fn(&Args, &mut Habits)) -> Mode {
    Mode { name, about, at: None, strike: None, shape }
}

pub(crate) const fn fault(
    name: &'static str,
    at: Point,
    about: &'static str,
    strike: Strike,
) -> Mode {
    Mode { name, about, at: Some(at), strike: Some(strike), shape: |_, _| {} }
}

pub(crate) fn find(name: &str) -> Option<&'static Mode> {
    all().find(|mode| mode.name == name)
}

/// All of them.
pub(crate) fn all() -> impl Iterator<Item = &'static Mode> {
    MODES.iter().chain(trees::MODES)
}

/// By subject; those about processes are [elsewhere](trees::MODES).
const MODES: &[Mode] = &[
    // Correct, in ways that are easy to get wrong on the other side.
    habit("good", "a correct plugin of level L1", |_, _| {}),
    habit("serial", "a correct plugin of level L0: one call at a time, no async", serial),
    habit("no-cookie", "correct, and starts without PLUGBAY_PROTOCOL too", |_, h| h.cookie = false),
    habit("greases", "correct; sends all that must be ignored with every frame", greases),
    habit("byte-by-byte", "correct; writes size=1 bytes at a time, ms=0 apart", pieces),
    habit("coalesced", "correct; several frames leave in one write", |_, h| {
        h.style = Style::Together;
    }),
    habit("wide-ints", "correct; style=u64, i64 or all (strings and maps too)", wide),
    habit("tiny-limits", "correct; announces the smallest limits there are, calls=1", |_, h| {
        h.limits = limits(65_536, 16_384, 1);
        (h.frame, h.calls) = (65_536, 1);
    }),
    fault(
        "exact-frame",
        Point::Active,
        "correct; sends a frame exactly as large as allowed",
        |p, _| sized_note(p, 0),
    ),
    fault("ping-host", Point::Active, "correct; sends a PING with size=8 bytes of body", |p, _| {
        let body = (0..p.args.number("size", 8)).map(|n| n as u8).collect();
        p.send(&Frame { body, ..Frame::new(kind::PING, 0, empty()) });
        Flow::Go
    }),
    fault("retire", Point::Active, "correct; asks to be retired for reason=upgrade", |p, _| {
        let head =
            [("topic", "retire".into()), ("reason", p.args.text("reason", "upgrade").into())];
        p.send(&Frame::new(kind::NOTE, 0, map(head)));
        Flow::Go
    }),
    fault("slow-activate", Point::Activating, "answers activate after ms=200", |p, scene| {
        thread::sleep(ms(p, 200));
        p.activated(scene.id, &empty());
        Flow::Done
    }),
    fault(
        "activate-provides",
        Point::Activating,
        "activate answers with keep=echo as its only tools",
        |p, scene| {
            let provides = tools::manifest(Some(p.args.text("keep", "echo")));
            p.activated(scene.id, &map([("provides", provides.into())]));
            Flow::Done
        },
    ),
    // The handshake.
    fault("banner", Point::Start, "prints text= before HELLO", print),
    fault("prefix", Point::Start, "sends which=bom, newline or space before HELLO", |p, _| {
        let which = p.args.text("which", "bom");
        let bytes: &[u8] = match which {
            "bom" => b"\xEF\xBB\xBF",
            "newline" => b"\n",
            "space" => b" ",
            _ => p.args.wrong("which", "bom, newline or space"),
        };
        raw(p, bytes)
    }),
    fault("swapped", Point::Hello, "writes its frames to stderr and its log to stdout", |p, _| {
        io::stderr().write_all(&note().bytes()).ok();
        raw(p, b"2026-12-02T10:00:00Z INFO ready to serve\n");
        Flow::Done
    }),
    fault("silent", Point::Hello, "never says hello", |_, _| Flow::Done),
    fault("slow-hello", Point::Hello, "says hello after ms=500", |p, _| {
        thread::sleep(ms(p, 500));
        Flow::Go
    }),
    fault(
        "eager-hello",
        Point::Start,
        "says hello before the host did, and again after",
        |p, _| {
            p.send_hello();
            Flow::Go
        },
    ),
    fault("double-hello", Point::Ready, "says hello twice", |p, _| {
        p.send_hello();
        Flow::Go
    }),
    fault("note-first", Point::Hello, "sends a NOTE before its HELLO", |p, _| {
        p.log("info", "hostile.early", "");
        Flow::Go
    }),
    fault("end-first", Point::Hello, "sends an END before its HELLO", |p, _| {
        p.send(&Frame::new(kind::END, 1, empty()));
        Flow::Go
    }),
    habit("wrong-version", "announces version=99", |args, h| {
        h.protocol = args.number("version", 99).into();
        // The same key means the plugin's own version everywhere else.
        h.identity = map([("name", "plugbay.hostile".into()), ("version", "0.1.0".into())]);
    }),
    fault(
        "version-close",
        Point::Hello,
        "closes with version_unsupported, supported 2 and 3",
        |p, _| {
            let supported: Vec<Value> = vec![2.into(), 3.into()];
            close(
                p,
                map([("code", "version_unsupported".into()), ("supported", supported.into())]),
                "",
            );
            process::exit(1)
        },
    ),
    habit(
        "low-limits",
        "announces limits below the floor; which=frame, window or calls",
        low_limits,
    ),
    habit("no-limits", "announces no limits", |_, h| h.limits = Value::Nil),
    habit("unoffered-feature", "announces feature=stream, which nobody offered", |args, h| {
        h.features = vec![args.text("feature", "stream").into()];
    }),
    habit("no-identity", "correct; announces neither name nor version", |_, h| {
        h.identity = empty()
    }),
    fault("huge-hello", Point::Hello, "says hello with a body of bytes=1048577", |p, _| {
        let body = Value::Bin(vec![0; p.args.number("bytes", (1 << 20) + 1) as usize]).bytes();
        let head = map([("version", 1.into()), ("limits", p.habits.limits.clone())]);
        p.send(&Frame { body, ..Frame::new(kind::HELLO, 0, head) });
        Flow::Done
    }),
    fault(
        "bad-manifest-body",
        Point::Hello,
        "says hello with a body that is no MessagePack",
        |p, _| {
            let head = map([
                ("version", 1.into()),
                ("features", Value::Array(Vec::new())),
                ("limits", p.habits.limits.clone()),
                ("plugin", p.habits.identity.clone()),
            ]);
            p.send(&Frame { body: vec![0xC1, 0xC1], ..Frame::new(kind::HELLO, 0, head) });
            Flow::Done
        },
    ),
    // The manifest.
    habit("wrong-tools", "provides one tool, `surprise`, that no manifest names", |_, h| {
        h.provides = vec![plain("surprise")];
    }),
    habit("duplicate-tools", "provides `echo` twice", |_, h| {
        h.provides.extend(tools::manifest(Some("echo")));
    }),
    habit(
        "bad-names",
        "provides names=... separated by `;` (default: a selection of bad ones)",
        bad_names,
    ),
    habit(
        "bad-schema",
        "provides `odd` with a bad schema; which=type, array, ref, remote, deep, root or none",
        bad_schema,
    ),
    habit("bad-effect", "provides `odd` with effect=destroy", |args, h| {
        h.provides = vec![tools::tool(
            "odd",
            "",
            args.text("effect", "destroy"),
            false,
            tools::schema(empty()),
        )];
    }),
    habit("many-tools", "provides n=1000 tools", |args, h| {
        h.provides = (0..args.number("n", 1000)).map(|n| plain(&format!("tool_{n}"))).collect();
    }),
    habit("long-description", "provides `odd` with a description of bytes=1000000", |args, h| {
        let words = "x".repeat(args.number("bytes", 1_000_000) as usize);
        h.provides = vec![tools::tool("odd", &words, "read", true, tools::schema(empty()))];
    }),
    // Frames.
    fault("stray", Point::Active, "prints text= to the host between two frames", print),
    fault("bad-magic", Point::Active, "sends a frame whose first byte is not C1", |p, _| {
        let mut bytes = note().bytes();
        bytes[0] = 0xC0;
        raw(p, &bytes)
    }),
    fault("bad-type", Point::Active, "sends a frame of the unknown critical type=63", |p, _| {
        let kind = p.args.number("type", 0x3F) as u8;
        raw(p, &Frame { kind, ..note() }.bytes())
    }),
    fault(
        "bad-id",
        Point::Active,
        "sends an id where 0 belongs; which=ping, pong, hello or close",
        |p, _| {
            let kind = match p.args.text("which", "ping") {
                "ping" => kind::PING,
                "pong" => kind::PONG,
                "hello" => kind::HELLO,
                "close" => kind::CLOSE,
                _ => p.args.wrong("which", "ping, pong, hello or close"),
            };
            raw(p, &Frame::new(kind, 7, map([("code", "internal".into())])).bytes())
        },
    ),
    fault("bad-gap", Point::Active, "sends a gap that is not zero", |p, _| {
        let head_end = wire::HEADER + note().head.bytes().len();
        let mut bytes = note().bytes();
        bytes[head_end] = 1;
        raw(p, &bytes)
    }),
    fault(
        "bad-head",
        Point::Active,
        "sends a head as no head may be; which=dup, ... on=note, end, ping or close",
        bad_head,
    ),
    fault(
        "huge-frame",
        Point::Active,
        "declares a body of 4 GiB and sends send=0 bytes of it",
        |p, _| {
            let mut bytes = wire::header(kind::NOTE, 1, 0, u32::MAX);
            bytes.extend(empty().bytes());
            bytes.resize(bytes.len() + 3 + p.args.number("send", 0) as usize, 0);
            raw(p, &bytes)
        },
    ),
    fault(
        "oversize-frame",
        Point::Active,
        "sends a frame over=1 bytes larger than allowed",
        |p, _| sized_note(p, p.args.number("over", 1) as usize),
    ),
    fault(
        "half-frame",
        Point::Active,
        "stops within a frame; cut=header, head, gap or body; then=exit, hang or eof",
        half_frame,
    ),
    fault(
        "small-bodies",
        Point::Active,
        "correct; sends NOTEs with bodies of no byte and of one",
        |p, _| {
            let head = map([("topic", "grease.small".into())]);
            p.send(&Frame::new(kind::NOTE, 0, head.clone()));
            p.send(&Frame { body: vec![0xC0], ..Frame::new(kind::NOTE, 0, head) });
            Flow::Go
        },
    ),
    fault("fat-ping", Point::Active, "sends a PING with 65 bytes of body", |p, _| {
        raw(p, &Frame { body: vec![7; 65], ..Frame::new(kind::PING, 0, empty()) }.bytes())
    }),
    fault("garbage", Point::Active, "writes bytes=4096 of noise to the host", |p, _| {
        raw(p, &noise(p.args.number("bytes", 4096) as usize))
    }),
    // Calls.
    fault("double-end", Point::Call, "ends every call twice", |p, scene| {
        p.end(scene.id, &p.result("once", None));
        p.end(scene.id, &p.result("twice", None));
        Flow::Done
    }),
    fault("end-unknown-id", Point::Active, "ends a call that was never made; id=999", |p, _| {
        let id = p.args.number("id", 999) as u32;
        p.send(&Frame::new(kind::END, id, empty()).with(&p.result("for nobody", None)));
        Flow::Go
    }),
    fault(
        "swap-ids",
        Point::Call,
        "answers every second call under the id of the one before",
        swap_ids,
    ),
    fault(
        "note-unknown-id",
        Point::Call,
        "correct; sends progress for calls that are over or were never made",
        |p, scene| {
            p.progress(scene.id.wrapping_sub(2), 1, None, "late");
            p.progress(scene.id + 1000, 1, None, "early");
            Flow::Go
        },
    ),
    fault("backward-progress", Point::Call, "sends progress that goes down", |p, scene| {
        [5, 3, 9, 1].iter().for_each(|n| p.progress(scene.id, *n, Some(4), "confused"));
        Flow::Go
    }),
    fault(
        "item-unnegotiated",
        Point::Call,
        "sends an ITEM without the feature stream",
        |p, scene| {
            p.send(&Frame::new(kind::ITEM, scene.id, empty()).with(&Value::Int(1)));
            Flow::Go
        },
    ),
    fault("credit", Point::Call, "sends a CREDIT without the feature stream", |p, scene| {
        p.send(&Frame::new(kind::CREDIT, scene.id, map([("n", 65_536.into())])));
        Flow::Go
    }),
    fault("cancel-host", Point::Call, "sends a CANCEL for the host's own call", |p, scene| {
        p.send(&Frame::new(kind::CANCEL, scene.id, empty()));
        Flow::Go
    }),
    fault(
        "call-host",
        Point::Active,
        "calls method=host.tool.call under id=2 without the feature reverse",
        |p, _| {
            let id = p.args.number("id", 2) as u32;
            let method = p.args.text("method", "host.tool.call");
            p.send(&Frame::new(kind::CALL, id, map([("method", method.into())])).with(&empty()));
            Flow::Go
        },
    ),
    fault("drip", Point::Call, "answers one byte each ms=50, CANCEL or not", |p, scene| {
        let (plugin, result) = (Arc::clone(p), p.result("drop by drop", None));
        p.pen.flush();
        thread::spawn(move || {
            for byte in Frame::new(kind::END, scene.id, empty()).with(&result).bytes() {
                plugin.pen.write(&[byte]);
                thread::sleep(ms(&plugin, 50));
            }
        });
        Flow::Done
    }),
    fault("never-answers", Point::Call, "never answers a call, not even after CANCEL", |_, _| {
        Flow::Done
    }),
    fault(
        "answers-late",
        Point::Call,
        "answers every call after ms=1000, CANCEL or not",
        |p, scene| {
            let plugin = Arc::clone(p);
            thread::spawn(move || {
                thread::sleep(ms(&plugin, 1000));
                plugin.end(scene.id, &plugin.result("late", None));
            });
            Flow::Done
        },
    ),
    fault("chatty", Point::Call, "sends progress each ms=20 and never answers", |p, scene| {
        let plugin = Arc::clone(p);
        thread::spawn(move || {
            for n in 1.. {
                plugin.progress(scene.id, n, None, "still at it");
                thread::sleep(ms(&plugin, 20));
            }
        });
        Flow::Done
    }),
    habit("ignores-cancel", "takes no notice of CANCEL; calls end when they are done", |_, h| {
        h.deaf_to_cancel = true;
    }),
    fault("huge-result", Point::Call, "answers with bytes=1000000 of text", |p, scene| {
        let words = "x".repeat(p.args.number("bytes", 1_000_000) as usize);
        p.end(scene.id, &p.result(&words, None));
        Flow::Done
    }),
    fault("deep-result", Point::Call, "answers with data nested depth=10000 deep", |p, scene| {
        let depth = p.args.number("depth", 10_000) as usize;
        let data = [vec![0x91; depth], vec![0xC0]].concat();
        p.end(scene.id, &p.result("deep", Some(Value::Raw(data))));
        Flow::Done
    }),
    fault(
        "bad-result",
        Point::Call,
        "answers with a bad body; which=empty, cut, ext, never, trailing, utf8, dup, intkey, nil, array, content, block, huge, huge-list, huge-bytes, huge-ext, nan or bigint",
        bad_result,
    ),
    fault(
        "bad-end",
        Point::Call,
        "ends with a bad fault; which=code, err, retry, after, reason or body",
        bad_end,
    ),
    fault(
        "is-error",
        Point::Call,
        "correct; answers every call with a failure of the tool",
        |p, scene| {
            let mut result = p.result("it did not work out", None);
            result.put("is_error", true);
            p.end(scene.id, &result);
            Flow::Done
        },
    ),
    // The lifecycle.
    fault(
        "activate-error",
        Point::Activating,
        "refuses activate with code=invalid_argument, retry=no",
        |p, scene| {
            let fault = Fault::new(
                p.args.text("code", "invalid_argument"),
                "this configuration will not do",
            );
            p.life().phase = crate::plugin::Phase::Ready;
            p.fail(scene.id, fault.because("hostile.bad_config").retry(p.args.text("retry", "no")));
            Flow::Done
        },
    ),
    fault("activate-never", Point::Activating, "never answers activate", |_, _| Flow::Done),
    fault("activate-crash", Point::Activating, "dies of signal=SIGSEGV when activated", |p, _| {
        crash(p)
    }),
    fault(
        "activate-bad-result",
        Point::Activating,
        "answers activate with a body that is no MessagePack",
        |p, scene| {
            p.life().phase = crate::plugin::Phase::Active;
            p.end_raw(scene.id, vec![0xC1]);
            Flow::Done
        },
    ),
    fault("ignores-deactivate", Point::Draining, "never answers deactivate", |_, _| Flow::Done),
    fault(
        "deactivate-error",
        Point::Draining,
        "refuses deactivate with code=internal",
        |p, scene| {
            p.life().phase = crate::plugin::Phase::Active;
            p.fail(scene.id, Fault::new(p.args.text("code", "internal"), "it would not let go"));
            Flow::Done
        },
    ),
    fault(
        "early-deactivate",
        Point::Draining,
        "answers deactivate before the calls that are open",
        |p, scene| {
            p.life().phase = crate::plugin::Phase::Ready;
            p.end(scene.id, &empty());
            Flow::Done
        },
    ),
    habit("busy-deactivate", "refuses n=1 times to be deactivated while idle", |args, h| {
        h.busy = args.number("n", 1);
    }),
    fault("close-ok", Point::Active, "sends CLOSE ok on its own and exits 0", |p, _| {
        close(p, map([("code", "ok".into())]), "");
        process::exit(0)
    }),
    fault(
        "close-error",
        Point::Active,
        "sends CLOSE code=internal with msg= and exits 1",
        |p, _| {
            let code = p.args.text("code", "internal").to_owned();
            close(p, map([("code", code.into())]), p.args.text("msg", "it cannot go on"));
            process::exit(1)
        },
    ),
    // Death.
    fault(
        "exits-early",
        Point::Hello,
        "exits with code=1 before HELLO, after a line on stderr",
        |p, _| {
            eprintln!("hostile: cannot find the thing it needs");
            exit(p)
        },
    ),
    fault("exit-after-hello", Point::Ready, "exits with code=1 after HELLO", |p, _| exit(p)),
    fault("exit-on-call", Point::Call, "exits with code=1 on a call", |p, _| exit(p)),
    fault("crash-on-call", Point::Call, "dies of signal=SIGSEGV on a call", |p, _| crash(p)),
    fault("crash-after", Point::Call, "dies of signal=SIGSEGV on call number n=3", |p, _| {
        if p.life().calls < p.args.number("n", 3) { Flow::Go } else { crash(p) }
    }),
    fault(
        "crash-loop",
        Point::Active,
        "dies of signal=SIGSEGV ms=0 after each activation",
        |p, _| {
            let plugin = Arc::clone(p);
            if plugin.args.get("ms").is_none() {
                return crash(p);
            }
            thread::spawn(move || {
                thread::sleep(ms(&plugin, 0));
                crash(&plugin)
            });
            Flow::Go
        },
    ),
    fault("exit", Point::Active, "exits with code=1 at any point", |p, _| exit(p)),
    fault("crash", Point::Active, "dies of signal=SIGSEGV at any point", |p, _| crash(p)),
    fault("panic", Point::Call, "panics on a call", |_, _| panic!("the disk is on fire")),
    fault("overflow", Point::Call, "calls itself on a call until its stack is full", |p, _| {
        p.trace(&format!("depth {}", deeper(1)));
        Flow::Go
    }),
    habit("exit-status", "exits with code=9 after CLOSE or the end of stdin", |args, h| {
        h.exit = (args.number("code", 9) as i32, Duration::ZERO);
    }),
    habit("slow-exit", "exits ms=500 after CLOSE or the end of stdin", |args, h| {
        h.exit = (0, Duration::from_millis(args.number("ms", 500)));
    }),
    // Pipes.
    fault("eof", Point::Active, "closes stdout at any point and lives on", |p, _| eof(p)),
    fault("eof-before-hello", Point::Hello, "closes stdout before HELLO and lives on", |p, _| {
        eof(p)
    }),
    fault("eof-in-ready", Point::Ready, "closes stdout after HELLO and lives on", |p, _| eof(p)),
    fault(
        "eof-in-activating",
        Point::Activating,
        "closes stdout instead of answering activate",
        |p, _| eof(p),
    ),
    fault("eof-in-active", Point::Active, "closes stdout once active and lives on", |p, _| eof(p)),
    fault("eof-in-call", Point::Call, "closes stdout with a call open and lives on", |p, _| eof(p)),
    fault(
        "eof-in-draining",
        Point::Draining,
        "closes stdout instead of answering deactivate",
        |p, _| eof(p),
    ),
    fault("closes-stdin", Point::Active, "closes its end of stdin and lives on", |p, _| {
        if let Err(error) = p.stdin.close() {
            eprintln!("plugbay-hostile: cannot close stdin: {error}");
        }
        kin::park()
    }),
    fault("closes-stderr", Point::Active, "closes stderr and lives on, correctly", |_, _| {
        // Descriptor 1 is a second way to it, see `take_stdio`.
        let closed = std::fs::File::open("/dev/null")
            .and_then(|null| Ok(dup2_stdout(&null).and_then(|()| dup2_stderr(&null))?));
        if let Err(error) = closed {
            eprintln!("plugbay-hostile: cannot close stderr: {error}");
        }
        Flow::Go
    }),
    fault(
        "stops-reading",
        Point::Active,
        "never reads its stdin again; what is open goes on",
        |_, _| kin::park(),
    ),
    fault("mute", Point::Active, "goes on reading and never writes again", |p, _| {
        p.pen.silence();
        Flow::Go
    }),
    fault("hang", Point::Active, "neither reads nor writes again", |p, _| {
        p.pen.silence();
        kin::park()
    }),
    fault("stop-self", Point::Active, "stops itself with SIGSTOP", |p, _| {
        if let Err(error) = kin::start_guardian(&p.args) {
            // Without it nothing would end this process.
            eprintln!("plugbay-hostile: will not stop without a guardian: {error}");
            process::exit(1);
        }
        if let Err(error) = kill(Pid::this(), Signal::SIGSTOP) {
            eprintln!("plugbay-hostile: cannot stop: {error}");
        }
        Flow::Go
    }),
    fault(
        "meddles",
        Point::Ready,
        "correct; makes its pipes small and its stdout non-blocking",
        |p, _| {
            if let Err(error) = p.meddle() {
                eprintln!("plugbay-hostile: cannot meddle with the pipes: {error}");
            }
            Flow::Go
        },
    ),
    habit("no-pong", "never answers PING", |_, h| h.no_pong = true),
    // Floods: on a thread of their own, so the plugin stays correct otherwise.
    fault("flood-stdout", Point::Active, "sends valid NOTEs as fast as it can", |p, _| {
        flood(p, |_, _| note().bytes())
    }),
    fault(
        "flood-progress",
        Point::Call,
        "sends progress for each call as fast as it can, and runs it",
        |p, scene| {
            let plugin = Arc::clone(p);
            thread::spawn(move || {
                for n in 1_u64.. {
                    let head = map([("topic", "progress".into()), ("n", n.into())]);
                    let open = plugin.life().open.contains_key(&scene.id);
                    if !open || !plugin.pen.flood(&Frame::new(kind::NOTE, scene.id, head).bytes()) {
                        return;
                    }
                }
            });
            Flow::Go
        },
    ),
    fault(
        "flood-big-notes",
        Point::Active,
        "sends the largest NOTEs allowed as fast as it can",
        |p, _| flood(p, |p, _| sized(p.life().host_frame).bytes()),
    ),
    fault(
        "flood-unknown",
        Point::Active,
        "sends ignorable frames of unknown type as fast as it can",
        |p, _| {
            flood(p, |_, n| {
                Frame::new(0xE0 + (n % 16) as u8, n as u32, empty())
                    .with(&Value::Bin(vec![0; 900]))
                    .bytes()
            })
        },
    ),
    fault("flood-garbage", Point::Active, "writes noise as fast as it can", |p, _| {
        flood(p, |_, n| noise(4096 + (n % 7) as usize))
    }),
    fault(
        "flood-pings",
        Point::Active,
        "sends PINGs as fast as it can; deaf=1: and reads nothing",
        |p, _| {
            flood(p, |_, n| {
                Frame { body: n.to_be_bytes().to_vec(), ..Frame::new(kind::PING, 0, empty()) }
                    .bytes()
            });
            if p.args.number("deaf", 0) == 1 { kin::park() } else { Flow::Go }
        },
    ),
    fault(
        "flood-ends",
        Point::Active,
        "sends ENDs that nobody waits for as fast as it can",
        |p, _| flood(p, |_, n| Frame::new(kind::END, 2 * n as u32 + 1, empty()).bytes()),
    ),
    fault(
        "flood-calls",
        Point::Active,
        "calls the host as fast as it can, without the feature reverse",
        |p, _| {
            flood(p, |_, n| {
                let head = map([("method", "host.tool.call".into())]);
                Frame::new(kind::CALL, 2 * n as u32 + 2, head).bytes()
            })
        },
    ),
    fault(
        "flood-stderr",
        Point::Active,
        "writes bytes=67108864 to stderr in lines of line=80; line=0: no line ends",
        flood_stderr,
    ),
    // Stopping it.
    habit("ignores-close", "exits at the end of stdin only, or by a signal", |_, h| {
        h.until = Rung::Eof
    }),
    habit("ignores-eof", "ignores CLOSE and the end of stdin; SIGTERM ends it", |_, h| {
        h.until = Rung::Term
    }),
    habit("ignores-term", "ignores CLOSE, the end of stdin and SIGTERM", |_, h| {
        h.until = Rung::Kill
    }),
    fault(
        "fork-child",
        Point::Active,
        "starts a process in its group that holds the pipes and ignores SIGTERM",
        |p, _| {
            grandchild(p, false);
            Flow::Go
        },
    ),
    fault(
        "escape-child",
        Point::Active,
        "the same, but the process leaves the group and the session",
        |p, _| {
            grandchild(p, true);
            Flow::Go
        },
    ),
    fault(
        "orphan",
        Point::Active,
        "starts such a process and exits with code=0; escape=1: it leaves the group too",
        |p, _| {
            grandchild(p, p.args.number("escape", 0) == 1);
            p.pen.flush();
            process::exit(p.args.number("code", 0) as i32)
        },
    ),
];

fn ms(plugin: &Plugin, default: u64) -> Duration {
    Duration::from_millis(plugin.args.number("ms", default))
}

fn raw(plugin: &Plugin, bytes: &[u8]) -> Flow {
    plugin.pen.write(bytes);
    Flow::Go
}

fn print(plugin: &Arc<Plugin>, _: Scene) -> Flow {
    let text = plugin.args.text("text", "Welcome to the hostile plugin!");
    raw(plugin, format!("{text}\n").as_bytes())
}

fn note() -> Frame {
    let head =
        map([("topic", "log".into()), ("lvl", "info".into()), ("event", "hostile.note".into())]);
    Frame::new(kind::NOTE, 0, head).with(&map([("msg", "nothing to see".into())]))
}

/// A NOTE of exactly this many bytes.
fn sized(bytes: usize) -> Frame {
    let head = map([("topic", "grease.large".into())]);
    // A 32-bit length in every case, so that no size is out of reach.
    let fixed = wire::size(head.bytes().len(), 1) - 1 + 5;
    let len = bytes.saturating_sub(fixed);
    let mut body = vec![0xC6];
    body.extend((len as u32).to_be_bytes());
    body.resize(5 + len, 0);
    Frame { body, ..Frame::new(kind::NOTE, 0, head) }
}

fn sized_note(plugin: &Plugin, over: usize) -> Flow {
    let size = plugin.life().host_frame + over;
    raw(plugin, &sized(size).bytes())
}

/// Bytes that look like nothing, the same in every run.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_u32;
    let byte = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        // Never C1, so that it is noise from its first byte.
        (state as u8).max(1) & 0x7F
    };
    (0..len).map(byte).collect()
}

fn close(plugin: &Plugin, head: Value, message: &str) {
    let frame = Frame::new(kind::CLOSE, 0, head);
    let told = if message.is_empty() { frame } else { frame.with(&map([("msg", message.into())])) };
    plugin.send(&told);
    plugin.pen.flush();
}

fn exit(plugin: &Plugin) -> Flow {
    plugin.pen.flush();
    process::exit(plugin.args.number("code", 1) as i32)
}

fn crash(plugin: &Plugin) -> Flow {
    plugin.pen.flush();
    kin::die_of(plugin.args.text("signal", "SIGSEGV"))
}

/// Grows the stack for as long as there is some.
fn deeper(depth: u64) -> u64 {
    let room = std::hint::black_box([depth; 512]);
    if depth == u64::MAX { 0 } else { deeper(depth + 1).wrapping_add(room[7]) }
}

fn eof(plugin: &Plugin) -> Flow {
    plugin.pen.flush();
    plugin.pen.close();
    Flow::Go
}

fn grandchild(plugin: &Plugin, escape: bool) {
    match kin::start(
        plugin,
        if escape { "session" } else { "plain" },
        "all",
        plugin.args.number("life", 60),
    ) {
        Ok(child) => plugin.trace(&format!("grandchild {}", child.id())),
        Err(error) => {
            eprintln!("plugbay-hostile: cannot start a grandchild: {error}");
            process::exit(1)
        }
    }
}

fn serial(_: &Args, habits: &mut Habits) {
    habits.serial = true;
    habits.calls = 1;
    habits.limits = limits(habits.frame as u64, 1 << 18, 1);
}

fn pieces(args: &Args, habits: &mut Habits) {
    let size = args.number("size", 1).max(1) as usize;
    habits.style = Style::Pieces { size, pause: Duration::from_millis(args.number("ms", 0)) };
}

fn wide(args: &Args, habits: &mut Habits) {
    habits.width = match args.text("style", "u64") {
        "u64" => Width::U64,
        "i64" => Width::I64,
        "all" => Width::All,
        _ => args.wrong("style", "u64, i64 or all"),
    };
}

fn greases(_: &Args, habits: &mut Habits) {
    habits.grease = true;
    habits.limits.put("grease", 7);
    habits.identity.put("sdk", "hand-written");
    habits.identity.put("grease", Value::Nil);
    for provide in &mut habits.provides {
        provide.put("grease", map([("nested", vec![1.into()].into())]));
        provide.put("output_schema", Value::Nil);
    }
    let unknown =
        map([("kind", "grease".into()), ("name", "whatever".into()), ("knob", 11.into())]);
    habits.provides.insert(0, unknown);
}

fn low_limits(args: &Args, habits: &mut Habits) {
    habits.limits = match args.text("which", "frame") {
        "frame" => limits(65_535, 1 << 18, 8),
        "window" => limits(1 << 20, 16_383, 8),
        "calls" => limits(1 << 20, 1 << 18, 0),
        _ => args.wrong("which", "frame, window or calls"),
    };
}

fn plain(name: &str) -> Value {
    tools::tool(name, "Does nothing in particular.", "read", true, tools::schema(empty()))
}

fn bad_names(args: &Args, habits: &mut Habits) {
    let long = "a".repeat(65);
    let all = format!(";1st;with space;dot.ted;émile;{long};new\nline;-dash");
    habits.provides.extend(args.text("names", &all).split(';').map(plain));
}

fn bad_schema(args: &Args, habits: &mut Habits) {
    let object = |key: &str, value: Value| map([("type", "object".into()), (key, value)]);
    let input = match args.text("which", "type") {
        "type" => map([("type", "objekt".into())]),
        "array" => vec!["object".into()].into(),
        "ref" => object("$ref", "#/nowhere".into()),
        "remote" => object("$ref", "https://example.invalid/schema.json".into()),
        "deep" => (0..200).fold(empty(), |inner, _| object("properties", map([("a", inner)]))),
        "root" => map([("type", "string".into())]),
        "none" => Value::Nil,
        _ => args.wrong("which", "type, array, ref, remote, deep, root or none"),
    };
    habits.provides = vec![tools::tool("odd", "Has an odd schema.", "read", true, input)];
}

fn bad_head(plugin: &Arc<Plugin>, scene: Scene) -> Flow {
    let one = |value: Value| map([("topic", "log".into()), ("x", value)]);
    let bytes = |bytes: &[u8]| Value::Raw(bytes.to_vec());
    let nested =
        |depth: usize| (1..depth).fold(Value::Array(Vec::new()), |inner, _| vec![inner].into());
    let args = &plugin.args;
    let head = match args.text("which", "dup") {
        "dup" => map([("topic", "log".into()), ("topic", "log".into())]),
        "dup-unknown" => map([("x", 1.into()), ("x", 1.into())]),
        "array" => vec!["topic".into()].into(),
        "nil" => Value::Nil,
        "int" => 7.into(),
        "empty" => bytes(b""),
        "trailing" => Value::Raw([one(1.into()).bytes(), vec![0xC0]].concat()),
        "ext" => one(bytes(&[0xD4, 1, 0])),
        "utf8" => one(bytes(&[0xA2, 0xC3, 0x28])),
        "intkey" => Value::Map(vec![(1.into(), 2.into())]),
        // The head itself is the first level.
        "deep" => one(nested(wire::HEAD_DEPTH)),
        "bigint" => one((INTEGER_MAX + 1).into()),
        "cut" => bytes(&[0x82, 0xA1, b'x', 1]),
        "liar" => bytes(&[0xDF, 0xFF, 0xFF, 0xFF, 0xFF]),
        "never" => one(bytes(&[0xC1])),
        "type" => map([("topic", 1.into()), ("err", 1.into()), ("code", 1.into())]),
        _ => args.wrong(
            "which",
            "dup, dup-unknown, array, nil, int, empty, trailing, ext, utf8, intkey, deep, bigint, \
             cut, liar, never or type",
        ),
    };
    let (kind, id) = match args.text("on", "note") {
        "note" => (kind::NOTE, 0),
        "end" => (kind::END, scene.id),
        "ping" => (kind::PING, 0),
        "close" => (kind::CLOSE, 0),
        _ => args.wrong("on", "note, end, ping or close"),
    };
    raw(plugin, &Frame::new(kind, id, head).bytes())
}

fn half_frame(plugin: &Arc<Plugin>, _: Scene) -> Flow {
    let args = &plugin.args;
    let bytes = note().bytes();
    let head_end = wire::HEADER + note().head.bytes().len();
    let cut = match args.text("cut", "body") {
        "header" => 5,
        "head" => wire::HEADER + 3,
        "gap" => head_end + 1,
        "body" => bytes.len() - 1,
        _ => args.wrong("cut", "header, head, gap or body"),
    };
    plugin.pen.write(&bytes[..cut]);
    plugin.pen.flush();
    match args.text("then", "exit") {
        "exit" => exit(plugin),
        "eof" => eof(plugin),
        "hang" => {
            plugin.pen.silence();
            Flow::Go
        }
        _ => args.wrong("then", "exit, eof or hang"),
    }
}

/// Two calls must be open at once: the first one waits for the second.
fn swap_ids(plugin: &Arc<Plugin>, scene: Scene) -> Flow {
    let first = plugin.life().open.keys().copied().find(|id| *id < scene.id);
    if let Some(first) = first {
        plugin.end(first, &plugin.result(&format!("for {}", scene.id), None));
        plugin.end(scene.id, &plugin.result(&format!("for {first}"), None));
    }
    Flow::Done
}

fn bad_result(plugin: &Arc<Plugin>, scene: Scene) -> Flow {
    let content = |value: Value| map([("content", value)]).bytes();
    let good = plugin.result("fine", None).bytes();
    let with = |raw: &[u8]| map([("data", Value::Raw(raw.to_vec()))]).bytes();
    let body = match plugin.args.text("which", "never") {
        "empty" => Vec::new(),
        "cut" => good[..good.len() - 1].to_vec(),
        "ext" => with(&[0xD4, 1, 0]),
        "never" => vec![0xC1],
        "trailing" => [good, vec![0xC0]].concat(),
        "utf8" => with(&[0xA2, 0xC3, 0x28]),
        "dup" => map([("content", vec![].into()), ("content", vec![].into())]).bytes(),
        "intkey" => with(&[0x81, 1, 2]),
        "nil" => Value::Nil.bytes(),
        "array" => Value::Array(Vec::new()).bytes(),
        "content" => content("not a list".into()),
        "block" => content(vec![map([("type", "text".into()), ("text", 7.into())])].into()),
        // A map that claims four thousand million entries.
        "huge" => with(&[0xDF, 0xFF, 0xFF, 0xFF, 0xFF]),
        // The same of a list, of bytes and of an extension.
        "huge-list" => with(&[0xDD, 0xFF, 0xFF, 0xFF, 0xFF]),
        "huge-bytes" => with(&[0xC6, 0xFF, 0xFF, 0xFF, 0xFF]),
        "huge-ext" => with(&[0xC9, 0xFF, 0xFF, 0xFF, 0xFF, 1]),
        "nan" => with(&[0xCB, 0x7F, 0xF8, 0, 0, 0, 0, 0, 0]),
        "bigint" => with(&[0xCF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]),
        _ => plugin.args.wrong(
            "which",
            "empty, cut, ext, never, trailing, utf8, dup, intkey, nil, array, content, block, huge, \
             huge-list, huge-bytes, huge-ext, nan or bigint",
        ),
    };
    plugin.end_raw(scene.id, body);
    Flow::Done
}

fn bad_end(plugin: &Arc<Plugin>, scene: Scene) -> Flow {
    let code = || ("code", Value::from("internal"));
    let mut body = map([("msg", "as it should be".into())]).bytes();
    let err = match plugin.args.text("which", "code") {
        "code" => map([("code", "exploded".into())]),
        "err" => map([("retry", "no".into())]),
        "retry" => map([code(), ("retry", true.into())]),
        "after" => map([code(), ("after", (-5).into())]),
        "reason" => map([code(), ("reason", "Not A Reason\n".into())]),
        "body" => {
            body = vec![0xC1];
            map([code(), ("retry", "no".into())])
        }
        _ => plugin.args.wrong("which", "code, err, retry, after, reason or body"),
    };
    plugin.life().open.remove(&scene.id);
    plugin.send(&Frame { body, ..Frame::new(kind::END, scene.id, map([("err", err)])) });
    Flow::Done
}

/// Sends what `make` makes, until the pipe is gone; slowed down by `every_us=`,
/// ended by `n=`.
fn flood(plugin: &Arc<Plugin>, make: fn(&Plugin, u64) -> Vec<u8>) -> Flow {
    let plugin = Arc::clone(plugin);
    thread::spawn(move || {
        let pause = Duration::from_micros(plugin.args.number("every_us", 0));
        for n in 0..plugin.args.number("n", u64::MAX) {
            if !plugin.pen.flood(&make(&plugin, n)) {
                return;
            }
            if !pause.is_zero() {
                thread::sleep(pause);
            }
        }
        plugin.trace("flooded");
    });
    Flow::Go
}

fn flood_stderr(plugin: &Arc<Plugin>, _: Scene) -> Flow {
    let plugin = Arc::clone(plugin);
    thread::spawn(move || {
        let total = plugin.args.number("bytes", 64 << 20) as usize;
        let line = plugin.args.number("line", 80) as usize;
        let mut block = vec![b'x'; 8 << 10];
        if line > 0 {
            block.iter_mut().skip(line - 1).step_by(line).for_each(|byte| *byte = b'\n');
        }
        let mut left = total;
        let mut stderr = io::stderr().lock();
        while left > 0 {
            let n = left.min(block.len());
            if stderr.write_all(&block[..n]).is_err() {
                return;
            }
            left -= n;
        }
        plugin.trace("flooded");
    });
    Flow::Go
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_has_a_name_of_its_own_and_says_what_it_does() {
        for (at, mode) in all().enumerate() {
            let earlier = all().take(at).find(|other| other.name == mode.name);
            assert!(earlier.is_none(), "{} is there twice", mode.name);
            assert!(!mode.about.is_empty() && !mode.about.contains('\n'), "{}", mode.name);
            assert_eq!(mode.at.is_some(), mode.strike.is_some(), "{}", mode.name);
        }
    }

    #[test]
    fn a_note_can_have_any_size_that_a_limit_may_need() {
        for size in [65_536, 65_537, 1 << 20, (1 << 20) + 1] {
            assert_eq!(sized(size).bytes().len(), size);
        }
    }

    #[test]
    fn noise_is_noise_from_its_first_byte_and_never_looks_like_a_frame() {
        assert!(noise(4096).iter().all(|byte| *byte != wire::MAGIC));
        assert_eq!(noise(64), noise(64));
    }
}
