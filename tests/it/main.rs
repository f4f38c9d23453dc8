//! Everything that crosses crates, with real processes. One binary: it links
//! once, and its tests share one view of the world.

mod alone;
mod budgets;
mod calls;
mod cancels;
mod crowds;
mod deaths;
mod facts;
mod floods;
mod gate;
mod isolation;
mod isolation_hosts;
mod isolation_kill;
mod isolation_limits;
mod ladder;
mod languages;
mod leftovers;
mod lives;
mod modes;
mod names;
mod services;
mod stage;
mod streams;
mod vectors;
mod world;
