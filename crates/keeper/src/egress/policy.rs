//! Where a sandbox may connect to. Pure.

use crate::config::{HostRule, Network};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Policy {
    hosts: Vec<HostRule>,
    forwards: Vec<u16>,
}

/// What a name and a port may become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The host's own loopback, because the operator named the port.
    Forward(u16),
    /// Public addresses only.
    Resolve,
    No,
}

impl Policy {
    pub(crate) fn new(network: &Network) -> Self {
        match network {
            Network::Allow { hosts, forwards } => Self { hosts: hosts.clone(), forwards: forwards.clone() },
            Network::None {} | Network::Full {} => Self { hosts: Vec::new(), forwards: Vec::new() },
        }
    }

    pub(crate) fn judge(&self, host: &str, port: u16) -> Verdict {
        if matches!(host, "127.0.0.1" | "localhost") {
            return if self.forwards.contains(&port) { Verdict::Forward(port) } else { Verdict::No };
        }
        let allowed = self.hosts.iter().any(|rule| {
            rule.port.is_none_or(|only| only == port) && matches(&rule.host.to_ascii_lowercase(), host)
        });
        if allowed { Verdict::Resolve } else { Verdict::No }
    }
}

/// `*.example.org` means everything below, and not `example.org` itself.
fn matches(rule: &str, host: &str) -> bool {
    match rule.strip_prefix("*.") {
        Some(domain) => {
            !domain.is_empty()
                && host
                    .strip_suffix(domain)
                    .and_then(|rest| rest.strip_suffix('.'))
                    .is_some_and(|name| !name.is_empty())
        }
        None => rule == host,
    }
}

/// Whether an address is one of the public Internet's, whoever claims it in DNS.
pub(crate) fn public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => public_v4(address),
        IpAddr::V6(address) => public_v6(address),
    }
}

fn public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !(address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || a == 0
        || a >= 240
        // Shared by carriers, protocol assignments, 6to4 relays, benchmarks.
        || (a == 100 && (64..128).contains(&b))
        || (a, b, c) == (192, 0, 0)
        || (a, b, c) == (192, 88, 99)
        || (a == 198 && (18..20).contains(&b)))
}

/// Only global unicast, and of that not what carries another address inside or is for documents. Mapped, translated
/// and compatible forms of IPv4 all lie outside.
fn public_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    let global = a & 0xe000 == 0x2000;
    let tunnel = a == 0x2002 || (a == 0x2001 && b < 0x200);
    let documents = (a == 0x2001 && b == 0xdb8) || (a == 0x3fff && b < 0x1000);
    global && !tunnel && !documents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_addresses_are_not_public() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "::ffff:10.0.0.1",
            "::7f00:1",
            "64:ff9b::7f00:1",
            "100::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "3fff::1",
        ] {
            assert!(!public(text.parse().unwrap()), "{text}");
        }
        for text in ["8.8.8.8", "1.1.1.1", "100.63.0.1", "172.32.0.1", "2606:4700::1111", "2a00:1450:4001::1"]
        {
            assert!(public(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn rules_mean_what_they_say() {
        let rule = |host: &str, port| HostRule { host: host.to_owned(), port };
        let policy = Policy {
            hosts: vec![rule("Api.Example.org", Some(443)), rule("*.pkg.dev", None), rule("9.9.9.9", None)],
            forwards: vec![8080],
        };
        for (host, port, expected) in [
            ("api.example.org", 443, Verdict::Resolve),
            ("api.example.org", 80, Verdict::No),
            ("example.org", 443, Verdict::No),
            ("xapi.example.org", 443, Verdict::No),
            ("api.example.org.evil.com", 443, Verdict::No),
            ("a.pkg.dev", 1, Verdict::Resolve),
            ("a.b.pkg.dev", 1, Verdict::Resolve),
            ("pkg.dev", 1, Verdict::No),
            (".pkg.dev", 1, Verdict::No),
            ("evilpkg.dev", 1, Verdict::No),
            ("9.9.9.9", 53, Verdict::Resolve),
            ("127.0.0.1", 8080, Verdict::Forward(8080)),
            ("localhost", 8080, Verdict::Forward(8080)),
            ("127.0.0.1", 8081, Verdict::No),
            ("127.0.0.2", 8080, Verdict::No),
            ("", 443, Verdict::No),
        ] {
            assert_eq!(policy.judge(host, port), expected, "{host}:{port}");
        }
        assert_eq!(Policy::new(&Network::None {}).judge("a.pkg.dev", 1), Verdict::No);
    }
}
