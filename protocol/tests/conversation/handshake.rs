//! HELLO from both sides. [R-HS]

use plugbay_protocol::*;
use serde_json::{Value, json};

use crate::pair::*;

const LIMITS: [u32; 3] = [65_536, 16_384, 1];

/// A HELLO that both a host and a plugin can read.
fn hello(with: Value) -> Vec<u8> {
    let [frame_limit, window, calls] = LIMITS;
    let mut head = json!({
        "versions": [1], "version": 1,
        "limits": {"frame": frame_limit, "window": window, "calls": calls},
    });
    for (key, value) in with.as_object().unwrap() {
        head[key] = value.clone();
    }
    frame(0x01, 0, head, b"")
}

#[test]
fn the_host_speaks_first_and_the_plugin_answers() {
    let mut pair = Pair::new(announce(), announce());
    assert!(pair.plugin.outbox().is_empty(), "the plugin spoke unasked");
    assert_eq!(pair.plugin_events(), []);
    let [("HELLO", 0, head, body)] = &written(&mut pair.host)[..] else { panic!("no HELLO") };
    assert_eq!(
        *head,
        json!({
            "versions": [1], "features": ["async"],
            "limits": {"frame": 1_048_576, "window": 262_144, "calls": 4},
            "host": {"name": "somebody", "version": "1.2.3"},
        })
    );
    assert!(body.is_empty());
    feed(&mut pair.plugin, &hello(json!({"features": ["async"]})), pair.now);
    let [("HELLO", 0, head, body)] = &written(&mut pair.plugin)[..] else { panic!("no HELLO") };
    assert_eq!(
        *head,
        json!({
            "version": 1, "features": ["async"],
            "limits": {"frame": 1_048_576, "window": 262_144, "calls": 4},
            "plugin": {"name": "somebody", "version": "1.2.3"},
        })
    );
    assert!(body.is_empty());
}

/// A plugin may be able to offer less to a host that has fewer features.
#[test]
fn a_plugin_s_manifest_follows_the_features_in_use() {
    let both = Features::STREAM.union(Features::STREAM_IN);
    let plugin = Announce {
        features: Features::ALL,
        manifest: blob(10),
        manifests: vec![(both, blob(30)), (Features::STREAM, blob(20))],
        ..announce()
    };
    for (host, sent) in [
        (Features::ALL, 30),
        (both, 30),
        (Features::STREAM.union(Features::ASYNC), 20),
        (Features::STREAM_IN, 10),
        (Features::NONE, 10),
    ] {
        let mut pair = Pair::new(Announce { features: host, ..announce() }, plugin.clone());
        pair.flow();
        let events = pair.host_events();
        let [Event::Hello(welcome)] = &events[..] else { panic!("{events:?}") };
        assert_eq!(welcome.manifest, blob(sent), "{host:?}");
    }
}

#[test]
fn each_side_learns_what_the_other_announced() {
    let host = Announce { limits: Limits { calls: 9, ..Limits::default() }, ..announce() };
    let plugin = Announce {
        identity: Identity { sdk: Some("rust/0.1".into()), ..Identity::new("acme.x", "2.0") },
        limits: Limits { frame: 70_000, window: 16_384, calls: 2 },
        manifest: blob(5_000),
        ..announce()
    };
    let mut pair = Pair::new(host.clone(), plugin.clone());
    pair.flow();
    let [Event::Hello(seen)] = &pair.host_events()[..] else { panic!("no HELLO") };
    assert_eq!(
        *seen,
        Welcome {
            peer: plugin.identity,
            limits: plugin.limits,
            features: Features::ASYNC,
            manifest: plugin.manifest,
        }
    );
    assert_eq!(pair.host.peer_limits(), plugin.limits);
    let [Event::Hello(seen)] = &pair.plugin_events()[..] else { panic!("no HELLO") };
    assert_eq!((&seen.peer, seen.limits), (&host.identity, host.limits));
    assert_eq!((pair.host.stage(), pair.plugin.stage()), (Stage::Ready, Stage::Ready));
}

