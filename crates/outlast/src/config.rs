//! What is meant: flags before environment before configuration file before defaults, resolved once into
//! [`Config`]. The only module that reads the environment; the rest of the program takes what it is given.
//!
//! Refuses unknown keys in the file, values that cannot be read, and a `data` key in the data folder's own file.

use crate::{
    cli::{Common, Serve},
    exit::Failure,
    term::{Colour, Form},
};
use protocol::PlaceKind;
use serde::Deserialize;
use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    fmt::{self, Display},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

pub(crate) const DEFAULT_LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 4100);
const DEFAULT_GRACE: Duration = Duration::from_secs(10);
const DEFAULT_BACKGROUND_IDLE: Duration = Duration::from_secs(15 * 60);
const FILE_NAME: &str = "outlast.toml";

/// How logs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

impl FromStr for LogFormat {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("write text or json"),
        }
    }
}

/// A value that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Everything the program was told.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) data: PathBuf,
    /// The configuration file that was named; the data folder's own needs no name.
    pub(crate) file: Option<PathBuf>,
    pub(crate) url: Option<String>,
    pub(crate) key: Option<Secret>,
    pub(crate) server: ServerConfig,
    pub(crate) form: Form,
    pub(crate) colour: Colour,
    /// How long a server that a bridge started stays when nobody needs it.
    pub(crate) background_idle: Duration,
    pub(crate) environment: Environment,
}

/// What `serve` was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerConfig {
    /// None: only the Unix socket in the data folder.
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) log_format: LogFormat,
    pub(crate) log: String,
    pub(crate) grace: Duration,
    /// A bridge started it: it leaves the terminal.
    pub(crate) detached: bool,
    /// How long it stays when nobody needs it; for ever without.
    pub(crate) until_idle: Option<Duration>,
    /// 64 hexadecimal digits that encrypt credentials; without it, a file in the data folder.
    pub(crate) master_key: Option<Secret>,
    /// Names a `Host` header may hold besides this machine's.
    pub(crate) hosts: Vec<String>,
    pub(crate) limits: Limits,
    pub(crate) sandbox: Sandbox,
    pub(crate) shells: Shells,
}

/// How sessions are contained; what is not set keeps its default.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Sandbox {
    /// Where sessions run that name no place.
    pub(crate) place: Option<PlaceKind>,
    /// Who may choose the bare host.
    pub(crate) host_place: Option<HostPlace>,
    /// Who may choose a project; whoever may have the host may.
    pub(crate) project_place: Option<HostPlace>,
    /// Folders below which projects lie.
    pub(crate) projects: Vec<PathBuf>,
    /// What of people's homes can be read in projects.
    pub(crate) readable: Vec<PathBuf>,
    /// A folder that holds a whole system, instead of the machine's own.
    pub(crate) root: Option<PathBuf>,
    /// The widest network that an agent's policy may name.
    pub(crate) network: Option<MostNetwork>,
    /// Ports of the machine's loopback that sandboxes may reach.
    pub(crate) forwards: Vec<u16>,
    /// Folders below which agents may mount.
    pub(crate) mounts: Vec<PathBuf>,
    pub(crate) limits: protocol::Bounds,
}

/// What shells may do and reach; what is not set keeps its default.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Shells {
    /// Rules for every command of every shell.
    pub(crate) allow: Vec<String>,
    pub(crate) deny: Vec<String>,
    /// Whether what looks like a secret is hidden; what was given as one always is.
    pub(crate) redact_shapes: Option<bool>,
    /// What else is hidden.
    pub(crate) redact: Vec<Redact>,
    /// Whether a new host's key is taken and remembered.
    pub(crate) trust_on_first_use: bool,
    /// Whether keepers may be put onto other machines and into containers.
    pub(crate) lodge: Option<bool>,
    pub(crate) connect_secs: Option<u64>,
    /// What shells in sandboxes and projects reach.
    pub(crate) network: Option<protocol::Network>,
    /// Read instead of the user's own.
    pub(crate) ssh_config: Option<PathBuf>,
    /// The container engine's.
    pub(crate) engine_socket: Option<PathBuf>,
}

