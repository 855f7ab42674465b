//! A project: one folder of this machine that a session works in, and what of the rest it may see.
//!
//! [`Project::find`] looks at the machine and refuses what is no project: the root, the system's own folders, the
//! server's data folder, and a home that nobody named as such. Who runs there follows from who owns the folder.

use crate::{Owner, keeper::View, terms::bytes};
use ::keeper::config::{self, HostUser};
use std::{
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// Never a project, and nothing below them either.
const SYSTEM: [&str; 11] =
    ["/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin", "/sys"];
/// Never a project by themselves.
const SHARED: [&str; 8] = ["/", "/home", "/opt", "/run", "/srv", "/tmp", "/usr", "/var"];
/// Hidden wherever they are: homes, and the sockets of services where `/run` is not.
const HIDDEN: [&str; 3] = ["/root", "/home", "/var/run"];
/// Homes where the user's own cannot be used.
const HOMES: [&str; 2] = [crate::HOME_INSIDE, "/run/home"];
/// From here on users are people.
const FIRST_PERSON: u32 = 1000;
/// Nobody's.
const NOBODY: u32 = 65_534;

/// A folder that was found fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Project {
    folder: PathBuf,
    on_disk: Owner,
    /// The owner's group by the list of users.
    group: u32,
    home: PathBuf,
    hidden: Vec<PathBuf>,
    readable: Vec<PathBuf>,
}

/// How a folder came to be meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// As a project, by somebody who knows.
    Named,
    /// It is where somebody happened to be.
    Found,
}

/// What the operator and the server say about all projects.
#[derive(Debug, Clone, Default)]
pub struct ProjectRules {
    /// Projects lie below one of these; anywhere if there is none.
    pub within: Vec<PathBuf>,
    /// What of homes can be read.
    pub readable: Vec<PathBuf>,
    /// Hidden besides homes: the server's data, and sockets.
    pub hidden: Vec<PathBuf>,
    /// The server's data folder.
    pub data: PathBuf,
}

/// Why a folder is no project.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    #[error("the folder {} cannot be had: {source}", path.display())]
    NotThere { path: PathBuf, source: io::Error },
    #[error("{} is no folder", .0.display())]
    NotFolder(PathBuf),
    #[error("{} belongs to the system; a project lies in a folder of its own", .0.display())]
    System(PathBuf),
    #[error("{} is a whole home, which is not taken for a project by itself; go into a project's folder, or name it as the workspace", .0.display())]
    Home(PathBuf),
    #[error("{} belongs to the server", .0.display())]
    Ours(PathBuf),
    #[error("the operator lets projects lie below {} only", list(.0))]
    Outside(Vec<PathBuf>),
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl Project {
    /// Looks at the folder. Blocks for as long as a file system does.
    pub fn find(folder: &Path, naming: Naming, rules: &ProjectRules) -> Result<Self, ProjectError> {
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        Self::find_among(folder, naming, rules, &users)
    }

    fn find_among(
        folder: &Path,
        naming: Naming,
        rules: &ProjectRules,
        users: &str,
    ) -> Result<Self, ProjectError> {
        let not_there = |source| ProjectError::NotThere { path: folder.to_owned(), source };
        let real = std::fs::canonicalize(folder).map_err(not_there)?;
        let meta = std::fs::metadata(&real).map_err(not_there)?;
        if !meta.is_dir() {
            return Err(ProjectError::NotFolder(real));
        }
        let homes = homes(users);
        check(&real, naming, rules, &homes)?;
        let on_disk = Owner { uid: meta.uid(), gid: meta.gid() };
        let readable: Vec<PathBuf> = rules
            .readable
            .iter()
            .filter_map(|path| std::fs::canonicalize(path).ok())
            .filter(|path| !path.starts_with(&real))
            .collect();
        let own = people(users).find(|person| person.uid == on_disk.uid);
        let home = own.iter().map(|person| person.home.clone()).chain(HOMES.map(PathBuf::from));
        let free = |home: &PathBuf| {
            let taken = home.starts_with(&real) || readable.iter().any(|path| home.starts_with(path));
            let covered = homes.iter().any(|known| home.starts_with(known));
            !taken && (covered || HOMES.iter().any(|own| home == Path::new(own)))
        };
        let [_, last] = HOMES;
        let mut hidden: Vec<PathBuf> = HIDDEN.iter().map(PathBuf::from).collect();
        hidden.extend(homes.iter().cloned());
        hidden.extend(rules.hidden.iter().chain([&rules.data]).cloned());
        Ok(Self {
            home: home.filter(|home| home.is_absolute()).find(free).unwrap_or_else(|| PathBuf::from(last)),
            group: own.map_or(on_disk.uid, |person| person.gid),
            hidden: resolved(&hidden),
            folder: real,
            on_disk,
            readable,
        })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What processes see as their home; files there are the session's own.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Whether there is something of the server's in the folder.
    pub fn holds(&self, path: &Path) -> bool {
        std::fs::canonicalize(path).is_ok_and(|path| path.starts_with(&self.folder))
    }

    /// Who runs there: the folder's owner, and nobody who is root.
    pub(crate) fn runner(&self) -> Runner {
        let root = rustix::process::geteuid().is_root();
        match (root, self.on_disk.uid) {
            (false, _) => Runner::Owner(Owner::ourselves()),
            (true, 0) => Runner::Mapped,
            // Root's group opens as much as root's files say.
            (true, uid) => Runner::Owner(Owner { uid, gid: if self.group == 0 { uid } else { self.group } }),
        }
    }

    pub(crate) fn view(&self, runner: Runner) -> View {
        let all = |paths: &[PathBuf]| paths.iter().map(|path| bytes(path)).collect();
        let project = config::Project {
            folder: bytes(&self.folder),
            mapped: (runner == Runner::Mapped)
                .then_some(HostUser { uid: self.on_disk.uid, gid: self.on_disk.gid }),
            home: bytes(&self.home),
            hidden: all(&self.hidden),
            readable: all(&self.readable),
        };
        View::Project { project }
    }
}

/// Who runs in a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runner {
    Owner(Owner),
    /// A user of the session's own, to whom the folder's files are shown as his.
    Mapped,
}

