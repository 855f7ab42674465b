//! API keys: who may come in. All hashes are in memory, because every request asks.

use crate::{
    Caller,
    spec::internal,
    vault::{self, VaultError},
};
use journal::{Journal, KeyRow, WriteError};
use protocol::{ApiKey, Code, CreateKey, CreatedKey, Fault, KeyId, Scope, Tenant, Timestamp, limits};
use std::{
    path::Path,
    sync::{PoisonError, RwLock},
};

#[derive(Debug)]
pub(crate) struct Keys {
    journal: Journal,
    known: RwLock<Vec<KeyRow>>,
}

/// The file in the data folder that holds the first key.
pub(crate) const FIRST_KEY_FILE: &str = "api-key";

impl Keys {
    pub(crate) async fn load(journal: Journal) -> Result<Self, journal::ReadError> {
        let known = journal.keys().await?;
        Ok(Self { journal, known: RwLock::new(known) })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Compares with every known hash in constant time each, so that timing tells nothing of a near miss.
    pub(crate) fn authenticate(&self, key: &str) -> Option<Caller> {
        let hash = vault::hash_api_key(key);
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut found = None;
        for row in known.iter() {
            // blake3::Hash compares in constant time.
            if hash == blake3::Hash::from_bytes(row.hash) {
                found = Some(row);
            }
        }
        found.map(|row| Caller { tenant: row.key.tenant_id.clone(), key: row.key.id, scope: row.key.scope })
    }

    /// Makes the operator's key and leaves it in the data folder.
    pub(crate) async fn make_first(&self, data: &Path) -> Result<(), Fault> {
        let created = self.make(Tenant::default_tenant(), Scope::Admin, Some("first key".to_owned())).await?;
        let path = data.join(FIRST_KEY_FILE);
        // A file left by an earlier data folder holds a key that opens nothing.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(internal(error)),
            Ok(()) | Err(_) => {}
        }
        vault::write_private(&path, format!("{}\n", created.key).as_bytes()).map_err(internal)
    }

    pub(crate) async fn create(&self, caller: &Caller, request: CreateKey) -> Result<CreatedKey, Fault> {
        let tenant = request.tenant.unwrap_or_else(|| caller.tenant.clone());
        if tenant != caller.tenant && caller.tenant != Tenant::default_tenant() {
            return Err(Fault::new(
                Code::Forbidden,
                "Only a key of the tenant default may make keys for others",
            ));
        }
        if request.label.as_ref().is_some_and(|label| label.len() > limits::LABEL_BYTES) {
            return Err(Fault::invalid(format!("label is over {} bytes", limits::LABEL_BYTES)));
        }
        self.make(tenant, request.scope, request.label).await
    }

    /// The caller's tenant's keys; for an admin of `default`, everyone's.
    pub(crate) fn list(&self, caller: &Caller) -> Vec<ApiKey> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.iter().filter(|row| sees(caller, &row.key)).map(|row| row.key.clone()).collect()
    }

    pub(crate) async fn remove(&self, caller: &Caller, id: KeyId) -> Result<ApiKey, Fault> {
        let missing = || Fault::new(Code::KeyNotFound, format!("API key {id} not found"));
        let key = self.list(caller).into_iter().find(|key| key.id == id).ok_or_else(missing)?;
        if id == caller.key {
            return Err(Fault::new(Code::Conflict, "A key cannot remove itself; use another one"));
        }
        match self.journal.remove_key(id).await {
            Ok(()) => {}
            Err(WriteError::NotFound) => return Err(missing()),
            Err(error) => return Err(crate::faults::write(error)),
        }
        self.known.write().unwrap_or_else(PoisonError::into_inner).retain(|row| row.key.id != id);
        Ok(key)
    }

    async fn make(&self, tenant: Tenant, scope: Scope, label: Option<String>) -> Result<CreatedKey, Fault> {
        let secret = vault::new_api_key().map_err(|error: VaultError| internal(error))?;
        let key = ApiKey { id: KeyId::new(), tenant_id: tenant, scope, label, created_at: Timestamp::now() };
        let row = KeyRow { key: key.clone(), hash: *vault::hash_api_key(&secret).as_bytes() };
        self.journal.put_key(row.clone()).await.map_err(crate::faults::write)?;
        self.known.write().unwrap_or_else(PoisonError::into_inner).push(row);
        Ok(CreatedKey { api_key: key, key: secret })
    }
}

fn sees(caller: &Caller, key: &ApiKey) -> bool {
    key.tenant_id == caller.tenant || caller.tenant == Tenant::default_tenant()
}
