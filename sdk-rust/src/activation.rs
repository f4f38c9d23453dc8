//! What a plugin learns when it becomes active.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use plugbay_protocol::{CallId, Fault, body_fields};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::{
    Background, Error, HostCall, IntoBody, Raw,
    ask::{Caller, is_granted},
    body,
    wire::Wire,
};

/// What the operator gives to a plugin: configuration, secrets, scopes.
pub struct Activation {
    config: Bytes,
    secrets: BTreeMap<String, String>,
    grant: Arc<[String]>,
    chosen: OnceLock<Choice>,
    wire: Arc<Wire>,
    id: CallId,
    epoch: u64,
}

/// Which entries are offered, by kind and name.
type Choice = Box<dyn Fn(&str, &str) -> bool + Send + Sync>;

impl Activation {
    /// Reads the arguments of `plugin.activate`.
    pub(crate) fn read(bytes: &Bytes, wire: &Arc<Wire>, id: CallId) -> Result<Self, Fault> {
        let [config, secrets, grant] =
            body_fields(bytes, ["config", "secrets", "grant"]).map_err(body::bad_body)?;
        let bad = |name: &'static str| move |why: String| body::bad_body(format!("{name}: {why}"));
        let or_empty = |value: Option<&[u8]>| value.map_or(Bytes::new(), |v| bytes.slice_ref(v));
        Ok(Self {
            config: or_empty(config.filter(|value| !is_nil(value))),
            secrets: optional(secrets).map_err(bad("secrets"))?,
            grant: optional::<Vec<String>>(grant).map_err(bad("grant"))?.into(),
            chosen: OnceLock::new(),
            wire: Arc::clone(wire),
            id,
            epoch: wire.lock().epoch(),
        })
    }

    /// What a drain has in its place, which is given nothing.
    pub(crate) fn none(wire: &Arc<Wire>, id: CallId) -> Self {
        Self {
            config: Bytes::new(),
            secrets: BTreeMap::new(),
            grant: [].into(),
            chosen: OnceLock::new(),
            wire: Arc::clone(wire),
            id,
            epoch: 0,
        }
    }

    /// The configuration, as a type of yours. Without one it reads as an empty map, so
    /// `#[serde(default)]` does what one expects; `deny_unknown_fields` makes typing
    /// errors visible to the operator.
    ///
    /// # Errors
    /// It does not fit: says which key, and ends the activation as `invalid_argument`.
    pub fn config<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let config = if self.config.is_empty() { body::EMPTY_MAP } else { &self.config[..] };
        body::decode(config).map_err(|why| Error::invalid(format!("config: {why}")))
    }

    /// The configuration as it came; empty if there is none.
    pub fn raw_config(&self) -> Raw {
        Raw(self.config.clone())
    }

    /// A secret by name.
    ///
    /// # Errors
    /// The operator gave no such secret.
    pub fn secret(&self, name: &str) -> Result<&str, Error> {
        let found = self.secrets.get(name).map(String::as_str);
        found.ok_or_else(|| Error::precondition(format!("the secret {name:?} is not set")))
    }

    /// The names of the secrets, in order.
    pub fn secret_names(&self) -> impl Iterator<Item = &str> {
        self.secrets.keys().map(String::as_str)
    }

    /// The scopes granted.
    pub fn grant(&self) -> &[String] {
        &self.grant
    }

    /// For a plugin that cannot work without these scopes. \[R-SC-09\]
    ///
    /// # Errors
    /// Some of them are not granted, letter by letter: `failed_precondition`,
    /// `pb.missing_scope`, and which.
    pub fn require<T: AsRef<str>>(&self, scopes: &[T]) -> Result<(), Error> {
        let scopes = scopes.iter().map(AsRef::as_ref);
        let missing: Vec<&str> =
            scopes.filter(|scope| self.grant.iter().all(|granted| granted != scope)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::precondition(format!("not granted: {}", missing.join(", ")))
            .because("pb.missing_scope")
            .data(json!({ "scopes": missing })))
    }

    /// Whether the grant has a scope with this method.
    pub fn may_call(&self, method: &str) -> bool {
        is_granted(&self.grant, None, method)
    }

    /// Offers, under this configuration, only the entries for which this is true, by kind
    /// and name: `("tool", "search")`. For
    /// [`Plugin::on_activate`](crate::Plugin::on_activate), and the first time it is
    /// said counts. \[R-LC-05\]
    pub fn provide_only(&self, choose: impl Fn(&str, &str) -> bool + Send + Sync + 'static) {
        // The answer to plugin.activate has to tell the same until the next one. [R-LC-07]
        let _said_before = self.chosen.set(Box::new(choose));
    }

    /// Calls the host while the activation lasts, for the sake of it. Afterwards there are
    /// [`Context::call`](crate::Context::call) and [`Self::background`].
    pub fn call<R>(&self, method: &str, args: impl IntoBody) -> HostCall<R> {
        Caller::Step(Arc::clone(&self.wire), self.id).ask(method, args)
    }

    /// For what the plugin does by itself, and for no call.
    pub fn background(&self) -> Background {
        Background {
            wire: Arc::clone(&self.wire),
            epoch: self.epoch,
            grant: Arc::clone(&self.grant),
        }
    }

    /// The activation is through: whether not all entries are offered, from now on.
    pub(crate) fn is_narrowed(&self) -> bool {
        let all: Choice = Box::new(|_, _| true);
        self.chosen.set(all).is_err()
    }

    pub(crate) fn provides(&self, kind: &str, name: &str) -> bool {
        self.chosen.get().is_none_or(|choose| choose(kind, name))
    }
}

impl fmt::Debug for Activation {
    /// Names what there is and shows none of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secrets: Vec<_> = self.secrets.keys().collect();
        f.debug_struct("Activation").field("grant", &self.grant).field("secrets", &secrets).finish()
    }
}

/// Nil and absent are the same. \[R-HD-03\]
pub(crate) fn optional<T: DeserializeOwned + Default>(value: Option<&[u8]>) -> Result<T, String> {
    value.filter(|value| !is_nil(value)).map_or(Ok(T::default()), body::decode)
}

fn is_nil(value: &[u8]) -> bool {
    value == [0xc0]
}
