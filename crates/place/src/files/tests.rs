//! File access against a folder that someone inside is using to get out.

use super::*;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
    },
    sync::atomic::AtomicBool,
};

struct Room {
    room: tempfile::TempDir,
}

impl Room {
    fn new() -> Self {
        let room = tempfile::tempdir().unwrap();
        for folder in ["work/sub/deeper", "outside"] {
            fs::create_dir_all(room.path().join(folder)).unwrap();
        }
        fs::write(room.path().join("outside/secret"), "SECRET").unwrap();
        fs::write(room.path().join("work/sub/file"), "0123456789").unwrap();
        Self { room }
    }

    fn work(&self) -> PathBuf {
        self.room.path().join("work")
    }

    fn outside(&self) -> PathBuf {
        self.room.path().join("outside")
    }

    /// With each way of resolving paths.
    fn both(&self) -> [Files; 2] {
        let files = Files::open(&self.work()).unwrap();
        assert_eq!(files.resolver, Resolver::Kernel, "this kernel has openat2");
        let mut by_names = Files::open(&self.work()).unwrap();
        by_names.resolver = Resolver::Names;
        [files, by_names]
    }
}

fn path(text: &str) -> &Path {
    Path::new(text)
}

fn put(files: &Files, at: &str, content: &str) -> Result<u64, FilesError> {
    files.write(path(at), &mut content.as_bytes(), None, Parents::Need)
}

#[test]
fn files_are_listed_read_written_and_removed() {
    let room = Room::new();
    for files in room.both() {
        assert_eq!(files.read(path("sub/file"), 2..5).unwrap(), b"234");
        assert_eq!(files.read(path("sub/file"), 8..100).unwrap(), b"89");
        assert_eq!(files.read(path("sub/file"), 50..100).unwrap(), b"");
        files.write(path("new/folder/file"), &mut &b"x"[..], Some(0o4755), Parents::Make).unwrap();
        let entry = files.look(path("new/folder/file")).unwrap();
        assert_eq!((entry.kind, entry.mode, entry.size), (FileKind::File, 0o755, 1));
        // A file that is replaced keeps its mode.
        put(&files, "new/folder/file", "longer").unwrap();
        assert_eq!(files.look(path("new/folder/file")).unwrap().mode, 0o755);
        files.mkdir(path("new/empty"), Parents::Need).unwrap();
        let again = files.mkdir(path("new/empty"), Parents::Need);
        assert!(matches!(again, Err(FilesError::Exists(_))), "{again:?}");
        let names: Vec<_> =
            files.list(path("new"), None, 10).unwrap().entries.into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, ["empty", "folder"]);
        let full = files.remove(path("new"), Remove::Alone);
        assert!(matches!(full, Err(FilesError::NotEmpty(_))), "{full:?}");
        files.remove(path("new/empty"), Remove::Alone).unwrap();
        files.remove(path("new"), Remove::WithContents).unwrap();
        assert!(matches!(files.look(path("new")), Err(FilesError::NotFound(_))));
        assert_eq!(files.look(path("")).unwrap().kind, FileKind::Folder);
    }
}

#[test]
fn a_file_from_outside_is_taken_in() {
    let room = Room::new();
    // Memory has a file system of its own, so that this one cannot be moved.
    let elsewhere = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    for files in room.both() {
        for from in [room.outside().join("upload"), elsewhere.path().to_owned()] {
            fs::write(&from, "content").unwrap();
            let taken = files.adopt(path("new/file"), &from, Some(0o640), Parents::Make).unwrap();
            assert_eq!(taken, 7);
            let entry = files.look(path("new/file")).unwrap();
            assert_eq!((entry.size, entry.mode), (7, 0o640));
            let names = files.list(path("new"), None, 10).unwrap().entries;
            assert_eq!(names.len(), 1, "no draft is left");
            fs::write(&from, "content").unwrap();
            let refused = files.adopt(path("sub"), &from, None, Parents::Make);
            assert!(matches!(refused, Err(FilesError::NotFile(_))), "{refused:?}");
            symlink(room.outside(), room.work().join("out")).unwrap();
            let refused = files.adopt(path("out/file"), &from, None, Parents::Make);
            assert!(refused.is_err() && !room.outside().join("file").exists());
            fs::remove_file(room.work().join("out")).unwrap();
        }
    }
}

