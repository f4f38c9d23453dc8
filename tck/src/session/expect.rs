//! Expectations. Each waits until it is met, until it cannot be met any more, or until
//! its time is over; then it says what was due and what came.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use crate::{
    check::Stop,
    codec::{self, CLOSE, END, Frame, ITEM, PING, PONG},
    map,
    process::Exit,
    session::{Got, Session},
    value::Value,
};

/// How long a reply may take that needs no work. Far above what anything needs, so
/// that only what never comes is missed; multiplied with `--time-scale`.
pub const PROMPT: Duration = Duration::from_secs(8);
/// The exit grace [R-LC-20].
pub const GRACE: Duration = Duration::from_secs(5);

/// How a fixture answers, as far as a check cares.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub code: &'static str,
    pub reason: Option<&'static str>,
    /// What `retry` must be; absent counts as `no` [R-ER-06].
    pub retry: Option<&'static str>,
}

/// An error with this code, whatever its reason and retry are.
pub fn code(code: &'static str) -> Refusal {
    Refusal { code, reason: None, retry: None }
}

/// An error with this code, reason and retry.
pub fn refusal(code: &'static str, reason: &'static str, retry: &'static str) -> Refusal {
    Refusal { code, reason: Some(reason), retry: Some(retry) }
}

/// `failed_precondition`, `pb.inactive`, `safe` [R-GT-02].
pub const INACTIVE: Refusal =
    Refusal { code: "failed_precondition", reason: Some("pb.inactive"), retry: Some("safe") };
/// `failed_precondition`, `pb.already_active`, `no` [R-GT-03].
pub const ALREADY_ACTIVE: Refusal =
    Refusal { code: "failed_precondition", reason: Some("pb.already_active"), retry: Some("no") };
/// `unavailable`, `pb.draining`, `safe` [R-GT-04].
pub const DRAINING: Refusal =
    Refusal { code: "unavailable", reason: Some("pb.draining"), retry: Some("safe") };
/// `unimplemented` [R-GT-07].
pub const UNIMPLEMENTED: Refusal =
    Refusal { code: "unimplemented", reason: None, retry: Some("no") };
/// `invalid_argument`, `pb.bad_body`, `no` [R-HD-12].
pub const BAD_BODY: Refusal =
    Refusal { code: "invalid_argument", reason: Some("pb.bad_body"), retry: Some("no") };

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.code)?;
        self.reason.map_or(Ok(()), |reason| write!(f, ", {reason}"))?;
        self.retry.map_or(Ok(()), |retry| write!(f, ", retry {retry}"))
    }
}

