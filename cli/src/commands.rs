//! What each command does.

mod attached;
mod call;
pub(crate) mod cause;
mod check;
mod completions;
mod doctor;
pub(crate) mod ear;
mod explain;
mod limits;
mod look;
mod man;
mod new;
mod orders;
mod proof;
mod run;
mod schema;
mod tools;
pub(crate) mod waits;

use std::time::Duration;

use futures::future::join_all;
use plugbay_supervisor::{Caller, NotReady, PluginPlan, Supervisor, ToolInfo};
use tokio::time::timeout;

use crate::{
    args::{Command, Limits},
    control::Client,
    exit::Exit,
    render::{PLAIN, Screen, Status},
    signals::Signals,
    trouble::{Outcome, Trouble},
};

/// After this long, whoever waits for a process to end is told so.
const PATIENCE: Duration = Duration::from_secs(1);

/// Does what the command line says.
pub(crate) fn command(command: Command, screen: &Screen) -> Outcome {
    match command {
        Command::Run(args) => in_runtime(run::run(&args, screen)),
        Command::Ps(args) => in_runtime(look::ps(&args, screen)),
        Command::Why(args) => in_runtime(look::why(&args, screen)),
        Command::Logs(args) => in_runtime(look::logs(&args, screen)),
        Command::Restart(args) => in_runtime(orders::restart(&args.order, screen)),
        Command::Stop(args) => in_runtime(orders::stop(&args.order, screen)),
        Command::Resume(args) => in_runtime(orders::resume(&args.order, screen)),
        Command::Limits(Limits::Show(args)) => in_runtime(limits::show(&args, screen)),
        Command::Limits(Limits::Set(args)) => in_runtime(limits::set(&args, screen)),
        Command::Limits(Limits::Test(args)) => in_runtime(proof::test(&args, screen)),
        Command::Limits(Limits::Probe(args)) => proof::probe(&args),
        Command::Doctor(args) => doctor::doctor(&args, screen),
        Command::Call(args) => in_runtime(call::call(&args, screen)),
        Command::Tools(args) => in_runtime(tools::tools(&args, screen)),
        Command::Check(args) => check::check(&args, screen),
        Command::New(args) => new::new(&args, screen),
        Command::Explain(args) => explain::explain(&args, screen),
        Command::Schema(args) => schema::schema(&args, screen),
        Command::Completions(args) => completions::completions(&args, screen),
        Command::Man(args) => man::man(&args, screen),
    }
}

/// Without a command: what runs, if anything does, and otherwise where to begin.
pub(crate) fn nothing(welcome: &str, screen: &Screen) -> Outcome {
    in_runtime(async {
        match Client::all().await {
            none if none.is_empty() => screen.data(welcome).map(|()| Exit::Fine),
            all => look::show(all, false, screen).await,
        }
    })
}

/// One thread is enough for pipes, and starts sooner than a pool.
fn in_runtime(work: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Trouble::new(Exit::OurFault, format!("cannot start: {error}")))?;
    let outcome = runtime.block_on(work);
    // Whatever has not ended by itself ends here: a keeper that is dropped kills its
    // process group.
    runtime.shutdown_background();
    outcome
}

fn cannot_listen(error: &std::io::Error) -> Trouble {
    Trouble::coded("PB0901", format!("cannot listen to signals: {error}"))
}

/// The plugins whose tools are only known once they run.
fn undiscovered(plans: &[PluginPlan]) -> Vec<String> {
    let unknown = plans.iter().filter(|it| it.enabled && it.discover && it.tools.is_empty());
    unknown.map(|it| it.name.clone()).collect()
}

/// Starts plugins side by side to learn their tools. Gives those that would not start.
pub(crate) async fn discover(supervisor: &Supervisor, names: &[String]) -> Vec<NotReady> {
    let ready = join_all(names.iter().map(|name| supervisor.ready(name))).await;
    ready.into_iter().filter_map(Result::err).collect()
}

/// One tool; for that, starts the plugins whose tools no manifest names, if need be.
pub(crate) async fn learn(
    supervisor: &Supervisor,
    unknown: &[String],
    tool: &str,
    total: Option<Duration>,
) -> Outcome<ToolInfo> {
    if let Some(tool) = supervisor.registry().tool(tool) {
        return Ok(tool);
    }
    let learning = discover(supervisor, unknown);
    let down = match total {
        Some(total) => {
            timeout(total, learning).await.map_err(|_| cause::never_ready(supervisor, total))?
        }
        None => learning.await,
    };
    let found = supervisor.registry().find(&Caller::trusted("cli"), tool);
    found.map_err(|error| cause::no_tool(supervisor, error, down))
}

/// The names of one plugin's tools.
pub(crate) fn tools_of(supervisor: &Supervisor, plugin: &str) -> Vec<String> {
    let tools = supervisor.registry().tools(&Caller::trusted("cli"));
    let own = tools.into_iter().filter(|it| it.plugin.as_deref() == Some(plugin));
    own.map(|it| it.name).collect()
}

/// Ends every process, and then the wait: for the stop ladder's own time, or until a
/// signal says that it is too long.
async fn put_away(
    supervisor: &Supervisor,
    drain: Duration,
    signals: &mut Signals,
    screen: &Screen,
) {
    let shutdown = supervisor.shutdown_within(drain);
    tokio::pin!(shutdown);
    tokio::select! {
        () = &mut shutdown => return,
        () = signals.next() => return,
        () = tokio::time::sleep(PATIENCE) => {}
    }
    let left = supervisor.plugins().into_iter().filter(|it| it.pid.is_some());
    let left: Vec<String> = left.map(|it| it.name).collect();
    if !left.is_empty() {
        let text = format!("for {} to end; Ctrl-C ends it at once", left.join(", "));
        screen.status(&Status::new(PLAIN, "Waiting", text));
    }
    tokio::select! {
        () = &mut shutdown => {}
        () = signals.next() => {}
    }
}
