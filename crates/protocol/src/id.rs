//! Names of things. Every id that comes from outside is checked here, once, so that the rest of the program
//! can use it as a key or a path component without a second thought.

use serde::{Deserialize, Deserializer, Serialize};
use std::{fmt, str::FromStr};
use uuid::Uuid;

/// A session's event number: from 1, without gaps. 0 means "before the first event".
pub type Seq = u64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdError {
    pub what: &'static str,
    pub rule: &'static str,
}

impl fmt::Display for IdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} must be {}", self.what, self.rule)
    }
}

impl std::error::Error for IdError {}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[cfg_attr(feature = "openapi", schema(value_type = String, format = Uuid))]
        pub struct $name(Uuid);

        impl $name {
            /// A new id; ids made later sort later.
            #[allow(clippy::new_without_default, reason = "an id out of nowhere should be asked for by name")]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }

            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            pub const fn uuid(&self) -> Uuid {
                self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                // Only the hyphenated form: one id has one spelling.
                if text.len() != 36 {
                    return Err(IdError { what: $what, rule: "a UUID" });
                }
                Uuid::try_parse(text).map(Self).map_err(|_| IdError { what: $what, rule: "a UUID" })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<str>::deserialize(de)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

uuid_id!(
    /// A session, for ever: the id never changes and is never used again.
    SessionId, "a session id"
);
uuid_id!(
    /// One prompt and everything the occupant does for it.
    TurnId, "a turn id"
);
uuid_id!(
    /// A stored credential.
    CredentialId, "a credential id"
);
uuid_id!(
    /// An API key's public id; never the key itself.
    KeyId, "a key id"
);

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[cfg_attr(feature = "openapi", schema(value_type = String))]
        pub struct $name(String);

        impl $name {
            pub fn new(text: impl Into<String>) -> Result<Self, IdError> {
                let text = text.into();
                let check: fn(&str) -> bool = $check;
                if check(&text) { Ok(Self(text)) } else { Err(IdError { what: $what, rule: $rule }) }
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
                Self::new(String::deserialize(de)?).map_err(serde::de::Error::custom)
            }
        }
    };
}

/// A letter or digit first, then `[A-Za-z0-9._-]`: safe as one path component on every system.
fn is_plain_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    !bytes.is_empty()
        && bytes.len() <= crate::limits::NAME_BYTES
        && bytes[0].is_ascii_alphanumeric()
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// As [`is_plain_name`], with the `@`, `:` and `+` that shell ids and ABI names may hold.
fn is_alias(text: &str) -> bool {
    let bytes = text.as_bytes();
    !bytes.is_empty()
        && bytes.len() <= crate::limits::ALIAS_BYTES
        && bytes[0].is_ascii_alphanumeric()
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'@' | b':' | b'+'))
        && Uuid::try_parse(text).is_err()
}

name!(
    /// Who owns a session. The first key belongs to `default`.
    Tenant, "a tenant", "1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or digit", is_plain_name
);
name!(
    /// A deployed agent's name.
    AgentName, "an agent name", "1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or digit", is_plain_name
);
name!(
    /// A tenant's second name for a session, such as `1_local`. Never shaped like a UUID, so that an id and an
    /// alias cannot be mistaken for each other.
    Alias, "an alias", "1 to 128 of A-Z a-z 0-9 . _ - @ : +, the first a letter or digit, and not a UUID", is_alias
);

impl Tenant {
    /// The tenant of the first key, and of a server that needs only one.
    pub fn default_tenant() -> Self {
        Self("default".to_owned())
    }
}

/// What a caller may write where a session is meant: its id or one of its tenant's aliases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionRef {
    Id(SessionId),
    Alias(Alias),
}

impl FromStr for SessionRef {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        if let Ok(id) = text.parse() {
            return Ok(Self::Id(id));
        }
        Alias::new(text)
            .map(Self::Alias)
            .map_err(|_| IdError { what: "a session", rule: "a UUID or an alias such as 1_local" })
    }
}

/// Who caused an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Actor {
    /// The server itself: recovery, reaping, limits.
    System,
    /// The session's occupant.
    Agent,
    /// A caller, by the key it used.
    Key(KeyId),
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System => f.write_str("system"),
            Self::Agent => f.write_str("agent"),
            Self::Key(id) => write!(f, "key:{id}"),
        }
    }
}

impl FromStr for Actor {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        match text {
            "system" => Ok(Self::System),
            "agent" => Ok(Self::Agent),
            other => other
                .strip_prefix("key:")
                .and_then(|id| id.parse().ok())
                .map(Self::Key)
                .ok_or(IdError { what: "an actor", rule: "system, agent or key:UUID" }),
        }
    }
}

impl Serialize for Actor {
    fn serialize<S: serde::Serializer>(&self, ser: S) -> Result<S::Ok, S::Error> {
        ser.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Actor {
    fn deserialize<D: Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(de)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_refuse_what_could_escape_a_folder() {
        for bad in ["", ".", "..", ".hidden", "a/b", "a\\b", "-flag", "a b", "é", "a\0b", &"x".repeat(65)] {
            assert!(AgentName::new(bad).is_err(), "{bad:?}");
            assert!(Tenant::new(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "qa-bot", "Agent_2.1", &"x".repeat(64)] {
            assert!(AgentName::new(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn an_alias_is_never_an_id() {
        let id = SessionId::new().to_string();
        assert!(Alias::new(id.clone()).is_err());
        assert!(Alias::new(id.replace('-', "")).is_err());
        assert_eq!(
            "1_ssh_me@host:2222".parse::<SessionRef>(),
            Ok(SessionRef::Alias(Alias("1_ssh_me@host:2222".into())))
        );
        assert!("not an id".parse::<SessionRef>().is_err());
    }

    #[test]
    fn ids_have_one_spelling() {
        let id = SessionId::new();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!(id.to_string().replace('-', "").parse::<SessionId>().is_err());
        assert!(format!("{{{id}}}").parse::<SessionId>().is_err());
        assert_eq!(id.uuid().get_version_num(), 7);
    }

    #[test]
    fn actors_round_trip() {
        for actor in [Actor::System, Actor::Agent, Actor::Key(KeyId::new())] {
            assert_eq!(actor.to_string().parse(), Ok(actor));
        }
        assert!("key:nobody".parse::<Actor>().is_err());
    }
}
