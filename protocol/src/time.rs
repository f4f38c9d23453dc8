//! Time, as an argument.

/// A moment: milliseconds since an epoch of the caller's choice.
///
/// Nothing in this crate reads a clock. Whoever drives a conversation reads one
/// once a turn and hands it down, so a recorded conversation can be replayed and
/// a test needs no waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(pub u64);

impl Tick {
    /// The moment `ms` milliseconds later. Never wraps.
    #[must_use]
    pub fn after(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds since `earlier`, or 0 if it lies ahead.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
