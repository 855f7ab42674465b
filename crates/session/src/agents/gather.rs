//! Gathering one agent version in a staging folder: from files in a request, a tar, or a folder on this
//! machine. Every path is relative and plain, every link stays inside, every count and size is bounded; the
//! first thing that is not so refuses the whole deployment.

use crate::spec::internal;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use protocol::{Code, DeployFile, Fault, FileEncoding, limits};
use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Component, Path, PathBuf},
};

/// Above a version: the agent's name, its tenant, `agents`, the data folder.
const FOLDERS_ABOVE: usize = 4;

/// What is kept of a file's mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Plain,
    Executable,
}

impl Mode {
    const fn bits(self) -> u32 {
        match self {
            Self::Plain => 0o644,
            Self::Executable => 0o755,
        }
    }

    const fn of(bits: u32) -> Self {
        if bits & 0o111 == 0 { Self::Plain } else { Self::Executable }
    }
}

/// A folder that becomes an agent version, or nothing.
#[derive(Debug)]
pub(super) struct Staging {
    folder: PathBuf,
    files: usize,
    bytes: u64,
    pub(super) digest: [u8; 32],
}

impl Staging {
    pub(super) fn new(root: &Path) -> Result<Self, Fault> {
        // A dot is no name's first character, so no tenant can be called this.
        let folder = root.join(".staging").join(uuid::Uuid::now_v7().to_string());
        fs::create_dir_all(&folder).map_err(internal)?;
        Ok(Self { folder, files: 0, bytes: 0, digest: [0; 32] })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn add_file(&mut self, file: &DeployFile) -> Result<(), Fault> {
        let decoded;
        let content = match file.encoding {
            FileEncoding::Utf8 => file.content.as_bytes(),
            FileEncoding::Base64 => {
                decoded = STANDARD
                    .decode(&file.content)
                    .map_err(|error| Fault::invalid(format!("{:?} is not base64: {error}", file.path)))?;
                &decoded
            }
        };
        let mode = if file.executable { Mode::Executable } else { Mode::Plain };
        self.write(&file.path, content, mode)
    }

    pub(super) fn write(&mut self, path: &str, content: &[u8], mode: Mode) -> Result<(), Fault> {
        self.write_from(Path::new(path), content, mode)
    }

    /// A later file of the same path replaces the earlier one; a link never takes its place.
    fn write_from(&mut self, path: &Path, mut content: impl io::Read, mode: Mode) -> Result<(), Fault> {
        let target = self.place(path)?;
        self.count()?;
        match fs::remove_file(&target) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unusable(path, &error)),
            Ok(()) | Err(_) => {}
        }
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode.bits())
            .open(&target)
            .map_err(|error| unusable(path, &error))?;
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = content.read(&mut buffer).map_err(|error| unusable(path, &error))?;
            if read == 0 {
                break;
            }
            self.bytes += read as u64;
            if self.bytes > limits::AGENT_BYTES {
                return Err(too_large(format!("the agent's files are over {} bytes", limits::AGENT_BYTES)));
            }
            file.write_all(&buffer[..read]).map_err(internal)?;
        }
        file.set_permissions(fs::Permissions::from_mode(mode.bits())).map_err(internal)
    }

    /// Files, folders and links that stay inside; anything else in the archive refuses it.
    pub(super) fn unpack(&mut self, archive: &Path) -> Result<(), Fault> {
        let mut tar = tar::Archive::new(fs::File::open(archive).map_err(internal)?);
        let broken = |error: io::Error| Fault::invalid(format!("the archive is not a readable tar: {error}"));
        for entry in tar.entries().map_err(broken)? {
            let mut entry = entry.map_err(broken)?;
            let path = entry.path().map_err(broken)?.into_owned();
            if path.as_os_str().is_empty() || path == Path::new(".") || path == Path::new("./") {
                continue;
            }
            let kind = entry.header().entry_type();
            if kind.is_dir() {
                let folder = self.place(&path)?;
                self.count()?;
                fs::create_dir_all(folder).map_err(|error| unusable(&path, &error))?;
            } else if kind.is_file() {
                let mode = Mode::of(entry.header().mode().map_err(broken)?);
                self.write_from(&path, &mut entry, mode)?;
            } else if kind.is_symlink() {
                let target = entry.link_name().map_err(broken)?.unwrap_or_default().into_owned();
                self.link(&path, &target)?;
            } else if matches!(kind, tar::EntryType::XGlobalHeader) {
                // Git writes one with the commit's id; it is no file.
            } else {
                return Err(Fault::invalid(format!(
                    "{}: only files, folders and symbolic links can be deployed, not {kind:?}",
                    path.display()
                )));
            }
        }
        Ok(())
    }

    /// Copies a folder of this machine. Links are copied as links and must stay inside.
    pub(super) fn copy_folder(&mut self, from: &Path) -> Result<(), Fault> {
        if !from.is_absolute() {
            return Err(Fault::invalid("path must be absolute: the server's working folder is not yours"));
        }
        if !from.is_dir() {
            return Err(Fault::invalid(format!("{} is not a folder on the server", from.display())));
        }
        let mut open = vec![PathBuf::new()];
        while let Some(relative) = open.pop() {
            for entry in fs::read_dir(from.join(&relative)).map_err(|error| unusable(&relative, &error))? {
                let entry = entry.map_err(|error| unusable(&relative, &error))?;
                let path = relative.join(entry.file_name());
                let kind = entry.file_type().map_err(|error| unusable(&path, &error))?;
                if kind.is_dir() {
                    self.count()?;
                    fs::create_dir_all(self.place(&path)?).map_err(|error| unusable(&path, &error))?;
                    open.push(path);
                } else if kind.is_symlink() {
                    let target = fs::read_link(entry.path()).map_err(|error| unusable(&path, &error))?;
                    self.link(&path, &target)?;
                } else if kind.is_file() {
                    let file = fs::OpenOptions::new()
                        .read(true)
                        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
                        .open(entry.path())
                        .map_err(|error| unusable(&path, &error))?;
                    let mode = Mode::of(file.metadata().map_err(|error| unusable(&path, &error))?.mode());
                    self.write_from(&path, file, mode)?;
                }
                // Sockets, pipes and devices are nothing that could be deployed.
            }
        }
        Ok(())
    }

    /// Hashes what is there and has it on disk.
    pub(super) fn finish(&mut self) -> Result<(), Fault> {
        let mut paths = Vec::new();
        walk(&self.folder, &mut PathBuf::new(), &mut paths).map_err(internal)?;
        paths.sort();
        let mut hasher = blake3::Hasher::new_derive_key("outlast agent folder v1");
        let mut field = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        for path in &paths {
            let full = self.folder.join(path);
            let metadata = fs::symlink_metadata(&full).map_err(internal)?;
            field(path.as_os_str().as_encoded_bytes());
            if metadata.is_symlink() {
                field(b"link");
                field(fs::read_link(&full).map_err(internal)?.as_os_str().as_encoded_bytes());
            } else if metadata.is_dir() {
                field(b"folder");
                fs::File::open(&full).and_then(|folder| folder.sync_all()).map_err(internal)?;
            } else {
                field(&metadata.mode().to_le_bytes());
                let mut file = fs::File::open(&full).map_err(internal)?;
                let mut content = blake3::Hasher::new();
                io::copy(&mut file, &mut content).map_err(internal)?;
                field(content.finalize().as_bytes());
                file.sync_all().map_err(internal)?;
            }
        }
        self.digest = *hasher.finalize().as_bytes();
        Ok(())
    }

    /// Gives the folder its final name.
    pub(super) fn settle(self, target: &Path) -> io::Result<()> {
        let parent = target.parent().ok_or(io::ErrorKind::InvalidInput)?;
        fs::create_dir_all(parent)?;
        // A crash between the rename and the row leaves a folder that no row names.
        match fs::remove_dir_all(target) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        fs::rename(&self.folder, target)?;
        fs::File::open(target)?.sync_all()?;
        // The folders above may be as new as it is; a name is on disk once its own folder is.
        for folder in parent.ancestors().take(FOLDERS_ABOVE) {
            fs::File::open(folder)?.sync_all()?;
        }
        Ok(())
    }

    fn link(&mut self, path: &Path, target: &Path) -> Result<(), Fault> {
        let escapes =
            || Fault::invalid(format!("{}: the link points outside the agent's folder", path.display()));
        if target.is_absolute() {
            return Err(escapes());
        }
        let mut depth = i64::try_from(path.components().count()).unwrap_or(0) - 1;
        for component in target.components() {
            match component {
                Component::Normal(_) => depth += 1,
                Component::ParentDir => depth -= 1,
                Component::CurDir => {}
                Component::RootDir | Component::Prefix(_) => return Err(escapes()),
            }
            if depth < 0 {
                return Err(escapes());
            }
        }
        let place = self.place(path)?;
        self.count()?;
        match fs::remove_file(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unusable(path, &error)),
            Ok(()) | Err(_) => {}
        }
        std::os::unix::fs::symlink(target, place).map_err(|error| unusable(path, &error))
    }

    /// The path below the folder, its parents made. A parent that is a link is refused, so that nothing is
    /// ever written through one.
    fn place(&self, path: &Path) -> Result<PathBuf, Fault> {
        let refuse =
            |why: &str| Fault::invalid(format!("{:?} cannot be deployed: {why}", path.display().to_string()));
        let mut full = self.folder.clone();
        let mut names = Vec::new();
        for component in path.components() {
            match component {
                Component::Normal(name) => names.push(name),
                Component::CurDir => {}
                Component::ParentDir => return Err(refuse("it holds ..")),
                Component::RootDir | Component::Prefix(_) => return Err(refuse("it is not relative")),
            }
        }
        let Some((last, parents)) = names.split_last() else { return Err(refuse("it is empty")) };
        if path.as_os_str().as_encoded_bytes().contains(&0) {
            return Err(refuse("it holds a NUL byte"));
        }
        for name in parents {
            full.push(name);
            match fs::symlink_metadata(&full) {
                Ok(metadata) if metadata.is_dir() => {}
                Ok(_) => return Err(refuse("something else has a parent's name")),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    fs::create_dir(&full).map_err(|error| unusable(path, &error))?;
                }
                Err(error) => return Err(unusable(path, &error)),
            }
        }
        full.push(last);
        Ok(full)
    }

    fn count(&mut self) -> Result<(), Fault> {
        self.files += 1;
        if self.files > limits::AGENT_FILES {
            return Err(too_large(format!("the agent has over {} files", limits::AGENT_FILES)));
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Gone already when it was given its name.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn walk(root: &Path, relative: &mut PathBuf, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(&*relative))? {
        let entry = entry?;
        relative.push(entry.file_name());
        paths.push(relative.clone());
        if entry.file_type()?.is_dir() {
            walk(root, relative, paths)?;
        }
        relative.pop();
    }
    Ok(())
}

fn unusable(path: &Path, error: &io::Error) -> Fault {
    Fault::invalid(format!("{:?} cannot be deployed: {error}", path.display().to_string()))
}

fn too_large(message: String) -> Fault {
    Fault::new(Code::PayloadTooLarge, message)
}
