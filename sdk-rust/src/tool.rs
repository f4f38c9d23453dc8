//! A function, and what the host has to know about it.

use std::{
    any::TypeId,
    fmt,
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
};

use bytes::Bytes;
use futures_core::Stream;
use plugbay_protocol::{Code, Fault, contract::Provide};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    Context, Error, IntoBody, Reply, body,
    reply::{Outcome, not_encodable, outcome, preview},
};

/// What a call does to the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Looks, and changes nothing.
    Read,
    /// Prepares a change that somebody else must confirm.
    Draft,
    /// Changes something. What a tool that says nothing is taken for.
    Write,
}

impl Effect {
    fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Draft => "draft",
            Self::Write => "write",
        }
    }
}

/// One tool: a function with typed arguments.
///
/// **Arguments** are a struct that derives `Deserialize` and `JsonSchema`, the latter by
/// `use plugbay_sdk::schemars::{self, JsonSchema}` (the derive looks for both names). Doc comments on its fields become the
/// descriptions a model reads; one on the struct becomes the tool's own, unless
/// [`Self::describe`] gives another. `()` is for tools without arguments. A field for
/// bytes carries `#[serde(with = "serde_bytes")]` and `#[schemars(with = "Vec<u8>")]`.
///
/// **Results**: a `String` (or `&'static str`) becomes one text; `()` becomes an empty
/// answer; a [`Block`](crate::Block), a `Vec` of them or a [`Reply`] is
/// sent as it is; any other `Serialize` type becomes `data`, and a text with the same as
/// compact JSON.
///
/// **Errors**: [`Error`], or any error type.
pub struct Tool<S = ()> {
    pub(crate) provide: Provide,
    pub(crate) start: Start<S>,
}

/// Begins a call. Nothing of the author's has run when it returns.
pub(crate) type Start<S> = Arc<dyn Fn(Context<S>, Bytes) -> Running + Send + Sync>;

/// A call that has begun.
pub(crate) enum Running {
    /// Goes on when polled, ends when dropped.
    Async(Pin<Box<dyn Future<Output = Outcome> + Send>>),
    /// Blocks a thread until it is done.
    Plain(Box<dyn FnOnce() -> Outcome + Send>),
}

impl<S: Send + Sync + 'static> Tool<S> {
    /// A tool that is an `async fn`.
    ///
    /// When its caller cancels, or its deadline passes, the future is polled once more,
    /// so that it may react to [`Context::cancelled`], and then dropped at the await
    /// where it stands. What must be undone belongs into a `Drop`.
    pub fn new<A, F, Fut, T, E>(name: impl Into<String>, function: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        F: Fn(Context<S>, A) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Serialize + 'static,
        E: Into<Error>,
    {
        let function = Arc::new(function);
        let start = move |context, args: Bytes| {
            let function = Arc::clone(&function);
            Running::Async(Box::pin(async move {
                let args = arguments::<A>(args)?;
                outcome(function(context, args).await.map_err(Into::into))
            }))
        };
        Self { provide: provide::<A>(name.into()), start: Arc::new(start) }
    }

    /// A tool that is a plain function. It runs on a thread of its own and may block.
    ///
    /// Nothing can stop it from outside: it should look at [`Context::is_cancelled`], or
    /// use [`Context::check`], between two pieces of work. Until it returns, its call
    /// counts as open.
    pub fn plain<A, F, T, E>(name: impl Into<String>, function: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        F: Fn(Context<S>, A) -> Result<T, E> + Send + Sync + 'static,
        T: Serialize + 'static,
        E: Into<Error>,
    {
        let function = Arc::new(function);
        let start = move |context, args: Bytes| {
            let function = Arc::clone(&function);
            Running::Plain(Box::new(move || {
                let args = arguments::<A>(args)?;
                outcome(function(context, args).map_err(Into::into))
            }))
        };
        Self { provide: provide::<A>(name.into()), start: Arc::new(start) }
    }

    /// A tool that answers bit by bit. People who watch see each element of the stream when
    /// it comes, if the host has streams; the result is all of them together, one text if all
    /// are texts. The stream is asked for its next element only when there is room
    /// for it. \[R-TL-12\]
    ///
    /// Elements are what [results](Tool) are, but that data becomes text.
    ///
    /// ```
    /// use futures::{Stream, stream};
    /// use plugbay_sdk::{Context, Error, Tool};
    ///
    /// fn count(_: Context, (): ()) -> impl Stream<Item = Result<String, Error>> + use<> {
    ///     stream::iter((1..4).map(|n| Ok(format!("{n} "))))
    /// }
    ///
    /// let count: Tool = Tool::stream("count", count); // "1 2 3 "
    /// ```
    pub fn stream<A, F, St, T, E>(name: impl Into<String>, function: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        F: Fn(Context<S>, A) -> St + Send + Sync + 'static,
        St: Stream<Item = Result<T, E>> + Send + 'static,
        T: Serialize + Send + 'static,
        E: Into<Error> + Send,
    {
        let function = Arc::new(function);
        let start = move |context: Context<S>, args: Bytes| {
            let function = Arc::clone(&function);
            Running::Async(Box::pin(async move {
                let call = Arc::clone(&context.call);
                let mut elements = pin!(function(context, arguments::<A>(args)?));
                let mut whole = Reply::new();
                while let Some(element) = next_of(elements.as_mut()).await {
                    let part = match element {
                        Ok(element) => preview(element)?,
                        Err(error) => {
                            let failed = error.into().into_reply()?;
                            return outcome(Ok(whole.join(failed)));
                        }
                    };
                    let item = part.clone().into_body().map_err(not_encodable)?;
                    call.send(&item).await.map_err(|e| e.into_fault(Code::Internal))?;
                    whole = whole.join(part);
                }
                outcome(Ok(whole))
            }))
        };
        Self { provide: provide::<A>(name.into()), start: Arc::new(start) }
    }

    /// One or two sentences for the model.
    #[must_use]
    pub fn describe(mut self, text: impl Into<String>) -> Self {
        self.provide.description = text.into();
        self
    }

    /// What a call does to the world; [`Effect::Write`] unless said.
    #[must_use]
    pub fn effect(mut self, effect: Effect) -> Self {
        self.provide.effect = Some(effect.as_str().into());
        self
    }

    /// A call that may have run may be sent again without harm.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.provide.idempotent = true;
        self
    }

    /// Promises that every successful result carries data of this type, a struct.
    #[must_use]
    pub fn returns<T: JsonSchema + 'static>(mut self) -> Self {
        self.provide.output_schema = Some(schema::<T>(false));
        self
    }
}

