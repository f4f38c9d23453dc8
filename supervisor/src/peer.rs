//! Hosts and ports: how they are written in a list of grants, what such a list covers, and
//! which addresses a name may stand for.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// A host and a port that a plugin may connect to: `api.example.org:443`,
/// `*.example.org:443`, `192.0.2.7:5432` or `[2001:db8::7]:5432`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    host: Host,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Host {
    /// In lower case, without a dot at its end.
    Name(String),
    /// Every name that ends with a dot and this.
    Below(String),
    Address(IpAddr),
}

/// The name that means the machine itself, wherever it is looked up.
const LOCALHOST: &str = "localhost";

impl FromStr for Peer {
    type Err = String;

    /// The fault reads "expected …".
    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return Err("expected a host and a port without scheme or path, as in \
                        `api.example.org:443`"
                .into());
        }
        if text.trim_start_matches("*.").contains('*') {
            return Err("expected one host, or `*.` and the end of its name, as in \
                        `*.example.org:443`; every host is `net = \"all\"`"
                .into());
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            return Err("expected a port after the host, as in `api.example.org:443`".into());
        };
        let port = match port.parse::<u16>() {
            Ok(port) if port != 0 && !text.ends_with(&format!(":+{port}")) => port,
            _ => return Err(format!("expected a port from 1 to 65535, found `{port}`")),
        };
        if let Some(below) = host.strip_prefix("*.") {
            let fault = || format!("expected a host name after `*.`, found `{below}`");
            let below = name(below).ok_or_else(fault)?;
            return Ok(Self { host: Host::Below(below), port });
        }
        Ok(Self { host: Host::of(host)?, port })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.port;
        match &self.host {
            Host::Name(name) => write!(f, "{name}:{port}"),
            Host::Below(name) => write!(f, "*.{name}:{port}"),
            Host::Address(IpAddr::V4(it)) => write!(f, "{it}:{port}"),
            Host::Address(IpAddr::V6(it)) => write!(f, "[{it}]:{port}"),
        }
    }
}

impl Host {
    fn of(host: &str) -> Result<Self, String> {
        let inner = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        // An address of version 6 outside of brackets could end with its port.
        let address = match inner {
            Some(inner) => inner.parse::<Ipv6Addr>().map(IpAddr::V6),
            None => host.parse::<Ipv4Addr>().map(IpAddr::V4),
        };
        match address {
            Ok(address) => Ok(Self::Address(address.to_canonical())),
            Err(_) => name(host)
                .map(Self::Name)
                .ok_or_else(|| format!("expected a host name or an address, found `{host}`")),
        }
    }
}

/// A host's name as it is compared, if it is one.
fn name(text: &str) -> Option<String> {
    let text = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && label.chars().all(is_plain)
    };
    // `127.1`, `2130706433` and `0x7f000001` are addresses to those who look names up.
    let is_number = |label: &str| {
        let hex = label.strip_prefix("0x").or_else(|| label.strip_prefix("0X"));
        label.chars().all(|c| c.is_ascii_digit())
            || hex.is_some_and(|it| it.chars().all(|c| c.is_ascii_hexdigit()))
    };
    let is_name = text.len() <= 253 && text.split('.').all(is_label);
    let last = text.rsplit('.').next().unwrap_or_default();
    (is_name && !is_number(last)).then(|| text.to_ascii_lowercase())
}

impl Peer {
    /// Whether whoever may connect to this may connect to the other.
    pub fn covers(&self, other: &Self) -> bool {
        let host = match (&self.host, &other.host) {
            (Host::Below(end), Host::Name(name) | Host::Below(name)) => {
                let start = name.strip_suffix(end.as_str());
                start.is_some_and(|it| it.ends_with('.'))
                    || matches!(&other.host, Host::Below(it) if it == end)
            }
            (own, other) => own == other,
        };
        host && self.port == other.port
    }

    /// The name or the address without the port, and whether that is a name to look up.
    pub(crate) fn target(&self) -> Target<'_> {
        match &self.host {
            Host::Name(name) | Host::Below(name) => Target::Name(name),
            Host::Address(address) => Target::Address(*address),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// A single host, as somebody wants to connect to it; a pattern is none.
    pub(crate) fn single(text: &str) -> Option<Self> {
        text.parse().ok().filter(|it: &Self| !matches!(it.host, Host::Below(_)))
    }
}

/// What is to be connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    Name(&'a str),
    Address(IpAddr),
}

/// Of the addresses that a name was found to have, those that may be connected to. Whoever
/// answers for a name chooses them, so one that is not public, such as one of the machine
/// or the house, has to be granted itself.
pub(crate) fn reachable(granted: &[Peer], peer: &Peer, found: &[IpAddr]) -> Vec<IpAddr> {
    let is_local = peer.target() == Target::Name(LOCALHOST);
    let may = |address: &IpAddr| {
        let itself = Peer { host: Host::Address(*address), port: peer.port };
        is_public(*address) || granted.contains(&itself) || is_local && address.is_loopback()
    };
    found.iter().map(IpAddr::to_canonical).filter(may).collect()
}

