//! Bounds on what runs at once and how fast a tenant may write. Counted exactly: a slot is taken before a
//! process is started and given back when it is gone.

use protocol::{Code, Fault, SessionId, Tenant};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// What an operator may set; `None` means no limit.
#[derive(Debug, Clone)]
pub struct Quotas {
    /// Occupants alive at once on this server.
    pub live_sessions: usize,
    /// The same, of one tenant.
    pub tenant_live_sessions: usize,
    /// Sessions of one tenant in the store, ended ones too.
    pub tenant_sessions: Option<u64>,
    /// Bytes of one tenant's events in the store.
    pub tenant_bytes: Option<u64>,
    /// Events that one tenant may record a second; over it, its agents are read more slowly and new prompts
    /// are refused.
    pub tenant_events_per_sec: Option<u32>,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            live_sessions: protocol::limits::LIVE_SESSIONS,
            tenant_live_sessions: protocol::limits::TENANT_LIVE_SESSIONS,
            tenant_sessions: None,
            tenant_bytes: None,
            tenant_events_per_sec: None,
        }
    }
}

/// The right to have one live occupant. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Slots,
    tenant: Tenant,
}

/// Sessions that stand still and hold a slot: the first to go when slots are short.
#[derive(Debug, Default)]
pub(crate) struct Frozen {
    since: Mutex<HashMap<SessionId, (Instant, Tenant)>>,
}

impl Frozen {
    pub(crate) fn put(&self, id: SessionId, tenant: &Tenant) {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.insert(id, (Instant::now(), tenant.clone()));
    }

    pub(crate) fn take(&self, id: SessionId) {
        self.since.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// The one that has stood still longest, of one tenant or of all.
    pub(crate) fn oldest(&self, of: Option<&Tenant>) -> Option<SessionId> {
        let since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = since.iter().filter(|(_, (_, tenant))| of.is_none_or(|of| of == tenant));
        mine.min_by_key(|(_, (at, _))| *at).map(|(id, _)| *id)
    }
}

/// Which slots are short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Short {
    Servers,
    Tenants,
}

#[derive(Debug, Clone)]
pub(crate) struct Slots {
    counts: Arc<Mutex<Counts>>,
    total: usize,
    per_tenant: usize,
}

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    tenants: HashMap<Tenant, usize>,
}

impl Slots {
    pub(crate) fn new(quotas: &Quotas) -> Self {
        Self { counts: Arc::default(), total: quotas.live_sessions, per_tenant: quotas.tenant_live_sessions }
    }

    /// So many, whoever has them.
    pub(crate) fn of(total: usize) -> Self {
        Self { counts: Arc::default(), total, per_tenant: total }
    }

    pub(crate) fn take(&self, tenant: &Tenant) -> Result<Slot, Fault> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.total >= self.total {
            return Err(Fault::new(
                Code::CapacityReached,
                format!(
                    "Capacity reached: {} sessions are live; pause or end one, or try again later",
                    self.total
                ),
            ));
        }
        let own = counts.tenants.entry(tenant.clone()).or_default();
        if *own >= self.per_tenant {
            return Err(Fault::new(
                Code::QuotaExceeded,
                format!(
                    "The tenant's quota of {} live sessions is used up; pause or end one",
                    self.per_tenant
                ),
            ));
        }
        *own += 1;
        counts.total += 1;
        Ok(Slot { slots: self.clone(), tenant: tenant.clone() })
    }

    /// Would a take be refused now?
    pub(crate) fn short(&self, tenant: &Tenant) -> Option<Short> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.tenants.get(tenant).is_some_and(|own| *own >= self.per_tenant) {
            return Some(Short::Tenants);
        }
        (counts.total >= self.total).then_some(Short::Servers)
    }

    /// For an occupant that is there already: it is counted, and never refused.
    pub(crate) fn count(&self, tenant: &Tenant) -> Slot {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.tenants.entry(tenant.clone()).or_default() += 1;
        counts.total += 1;
        Slot { slots: self.clone(), tenant: tenant.clone() }
    }

    pub(crate) fn taken(&self) -> usize {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).total
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut counts = self.slots.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.total -= 1;
        if let Some(own) = counts.tenants.get_mut(&self.tenant) {
            *own -= 1;
            if *own == 0 {
                counts.tenants.remove(&self.tenant);
            }
        }
    }
}

