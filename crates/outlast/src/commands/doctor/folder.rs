//! The data folder and what lies under it: who can read it, how much room there is, how fast the disk is.

use super::{Finding, Verdict};
use rustix::fs::{StatVfs, statfs, statvfs};
use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    time::{Duration, Instant},
};

/// Appends that are measured; the middle one counts.
const SYNCS: usize = 21;
const SYNC_BYTES: usize = 200;
/// Above this every durable event is felt.
const SLOW_SYNC: Duration = Duration::from_millis(20);
/// Below this the server refuses new work, and not far above it somebody should know.
const LITTLE_SPACE_BYTES: u64 = 1024 * 1024 * 1024;

/// What can be seen without a server. Blocking.
pub(super) fn machine(data: &Path) -> Vec<Finding> {
    let mut findings = vec![kernel(), folder(data)];
    // A folder that is not there yet is examined where it would be made.
    let Some(there) = data.ancestors().find(|path| path.is_dir()) else { return findings };
    findings.extend([space(there), file_system(there), sync_time(there)]);
    if data.is_dir() {
        findings.push(key_file(data));
    }
    findings
}

fn kernel() -> Finding {
    match fs::read_to_string("/proc/sys/kernel/osrelease") {
        Ok(release) => Finding::new("kernel", Verdict::Good, format!("Linux {}", release.trim())),
        Err(_) => Finding::new("kernel", Verdict::Warning, "cannot be told; Outlast is made for Linux"),
    }
}

fn folder(data: &Path) -> Finding {
    let subject = "data folder";
    let shown = data.display();
    let metadata = match fs::metadata(data) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let text = format!("{shown} is not there yet; `outlast serve` makes it");
            return Finding::new(subject, Verdict::Warning, text);
        }
        Err(error) => {
            return Finding::new(subject, Verdict::Fault, format!("{shown} cannot be read: {error}"));
        }
    };
    if !metadata.is_dir() {
        let text = format!("{shown} is not a folder; name another with --data");
        return Finding::new(subject, Verdict::Fault, text);
    }
    let mode = metadata.permissions().mode() & 0o777;
    let owner = rustix::process::getuid().as_raw();
    if metadata.uid() != owner && owner != 0 {
        let text = format!("{shown} belongs to user {}, not to you; run as that user", metadata.uid());
        return Finding::new(subject, Verdict::Warning, text);
    }
    if mode & 0o077 != 0 {
        let text = format!("{shown} is open to other users (mode {mode:o}); chmod 700 it");
        return Finding::new(subject, Verdict::Warning, text);
    }
    Finding::new(subject, Verdict::Good, format!("{shown} (mode {mode:o})"))
}

fn space(there: &Path) -> Finding {
    match statvfs(there) {
        Ok(stat) => of_space(&stat),
        Err(error) => Finding::new("free space", Verdict::Warning, format!("cannot be told: {error}")),
    }
}

fn of_space(stat: &StatVfs) -> Finding {
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let text = format!("{} MiB", free / (1024 * 1024));
    if free < LITTLE_SPACE_BYTES {
        let text = format!("{text}; make room: new work is refused when it runs out");
        return Finding::new("free space", Verdict::Warning, text);
    }
    Finding::new("free space", Verdict::Good, text)
}

fn file_system(there: &Path) -> Finding {
    let subject = "file system";
    match statfs(there) {
        Ok(stat) => match file_system_name(stat.f_type) {
            (name, Keeps::Local) => Finding::new(subject, Verdict::Good, name),
            (name, Keeps::Nothing) => Finding::new(
                subject,
                Verdict::Warning,
                format!(
                    "{name}: nothing on it survives a restart of the machine; name another folder with --data"
                ),
            ),
            (name, Keeps::Elsewhere) => Finding::new(
                subject,
                Verdict::Fault,
                format!("{name}: a database on a network file system gets damaged; use a local disk"),
            ),
        },
        Err(error) => Finding::new(subject, Verdict::Warning, format!("cannot be told: {error}")),
    }
}

/// Where a file system keeps things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeps {
    Local,
    Nothing,
    Elsewhere,
}

