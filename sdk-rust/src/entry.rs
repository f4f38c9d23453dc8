//! What a plugin provides besides tools: entries of any kind, and their methods.

use std::{fmt, pin::pin, sync::Arc};

use bytes::Bytes;
use futures_core::Stream;
use plugbay_protocol::{Code, Features};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    Context, Error, FromBody, Input, IntoBody,
    body::arguments,
    reply::{Outcome, not_encodable},
    tool::{Running, Start, next_of},
};

/// One thing a plugin provides, of a kind that has a contract: a model, a memory, a policy,
/// a sandbox, a runtime. (A tool is a [`Tool`](crate::Tool).)
///
/// ```
/// use plugbay_sdk::{Context, Entry, Error, Method, Plugin};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Deserialize)]
/// struct Check {
///     action: String,
/// }
///
/// #[derive(Serialize)]
/// struct Verdict {
///     decision: &'static str,
/// }
///
/// async fn check(_: Context, check: Check) -> Result<Verdict, Error> {
///     let harmless = check.action.starts_with("read");
///     Ok(Verdict { decision: if harmless { "allow" } else { "ask" } })
/// }
///
/// let rules = Entry::new("policy", "house_rules")
///     .field("hooks", ["tool"])
///     .method(Method::new("policy.check", check));
/// let plugin = Plugin::new("acme.rules", "1.0.0").entry(rules);
/// ```
pub struct Entry<S = ()> {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) fields: Map<String, Value>,
    pub(crate) needs: Features,
    pub(crate) methods: Vec<Method<S>>,
    /// What is wrong with it.
    pub(crate) problem: Option<String>,
}

impl<S: Send + Sync + 'static> Entry<S> {
    /// An entry of this kind, with a name that is its own within the kind.
    pub fn new(kind: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            name: name.into(),
            fields: Map::new(),
            needs: Features::NONE,
            methods: Vec::new(),
            problem: None,
        }
    }

    /// Says more about it, as its contract has it.
    #[must_use]
    pub fn field(mut self, key: &str, value: impl Serialize) -> Self {
        match serde_json::to_value(value) {
            Ok(value) => {
                self.fields.insert(key.into(), value);
            }
            Err(why) => self.problem = Some(format!("the field {key:?} of an entry: {why}")),
        }
        self
    }

    /// Adds a method, which is there while the entry is: with a host that has not all that
    /// the entry needs, and under a configuration that leaves it out, it is unknown.
    #[must_use]
    pub fn method(mut self, method: Method<S>) -> Self {
        self.needs = self.needs.union(method.needs);
        self.methods.push(method);
        self
    }

    /// Offers it only to hosts with these features. What its methods need is known.
    #[must_use]
    pub fn needs(mut self, features: Features) -> Self {
        self.needs = self.needs.union(features);
        self
    }

    /// As it stands in the manifest.
    pub(crate) fn offer(&self) -> Value {
        let mut offer = self.fields.clone();
        offer.insert("kind".into(), self.kind.clone().into());
        offer.insert("name".into(), self.name.clone().into());
        Value::Object(offer)
    }
}

/// What a plugin does when the host calls one of its methods.
///
/// **Arguments** are any type that derives `Deserialize` from a map, or [`Raw`]; `()` for
/// none. **Results** are any type that derives `Serialize`; `()` is the empty map. **Errors**
/// are [`Error`]s: the call fails with their code, and any other error is `internal`.
///
/// [`Raw`]: crate::Raw
pub struct Method<S = ()> {
    pub(crate) name: String,
    pub(crate) needs: Features,
    /// Whether it takes items.
    pub(crate) takes: bool,
    pub(crate) start: Start<S>,
}