/// The next element of a stream.
pub(crate) async fn next_of<St: Stream>(mut stream: Pin<&mut St>) -> Option<St::Item> {
    poll_fn(|cx| stream.as_mut().poll_next(cx)).await
}

impl Tool {
    /// The same tool in a plugin whose state it does not use.
    pub(crate) fn with_state<S: Send + Sync + 'static>(self) -> Tool<S> {
        let start = self.start;
        Tool {
            provide: self.provide,
            start: Arc::new(move |context: Context<S>, args| start(context.stateless(), args)),
        }
    }
}

impl<S> fmt::Debug for Tool<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool").field("name", &self.provide.name).finish_non_exhaustive()
    }
}

fn provide<A: JsonSchema + 'static>(name: String) -> Provide {
    let mut schema = schema::<A>(true);
    let description = match schema.get_mut("description").map(Value::take) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    };
    if let Some(map) = schema.as_object_mut() {
        map.remove("description");
    }
    Provide {
        kind: "tool".into(),
        name,
        description,
        input_schema: schema,
        effect: Some(Effect::Write.as_str().into()),
        ..Provide::default()
    }
}

/// JSON Schema 2020-12 of a type, without what only humans would read.
fn schema<T: JsonSchema + 'static>(input: bool) -> Value {
    if TypeId::of::<T>() == TypeId::of::<()>() {
        return json!({ "type": "object", "properties": {}, "additionalProperties": false });
    }
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.meta_schema = None);
    let settings = if input { settings.for_deserialize() } else { settings.for_serialize() };
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    match schema.as_object_mut() {
        Some(map) => {
            map.remove("title");
            if input && !map.contains_key("type") && only_objects(map) {
                map.insert("type".into(), "object".into());
            }
        }
        None if input => schema = json!({ "type": "object" }),
        None => {}
    }
    schema
}

/// Whether a schema without a type of its own can mean an object: it says nothing, as for
/// a `Value`, or it is an enum each of whose variants is one.
fn only_objects(schema: &serde_json::Map<String, Value>) -> bool {
    let variants = schema.get("oneOf").or_else(|| schema.get("anyOf")).and_then(Value::as_array);
    match variants {
        Some(variants) => variants.iter().all(|variant| variant["type"] == "object"),
        None => schema.keys().all(|key| key == "description"),
    }
}

fn arguments<A: DeserializeOwned + 'static>(bytes: Bytes) -> Result<A, Fault> {
    let decoded = match bytes.first() {
        // `()` is nil to serde, and no argument to everybody else.
        Some(0x80..=0x8f | 0xde | 0xdf) if TypeId::of::<A>() == TypeId::of::<()>() => {
            body::decode(&[0xc0])
        }
        Some(0x80..=0x8f | 0xde | 0xdf) => body::decode(&bytes),
        // A list would fit a struct by position, which nobody can have meant.
        _ => Err("expected a map".into()),
    };
    decoded.map_err(|why| {
        Fault::new(Code::InvalidArgument).because("pb.bad_args").message(&format!("args: {why}"))
    })
}
