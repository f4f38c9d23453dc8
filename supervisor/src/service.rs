//! What plugins may call at their host: the embedder's services, and `host.tool.call`.
//!
//! Whether a plugin has the right is decided before anything here runs: the conversation
//! holds every reverse call against the grant and the scopes of the call it serves.
//! \[R-SC-05\] \[R-SC-06\]

use std::{collections::HashMap, fmt, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use plugbay_protocol::{
    CallId, Code, Fault, Incoming,
    contract::{Block, ToolResult},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    body::{self, Json},
    call::{Call, Caller, Output},
    link::Link,
    registry::WeakRegistry,
};

/// The method through which a plugin calls tools of this registry.
pub(crate) const TOOL_CALL: &str = "host.tool.call";

/// On whose behalf a call is made.
#[derive(Debug)]
pub(crate) struct Origin {
    /// Who made the first of them.
    pub(crate) caller: Arc<str>,
    /// The calls that led to it, the nearest last: they are open, and wait for it.
    pub(crate) ancestors: Vec<(Link, CallId)>,
}

/// One call of a service by a plugin.
#[derive(Clone)]
pub struct ServiceCall {
    /// The plugin, by the operator's name for it.
    pub plugin: Arc<str>,
    /// The method, such as `host.kv.get`.
    pub method: String,
    /// What is left of its time, if that is bounded.
    pub deadline: Option<Duration>,
    /// The arguments, MessagePack.
    pub body: Bytes,
    /// Who called the plugin, if it works for somebody and not in the background.
    pub caller: Option<Arc<str>>,
    pub(crate) origin: Arc<Origin>,
}

impl fmt::Debug for ServiceCall {
    /// Without the arguments, which are the tenant's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServiceCall").field(&self.plugin).field(&self.method).finish()
    }
}

impl ServiceCall {
    /// Decodes the arguments. Absent ones are nil.
    ///
    /// # Errors
    /// The fault to answer: `invalid_argument`, `pb.bad_body`.
    pub fn args<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        body::decode(&self.body)
            .map_err(|why| Fault::new(Code::InvalidArgument).because("pb.bad_body").message(&why))
    }
}

/// What a service does with a call. Dropped when the plugin gives the call up.
pub(crate) type Service =
    Arc<dyn Fn(ServiceCall) -> BoxFuture<'static, Result<Bytes, Fault>> + Send + Sync>;

/// All services of a supervisor, by method.
#[derive(Clone, Default)]
pub(crate) struct Services(Arc<HashMap<String, Service>>);

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl From<HashMap<String, Service>> for Services {
    fn from(all: HashMap<String, Service>) -> Self {
        Self(Arc::new(all))
    }
}

impl Services {
    /// Serves one call. Every way out is an answer: a service that panics has failed.
    pub(crate) async fn serve(&self, call: ServiceCall) -> Result<Bytes, Fault> {
        let Some(service) = self.0.get(&call.method).cloned() else {
            return Err(Fault::new(Code::Unimplemented).because("pb.unknown_method"));
        };
        let budget = call.deadline;
        let work = AssertUnwindSafe(async move { service(call).await }).catch_unwind();
        let done = match budget {
            Some(budget) => tokio::time::timeout(budget, work).await,
            None => Ok(work.await),
        };
        match done {
            Ok(Ok(result)) => result,
            // The panic hook has said what there is to say.
            Ok(Err(_panic)) => Err(Fault::new(Code::Internal)),
            Err(_elapsed) => Err(Fault::new(Code::DeadlineExceeded)),
        }
    }
}

/// A service from a function.
pub(crate) fn service<T, F>(run: impl Fn(ServiceCall) -> F + Send + Sync + 'static) -> Service
where
    T: Serialize,
    F: Future<Output = Result<T, Fault>> + Send + 'static,
{
    Arc::new(move |call| {
        let work = run(call);
        Box::pin(async move { Ok(body::encode(&work.await?)) })
    })
}

/// `host.tool.call`: a plugin calls a tool of the registry, in its own name and under the
/// same rules as everybody. Which tools it may call is what the globs of its scopes say.
/// \[R-RU-11\]
pub(crate) fn tool_call(registry: WeakRegistry) -> Service {
    service(move |call| {
        let registry = registry.clone();
        async move {
            let args: ToolCall = call.args()?;
            let registry = registry.upgrade().ok_or(Fault::new(Code::Unavailable))?;
            // The conversation has held the name against the scopes.
            let caller = Caller::new(&format!("plugin {}", call.plugin)).allow(&args.name);
            let mut tool = Call::new(args.name, args.args.map_or_else(empty, |args| args.0));
            (tool.terms.deadline, tool.terms.origin) = (call.deadline, Some(call.origin));
            let output = registry.call(&caller, tool).await.map_err(|error| Fault::from(&error))?;
            Ok(Receipt { receipt: result(output) })
        }
    })
}

/// The arguments of `host.tool.call`. Whose session it is the registry does not ask.
#[derive(Deserialize)]
struct ToolCall {
    name: String,
    #[serde(default)]
    args: Option<Json>,
}

#[derive(Serialize)]
struct Receipt {
    receipt: ToolResult,
}

fn empty() -> Value {
    Value::Object(serde_json::Map::new())
}

fn result(output: Output) -> ToolResult {
    let known = output.content.into_iter().filter(|block| *block != Block::Unknown);
    ToolResult { content: known.collect(), data: output.data, is_error: output.is_error }
}

/// The call as the service sees it.
pub(crate) fn service_call(
    plugin: &Arc<str>,
    incoming: Incoming,
    caller: Option<Arc<str>>,
    ancestors: Vec<(Link, CallId)>,
) -> ServiceCall {
    let origin = Origin { caller: caller.clone().unwrap_or_else(|| Arc::clone(plugin)), ancestors };
    ServiceCall {
        plugin: Arc::clone(plugin),
        method: incoming.method.into_owned(),
        deadline: incoming.deadline.map(Duration::from_millis),
        body: incoming.body,
        caller,
        origin: Arc::new(origin),
    }
}
