//! Verifying the record: every session's chain from its first kept event to its head, every tenant's tombstones,
//! and the counts. Reads only, in short steps, so that it can run beside a server; memory does not grow with the
//! store. The first break of each session is reported: after it nothing more can be said of that chain.

use crate::{
    OpenError, blobs,
    chain::{self, Envelope, Hash, Tombstone},
    store::sqlite::{read, schema},
};
use protocol::{Seq, SessionId, Tenant};
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use std::{fmt, fs::File, io, path::Path};
use uuid::Uuid;

/// Events looked at in one step.
const STEP: i64 = 256;
/// Breaks reported one by one; more are only counted.
const BREAKS: usize = 1_000;
/// A session that changes under our eyes (retention, removal) is looked at again.
const LOOKS: usize = 3;

/// What was looked at and found.
#[derive(Debug, Clone, Default)]
pub struct Audit {
    pub sessions: u64,
    pub events: u64,
    /// Removed sessions, each with a tombstone that verifies.
    pub tombstones: u64,
    /// Bodies that were erased; their hashes verify.
    pub erased: u64,
    pub breaks: Vec<Break>,
    /// Breaks beyond those listed.
    pub more_breaks: u64,
}

impl Audit {
    pub fn is_whole(&self) -> bool {
        self.breaks.is_empty()
    }

    fn found(&mut self, flaw: Break) {
        if self.breaks.len() < BREAKS {
            self.breaks.push(flaw);
        } else {
            self.more_breaks += 1;
        }
    }
}

/// Where a chain does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Break {
    pub tenant: Option<String>,
    pub session: Option<SessionId>,
    pub seq: Option<Seq>,
    pub flaw: Flaw,
}

/// How it does not hold, and so what may have happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flaw {
    /// The chain does not begin where its session and tenant say.
    Origin,
    /// A seq is missing, doubled or out of place.
    Gap,
    /// The time goes back.
    Time,
    /// The body, or its salt, is not the one that was recorded.
    Body,
    /// The seq, time, type, actor, version, hash or order is not the one that was recorded.
    Envelope,
    /// The session's row names another end than its events have.
    Head,
    /// A large body's file is not there.
    BlobMissing,
    /// A tombstone was changed, or one is missing.
    Tombstone,
    /// The tenant has another number of sessions, events or bytes than were counted.
    Count,
    /// The store cannot be read here.
    Unreadable(String),
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Origin => f.write_str("the chain does not begin at its own session"),
            Self::Gap => f.write_str("an event is missing, doubled or moved"),
            Self::Time => f.write_str("the time goes back"),
            Self::Body => f.write_str("the body was changed after it was recorded"),
            Self::Envelope => {
                f.write_str("the number, time, type, actor or order was changed after it was recorded")
            }
            Self::Head => f.write_str("the last events are missing, or the session's row was changed"),
            Self::BlobMissing => f.write_str("the file of a large body is missing"),
            Self::Tombstone => f.write_str("the record of removed sessions was changed"),
            Self::Count => f.write_str("sessions or events are missing that were counted"),
            Self::Unreadable(why) => write!(f, "the database cannot be read here ({why})"),
        }
    }
}

impl fmt::Display for Break {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(session) = self.session {
            write!(f, "session {session}")?;
        } else if let Some(tenant) = &self.tenant {
            write!(f, "tenant {tenant}")?;
        } else {
            f.write_str("the store")?;
        }
        if let Some(seq) = self.seq {
            write!(f, ", event {seq}")?;
        }
        write!(f, ": {}", self.flaw)
    }
}

/// Checks one session, or everything. Works beside a running server. `progress` is told now and then.
pub fn verify(
    dir: &Path,
    session: Option<SessionId>,
    progress: &mut dyn FnMut(&Audit),
) -> Result<Audit, OpenError> {
    let db = schema::open_read_only(dir)?;
    let auditor = Auditor { db, dir };
    let mut audit = Audit::default();
    match session {
        Some(session) => auditor.session_by_id(session, &mut audit),
        None => auditor.everything(&mut audit, progress),
    }
    progress(&audit);
    Ok(audit)
}

struct Auditor<'a> {
    db: Connection,
    dir: &'a Path,
}

