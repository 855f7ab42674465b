//! What calls take out of a request: ids from the path, parameters from the query, bodies. Each refuses with a
//! typed fault that says what was wrong.

use crate::{fault::Refusal, json, rest::Shared};
use axum::{
    body::Body,
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::{HeaderMap, header, request::Parts},
};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use protocol::{Code, Fault, SessionRef};
use serde::de::DeserializeOwned;
use std::{str::FromStr, sync::Arc};

/// The one `{…}` of a path, as the type it names. Malformed is `invalid_id`.
pub(crate) struct Named<T>(pub(crate) T);

impl<T: FromStr<Err = protocol::IdError> + Send> FromRequestParts<Arc<Shared>> for Named<T> {
    type Rejection = Refusal;
    async fn from_request_parts(parts: &mut Parts, state: &Arc<Shared>) -> Result<Self, Refusal> {
        let Path(text) = Path::<String>::from_request_parts(parts, state).await.map_err(|_| not_text())?;
        Ok(Self(parse(&text)?))
    }
}

/// A session and the number of one of its permission requests.
pub(crate) struct NamedPermission {
    pub(crate) session: SessionRef,
    pub(crate) permission: u64,
}

impl FromRequestParts<Arc<Shared>> for NamedPermission {
    type Rejection = Refusal;
    async fn from_request_parts(parts: &mut Parts, state: &Arc<Shared>) -> Result<Self, Refusal> {
        let Path((session, permission)) =
            Path::<(String, String)>::from_request_parts(parts, state).await.map_err(|_| not_text())?;
        let permission =
            permission.parse().ok().filter(|seq| (1..=MAX_SEQ).contains(seq)).ok_or_else(|| {
                Refusal(Fault::new(
                    Code::InvalidId,
                    "a permission request is named by its event's seq, a number from 1",
                ))
            })?;
        Ok(Self { session: parse(&session)?, permission })
    }
}

/// The largest seq a caller can name: what every JSON reader can hold exactly.
pub(crate) const MAX_SEQ: u64 = (1 << 53) - 1;

fn parse<T: FromStr<Err = protocol::IdError>>(text: &str) -> Result<T, Refusal> {
    text.parse().map_err(|error: protocol::IdError| Refusal(Fault::new(Code::InvalidId, error.to_string())))
}

fn not_text() -> Refusal {
    Refusal(Fault::new(Code::InvalidId, "the path is not UTF-8"))
}

/// The query as a struct that refuses unknown and doubled parameters.
pub(crate) struct Asked<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<Arc<Shared>> for Asked<T> {
    type Rejection = Refusal;
    async fn from_request_parts(parts: &mut Parts, _: &Arc<Shared>) -> Result<Self, Refusal> {
        // The form decoder replaces bad UTF-8; a caller should hear of it instead.
        if !is_utf8_once_decoded(parts.uri.query().unwrap_or_default()) {
            return Err(Refusal(Fault::invalid("the query string is not UTF-8")));
        }
        let Query(value) = Query::try_from_uri(&parts.uri).map_err(|rejection| {
            let text = rejection.body_text();
            let reason = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
            Refusal(Fault::invalid(format!("the query string is refused: {reason}")))
        })?;
        Ok(Self(value))
    }
}

fn is_utf8_once_decoded(query: &str) -> bool {
    let hex = |byte: Option<&u8>| byte.and_then(|b| char::from(*b).to_digit(16));
    let bytes = query.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match (bytes[at], hex(bytes.get(at + 1)), hex(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    std::str::from_utf8(&decoded).is_ok()
}

/// A JSON body.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<Shared>> for Json<T> {
    type Rejection = Refusal;
    async fn from_request(request: Request, state: &Arc<Shared>) -> Result<Self, Refusal> {
        let (parts, body) = request.into_parts();
        expect_type(&parts.headers, &["application/json"])?;
        let bytes = collect(&parts.headers, body, state.limits.body_bytes).await?;
        Ok(Self(json::decode(&bytes)?))
    }
}

/// A JSON body whose fields may all be left out, and the body with them.
pub(crate) struct MaybeJson<T>(pub(crate) T);

impl<T: DeserializeOwned + Default> FromRequest<Arc<Shared>> for MaybeJson<T> {
    type Rejection = Refusal;
    async fn from_request(request: Request, state: &Arc<Shared>) -> Result<Self, Refusal> {
        let (parts, body) = request.into_parts();
        let bytes = collect(&parts.headers, body, state.limits.body_bytes).await?;
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self(T::default()));
        }
        expect_type(&parts.headers, &["application/json"])?;
        Ok(Self(json::decode(&bytes)?))
    }
}

/// A call that takes no body: none, or an empty object, whatever its content type says.
pub(crate) struct NoBody;

impl FromRequest<Arc<Shared>> for NoBody {
    type Rejection = Refusal;
    async fn from_request(request: Request, _: &Arc<Shared>) -> Result<Self, Refusal> {
        /// Room for an empty object written with some leisure.
        const EMPTY_OBJECT_BYTES: usize = 64;
        let (parts, body) = request.into_parts();
        let bytes =
            collect(&parts.headers, body, EMPTY_OBJECT_BYTES).await.unwrap_or(Bytes::from_static(b"?"));
        let empty = bytes.iter().filter(|byte| !byte.is_ascii_whitespace()).copied().collect::<Vec<_>>();
        if empty.is_empty() || empty == b"{}" {
            Ok(Self)
        } else {
            Err(Refusal(Fault::invalid("this call takes no body; send none or an empty object")))
        }
    }
}

/// The content type, without its parameters, must be one of these.
pub(crate) fn expect_type(headers: &HeaderMap, wanted: &[&str]) -> Result<(), Refusal> {
    let unsupported = |message: String| Err(Refusal(Fault::new(Code::UnsupportedMediaType, message)));
    let takes = wanted.join(" or ");
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return unsupported(format!("the content type is missing; this call takes {takes}"));
    };
    let given = value.to_str().unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim();
    if wanted.iter().any(|kind| essence.eq_ignore_ascii_case(kind)) {
        Ok(())
    } else {
        unsupported(format!("this call takes {takes}, not {essence:?}"))
    }
}

/// The length that the head promises.
pub(crate) fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

async fn collect(headers: &HeaderMap, body: Body, limit: usize) -> Result<Bytes, Refusal> {
    if announced(headers).is_some_and(|bytes| bytes > limit as u64) {
        return Err(too_large(limit));
    }
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large(limit)),
        Err(error) => Err(Refusal(Fault::invalid(format!("the body broke off: {error}")))),
    }
}

pub(crate) fn too_large(limit: usize) -> Refusal {
    Refusal(Fault::new(Code::PayloadTooLarge, format!("the body is over the limit of {limit} bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_types_are_compared_without_parameters() {
        let headers = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, value.parse().unwrap());
            headers
        };
        assert!(expect_type(&headers("Application/JSON; charset=utf-8"), &["application/json"]).is_ok());
        for bad in ["text/plain", "application/jsonx", ""] {
            let refusal = expect_type(&headers(bad), &["application/json"]).unwrap_err();
            assert_eq!(refusal.0.code, Code::UnsupportedMediaType, "{bad}");
        }
        assert!(expect_type(&HeaderMap::new(), &["application/json"]).is_err());
    }

    #[test]
    fn a_query_must_be_text() {
        assert!(is_utf8_once_decoded("a=%C3%A9&b=%zz&c=%"));
        assert!(!is_utf8_once_decoded("a=%ff"));
        assert!(!is_utf8_once_decoded("a=%C3"));
    }
}