#[test]
fn nothing_but_hello_or_close_comes_first() {
    let limit = json!({"n": 1});
    let frames = [
        ping(),
        frame(0x04, 0, json!({}), b""),
        call(1, "plugin.activate"),
        frame(0x11, 1, json!({}), b""),
        frame(0x12, 1, json!({}), b""),
        frame(0x13, 1, json!({}), b""),
        frame(0x14, 1, limit, b""),
        frame(0x90, 0, json!({"topic": "log"}), b""),
        frame(0x90, 0, json!({"topic": "grease.x"}), b""),
    ];
    for bytes in frames {
        for who in [Who::Host, Who::Plugin] {
            let found = refuses(At::Start, who, &bytes, Close::BadState);
            assert!(matches!(found, Violation::State { .. }), "{found}");
        }
    }
}

#[test]
fn a_close_may_come_first() {
    for who in [Who::Host, Who::Plugin] {
        let mut end = Pair::at(At::Start).into_end(who);
        feed(&mut end, &frame(0x02, 0, json!({"code": "internal"}), b""), Tick(1_000));
        assert!(matches!(
            events(&mut end)[..],
            [Event::Over(Over::Closed { code: Close::Internal, .. })]
        ));
    }
}

#[test]
fn a_second_hello_is_refused_in_every_state() {
    for at in [At::Ready, At::Activating, At::Active, At::Open, At::Draining] {
        for who in [Who::Host, Who::Plugin] {
            refuses_anywhere(at, who, &hello(json!({})), Close::BadState);
        }
    }
}

/// Like [`refuses`], where calls may be lost as well.
#[track_caller]
fn refuses_anywhere(at: At, who: Who, bytes: &[u8], code: Close) {
    let mut end = Pair::at(at).into_end(who);
    feed(&mut end, bytes, Tick(1_000));
    is_broken(&mut end, code);
}

#[test]
fn a_plugin_chooses_the_version_it_speaks_out_of_those_offered() {
    for versions in [json!([1]), json!([2570, 7, 1]), json!([1, 1]), json!([-1, "x", null, 1])] {
        let mut plugin = Pair::at(At::Start).plugin;
        feed(&mut plugin, &hello(json!({ "versions": versions })), Tick(1_000));
        assert_eq!(written(&mut plugin)[0].2["version"], 1, "{versions}");
    }
}

#[test]
fn without_a_version_in_common_the_ones_spoken_are_named() {
    for versions in [json!([2, 3]), json!([]), json!(["1"]), json!(null)] {
        let bytes = hello(json!({ "versions": versions }));
        refuses(At::Start, Who::Plugin, &bytes, Close::VersionUnsupported);
        let mut plugin = Pair::at(At::Start).plugin;
        feed(&mut plugin, &bytes, Tick(1_000));
        let [("CLOSE", 0, head, _)] = &written(&mut plugin)[..] else { panic!("no CLOSE") };
        assert_eq!(*head, json!({"code": "version_unsupported", "supported": [1]}));
    }
    for version in [json!(2), json!(0), json!(null)] {
        let bytes = hello(json!({ "version": version }));
        refuses(At::Start, Who::Host, &bytes, Close::VersionUnsupported);
    }
    refuses(At::Start, Who::Host, &hello(json!({"version": 65_536})), Close::ProtocolError);
    refuses(At::Start, Who::Host, &hello(json!({"version": "1"})), Close::ProtocolError);
}

#[test]
fn the_versions_of_a_peer_that_gave_up_are_told() {
    let mut pair = Pair::at(At::Start);
    let head = json!({"code": "version_unsupported", "supported": [2, "x", 3]});
    feed(&mut pair.host, &frame(0x02, 0, head, &pack(&json!({"msg": "too old"}))), pair.now);
    let over = Over::Closed {
        code: Close::VersionUnsupported,
        supported: vec![2, 3],
        message: Some("too old".into()),
    };
    assert_eq!(pair.host_events(), [Event::Over(over)]);
    assert!(written(&mut pair.host).iter().all(|frame| frame.0 != "CLOSE"), "answered a CLOSE");
}