impl Session {
    /// Waits until `look` finds something.
    ///
    /// # Errors
    /// A failure that says `expected`, if the time is over or the stream is.
    pub fn until<T>(
        &mut self,
        expected: &str,
        within: Duration,
        mut look: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, Stop> {
        let within = self.scaled(within);
        let until = Instant::now() + within;
        let since = self.transcript.len();
        loop {
            if let Some(found) = look(self) {
                return Ok(found);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let expected = format!("{expected} within {} ms", within.as_millis());
                return Err(self.missed(&expected, since));
            }
            if self.is_over() {
                // Nothing else can come; how it ended belongs to what was seen.
                self.settle(Duration::from_millis(300))?;
                return match look(self) {
                    Some(found) => Ok(found),
                    None => Err(self.missed(expected, since)),
                };
            }
            self.pump(left)?;
        }
    }

    /// Looks at the pipes for a while, or until the process has ended.
    fn settle(&mut self, wait: Duration) -> Result<(), Stop> {
        let until = Instant::now() + self.scaled(wait);
        while self.exited().is_none() && Instant::now() < until {
            self.pump(until.saturating_duration_since(Instant::now()))?;
        }
        self.pump(Duration::ZERO).map(|_| ())
    }

    /// What came instead of what was expected, from entry `since` on.
    fn missed(&mut self, expected: &str, since: usize) -> Stop {
        let first = self.inbox.iter().find(|got| got.entry >= since).map(|got| got.entry);
        let unread: Vec<String> =
            self.inbox.iter().rev().take(4).map(ToString::to_string).collect();
        let mut seen = match unread.len() {
            0 => "no frame".to_owned(),
            _ => unread.into_iter().rev().collect::<Vec<_>>().join("; "),
        };
        let state = match self.exited() {
            Some(exit) => format!("; the plugin {exit}"),
            None if self.is_over() => "; its stdout is over, its process lives".to_owned(),
            None => "; the process lives".to_owned(),
        };
        seen.push_str(&state);
        if self.unsent() > 0 {
            write!(seen, "; it has not read {} bytes of ours", self.unsent()).ok();
        }
        self.failure(expected, seen, first)
    }

    /// Takes the first frame that fits out of the inbox.
    pub fn take(&mut self, fits: impl Fn(&Got) -> bool) -> Option<Got> {
        let at = self.inbox.iter().position(fits)?;
        Some(self.inbox.remove(at))
    }

    /// The first frame that fits, already there or still to come.
    ///
    /// # Errors
    /// If none comes in time.
    pub fn expect(
        &mut self,
        expected: &str,
        within: Duration,
        fits: impl Fn(&Got) -> bool,
    ) -> Result<Got, Stop> {
        self.until(expected, within, |s| s.take(&fits))
    }

    /// END of a call, whatever it says.
    ///
    /// # Errors
    /// If none comes in time.
    pub fn end(&mut self, id: u32) -> Result<Got, Stop> {
        self.end_within(id, PROMPT)
    }

    /// END of a call within a time.
    ///
    /// # Errors
    /// If none comes in time.
    pub fn end_within(&mut self, id: u32, within: Duration) -> Result<Got, Stop> {
        self.expect(&format!("END #{id}"), within, |got| got.is(END, id))
    }

    /// END without error, and its body; nothing is the empty map.
    ///
    /// # Errors
    /// If it comes with an error, or does not come.
    pub fn ok(&mut self, id: u32) -> Result<Value, Stop> {
        let end = self.end(id)?;
        self.is_ok(&end)?;
        Ok(end.value())
    }

    /// That an END has no error.
    ///
    /// # Errors
    /// If it has.
    pub fn is_ok(&self, end: &Got) -> Result<(), Stop> {
        match end.err() {
            None => Ok(()),
            Some(err) => {
                Err(self.differs(end, format!("END #{} without error", end.id), err.to_string()))
            }
        }
    }

    /// END with this error.
    ///
    /// # Errors
    /// If it comes with another or none, or does not come.
    pub fn refused(&mut self, id: u32, due: &Refusal) -> Result<Got, Stop> {
        let end = self.end(id)?;
        self.is_refusal(&end, due)?;
        Ok(end)
    }

    /// That an END has this error.
    ///
    /// # Errors
    /// If it has not.
    pub fn is_refusal(&self, end: &Got, due: &Refusal) -> Result<(), Stop> {
        let err = end.err().cloned().unwrap_or(Value::Nil);
        let reason = due.reason.is_none_or(|reason| err.str("reason") == Some(reason));
        let retry = due.retry.is_none_or(|retry| err.str("retry").unwrap_or("no") == retry);
        if err.str("code") == Some(due.code) && reason && retry {
            return Ok(());
        }
        let seen =
            if end.err().is_some() { err.to_string() } else { "END without error".to_owned() };
        Err(self.differs(end, format!("END #{} with {due}", end.id), seen))
    }

    /// CLOSE with this code. That it is the end, and the exit, is judged elsewhere
    /// (ER-08), so that one fault fails one check.
    ///
    /// # Errors
    /// If it has another code, or does not come.
    pub fn closes(&mut self, code: &str) -> Result<Got, Stop> {
        let close = self.expect(&format!("CLOSE {code}"), PROMPT, |got| got.kind == CLOSE)?;
        if close.head.str("code") != Some(code) {
            return Err(self.differs(&close, format!("CLOSE {code}"), close.head.to_string()));
        }
        Ok(close)
    }

    /// A fence: PONG proves that all that was sent before has been read and judged
    /// [R-TO-12], so that what is not there by then does not come.
    ///
    /// # Errors
    /// If no PONG comes.
    pub fn fence(&mut self) -> Result<Got, Stop> {
        self.fence_within(PROMPT)
    }

    /// A fence within a time.
    ///
    /// # Errors
    /// If no PONG comes in time.
    pub fn fence_within(&mut self, within: Duration) -> Result<Got, Stop> {
        self.pings += 1;
        let body = format!("f{:07}", self.pings).into_bytes();
        // A PONG with a wrong body is the monitor's business; any is a sign.
        let stale = self.inbox.iter().filter(|got| got.kind == PONG).map(|got| got.entry).max();
        self.send(&Frame::new(PING, 0, &Value::map(), body.clone()));
        let is_ours =
            |got: &Got| got.kind == PONG && (got.body == body || !got.body.starts_with(b"f"));
        let fits = |got: &Got| is_ours(got) && stale.is_none_or(|stale| got.entry > stale);
        self.expect("PONG, the answer to a fence", within, fits)
    }

    /// That no such frame lies in the inbox. After a fence, this is "nothing came".
    ///
    /// # Errors
    /// If one does.
    pub fn none(&self, what: &str, fits: impl Fn(&Got) -> bool) -> Result<(), Stop> {
        match self.inbox.iter().find(|got| fits(got)) {
            None => Ok(()),
            Some(got) => Err(self.differs(got, format!("no {what}"), got.to_string())),
        }
    }

    /// Fences, and that nothing came but what is ambient: NOTE, PING and CREDIT.
    ///
    /// # Errors
    /// If no PONG comes, or something else.
    pub fn fence_silent(&mut self) -> Result<(), Stop> {
        self.fence()?;
        let is_ambient = |got: &Got| matches!(got.kind, codec::NOTE | PING | PONG | codec::CREDIT);
        self.none("frame but PONG", |got| !is_ambient(got))
    }

    /// Waits and reads on. Only where a time without event is what is judged.
    ///
    /// # Errors
    /// If the check shall not go on.
    pub fn linger(&mut self, wait: Duration) -> Result<(), Stop> {
        let until = Instant::now() + self.scaled(wait);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.pump(left)?;
        }
    }

