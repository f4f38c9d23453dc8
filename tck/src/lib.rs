//! The judge of plugbay's protocol: starts a plugin, plays its host, and says whether
//! what the plugin does is what the spec says.
//!
//! It is written from `sdk-spec/` and shares no code with anything it judges.
//!
//! - [`checks`]: what is tried, one file for each group; [`check`] says what one is.
//! - [`case`] and [`session`]: the language in which checks are written; see `CHECKS.md`.
//! - [`monitor`]: what is watched in every conversation.
//! - [`probe`], [`run`] and [`report`]: who is judged, how, and what is told; [`settings`],
//!   [`sample`] and [`baseline`]: what its author adds.
//! - [`record`] and [`replay`]: a conversation that can be held again; [`walk`]: a random one that can be
//!   made shorter.
//! - [`host`]: the zoo of plugins, against a supervisor.
//! - [`vectors`]: the vectors of the spec, for codecs and receivers that are no plugins.

pub mod baseline;
pub mod case;
pub mod check;
pub mod checks;
pub mod codec;
pub mod host;
pub mod monitor;
pub mod probe;
pub mod process;
pub mod record;
pub mod replay;
pub mod report;
pub mod run;
pub mod sample;
pub mod scope;
pub mod session;
pub mod settings;
pub mod transcript;
pub mod value;
pub mod vectors;
pub mod walk;
