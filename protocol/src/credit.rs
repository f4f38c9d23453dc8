//! The credit of a stream, from either end of it: bytes that may still be sent.
//!
//! Each ITEM costs the size of its frame and may be sent while the credit is above
//! 0, so one item may overdraw it and no window is too small for any item. Two
//! numbers at each end are all there is.

use crate::error::Violation;

/// What credit may never exceed by being raised. \[R-ST-06\]
const CREDIT_MAX: i64 = (1 << 31) - 1;

/// The sender's end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outflow {
    credit: i64,
}

impl Outflow {
    /// A stream to a peer with this `limits.window`. \[R-ST-02\]
    pub(crate) fn new(window: u32) -> Self {
        Self { credit: window.into() }
    }

    /// Whether an item may be sent. \[R-ST-01\]
    pub(crate) fn is_open(self) -> bool {
        0 < self.credit
    }

    /// An item has been sent whose frame has this size. \[R-ST-03\]
    pub(crate) fn spend(&mut self, size: usize) {
        // A frame's size fits a u32.
        self.credit -= size as i64;
    }

    /// CREDIT has come. Whether the stream may go on that could not before. \[R-ST-04\]
    pub(crate) fn raise(&mut self, n: u64) -> Result<bool, Violation> {
        let raised = i64::try_from(n).ok().and_then(|n| self.credit.checked_add(n));
        match raised {
            _ if n == 0 => Err(Violation::Flow { kind: "CREDIT", why: "it gives nothing" }),
            Some(raised) if raised <= CREDIT_MAX => {
                let was_open = self.is_open();
                self.credit = raised;
                Ok(!was_open && self.is_open())
            }
            _ => Err(Violation::Flow { kind: "CREDIT", why: "credit would exceed 2^31 - 1" }),
        }
    }
}

/// The receiver's end.
///
/// What the sender has left, what waits to be given back, and what is held add up
/// to the window, always: that is the bound on memory. \[R-ST-10\]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inflow {
    credit: i64,
    /// Taken by the application and not given back yet.
    free: i64,
}

impl Inflow {
    /// A stream to us. The window is our own `limits.window`. \[R-ST-02\]
    pub(crate) fn new(window: u32) -> Self {
        Self { credit: window.into(), free: 0 }
    }

    /// Whether the sender may send, as far as we know.
    pub(crate) fn is_open(self) -> bool {
        0 < self.credit
    }

    /// An item has come whose frame has this size. \[R-ST-05\]
    pub(crate) fn receive(&mut self, size: u32) -> Result<(), Violation> {
        if !self.is_open() {
            return Err(Violation::Flow { kind: "ITEM", why: "its stream has no credit left" });
        }
        self.credit -= i64::from(size);
        Ok(())
    }

    /// Items of this size have been used, or dropped. How much to give back now, if
    /// it is worth a frame: a quarter of the window. With nothing held, less than that
    /// can only wait while the sender has the rest. \[R-ST-11\] \[R-ST-12\]
    pub(crate) fn take(&mut self, size: u32, window: u32) -> Option<u64> {
        self.free += i64::from(size).min(self.held(window));
        let gives = self.free.min(CREDIT_MAX - self.credit);
        if self.free < i64::from(window / 4) || gives <= 0 {
            return None;
        }
        self.credit += gives;
        self.free -= gives;
        Some(gives.unsigned_abs())
    }

    /// The same for all that is held.
    pub(crate) fn take_all(&mut self, window: u32) -> Option<u64> {
        self.take(u32::try_from(self.held(window)).unwrap_or(u32::MAX), window)
    }

    /// The items that have come and were not taken, in bytes.
    fn held(self, window: u32) -> i64 {
        i64::from(window) - self.credit - self.free
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Credit cannot be raised above 2^31 - 1, so what a larger window holds is given
    /// back bit by bit.
    #[test]
    fn a_window_beyond_what_credit_can_be_raised_to() {
        let mut flow = Inflow::new(u32::MAX);
        assert_eq!(flow.take(u32::MAX, u32::MAX), None);
        flow.receive(1 << 31).unwrap();
        assert_eq!(flow.take(1 << 31, u32::MAX), None, "the sender has more than that left");
        flow.receive(1 << 31).unwrap();
        assert!(!flow.is_open());
        assert_eq!(flow.take(1, u32::MAX), Some((1 << 31) - 1 + 1));
        assert_eq!(flow.take_all(u32::MAX), None);
    }

    proptest! {
        /// Both ends count the same, nothing is lost, and no more is held than a window
        /// and one item.
        #[test]
        fn the_two_ends_agree(
            window in 16_384..40_000u32,
            steps in prop::collection::vec((any::<bool>(), 13..30_000u32), 0..200),
        ) {
            let (mut out, mut inn) = (Outflow::new(window), Inflow::new(window));
            let (mut held, mut largest) = (0_u32, 0);
            for (send, size) in steps {
                if send && out.is_open() {
                    largest = largest.max(size);
                    out.spend(size as usize);
                    prop_assert!(inn.receive(size).is_ok());
                    held += size;
                } else if !send {
                    let taken = size.min(held);
                    held -= taken;
                    if let Some(n) = inn.take(taken, window) {
                        prop_assert!(u64::from(window / 4) <= n);
                        prop_assert!(out.raise(n).is_ok());
                    }
                }
                prop_assert_eq!(out.credit, inn.credit);
                prop_assert_eq!(inn.held(window), i64::from(held));
                prop_assert!(held <= window + largest);
                prop_assert!(0 < held || out.is_open(), "all is taken, and nothing may be sent");
            }
        }
    }
}
