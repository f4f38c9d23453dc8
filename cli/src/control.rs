//! The control plane: a socket through which other commands look at a running `plugbay run`
//! and steer it. `docs/control.md` describes what goes over it.

mod client;
mod journal;
mod place;
mod prospect;
mod server;
mod wire;

pub(crate) use self::{
    client::{Client, attachable},
    journal::Journal,
    place::{Key, Place},
    server::{Service, is_ours, serve},
    wire::{Bound, End, Hello, Look, Record, Request, What},
};