/// A secret's shape: how it begins, and what follows.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Redact {
    pub(crate) label: String,
    pub(crate) starts: String,
    #[serde(default)]
    pub(crate) follow: Option<RedactFollow>,
    #[serde(default)]
    pub(crate) least: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RedactFollow {
    Alnum,
    Word,
    Base64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HostPlace {
    Nobody,
    Operator,
    Everybody,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MostNetwork {
    None,
    Allow,
    Full,
}

impl Sandbox {
    /// The variables that matter to tests and containers.
    fn read(mut self, env: &Environment) -> Result<Self, Failure> {
        if let Some(place) = env.parsed("OUTLAST_PLACE")? {
            self.place = Some(place);
        }
        if self.place.is_some_and(|place| !matches!(place, PlaceKind::Sandbox | PlaceKind::Host)) {
            return Err(Failure::Usage("sandbox.place must be sandbox or host".to_owned()));
        }
        if let Some(text) = env.text("OUTLAST_SANDBOX_FORWARDS")? {
            let ports: Result<_, _> = text.split(',').map(|port| port.trim().parse()).collect();
            self.forwards = ports.map_err(|error| {
                Failure::Usage(format!("OUTLAST_SANDBOX_FORWARDS must be ports with commas between: {error}"))
            })?;
        }
        Ok(self)
    }
}

/// An operator's bounds; what is not set keeps its default.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    pub(crate) live_sessions: Option<u64>,
    pub(crate) tenant_live_sessions: Option<u64>,
    pub(crate) tenant_sessions: Option<u64>,
    pub(crate) tenant_bytes: Option<u64>,
    pub(crate) tenant_events_per_sec: Option<u64>,
    pub(crate) idle_secs: Option<u64>,
    pub(crate) orphan_secs: Option<u64>,
    pub(crate) evict_secs: Option<u64>,
    pub(crate) reserve_bytes: Option<u64>,
    pub(crate) low_water_bytes: Option<u64>,
    pub(crate) snapshot_bytes: Option<u64>,
    pub(crate) snapshot_files: Option<u64>,
    pub(crate) shell_sessions: Option<u64>,
    pub(crate) shell_idle_secs: Option<u64>,
    pub(crate) shell_output_bytes: Option<u64>,
}

impl Limits {
    /// Every bound with its name in the file; `OUTLAST_` and the name in capitals is its variable.
    fn named(&mut self) -> [(&'static str, &mut Option<u64>); 15] {
        [
            ("live_sessions", &mut self.live_sessions),
            ("tenant_live_sessions", &mut self.tenant_live_sessions),
            ("tenant_sessions", &mut self.tenant_sessions),
            ("tenant_bytes", &mut self.tenant_bytes),
            ("tenant_events_per_sec", &mut self.tenant_events_per_sec),
            ("idle_secs", &mut self.idle_secs),
            ("orphan_secs", &mut self.orphan_secs),
            ("evict_secs", &mut self.evict_secs),
            ("reserve_bytes", &mut self.reserve_bytes),
            ("low_water_bytes", &mut self.low_water_bytes),
            ("snapshot_bytes", &mut self.snapshot_bytes),
            ("snapshot_files", &mut self.snapshot_files),
            ("shell_sessions", &mut self.shell_sessions),
            ("shell_idle_secs", &mut self.shell_idle_secs),
            ("shell_output_bytes", &mut self.shell_output_bytes),
        ]
    }
}

/// The configuration file. Keys for secrets are paths, so that the file itself need not be secret.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    data: Option<PathBuf>,
    url: Option<String>,
    key_file: Option<PathBuf>,
    listen: Option<SocketAddr>,
    log_format: Option<LogFormat>,
    log: Option<String>,
    grace_secs: Option<u64>,
    background_idle_secs: Option<u64>,
    master_key_file: Option<PathBuf>,
    hosts: Vec<String>,
    limits: Limits,
    sandbox: Sandbox,
    shells: Shells,
}

/// The environment, read once.
#[derive(Clone, Default)]
pub(crate) struct Environment {
    variables: HashMap<OsString, OsString>,
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Environment({} variables)", self.variables.len())
    }
}

impl Environment {
    pub(crate) fn of_this_process() -> Self {
        Self { variables: std::env::vars_os().collect() }
    }

    #[cfg(test)]
    pub(crate) fn of(variables: &[(&str, &str)]) -> Self {
        Self { variables: variables.iter().map(|(name, value)| (name.into(), value.into())).collect() }
    }

    /// An empty variable counts as one that is not there.
    fn raw(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.raw(name).map(PathBuf::from)
    }

