//! What a plugin learns when it becomes active.

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;
use plugbay_protocol::{Fault, body_fields};
use serde::de::DeserializeOwned;

use crate::{Error, body};

/// What the operator gives to a plugin: configuration, secrets, scopes.
#[derive(Default)]
pub struct Activation {
    config: Bytes,
    secrets: BTreeMap<String, String>,
    grant: Vec<String>,
}

impl Activation {
    /// Reads the arguments of `plugin.activate`.
    pub(crate) fn read(bytes: &Bytes) -> Result<Self, Fault> {
        let [config, secrets, grant] =
            body_fields(bytes, ["config", "secrets", "grant"]).map_err(body::bad_body)?;
        let bad = |name: &'static str| move |why: String| body::bad_body(format!("{name}: {why}"));
        let or_empty = |value: Option<&[u8]>| value.map_or(Bytes::new(), |v| bytes.slice_ref(v));
        Ok(Self {
            config: or_empty(config.filter(|value| !is_nil(value))),
            secrets: optional(secrets).map_err(bad("secrets"))?,
            grant: optional(grant).map_err(bad("grant"))?,
        })
    }

    /// The configuration, as a type of yours. Without one it reads as an empty map, so
    /// `#[serde(default)]` does what one expects; `deny_unknown_fields` makes typing
    /// errors visible to the operator.
    ///
    /// # Errors
    /// It does not fit: says which key, and ends the activation as `invalid_argument`.
    pub fn config<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let config = if self.config.is_empty() { &EMPTY_MAP[..] } else { &self.config[..] };
        body::decode(config).map_err(|why| Error::invalid(format!("config: {why}")))
    }

    /// A secret by name.
    ///
    /// # Errors
    /// The operator gave no such secret.
    pub fn secret(&self, name: &str) -> Result<&str, Error> {
        let found = self.secrets.get(name).map(String::as_str);
        found.ok_or_else(|| Error::precondition(format!("the secret {name:?} is not set")))
    }

    /// The scopes granted.
    pub fn grant(&self) -> &[String] {
        &self.grant
    }
}

impl fmt::Debug for Activation {
    /// Names what there is and shows none of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secrets: Vec<_> = self.secrets.keys().collect();
        f.debug_struct("Activation").field("grant", &self.grant).field("secrets", &secrets).finish()
    }
}

const EMPTY_MAP: [u8; 1] = [0x80];

/// Nil and absent are the same. \[R-HD-03\]
pub(crate) fn optional<T: DeserializeOwned + Default>(value: Option<&[u8]>) -> Result<T, String> {
    value.filter(|value| !is_nil(value)).map_or(Ok(T::default()), body::decode)
}

fn is_nil(value: &[u8]) -> bool {
    value == [0xc0]
}