    /// Waits until all that was sent is in the pipe.
    ///
    /// # Errors
    /// If the plugin does not read it in time.
    pub fn flushed(&mut self) -> Result<(), Stop> {
        self.until("the plugin to read what it was sent", PROMPT, |s| {
            (s.unsent() == 0).then_some(())
        })
    }

    /// The end of the process.
    ///
    /// # Errors
    /// If it lives on.
    pub fn exits(&mut self, within: Duration) -> Result<Exit, Stop> {
        let scaled = self.scaled(within);
        let until = Instant::now() + scaled;
        loop {
            if let Some(exit) = self.exited() {
                self.read_rest()?;
                self.tell_exit(exit)?;
                return Ok(exit);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let expected = format!("the process to end within {} ms", scaled.as_millis());
                let since = self.transcript.len();
                return Err(self.missed(&expected, since));
            }
            self.pump(left)?;
        }
    }

    /// The end of the process with this exit code [R-PR-05].
    ///
    /// # Errors
    /// If it lives on, or ends otherwise.
    pub fn exits_with(&mut self, code: i32, within: Duration) -> Result<(), Stop> {
        match self.exits(within)? {
            Exit::Code(seen) if seen == code => Ok(()),
            exit => {
                let expected = format!("the process to end with exit code {code}");
                Err(self.failure(expected, format!("it {exit}"), None))
            }
        }
    }

    /// What is in the pipes of a process that is gone.
    fn read_rest(&mut self) -> Result<(), Stop> {
        for _ in 0..1000 {
            if self.is_over() || !self.pump(Duration::ZERO)? {
                break;
            }
        }
        Ok(())
    }

    /// Once: the exit into the transcript, and whether something was left behind.
    fn tell_exit(&mut self, exit: Exit) -> Result<(), Stop> {
        if std::mem::replace(&mut self.told_exit, true) {
            return Ok(());
        }
        let entry = self.transcript.event(crate::transcript::Side::Plugin, exit.to_string());
        // What was killed a moment ago may not be gone yet.
        let until = Instant::now() + self.scaled(Duration::from_millis(500));
        while self.process.has_group() && Instant::now() < until {
            self.pump(Duration::from_millis(5))?;
        }
        let left_behind = self.process.has_group();
        self.monitor.ended(entry, left_behind);
        Ok(())
    }

    /// Lets the plugin go, and waits for its exit: CLOSE `ok`, exit 0 [R-LC-20].
    ///
    /// # Errors
    /// If it does not go, or not well.
    pub fn goodbye(&mut self) -> Result<(), Stop> {
        self.close("ok");
        self.exits_with(0, GRACE)
    }

    // Steps that many checks need.

    /// Activates with this body and waits for END.
    ///
    /// # Errors
    /// If no END comes.
    pub fn activate(&mut self, body: Value) -> Result<Got, Stop> {
        let id = self.call("plugin.activate", body);
        self.end(id)
    }

