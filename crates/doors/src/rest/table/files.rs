//! The calls about a session's files.

use super::{Call, Gives, Pace, Param, Place, READ, SESSION, Takes, WRITE};
use crate::{
    openapi::schema,
    reply::{FileRemovedReply, FileReply},
    rest::files,
};
use axum::{
    http::Method,
    routing::{delete, get, put},
};
use protocol::{Code, FileList, limits};
use serde_json::json;

/// Relative, without `..`, and with each `%` followed by two digits.
const PATH_PATTERN: &str = r"^(?!/)(?!(.*/)?\.\.(/|$))([^%\u0000]|%[0-9A-Fa-f]{2})*$";
const PATH_TEXT: &str = "A path below the workspace, without a leading slash or `..`. A `%` is written `%25`, and each \
byte that is not UTF-8 as `%` and two hexadecimal digits (before the URL's own encoding); `path` in a list is spelt so.";

const FOLDER: Param = Param {
    name: "path",
    place: Place::Query,
    text: "The folder; empty, the default, is the workspace itself. Spelt as `path` in the other calls.",
    schema: || json!({ "type": "string", "pattern": PATH_PATTERN, "default": "" }),
};
const PATH: Param = Param {
    name: "path",
    place: Place::RequiredQuery,
    text: PATH_TEXT,
    schema: || json!({ "type": "string", "minLength": 1, "pattern": PATH_PATTERN }),
};
const LIMIT: Param = Param {
    name: "limit",
    place: Place::Query,
    text: "How many on one page.",
    schema: || json!({ "type": "integer", "minimum": 1, "maximum": limits::FILE_PAGE, "default": limits::FILE_PAGE }),
};
const CURSOR: Param = Param {
    name: "cursor",
    place: Place::Query,
    text: "`nextCursor` of the page before.",
    schema: || json!({ "type": "string" }),
};
const RANGE: Param = Param {
    name: "Range",
    place: Place::Header,
    text: "One range of bytes, such as `bytes=0-99`, `bytes=100-` or `bytes=-100`.",
    schema: || json!({ "type": "string", "pattern": "^bytes=([0-9]{1,15}-[0-9]{0,15}|-[0-9]{1,15})$" }),
};
const MODE: Param = Param {
    name: "mode",
    place: Place::Query,
    text: "The file's permissions; without it those of the file that is replaced, or 644.",
    schema: || json!({ "type": "string", "pattern": "^[0-7]{3}$" }),
};
const RECURSIVE: Param = Param {
    name: "recursive",
    place: Place::Query,
    text: "Remove a folder with everything in it.",
    schema: || json!({ "type": "boolean", "default": false }),
};

const LOOK_FAULTS: &[Code] =
    &[Code::InvalidId, Code::SessionNotFound, Code::FileNotFound, Code::BadPath, Code::SandboxFailed];
const CHANGE_FAULTS: &[Code] = &[
    Code::InvalidId,
    Code::SessionNotFound,
    Code::FileNotFound,
    Code::BadPath,
    Code::NotRunning,
    Code::Conflict,
    Code::SessionEnded,
    Code::StorageFull,
];

pub(super) const LIST: Call = Call {
    method: Method::GET,
    path: "/api/sessions/{id}/files",
    needs: READ,
    pace: Pace::Quick,
    topic: "Files",
    summary: "List a folder of the workspace",
    detail: "`source` says whether it is the workspace as it is or, when that is not on this machine, the last \
             snapshot.",
    params: &[SESSION, FOLDER, LIMIT, CURSOR],
    takes: Takes::Nothing,
    gives: Gives::Json(200, schema::<FileList>),
    faults: LOOK_FAULTS,
    route: || get(files::list),
};

pub(super) const REMOVE: Call = Call {
    method: Method::DELETE,
    path: "/api/sessions/{id}/files",
    needs: WRITE,
    pace: Pace::Quick,
    topic: "Files",
    summary: "Remove a file or a folder",
    detail: "A link is removed itself, never what it points to.",
    params: &[SESSION, PATH, RECURSIVE],
    takes: Takes::Nothing,
    gives: Gives::Json(200, schema::<FileRemovedReply>),
    faults: CHANGE_FAULTS,
    route: || delete(files::remove),
};

pub(super) const CONTENT: Call = Call {
    method: Method::GET,
    path: "/api/sessions/{id}/files/content",
    needs: READ,
    pace: Pace::Quick,
    topic: "Files",
    summary: "Read a file, or part of one",
    detail: "On disk, links that stay inside the workspace are followed; in a snapshot none are. The header \
             `x-outlast-source` is `sandbox` or `snapshot`.",
    params: &[SESSION, PATH, RANGE],
    takes: Takes::Nothing,
    gives: Gives::Bytes(files::BYTES, &[200, 206]),
    faults: &[
        Code::InvalidId,
        Code::SessionNotFound,
        Code::FileNotFound,
        Code::BadPath,
        Code::BadRange,
        Code::SandboxFailed,
    ],
    route: || get(files::read),
};

pub(super) const WRITE_CONTENT: Call = Call {
    method: Method::PUT,
    path: "/api/sessions/{id}/files/content",
    needs: WRITE,
    pace: Pace::Upload,
    topic: "Files",
    summary: "Write a file",
    detail: "Whole or not at all, making the folders on the way. A link in its place is replaced; a link on the way \
             is refused. The body is the content, whatever its type.",
    params: &[SESSION, PATH, MODE],
    takes: Takes::Bytes(&[files::BYTES]),
    gives: Gives::Json(200, schema::<FileReply>),
    faults: &[
        Code::InvalidId,
        Code::SessionNotFound,
        Code::FileNotFound,
        Code::BadPath,
        Code::NotRunning,
        Code::Conflict,
        Code::SessionEnded,
        Code::PayloadTooLarge,
        Code::QuotaExceeded,
        Code::StorageFull,
    ],
    route: || put(files::write),
};

pub(super) const ARCHIVE: Call = Call {
    method: Method::GET,
    path: "/api/sessions/{id}/files/archive",
    needs: READ,
    pace: Pace::Quick,
    topic: "Files",
    summary: "Download a file or folder as a tar",
    detail: "Links are links in it; sockets and devices are left out. An answer that breaks off is not whole.",
    params: &[SESSION, FOLDER],
    takes: Takes::Nothing,
    gives: Gives::Bytes(files::TAR, &[200]),
    faults: &[
        Code::InvalidId,
        Code::SessionNotFound,
        Code::FileNotFound,
        Code::BadPath,
        Code::SandboxFailed,
        Code::CapacityReached,
    ],
    route: || get(files::archive),
};
