//! How a shell is started, and what it may not inherit.

use std::collections::BTreeMap;

pub const PROGRAM: &str = "bash";
/// No files of the user's run before the first command, which would be another's.
pub const ARGS: [&str; 3] = ["--noprofile", "--norc", "-s"];

/// Variables that make a bash run a file, or run nothing, before its first command.
const UNFIT: [&str; 6] = ["BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "POSIXLY_CORRECT", "BASH_XTRACEFD"];

/// An environment without what would change the shell itself.
pub fn fit_env(mut env: BTreeMap<String, String>) -> BTreeMap<String, String> {
    for name in UNFIT {
        env.remove(name);
    }
    env
}

/// How the paths begin that the keeper gives to commands, itself in `folder`, for [`crate::text::Secrets`]: there, or in
/// memory.
pub fn site_prefixes(folder: &str) -> [String; 2] {
    [format!("{folder}/.outlast-"), "/dev/shm/.outlast-".to_owned()]
}
