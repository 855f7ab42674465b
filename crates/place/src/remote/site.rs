//! What is on the other side, and where a keeper can live there.
//!
//! Everything is asked and done with scripts of the plainest shell: one line each, without `!` and without `\\`, because
//! the login shell that hands them on may be any. The folder is private, and its program's name holds its hash, so
//! that it is uploaded once.

use super::{
    RemoteError,
    channel::{Link, quoted},
};
use crate::keeper::binary;
use ::keeper::roles::{CHECK, FIT};
use std::{collections::BTreeMap, time::Duration};

/// How long a look may take, and an upload over a slow line.
const LOOK: Duration = Duration::from_secs(30);
const UPLOAD: Duration = Duration::from_secs(180);
/// After so many days a program that no server has used is removed when another is uploaded.
const KEEP_DAYS: u32 = 90;
/// What the environment, which ends the answer, comes behind.
const ENVIRONMENT: &[u8] = b"\nenvironment\n";

/// The other side, as a look found it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    pub system: String,
    pub processor: String,
    pub kernel: String,
    pub uid: String,
    /// Where commands start.
    pub cwd: String,
    pub home: String,
    /// Absolute paths; none where there is none.
    pub bash: Option<String>,
    pub sh: Option<String>,
    /// Of the user's own login or the container, without what is not UTF-8.
    pub env: BTreeMap<String, String>,
    /// A private folder from which programs can be run.
    pub(crate) folder: Option<String>,
    /// Folders that will not do, and why.
    pub(crate) unfit: Vec<String>,
    pub(crate) uploaded: bool,
    /// A private folder that can be written to, though it may run nothing.
    pub(crate) store: Option<String>,
}

/// The program's name on other machines.
pub(crate) fn program() -> String {
    let hash = blake3::hash(binary::BYTES).to_hex();
    format!("keeper-{}", &hash.as_str()[..32])
}

/// `tried` are folders that were found unfit in another way.
pub(crate) async fn look(link: &Link, tried: &[String]) -> Result<Machine, RemoteError> {
    let script = look_script(&program(), binary::BYTES.len(), tried);
    let (answer, complaints) = link.run(&script, b"", LOOK).await?;
    let why = if complaints.is_empty() { "the answer is cut short".to_owned() } else { complaints };
    parse(&answer).ok_or_else(|| RemoteError::Broken { whom: link.whom(), why })
}

fn look_script(program: &str, bytes: usize, tried: &[String]) -> String {
    let skip: String = tried.iter().map(|folder| format!("{}) continue ;; ", quoted(folder))).collect();
    let steps = [
        "umask 077".to_owned(),
        "echo \"system $(uname -s)\"".to_owned(),
        "echo \"processor $(uname -m)\"".to_owned(),
        "echo \"kernel $(uname -r)\"".to_owned(),
        "u=$(id -u)".to_owned(),
        "echo \"uid $u\"".to_owned(),
        // `command -v` gives no path where the shell has the program in itself.
        "find_in() { o=$IFS; IFS=:; for d in $PATH; do \
         if [ -f \"$d/$1\" ] && [ -x \"$d/$1\" ]; then echo \"$1 $d/$1\"; break; fi; done; IFS=$o; }"
            .to_owned(),
        "find_in bash".to_owned(),
        "find_in sh".to_owned(),
        "echo \"cwd $PWD\"".to_owned(),
        "echo \"home $HOME\"".to_owned(),
        // Each is made if need be, must be ours alone, and must let programs run.
        "fit() { mkdir -p \"$1\" 2>/dev/null; \
         if [ -L \"$1\" ]; then echo \"unfit $1 is a link\"; return 1; fi; \
         [ -d \"$1\" ] && [ -O \"$1\" ] && chmod 700 \"$1\" 2>/dev/null \
         || { echo \"unfit $1 cannot be made, or is not ours\"; return 1; }; \
         t=\"$1/.try-$$\"; \
         { echo : >\"$t\"; } 2>/dev/null && [ -s \"$t\" ] && chmod 700 \"$t\" \
         || { rm -f \"$t\"; echo \"unfit $1 cannot be written to\"; return 1; }; \
         \"$t\" 2>/dev/null || { rm -f \"$t\"; echo \"store $1\"; echo \"unfit $1 runs no programs\"; return 1; }; \
         rm -f \"$t\"; }"
            .to_owned(),
        format!(
            "for d in \"${{XDG_CACHE_HOME:-$HOME/.cache}}/outlast\" \"/var/tmp/outlast-$u\" \"/tmp/outlast-$u\" \
             \"/dev/shm/outlast-$u\" \"/run/user/$u/outlast\"; do \
             case $d in {skip}/*) ;; *) continue ;; esac; \
             if fit \"$d\"; then echo \"folder $d\"; \
             [ -x \"$d/{program}\" ] && [ \"$(\"$d/{program}\" {CHECK} {bytes} 2>/dev/null)\" = '{FIT}' ] \
             && echo 'uploaded yes' && touch \"$d/{program}\"; \
             break; fi; done"
        ),
        "echo environment".to_owned(),
        "cat /proc/self/environ".to_owned(),
    ];
    steps.join("; ")
}

