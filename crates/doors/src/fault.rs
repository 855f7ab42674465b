//! From an error code to an HTTP status, and from a fault to the one shape every error has on this wire.
//!
//! A call returns a [`Refusal`]; it travels in the response's extensions as a [`Fault`], and the gate, which
//! knows the request's id, writes the body. So there is one writer, and no error can miss its request id.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use protocol::{Code, ErrorBody, Fault};

/// The one table from codes to statuses.
pub(crate) const fn status(code: Code) -> StatusCode {
    match code {
        Code::InvalidRequest | Code::InvalidId | Code::WrongStatus | Code::Unsupported | Code::BadPath => {
            StatusCode::BAD_REQUEST
        }
        Code::Unauthorized => StatusCode::UNAUTHORIZED,
        Code::Forbidden | Code::CommandRefused => StatusCode::FORBIDDEN,
        Code::NotFound
        | Code::SessionNotFound
        | Code::AgentNotFound
        | Code::CredentialNotFound
        | Code::KeyNotFound
        | Code::PermissionNotFound
        | Code::FileNotFound
        | Code::ContainerNotFound => StatusCode::NOT_FOUND,
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::Busy | Code::IdReused | Code::Conflict | Code::NotRunning => StatusCode::CONFLICT,
        Code::SessionEnded | Code::CursorExpired => StatusCode::GONE,
        Code::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::BadRange => StatusCode::RANGE_NOT_SATISFIABLE,
        Code::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Code::QueueFull | Code::QuotaExceeded | Code::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        Code::AgentFailed | Code::SandboxFailed | Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        Code::CapacityReached | Code::ShuttingDown | Code::Fenced => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unreachable
        | Code::AuthRefused
        | Code::HostKeyUnknown
        | Code::HostKeyWrong
        | Code::RemoteFailed => StatusCode::BAD_GATEWAY,
        Code::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        Code::StorageFull => StatusCode::INSUFFICIENT_STORAGE,
    }
}

/// A fault on its way out of a call.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) Fault);

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self(fault)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = status(self.0.code).into_response();
        response.extensions_mut().insert(self.0);
        response
    }
}

/// Seconds after which a caller that was refused for lack of room may sensibly try again.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// Gives a response that carries a fault its body. Others pass, but for the router's own bare refusals.
pub(crate) fn render(response: Response, request_id: &str) -> Response {
    let (mut parts, body) = response.into_parts();
    let fault = match parts.extensions.remove::<Fault>() {
        Some(fault) => fault,
        // The router answers a known path with a wrong method by itself; its `Allow` header is kept.
        None if parts.status == StatusCode::METHOD_NOT_ALLOWED => Fault::new(
            Code::MethodNotAllowed,
            "this path does not take that method; the Allow header names those it takes",
        ),
        None => return Response::from_parts(parts, body),
    };
    parts.status = status(fault.code);
    match parts.status {
        StatusCode::UNAUTHORIZED => {
            parts
                .headers
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"outlast\""));
        }
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            parts.headers.insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        _ => {}
    }
    let body = body_of(fault, request_id);
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Response::from_parts(parts, crate::answer::encode(&body).into())
}

/// A fault as it is written, in an answer or as the last frame of a stream.
pub(crate) fn body_of(fault: Fault, request_id: &str) -> ErrorBody {
    ErrorBody {
        status_code: status(fault.code).as_u16(),
        code: fault.code,
        error: fault.message.into_owned(),
        request_id: request_id.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_an_error_status() {
        for &code in Code::ALL {
            assert!(status(code).is_client_error() || status(code).is_server_error(), "{code}");
        }
    }

    #[tokio::test]
    async fn a_refusal_gets_its_body_once_the_request_id_is_known() {
        let response = Refusal(Fault::new(Code::QueueFull, "20 prompts wait already")).into_response();
        let response = render(response, "r-1");
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "1");
        let body = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
        assert_eq!(
            std::str::from_utf8(&body).unwrap(),
            r#"{"error":"20 prompts wait already","statusCode":429,"code":"queue_full","requestId":"r-1"}"#
        );
    }
}