/// A session's row as the audit sees it.
struct Chain {
    no: i64,
    id: SessionId,
    tenant: String,
    first_seq: i64,
    base_hash: Vec<u8>,
    head_seq: i64,
    head_hash: Vec<u8>,
    /// The parent and the last event of it that is shared.
    fork: Option<(SessionId, i64)>,
    /// The last event there is, whatever the row says.
    last_seq: Option<i64>,
}

const CHAIN: &str = "SELECT s.no, s.id, t.name, s.first_seq, s.base_hash, s.head_seq, s.head_hash,
    (SELECT max(seq) FROM events e WHERE e.session_no = s.no), s.parent, s.parent_seq
    FROM sessions s JOIN tenants t ON t.no = s.tenant_no";

fn chain_row(row: &Row<'_>) -> rusqlite::Result<Chain> {
    Ok(Chain {
        no: row.get(0)?,
        id: SessionId::from_uuid(Uuid::from_bytes(row.get(1)?)),
        tenant: row.get(2)?,
        first_seq: row.get(3)?,
        base_hash: row.get(4)?,
        head_seq: row.get(5)?,
        head_hash: row.get(6)?,
        last_seq: row.get(7)?,
        fork: row
            .get::<_, Option<[u8; 16]>>(8)?
            .map(|parent| SessionId::from_uuid(Uuid::from_bytes(parent)))
            .zip(row.get(9)?),
    })
}

/// What a look at one chain saw.
#[derive(Default)]
struct Seen {
    events: u64,
    erased: u64,
}

type Looked = Result<Seen, (Option<Seq>, Flaw)>;