/// Whether an address belongs to the open network, and to nobody's own.
fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(it) => is_public_v4(it),
        IpAddr::V6(it) => {
            let words = it.segments();
            let embedded = |at: usize| {
                let [a, b] = words[at].to_be_bytes();
                let [c, d] = words[at + 1].to_be_bytes();
                is_public_v4(Ipv4Addr::new(a, b, c, d))
            };
            match words {
                // Translated to version 4, and carried in it.
                [0x64, 0xff9b, 0, 0, 0, 0, ..] => embedded(6),
                [0x2002, ..] => embedded(1),
                // For protocols, and for examples.
                [0x2001, 0..0x200 | 0xdb8, ..] => false,
                // Of all the rest only this eighth is given to anybody.
                [first, ..] => first >> 13 == 1,
            }
        }
    }
}

fn is_public_v4(it: Ipv4Addr) -> bool {
    let is_own = it.is_private() || it.is_loopback() || it.is_link_local();
    let is_special = matches!(
        it.octets(),
        [0 | 240.., ..] | [100, 64..128, ..] | [192, 0, 0, _] | [198, 18..20, ..]
    );
    !(is_own || is_special || it.is_multicast() || it.is_documentation())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> Peer {
        text.parse().unwrap_or_else(|fault| panic!("{text}: {fault}"))
    }

    #[test]
    fn peers_are_read_as_they_are_compared() {
        for (text, shown) in [
            ("api.example.org:443", "api.example.org:443"),
            ("API.Example.org.:443", "api.example.org:443"),
            ("*.Example.org:443", "*.example.org:443"),
            ("192.0.2.7:80", "192.0.2.7:80"),
            ("[2001:DB8::7]:80", "[2001:db8::7]:80"),
            // What reaches the same place is the same.
            ("[::ffff:10.0.0.1]:80", "10.0.0.1:80"),
            ("localhost:1", "localhost:1"),
            ("xn--bcher-kva.example:65535", "xn--bcher-kva.example:65535"),
        ] {
            assert_eq!(peer(text).to_string(), shown);
        }
    }

    #[test]
    fn what_could_mean_something_else_is_no_peer() {
        for text in [
            "",
            ":",
            ":443",
            "example.org",
            "example.org:",
            "example.org:0",
            "example.org:+1",
            "example.org:65536",
            "https://example.org:443",
            "example.org:443/x",
            "*:443",
            "*.:443",
            "a*.example.org:443",
            "*.*.org:1",
            "a..b:1",
            ".a:1",
            "-a.org:1",
            "a_b:1",
            "a b:1",
            "a\0b:1",
            "2001:db8::7:80",
            "[192.0.2.7]:80",
            "[::1:80",
            "127.1:80",
            "2130706433:80",
            "0x7f000001:80",
            "a.0x7f:80",
            "example.0:80",
            "ü.example:443",
        ] {
            assert!(text.parse::<Peer>().is_err(), "{text}");
        }
        let long = format!("{}:1", ["a"; 128].join("."));
        assert!(long.parse::<Peer>().is_err());
        assert_eq!(Peer::single("*.example.org:443"), None);
    }

    #[test]
    fn a_peer_covers_itself_and_a_pattern_what_is_below() {
        let all = "*.example.org:443";
        for (grant, wanted, is) in [
            ("example.org:443", "EXAMPLE.org.:443", true),
            ("example.org:443", "example.org:80", false),
            ("example.org:443", "a.example.org:443", false),
            (all, "a.example.org:443", true),
            (all, "a.b.example.org:443", true),
            (all, "example.org:443", false),
            (all, "badexample.org:443", false),
            (all, "a.example.org:80", false),
            (all, all, true),
            (all, "*.a.example.org:443", true),
            ("*.a.example.org:443", all, false),
            ("example.org:443", "192.0.2.7:443", false),
            ("192.0.2.7:443", "192.0.2.7:443", true),
        ] {
            assert_eq!(peer(grant).covers(&peer(wanted)), is, "{grant} {wanted}");
        }
    }

    #[test]
    fn a_name_leads_nowhere_that_is_not_public_unless_that_is_granted() {
        let own = [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.0.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "192.0.0.8",
            "198.19.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "203.0.113.1",
            "::",
            "::1",
            "fe80::1",
            "fd00::1",
            "fec0::1",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
            "::ffff:10.0.0.1",
            "::10.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::a00:1",
            "2002:a00:1::1",
        ];
        let public =
            ["1.1.1.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::101:101", "2002:101:101::1"];
        let (api, list) = (peer("api.example.org:443"), [peer("api.example.org:443")]);
        let address = |text: &&str| text.parse::<IpAddr>().expect("an address");
        for it in own.iter().map(address) {
            assert_eq!(reachable(&list, &api, &[it]), [IpAddr::V4(Ipv4Addr::LOCALHOST); 0], "{it}");
            let both = [api.clone(), Peer { host: Host::Address(it.to_canonical()), port: 443 }];
            assert_eq!(reachable(&both, &api, &[it]), [it.to_canonical()], "{it}");
            let other = [api.clone(), Peer { host: Host::Address(it.to_canonical()), port: 80 }];
            assert_eq!(
                reachable(&other, &api, &[it]),
                [IpAddr::V4(Ipv4Addr::LOCALHOST); 0],
                "{it}"
            );
        }
        for it in public.iter().map(address) {
            assert_eq!(reachable(&list, &api, &[it]), [it]);
        }
        // Whoever grants this has written it out.
        let local = peer("localhost:443");
        let found = [address(&"127.0.0.1"), address(&"10.1.2.3")];
        assert_eq!(reachable(std::slice::from_ref(&local), &local, &found), found[..1]);
    }
}