fn parse(answer: &[u8]) -> Option<Machine> {
    let at = answer.windows(ENVIRONMENT.len()).position(|window| window == ENVIRONMENT)?;
    let (lines, env) = (String::from_utf8_lossy(&answer[..at]), &answer[at + ENVIRONMENT.len()..]);
    let mut machine = Machine::default();
    for (name, value) in lines.lines().filter_map(|line| line.split_once(' ')) {
        let value = value.to_owned();
        match name {
            "system" => machine.system = value,
            "processor" => machine.processor = value,
            "kernel" => machine.kernel = value,
            "uid" => machine.uid = value,
            "cwd" => machine.cwd = value,
            "home" => machine.home = value,
            "bash" => machine.bash = Some(value).filter(|path| path.starts_with('/')),
            "sh" => machine.sh = Some(value).filter(|path| path.starts_with('/')),
            "folder" => machine.folder = Some(value),
            "store" => machine.store = machine.store.or(Some(value)),
            "unfit" => machine.unfit.push(value),
            "uploaded" => machine.uploaded = true,
            _ => {}
        }
    }
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
    for entry in env.split(|byte| *byte == 0) {
        let Some(at) = entry.iter().position(|byte| *byte == b'=') else { continue };
        if let (Some(name), Some(value)) = (text(&entry[..at]), text(&entry[at + 1..])) {
            machine.env.insert(name, value);
        }
    }
    // What the script's own shell set for itself is nobody's wish.
    for own in ["_", "SHLVL", "OLDPWD", "PWD"] {
        machine.env.remove(own);
    }
    Some(machine)
}

impl Machine {
    /// Why this build's keeper cannot run there, if that can be told beforehand.
    pub(crate) fn obstacle(&self) -> Option<String> {
        if self.system != "Linux" {
            return Some(format!("it runs {}, and the keeper needs Linux", self.system));
        }
        if self.processor != std::env::consts::ARCH {
            return Some(format!(
                "its processor is {}, and this server's keeper is built for {}",
                self.processor,
                std::env::consts::ARCH
            ));
        }
        if self.folder.is_none() {
            return Some(format!("no folder will do: {}", self.unfit.join("; ")));
        }
        None
    }
}

/// Puts the program there, if it is not there yet, and sees that it runs. Its path, and that of its folder. A folder in
/// which there is no room for it, or which does not let it run, gives way to the next.
pub(crate) async fn uploaded(link: &Link, machine: &Machine) -> Result<(String, String), RemoteError> {
    let unfit = |why: String| RemoteError::NoKeeper { whom: link.whom(), why };
    let (mut machine, mut tried, mut reasons) = (machine.clone(), Vec::new(), Vec::new());
    loop {
        let folder = match (machine.obstacle(), &machine.folder) {
            (None, Some(folder)) => folder.clone(),
            (why, _) => {
                reasons.extend(why);
                return Err(unfit(reasons.join("; ")));
            }
        };
        let path = format!("{folder}/{}", program());
        if machine.uploaded {
            return Ok((path, folder));
        }
        let (answer, complaints) = link.run(&upload_script(&folder, &path), binary::BYTES, UPLOAD).await?;
        if String::from_utf8_lossy(&answer).lines().any(|line| line == FIT) {
            return Ok((path, folder));
        }
        let why = complaints.lines().next_back().unwrap_or("the program does not run there");
        reasons.push(format!("{folder}: {why}"));
        tried.push(folder);
        machine = look(link, &tried).await?;
    }
}

fn upload_script(folder: &str, path: &str) -> String {
    let (folder, path, bytes) = (quoted(folder), quoted(path), binary::BYTES.len());
    format!(
        "umask 077; t={folder}/.keeper-$$; trap 'rm -f \"$t\"' EXIT; \
         cat >\"$t\" && chmod 500 \"$t\" && [ \"$(\"$t\" {CHECK} {bytes})\" = '{FIT}' ] && mv \"$t\" {path} \
         && echo '{FIT}'; \
         find {folder} -name 'keeper-*' -type f -mtime +{KEEP_DAYS} -exec rm -f {{}} + 2>/dev/null"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_whatever_is_in_the_environment() {
        let text =
            b"system Linux\nprocessor x86_64\nuid 7\nbash /bin/bash\nsh /bin/sh\ncwd /srv/a b\nhome /\n\
            unfit /x runs no programs\nfolder /tmp/outlast-7\nuploaded yes\n\nenvironment\n\
            A=1\0B=two\nlines\0BAD=\xff\0SHLVL=1\0=x\0";
        let machine = parse(text).unwrap();
        assert_eq!((&*machine.cwd, &*machine.uid, machine.uploaded), ("/srv/a b", "7", true));
        assert_eq!(machine.folder.as_deref(), Some("/tmp/outlast-7"));
        assert_eq!(machine.unfit, ["/x runs no programs"]);
        assert_eq!(machine.env.get("B").map(String::as_str), Some("two\nlines"));
        assert!(!machine.env.contains_key("BAD") && !machine.env.contains_key("SHLVL"));
        assert_eq!(parse(b"system Linux\n"), None, "cut short");
    }

    #[test]
    fn scripts_pass_through_any_login_shell() {
        let tried = ["/a b".to_owned()];
        for script in [look_script("keeper-x", 1, &tried), upload_script("/f", "/f/keeper-x")] {
            assert!(!script.contains(['\n', '!']) && !script.contains("\\\\"), "{script}");
        }
    }
}
