//! A plugin's stderr: always drained, never parsed, confidential.
//!
//! A full stderr pipe would block the plugin, so this reader never stops and
//! never waits for anybody. The newest bytes are kept as last words; lines go to
//! whoever listens, up to a rate; what is dropped is counted and said.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::AsyncReadExt,
    net::unix::pipe,
    sync::broadcast,
    time::{Instant, timeout_at},
};

use crate::{
    fact::{Fact, Facts},
    reason::Private,
};

/// One line of a plugin's stderr.
#[derive(Clone, Debug)]
pub struct StderrLine {
    /// Whose.
    pub plugin: Arc<str>,
    /// The line without its end, lossily decoded, cut at 4 KiB.
    pub line: Private,
}

/// What rates are counted by.
const SECOND: Duration = Duration::from_secs(1);
/// The longest line passed on; the rest of it follows as another line.
const LINE_MAX: usize = 4 << 10;

/// The end of what was written, and how much came before.
#[derive(Debug)]
pub(crate) struct Tail {
    bytes: VecDeque<u8>,
    bytes_max: usize,
    dropped: u64,
}

impl Tail {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes: VecDeque::new(), bytes_max, dropped: 0 }
    }

    /// Keeps the newest bytes and counts the rest.
    pub(crate) fn push(&mut self, chunk: &[u8]) {
        let skip = chunk.len().saturating_sub(self.bytes_max);
        let excess = (self.bytes.len() + chunk.len() - skip).saturating_sub(self.bytes_max);
        self.bytes.drain(..excess);
        self.bytes.extend(&chunk[skip..]);
        self.dropped += (skip + excess) as u64;
    }

    /// The end of it, from a line's start, at most `max` bytes.
    pub(crate) fn last(&self, max: usize) -> Private {
        let (front, back) = self.bytes.as_slices();
        let all = [front, back].concat();
        let mut cut = &all[all.len().saturating_sub(max)..];
        if cut.len() < all.len() || 0 < self.dropped {
            // Something came before: begin with a whole line, if there is one.
            if let Some(end) =
                cut.iter().position(|&byte| byte == b'\n').filter(|n| n + 1 < cut.len())
            {
                cut = &cut[end + 1..];
            }
        }
        Private(String::from_utf8_lossy(cut).into_owned())
    }
}

/// The last words of one plugin, shared between the drain and whoever asks.
pub(crate) type LastWords = Arc<Mutex<Tail>>;

pub(crate) fn last_words(tail: &LastWords, max: usize) -> Private {
    tail.lock().unwrap_or_else(PoisonError::into_inner).last(max)
}

/// What a drain needs to know.
pub(crate) struct Drain {
    pub(crate) plugin: Arc<str>,
    pub(crate) tail: LastWords,
    pub(crate) bytes_per_second: u64,
    pub(crate) facts: Facts,
    pub(crate) lines: broadcast::Sender<StderrLine>,
}

impl Drain {
    /// Reads until every writer is gone.
    pub(crate) async fn run(self, mut stderr: pipe::Receiver) {
        let mut chunk = Vec::with_capacity(4 << 10);
        let mut line = Vec::new();
        let mut second = Instant::now();
        let (mut spent, mut dropped) = (0, 0);
        // Whether the line that comes next has lost its beginning.
        let mut torn = false;
        loop {
            chunk.clear();
            let read = stderr.read_buf(&mut chunk);
            // What was dropped is said within a second, though nothing follows it.
            let read = match dropped {
                0 => Ok(read.await),
                _ => timeout_at(second + SECOND, read).await,
            };
            if let Ok(Ok(0) | Err(_)) = read {
                break;
            }
            self.tail.lock().unwrap_or_else(PoisonError::into_inner).push(&chunk);
            let now = Instant::now();
            if SECOND <= now - second {
                self.say_dropped(&mut dropped);
                (second, spent) = (now, 0);
            }
            spent += chunk.len() as u64;
            if self.bytes_per_second < spent {
                // With the line that has begun, whose end is among it.
                dropped += (line.len() + chunk.len()) as u64;
                line.clear();
                torn = true;
                // A flood must not take a whole core from the host: let others run,
                // and let the pipe push back.
                tokio::task::yield_now().await;
                continue;
            }
            let rest = match chunk.iter().position(|&byte| byte == b'\n').filter(|_| torn) {
                Some(end) => &chunk[end + 1..],
                None => &chunk[..],
            };
            dropped += (chunk.len() - rest.len()) as u64;
            torn = false;
            if 0 < self.lines.receiver_count() {
                self.pass_on(rest, &mut line);
            }
        }
        self.pass_on(b"\n", &mut line);
        self.say_dropped(&mut dropped);
    }