fn check(real: &Path, naming: Naming, rules: &ProjectRules, homes: &[PathBuf]) -> Result<(), ProjectError> {
    let is = |all: &[&str]| all.iter().any(|path| real == Path::new(path));
    if is(&SHARED) || SYSTEM.iter().any(|path| real.starts_with(path)) {
        return Err(ProjectError::System(real.to_owned()));
    }
    let data = std::fs::canonicalize(&rules.data).unwrap_or_else(|_| rules.data.clone());
    if real.starts_with(&data) {
        return Err(ProjectError::Ours(real.to_owned()));
    }
    // Above a home is as much as a home.
    let private = homes.iter().any(|home| home.starts_with(real));
    if private && (naming == Naming::Found || !homes.iter().any(|home| home == real)) {
        return Err(ProjectError::Home(real.to_owned()));
    }
    let within: Vec<PathBuf> =
        rules.within.iter().filter_map(|path| std::fs::canonicalize(path).ok()).collect();
    if !rules.within.is_empty() && !within.iter().any(|path| real.starts_with(path)) {
        return Err(ProjectError::Outside(rules.within.clone()));
    }
    Ok(())
}

struct Person {
    uid: u32,
    gid: u32,
    home: PathBuf,
}

fn people(users: &str) -> impl Iterator<Item = Person> + '_ {
    users.lines().filter_map(|line| {
        let mut fields = line.split(':').skip(2);
        let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let home = fields.nth(1)?;
        Some(Person { uid, gid, home: std::fs::canonicalize(home).unwrap_or_else(|_| home.into()) })
    })
}

/// The homes of people, of root and of whoever this is; none is a folder of the system.
fn homes(users: &str) -> Vec<PathBuf> {
    let ourselves = Owner::ourselves().uid;
    let person = |uid: u32| uid == 0 || uid == ourselves || (uid >= FIRST_PERSON && uid != NOBODY);
    let all = people(users).filter(|found| person(found.uid)).map(|found| found.home);
    resolved(&all.collect::<Vec<_>>())
        .into_iter()
        .filter(|home| {
            let is = |all: &[&str]| all.iter().any(|path| home == Path::new(path));
            !is(&SHARED) && !SYSTEM.iter().any(|path| home.starts_with(path))
        })
        .collect()
}

