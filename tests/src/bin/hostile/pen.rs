//! Writing to the host: in one piece, in many, or several frames at once.

use std::{
    fs::File,
    io::{self, Write},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

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

/// The way to the host, shared by all threads.
#[derive(Debug)]
pub(crate) struct Pen {
    nib: Mutex<Nib>,
    /// Threads that want to write. Floods give way to them: a mutex is not fair.
    waiting: AtomicUsize,
    style: Style,
}

#[derive(Debug)]
struct Nib {
    pipe: Option<File>,
    held: Vec<u8>,
}

/// How long [`Style::Together`] holds frames back.
const HOLD: Duration = Duration::from_millis(3);

impl Pen {
    pub(crate) fn new(pipe: File, style: Style) -> Arc<Self> {
        let nib = Mutex::new(Nib { pipe: Some(pipe), held: Vec::new() });
        let pen = Arc::new(Self { nib, waiting: AtomicUsize::new(0), style });
        if matches!(style, Style::Together) {
            let pen = Arc::clone(&pen);
            thread::spawn(move || {
                loop {
                    thread::sleep(HOLD);
                    pen.flush();
                }
            });
        }
        pen
    }

    fn nib(&self) -> std::sync::MutexGuard<'_, Nib> {
        self.nib.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes, or drops the bytes if the pipe is gone: what a plugin says into a
    /// broken pipe is of no interest to anybody.
    pub(crate) fn write(&self, bytes: &[u8]) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut nib = self.nib();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        match self.style {
            Style::Whole => nib.put(bytes),
            Style::Pieces { size, pause } => {
                for piece in bytes.chunks(size) {
                    nib.put(piece);
                    thread::sleep(pause);
                }
            }
            Style::Together => nib.held.extend(bytes),
        }
    }

    /// Writes as [`Self::write`], but lets everybody else go first. False once
    /// the pipe is gone.
    pub(crate) fn flood(&self, bytes: &[u8]) -> bool {
        while self.waiting.load(Ordering::SeqCst) > 0 {
            thread::yield_now();
        }
        let mut nib = self.nib();
        nib.put(bytes);
        nib.pipe.is_some()
    }

    /// Lets go of what is held back.
    pub(crate) fn flush(&self) {
        let mut nib = self.nib();
        let held = std::mem::take(&mut nib.held);
        nib.put(&held);
    }

    /// Closes the pipe; the process lives on.
    pub(crate) fn close(&self) {
        self.nib().pipe = None;
    }

    /// Takes the pipe away from every thread, for good, without closing it.
    pub(crate) fn silence(&self) {
        std::mem::forget(self.nib());
    }

    /// A second handle on the same pipe, for a grandchild.
    pub(crate) fn duplicate(&self) -> io::Result<Option<File>> {
        self.nib().pipe.as_ref().map(File::try_clone).transpose()
    }
}

impl Nib {
    fn put(&mut self, bytes: &[u8]) {
        if self.pipe.as_mut().is_some_and(|pipe| pipe.write_all(bytes).is_err()) {
            self.pipe = None;
        }
    }
}
