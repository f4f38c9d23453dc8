//! Every code a person can meet, each with its page.

use serde::{Serialize, Serializer};

macro_rules! codes {
    ($($code:ident)*) => {
        /// What is wrong, as a name that stays the same and can be looked up
        /// with `plugbay explain`.
        ///
        /// 01xx: the file and what it points at. 02xx: tools and grants. 03xx:
        /// secrets and environment. 04xx: a plugin's behaviour. 05xx: calls that
        /// were refused or failed. 07xx: limits and their enforcement. 09xx: our
        /// own fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "each has a page, which says more than a line could")]
        pub enum Code { $($code,)* }

        impl Code {
            /// All of them, in order.
            pub const ALL: &'static [Self] = &[$(Self::$code,)*];

            /// As it is written: `PB0102`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$code => stringify!($code),)* }
            }

            /// The page: what it means, an example, how to fix it. Markdown.
            pub const fn page(self) -> &'static str {
                match self { $(Self::$code => include_str!(concat!("explain/", stringify!($code), ".md")),)* }
            }
        }
    };
}

codes! {
    PB0101 PB0102 PB0103 PB0104 PB0105 PB0106 PB0107 PB0108 PB0109 PB0110 PB0111 PB0112 PB0113
    PB0114 PB0120 PB0121 PB0122
    PB0203 PB0204 PB0205 PB0206 PB0207 PB0208
    PB0301 PB0302 PB0303 PB0304 PB0305 PB0306 PB0310
    PB0401 PB0402 PB0403 PB0411 PB0412 PB0421 PB0422 PB0423 PB0424 PB0425 PB0426
    PB0501 PB0502 PB0503 PB0504 PB0505 PB0506 PB0507 PB0508 PB0509 PB0510 PB0511 PB0512 PB0513 PB0514
    PB0515 PB0516 PB0517 PB0518
    PB0701 PB0702 PB0703 PB0704
    PB0901
}

impl Code {
    /// The code of that name; case does not matter.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str().eq_ignore_ascii_case(text))
    }

    /// The page's title: one line without the code.
    pub fn title(self) -> &'static str {
        let first = self.page().lines().next().unwrap_or_default();
        first.split_once(": ").map_or(first, |(_, title)| title)
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