    /// Every variable that is text.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().filter_map(|(name, value)| Some((name.to_str()?, value.to_str()?)))
    }

    /// A variable's text, for what a person named on the command line.
    pub(crate) fn text(&self, name: &str) -> Result<Option<String>, Failure> {
        match self.raw(name).map(OsStr::to_str) {
            None => Ok(None),
            Some(Some(text)) => Ok(Some(text.to_owned())),
            Some(None) => Err(Failure::Usage(format!("the variable {name} is not UTF-8"))),
        }
    }

    /// Of this process's own, what a shell on the bare host is given when its caller brings none. Nothing that may hold
    /// a secret.
    pub(crate) fn for_shells(&self) -> std::collections::BTreeMap<String, String> {
        const NAMES: [&str; 9] =
            ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "SSH_AUTH_SOCK"];
        let text = |name: &&str| Some(((*name).to_owned(), self.raw(name)?.to_str()?.to_owned()));
        NAMES.iter().filter_map(text).collect()
    }

    fn parsed<T: FromStr<Err: Display>>(&self, name: &str) -> Result<Option<T>, Failure> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        text.parse().map(Some).map_err(|error| Failure::Usage(format!("{name} cannot be used: {error}")))
    }
}

/// This program's own file.
pub(crate) fn own_path() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|error| Failure::Broken(format!("this program cannot find its own file: {error}")))
}

impl Config {
    pub(crate) fn resolve(
        common: Common,
        serve: Option<&Serve>,
        environment: Environment,
    ) -> Result<Self, Failure> {
        let env = &environment;
        let named_data = common.data.or_else(|| env.path("OUTLAST_DATA"));
        let named_file = common.config.or_else(|| env.path("OUTLAST_CONFIG"));
        let (data, file) = match &named_file {
            Some(path) => {
                let file = read_file(path)?;
                let data = named_data.or_else(|| file.data.clone()).map_or_else(|| default_data(env), Ok)?;
                (data, file)
            }
            None => {
                let data = named_data.map_or_else(|| default_data(env), Ok)?;
                let file = read_own_file(&data)?;
                (data, file)
            }
        };
        let key = match (common.key, env.text("OUTLAST_KEY")?, &file.key_file) {
            (Some(key), _, _) | (None, Some(key), _) => Some(Secret(key.trim().to_owned())),
            (None, None, Some(path)) => Some(read_secret(path)?),
            (None, None, None) => None,
        };
        let idle = env.parsed("OUTLAST_BACKGROUND_IDLE_SECS")?.or(file.background_idle_secs);
        Ok(Self {
            background_idle: idle.map_or(DEFAULT_BACKGROUND_IDLE, Duration::from_secs),
            file: named_file,
            url: match common.url {
                Some(url) => Some(url),
                None => env.text("OUTLAST_URL")?.or_else(|| file.url.clone()),
            },
            key,
            server: ServerConfig::resolve(serve, env, file)?,
            form: if common.json { Form::Json } else { Form::Text },
            colour: match (env.raw("NO_COLOR"), env.raw("TERM")) {
                (Some(_), _) => Colour::Never,
                (None, Some(term)) if term == "dumb" => Colour::Never,
                (None, _) => Colour::OnTerminals,
            },
            data,
            environment,
        })
    }
}

impl Config {
    /// Whoever starts this program without a word about it gets the same data folder.
    pub(crate) fn data_is_default(&self) -> bool {
        default_data(&self.environment).is_ok_and(|data| data == self.data)
    }
}

impl ServerConfig {
    fn resolve(flags: Option<&Serve>, env: &Environment, file: File) -> Result<Self, Failure> {
        let flags = flags.cloned().unwrap_or_default();
        let listen = first(flags.listen, || env.parsed("OUTLAST_LISTEN"), file.listen)?;
        let log_format = first(flags.log_format, || env.parsed("OUTLAST_LOG_FORMAT"), file.log_format)?;
        let log = first(flags.log, || env.text("OUTLAST_LOG"), file.log)?;
        let grace = first(flags.grace_secs, || env.parsed("OUTLAST_GRACE_SECS"), file.grace_secs)?;
        let master_key = match (env.text("OUTLAST_MASTER_KEY")?, &file.master_key_file) {
            (Some(key), _) => Some(Secret(key.trim().to_owned())),
            (None, Some(path)) => Some(read_secret(path)?),
            (None, None) => None,
        };
        let mut limits = file.limits;
        for (name, limit) in limits.named() {
            if let Some(value) = env.parsed(&format!("OUTLAST_{}", name.to_uppercase()))? {
                *limit = Some(value);
            }
        }
        Ok(Self {
            listen: (!flags.socket_only).then_some(listen.unwrap_or(DEFAULT_LISTEN)),
            log_format: log_format.unwrap_or_default(),
            log: log.unwrap_or_else(|| "info".to_owned()),
            grace: grace.map_or(DEFAULT_GRACE, Duration::from_secs),
            detached: flags.detached,
            until_idle: flags.until_idle.map(Duration::from_secs),
            master_key,
            hosts: file.hosts,
            limits,
            sandbox: file.sandbox.read(env)?,
            shells: file.shells,
        })
    }
}

