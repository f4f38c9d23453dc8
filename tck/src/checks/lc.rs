//! The lifecycle.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::{
    check::{Check, Need, must, should},
    list, map,
    process::Exit,
    session::{ALREADY_ACTIVE, GRACE, INACTIVE, Refusal, code},
    value::Value,
};

const STATE: &[Need] = &[Need::Tck("state")];
const ACTIVE: &[Need] = &[Need::Active];
const ECHO: &[Need] = &[Need::Tck("echo")];

pub(super) const CHECKS: &[Check] = &[
    must("LC-01", "can be activated", &["R-LC-02", "R-LC-03"], ACTIVE, |c| {
        let mut s = c.ready()?;
        let body = c.activation(&mut s);
        let end = s.activate(body)?;
        s.is_ok(&end)
    }),
    must(
        "LC-02",
        "refuses a configuration and takes the next",
        &["R-LC-03", "R-TK-06", "R-TK-08"],
        ECHO,
        |c| {
            let mut s = c.ready()?;
            let bad: Refusal =
                Refusal { code: "invalid_argument", reason: Some("tck.bad_config"), retry: None };
            for config in [map! {"fail": "bad_config"}, Value::from("text"), map! {"slow_ms": "x"}]
            {
                let end = s.activate(map! {"config": config})?;
                s.is_refusal(&end, &bad)?;
            }
            let id = s.call("tck.echo", ());
            s.refused(id, &INACTIVE)?;
            let end = s.activate(Value::map())?;
            s.is_ok(&end)?;
            s.lives()
        },
    ),
    must("LC-03", "refuses to be activated twice", &["R-GT-03"], ACTIVE, |c| {
        let mut s = c.active()?;
        let body = c.activation(&mut s);
        let end = s.activate(body)?;
        s.is_refusal(&end, &ALREADY_ACTIVE)?;
        super::serves(c, &mut s)
    }),
    must("LC-04", "closes its gate when it is deactivated", &["R-LC-03", "R-GT-02"], ACTIVE, |c| {
        let mut s = c.active()?;
        s.deactivate()?;
        let id = s.call("grease.nothing", ());
        s.refused(id, &INACTIVE).map(|_| ())
    }),
    must("LC-05", "begins anew with each activation", &["R-LC-04", "R-LC-03"], STATE, |c| {
        let mut s = c.ready()?;
        let mut digests = Vec::new();
        for round in 1..=3_i32 {
            let config = map! {"grease": round};
            let end = s.activate(map! {"config": config})?;
            s.is_ok(&end)?;
            let state = s.state()?;
            let seen = state.int("activations").unwrap_or(-1);
            s.holds(seen == round.into(), "activations that count up", seen)?;
            digests.push(state.str("config_sha256").unwrap_or("").to_owned());
            s.deactivate()?;
        }
        digests.dedup();
        s.holds(digests.len() == 3, "the configuration of this activation", "an old one")
    }),
    must("LC-06", "refuses to be deactivated before it is active", &["R-GT-02"], &[], |c| {
        let mut s = c.ready()?;
        let id = s.call("plugin.deactivate", ());
        s.refused(id, &INACTIVE).map(|_| ())
    }),
    must(
        "LC-07",
        "is Ready again if its activation is cancelled",
        &["R-LC-24", "R-LC-03", "R-TK-08"],
        &[Need::Tck("state"), Need::Feature("async")],
        |c| {
            let mut s = c.ready()?;
            let id = s.call("plugin.activate", map! {"config": map! {"slow_ms": 20_000}});
            s.fence()?;
            s.cancel(id);
            s.refused(id, &code("cancelled"))?;
            let gated = s.call("tck.echo", ());
            s.refused(gated, &INACTIVE)?;
            let end = s.activate(Value::map())?;
            s.is_ok(&end)?;
            let seen = s.state_int("activations")?;
            s.holds(seen == 1, "one activation that ended well", seen)
        },
    ),
    must("LC-08", "ends with 0 when it is let go", &["R-LC-20", "R-PR-05", "R-LC-19"], &[], |c| {
        let mut s = c.ready()?;
        s.fence()?;
        s.close("ok");
        s.exits_with(0, GRACE)?;
        let quiet = s.unread() == 0 && s.foreign().is_none();
        s.holds(quiet, "nothing after the last frame", "bytes")?;
        s.none("frame after CLOSE", |got| {
            got.kind != crate::codec::PONG && got.kind != crate::codec::NOTE
        })
    }),
    must("LC-09", "ends with 0 when its stdin is over", &["R-PR-12", "R-PR-05"], &[], |c| {
        let mut s = c.ready()?;
        s.fence()?;
        s.half_close();
        s.exits_with(0, GRACE)
    }),
    must(
        "LC-10",
        "does not wait for its calls when its stdin is over",
        &["R-LC-20", "R-PR-12"],
        // One that does not read while a call runs cannot know.
        &[Need::Tck("sleep"), Need::Feature("async")],
        |c| {
            let mut s = c.active()?;
            s.call("tck.sleep", map! {"ms": 60_000});
            s.flushed()?;
            s.linger(Duration::from_millis(50))?;
            s.half_close();
            s.exits_with(0, GRACE + Duration::from_secs(1))
        },
    ),
    must(
        "LC-11",
        "leaves no process behind",
        &["R-PR-14", "R-TK-11", "R-LC-13"],
        &[Need::Tck("stray")],
        |c| {
            let mut s = c.active()?;
            s.ask("tck.stray", map! {"text": "x", "via": "child", "stay": true})?;
            s.close("ok");
            s.exits(GRACE)?;
            let mut s = c.active()?;
            s.ask("tck.stray", map! {"text": "x", "via": "child", "stay": true})?;
            s.deactivate()?;
            let end = s.activate(Value::map())?;
            s.is_ok(&end)?;
            let seen = s.state_int("children")?;
            s.holds(seen == 0, "no child left after plugin.deactivate", seen)?;
            s.goodbye()
        },
    ),
    must("LC-12", "has just the scopes that it was granted", &["R-LC-04"], STATE, |c| {
        let mut s = c.ready()?;
        let grants = [list!["host.tck.echo", "grease.scope"], list![], list!["host.tck.wait"]];
        for grant in grants {
            let end = s.activate(map! {"grant": grant.clone()})?;
            s.is_ok(&end)?;
            let state = s.state()?;
            let seen = state.get("scopes").cloned().unwrap_or(Value::Nil);
            s.holds(seen == grant, &format!("scopes of {grant}"), seen)?;
            s.deactivate()?;
        }
        Ok(())
    }),
    should("LC-13", "ends when it is asked with SIGTERM", &["R-PR-13"], ACTIVE, |c| {
        let mut s = c.active()?;
        s.fence()?;
        s.signal(Signal::SIGTERM);
        let exit = s.exits(GRACE)?;
        s.holds(exit != Exit::Signal(Signal::SIGKILL as i32), "an end of its own", exit)
    }),
    must(
        "LC-14",
        "ends without a word when nobody reads what it writes",
        &["R-PR-17"],
        ACTIVE,
        |c| {
            let mut s = c.active()?;
            s.fence()?;
            let before = s.stderr();
            s.close_stdout();
            // A process that is started for another check holds our end as well, until it runs
            // a program of its own: the first PONG may still find a reader, but not all of them.
            for _ in 0..20 {
                s.ping(());
                s.linger(Duration::from_millis(10))?;
            }
            s.exits_with(0, GRACE + Duration::from_secs(1))?;
            let after = s.stderr();
            s.holds(before == after, "nothing more on its stderr", format!("{after:?}"))
        },
    ),
];
