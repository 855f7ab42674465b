//! Credentials and API keys. Values go in and never come out, but for a new key, once.

use super::Shared;
use crate::{
    answer::{self, Outcome},
    gate::Who,
    intake::{Json, Named, NoBody},
    reply::{CredentialReply, CredentialsReply, KeyReply, KeysReply},
};
use axum::extract::State;
use protocol::{CreateCredential, CreateKey, CredentialId, KeyId};
use std::sync::Arc;

pub(crate) async fn create_credential(
    State(door): State<Arc<Shared>>,
    Who(caller): Who,
    Json(request): Json<CreateCredential>,
) -> Outcome {
    let credential = door.sessions.create_credential(&caller, request).await?;
    answer::created(&CredentialReply { credential })
}

pub(crate) async fn credentials(State(door): State<Arc<Shared>>, Who(caller): Who) -> Outcome {
    answer::ok(&CredentialsReply { credentials: door.sessions.credentials(&caller).await? })
}

pub(crate) async fn remove_credential(
    State(door): State<Arc<Shared>>,
    Who(caller): Who,
    Named(id): Named<CredentialId>,
    _: NoBody,
) -> Outcome {
    let credential = door.sessions.remove_credential(&caller, id).await?;
    answer::ok(&CredentialReply { credential })
}

pub(crate) async fn create_key(
    State(door): State<Arc<Shared>>,
    Who(caller): Who,
    Json(request): Json<CreateKey>,
) -> Outcome {
    answer::created(&door.sessions.create_key(&caller, request).await?)
}

pub(crate) async fn keys(State(door): State<Arc<Shared>>, Who(caller): Who) -> Outcome {
    answer::ok(&KeysReply { api_keys: door.sessions.keys(&caller) })
}

pub(crate) async fn remove_key(
    State(door): State<Arc<Shared>>,
    Who(caller): Who,
    Named(id): Named<KeyId>,
    _: NoBody,
) -> Outcome {
    let api_key = door.sessions.remove_key(&caller, id).await?;
    answer::ok(&KeyReply { api_key })
}
