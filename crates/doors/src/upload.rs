//! An archive or file on its way in: written to a file of its own, bounded, and gone again when the call is over.

use crate::{fault::Refusal, intake};
use axum::body::Body;
use http_body_util::BodyExt;
use protocol::{Code, Fault};
use std::{
    io,
    path::{Path, PathBuf},
};
use tokio::io::AsyncWriteExt;
use uuid::Uuid;

/// A file that is removed with this value, also when the request's future is dropped half-way.
#[derive(Debug)]
pub(crate) struct Upload(PathBuf);

impl Upload {
    /// Writes the whole body below `folder`.
    pub(crate) async fn receive(folder: &Path, body: Body, limit: u64) -> Result<Self, Refusal> {
        let upload = Self(folder.join(format!("{}.part", Uuid::now_v7())));
        let mut file = tokio::fs::File::create_new(&upload.0).await.map_err(|error| broken(&error))?;
        let mut body = body;
        let mut received: u64 = 0;
        while let Some(frame) = body.frame().await {
            let frame =
                frame.map_err(|error| Refusal(Fault::invalid(format!("the body broke off: {error}"))))?;
            let Ok(bytes) = frame.into_data() else { continue };
            received += bytes.len() as u64;
            if received > limit {
                return Err(intake::too_large(usize::try_from(limit).unwrap_or(usize::MAX)));
            }
            file.write_all(&bytes).await.map_err(|error| broken(&error))?;
        }
        file.flush().await.map_err(|error| broken(&error))?;
        Ok(upload)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // The name was made by us; a file that is already gone, or was never made, is what we want.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn broken(error: &io::Error) -> Refusal {
    if error.kind() == io::ErrorKind::StorageFull {
        return Refusal(Fault::new(Code::StorageFull, "the disk has no room for the upload"));
    }
    tracing::error!(%error, "an upload could not be stored");
    Refusal(Fault::new(Code::Internal, "the upload could not be stored; the log has the reason"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_archive_is_whole_bounded_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let upload = Upload::receive(folder.path(), Body::from("archive"), 7).await.unwrap();
        assert_eq!(std::fs::read(upload.path()).unwrap(), b"archive");
        drop(upload);
        let refusal = Upload::receive(folder.path(), Body::from("archive!"), 7).await.unwrap_err();
        assert_eq!(refusal.0.code, Code::PayloadTooLarge);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
    }
}