#[test]
fn a_limit_on_its_floor_passes_and_one_below_does_not() {
    let keys = ["frame", "window", "calls"];
    for who in [Who::Host, Who::Plugin] {
        let mut end = Pair::at(At::Start).into_end(who);
        feed(&mut end, &hello(json!({})), Tick(1_000));
        assert!(matches!(events(&mut end)[..], [Event::Hello(_)]));
        for (at, key) in keys.into_iter().enumerate() {
            let mut limits = json!({"frame": 65_536, "window": 16_384, "calls": 1});
            limits[key] = (LIMITS[at] - 1).into();
            let found =
                refuses(At::Start, who, &hello(json!({"limits": limits})), Close::ProtocolError);
            assert_eq!(found, Violation::Floor(key));
        }
    }
}

#[test]
fn a_limit_that_is_missing_malformed_or_out_of_range_is_refused() {
    let good = json!({"frame": 65_536, "window": 16_384, "calls": 1});
    let mut wrong = vec![json!(null), json!([]), json!(7)];
    for (key, values) in [
        ("frame", [json!(null), json!("65536"), json!((1_u64 << 32) + 65_536)]),
        ("window", [json!(-1), json!(16_384.0), json!((1_u64 << 32) + 65_536)]),
        ("calls", [json!(null), json!([1]), json!(65_537)]),
    ] {
        for value in values {
            let mut limits = good.clone();
            limits[key] = value;
            wrong.push(limits);
        }
    }
    for limits in wrong {
        let bytes = hello(json!({ "limits": limits }));
        refuses(At::Start, Who::Plugin, &bytes, Close::ProtocolError);
        refuses(At::Start, Who::Host, &bytes, Close::ProtocolError);
    }
    let largest = json!({"frame": u32::MAX, "window": u32::MAX, "calls": u16::MAX});
    let mut plugin = Pair::at(At::Start).plugin;
    feed(&mut plugin, &hello(json!({ "limits": largest })), Tick(1_000));
    let most = Limits { frame: u32::MAX, window: u32::MAX, calls: u16::MAX };
    assert_eq!(plugin.peer_limits(), most);
}

#[test]
fn a_feature_counts_only_if_both_sides_list_it() {
    let with = |features| Announce { features, ..announce() };
    for (host, plugin, both) in [
        (Features::ASYNC, Features::ASYNC, Features::ASYNC),
        (Features::ASYNC, Features::NONE, Features::NONE),
        (Features::NONE, Features::ASYNC, Features::NONE),
    ] {
        let pair = Pair::with(with(host), with(plugin), At::Ready);
        assert_eq!((pair.host.features(), pair.plugin.features()), (both, both));
    }
    // The plugin lists only what the host has offered.
    let mut plugin = Pair::at(At::Start).plugin;
    feed(&mut plugin, &hello(json!({"features": ["grease.x", 7]})), Tick(1_000));
    assert_eq!(written(&mut plugin)[0].2["features"], json!([]));
}

#[test]
fn limits_below_the_floor_are_raised_before_they_are_announced() {
    let low = Announce { limits: Limits { frame: 9, window: 9, calls: 0 }, ..announce() };
    let mut pair = Pair::new(low.clone(), low);
    pair.flow();
    assert_eq!(pair.host.peer_limits(), Limits::FLOOR);
    assert_eq!(pair.plugin.peer_limits(), Limits::FLOOR);
    assert!(matches!(pair.host_events()[..], [Event::Hello(_)]));
}

#[test]
fn who_is_speaking_may_be_left_out_or_half_said_but_not_malformed() {
    for (with, expected) in [
        (json!({}), Identity::default()),
        (json!({"plugin": {"name": "a"}}), Identity::new("a", "")),
        (json!({"host": {"version": "2", "x": 1}}), Identity::new("", "2")),
    ] {
        let mut host = Pair::at(At::Start).host;
        feed(&mut host, &hello(with), Tick(1_000));
        let [Event::Hello(welcome)] = &events(&mut host)[..] else { panic!("no HELLO") };
        assert_eq!(welcome.peer, expected);
    }
    for with in [
        json!({"plugin": "a"}),
        json!({"host": ["a"]}),
        json!({"plugin": {"name": 1}}),
        json!({"features": "async"}),
        json!({"features": {"async": true}}),
        json!({"versions": 1}),
    ] {
        refuses(At::Start, Who::Host, &hello(with), Close::ProtocolError);
    }
}

