//! What a plugin asks of its proxy: the first lines of an HTTP request, and where it leads.

use crate::peer::Peer;

/// More than any program sends before its data.
pub(super) const HEAD_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;

/// A request whose head has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) to: Peer,
    /// Bytes of the head as it came.
    pub(super) length: usize,
    /// The head as it is sent on; `None` if the connection itself is wanted (CONNECT).
    pub(super) head: Option<Vec<u8>>,
}

/// Reads the head of a request; `None` while it is not complete.
///
/// # Errors
/// What was expected, for the plugin's author.
pub(super) fn read(bytes: &[u8]) -> Result<Option<Request>, &'static str> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut headers);
    let length = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_MAX => return Ok(None),
        Ok(httparse::Status::Partial) => return Err("expected a shorter head"),
        Err(_) => return Err("expected a request of HTTP/1.1"),
    };
    let (Some(method), Some(target), Some(version)) = (head.method, head.path, head.version) else {
        return Err("expected a request of HTTP/1.1");
    };
    if method.eq_ignore_ascii_case("CONNECT") {
        let to = Peer::single(target).ok_or("expected CONNECT with a host and a port")?;
        return Ok(Some(Request { to, length, head: None }));
    }
    let url = target.get(..7).filter(|it| it.eq_ignore_ascii_case("http://"));
    let rest = url.and(target.get(7..)).ok_or("expected CONNECT, or a whole http:// address")?;
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let has_port = authority.rsplit(']').next().is_some_and(|it| it.contains(':'));
    let to = match has_port {
        true => Peer::single(authority),
        false => Peer::single(&format!("{authority}:80")),
    };
    let to = to.ok_or("expected a host's name or address in the http:// address")?;
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut out = format!("{method} {slash}{path} HTTP/1.{version}\r\n").into_bytes();
    // The server is told the host that was judged, and serves one request: what else came on
    // this connection would be sent to it as well.
    out.extend(format!("Host: {authority}\r\nConnection: close\r\n").into_bytes());
    for header in head.headers.iter().filter(|it| is_sent_on(it.name)) {
        out.extend(header.name.as_bytes());
        out.extend(b": ");
        out.extend(header.value);
        out.extend(b"\r\n");
    }
    out.extend(b"\r\n");
    Ok(Some(Request { to, length, head: Some(out) }))
}

/// Whether a header is meant for the server and not for us.
fn is_sent_on(name: &str) -> bool {
    let ours = ["host", "connection", "keep-alive", "upgrade", "te"];
    let is_for_proxy = name.get(..6).is_some_and(|it| it.eq_ignore_ascii_case("proxy-"));
    !is_for_proxy && !ours.iter().any(|it| it.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> (String, Option<String>) {
        let read = read(text.as_bytes()).expect("a request").expect("all of it");
        assert_eq!(read.length, text.len());
        let head = read.head.map(|it| String::from_utf8(it).expect("text"));
        (read.to.to_string(), head)
    }

    #[test]
    fn connect_names_its_peer() {
        for (target, to) in [
            ("api.example.org:443", "api.example.org:443"),
            ("API.example.org.:443", "api.example.org:443"),
            ("[::1]:80", "[::1]:80"),
        ] {
            let text = format!("CONNECT {target} HTTP/1.1\r\nHost: elsewhere:1\r\n\r\n");
            assert_eq!(request(&text), (to.to_owned(), None));
        }
    }

    #[test]
    fn a_whole_address_is_sent_on_as_a_path_to_the_host_that_was_judged() {
        for (target, to, line, host) in [
            ("http://a.example/x?y=/z", "a.example:80", "/x?y=/z", "a.example"),
            ("HTTP://a.example:8080", "a.example:8080", "/", "a.example:8080"),
            ("http://a.example?y", "a.example:80", "/?y", "a.example"),
            ("http://[::1]/", "[::1]:80", "/", "[::1]"),
            ("http://[::1]:81/", "[::1]:81", "/", "[::1]:81"),
        ] {
            let text = format!(
                "POST {target} HTTP/1.1\r\nHost: other.example\r\nConnection: keep-alive\r\n\
                 Proxy-Authorization: x\r\nContent-Length: 2\r\n\r\n"
            );
            let head = format!(
                "POST {line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\
                 Content-Length: 2\r\n\r\n"
            );
            assert_eq!(request(&text), (to.to_owned(), Some(head)));
        }
    }

    #[test]
    fn a_head_is_waited_for_and_no_longer_than_it_may_be() {
        let text = "CONNECT a:1 HTTP/1.1\r\n\r\n";
        for end in 0..text.len() {
            assert_eq!(read(&text.as_bytes()[..end]), Ok(None), "{end}");
        }
        let mut long = b"CONNECT a:1 HTTP/1.1\r\nX: ".to_vec();
        long.resize(HEAD_MAX, b'x');
        assert_eq!(read(&long), Err("expected a shorter head"));
    }

    #[test]
    fn what_leads_nowhere_is_said() {
        for line in [
            "\u{5}\u{1}\u{0}",
            "GET / HTTP/1.1",
            "GET https://a.example/ HTTP/1.1",
            "GET http:/// HTTP/1.1",
            "GET http://user@a.example/ HTTP/1.1",
            "CONNECT a HTTP/1.1",
            "CONNECT *.a:1 HTTP/1.1",
            "CONNECT http://a:1 HTTP/1.1",
            "GET http://a:x/ HTTP/1.1",
            "PRI * HTTP/2.0",
            "GET http://ä/ HTTP/1.1",
        ] {
            assert!(read(format!("{line}\r\n\r\n").as_bytes()).is_err(), "{line}");
        }
        let many = format!("CONNECT a:1 HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(HEADERS_MAX + 1));
        assert!(read(many.as_bytes()).is_err());
    }
}
