//! `plugbay restart`, `stop` and `resume`: steering one plugin of a plugbay that runs.

use super::look::{nothing, read};
use crate::{
    args::Order,
    control::{Client, Look, Request},
    exit::Exit,
    render::{GOOD, Screen, Status},
    trouble::Outcome,
};

pub(super) async fn restart(order: &Order, screen: &Screen) -> Outcome {
    give(order, Request::Restart { plugin: order.name.clone() }, "Restarted", screen).await
}

pub(super) async fn stop(order: &Order, screen: &Screen) -> Outcome {
    give(order, Request::Stop { plugin: order.name.clone() }, "Stopped", screen).await
}

pub(super) async fn resume(order: &Order, screen: &Screen) -> Outcome {
    give(order, Request::Resume { plugin: order.name.clone() }, "Resumed", screen).await
}

async fn give(order: &Order, request: Request, verb: &'static str, screen: &Screen) -> Outcome {
    let client = Client::find(&order.target).await?;
    let plugin = client.ask(&request, nothing).await?["plugin"].take();
    if order.json {
        return screen.json(&plugin).map(|()| Exit::Fine);
    }
    let Look { name, state, pid, reason, .. } = read(plugin)?;
    let how = match pid {
        Some(pid) => format!("{name} is {state} (pid {pid})"),
        None => format!("{name} is {state}: it {}", reason.text),
    };
    screen.status(&Status::new(GOOD, verb, how));
    Ok(Exit::Fine)
}
