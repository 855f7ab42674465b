//! Credentials: named sets of variables, sealed at rest, given to the agents whose sessions name them.

use crate::{
    Caller, faults,
    spec::{check_env, internal},
    vault::Vault,
};
use journal::{CredentialRow, Journal, WriteError};
use protocol::{Code, CreateCredential, Credential, CredentialId, Fault, Tenant, Timestamp, limits};
use std::collections::BTreeMap;

const PURPOSE: &str = "credential";

/// The variable that a bare `key` of a known type goes into.
const VARIABLES: &[(&str, &str)] = &[
    ("anthropic", "ANTHROPIC_API_KEY"),
    ("openai", "OPENAI_API_KEY"),
    ("google", "GEMINI_API_KEY"),
    ("openrouter", "OPENROUTER_API_KEY"),
];

#[derive(Debug, Clone)]
pub(crate) struct Credentials {
    pub(crate) journal: Journal,
    pub(crate) vault: Vault,
}

impl Credentials {
    pub(crate) async fn create(
        &self,
        caller: &Caller,
        request: CreateCredential,
    ) -> Result<Credential, Fault> {
        let env = variables(&request)?;
        let plain = serde_json::to_vec(&env).map_err(internal)?;
        let credential = Credential {
            id: CredentialId::new(),
            tenant_id: caller.tenant.clone(),
            kind: request.kind,
            label: request.label,
            variables: env.into_keys().collect(),
            created_at: Timestamp::now(),
        };
        let sealed = self.vault.seal(PURPOSE, &plain).map_err(internal)?;
        let row = CredentialRow { credential: credential.clone(), sealed };
        self.journal.put_credential(row).await.map_err(faults::write)?;
        Ok(credential)
    }

    pub(crate) async fn list(&self, caller: &Caller) -> Result<Vec<Credential>, Fault> {
        let rows = self.journal.credentials(&caller.tenant).await.map_err(faults::read)?;
        Ok(rows.into_iter().map(|row| row.credential).collect())
    }

    pub(crate) async fn remove(&self, caller: &Caller, id: CredentialId) -> Result<Credential, Fault> {
        let row = self.row(&caller.tenant, id).await?;
        match self.journal.remove_credential(&caller.tenant, id).await {
            Ok(()) => Ok(row.credential),
            Err(WriteError::NotFound) => Err(missing(id)),
            Err(error) => Err(faults::write(error)),
        }
    }

    /// The values, for an agent's environment.
    pub(crate) async fn open(
        &self,
        tenant: &Tenant,
        id: CredentialId,
    ) -> Result<BTreeMap<String, String>, Fault> {
        let row = self.row(tenant, id).await?;
        let plain = self.vault.unseal(PURPOSE, &row.sealed).map_err(internal)?;
        serde_json::from_slice(&plain).map_err(internal)
    }

    async fn row(&self, tenant: &Tenant, id: CredentialId) -> Result<CredentialRow, Fault> {
        self.journal.credential(tenant, id).await.map_err(faults::read)?.ok_or_else(|| missing(id))
    }
}

fn missing(id: CredentialId) -> Fault {
    Fault::new(Code::CredentialNotFound, format!("Credential {id} not found"))
}

fn variables(request: &CreateCredential) -> Result<BTreeMap<String, String>, Fault> {
    if request.kind.is_empty() || request.kind.len() > limits::NAME_BYTES {
        return Err(Fault::invalid("type must have 1 to 64 bytes"));
    }
    if request.label.as_ref().is_some_and(|label| label.len() > limits::LABEL_BYTES) {
        return Err(Fault::invalid(format!("label is over {} bytes", limits::LABEL_BYTES)));
    }
    let mut env = request.env.clone();
    if let Some(key) = &request.key {
        if key.is_empty() {
            return Err(Fault::invalid("key is empty"));
        }
        let Some((_, variable)) = VARIABLES.iter().find(|(kind, _)| *kind == request.kind) else {
            return Err(Fault::invalid(format!(
                "type {:?} has no variable of its own for a key; give env instead, such as {{\"MY_KEY\": \"…\"}}",
                request.kind
            )));
        };
        env.insert((*variable).to_owned(), key.clone());
    }
    if env.is_empty() {
        return Err(Fault::invalid("a credential needs a key or env"));
    }
    check_env("env", &env)?;
    Ok(env)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: &str, key: Option<&str>, env: &[(&str, &str)]) -> CreateCredential {
        CreateCredential {
            kind: kind.to_owned(),
            key: key.map(str::to_owned),
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            label: None,
        }
    }

    #[test]
    fn a_key_goes_where_its_type_says() {
        let env = variables(&request("anthropic", Some("sk-1"), &[])).unwrap();
        assert_eq!(env.get("ANTHROPIC_API_KEY").map(String::as_str), Some("sk-1"));
        assert!(variables(&request("custom", Some("x"), &[])).is_err(), "no variable for it");
        assert!(variables(&request("custom", None, &[])).is_err(), "nothing in it");
        assert!(variables(&request("", Some("x"), &[])).is_err());
        assert!(variables(&request("custom", None, &[("A=B", "x")])).is_err());
        assert!(variables(&request("custom", None, &[("A", "x")])).is_ok());
    }

    #[test]
    fn printing_a_request_shows_no_value() {
        let text = format!("{:?}", request("custom", Some("sk-secret"), &[("A", "sk-other")]));
        assert!(!text.contains("sk-"), "{text}");
    }
}