/// One token bucket a tenant, a second deep. Spending may go into debt; the debt is a wait.
#[derive(Debug)]
pub(crate) struct Rates {
    per_sec: Option<u32>,
    buckets: Mutex<HashMap<Tenant, Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Rates {
    pub(crate) fn new(quotas: &Quotas) -> Self {
        Self { per_sec: quotas.tenant_events_per_sec, buckets: Mutex::default() }
    }

    /// Records that events were made; returns how long the tenant should hold back.
    pub(crate) fn spend(&self, tenant: &Tenant, events: usize, now: Instant) -> Duration {
        let Some(rate) = self.per_sec.map(f64::from) else { return Duration::ZERO };
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.entry(tenant.clone()).or_insert(Bucket { tokens: rate, at: now });
        let elapsed = now.saturating_duration_since(bucket.at).as_secs_f64();
        bucket.tokens = (bucket.tokens + elapsed * rate).min(rate);
        bucket.at = now;
        #[expect(clippy::cast_precision_loss, reason = "a batch has far fewer than 2^52 events")]
        let events = events as f64;
        bucket.tokens -= events;
        if bucket.tokens >= 0.0 { Duration::ZERO } else { Duration::from_secs_f64(-bucket.tokens / rate) }
    }

    /// May the tenant ask for more?
    pub(crate) fn check(&self, tenant: &Tenant, now: Instant) -> Result<(), Fault> {
        if self.spend(tenant, 0, now).is_zero() {
            return Ok(());
        }
        Err(Fault::new(
            Code::RateLimited,
            format!(
                "The tenant's quota of {} events a second is used up; try again in a moment",
                self.per_sec.unwrap_or(0)
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).unwrap()
    }

    #[test]
    fn slots_are_exact_and_come_back() {
        let slots = Slots::new(&Quotas { live_sessions: 3, tenant_live_sessions: 2, ..Quotas::default() });
        let (a, b) = (tenant("a"), tenant("b"));
        let first = slots.take(&a).unwrap();
        let _second = slots.take(&a).unwrap();
        assert_eq!(slots.take(&a).unwrap_err().code, Code::QuotaExceeded);
        let _third = slots.take(&b).unwrap();
        assert_eq!(slots.take(&b).unwrap_err().code, Code::CapacityReached);
        drop(first);
        assert_eq!(slots.taken(), 2);
        assert!(slots.take(&b).is_ok());
    }

    #[test]
    fn slots_hold_under_parallel_takes() {
        let slots = Slots::new(&Quotas { live_sessions: 10, ..Quotas::default() });
        let taken: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| (0..50).filter_map(|_| slots.take(&tenant("a")).ok()).collect::<Vec<_>>())
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(taken.len(), 10);
    }

    #[test]
    fn debt_is_a_wait_and_passes() {
        let rates = Rates::new(&Quotas { tenant_events_per_sec: Some(100), ..Quotas::default() });
        let (a, now) = (tenant("a"), Instant::now());
        assert_eq!(rates.spend(&a, 100, now), Duration::ZERO);
        assert_eq!(rates.spend(&a, 50, now), Duration::from_millis(500));
        assert_eq!(rates.check(&a, now).map_err(|fault| fault.code), Err(Code::RateLimited));
        assert!(rates.check(&tenant("b"), now).is_ok(), "another tenant's business");
        assert!(rates.check(&a, now + Duration::from_millis(501)).is_ok());
    }
}
