//! One HTTP exchange: the request, its time limit, and what the answer means.
//!
//! The only module that touches reqwest's client. It follows no redirect and uses no proxy from the
//! environment, so that a key goes to the address it was given for and nowhere else.

use crate::{Error, Patience};
use protocol::ErrorBody;
use reqwest::{
    Method, RequestBuilder, Response, Url,
    header::{AUTHORIZATION, HeaderValue},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{error::Error as _, fmt, sync::Arc, time::Duration};

/// The largest answer that is read whole. Event pages and session lists stay far below it.
const REPLY_BYTES: usize = 2 * protocol::limits::EVENT_BYTES;
/// The largest error body worth reading.
const ERROR_BYTES: usize = 64 * 1024;

/// A server and a key. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    http: reqwest::Client,
    /// As it was given, for people.
    url: String,
    base: String,
    key: Option<HeaderValue>,
    patience: Patience,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("url", &self.inner.url).finish_non_exhaustive()
    }
}

impl Client {
    /// `base_url` is `http://HOST:PORT` or `https://HOST`, with a path when a proxy puts one in front, or
    /// `unix:PATH` for a server on this machine. An empty
    /// key sends none, which is enough for [`Client::health`] only.
    pub fn new(base_url: &str, key: &str) -> Result<Self, Error> {
        Self::with_patience(base_url, key, Patience::default())
    }

    pub fn with_patience(base_url: &str, key: &str, patience: Patience) -> Result<Self, Error> {
        let socket = base_url.strip_prefix("unix:");
        let (url, base) = match socket {
            Some(_) => (base_url.to_owned(), "http://localhost".to_owned()),
            None => checked_base(base_url).map(|base| (base.clone(), base))?,
        };
        let key = match key {
            "" => None,
            key => {
                let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| Error::Key)?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        // A second install is refused and changes nothing: another part of the program chose already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder()
            .connect_timeout(patience.connect)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("outlast-client/", env!("CARGO_PKG_VERSION")));
        if let Some(socket) = socket {
            http = http.unix_socket(socket);
        }
        let http = http.build().map_err(|error| Error::Setup(cause(&error)))?;
        Ok(Self { inner: Arc::new(Inner { http, url, base, key, patience }) })
    }

    /// Where the server is.
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    pub(crate) fn patience(&self) -> &Patience {
        &self.inner.patience
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.inner.http.request(method, format!("{}{path}", self.inner.base));
        match &self.inner.key {
            Some(key) => request.header(AUTHORIZATION, key.clone()),
            None => request,
        }
    }

    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &impl Serialize,
    ) -> Result<T, Error> {
        self.json(self.request(Method::GET, path).query(query), self.patience().answer).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Error> {
        self.json(self.request(Method::POST, path).json(body), self.patience().answer).await
    }

    /// A call without a body: `POST …/pause`, `DELETE …`.
    pub(crate) async fn act<T: DeserializeOwned>(&self, method: Method, path: &str) -> Result<T, Error> {
        self.json(self.request(method, path), self.patience().answer).await
    }

    /// Sends and reads a whole JSON answer within `limit`.
    pub(crate) async fn json<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
        limit: Duration,
    ) -> Result<T, Error> {
        let whole = async {
            let mut response = self.head(request).await?;
            self.body(&mut response, REPLY_BYTES).await
        };
        let bytes = self.within(limit, whole).await?;
        serde_json::from_slice(&bytes).map_err(|error| Error::Protocol(error.to_string()))
    }

    /// Sends and waits for the head of the answer; anything but a success is an error.
    pub(crate) async fn head(&self, request: RequestBuilder) -> Result<Response, Error> {
        let mut response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = self.body(&mut response, ERROR_BYTES).await.unwrap_or_default();
        Err(match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(body) => Error::Refused { status: status.as_u16(), body },
            Err(_) => Error::Foreign { url: self.inner.url.clone(), status: status.as_u16() },
        })
    }

    pub(crate) async fn within<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(limit, work).await {
            Ok(result) => result,
            Err(_) => Err(self.silent(limit)),
        }
    }

    pub(crate) fn silent(&self, limit: Duration) -> Error {
        Error::TimedOut { url: self.inner.url.clone(), secs: limit.as_secs() }
    }

    pub(crate) fn unreachable(&self, error: &reqwest::Error) -> Error {
        Error::Unreachable { url: self.inner.url.clone(), cause: cause(error) }
    }

    pub(crate) fn hung_up(&self) -> Error {
        Error::Unreachable { url: self.inner.url.clone(), cause: "the connection was closed".to_owned() }
    }

    async fn body(&self, response: &mut Response, limit: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.unreachable(&error))? {
            if bytes.len() + chunk.len() > limit {
                return Err(Error::Protocol(format!("more than {limit} bytes in one answer")));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }
}

fn checked_base(text: &str) -> Result<String, Error> {
    let refuse = || Error::Address(text.to_owned());
    let url = Url::parse(text).map_err(|_| refuse())?;
    let plain = matches!(url.scheme(), "http" | "https")
        && url.host_str().is_some()
        && url.query().is_none()
        && url.fragment().is_none()
        && url.username().is_empty()
        && url.password().is_none();
    if plain { Ok(url.as_str().trim_end_matches('/').to_owned()) } else { Err(refuse()) }
}

/// The innermost cause says what happened; the layers above it only say that something did.
fn cause(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = inner.to_string();
        source = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_once() {
        for (text, want) in [
            ("http://127.0.0.1:4100", "http://127.0.0.1:4100"),
            ("http://127.0.0.1:4100/", "http://127.0.0.1:4100"),
            ("https://example.org/outlast/", "https://example.org/outlast"),
            ("http://[::1]:4100", "http://[::1]:4100"),
        ] {
            assert_eq!(Client::new(text, "k").unwrap().url(), want);
        }
        for bad in ["", "localhost:4100", "ftp://h", "http://", "http://u:p@h", "http://h?x=1", "http://h/#x"]
        {
            assert!(matches!(Client::new(bad, "k"), Err(Error::Address(_))), "{bad:?}");
        }
        assert!(matches!(Client::new("http://h", "a\nb"), Err(Error::Key)));
    }

    #[test]
    fn a_key_is_never_printed() {
        let client = Client::new("http://h", "sesame-123").unwrap();
        assert!(!format!("{client:?}").contains("sesame"));
    }
}
