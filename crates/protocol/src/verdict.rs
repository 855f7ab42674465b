//! The words of an agent's policy: what becomes of its permission requests, and amounts of money.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What becomes of a permission request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Verdict {
    /// It waits for somebody's answer.
    #[default]
    Ask,
    Allow,
    Deny,
}

impl Verdict {
    pub fn is_ask(&self) -> bool {
        *self == Self::Ask
    }
}

/// A rule about permission requests. What it leaves out fits everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Rule {
    /// ACP's kind of tool: `read`, `edit`, `delete`, `move`, `search`, `execute`, `think`, `fetch`, `other`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The command that would run; `*` stands for any text. `allow` never fits a command that is more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    pub answer: Verdict,
}

/// An amount of US dollars, kept in millionths so that sums are exact and amounts comparable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = f64))]
pub struct Usd(u64);

const MICROS: f64 = 1_000_000.0;

impl Usd {
    /// None for what is no amount: negative, infinite, not a number.
    pub fn new(dollars: f64) -> Option<Self> {
        let micros = (dollars * MICROS).round();
        // The cast saturates; amounts that large are as good as no limit.
        (micros.is_finite() && micros >= 0.0).then_some(Self(micros as u64))
    }

    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    pub const fn micros(self) -> u64 {
        self.0
    }

    pub fn dollars(self) -> f64 {
        self.0 as f64 / MICROS
    }

    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl std::fmt::Display for Usd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "${}", self.dollars())
    }
}

impl Serialize for Usd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.dollars())
    }
}

impl<'de> Deserialize<'de> for Usd {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(f64::deserialize(deserializer)?)
            .ok_or_else(|| serde::de::Error::custom("an amount of dollars must be 0 or more"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_add_up_exactly_and_nonsense_is_none() {
        let cent = Usd::new(0.01).unwrap();
        let sum = (0..100).fold(Usd::default(), |sum, _| sum.plus(cent));
        assert_eq!(sum, Usd::new(1.0).unwrap());
        assert_eq!(cent.minus(sum), Usd::default());
        assert_eq!(serde_json::to_string(&sum).unwrap(), "1.0");
        for bad in [-0.01, f64::NAN, f64::INFINITY] {
            assert_eq!(Usd::new(bad), None);
        }
        assert!(serde_json::from_str::<Usd>("-1").is_err());
    }

    #[test]
    fn a_policy_reads_as_people_write_it() {
        let policy: crate::Policy = serde_json::from_str(
            r#"{"turn_secs": 60, "permissions": "deny", "rules": [{"tool": "execute", "command": "git *", "answer": "allow"}]}"#,
        )
        .unwrap();
        assert_eq!((policy.permissions, policy.rules[0].answer), (Verdict::Deny, Verdict::Allow));
        assert_eq!(serde_json::from_str::<crate::Policy>("{}").unwrap(), crate::Policy::default());
        assert!(serde_json::from_str::<crate::Policy>(r#"{"permission": "deny"}"#).is_err());
    }
}
