//! Which `Host` headers a loopback door takes.
//!
//! A page on the internet can point a name of its own at 127.0.0.1 and have a visitor's browser talk to us under
//! that name. So a door bound to a loopback address refuses every name but the ones that mean this machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The names a request may be addressed to.
#[derive(Debug, Clone)]
pub(crate) enum Hosts {
    /// Bound to an address that others can reach: a proxy or a DNS name decides what we are called.
    Any,
    /// Bound to a loopback address.
    Local { extra: Vec<String> },
}

impl Hosts {
    pub(crate) fn of(bound: Option<SocketAddr>, extra: &[String]) -> Self {
        if bound.is_none_or(|bound| bound.ip().is_loopback()) {
            Self::Local { extra: extra.iter().map(|host| host.to_ascii_lowercase()).collect() }
        } else {
            Self::Any
        }
    }

    pub(crate) fn accept(&self, host: Option<&str>) -> bool {
        let extra = match self {
            Self::Any => return true,
            Self::Local { extra } => extra,
        };
        let Some(name) = host.and_then(without_port) else { return false };
        let name = name.to_ascii_lowercase();
        if name == "localhost" || extra.contains(&name) {
            return true;
        }
        match name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(inner) => inner.parse::<Ipv6Addr>().is_ok_and(|ip| IpAddr::V6(ip).is_loopback()),
            // Only the dotted form: what other spellings of an address mean is the browser's guess.
            None => name.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback()),
        }
    }
}

/// `name:port`, `name`, `[v6]:port` or `[v6]` without the port; nothing when it is none of these.
fn without_port(host: &str) -> Option<&str> {
    let end = if host.starts_with('[') { host.find(']')? + 1 } else { host.find(':').unwrap_or(host.len()) };
    let (name, port) = host.split_at(end);
    let port_fits = match port.strip_prefix(':') {
        Some(digits) => digits.parse::<u16>().is_ok(),
        None => port.is_empty(),
    };
    (port_fits && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loopback_door_answers_to_this_machine_only() {
        let hosts = Hosts::of("127.0.0.1:4100".parse().ok(), &["Box.example".to_owned()]);
        for good in [
            "localhost",
            "LOCALHOST:4100",
            "127.0.0.1",
            "127.0.0.1:9",
            "127.9.9.9:1",
            "[::1]:4100",
            "[::1]",
            "box.example:80",
        ] {
            assert!(hosts.accept(Some(good)), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:4100",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "10.0.0.1",
            "[::2]",
            "[::1",
            "localhost:port",
            "localhost:99999",
            "",
            ":4100",
            "a@localhost",
        ] {
            assert!(!hosts.accept(Some(bad)), "{bad}");
        }
        assert!(!hosts.accept(None));
    }

    #[test]
    fn a_public_door_is_called_what_its_owner_likes() {
        let hosts = Hosts::of("0.0.0.0:4100".parse().ok(), &[]);
        assert!(hosts.accept(Some("anything.example")));
        assert!(hosts.accept(None));
    }
}
