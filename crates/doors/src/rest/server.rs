//! The server about itself: health, metrics, the OpenAPI document and its page.

use super::Shared;
use crate::{
    answer::{self, Outcome},
    docs,
    fault::Refusal,
    gate::Who,
    metrics, openapi,
    options::DocsPage,
    reply::HealthReply,
};
use axum::{
    extract::State,
    http::{HeaderValue, header},
    response::IntoResponse,
};
use bytes::Bytes;
use protocol::{Code, Fault};
use std::sync::{Arc, LazyLock};

pub(crate) async fn health(State(door): State<Arc<Shared>>) -> Outcome {
    answer::ok(&HealthReply::from(door.sessions.health()))
}

/// What the caller's tenant has used. Not of the server as a whole, and no secret: any of its keys may ask.
pub(crate) async fn usage(State(door): State<Arc<Shared>>, Who(caller): Who) -> Outcome {
    answer::ok(&door.sessions.usage(&caller).await?)
}

pub(crate) async fn figures(State(door): State<Arc<Shared>>) -> Outcome {
    let text = door.metrics.scrape(&door.sessions).map_err(|error| {
        tracing::error!(%error, "the metrics could not be written");
        Refusal(Fault::new(Code::Internal, "the metrics could not be written"))
    })?;
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE))], text).into_response())
}

/// Both are made when first asked for, and once.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| answer::encode(&openapi::document()));
static PAGE: LazyLock<Bytes> = LazyLock::new(|| docs::page(&openapi::document()).into());

pub(crate) async fn document() -> Outcome {
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    Ok((kind, DOCUMENT.clone()).into_response())
}

pub(crate) async fn page(State(door): State<Arc<Shared>>) -> Outcome {
    match door.docs {
        DocsPage::Served => {}
        DocsPage::Absent => {
            return Err(Refusal(Fault::new(
                Code::NotFound,
                "this server has no docs page; /openapi.json has the same",
            )));
        }
    }
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(docs::POLICY)),
    ];
    Ok((headers, PAGE.clone()).into_response())
}
