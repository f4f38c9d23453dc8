//! A plugin: its name, its tools, and how it starts and stops.

use std::{fmt, pin::Pin, process::ExitCode, sync::Arc};

use bytes::Bytes;
use plugbay_protocol::{
    Announce, Features, Identity, Limits, Patience, contract::Provide, scope::Scope,
};

use serde::Serialize;
use serde_json::Value;

use crate::{
    Activation, Entry, Error, Method, Tool, body,
    engine::{Author, Engine},
    stdio,
    wire::Wire,
};

/// Makes the state of an activation.
pub(crate) type OnActivate<S> = Box<
    dyn Fn(Arc<Activation>) -> Pin<Box<dyn Future<Output = Result<S, Error>> + Send>> + Send + Sync,
>;
/// Says goodbye to it.
pub(crate) type OnDeactivate<S> =
    Box<dyn Fn(Arc<S>) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// A plugin, put together in `main`.
///
/// Stdin and stdout belong to the protocol. [`Self::run`] and [`Self::serve`] take them
/// away: what is printed after that lands in stderr, from child processes too, and
/// whoever reads stdin finds it empty. Print nothing before.
///
/// Started by hand, without a host, a plugin says in one sentence who it is and exits
/// with code 2.
pub struct Plugin<S = ()> {
    identity: Identity,
    limits: Limits,
    wants: Vec<String>,
    tools: Vec<Tool<S>>,
    entries: Vec<Entry<S>>,
    methods: Vec<Method<S>>,
    on_activate: OnActivate<S>,
    on_deactivate: Option<OnDeactivate<S>>,
}

impl Plugin {
    /// A plugin without tools. The id is the one in `plugin.toml`, such as `acme.geocode`;
    /// the version is your own.
    pub fn new(id: impl Into<String>, version: impl Into<String>) -> Self {
        let sdk = Some(concat!("rust/", env!("CARGO_PKG_VERSION")).to_owned());
        Self {
            identity: Identity { name: id.into(), version: version.into(), sdk },
            limits: Limits::default(),
            wants: Vec::new(),
            tools: Vec::new(),
            entries: Vec::new(),
            methods: Vec::new(),
            on_activate: Box::new(|_| Box::pin(async { Ok(()) })),
            on_deactivate: None,
        }
    }

    /// What to do when the host makes the plugin active: read the configuration, open what
    /// has to be open. What it returns is every tool's [`Context::state`](crate::Context::state)
    /// until the plugin is deactivated; a later activation makes a new one.
    ///
    /// An error ends the activation and names the reason to the operator; the plugin stays
    /// up and can be activated again. Tools with this state are added after this call.
    pub fn on_activate<S, F, Fut, E>(self, open: F) -> Plugin<S>
    where
        S: Send + Sync + 'static,
        F: Fn(Arc<Activation>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<S, E>> + Send + 'static,
        E: Into<Error>,
    {
        Plugin {
            identity: self.identity,
            limits: self.limits,
            wants: self.wants,
            tools: self.tools.into_iter().map(Tool::with_state).collect(),
            entries: self.entries.into_iter().map(Entry::with_state).collect(),
            methods: self.methods.into_iter().map(Method::with_state).collect(),
            on_activate: Box::new(move |activation| {
                let opening = open(activation);
                Box::pin(async move { opening.await.map_err(Into::into) })
            }),
            on_deactivate: None,
        }
    }
}

impl<S: Send + Sync + 'static> Plugin<S> {
    /// Adds a tool.
    #[must_use]
    pub fn tool(mut self, tool: Tool<S>) -> Self {
        self.tools.push(tool);
        self
    }

    /// Adds an entry of another kind, with its methods.
    #[must_use]
    pub fn entry(mut self, entry: Entry<S>) -> Self {
        self.entries.push(entry);
        self
    }

    /// Adds a method that belongs to no single entry: one of the plugin's own, or one
    /// that several entries of a kind share.
    #[must_use]
    pub fn method(mut self, method: Method<S>) -> Self {
        self.methods.push(method);
        self
    }

    /// Asks for the right to call the host: `host.tool.call`, or `host.tool.call[fs_*]` for
    /// some names only. The operator grants all, some or none of it.
    #[must_use]
    pub fn wants<T: Into<String>>(mut self, scopes: impl IntoIterator<Item = T>) -> Self {
        self.wants.extend(scopes.into_iter().map(Into::into));
        self
    }

