//! The head of a request to the proxy: to which host, and what is sent there first. Pure.

/// The longest head that is read.
pub(crate) const HEAD_BYTES: usize = 16 * 1024;
/// A name in the DNS.
const NAME_BYTES: usize = 253;

/// Where somebody inside wants to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// A lower-case name or an address, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) opening: Opening,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Neither side is told anything.
    Nothing,
    /// The caller is told that it is connected, and speaks for itself.
    Tunnel,
    /// Sent to the host: the request as if it had been asked directly.
    Request(Vec<u8>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bad;

/// Reads a head once it is whole: the target, and how many bytes the head has.
pub(crate) fn read(bytes: &[u8]) -> Result<Option<(Target, usize)>, Bad> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return if bytes.len() >= HEAD_BYTES { Err(Bad) } else { Ok(None) };
    };
    let text = std::str::from_utf8(&bytes[..end]).map_err(|_| Bad)?;
    let (first, headers) = text.split_once("\r\n").unwrap_or((text, ""));
    let mut words = first.split(' ');
    let (Some(method), Some(aim), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Bad);
    };
    if !version.starts_with("HTTP/1.") || method.is_empty() {
        return Err(Bad);
    }
    let target = if method == "CONNECT" {
        let (host, port) = authority(aim, None)?;
        Target { host, port, opening: Opening::Tunnel }
    } else {
        plain(method, aim, version, headers)?
    };
    Ok(Some((target, end + 4)))
}

fn plain(method: &str, aim: &str, version: &str, headers: &str) -> Result<Target, Bad> {
    let rest = match aim.split_at_checked(7) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http://") => rest,
        Some(_) | None => return Err(Bad),
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (host, port) = authority(&rest[..end], Some(80))?;
    let path = match &rest[end..] {
        path if path.starts_with('/') => path.to_owned(),
        query => format!("/{query}"),
    };
    let mut request = format!("{method} {path} {version}\r\n");
    for line in headers.split("\r\n").filter(|line| !line.is_empty()) {
        let name = line.split(':').next().unwrap_or_default().trim().to_ascii_lowercase();
        // One request for each connection, so that the next one is looked at again.
        if !matches!(&*name, "connection" | "proxy-connection" | "proxy-authorization" | "keep-alive") {
            request.push_str(line);
            request.push_str("\r\n");
        }
    }
    request.push_str("Connection: close\r\n\r\n");
    Ok(Target { host, port, opening: Opening::Request(request.into_bytes()) })
}

/// `host:port`, `[v6]:port`; without a port the given one.
fn authority(text: &str, default: Option<u16>) -> Result<(String, u16), Bad> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or(Bad)?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| Bad)?;
            (host, rest.strip_prefix(':').or((rest.is_empty()).then_some("")).ok_or(Bad)?)
        }
        None => text.rsplit_once(':').unwrap_or((text, "")),
    };
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':');
    let plain = !host.is_empty() && host.len() <= NAME_BYTES && host.bytes().all(letter);
    let v6 = host.contains(':');
    if !plain || (v6 && !text.starts_with('[')) {
        return Err(Bad);
    }
    let port = match port {
        "" => default.ok_or(Bad)?,
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().map_err(|_| Bad)?,
        _ => return Err(Bad),
    };
    if port == 0 { Err(Bad) } else { Ok((host, port)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(head: &str) -> Result<Target, Bad> {
        let bytes = format!("{head}\r\n\r\nbody");
        let (target, length) = read(bytes.as_bytes())?.unwrap();
        assert_eq!(length, bytes.len() - 4);
        Ok(target)
    }

    #[test]
    fn tunnels_and_requests() {
        let target = whole("CONNECT Example.ORG.:443 HTTP/1.1\r\nHost: x").unwrap();
        assert_eq!(target, Target { host: "example.org".into(), port: 443, opening: Opening::Tunnel });
        let target = whole("CONNECT [2606:4700::1]:443 HTTP/1.1").unwrap();
        assert_eq!((&*target.host, target.port), ("2606:4700::1", 443));
        let target = whole(
            "GET HTTP://a.b:8080/x?y HTTP/1.1\r\nHost: a.b\r\nProxy-Authorization: secret\r\nConnection: keep-alive\r\nA: b",
        )
        .unwrap();
        assert_eq!((&*target.host, target.port), ("a.b", 8080));
        let expected = "GET /x?y HTTP/1.1\r\nHost: a.b\r\nA: b\r\nConnection: close\r\n\r\n";
        assert_eq!(target.opening, Opening::Request(expected.into()));
        let target = whole("GET http://a.b?q HTTP/1.0").unwrap();
        assert_eq!(target.port, 80);
        assert!(
            matches!(target.opening, Opening::Request(bytes) if bytes.starts_with(b"GET /?q HTTP/1.0\r\n"))
        );
    }

    #[test]
    fn anything_else_is_bad() {
        for head in [
            "",
            "CONNECT",
            "CONNECT a:1",
            "CONNECT a:1 HTTP/2",
            "CONNECT a HTTP/1.1",
            "CONNECT a:0 HTTP/1.1",
            "CONNECT a:65536 HTTP/1.1",
            "CONNECT a:+1 HTTP/1.1",
            "CONNECT :1 HTTP/1.1",
            "CONNECT user@a:1 HTTP/1.1",
            "CONNECT a b:1 HTTP/1.1",
            "CONNECT [a]:1 HTTP/1.1",
            "CONNECT [::1:1 HTTP/1.1",
            "CONNECT [::1]x:1 HTTP/1.1",
            "CONNECT ::1:1 HTTP/1.1",
            "CONNECT a\u{e9}:1 HTTP/1.1",
            "GET / HTTP/1.1\r\nHost: a",
            "GET https://a/ HTTP/1.1",
            "GET http:///x HTTP/1.1",
            "GET http://u:p@a/ HTTP/1.1",
            "GET ftp://a/ HTTP/1.1",
        ] {
            assert_eq!(whole(head), Err(Bad), "{head:?}");
        }
        assert_eq!(read(&[b'x'; HEAD_BYTES]), Err(Bad));
        assert_eq!(read(b"CONNECT a:1 HTTP/1.1\r\n"), Ok(None));
    }

    proptest! {
        #[test]
        fn no_head_panics(text in "\\PC{0,80}", bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = read(format!("GET http://{text} HTTP/1.1\r\n\r\n").as_bytes());
            let _ = read(format!("CONNECT {text} HTTP/1.1\r\n\r\n").as_bytes());
            let _ = read(&bytes);
        }
    }
}
