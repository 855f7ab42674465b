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

/// Between two questions whether there is still room.
const ROOM_BYTES: u64 = 8 * 1024 * 1024;

/// A file that is removed with this value, also when the request's future is dropped half-way.
#[derive(Debug)]
pub(crate) struct Upload(PathBuf);

impl Upload {
    /// Writes the whole body below `folder`; `room` is asked now and then whether the disk takes more.
    pub(crate) async fn receive(
        folder: &Path,
        body: Body,
        limit: u64,
        room: impl Fn() -> Result<(), Fault>,
    ) -> Result<Self, Refusal> {
        let upload = Self(folder.join(format!("{}.part", Uuid::now_v7())));
        let mut file = tokio::fs::File::create_new(&upload.0).await.map_err(|error| broken(&error))?;
        let mut body = body;
        let (mut received, mut asked): (u64, u64) = (0, 0);
        while let Some(frame) = body.frame().await {
            let frame =
                frame.map_err(|error| Refusal(Fault::invalid(format!("the body broke off: {error}"))))?;
            let Ok(bytes) = frame.into_data() else { continue };
            received += bytes.len() as u64;
            if received > limit {
                return Err(intake::too_large(usize::try_from(limit).unwrap_or(usize::MAX)));
            }
            if received - asked >= ROOM_BYTES {
                room()?;
                asked = received;
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
        let upload = Upload::receive(folder.path(), Body::from("archive"), 7, || Ok(())).await.unwrap();
        assert_eq!(std::fs::read(upload.path()).unwrap(), b"archive");
        drop(upload);
        let refusal = Upload::receive(folder.path(), Body::from("archive!"), 7, || Ok(())).await.unwrap_err();
        assert_eq!(refusal.0.code, Code::PayloadTooLarge);
        let large = Body::from(vec![0; 9 * 1024 * 1024]);
        let full = || Err(Fault::new(Code::StorageFull, "full"));
        let refusal = Upload::receive(folder.path(), large, u64::MAX, full).await.unwrap_err();
        assert_eq!(refusal.0.code, Code::StorageFull);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
    }
}
