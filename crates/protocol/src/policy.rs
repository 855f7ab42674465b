//! What an agent's processes may reach and take: the network, files of the machine, memory, time. An agent has one in
//! its `agent.toml`, a session may bring one that narrows it, and the operator's bounds hold for all. Data only;
//! the session room works out what applies.

use crate::{Rule, Usd, Verdict};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// What an agent may do unasked. What is not named is the operator's default.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Policy {
    /// Seconds a turn may take; none means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_secs: Option<u64>,
    /// Steps of one turn: what the agent does between two results of its tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_steps: Option<u32>,
    /// What one turn may cost, as far as the agent tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_cost_usd: Option<Usd>,
    /// What all turns of a session may cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_cost_usd: Option<Usd>,
    /// Tokens, read and written, of all turns of a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_tokens: Option<u64>,
    /// Turns of a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_turns: Option<u64>,
    /// What becomes of a permission request that no rule is about.
    #[serde(skip_serializing_if = "Verdict::is_ask")]
    pub permissions: Verdict,
    /// Seconds a permission request stays open; then it is answered as cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permission_secs: Option<u64>,
    /// About permission requests; the first one that fits decides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// What the sandbox may connect to; nothing unless named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Files and folders of the machine that are seen inside.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<MountRule>,
    #[serde(skip_serializing_if = "Bounds::is_empty")]
    pub limits: Bounds,
}

/// What a sandbox may connect to: `"none"`, `"full"`, or a list of hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Network {
    Word(NetworkWord),
    /// Each `host`, `host:port` or `*.domain`; `127.0.0.1:port` is a port of the machine itself.
    Allow(Vec<HostRule>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum NetworkWord {
    /// Loopback of its own, and nothing beyond.
    None,
    /// The machine's own network.
    Full,
}

impl Network {
    pub const NONE: Self = Self::Word(NetworkWord::None);
}

/// A host that may be connected to, on one port or all.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HostRule {
    /// In lower case; `*.` at the front means everything below.
    pub host: String,
    pub port: Option<u16>,
}

impl HostRule {
    /// The machine itself, as seen from outside of the sandbox.
    pub fn is_loopback(&self) -> bool {
        matches!(self.host.as_str(), "127.0.0.1" | "localhost")
    }

    /// Does this rule allow everything that the other one does?
    pub fn covers(&self, other: &Self) -> bool {
        let port = self.port.is_none() || self.port == other.port;
        let below = self
            .host
            .strip_prefix('*')
            .is_some_and(|domain| other.host.strip_suffix(domain).is_some_and(|name| !name.is_empty()));
        port && (self.host == other.host || below)
    }
}

impl FromStr for HostRule {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const SHAPE: &str = "a host must be a name such as example.org, example.org:443 or *.example.org";
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok().filter(|port| *port != 0).ok_or(SHAPE)?)),
            None => (text, None),
        };
        let name = host.strip_prefix("*.").unwrap_or(host);
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let plain = !name.is_empty()
            && name.len() <= 253
            && name.split('.').all(|label| !label.is_empty() && label.bytes().all(letter));
        if !plain {
            return Err(SHAPE);
        }
        let rule = Self { host: host.to_ascii_lowercase(), port };
        if rule.is_loopback() && port.is_none() {
            return Err("127.0.0.1 needs a port");
        }
        Ok(rule)
    }
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.host),
            None => f.write_str(&self.host),
        }
    }
}

impl Serialize for HostRule {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HostRule {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|error| serde::de::Error::custom(format!("{text:?}: {error}")))
    }
}

/// Something of the machine, seen inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MountRule {
    /// An absolute path on the machine.
    pub from: String,
    /// Where it is seen; the same path unless named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Whether it may be written.
    #[serde(default)]
    pub write: bool,
}

impl MountRule {
    pub fn to(&self) -> &str {
        self.to.as_deref().unwrap_or(&self.from)
    }
}

/// How much a sandbox may take; what is not named is the operator's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Bounds {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    /// Hundredths of one processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<u32>,
    /// Of one process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Of the workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u64>,
    /// Of `/tmp`, which is memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tmp_mb: Option<u64>,
}

impl Bounds {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The smaller of each.
    #[must_use]
    pub fn within(self, outer: Self) -> Self {
        fn least<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
            match (a, b) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            }
        }
        Self {
            memory_mb: least(self.memory_mb, outer.memory_mb),
            processes: least(self.processes, outer.processes),
            cpu_percent: least(self.cpu_percent, outer.cpu_percent),
            open_files: least(self.open_files, outer.open_files),
            disk_mb: least(self.disk_mb, outer.disk_mb),
            tmp_mb: least(self.tmp_mb, outer.tmp_mb),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_read_as_it_is_written() {
        let text = r#"{"network":["api.example.org:443","*.cdn.example.org"],"limits":{"memory_mb":512}}"#;
        let policy: Policy = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&policy).unwrap(), text);
        let full: Policy = serde_json::from_str(r#"{"network":"full"}"#).unwrap();
        assert_eq!(full.network, Some(Network::Word(NetworkWord::Full)));
        assert_eq!(serde_json::to_string(&Policy::default()).unwrap(), "{}");
        for bad in [
            r#"{"network":"some"}"#,
            r#"{"network":["http://example.org"]}"#,
            r#"{"network":["example.org:0"]}"#,
            r#"{"network":["a..b"]}"#,
            r#"{"network":["127.0.0.1"]}"#,
            r#"{"limits":{"memory":1}}"#,
            r#"{"mounts":[{"to":"/x"}]}"#,
        ] {
            assert!(serde_json::from_str::<Policy>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_rule_covers_what_it_allows() {
        let covers = |a: &str, b: &str| a.parse::<HostRule>().unwrap().covers(&b.parse().unwrap());
        for (outer, inner) in [
            ("a.org", "a.org:443"),
            ("a.org:443", "a.org:443"),
            ("*.a.org", "b.a.org"),
            ("*.a.org", "*.b.a.org"),
            ("*.a.org", "B.A.ORG:80"),
        ] {
            assert!(covers(outer, inner), "{outer} {inner}");
        }
        for (outer, inner) in
            [("a.org:443", "a.org"), ("*.a.org", "a.org"), ("a.org", "b.a.org"), ("*.b.a.org", "*.a.org")]
        {
            assert!(!covers(outer, inner), "{outer} {inner}");
        }
    }

    #[test]
    fn bounds_only_shrink() {
        let small = Bounds { memory_mb: Some(1), processes: Some(9), ..Bounds::default() };
        let outer = Bounds { memory_mb: Some(2), processes: Some(3), tmp_mb: Some(4), ..Bounds::default() };
        let within = small.within(outer);
        assert_eq!((within.memory_mb, within.processes, within.tmp_mb), (Some(1), Some(3), Some(4)));
    }
}
