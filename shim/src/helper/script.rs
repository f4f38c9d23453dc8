//! Reading a script.

use core::ffi::CStr;

use super::{
    sys::{EINVAL, Result},
    wire::Op,
};

/// A text that the kernel can read where it lies.
pub(crate) type Text = &'static CStr;

/// A script, and how far it has been read.
#[derive(Clone, Copy)]
pub(crate) struct Script {
    rest: &'static [u8],
}

impl Script {
    pub(crate) const fn new(bytes: &'static [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next operation and its operands.
    pub(crate) fn next(&mut self) -> Result<(Op, Operands)> {
        let (head, rest) = self.rest.split_first_chunk::<8>().ok_or(EINVAL)?;
        let [a, b, c, d, e, f, g, h] = *head;
        let op = Op::of(u32::from_ne_bytes([a, b, c, d])).ok_or(EINVAL)?;
        let length = u32::from_ne_bytes([e, f, g, h]) as usize;
        let (operands, rest) = rest.split_at_checked(length).ok_or(EINVAL)?;
        self.rest = rest;
        Ok((op, Operands(operands)))
    }
}

/// What stands behind an operation.
pub(crate) struct Operands(&'static [u8]);

impl Operands {
    pub(crate) fn word(&mut self) -> Result<u64> {
        let (word, rest) = self.0.split_first_chunk::<8>().ok_or(EINVAL)?;
        self.0 = rest;
        Ok(u64::from_ne_bytes(*word))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'static [u8]> {
        let length = usize::try_from(self.word()?).map_err(|_| EINVAL)?;
        let padded = length.checked_next_multiple_of(8).ok_or(EINVAL)?;
        let (padded, rest) = self.0.split_at_checked(padded).ok_or(EINVAL)?;
        self.0 = rest;
        padded.get(..length).ok_or(EINVAL)
    }

    pub(crate) fn text(&mut self) -> Result<Text> {
        CStr::from_bytes_with_nul(self.bytes()?).map_err(|_| EINVAL)
    }
}