#[test]
fn a_folder_is_listed_page_by_page_in_byte_order() {
    let room = Room::new();
    let names: Vec<OsString> = [&b"A"[..], b"\xffodd", b"b.txt", b"b", b"sub-"]
        .map(|name| OsStr::from_bytes(name).to_owned())
        .into();
    for name in &names {
        fs::write(room.work().join(name), "").unwrap();
    }
    let mut sorted = [names, vec!["sub".into()]].concat();
    sorted.sort();
    for files in room.both() {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = files.list(path(""), after.as_deref(), 2).unwrap();
            assert!(page.entries.len() <= 2);
            seen.extend(page.entries.into_iter().map(|entry| entry.name));
            match page.more {
                More::After(name) => after = Some(name),
                More::No => break,
            }
        }
        assert_eq!(seen, sorted);
        let nothing = files.list(path(""), Some(OsStr::from_bytes(b"\xff\xff")), 2).unwrap();
        assert_eq!(nothing, Page { entries: vec![], more: More::No });
    }
}

#[test]
fn bad_paths_and_wrong_kinds_are_typed() {
    let room = Room::new();
    rustix::fs::mknodat(CWD, room.work().join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
        .unwrap();
    for files in room.both() {
        for bad in ["..", "/etc/passwd", "sub/../../outside/secret", "sub/\0", &"x/".repeat(4000)] {
            for error in [
                files.read(path(bad), 0..1).err(),
                files.list(path(bad), None, 1).err(),
                put(&files, bad, "x").err(),
                files.remove(path(bad), Remove::WithContents).err(),
                files.mkdir(path(bad), Parents::Make).err(),
                files.tar(path(bad), &mut Vec::new()).err(),
            ] {
                assert!(matches!(error, Some(FilesError::BadPath(_))), "{bad:?}: {error:?}");
            }
        }
        // The folder itself is neither a file nor to be removed.
        assert!(matches!(files.read(path(""), 0..1), Err(FilesError::NotFile(_))));
        assert!(matches!(files.remove(path("."), Remove::WithContents), Err(FilesError::BadPath(_))));
        assert!(matches!(files.read(path("sub"), 0..1), Err(FilesError::NotFile(_))));
        assert!(matches!(files.read(path("pipe"), 0..1), Err(FilesError::NotFile(_))));
        assert!(matches!(files.read(path("nothing"), 0..1), Err(FilesError::NotFound(_))));
        assert!(matches!(files.read(path("sub/file/x"), 0..1), Err(FilesError::NotFolder(_))));
        assert!(matches!(files.list(path("sub/file"), None, 1), Err(FilesError::NotFolder(_))));
        assert!(matches!(put(&files, "sub", "x"), Err(FilesError::NotFile(_))));
        assert!(matches!(put(&files, &"n".repeat(300), "x"), Err(FilesError::BadPath(_))));
    }
}

#[test]
fn links_are_told_and_never_lead_out() {
    let room = Room::new();
    let work = room.work();
    symlink(room.outside().join("secret"), work.join("absolute")).unwrap();
    symlink("../outside/secret", work.join("relative")).unwrap();
    symlink("../outside", work.join("folder")).unwrap();
    symlink(["/proc/self", "root", "etc/passwd"].join("/"), work.join("magic")).unwrap();
    symlink("loop", work.join("loop")).unwrap();
    symlink("sub/file", work.join("inside")).unwrap();
    for files in room.both() {
        for at in ["absolute", "relative", "folder/secret", "magic", "loop"] {
            let refused = files.read(path(at), 0..100);
            assert!(
                matches!(refused, Err(FilesError::Link(_) | FilesError::NotFolder(_))),
                "{at}: {refused:?}"
            );
        }
        let listed: BTreeMap<_, _> = files
            .list(path(""), None, 100)
            .unwrap()
            .entries
            .into_iter()
            .map(|entry| (entry.name, entry.kind))
            .collect();
        assert_eq!(listed[OsStr::new("relative")], FileKind::Link("../outside/secret".into()));
        assert!(files.list(path("folder"), None, 100).is_err());
        assert!(put(&files, "folder/new", "x").is_err());
        assert!(files.mkdir(path("folder/new"), Parents::Make).is_err());
        assert!(files.remove(path("folder/secret"), Remove::Alone).is_err());
        let mut archive = Vec::new();
        files.tar(path(""), &mut archive).unwrap();
        assert!(!archive.windows(6).any(|window| window == b"SECRET"));
        assert!(files.tar(path("folder/secret"), &mut archive).is_err());
        // Writing replaces the link itself, and removing removes it.
        put(&files, "relative", "mine").unwrap();
        assert_eq!(fs::read(work.join("relative")).unwrap(), b"mine");
        fs::remove_file(work.join("relative")).unwrap();
        symlink("../outside/secret", work.join("relative")).unwrap();
    }
    let [files, by_names] = room.both();
    assert_eq!(files.read(path("inside"), 0..3).unwrap(), b"012");
    assert!(matches!(by_names.read(path("inside"), 0..3), Err(FilesError::Link(_))));
    files.remove(path("folder"), Remove::WithContents).unwrap();
    assert_eq!(fs::read(room.outside().join("secret")).unwrap(), b"SECRET");
    assert_eq!(fs::read_dir(room.outside()).unwrap().count(), 1);
}

/// While a folder is swapped for a link to outside and back, over and over, nothing outside is read, written or
/// removed.
#[test]
fn swapping_a_folder_for_a_link_does_not_get_out() {
    let room = Room::new();
    let (work, outside) = (room.work(), room.outside());
    fs::create_dir(outside.join("deeper")).unwrap();
    fs::write(outside.join("file"), "SECRET").unwrap();
    fs::write(outside.join("deeper/file"), "SECRET").unwrap();
    symlink(&outside, work.join("trap")).unwrap();
    let stop = AtomicBool::new(false);
    let mut seen = (0u32, 0u32);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let folder = File::open(&work).unwrap();
            while !stop.load(Ordering::Relaxed) {
                // In one step, so that there is always one or the other.
                let _ = rustix::fs::renameat_with(
                    &folder,
                    "sub",
                    &folder,
                    "trap",
                    rustix::fs::RenameFlags::EXCHANGE,
                );
            }
        });
        for round in 0..3_000 {
            for files in room.both() {
                match files.read(path("sub/file"), 0..100) {
                    Ok(bytes) => {
                        assert_ne!(bytes, b"SECRET");
                        seen.0 += 1;
                    }
                    Err(FilesError::Link(_) | FilesError::NotFolder(_)) => seen.1 += 1,
                    Err(other) => panic!("{other}"),
                }
                let _ = put(&files, "sub/planted", "x");
                let _ = files.mkdir(path("sub/made/below"), Parents::Make);
                let _ = files.remove(path("sub/deeper"), Remove::WithContents);
                let _ = files.mkdir(path("sub/deeper"), Parents::Make);
                let _ = put(&files, "sub/deeper/file", "inside");
                if round % 50 == 0 {
                    let mut archive = Vec::new();
                    let _ = files.tar(path(""), &mut archive);
                    assert!(!archive.windows(6).any(|window| window == b"SECRET"));
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(seen.0 > 0 && seen.1 > 0, "the swap was never met: {seen:?}");
    let mut left: Vec<_> = fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["deeper", "file", "secret"]);
    assert_eq!(fs::read(outside.join("deeper/file")).unwrap(), b"SECRET");
}

#[test]
fn names_that_are_not_text_go_through_the_doors() {
    let room = Room::new();
    let name = Path::new(OsStr::from_bytes(b"sub/\xff\xfe name%"));
    for files in room.both() {
        let text = encode_path(name);
        assert_eq!(text, "sub/%FF%FE name%25");
        let back = decode_path(&text).unwrap();
        files.write(&back, &mut &b"odd"[..], None, Parents::Need).unwrap();
        assert_eq!(fs::read(room.work().join(name)).unwrap(), b"odd");
        let listed = files.list(path("sub"), None, 10).unwrap().entries;
        assert!(listed.iter().any(|entry| entry.name.as_bytes() == b"\xff\xfe name%"));
        files.remove(&back, Remove::Alone).unwrap();
    }
}

#[test]
fn a_failed_write_leaves_the_old_file_and_nothing_beside() {
    struct Breaks;
    impl Read for Breaks {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("the upload broke off"))
        }
    }
    let room = Room::new();
    for files in room.both() {
        let mut upload = (&b"half"[..]).chain(Breaks);
        let failed = files.write(path("sub/file"), &mut upload, None, Parents::Need);
        assert!(matches!(failed, Err(FilesError::Io { .. })), "{failed:?}");
        assert_eq!(fs::read(room.work().join("sub/file")).unwrap(), b"0123456789");
        assert_eq!(fs::read_dir(room.work().join("sub")).unwrap().count(), 2);
    }
}