    fn pass_on(&self, chunk: &[u8], line: &mut Vec<u8>) {
        for &byte in chunk {
            if byte != b'\n' {
                line.push(byte);
            }
            if LINE_MAX <= line.len() || (byte == b'\n' && !line.is_empty()) {
                let text = Private(String::from_utf8_lossy(line).trim_end().to_owned());
                let said = StderrLine { plugin: Arc::clone(&self.plugin), line: text };
                // Fails only if nobody listens.
                self.lines.send(said).ok();
                line.clear();
            }
        }
    }

    fn say_dropped(&self, dropped: &mut u64) {
        if 0 < *dropped {
            let plugin = Arc::clone(&self.plugin);
            self.facts.say(Fact::Dropped { plugin, what: "stderr bytes", count: *dropped });
            *dropped = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::fact::Event;

    proptest! {
        #[test]
        fn keeps_exactly_the_end(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..20)) {
            let mut tail = Tail::new(16);
            chunks.iter().for_each(|chunk| tail.push(chunk));
            let all = chunks.concat();
            let kept = &all[all.len().saturating_sub(16)..];
            prop_assert_eq!(tail.bytes.iter().copied().collect::<Vec<_>>(), kept);
            prop_assert_eq!(tail.dropped as usize, all.len() - kept.len());
        }
    }

    /// What is shown is whole lines, and what is not shown is counted to the byte.
    #[tokio::test(start_paused = true)]
    async fn a_flood_is_cut_between_lines_and_counted() {
        let (mut write, read) = pipe::pipe().unwrap();
        let facts = Facts::new();
        let mut events = facts.events();
        let lines = broadcast::Sender::new(1 << 16);
        let mut heard = lines.subscribe();
        let drain = Drain {
            plugin: "p".into(),
            tail: Arc::new(Mutex::new(Tail::new(64))),
            bytes_per_second: 10_000,
            facts,
            lines,
        };
        let drain = tokio::spawn(drain.run(read));
        let flood: String = (0..50_000).map(|n| format!("line {n:06}\n")).collect();
        write.write_all(flood.as_bytes()).await.unwrap();
        // A second of its own, in which something passes again.
        tokio::time::sleep(SECOND).await;
        write.write_all(flood.as_bytes()).await.unwrap();
        drop(write);
        drain.await.unwrap();
        let (mut shown, mut dropped) = (0, 0);
        while let Ok(line) = heard.try_recv() {
            let number = line.line.0.strip_prefix("line ").filter(|it| it.len() == 6);
            assert!(number.is_some_and(|it| it.parse::<u32>().is_ok()), "{:?}", line.line.0);
            shown += line.line.0.len() + 1;
        }
        while let Some(Event { fact: Fact::Dropped { count, .. }, .. }) = events.next().await {
            dropped += count;
        }
        assert!(0 < shown && 0 < dropped);
        assert_eq!(shown as u64 + dropped, 2 * flood.len() as u64);
    }

    #[test]
    fn last_words_begin_with_a_whole_line() {
        let mut tail = Tail::new(64);
        tail.push(b"one\ntwo\nthree\n");
        assert_eq!(tail.last(64).0, "one\ntwo\nthree\n");
        assert_eq!(tail.last(10).0, "three\n");
        assert_eq!(tail.last(3).0, "ee\n");
    }
}
