//! Writing to the host: in one piece, in many, or several frames at once.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Write},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

use crate::plugin::lock;

/// How bytes leave.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Style {
    /// One write per frame.
    #[default]
    Whole,
    /// Pieces of `size` bytes with a pause in between.
    Pieces { size: usize, pause: Duration },
    /// Frames are held back for a moment and leave together.
    Together,
}

/// The way to the host, shared by all threads. A thread of its own writes, so
/// that whoever reads never waits for a host that does not. \[R-FR-14\]
#[derive(Debug)]
pub(crate) struct Pen {
    queue: Mutex<Queue>,
    changed: Condvar,
    pipe: Mutex<Option<File>>,
    style: Style,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Vec<u8>>,
    /// The writer is at work on what it took.
    busy: bool,
    silent: bool,
}

/// How long [`Style::Together`] holds frames back.
const HOLD: Duration = Duration::from_millis(3);

impl Pen {
    pub(crate) fn new(pipe: File, style: Style) -> Arc<Self> {
        let pen = Arc::new(Self {
            queue: Mutex::default(),
            changed: Condvar::new(),
            pipe: Mutex::new(Some(pipe)),
            style,
        });
        let writer = Arc::clone(&pen);
        thread::spawn(move || {
            loop {
                writer.write_next();
            }
        });
        pen
    }

    fn write_next(&self) {
        let mut queue = lock(&self.queue);
        while queue.frames.is_empty() {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.busy = true;
        let bytes = match self.style {
            Style::Together => {
                drop(queue);
                thread::sleep(HOLD);
                lock(&self.queue).frames.drain(..).flatten().collect()
            }
            Style::Whole | Style::Pieces { .. } => {
                let next = queue.frames.pop_front();
                drop(queue);
                next.unwrap_or_default()
            }
        };
        let (size, pause) = match self.style {
            Style::Pieces { size, pause } => (size, pause),
            Style::Whole | Style::Together => (usize::MAX, Duration::ZERO),
        };
        for piece in bytes.chunks(size) {
            self.put(piece);
            thread::sleep(pause);
        }
        lock(&self.queue).busy = false;
        self.changed.notify_all();
    }

    /// Writes, or drops the bytes if the pipe is gone: what a plugin says into a
    /// broken pipe is of no interest to anybody. False once that is so.
    fn put(&self, bytes: &[u8]) -> bool {
        let mut pipe = lock(&self.pipe);
        if pipe.as_mut().is_some_and(|pipe| pipe.write_all(bytes).is_err()) {
            *pipe = None;
        }
        pipe.is_some()
    }

    /// Queues bytes for the host.
    pub(crate) fn write(&self, bytes: &[u8]) {
        let mut queue = lock(&self.queue);
        if !queue.silent {
            queue.frames.push_back(bytes.to_vec());
            self.changed.notify_all();
        }
    }

    /// Writes at once and waits until it is written, but lets what is queued go
    /// first. False once the pipe is gone.
    pub(crate) fn flood(&self, bytes: &[u8]) -> bool {
        self.flush();
        !lock(&self.queue).silent && self.put(bytes)
    }

    /// Waits until everything queued is written.
    pub(crate) fn flush(&self) {
        let mut queue = lock(&self.queue);
        while queue.busy || !queue.frames.is_empty() {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Closes the pipe; the process lives on.
    pub(crate) fn close(&self) {
        *lock(&self.pipe) = None;
    }

    /// Never writes again, and leaves the pipe open.
    pub(crate) fn silence(&self) {
        let mut queue = lock(&self.queue);
        queue.silent = true;
        queue.frames.clear();
    }

    /// A second handle on the same pipe, for a grandchild.
    pub(crate) fn duplicate(&self) -> io::Result<Option<File>> {
        lock(&self.pipe).as_ref().map(File::try_clone).transpose()
    }
}