#[test]
fn a_host_that_hears_no_hello_gives_up_after_its_patience_and_not_before() {
    let mut pair = Pair::new(announce(), announce());
    assert_eq!(pair.host.deadline(), Some(pair.now.after(10_000)));
    assert_eq!(pair.plugin.deadline(), None);
    pair.wait(9_999);
    assert_eq!(pair.host_events(), []);
    pair.wait(1);
    let found = is_broken(&mut pair.host, Close::Timeout);
    assert_eq!(found, Violation::NoHello { waited_ms: 10_000, part: None });
}

#[test]
fn half_a_hello_is_told_as_that_when_patience_ends() {
    let whole = hello(json!({}));
    for (came, due) in [(1, 12), (11, 12), (12, whole.len()), (whole.len() - 1, whole.len())] {
        let mut pair = Pair::new(announce(), announce());
        feed(&mut pair.host, &whole[..came], pair.now);
        pair.wait(10_000);
        let found = is_broken(&mut pair.host, Close::Timeout);
        let part = Some((came, due as u64));
        assert_eq!(found, Violation::NoHello { waited_ms: 10_000, part });
    }
}

#[test]
fn our_own_hello_sent_back_is_an_echo_and_that_of_another_host_is_not() {
    let mut host = Conversation::host(announce(), Tick(0));
    let own = host.outbox().take();
    feed(&mut host, &own, Tick(1_000));
    assert_eq!(is_broken(&mut host, Close::VersionUnsupported), Violation::Echo);
    let mut other = announce();
    other.identity.name.push_str("-other");
    let other = Conversation::host(other, Tick(0)).outbox().take();
    let found = refuses(At::Start, Who::Host, &other, Close::VersionUnsupported);
    assert_eq!(found, Violation::Version { theirs: vec![] });
}

/// The order of R-FR-15: a version that is not ours has limits of its own.
#[test]
fn the_version_is_judged_before_the_limits() {
    let limits = json!({"frame": 1, "window": 1, "calls": 0});
    for who in [Who::Host, Who::Plugin] {
        let bytes = hello(json!({ "versions": [7], "version": 7, "limits": limits }));
        let found = refuses(At::Start, who, &bytes, Close::VersionUnsupported);
        assert_eq!(found, Violation::Version { theirs: vec![7] });
    }
}

#[test]
fn the_words_for_features_and_codes_are_those_of_the_spec() {
    let names: Vec<&str> = Features::ASYNC
        .union(Features::STREAM)
        .union(Features::REVERSE)
        .union(Features::STREAM_IN)
        .names()
        .collect();
    assert_eq!(names, ["async", "stream", "reverse", "stream.in"]);
    for name in names {
        assert_eq!(Features::named(name).unwrap().names().collect::<Vec<_>>(), [name]);
    }
    assert_eq!(Features::named("streams"), None);
    for word in [
        "ok",
        "version_unsupported",
        "protocol_error",
        "frame_too_large",
        "unsupported_frame",
        "bad_id",
        "bad_state",
        "flow_error",
        "manifest_rejected",
        "calm",
        "timeout",
        "internal",
    ] {
        assert_eq!(Close::parse(word).as_str(), word);
    }
    assert_eq!(Close::parse("grease_x"), Close::Internal);
    for word in [
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
    ] {
        assert_eq!(Code::parse(word).as_str(), word);
    }
    assert_eq!(Code::parse("grease_x"), Code::Unknown);
    for word in ["no", "safe", "maybe"] {
        assert_eq!(Retry::parse(word).as_str(), word);
    }
    assert_eq!(Retry::parse("grease_x"), Retry::No);
}
