//! Secrets at rest: the master key, sealing and opening with it, and the hashes of API keys.
//!
//! The master key comes from the operator (the binary reads the environment) or from `master.key` in the data
//! folder, made on first start with mode 0600. Sealed bytes are bound to a purpose, so that a sealed session
//! cannot be passed off as a credential.

use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use std::{io, os::unix::fs::OpenOptionsExt, path::Path};

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;
/// The first byte of everything sealed, so that the method can change one day.
const SEAL_VERSION: u8 = 1;

#[derive(Debug, thiserror::Error)]
pub(crate) enum VaultError {
    #[error("the master key must be 64 hexadecimal digits")]
    BadKey,
    #[error("the master key file {path} cannot be used: {source}")]
    File { path: String, source: io::Error },
    #[error("the system gave no randomness: {0}")]
    Random(getrandom::Error),
    #[error(
        "a stored secret cannot be opened: it was sealed with another master key; put that key back as \
         master.key in the data folder, or in OUTLAST_MASTER_KEY"
    )]
    Sealed,
}

#[derive(Clone)]
pub(crate) struct Vault {
    cipher: XChaCha20Poly1305,
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Vault")
    }
}

impl Vault {
    /// From the operator's key, or else the data folder's own.
    pub(crate) fn open(data: &Path, given: Option<&str>) -> Result<Self, VaultError> {
        let key = match given {
            Some(text) => unhex(text.trim()).ok_or(VaultError::BadKey)?,
            None => key_file(&data.join("master.key"))?,
        };
        Ok(Self { cipher: XChaCha20Poly1305::new(&key.into()) })
    }

    pub(crate) fn seal(&self, purpose: &str, plain: &[u8]) -> Result<Vec<u8>, VaultError> {
        let nonce: [u8; NONCE_BYTES] = random()?;
        let body = self
            .cipher
            .encrypt(&XNonce::from(nonce), Payload { msg: plain, aad: purpose.as_bytes() })
            .map_err(|_| VaultError::Sealed)?;
        let mut sealed = Vec::with_capacity(1 + NONCE_BYTES + body.len());
        sealed.push(SEAL_VERSION);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(&body);
        Ok(sealed)
    }

    pub(crate) fn unseal(&self, purpose: &str, sealed: &[u8]) -> Result<Vec<u8>, VaultError> {
        let (version, rest) = sealed.split_first().ok_or(VaultError::Sealed)?;
        if *version != SEAL_VERSION {
            return Err(VaultError::Sealed);
        }
        let (nonce, body) = rest.split_first_chunk::<NONCE_BYTES>().ok_or(VaultError::Sealed)?;
        self.cipher
            .decrypt(&XNonce::from(*nonce), Payload { msg: body, aad: purpose.as_bytes() })
            .map_err(|_| VaultError::Sealed)
    }
}

/// A new API key: 256 random bits behind a prefix that secret scanners can know.
pub(crate) fn new_api_key() -> Result<String, VaultError> {
    let bytes: [u8; 32] = random()?;
    Ok(format!("olk_{}", hex(&bytes)))
}

/// A key has 256 random bits, so one fast hash is enough: there is nothing to guess.
pub(crate) fn hash_api_key(key: &str) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_derive_key("outlast api key v1");
    hasher.update(key.as_bytes());
    hasher.finalize()
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], VaultError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(VaultError::Random)?;
    Ok(bytes)
}

fn key_file(path: &Path) -> Result<[u8; KEY_BYTES], VaultError> {
    let fail = |source| VaultError::File { path: path.display().to_string(), source };
    match std::fs::read_to_string(path) {
        Ok(text) => unhex(text.trim()).ok_or(VaultError::BadKey),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let key: [u8; KEY_BYTES] = random()?;
            write_private(path, format!("{}\n", hex(&key)).as_bytes()).map_err(fail)?;
            Ok(key)
        }
        Err(error) => Err(fail(error)),
    }
}

/// Writes a new file that only its owner can read, and has it on disk before it returns.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    use io::Write as _;
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_all()?;
    if let Some(parent) = path.parent() {
        std::fs::File::open(parent)?.sync_all()?;
    }
    Ok(())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<[u8; KEY_BYTES]> {
    if text.len() != KEY_BYTES * 2 || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; KEY_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn sealed_bytes_open_only_with_their_key_and_purpose() {
        let dir = tempfile::tempdir().unwrap();
        let vault = Vault::open(dir.path(), None).unwrap();
        let sealed = vault.seal("credential", b"hunter2").unwrap();
        assert!(!sealed.windows(7).any(|window| window == b"hunter2"));
        assert_eq!(vault.unseal("credential", &sealed).unwrap(), b"hunter2");
        assert!(vault.unseal("session", &sealed).is_err(), "another purpose");
        let again = Vault::open(dir.path(), None).unwrap();
        assert_eq!(again.unseal("credential", &sealed).unwrap(), b"hunter2", "the key file is read again");
        let other = Vault::open(dir.path(), Some(&"ab".repeat(32))).unwrap();
        assert!(other.unseal("credential", &sealed).is_err(), "another key");
        for index in 0..sealed.len() {
            let mut bad = sealed.clone();
            bad[index] ^= 1;
            assert!(vault.unseal("credential", &bad).is_err(), "byte {index} changed");
        }
        assert!(vault.unseal("credential", &[]).is_err());
    }

    #[test]
    fn the_key_file_is_private_and_checked() {
        let dir = tempfile::tempdir().unwrap();
        Vault::open(dir.path(), None).unwrap();
        let mode = std::fs::metadata(dir.path().join("master.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for bad in ["", "zz", &"g".repeat(64), &"é".repeat(32)] {
            assert!(matches!(Vault::open(dir.path(), Some(bad)), Err(VaultError::BadKey)), "{bad:?}");
        }
    }
}
