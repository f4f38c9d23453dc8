//! Everything that crosses crates, with real processes. One binary: it links
//! once, and its tests share one view of the world.

mod alone;
mod budgets;
mod calls;
mod cancels;
mod crowds;
mod gate;
mod modes;
mod stage;
mod world;