    /// What to do after the last call and before the state is dropped. When the host just
    /// goes away, or asks with SIGTERM, it is called as well, but all that is open is
    /// broken off first and it has half a second for everything: what must not be lost
    /// belongs onto the disk.
    #[must_use]
    pub fn on_deactivate<F, Fut>(mut self, close: F) -> Self
    where
        F: Fn(Arc<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.on_deactivate = Some(Box::new(move |state| Box::pin(close(state))));
        self
    }

    /// How many calls may run at once; 8 unless said. The host sends no more.
    #[must_use]
    pub fn concurrency(mut self, calls: u16) -> Self {
        self.limits.calls = calls.max(1);
        self
    }

    /// The largest frame the plugin accepts, in bytes; 1 MiB unless said, never below
    /// 64 KiB. Arguments are a little smaller than their frame.
    #[must_use]
    pub fn frame_limit(mut self, bytes: u32) -> Self {
        self.limits.frame = bytes.max(Limits::FLOOR.frame);
        self
    }

    /// How many bytes of a stream may come before they are used; 256 KiB unless said, never
    /// below 16 KiB. Each call with items has as much.
    #[must_use]
    pub fn window(mut self, bytes: u32) -> Self {
        self.limits.window = bytes.max(Limits::FLOOR.window);
        self
    }

    /// Works until the host is done, on a small runtime of its own, and returns the exit
    /// code for `main`.
    ///
    /// It returns soon after the host has gone even if a plain tool is still busy: such a
    /// thread ends with the process, so let `main` return.
    pub fn run(self) -> ExitCode {
        stdio::run(self)
    }

    /// Works until the host is done, on the tokio runtime it is awaited on, and returns the
    /// exit code for `main`. The runtime needs its I/O and time drivers.
    ///
    /// If a plain tool is still busy half a second after the host has gone, this ends the
    /// process: a runtime would wait for that thread for ever.
    pub async fn serve(self) -> ExitCode {
        stdio::serve(self).await
    }

    /// What the plugin will offer.
    pub(crate) fn provides(&self) -> impl Iterator<Item = &Provide> {
        self.tools.iter().map(|tool| &tool.provide)
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The plugin at work, silent until its host speaks.
    ///
    /// # Errors
    /// What the author has to change, one sentence for each.
    pub(crate) fn engine(self, at_once: bool) -> Result<Engine<S>, Vec<String>> {
        let problems = self.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let offers = self.offers();
        let features = self.features();
        let (mut manifest, mut manifests) = (Bytes::new(), Vec::new());
        for features in subsets(features) {
            let body = self.manifest(features, &offers).map_err(|why| vec![why])?;
            if features == Features::NONE {
                manifest = body;
            } else {
                manifests.push((features, body));
            }
        }
        // All of them are the same in most plugins.
        if manifests.iter().all(|(_, other)| *other == manifest) {
            manifests.clear();
        }
        let wire = Wire::new(Announce {
            identity: self.identity,
            limits: self.limits,
            features: features.union(Features::ASYNC),
            manifest,
            manifests,
            patience: Patience::default(),
        });
        let author = Author {
            tools: self.tools,
            entries: self.entries,
            methods: self.methods,
            on_activate: self.on_activate,
            on_deactivate: self.on_deactivate,
        };
        Ok(Engine::new(wire, author, offers, at_once))
    }

    /// What the plugin has a use for, besides working on several calls at once. Any tool
    /// may have previews, and a host that takes none gets none.
    fn features(&self) -> Features {
        let mut features = Features::STREAM;
        if !self.wants.is_empty() {
            features = features.union(Features::REVERSE);
        }
        for entry in &self.entries {
            features = features.union(entry.needs);
        }
        for method in &self.methods {
            features = features.union(method.needs);
        }
        features
    }

    fn offers(&self) -> Vec<Offer> {
        let tools = self.tools.iter().map(|tool| Offer {
            kind: "tool".into(),
            name: tool.provide.name.clone(),
            needs: Features::NONE,
            entry: serde_json::to_value(&tool.provide).unwrap_or_default(),
        });
        let entries = self.entries.iter().map(|entry| Offer {
            kind: entry.kind.clone(),
            name: entry.name.clone(),
            needs: entry.needs,
            entry: entry.offer(),
        });
        tools.chain(entries).collect()
    }

    /// What is said to a host with these features.
    fn manifest(&self, features: Features, offers: &[Offer]) -> Result<Bytes, String> {
        #[derive(Serialize)]
        struct Manifest<'a> {
            provides: Vec<&'a Value>,
            wants: &'a [String],
        }
        let manifest = Manifest {
            provides: offers.iter().filter(|it| it.suits(features)).map(|it| &it.entry).collect(),
            wants: if features.contains(Features::REVERSE) { &self.wants } else { &[] },
        };
        let manifest = body::encode(&manifest, 1024)?;
        if MANIFEST_MAX < manifest.len() {
            let n = manifest.len();
            return Err(format!(
                "the tools are described by {n} bytes, at most {MANIFEST_MAX} fit"
            ));
        }
        Ok(manifest)
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let Identity { name: id, version, .. } = &self.identity;
        if !is_id(id) {
            problems.push(format!("the plugin's id {id:?} is not 1 to 64 of a-z 0-9 . and -"));
        }
        if version.is_empty() || 64 < version.len() {
            problems.push("the plugin's version is empty or longer than 64 bytes".into());
        }
        let mut names: Vec<&str> = Vec::new();
        for Provide { name, input_schema, output_schema, .. } in self.provides() {
            if !is_tool_name(name) {
                problems.push(format!(
                    "the tool name {name:?} is not a letter and up to 63 more of A-Z a-z 0-9 _ and -"
                ));
            }
            if names.contains(&name.as_str()) {
                problems.push(format!("two tools are called {name:?}"));
            }
            // [R-TL-01]
            if input_schema["type"] != "object" {
                problems
                    .push(format!("the arguments of {name:?} are not a struct with named fields"));
            }
            if output_schema.as_ref().is_some_and(|schema| schema["type"] != "object") {
                problems.push(format!("the data of {name:?} is not a struct with named fields"));
            }
            names.push(name);
        }
        self.problems_of_entries(&mut problems);
        let unread = self.wants.iter().filter(|scope| Scope::parse(scope).is_none());
        problems.extend(unread.map(|scope| format!("the scope {scope:?} is none")));
        problems
    }

