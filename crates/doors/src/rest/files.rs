//! A session's files: list, read with ranges, write, remove, archive. Bodies are streamed in both directions; an
//! upload lies in a file of its own until it is whole, so that a slow or broken caller costs no thread and leaves
//! nothing behind.

use super::Shared;
use crate::{
    answer::{self, Outcome},
    fault::Refusal,
    gate::Who,
    intake::{self, Asked, Named, NoBody},
    range::{self, Wanted},
    reply::{FileRemovedReply, FileReply},
    upload::Upload,
};
use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use protocol::{Code, Fault, FileSource, ListFiles, SessionRef};
use serde::Deserialize;
use session::{Content, RemoveFile};
use std::{io, sync::Arc};

type Door = State<Arc<Shared>>;

/// Where the answer's bytes are from: `sandbox` or `snapshot`.
const SOURCE: HeaderName = HeaderName::from_static("x-outlast-source");
pub(crate) const BYTES: &str = "application/octet-stream";
pub(crate) const TAR: &str = "application/x-tar";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AtPath {
    path: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AtFolder {
    #[serde(default)]
    path: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Put {
    path: String,
    mode: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Removal {
    path: String,
    #[serde(default)]
    recursive: bool,
}

pub(crate) async fn list(
    State(door): Door,
    Who(caller): Who,
    Named(id): Named<SessionRef>,
    Asked(request): Asked<ListFiles>,
) -> Outcome {
    answer::ok(&door.sessions.list_files(&caller, &id, request).await?)
}

pub(crate) async fn read(
    State(door): Door,
    Who(caller): Who,
    Named(id): Named<SessionRef>,
    Asked(AtPath { path }): Asked<AtPath>,
    headers: HeaderMap,
) -> Outcome {
    let content = door.sessions.read_file(&caller, &id, &path).await?;
    let size = content.size().unwrap_or(0);
    let name = path.rsplit('/').find(|part| !part.is_empty()).unwrap_or("file");
    let mut answer = match range::wanted(&headers, size) {
        Wanted::All => {
            let mut answer = streamed(content, StatusCode::OK, BYTES, name);
            answer.headers_mut().insert(header::CONTENT_LENGTH, size.into());
            answer
        }
        Wanted::Part(part) => {
            let mut answer = streamed(content.part(part.clone()), StatusCode::PARTIAL_CONTENT, BYTES, name);
            answer.headers_mut().insert(header::CONTENT_LENGTH, (part.end - part.start).into());
            insert(
                &mut answer,
                header::CONTENT_RANGE,
                &format!("bytes {}-{}/{size}", part.start, part.end - 1),
            );
            answer
        }
        Wanted::Nothing => {
            let fault =
                Fault::new(Code::BadRange, format!("the file has {size} bytes; the range lies behind them"));
            let mut answer = Refusal(fault).into_response();
            insert(&mut answer, header::CONTENT_RANGE, &format!("bytes */{size}"));
            answer
        }
    };
    answer.headers_mut().insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    Ok(answer)
}

pub(crate) async fn archive(
    State(door): Door,
    Who(caller): Who,
    Named(id): Named<SessionRef>,
    Asked(AtFolder { path }): Asked<AtFolder>,
) -> Outcome {
    let content = door.sessions.archive_files(&caller, &id, &path).await?;
    let name = path.rsplit('/').find(|part| !matches!(*part, "" | ".")).unwrap_or("workspace");
    Ok(streamed(content, StatusCode::OK, TAR, &format!("{name}.tar")))
}

pub(crate) async fn write(
    State(door): Door,
    Who(caller): Who,
    Named(id): Named<SessionRef>,
    Asked(put): Asked<Put>,
    request: Request<Body>,
) -> Outcome {
    let mode = put.mode.as_deref().map(mode).transpose()?;
    // Before the content is received: whoever may not write should hear so at once.
    door.sessions.admit_file(&caller, &id, &put.path).await?;
    let (parts, body) = request.into_parts();
    let limit = door.limits.file_bytes;
    if intake::announced(&parts.headers).is_some_and(|bytes| bytes > limit) {
        return Err(intake::too_large(usize::try_from(limit).unwrap_or(usize::MAX)));
    }
    let _place = door.files.acquire().await.map_err(|_| {
        Refusal(Fault::new(Code::ShuttingDown, "The server is shutting down; ask again in a moment"))
    })?;
    let upload = Upload::receive(&door.uploads, body, limit, || door.sessions.admit_bytes()).await?;
    let file = door.sessions.write_file(&caller, &id, &put.path, upload.path(), mode).await?;
    answer::ok(&FileReply { file })
}

pub(crate) async fn remove(
    State(door): Door,
    Who(caller): Who,
    Named(id): Named<SessionRef>,
    Asked(removal): Asked<Removal>,
    _: NoBody,
) -> Outcome {
    let how = if removal.recursive { RemoveFile::WithContents } else { RemoveFile::Alone };
    door.sessions.remove_file(&caller, &id, &removal.path, how).await?;
    answer::ok(&FileRemovedReply { ok: true, path: removal.path })
}

fn mode(text: &str) -> Result<u32, Refusal> {
    let digits = text.len() == 3 && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|_| digits)
        .ok_or_else(|| Refusal(Fault::invalid("mode must be three octal digits, such as 644")))
}

fn streamed(content: Content, status: StatusCode, kind: &'static str, name: &str) -> Response {
    let source = match content.source() {
        FileSource::Sandbox => "sandbox",
        FileSource::Snapshot => "snapshot",
    };
    let pieces = futures_util::stream::try_unfold(content, |mut content| async move {
        // The head is gone; all that can still be said is that this is not the whole.
        let piece = content.next().await.map_err(|fault| io::Error::other(fault.to_string()))?;
        Ok::<_, io::Error>(piece.map(|piece| (piece, content)))
    });
    let mut answer = (status, Body::from_stream(pieces)).into_response();
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer.headers_mut().insert(SOURCE, HeaderValue::from_static(source));
    insert(&mut answer, header::CONTENT_DISPOSITION, &disposition(name));
    answer
}

fn insert(answer: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        answer.headers_mut().insert(name, value);
    }
}

/// Always a download: what an agent wrote is never shown as a page of ours. Both forms of the name, for old and new
/// readers; `name` is in the protocol's encoding, which holds no control characters.
fn disposition(name: &str) -> String {
    let plain: String = name
        .chars()
        .map(|c| if c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '%') { c } else { '_' })
        .collect();
    let bytes = protocol::path_bytes(name).unwrap_or_else(|| name.as_bytes().to_vec());
    let encoded: String = bytes
        .iter()
        .map(|byte| match byte {
            byte if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) => char::from(*byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect();
    format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_end_its_header() {
        for (name, want) in [
            ("a.txt", "attachment; filename=\"a.txt\"; filename*=UTF-8''a.txt"),
            ("a\"; x=\"y", "attachment; filename=\"a_;_x=_y\"; filename*=UTF-8''a%22%3B%20x%3D%22y"),
            ("caf%E9%0A", "attachment; filename=\"caf_E9_0A\"; filename*=UTF-8''caf%E9%0A"),
            ("größe", "attachment; filename=\"gr__e\"; filename*=UTF-8''gr%C3%B6%C3%9Fe"),
        ] {
            assert_eq!(disposition(name), want);
            assert!(HeaderValue::from_str(&disposition(name)).is_ok());
        }
    }

    #[test]
    fn modes_are_three_octal_digits() {
        assert_eq!(mode("755").unwrap(), 0o755);
        for bad in ["", "7", "0755", "888", "+75", "a"] {
            assert!(mode(bad).is_err(), "{bad}");
        }
    }
}