/// Without links, those that are there, each once.
fn resolved(paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = paths
        .iter()
        .filter_map(|path| std::fs::canonicalize(path).ok())
        .filter(|path| path.parent().is_some())
        .collect();
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ground {
        dir: tempfile::TempDir,
        users: String,
        rules: ProjectRules,
    }

    impl Ground {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let base = dir.path().canonicalize().unwrap();
            for folder in ["people/ann/work", "people/ann/.cargo", "people/bob", "data/places", "srv/a"] {
                std::fs::create_dir_all(base.join(folder)).unwrap();
            }
            std::fs::write(base.join("file"), "").unwrap();
            std::os::unix::fs::symlink(base.join("people/ann"), base.join("link")).unwrap();
            let me = Owner::ourselves().uid;
            let shown = base.display();
            let users = format!(
                "ann:x:{me}:77::{shown}/people/ann:/bin/sh\nroot:x:0:0:root:/root:/bin/bash\n\
                 bob:x:1234:1234::{shown}/people/bob:/bin/sh\ndaemon:x:2:2::/usr/sbin:/bin/false\nbroken\n"
            );
            let rules = ProjectRules { data: base.join("data"), ..ProjectRules::default() };
            Self { dir, users, rules }
        }

        fn path(&self, below: &str) -> PathBuf {
            self.dir.path().canonicalize().unwrap().join(below)
        }

        fn find(&self, folder: &Path, naming: Naming) -> Result<Project, ProjectError> {
            Project::find_among(folder, naming, &self.rules, &self.users)
        }
    }

    #[test]
    fn what_is_no_project_is_refused() {
        let ground = Ground::new();
        for (folder, word) in [
            ("/", "system"),
            ("/etc", "system"),
            ("/etc/ssl", "system"),
            ("/usr", "system"),
            ("/tmp", "system"),
            ("/no/such/folder", "cannot be had"),
        ] {
            let refused = ground.find(Path::new(folder), Naming::Named).unwrap_err().to_string();
            assert!(refused.contains(word), "{folder}: {refused}");
        }
        for (folder, naming, word) in [
            ("file", Naming::Named, "no folder"),
            ("people/ann", Naming::Found, "whole home"),
            ("link", Naming::Found, "whole home"),
            ("people", Naming::Named, "whole home"),
            ("data", Naming::Named, "the server"),
            ("data/places", Naming::Named, "the server"),
        ] {
            let refused = ground.find(&ground.path(folder), naming).unwrap_err().to_string();
            assert!(refused.contains(word), "{folder}: {refused}");
        }
    }

    #[test]
    fn a_home_is_a_project_when_it_is_named_and_the_home_is_elsewhere_then() {
        let ground = Ground::new();
        let found = ground.find(&ground.path("link"), Naming::Named).unwrap();
        assert_eq!(found.folder(), ground.path("people/ann"));
        assert_eq!(found.home(), Path::new(crate::HOME_INSIDE));
        assert!(!found.holds(&ground.path("data")));
    }

    #[test]
    fn homes_are_hidden_and_what_is_named_of_them_is_not() {
        let mut ground = Ground::new();
        ground.rules.readable = vec![ground.path("people/ann/.cargo"), ground.path("srv/a/x")];
        let found = ground.find(&ground.path("people/ann/work"), Naming::Found).unwrap();
        assert_eq!(found.home(), ground.path("people/ann"), "the owner's own, which is empty");
        for hidden in [ground.path("people/ann"), ground.path("people/bob"), ground.path("data")] {
            assert!(found.hidden.contains(&hidden), "{}", hidden.display());
        }
        assert!(!found.hidden.iter().any(|path| path.starts_with("/usr")), "a service's home is the system");
        assert_eq!(found.readable, [ground.path("people/ann/.cargo")]);
        ground.rules.readable = vec![ground.path("people/ann")];
        let found = ground.find(&ground.path("people/ann/work"), Naming::Found).unwrap();
        assert_eq!(found.home(), Path::new(crate::HOME_INSIDE));
    }

    #[test]
    fn the_operator_says_where_projects_lie() {
        let mut ground = Ground::new();
        ground.rules.within = vec![ground.path("srv")];
        assert!(ground.find(&ground.path("srv/a"), Naming::Found).is_ok());
        let refused = ground.find(&ground.path("people/ann/work"), Naming::Found).unwrap_err();
        assert!(matches!(refused, ProjectError::Outside(_)), "{refused}");
    }
}