/// A flag, else the environment's word, else the file's.
fn first<T>(
    flag: Option<T>,
    environment: impl FnOnce() -> Result<Option<T>, Failure>,
    file: Option<T>,
) -> Result<Option<T>, Failure> {
    match flag {
        Some(value) => Ok(Some(value)),
        None => Ok(environment()?.or(file)),
    }
}

fn default_data(env: &Environment) -> Result<PathBuf, Failure> {
    // The XDG rules: a relative path is to be ignored.
    let home = env.path("XDG_DATA_HOME").filter(|path| path.is_absolute());
    let home = home.or_else(|| env.path("HOME").map(|home| home.join(".local/share")));
    home.map(|home| home.join("outlast")).ok_or_else(|| {
        Failure::Usage("there is no home folder to keep data in; name one with --data".to_owned())
    })
}

/// The data folder's own file, which need not be there.
fn read_own_file(data: &Path) -> Result<File, Failure> {
    let path = data.join(FILE_NAME);
    if !path.exists() {
        return Ok(File::default());
    }
    let file = read_file(&path)?;
    if file.data.is_some() {
        return Err(Failure::Usage(format!(
            "{} lies in the data folder and cannot name another; remove `data`, or use --config",
            path.display()
        )));
    }
    Ok(file)
}

fn read_file(path: &Path) -> Result<File, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Usage(format!("{} cannot be read: {error}", path.display())))?;
    toml::from_str(&text).map_err(|error| {
        Failure::Usage(format!("{} is not right: {}", path.display(), error.to_string().trim()))
    })
}