impl<S: Send + Sync + 'static> Method<S> {
    /// A method that is an `async fn`. It is cancelled like a tool: see
    /// [`Tool::new`](crate::Tool::new). Items it sends with
    /// [`Context::send`](crate::Context::send).
    pub fn new<A, F, Fut, R, E>(name: impl Into<String>, function: F) -> Self
    where
        A: FromBody + Send + 'static,
        F: Fn(Context<S>, A) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: IntoBody + 'static,
        E: Into<Error>,
    {
        let function = Arc::new(function);
        Self::of(name, move |context, args| {
            let function = Arc::clone(&function);
            Running::Async(Box::pin(
                async move { outcome(function(context, arguments(args)?).await) },
            ))
        })
    }

    /// A method that is a plain function, on a thread of its own: see
    /// [`Tool::plain`](crate::Tool::plain).
    pub fn plain<A, F, R, E>(name: impl Into<String>, function: F) -> Self
    where
        A: FromBody + Send + 'static,
        F: Fn(Context<S>, A) -> Result<R, E> + Send + Sync + 'static,
        R: IntoBody + 'static,
        E: Into<Error>,
    {
        let function = Arc::new(function);
        Self::of(name, move |context, args| {
            let function = Arc::clone(&function);
            Running::Plain(Box::new(move || outcome(function(context, arguments(args)?))))
        })
    }

    /// A method that answers with a stream: each element is an item, and the result, as
    /// the standard contracts have it, is `{n}`, how many there were. The stream is asked
    /// for its next element only when the host has room for it.
    ///
    /// It needs a host with streams.
    ///
    /// ```
    /// use futures::stream;
    /// use plugbay_sdk::{Context, Error, Method};
    ///
    /// // { n: 3 } after the items 0, 1 and 2.
    /// let count: Method = Method::stream("acme.count", |_: Context, (): ()| {
    ///     stream::iter((0..3).map(Ok::<_, Error>))
    /// });
    /// ```
    pub fn stream<A, F, St, T, E>(name: impl Into<String>, function: F) -> Self
    where
        A: FromBody + Send + 'static,
        F: Fn(Context<S>, A) -> St + Send + Sync + 'static,
        St: Stream<Item = Result<T, E>> + Send + 'static,
        T: IntoBody + Send + 'static,
        E: Into<Error> + Send,
    {
        let function = Arc::new(function);
        let mut method = Self::of(name, move |context: Context<S>, args| {
            let function = Arc::clone(&function);
            Running::Async(Box::pin(async move {
                let call = Arc::clone(&context.call);
                let mut items = pin!(function(context, arguments(args)?));
                let mut n = 0_u64;
                while let Some(item) = next_of(items.as_mut()).await {
                    let item = item.map_err(|e| e.into().into_fault(Code::Internal))?;
                    let item = item.into_body().map_err(not_encodable)?;
                    call.send(&item).await.map_err(|e| e.into_fault(Code::Internal))?;
                    n += 1;
                }
                outcome(Ok::<_, Error>(json!({ "n": n })))
            }))
        });
        method.needs = Features::STREAM;
        method
    }

    /// A method that takes items: an `async fn` with an [`Input`]. A call without any has
    /// an empty one. \[R-ST-21\]
    ///
    /// It needs a host that can send them.
    ///
    /// ```
    /// use plugbay_sdk::{Context, Error, Input, Method};
    ///
    /// async fn sum(_: Context, (): (), mut numbers: Input<u64>) -> Result<u64, Error> {
    ///     let mut sum = 0;
    ///     while let Some(number) = numbers.next().await? {
    ///         sum += number;
    ///     }
    ///     Ok(sum)
    /// }
    ///
    /// let sum: Method = Method::input("acme.sum", sum);
    /// ```
    pub fn input<A, T, F, Fut, R, E>(name: impl Into<String>, function: F) -> Self
    where
        A: FromBody + Send + 'static,
        T: FromBody + 'static,
        F: Fn(Context<S>, A, Input<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: IntoBody + 'static,
        E: Into<Error>,
    {
        let function = Arc::new(function);
        let mut method = Self::of(name, move |context: Context<S>, args| {
            let function = Arc::clone(&function);
            Running::Async(Box::pin(async move {
                let input = Input::new(Arc::clone(&context.call));
                outcome(function(context, arguments(args)?, input).await)
            }))
        });
        method.needs = Features::STREAM_IN;
        method.takes = true;
        method
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Offers it only to hosts with these features, besides those that it needs anyway.
    #[must_use]
    pub fn needs(mut self, features: Features) -> Self {
        self.needs = self.needs.union(features);
        self
    }

    fn of(
        name: impl Into<String>,
        start: impl Fn(Context<S>, Bytes) -> Running + Send + Sync + 'static,
    ) -> Self {
        let needs = Features::NONE;
        Self { name: name.into(), needs, takes: false, start: Arc::new(start) }
    }
}

impl Method {
    /// The same method in a plugin whose state it does not use.
    pub(crate) fn with_state<S: Send + Sync + 'static>(self) -> Method<S> {
        let Self { name, needs, takes, start } = self;
        let start = move |context: Context<S>, args| start(context.stateless(), args);
        Method { name, needs, takes, start: Arc::new(start) }
    }
}

impl Entry {
    /// The same entry in a plugin whose state it does not use.
    pub(crate) fn with_state<S: Send + Sync + 'static>(self) -> Entry<S> {
        let Self { kind, name, fields, needs, methods, problem } = self;
        let methods = methods.into_iter().map(Method::with_state).collect();
        Entry { kind, name, fields, needs, methods, problem }
    }
}

fn outcome<R: IntoBody + 'static, E: Into<Error>>(result: Result<R, E>) -> Outcome {
    let result = result.map_err(|error| error.into().into_fault(Code::Internal))?;
    result.into_result().map_err(not_encodable)
}

impl<S> fmt::Debug for Entry<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("kind", &self.kind)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl<S> fmt::Debug for Method<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Method").field("name", &self.name).finish_non_exhaustive()
    }
}
