//! What the fixture plugin and the tests that drive it share.
//!
//! Nothing here uses plugbay's own crates: [`wire`] is a second, independent
//! reading of the frame spec, so that a misreading in the first one cannot make
//! both ends agree on the wrong bytes.

pub mod wire;