/// The magic numbers of statfs(2).
fn file_system_name(magic: i64) -> (String, Keeps) {
    let (name, keeps) = match magic {
        0xef53 => ("ext4", Keeps::Local),
        0x5846_5342 => ("xfs", Keeps::Local),
        0x9123_683e => ("btrfs", Keeps::Local),
        0x2fc1_2fc1 => ("zfs", Keeps::Local),
        0xf2f5_2010 => ("f2fs", Keeps::Local),
        0x794c_7630 => ("overlay", Keeps::Local),
        0x6573_5546 => ("fuse", Keeps::Local),
        0x0102_1994 => ("tmpfs", Keeps::Nothing),
        0x8584_58f6 => ("ramfs", Keeps::Nothing),
        0x6969 => ("nfs", Keeps::Elsewhere),
        0xfe53_4d42 | 0xff53_4d42 => ("smb", Keeps::Elsewhere),
        0x0102_1997 => ("9p", Keeps::Elsewhere),
        other => return (format!("unknown ({other:#x})"), Keeps::Local),
    };
    (name.to_owned(), keeps)
}

/// How long a small append takes until it is on disk.
fn sync_time(there: &Path) -> Finding {
    let subject = "disk sync";
    match measure(there) {
        Ok(time) => {
            let text =
                format!("{:.2} ms for {SYNC_BYTES} bytes (median of {SYNCS})", time.as_secs_f64() * 1e3);
            if time > SLOW_SYNC {
                let text = format!("{text}; every event waits for one, so a faster disk will be felt");
                return Finding::new(subject, Verdict::Warning, text);
            }
            Finding::new(subject, Verdict::Good, text)
        }
        Err(error) => Finding::new(
            subject,
            Verdict::Fault,
            format!("{} cannot be written to: {error}; check who owns it", there.display()),
        ),
    }
}

fn measure(there: &Path) -> io::Result<Duration> {
    let mut file = tempfile::tempfile_in(there)?;
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let begin = Instant::now();
        file.write_all(&[b'x'; SYNC_BYTES])?;
        file.sync_data()?;
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    Ok(times[SYNCS / 2])
}

fn key_file(data: &Path) -> Finding {
    let subject = "first key";
    let path = data.join("api-key");
    match fs::metadata(&path) {
        Ok(metadata) => {
            let mode = metadata.permissions().mode() & 0o777;
            if mode & 0o077 == 0 {
                return Finding::new(subject, Verdict::Good, format!("{} (mode {mode:o})", path.display()));
            }
            let text = format!("{} can be read by others (mode {mode:o}); chmod 600 it", path.display());
            Finding::new(subject, Verdict::Fault, text)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let text = "not in the data folder; it is made when a server first starts";
            Finding::new(subject, Verdict::Warning, text)
        }
        Err(error) => {
            Finding::new(subject, Verdict::Fault, format!("{} cannot be read: {error}", path.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(data: &Path) -> Vec<(&'static str, Verdict)> {
        machine(data).into_iter().map(|finding| (finding.subject, finding.verdict)).collect()
    }

    #[test]
    fn a_private_folder_with_a_private_key_is_good() {
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("api-key"), "k").unwrap();
        fs::set_permissions(data.path().join("api-key"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(data.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let seen = verdicts(data.path());
        assert!(seen.contains(&("data folder", Verdict::Good)), "{seen:?}");
        assert!(seen.contains(&("first key", Verdict::Good)), "{seen:?}");
        assert_eq!(fs::read_dir(data.path()).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn what_others_can_read_is_named() {
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("api-key"), "k").unwrap();
        fs::set_permissions(data.path().join("api-key"), fs::Permissions::from_mode(0o644)).unwrap();
        fs::set_permissions(data.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let seen = verdicts(data.path());
        assert!(seen.contains(&("data folder", Verdict::Warning)), "{seen:?}");
        assert!(seen.contains(&("first key", Verdict::Fault)), "{seen:?}");
    }

    #[test]
    fn a_folder_that_is_not_there_is_no_fault() {
        let data = tempfile::tempdir().unwrap();
        let seen = verdicts(&data.path().join("a/b"));
        assert!(seen.contains(&("data folder", Verdict::Warning)), "{seen:?}");
        assert!(seen.iter().all(|(_, verdict)| *verdict != Verdict::Fault), "{seen:?}");
    }

    #[test]
    fn file_systems_are_told_apart() {
        assert_eq!(file_system_name(0xef53), ("ext4".into(), Keeps::Local));
        assert_eq!(file_system_name(0x6969).1, Keeps::Elsewhere);
        assert_eq!(file_system_name(0x0102_1994).1, Keeps::Nothing);
        assert_eq!(file_system_name(1).0, "unknown (0x1)");
    }
}
