//! The hash chain: what is hashed, in which order, and the random salts.
//!
//! An event's hash covers the hash before it, its own envelope and `H(salt ‖ body)`. The body's hash is salted so
//! that an erased body cannot be guessed back, and stands apart so that the chain verifies without the body.
//! Everything is length-prefixed and begins with a label of its own, so that no two records share an encoding.

use blake3::Hasher;
use protocol::{SessionId, Tenant};

pub(crate) type Hash = [u8; 32];
pub(crate) type Salt = [u8; 16];

const GENESIS: &[u8; 16] = b"outlast/genesis1";
const FORK_GENESIS: &[u8; 16] = b"outlast/forked/1";
const TENANT_GENESIS: &[u8; 16] = b"outlast/tenant/1";
const EVENT: &[u8; 16] = b"outlast/event/01";
const BODY: &[u8; 16] = b"outlast/body/001";
const TOMBSTONE: &[u8; 16] = b"outlast/tomb/001";

fn put(hasher: &mut Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

/// What stands before a session's first event. It binds the chain to its tenant and session.
pub(crate) fn genesis(tenant: &Tenant, session: SessionId) -> Hash {
    let mut hasher = Hasher::new();
    hasher.update(GENESIS);
    put(&mut hasher, tenant.as_str().as_bytes());
    put(&mut hasher, session.uuid().as_bytes());
    *hasher.finalize().as_bytes()
}

/// What stands before a fork's first own event. It binds the chain to the parent's, up to where they part.
pub(crate) fn fork_genesis(tenant: &Tenant, session: SessionId, parent: &Hash) -> Hash {
    let mut hasher = Hasher::new();
    hasher.update(FORK_GENESIS);
    put(&mut hasher, tenant.as_str().as_bytes());
    put(&mut hasher, session.uuid().as_bytes());
    hasher.update(parent);
    *hasher.finalize().as_bytes()
}

/// What stands before a tenant's first tombstone.
pub(crate) fn tenant_genesis(tenant: &str) -> Hash {
    let mut hasher = Hasher::new();
    hasher.update(TENANT_GENESIS);
    put(&mut hasher, tenant.as_bytes());
    *hasher.finalize().as_bytes()
}

pub(crate) fn body_hash(salt: &[u8], body: &[u8]) -> Hash {
    let mut hasher = body_hasher(salt);
    hasher.update(body);
    *hasher.finalize().as_bytes()
}

/// For bodies that are read from a file in pieces.
pub(crate) fn body_hasher(salt: &[u8]) -> Hasher {
    let mut hasher = Hasher::new();
    hasher.update(BODY);
    put(&mut hasher, salt);
    hasher
}

/// An event's envelope, as it is hashed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope<'a> {
    pub(crate) seq: u64,
    pub(crate) at: i64,
    pub(crate) kind: &'a str,
    pub(crate) actor: &'a str,
    pub(crate) version: u32,
}

pub(crate) fn event_hash(previous: &Hash, envelope: Envelope<'_>, body_hash: &[u8]) -> Hash {
    let mut hasher = Hasher::new();
    hasher.update(EVENT);
    hasher.update(previous);
    hasher.update(&envelope.seq.to_le_bytes());
    hasher.update(&envelope.at.to_le_bytes());
    put(&mut hasher, envelope.kind.as_bytes());
    put(&mut hasher, envelope.actor.as_bytes());
    hasher.update(&envelope.version.to_le_bytes());
    put(&mut hasher, body_hash);
    *hasher.finalize().as_bytes()
}

/// A link of a tenant's own chain: a session that was removed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tombstone<'a> {
    pub(crate) seq: u64,
    pub(crate) at: i64,
    pub(crate) actor: &'a str,
    pub(crate) session: &'a [u8],
    pub(crate) last_seq: u64,
    pub(crate) last_hash: &'a [u8],
}

pub(crate) fn tombstone_hash(previous: &Hash, tombstone: Tombstone<'_>) -> Hash {
    let mut hasher = Hasher::new();
    hasher.update(TOMBSTONE);
    hasher.update(previous);
    hasher.update(&tombstone.seq.to_le_bytes());
    hasher.update(&tombstone.at.to_le_bytes());
    put(&mut hasher, tombstone.actor.as_bytes());
    put(&mut hasher, tombstone.session);
    hasher.update(&tombstone.last_seq.to_le_bytes());
    put(&mut hasher, tombstone.last_hash);
    *hasher.finalize().as_bytes()
}

/// Salts fetched from the system by the handful: one system call for many events.
#[derive(Default)]
pub(crate) struct Salts {
    fetched: Vec<Salt>,
}

/// How many salts one system call fetches.
const SALTS_AT_ONCE: usize = 32;

impl Salts {
    pub(crate) fn next(&mut self) -> Result<Salt, getrandom::Error> {
        if let Some(salt) = self.fetched.pop() {
            return Ok(salt);
        }
        let mut fresh = [0; SALTS_AT_ONCE * size_of::<Salt>()];
        getrandom::fill(&mut fresh)?;
        let (salts, _) = fresh.as_chunks::<{ size_of::<Salt>() }>();
        self.fetched.extend_from_slice(&salts[1..]);
        Ok(salts[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENVELOPE: Envelope<'_> = Envelope { seq: 1, at: 2, kind: "notice", actor: "system", version: 1 };

    #[test]
    fn every_part_of_an_event_changes_its_hash() {
        let body = body_hash(&[1; 16], b"{}");
        let base = event_hash(&[0; 32], ENVELOPE, &body);
        for (what, other) in [
            ("previous", event_hash(&[1; 32], ENVELOPE, &body)),
            ("seq", event_hash(&[0; 32], Envelope { seq: 2, ..ENVELOPE }, &body)),
            ("at", event_hash(&[0; 32], Envelope { at: 3, ..ENVELOPE }, &body)),
            ("kind", event_hash(&[0; 32], Envelope { kind: "notic", ..ENVELOPE }, &body)),
            ("actor", event_hash(&[0; 32], Envelope { actor: "esystem", ..ENVELOPE }, &body)),
            (
                "kind and actor",
                event_hash(&[0; 32], Envelope { kind: "notices", actor: "ystem", ..ENVELOPE }, &body),
            ),
            ("version", event_hash(&[0; 32], Envelope { version: 2, ..ENVELOPE }, &body)),
            ("salt", event_hash(&[0; 32], ENVELOPE, &body_hash(&[2; 16], b"{}"))),
            ("body", event_hash(&[0; 32], ENVELOPE, &body_hash(&[1; 16], b"{ }"))),
        ] {
            assert_ne!(base, other, "{what}");
        }
    }

    #[test]
    fn a_chain_belongs_to_its_tenant_and_session() {
        let session = SessionId::new();
        let tenant = |name: &str| Tenant::new(name).unwrap();
        assert_ne!(genesis(&tenant("a"), session), genesis(&tenant("b"), session));
        assert_ne!(genesis(&tenant("a"), session), genesis(&tenant("a"), SessionId::new()));
    }

    #[test]
    fn salts_do_not_repeat() {
        let mut salts = Salts::default();
        let seen: std::collections::HashSet<_> =
            (0..3 * SALTS_AT_ONCE).map(|_| salts.next().unwrap()).collect();
        assert_eq!(seen.len(), 3 * SALTS_AT_ONCE);
    }
}