fn read_secret(path: &Path) -> Result<Secret, Failure> {
    std::fs::read_to_string(path)
        .map(|text| Secret(text.trim().to_owned()))
        .map_err(|error| Failure::Usage(format!("{} cannot be read: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn resolve(data: &Path, flags: &Serve, env: &[(&str, &str)]) -> Result<Config, Failure> {
        let common = Common { data: Some(data.to_owned()), ..Common::default() };
        Config::resolve(common, Some(flags), Environment::of(env))
    }

    #[test]
    fn flags_come_before_environment_before_file_before_defaults() {
        const FLAG: Option<&str> = Some("127.0.0.1:1");
        const ENV: Option<&str> = Some("127.0.0.1:2");
        const FILE: Option<&str> = Some("127.0.0.1:3");
        for (flag, env, file, want) in [
            (None, None, None, "127.0.0.1:4100"),
            (None, None, FILE, "127.0.0.1:3"),
            (None, ENV, FILE, "127.0.0.1:2"),
            (FLAG, ENV, FILE, "127.0.0.1:1"),
            (FLAG, None, FILE, "127.0.0.1:1"),
            (FLAG, None, None, "127.0.0.1:1"),
            (None, ENV, None, "127.0.0.1:2"),
            (None, Some(""), FILE, "127.0.0.1:3"),
        ] {
            let data = tempfile::tempdir().unwrap();
            if let Some(file) = file {
                fs::write(data.path().join(FILE_NAME), format!("listen = {file:?}")).unwrap();
            }
            let flags = Serve { listen: flag.map(|text| text.parse().unwrap()), ..Serve::default() };
            let env: Vec<_> = env.map(|text| ("OUTLAST_LISTEN", text)).into_iter().collect();
            let config = resolve(data.path(), &flags, &env).unwrap();
            assert_eq!(config.server.listen.unwrap().to_string(), want, "{flag:?} {env:?} {file:?}");
        }
    }

    #[test]
    fn limits_come_from_the_file_and_the_environment() {
        let data = tempfile::tempdir().unwrap();
        let text = "grace_secs = 3\nlog_format = \"json\"\nhosts = [\"a\"]\n[limits]\nidle_secs = 5\nlive_sessions = 7\n";
        fs::write(data.path().join(FILE_NAME), text).unwrap();
        let config = resolve(data.path(), &Serve::default(), &[("OUTLAST_LIVE_SESSIONS", "9")]).unwrap();
        assert_eq!(config.server.grace, Duration::from_secs(3));
        assert_eq!(config.server.log_format, LogFormat::Json);
        assert_eq!((config.server.limits.idle_secs, config.server.limits.live_sessions), (Some(5), Some(9)));
    }

    #[test]
    fn every_limit_of_the_file_has_a_variable() {
        let mut limits = Limits::default();
        let text: String = limits.named().iter().map(|(name, _)| format!("{name} = 1\n")).collect();
        let mut read: Limits = toml::from_str(&text).unwrap();
        assert!(read.named().iter().all(|(_, value)| **value == Some(1)), "the names are the file's keys");
    }

    #[test]
    fn mistakes_are_named() {
        for (file, env, want) in [
            ("listn = \"127.0.0.1:1\"", None, "unknown field `listn`"),
            ("[limits]\nsessions = 1", None, "unknown field `sessions`"),
            ("listen = \"here\"", None, "outlast.toml is not right"),
            ("[sandbox]\nplace = \"ssh\"", None, "must be sandbox or host"),
            ("data = \"/x\"", None, "cannot name another"),
            ("key_file = \"/nowhere/key\"", None, "/nowhere/key cannot be read"),
            ("", Some(("OUTLAST_LISTEN", "here")), "OUTLAST_LISTEN cannot be used"),
            ("", Some(("OUTLAST_LOG_FORMAT", "xml")), "write text or json"),
            ("", Some(("OUTLAST_TENANT_BYTES", "-1")), "OUTLAST_TENANT_BYTES cannot be used"),
            ("", Some(("OUTLAST_CONFIG", "/nowhere.toml")), "/nowhere.toml cannot be read"),
        ] {
            let data = tempfile::tempdir().unwrap();
            fs::write(data.path().join(FILE_NAME), file).unwrap();
            let env: Vec<_> = env.into_iter().collect();
            let failure = resolve(data.path(), &Serve::default(), &env).unwrap_err();
            assert!(failure.to_string().contains(want), "{failure}");
            assert_eq!(failure.exit(), crate::exit::Exit::Usage);
        }
    }

    #[test]
    fn the_data_folder_is_found_as_xdg_says() {
        let data = |env: &[(&str, &str)]| {
            Config::resolve(Common::default(), None, Environment::of(env)).map(|config| config.data)
        };
        assert_eq!(data(&[("HOME", "/h")]).unwrap(), Path::new("/h/.local/share/outlast"));
        assert_eq!(data(&[("HOME", "/h"), ("XDG_DATA_HOME", "/x")]).unwrap(), Path::new("/x/outlast"));
        assert_eq!(
            data(&[("HOME", "/h"), ("XDG_DATA_HOME", "x")]).unwrap(),
            Path::new("/h/.local/share/outlast")
        );
        assert_eq!(data(&[("HOME", "/h"), ("OUTLAST_DATA", "/d")]).unwrap(), Path::new("/d"));
        assert!(data(&[]).is_err());
    }

    #[test]
    fn a_named_file_may_name_the_data_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.toml");
        fs::write(&path, "data = \"/srv/o\"\nurl = \"http://h\"").unwrap();
        let common = Common { config: Some(path), ..Common::default() };
        let config = Config::resolve(common, None, Environment::of(&[("OUTLAST_URL", "http://e")])).unwrap();
        assert_eq!((config.data.as_path(), config.url.as_deref()), (Path::new("/srv/o"), Some("http://e")));
    }

    #[test]
    fn colours_can_be_refused() {
        for (env, want) in [
            (&[][..], Colour::OnTerminals),
            (&[("NO_COLOR", "1")], Colour::Never),
            (&[("NO_COLOR", "")], Colour::OnTerminals),
            (&[("TERM", "dumb")], Colour::Never),
        ] {
            let data = tempfile::tempdir().unwrap();
            assert_eq!(resolve(data.path(), &Serve::default(), env).unwrap().colour, want, "{env:?}");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let data = tempfile::tempdir().unwrap();
        let env = [("OUTLAST_KEY", "sesame"), ("OUTLAST_MASTER_KEY", "sesame")];
        let config = resolve(data.path(), &Serve::default(), &env).unwrap();
        assert_eq!(config.key.as_ref().unwrap().reveal(), "sesame");
        assert!(!format!("{config:?}").contains("sesame"));
    }
}