    fn problems_of_entries(&self, problems: &mut Vec<String>) {
        let mut names: Vec<(&str, &str)> = Vec::new();
        for Entry { kind, name, problem, .. } in &self.entries {
            if kind == "tool" {
                problems.push(format!("the tool {name:?} is an Entry, where a Tool is due"));
            }
            // [R-HS-10]
            if !is_tool_name(name) {
                problems.push(format!(
                    "the name {name:?} is not a letter and up to 63 more of A-Z a-z 0-9 _ and -"
                ));
            }
            if names.contains(&(kind, name)) {
                problems.push(format!("two entries of kind {kind:?} are called {name:?}"));
            }
            problems.extend(problem.clone());
            names.push((kind, name));
        }
        let mut seen: Vec<&str> = Vec::new();
        for Method { name, .. } in
            self.methods.iter().chain(self.entries.iter().flat_map(|it| &it.methods))
        {
            if !is_method(name) {
                problems.push(format!(
                    "the method {name:?} is not of the form acme.search, or is the SDK's own"
                ));
            }
            if seen.contains(&name.as_str()) {
                problems.push(format!("two methods are called {name:?}"));
            }
            seen.push(name);
        }
    }
}

/// One entry of the manifest.
pub(crate) struct Offer {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) needs: Features,
    pub(crate) entry: Value,
}

impl Offer {
    /// Whether a host with these features is offered it.
    pub(crate) fn suits(&self, features: Features) -> bool {
        features.contains(self.needs)
    }
}

/// Every combination of these features, the larger ones first.
fn subsets(of: Features) -> Vec<Features> {
    let mut all = vec![Features::NONE];
    for one in [Features::STREAM, Features::REVERSE, Features::STREAM_IN] {
        if of.contains(one) {
            all.extend(all.clone().into_iter().map(|some| some.union(one)));
        }
    }
    all.sort_by_key(|some| std::cmp::Reverse(some.names().count()));
    all
}

/// A method of a contract or of the author's, but for those that the SDK answers itself.
fn is_method(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    let word =
        |word: &str| word.starts_with(|c: char| c.is_ascii_lowercase()) && word.bytes().all(plain);
    let own = name == "tool.call" || name.starts_with("plugin.") || name.starts_with("host.");
    name.contains('.') && name.split('.').all(word) && !own
}

/// A HELLO is at most 1 MiB, whatever was announced. \[R-FR-10\]
const MANIFEST_MAX: usize = (1 << 20) - 4096;

fn is_id(id: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'.' || b == b'-';
    (1..=64).contains(&id.len()) && id.bytes().all(plain)
}

fn is_tool_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    (1..=64).contains(&name.len())
        && name.as_bytes()[0].is_ascii_alphabetic()
        && name.bytes().all(plain)
}

impl<S> fmt::Debug for Plugin<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin")
            .field("id", &self.identity.name)
            .field("tools", &self.tools)
            .finish_non_exhaustive()
    }
}
