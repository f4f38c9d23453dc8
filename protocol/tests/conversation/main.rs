//! The protocol's promises, in virtual time and without a pipe.
//!
//! Most tests join a host and a plugin by a wire in memory that cuts, gathers and
//! delays as told; see [`pair`]. The rest give one end bytes that no conversation
//! of ours would write.

mod budgets;
mod calls;
mod cancel;
mod credit;
mod ending;
mod frames;
mod gate;
mod handshake;
mod heads;
mod items;
mod life;
mod pair;
mod parents;
mod properties;
mod reverse;
mod scopes;
#[expect(unreachable_pub, reason = "the fuzz targets use it as well")]
mod script;
#[expect(unreachable_pub, reason = "the fuzz targets use it as well")]
mod stream;
