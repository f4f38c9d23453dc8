//! The handshake: what each side announces, and what follows from it.

use alloc::{string::String, vec::Vec};

use bytes::Bytes;

use crate::error::Violation;

/// The version of the protocol that this crate speaks.
pub const VERSION: u64 = 1;

/// What one side of a connection accepts. \[R-HS-06\]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest whole frame, in bytes. At least 65,536.
    pub frame: u32,
    /// Initial credit of each stream, in bytes. At least 16,384.
    pub window: u32,
    /// Calls open at once, lifecycle calls not counted. At least 1.
    pub calls: u16,
}

impl Limits {
    /// What every peer must accept.
    pub const FLOOR: Self = Self { frame: 65_536, window: 16_384, calls: 1 };

    /// These limits, each raised to the floor if it lies below.
    #[must_use]
    pub(crate) fn at_least_floor(self) -> Self {
        Self {
            frame: self.frame.max(Self::FLOOR.frame),
            window: self.window.max(Self::FLOOR.window),
            calls: self.calls.max(Self::FLOOR.calls),
        }
    }

    pub(crate) fn check(self) -> Result<(), Violation> {
        let below = [
            (self.frame < Self::FLOOR.frame, "frame"),
            (self.window < Self::FLOOR.window, "window"),
            (self.calls < Self::FLOOR.calls, "calls"),
        ];
        match below.into_iter().find(|(low, _)| *low) {
            Some((_, name)) => Err(Violation::Floor(name)),
            None => Ok(()),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { frame: 1 << 20, window: 256 << 10, calls: 8 }
    }
}

/// Optional parts of the protocol, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(u8);

impl Features {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// Level 1: calls run side by side, CANCEL and deadlines are obeyed promptly.
    pub const ASYNC: Self = Self(1);
    /// Level 2: results arrive as items, under credit.
    pub const STREAM: Self = Self(2);
    /// Level 3: the plugin calls its host.
    pub const REVERSE: Self = Self(4);
    /// Level 4: arguments arrive as items, under credit.
    pub const STREAM_IN: Self = Self(8);

    /// All of them. Each is used if both ends name it in their [`Announce`].
    /// \[R-HS-09\]
    pub const ALL: Self = Self(15);

    const NAMES: [(Self, &'static str); 4] = [
        (Self::ASYNC, "async"),
        (Self::STREAM, "stream"),
        (Self::REVERSE, "reverse"),
        (Self::STREAM_IN, "stream.in"),
    ];

    /// The feature with this name. Unknown names mean nothing. \[R-EX-03\]
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(feature, _)| *feature)
    }

    /// The names on the wire.
    pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
        Self::NAMES.iter().filter(move |(feature, _)| self.contains(*feature)).map(|(_, n)| *n)
    }

    /// Whether all of `other` are in this set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets together.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What is in both sets.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// Who is speaking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The plugin's id, or the host's name.
    pub name: String,
    /// Its own version, never the protocol's.
    pub version: String,
    /// The SDK it was built with.
    pub sdk: Option<String>,
}

impl Identity {
    /// An identity without an SDK.
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self { name: name.into(), version: version.into(), sdk: None }
    }
}

/// What one end announces in its HELLO, and how patient it is.
#[derive(Clone, Debug, Default)]
pub struct Announce {
    /// Who we are.
    pub identity: Identity,
    /// What we accept. Anything below [`Limits::FLOOR`] is raised to it.
    pub limits: Limits,
    /// What we offer (host) or would use (plugin). It has to be ready for the events that
    /// come with them.
    pub features: Features,
    /// A plugin's manifest, as MessagePack; a host leaves it empty.
    pub manifest: Bytes,
    /// Other manifests of a plugin, for what it can only offer with some features: the first
    /// of them whose features are all in use takes the place of [`Self::manifest`].
    pub manifests: Vec<(Features, Bytes)>,
    /// A host's patience; a plugin has none but the budgets of its calls.
    pub patience: Patience,
}

/// How long a host waits for what, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Start to HELLO.
    pub hello_ms: u64,
    /// Silence before a PING.
    pub ping_after_ms: u64,
    /// PING to any byte.
    pub ping_dead_ms: u64,
    /// CANCEL to END.
    pub cancel_grace_ms: u64,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            hello_ms: 10_000,
            ping_after_ms: 10_000,
            ping_dead_ms: 20_000,
            cancel_grace_ms: 5_000,
        }
    }
}

/// What the peer announced.
#[derive(Clone, Debug, PartialEq)]
pub struct Welcome {
    /// Who it is.
    pub peer: Identity,
    /// What it accepts.
    pub limits: Limits,
    /// What both sides use.
    pub features: Features,
    /// A plugin's manifest, as MessagePack.
    pub manifest: Bytes,
}

/// Which version a plugin answers with. \[R-HS-04\]
pub(crate) fn choose_version(offered: &[u64]) -> Result<u64, Violation> {
    if offered.contains(&VERSION) {
        Ok(VERSION)
    } else {
        Err(Violation::Version { theirs: Vec::from(offered) })
    }
}
