//! Everything that crosses crates, with real processes. One binary: it links
//! once, and its tests share one view of the world.

mod alone;
mod modes;
mod stage;
mod world;