#[test]
fn what_is_written_from_outside_belongs_to_those_inside() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let room = Room::new();
    std::os::unix::fs::chown(room.work(), Some(4711), Some(4712)).unwrap();
    let [files, _] = room.both();
    files.write(path("made/file"), &mut &b"x"[..], None, Parents::Make).unwrap();
    for at in ["made", "made/file"] {
        let metadata = fs::metadata(room.work().join(at)).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (4711, 4712), "{at}");
    }
}

#[test]
fn a_folder_that_nobody_may_enter_can_be_removed() {
    let room = Room::new();
    let closed = room.work().join("sub/deeper");
    fs::create_dir(closed.join("below")).unwrap();
    for folder in [closed.join("below"), closed] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o000)).unwrap();
    }
    let [files, _] = room.both();
    files.remove(path("sub"), Remove::WithContents).unwrap();
    assert!(!room.work().join("sub").exists());
}

/// Reads an archive back with the reader that the rest of the project uses for uploads.
#[test]
fn an_archive_holds_what_is_there() {
    let room = Room::new();
    let work = room.work();
    let long = "long ".repeat(40);
    fs::create_dir_all(work.join("sub").join(&long)).unwrap();
    fs::write(work.join("sub").join(&long).join("file"), vec![7u8; 1000]).unwrap();
    symlink(format!("{long}/nowhere"), work.join("sub/link")).unwrap();
    fs::hard_link(work.join("sub/file"), work.join("sub/zz")).unwrap();
    fs::write(work.join(OsStr::from_bytes(b"sub/\xff")), "odd").unwrap();
    fs::set_permissions(work.join("sub/file"), fs::Permissions::from_mode(0o751)).unwrap();
    let [files, _] = room.both();
    let mut bytes = Vec::new();
    files.tar(path("sub"), &mut bytes).unwrap();
    let mut found = BTreeMap::new();
    for entry in ::tar::Archive::new(&bytes[..]).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        let target = entry.link_name_bytes().map(|name| name.into_owned());
        let header = entry.header();
        let about = (header.entry_type(), header.mode().unwrap(), content, target);
        found.insert(entry.path_bytes().into_owned(), about);
    }
    let names: Vec<_> = found.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    assert_eq!(names.len(), 8, "{names:?}");
    let file = &found[&b"sub/file"[..]];
    assert_eq!((file.1, &file.2[..]), (0o751, &b"0123456789"[..]));
    assert_eq!(found[&b"sub/zz"[..]].3.as_deref(), Some(&b"sub/file"[..]));
    assert_eq!(found[&b"sub/\xff"[..]].2, b"odd");
    assert_eq!(found[&b"sub/link"[..]].3.as_deref(), Some(format!("{long}/nowhere").as_bytes()));
    assert_eq!(found[format!("sub/{long}/file").as_bytes()].2, vec![7u8; 1000]);
    assert_eq!(found[&b"sub/deeper/"[..]].0, ::tar::EntryType::Directory);
}