    /// Deactivates and waits for END ok.
    ///
    /// # Errors
    /// If it fails.
    pub fn deactivate(&mut self) -> Result<Value, Stop> {
        let id = self.call("plugin.deactivate", ());
        self.ok(id)
    }

    /// Calls and waits for the result.
    ///
    /// # Errors
    /// If the call fails.
    pub fn ask(&mut self, method: &str, body: impl codec::Body) -> Result<Value, Stop> {
        let id = self.call(method, body);
        self.ok(id)
    }

    /// `tck.echo` of a small value comes back: the plugin lives and serves.
    ///
    /// # Errors
    /// If it does not.
    pub fn lives(&mut self) -> Result<(), Stop> {
        let said = map! {"alive": true};
        let id = self.call("tck.echo", &said);
        let end = self.end(id)?;
        self.is_ok(&end)?;
        self.same(&end, "the body of tck.echo", &said, &end.value())
    }

    /// What `tck.state` says.
    ///
    /// # Errors
    /// If it says nothing.
    pub fn state(&mut self) -> Result<Value, Stop> {
        self.ask("tck.state", ())
    }

    /// One number of `tck.state`.
    ///
    /// # Errors
    /// If there is none.
    pub fn state_int(&mut self, field: &str) -> Result<i128, Stop> {
        let state = self.state()?;
        let found = state.int(field);
        found
            .ok_or_else(|| self.failure(format!("tck.state with {field}"), state.to_string(), None))
    }

    /// Waits for `n` items of a call, giving no credit.
    ///
    /// # Errors
    /// If fewer come.
    pub fn items(&mut self, id: u32, n: usize) -> Result<Vec<Got>, Stop> {
        let mut items = Vec::new();
        while items.len() < n {
            let what = format!("ITEM {} of {n} of #{id}", items.len() + 1);
            items.push(self.expect(&what, PROMPT, |got| got.is(ITEM, id))?);
        }
        Ok(items)
    }

    /// Takes the whole stream of a call, giving back the credit of each item, and its END.
    ///
    /// # Errors
    /// If END does not come, or something else is wrong.
    pub fn collect(&mut self, id: u32) -> Result<(Vec<Got>, Got), Stop> {
        let mut items = Vec::new();
        loop {
            let what = format!("ITEM or END of #{id}");
            let got = self.expect(&what, PROMPT, |got| got.is(ITEM, id) || got.is(END, id))?;
            if got.kind == END {
                return Ok((items, got));
            }
            self.credit(id, got.size as u64);
            items.push(got);
        }
    }

    /// Sends one item of the input as soon as there is credit.
    ///
    /// # Errors
    /// If none is given in time.
    pub fn feed(&mut self, id: u32, body: impl codec::Body) -> Result<(), Stop> {
        let what = format!("CREDIT for the input of #{id}");
        self.until(&what, PROMPT, |s| (s.credit_left(id) > 0).then_some(()))?;
        self.item(id, body);
        Ok(())
    }

    // Judging.

    /// The failure that a frame is not what was due.
    pub fn differs(&self, got: &Got, expected: impl Into<String>, seen: impl Into<String>) -> Stop {
        self.failure(expected, seen, Some(got.entry))
    }

    /// That two values are equal; `what` names them.
    ///
    /// # Errors
    /// If they are not.
    pub fn same<T: PartialEq + std::fmt::Display>(
        &self,
        got: &Got,
        what: &str,
        due: &T,
        seen: &T,
    ) -> Result<(), Stop> {
        if due == seen {
            return Ok(());
        }
        Err(self.differs(got, format!("{what}: {due}"), seen.to_string()))
    }

    /// That something holds that no single frame shows.
    ///
    /// # Errors
    /// If it does not.
    pub fn holds(
        &self,
        good: bool,
        expected: &str,
        seen: impl std::fmt::Display,
    ) -> Result<(), Stop> {
        if good { Ok(()) } else { Err(self.failure(expected, seen.to_string(), None)) }
    }

    /// That one frame came before another.
    ///
    /// # Errors
    /// If it came after it.
    pub fn before(&self, first: &Got, then: &Got) -> Result<(), Stop> {
        if first.entry < then.entry {
            return Ok(());
        }
        Err(self.differs(then, format!("{first} before {then}"), "the other way round"))
    }
}
