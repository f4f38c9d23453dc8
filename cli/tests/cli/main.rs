//! The command as people meet it: real processes, real plugins, exit codes and words.

mod broken;
mod calls;
mod help;
mod looks;
mod machine;
mod new;
mod running;
mod signals;
mod stage;
