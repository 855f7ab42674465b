//! A session's files: list, read, write, remove, download. Paths are text in the protocol's encoding
//! ([`protocol::path_text`]); the URL's own encoding is added here.

use crate::{Archive, Client, Error, Target};
use bytes::Bytes;
use protocol::{FileEntry, FileList, ListFiles};
use reqwest::{
    Method, RequestBuilder, Response,
    header::{CONTENT_TYPE, RANGE},
};
use serde::Deserialize;
use std::ops::RangeInclusive;

/// A file or an archive on its way, piece by piece.
#[derive(Debug)]
pub struct Download {
    client: Client,
    response: Response,
}

impl Download {
    /// How many bytes will come, where the server knows.
    pub fn length(&self) -> Option<u64> {
        self.response.content_length()
    }

    /// The next piece; none at the end. A download that breaks off is an error, never an end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let limit = self.client.patience().answer;
        let client = self.client.clone();
        let piece = async { self.response.chunk().await.map_err(|error| client.unreachable(&error)) };
        self.client.within(limit, piece).await
    }
}

/// What is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// A file, a link, or an empty folder.
    One,
    /// A folder with everything in it, too.
    All,
}

impl Client {
    pub async fn files(&self, session: impl Into<Target>, request: &ListFiles) -> Result<FileList, Error> {
        self.get(&format!("/api/sessions/{}/files", session.into()), request).await
    }

    /// The whole file, or the bytes of it that `part` names.
    pub async fn read_file(
        &self,
        session: impl Into<Target>,
        path: &str,
        part: Option<RangeInclusive<u64>>,
    ) -> Result<Download, Error> {
        let url = format!("/api/sessions/{}/files/content", session.into());
        let mut request = self.request(Method::GET, &url).query(&[("path", path)]);
        if let Some(part) = part {
            request = request.header(RANGE, format!("bytes={}-{}", part.start(), part.end()));
        }
        self.download(request).await
    }

    /// Writes a file, whole or not at all. `mode` has permission bits; without it those of the file that is
    /// replaced stay.
    pub async fn write_file(
        &self,
        session: impl Into<Target>,
        path: &str,
        mode: Option<u32>,
        content: Archive,
    ) -> Result<FileEntry, Error> {
        #[derive(Deserialize)]
        struct Reply {
            file: FileEntry,
        }
        let url = format!("/api/sessions/{}/files/content", session.into());
        let mut request = self.request(Method::PUT, &url).query(&[("path", path)]);
        if let Some(mode) = mode {
            request = request.query(&[("mode", format!("{:03o}", mode & 0o777))]);
        }
        let request = request.header(CONTENT_TYPE, "application/octet-stream").body(content.into_body());
        self.json(request, self.patience().upload).await.map(|reply: Reply| reply.file)
    }

    pub async fn remove_file(
        &self,
        session: impl Into<Target>,
        path: &str,
        removal: Removal,
    ) -> Result<(), Error> {
        #[derive(Deserialize)]
        struct Reply {}
        let url = format!("/api/sessions/{}/files", session.into());
        let mut request = self.request(Method::DELETE, &url).query(&[("path", path)]);
        if removal == Removal::All {
            request = request.query(&[("recursive", "true")]);
        }
        self.json(request, self.patience().answer).await.map(|_: Reply| ())
    }

    /// What lies at and below the path, as a tar.
    pub async fn archive(&self, session: impl Into<Target>, path: &str) -> Result<Download, Error> {
        let url = format!("/api/sessions/{}/files/archive", session.into());
        self.download(self.request(Method::GET, &url).query(&[("path", path)])).await
    }

    async fn download(&self, request: RequestBuilder) -> Result<Download, Error> {
        let response = self.within(self.patience().answer, self.head(request)).await?;
        Ok(Download { client: self.clone(), response })
    }
}
