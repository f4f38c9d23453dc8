//! Everything that crosses crates, with real processes. One binary: it links
//! once, and its tests share one view of the world.

mod alone;
mod budgets;
mod calls;
mod cancels;
mod cases;
mod crowds;
mod deaths;
mod facts;
mod floods;
mod gate;
mod hosts;
mod isolation;
mod isolation_hosts;
mod isolation_kill;
mod isolation_limits;
mod kills;
mod ladder;
mod languages;
mod leftovers;
mod lives;
mod modes;
mod names;
mod raw;
mod services;
mod stage;
mod state;
mod streams;
mod vectors;
mod world;