impl Auditor<'_> {
    fn everything(&self, audit: &mut Audit, progress: &mut dyn FnMut(&Audit)) {
        let mut after = 0;
        loop {
            match self.next_session(after) {
                Ok(None) => break,
                Ok(Some(chain)) => {
                    after = chain.no;
                    self.session(chain, audit);
                    progress(audit);
                }
                Err(error) => {
                    audit.found(unreadable(&error));
                    break;
                }
            }
        }
        if let Err(error) = self.tenants(audit) {
            audit.found(unreadable(&error));
        }
    }

    fn next_session(&self, after: i64) -> rusqlite::Result<Option<Chain>> {
        self.db
            .prepare_cached(&format!("{CHAIN} WHERE s.no > ?1 ORDER BY s.no LIMIT 1"))?
            .query_row([after], chain_row)
            .optional()
    }

    fn again(&self, session: SessionId) -> rusqlite::Result<Option<Chain>> {
        self.db
            .prepare_cached(&format!("{CHAIN} WHERE s.id = ?1"))?
            .query_row([session.uuid().as_bytes()], chain_row)
            .optional()
    }

    fn session_by_id(&self, session: SessionId, audit: &mut Audit) {
        match self.again(session) {
            Ok(Some(chain)) => self.session(chain, audit),
            Ok(None) => {
                let flaw = Flaw::Unreadable("there is no such session".to_owned());
                audit.found(Break { tenant: None, session: Some(session), seq: None, flaw });
            }
            Err(error) => audit.found(unreadable(&error)),
        }
    }

    fn session(&self, mut chain: Chain, audit: &mut Audit) {
        let mut looks = 1;
        loop {
            let (seq, flaw) = match self.look(&chain) {
                Ok(seen) => {
                    audit.sessions += 1;
                    audit.events += seen.events;
                    audit.erased += seen.erased;
                    return;
                }
                Err(flaw) => flaw,
            };
            // A server may have cut or removed it in the meantime.
            match self.again(chain.id) {
                Ok(Some(now)) if looks < LOOKS => chain = now,
                Ok(None) => return,
                Ok(Some(_)) | Err(_) => {
                    audit.sessions += 1;
                    audit.found(Break { tenant: Some(chain.tenant), session: Some(chain.id), seq, flaw });
                    return;
                }
            }
            looks += 1;
        }
    }

    fn look(&self, chain: &Chain) -> Looked {
        let at = |seq: i64, flaw: Flaw| (u64::try_from(seq).ok(), flaw);
        let mut previous: Hash =
            chain.base_hash.as_slice().try_into().map_err(|_| at(chain.first_seq, Flaw::Origin))?;
        let tenant = Tenant::new(chain.tenant.clone()).map_err(|_| (None, Flaw::Origin))?;
        let origin = match chain.fork {
            None if chain.first_seq == 1 => Some(chain::genesis(&tenant, chain.id)),
            Some((parent, seq)) if chain.first_seq == seq + 1 => {
                let mark = read::mark(&self.db, parent, u64::try_from(seq).unwrap_or(0));
                let (hash, _) = mark.ok().flatten().ok_or_else(|| at(seq, Flaw::Origin))?;
                Some(chain::fork_genesis(&tenant, chain.id, &hash))
            }
            // Its front was cut.
            None | Some(_) => None,
        };
        if origin.is_some_and(|origin| origin != previous) {
            return Err(at(chain.first_seq, Flaw::Origin));
        }
        let mut seen = Seen::default();
        let mut next = chain.first_seq;
        let mut floor = i64::MIN;
        while next <= chain.head_seq {
            let before = next;
            self.step(chain, &mut next, &mut previous, &mut floor, &mut seen)?;
            if next == before {
                return Err(at(next, Flaw::Gap));
            }
        }
        let ends_there = chain.last_seq.is_none_or(|last| last == chain.head_seq);
        if !ends_there || previous.as_slice() != chain.head_hash {
            return Err(at(chain.head_seq, Flaw::Head));
        }
        Ok(seen)
    }

    /// Up to [`STEP`] events of one chain, in one short read.
    fn step(
        &self,
        chain: &Chain,
        next: &mut i64,
        previous: &mut Hash,
        floor: &mut i64,
        seen: &mut Seen,
    ) -> Result<(), (Option<Seq>, Flaw)> {
        let start = *next;
        let failed =
            |error: rusqlite::Error| (u64::try_from(start).ok(), Flaw::Unreadable(error.to_string()));
        let mut select = self
            .db
            .prepare_cached(
                "SELECT seq, at, kind, actor, version, salt, body_hash, hash, blob, body FROM events
                 WHERE session_no = ?1 AND seq >= ?2 AND seq <= ?3 ORDER BY seq LIMIT ?4",
            )
            .map_err(failed)?;
        let mut rows = select.query(params![chain.no, start, chain.head_seq, STEP]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let seq: i64 = row.get(0).map_err(failed)?;
            let at = u64::try_from(*next).ok();
            if seq != *next {
                return Err((at, Flaw::Gap));
            }
            let (hash, when) = self.event(row, seq, previous, seen).map_err(|flaw| (at, flaw))?;
            if when < *floor {
                return Err((at, Flaw::Time));
            }
            *previous = hash;
            *floor = when;
            *next += 1;
            seen.events += 1;
        }
        Ok(())
    }

    fn event(&self, row: &Row<'_>, seq: i64, previous: &Hash, seen: &mut Seen) -> Result<(Hash, i64), Flaw> {
        let failed = |error: rusqlite::Error| Flaw::Unreadable(error.to_string());
        let text = |column: usize| -> Result<String, Flaw> { row.get(column).map_err(failed) };
        let body_hash: Vec<u8> = row.get(6).map_err(failed)?;
        let hash: Vec<u8> = row.get(7).map_err(failed)?;
        let when: i64 = row.get(1).map_err(failed)?;
        let envelope = Envelope {
            seq: u64::try_from(seq).unwrap_or(0),
            at: when,
            kind: &text(2)?,
            actor: &text(3)?,
            version: row.get(4).map_err(failed)?,
        };
        let expected = chain::event_hash(previous, envelope, &body_hash);
        if expected.as_slice() != hash {
            return Err(Flaw::Envelope);
        }
        self.body(row, &body_hash, seen)?;
        Ok((expected, when))
    }

    fn body(&self, row: &Row<'_>, recorded: &[u8], seen: &mut Seen) -> Result<(), Flaw> {
        let failed = |error: rusqlite::Error| Flaw::Unreadable(error.to_string());
        let salt: Option<Vec<u8>> = row.get(5).map_err(failed)?;
        let blob: Option<Vec<u8>> = row.get(8).map_err(failed)?;
        let body = row.get_ref(9).map_err(failed)?.as_bytes_or_null().map_err(|_| Flaw::Body)?;
        let hash = match (salt, body, blob) {
            (None, None, None) => {
                seen.erased += 1;
                return Ok(());
            }
            (Some(salt), Some(body), None) => chain::body_hash(&salt, body),
            (Some(salt), None, Some(address)) => {
                let mut hasher = chain::body_hasher(&salt);
                let mut file =
                    File::open(blobs::path_in(self.dir, &address)).map_err(|error| match error.kind() {
                        io::ErrorKind::NotFound => Flaw::BlobMissing,
                        _ => Flaw::Unreadable(error.to_string()),
                    })?;
                hasher.update_reader(&mut file).map_err(|error| Flaw::Unreadable(error.to_string()))?;
                *hasher.finalize().as_bytes()
            }
            _ => return Err(Flaw::Body),
        };
        if hash.as_slice() == recorded { Ok(()) } else { Err(Flaw::Body) }
    }

    fn tenants(&self, audit: &mut Audit) -> rusqlite::Result<()> {
        // One snapshot: the counts and what they count.
        let mut select = self.db.prepare(
            "SELECT t.no, t.name, t.chain_seq, t.chain_hash,
                 t.sessions = c.sessions AND t.events = c.events AND t.bytes = c.bytes
             FROM tenants t CROSS JOIN (
                 SELECT n.no AS no, count(s.no) AS sessions,
                     CAST(total(s.head_seq - s.first_seq + 1) AS INTEGER) AS events,
                     CAST(total(s.bytes) AS INTEGER) AS bytes
                 FROM tenants n LEFT JOIN sessions s ON s.tenant_no = n.no GROUP BY n.no
             ) c ON c.no = t.no",
        )?;
        let tenants = select
            .query_map([], |row| {
                Ok((
                    row.get::<_, i64>(0)?,
                    row.get::<_, String>(1)?,
                    row.get::<_, i64>(2)?,
                    row.get::<_, Vec<u8>>(3)?,
                    row.get::<_, bool>(4)?,
                ))
            })?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        for (no, name, chain_seq, chain_hash, counts) in tenants {
            let mut found = |seq: Option<Seq>, flaw: Flaw| {
                audit.found(Break { tenant: Some(name.clone()), session: None, seq, flaw });
            };
            if !counts {
                found(None, Flaw::Count);
            }
            match self.tombstones(no, &name, chain_seq, &chain_hash)? {
                Ok(count) => audit.tombstones += count,
                Err(seq) => found(Some(seq), Flaw::Tombstone),
            }
        }
        Ok(())
    }

    /// How many tombstones verify, or the first that does not.
    fn tombstones(
        &self,
        no: i64,
        tenant: &str,
        chain_seq: i64,
        chain_hash: &[u8],
    ) -> rusqlite::Result<Result<u64, Seq>> {
        let mut select = self.db.prepare_cached(
            "SELECT seq, at, actor, session, last_seq, last_hash, hash FROM tenant_chain
             WHERE tenant_no = ?1 AND seq <= ?2 ORDER BY seq",
        )?;
        let mut rows = select.query([no, chain_seq])?;
        let mut previous = chain::tenant_genesis(tenant);
        let mut next = 1;
        while let Some(row) = rows.next()? {
            let tombstone = Tombstone {
                seq: next,
                at: row.get(1)?,
                actor: row.get_ref(2)?.as_str()?,
                session: row.get_ref(3)?.as_blob()?,
                last_seq: u64::try_from(row.get::<_, i64>(4)?).unwrap_or(0),
                last_hash: row.get_ref(5)?.as_blob()?,
            };
            let hash = chain::tombstone_hash(&previous, tombstone);
            let in_place = u64::try_from(row.get::<_, i64>(0)?) == Ok(next);
            if !in_place || row.get_ref(6)?.as_blob()? != hash {
                return Ok(Err(next));
            }
            previous = hash;
            next += 1;
        }
        let whole = i64::try_from(next) == Ok(chain_seq + 1) && previous.as_slice() == chain_hash;
        Ok(if whole { Ok(next - 1) } else { Err(next) })
    }
}

fn unreadable(error: &rusqlite::Error) -> Break {
    Break { tenant: None, session: None, seq: None, flaw: Flaw::Unreadable(error.to_string()) }
}
