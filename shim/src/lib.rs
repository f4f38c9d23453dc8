//! The helper that stands between a supervisor and its plugin, as a program to be run
//! from memory, and the language in which it is told what to do.
//!
//! A supervisor writes a [`Script`], starts [`image`] with the script as descriptor
//! [`wire::SCRIPT`] and one end of a socket pair as [`wire::CONTROL`], and reads
//! [`wire::Record`]s. The helper's own arguments and environment become the program's.
//! It needs Linux 5.13.
#![warn(missing_docs)]

mod script;
pub mod wire;

#[cfg(clippy)]
mod helper {
    //! The helper's parts once more, where the linter and the formatter find them.
    #![allow(dead_code, clippy::redundant_pub_crate)]

    mod guard;
    mod script;
    mod steps;
    mod sys;

    use crate::wire;
}

pub use script::{Mounted, Script};

/// The helper, an executable of about ten kilobytes; `None` on a system or processor
/// that it is not written for.
pub fn image() -> Option<&'static [u8]> {
    let image: &'static [u8] = include_bytes!(concat!(env!("OUT_DIR"), "/helper"));
    (!image.is_empty()).then_some(image)
}
