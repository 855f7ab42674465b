//! What a session's processes may reach and take: the operator's bounds, the agent's policy within them, and the
//! session's own within that. Pure: it decides and explains, and opens nothing.

use place::{
    Outlook, Terms, Walls,
    keeper::{Access, HostRule as Rule, Limits, Mount, Network as Reach},
};
use protocol::{
    Bounds, Code, Fault, HostRule, McpServer, McpServers, MountRule, Network, NetworkWord, PlaceKind, Policy,
    Tenant, Verdict,
};
use std::path::{Component, Path, PathBuf};

const MIB: u64 = 1024 * 1024;
/// Mounts of one sandbox.
const MOUNTS: usize = 32;
/// Hosts of one sandbox.
const HOSTS: usize = 256;

/// What the operator allows at most.
#[derive(Debug, Clone)]
pub struct Sandboxing {
    /// Where sessions run that name no place.
    pub place: PlaceKind,
    pub host_place: HostPlace,
    pub projects: Projects,
    /// A folder that holds a whole system, for sandboxes to see instead of the machine's own.
    pub root: Option<PathBuf>,
    pub network: MostNetwork,
    /// Ports of the machine's loopback that sandboxes may be let through to.
    pub forwards: Vec<u16>,
    /// Folders of the machine below which agents may mount.
    pub mounts: Vec<PathBuf>,
    /// Bounds for agents that name none, and the most that any may name.
    pub limits: Bounds,
}

/// What the operator says about projects.
#[derive(Debug, Clone, Default)]
pub struct Projects {
    /// Who may have one; whoever may have the bare host may have this too.
    pub place: HostPlace,
    /// Folders below which they lie; anywhere if there is none.
    pub within: Vec<PathBuf>,
    /// What of people's homes can be read in them.
    pub readable: Vec<PathBuf>,
}

/// Who may choose the bare host, or a project on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostPlace {
    Nobody,
    /// Keys of the tenant `default`.
    #[default]
    Operator,
    Everybody,
}

/// The widest network that an agent's policy may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MostNetwork {
    None,
    #[default]
    Allow,
    Full,
}

impl Default for Sandboxing {
    fn default() -> Self {
        Self {
            place: PlaceKind::Sandbox,
            host_place: HostPlace::default(),
            projects: Projects::default(),
            root: None,
            network: MostNetwork::default(),
            forwards: Vec::new(),
            mounts: Vec::new(),
            limits: Bounds {
                memory_mb: Some(4096),
                processes: Some(1024),
                cpu_percent: None,
                open_files: Some(8192),
                disk_mb: Some(10 * 1024),
                tmp_mb: Some(512),
            },
        }
    }
}

/// What applies to one session.
#[derive(Debug, Clone)]
pub(crate) struct Applied {
    pub(crate) terms: Terms,
    pub(crate) disk_bytes: Option<u64>,
    /// What was asked for and will not work, for the session's record.
    pub(crate) warnings: Vec<String>,
}

pub(crate) fn walls(place: PlaceKind) -> Walls {
    match place {
        PlaceKind::Sandbox => Walls::Sandbox,
        PlaceKind::Project => Walls::Project,
        PlaceKind::Host | PlaceKind::Ssh | PlaceKind::Docker => Walls::None,
    }
}

impl Sandboxing {
    /// Where a new session runs, if its tenant may have that.
    pub(crate) fn choose(&self, tenant: &Tenant, wanted: Option<PlaceKind>) -> Result<PlaceKind, Fault> {
        let place = wanted.unwrap_or(self.place);
        let lets = |who: HostPlace| match who {
            HostPlace::Everybody => true,
            HostPlace::Operator => *tenant == Tenant::default_tenant(),
            HostPlace::Nobody => false,
        };
        // Each but the sandbox lets a session see what is the operator's.
        let allowed = match place {
            PlaceKind::Sandbox => true,
            PlaceKind::Project => lets(self.host_place) || lets(self.projects.place),
            PlaceKind::Host | PlaceKind::Ssh | PlaceKind::Docker => lets(self.host_place),
        };
        if allowed || wanted.is_none() {
            return Ok(place);
        }
        let what = if place == PlaceKind::Project {
            "work in this machine's folders"
        } else {
            "run on the bare host"
        };
        Err(Fault::new(Code::Forbidden, format!("The operator does not let this tenant's sessions {what}")))
    }

    /// The terms for a session. What goes beyond the operator's bounds, or beyond the agent's policy, is refused.
    pub(crate) fn apply(
        &self,
        place: PlaceKind,
        agent: &Policy,
        session: Option<&Policy>,
        servers: &McpServers,
    ) -> Result<Applied, Fault> {
        let bounds = session.map_or(agent.limits, |own| own.limits.within(agent.limits)).within(self.limits);
        let disk_bytes = bounds.disk_mb.map(|mb| mb.saturating_mul(MIB));
        if place == PlaceKind::Host {
            let warnings = vec!["it runs on the bare host: nothing is contained".to_owned()];
            return Ok(Applied { terms: Terms::host(), disk_bytes, warnings });
        }
        let mut warnings = Vec::new();
        let network = self.network(agent, session, servers, &mut warnings)?;
        let mounts = self.mounts(agent, session)?;
        let terms = Terms {
            outlook: self.root.clone().map_or(Outlook::System, Outlook::Root),
            limits: Limits {
                memory_bytes: bounds.memory_mb.map(|mb| mb.saturating_mul(MIB)),
                processes: bounds.processes,
                cpu_percent: bounds.cpu_percent,
                open_files: bounds.open_files,
            },
            mounts,
            network,
            tmp_bytes: bounds.tmp_mb.unwrap_or(1).saturating_mul(MIB),
        };
        Ok(Applied { terms, disk_bytes, warnings })
    }

    fn network(
        &self,
        agent: &Policy,
        session: Option<&Policy>,
        servers: &McpServers,
        warnings: &mut Vec<String>,
    ) -> Result<Reach, Fault> {
        let outer = agent.network.clone().unwrap_or(Network::NONE);
        let wanted = match session.and_then(|own| own.network.as_ref()) {
            None => outer,
            Some(own) => narrower(own, &outer)?,
        };
        let mut rules = match (wanted, self.network) {
            (Network::Word(NetworkWord::Full), MostNetwork::Full) => return Ok(Reach::Full {}),
            (Network::Word(NetworkWord::Full), MostNetwork::None | MostNetwork::Allow) => {
                return Err(beyond("the network \"full\"", "sandbox.network"));
            }
            (Network::Word(NetworkWord::None), _) => Vec::new(),
            (Network::Allow(rules), MostNetwork::None) if !rules.is_empty() => {
                return Err(beyond("a network", "sandbox.network"));
            }
            (Network::Allow(rules), _) => rules,
        };
        for rule in rules.iter().filter(|rule| rule.is_loopback()) {
            if !rule.port.is_some_and(|port| self.forwards.contains(&port)) {
                return Err(beyond(&format!("the machine's own {rule}"), "sandbox.forwards"));
            }
        }
        for (name, rule) in servers.iter().filter_map(|(name, server)| Some((name, host_of(server)?))) {
            let allowed = match rule.is_loopback() {
                true => rule.port.is_some_and(|port| self.forwards.contains(&port)),
                false => self.network != MostNetwork::None,
            };
            if allowed {
                rules.push(rule);
            } else {
                warnings.push(format!(
                    "the MCP server {name} at {rule} cannot be reached from the sandbox: the operator's sandbox.{} does not allow it",
                    if rule.is_loopback() { "forwards" } else { "network" },
                ));
            }
        }
        if rules.len() > HOSTS {
            return Err(Fault::invalid(format!("the policy names over {HOSTS} hosts")));
        }
        if rules.is_empty() {
            return Ok(Reach::None {});
        }
        let forwards = rules.iter().filter(|rule| rule.is_loopback()).filter_map(|rule| rule.port).collect();
        let hosts = rules.into_iter().filter(|rule| !rule.is_loopback());
        let hosts = hosts.map(|rule| Rule { host: rule.host, port: rule.port }).collect();
        Ok(Reach::Allow { hosts, forwards })
    }

    fn mounts(&self, agent: &Policy, session: Option<&Policy>) -> Result<Vec<Mount>, Fault> {
        let mut chosen = agent.mounts.clone();
        if let Some(own) = session.filter(|own| !own.mounts.is_empty()) {
            let known = |rule: &MountRule| {
                agent.mounts.iter().any(|outer| {
                    (&outer.from, outer.to()) == (&rule.from, rule.to()) && (outer.write || !rule.write)
                })
            };
            if let Some(rule) = own.mounts.iter().find(|rule| !known(rule)) {
                return Err(wider(&format!("the mount of {}", rule.from)));
            }
            chosen.clone_from(&own.mounts);
        }
        if chosen.len() > MOUNTS {
            return Err(Fault::invalid(format!("the policy names over {MOUNTS} mounts")));
        }
        chosen.iter().map(|rule| self.mount(rule)).collect()
    }

    fn mount(&self, rule: &MountRule) -> Result<Mount, Fault> {
        let plain = |path: &str| {
            let path = Path::new(path);
            path.is_absolute()
                && path.components().skip(1).all(|part| matches!(part, Component::Normal(_)))
                && path.components().nth(1).is_some()
        };
        if !plain(&rule.from) || !plain(rule.to()) {
            return Err(Fault::invalid(format!("{:?} is not a plain absolute path to mount", rule.from)));
        }
        // By what it really is: a link below an allowed folder may lead out of it.
        let real = std::fs::canonicalize(&rule.from)
            .map_err(|error| Fault::invalid(format!("{} cannot be mounted: {error}", rule.from)))?;
        if !self.mounts.iter().any(|allowed| real.starts_with(allowed)) {
            return Err(beyond(&format!("a mount of {}", rule.from), "sandbox.mounts"));
        }
        let access = if rule.write { Access::ReadWrite } else { Access::ReadOnly };
        Ok(Terms::mount(&real, Path::new(rule.to()), access))
    }
}

/// The agent's policy for what it does unasked and how much it uses, narrowed by the session's own: the smaller limit,
/// a word that denies, and no rule of the session's that allows. (To be asked instead, a session brings a rule that asks.)
pub(crate) fn narrowed(agent: &Policy, session: Option<&Policy>) -> Policy {
    fn least<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
        a.into_iter().chain(b).min()
    }
    let Some(own) = session else { return agent.clone() };
    let own_rules = own.rules.iter().filter(|rule| rule.answer != Verdict::Allow);
    Policy {
        turn_steps: least(agent.turn_steps, own.turn_steps),
        turn_cost_usd: least(agent.turn_cost_usd, own.turn_cost_usd),
        session_cost_usd: least(agent.session_cost_usd, own.session_cost_usd),
        session_tokens: least(agent.session_tokens, own.session_tokens),
        session_turns: least(agent.session_turns, own.session_turns),
        permission_secs: least(agent.permission_secs, own.permission_secs),
        permissions: if own.permissions == Verdict::Deny { Verdict::Deny } else { agent.permissions },
        rules: own_rules.chain(&agent.rules).cloned().collect(),
        ..agent.clone()
    }
}

fn narrower(own: &Network, outer: &Network) -> Result<Network, Fault> {
    match (own, outer) {
        (Network::Word(NetworkWord::None), _) => {}
        (_, Network::Word(NetworkWord::Full)) => {}
        (Network::Allow(own), Network::Allow(outer)) => {
            if let Some(rule) = own.iter().find(|rule| !outer.iter().any(|outer| outer.covers(rule))) {
                return Err(wider(&format!("the host {rule}")));
            }
        }
        (Network::Allow(rules), Network::Word(NetworkWord::None)) if rules.is_empty() => {}
        (Network::Allow(_) | Network::Word(NetworkWord::Full), _) => return Err(wider("its network")),
    }
    Ok(own.clone())
}

/// The host and port of a server with an address.
fn host_of(server: &McpServer) -> Option<HostRule> {
    let McpServer::Url { url, .. } = server else { return None };
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let rule: HostRule = authority.parse().ok().or_else(|| format!("{authority}:80").parse().ok())?;
    let usual = if scheme.eq_ignore_ascii_case("https") { 443 } else { 80 };
    Some(HostRule { port: authority.contains(':').then_some(rule.port).flatten().or(Some(usual)), ..rule })
}

fn wider(what: &str) -> Fault {
    Fault::invalid(format!("The session's policy may only narrow the agent's, which does not have {what}"))
}

fn beyond(what: &str, setting: &str) -> Fault {
    Fault::new(
        Code::Forbidden,
        format!("The policy asks for {what}, which the operator's {setting} does not allow"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Policy {
        serde_json::from_str(text).unwrap()
    }

    fn reach(operator: &Sandboxing, agent: &str, session: Option<&str>) -> Result<Reach, Code> {
        let session = session.map(policy);
        operator
            .apply(PlaceKind::Sandbox, &policy(agent), session.as_ref(), &McpServers::new())
            .map(|applied| applied.terms.network)
            .map_err(|fault| fault.code)
    }

    fn allow(hosts: &[(&str, Option<u16>)], forwards: &[u16]) -> Reach {
        let hosts = hosts.iter().map(|(host, port)| Rule { host: (*host).to_owned(), port: *port }).collect();
        Reach::Allow { hosts, forwards: forwards.to_vec() }
    }

    #[test]
    fn a_network_is_nothing_unless_named_and_never_more_than_allowed() {
        let operator = Sandboxing { forwards: vec![8080], ..Sandboxing::default() };
        for (agent, session, want) in [
            ("{}", None, Ok(Reach::None {})),
            (r#"{"network":"none"}"#, None, Ok(Reach::None {})),
            (r#"{"network":"full"}"#, None, Err(Code::Forbidden)),
            (r#"{"network":["a.org:443"]}"#, None, Ok(allow(&[("a.org", Some(443))], &[]))),
            (r#"{"network":["localhost:8080"]}"#, None, Ok(allow(&[], &[8080]))),
            (r#"{"network":["127.0.0.1:22"]}"#, None, Err(Code::Forbidden)),
            (
                r#"{"network":["*.a.org"]}"#,
                Some(r#"{"network":["b.a.org"]}"#),
                Ok(allow(&[("b.a.org", None)], &[])),
            ),
            (r#"{"network":["*.a.org"]}"#, Some(r#"{"network":"none"}"#), Ok(Reach::None {})),
            (r#"{"network":["a.org"]}"#, Some(r#"{"network":["b.org"]}"#), Err(Code::InvalidRequest)),
            ("{}", Some(r#"{"network":["b.org"]}"#), Err(Code::InvalidRequest)),
            (r#"{"network":["a.org"]}"#, Some(r#"{"network":"full"}"#), Err(Code::InvalidRequest)),
        ] {
            assert_eq!(reach(&operator, agent, session), want, "{agent} {session:?}");
        }
        let open = Sandboxing { network: MostNetwork::Full, ..Sandboxing::default() };
        assert_eq!(reach(&open, r#"{"network":"full"}"#, None), Ok(Reach::Full {}));
        assert_eq!(
            reach(&open, r#"{"network":"full"}"#, Some(r#"{"network":["a.org"]}"#)),
            Ok(allow(&[("a.org", None)], &[]))
        );
        let closed = Sandboxing { network: MostNetwork::None, ..Sandboxing::default() };
        assert_eq!(reach(&closed, r#"{"network":["a.org"]}"#, None), Err(Code::Forbidden));
    }

    #[test]
    fn a_session_only_narrows_what_its_agent_may_do_unasked() {
        let agent = policy(
            r#"{"turn_steps":5,"session_turns":3,"permissions":"allow","rules":[{"tool":"read","answer":"allow"}]}"#,
        );
        assert_eq!(narrowed(&agent, None), agent);
        let own = policy(
            r#"{"turn_steps":9,"session_turns":2,"turn_cost_usd":0.5,"permissions":"deny",
                "rules":[{"answer":"allow"},{"tool":"execute","answer":"deny"}]}"#,
        );
        let both = narrowed(&agent, Some(&own));
        assert_eq!((both.turn_steps, both.session_turns), (Some(5), Some(2)));
        assert_eq!(both.permissions, Verdict::Deny);
        let answers: Vec<_> = both.rules.iter().map(|rule| rule.answer).collect();
        assert_eq!(answers, [Verdict::Deny, Verdict::Allow], "its own first, and none that allows");
        assert!(both.turn_cost_usd.is_some());
        assert_eq!(narrowed(&agent, Some(&policy("{}"))), agent, "what is left out changes nothing");
    }

    #[test]
    fn mcp_servers_join_the_list_within_the_operators_bounds() {
        let operator = Sandboxing { forwards: vec![8000], ..Sandboxing::default() };
        let servers: McpServers = serde_json::from_str(
            r#"{"a":{"url":"https://tools.example.org/mcp"},"b":{"url":"http://user@host.org:8081/x?y"},
                "c":{"url":"http://127.0.0.1:8000/mcp"},"d":{"url":"http://127.0.0.1:9000/mcp"},"e":{"command":"x"}}"#,
        )
        .unwrap();
        let applied = operator.apply(PlaceKind::Sandbox, &Policy::default(), None, &servers).unwrap();
        let want = allow(&[("tools.example.org", Some(443)), ("host.org", Some(8081))], &[8000]);
        assert_eq!(applied.terms.network, want);
        assert_eq!(applied.warnings.len(), 1);
        assert!(applied.warnings[0].contains("127.0.0.1:9000"));
    }

    #[test]
    fn mounts_are_the_operators_to_allow() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("data")).unwrap();
        std::os::unix::fs::symlink("/etc", real.join("out")).unwrap();
        let operator = Sandboxing { mounts: vec![real.clone()], ..Sandboxing::default() };
        let shown = real.display();
        let apply = |agent: &str, session: Option<&str>| {
            let session = session.map(policy);
            let applied =
                operator.apply(PlaceKind::Sandbox, &policy(agent), session.as_ref(), &McpServers::new());
            applied.map(|applied| applied.terms.mounts.len()).map_err(|fault| fault.code)
        };
        let data = format!(r#"{{"mounts":[{{"from":"{shown}/data","to":"/data"}}]}}"#);
        assert_eq!(apply(&data, None), Ok(1));
        assert_eq!(apply(&data, Some(&data)), Ok(1));
        let written = data.replace(r#""to""#, r#""write":true,"to""#);
        assert_eq!(apply(&data, Some(&written)), Err(Code::InvalidRequest), "a session cannot widen");
        assert_eq!(apply("{}", Some(&data)), Err(Code::InvalidRequest));
        assert_eq!(apply(&format!(r#"{{"mounts":[{{"from":"{shown}/out"}}]}}"#), None), Err(Code::Forbidden));
        assert_eq!(apply(r#"{"mounts":[{"from":"/etc"}]}"#, None), Err(Code::Forbidden));
        assert_eq!(apply(r#"{"mounts":[{"from":"etc"}]}"#, None), Err(Code::InvalidRequest));
    }

    #[test]
    fn the_bare_host_is_for_whom_the_operator_says() {
        let (own, other) = (Tenant::default_tenant(), Tenant::new("acme").unwrap());
        let choose = |host_place, tenant, wanted| {
            let operator = Sandboxing { host_place, ..Sandboxing::default() };
            operator.choose(tenant, wanted).map_err(|fault| fault.code)
        };
        let host = Some(PlaceKind::Host);
        assert_eq!(choose(HostPlace::Operator, &own, host), Ok(PlaceKind::Host));
        assert_eq!(choose(HostPlace::Operator, &other, host), Err(Code::Forbidden));
        assert_eq!(choose(HostPlace::Everybody, &other, host), Ok(PlaceKind::Host));
        assert_eq!(choose(HostPlace::Nobody, &own, host), Err(Code::Forbidden));
        assert_eq!(choose(HostPlace::Nobody, &own, None), Ok(PlaceKind::Sandbox));
        let project = |host_place, place, tenant| {
            let projects = Projects { place, ..Projects::default() };
            let operator = Sandboxing { host_place, projects, ..Sandboxing::default() };
            operator.choose(tenant, Some(PlaceKind::Project)).map_err(|fault| fault.code)
        };
        let (nobody, operator, everybody) = (HostPlace::Nobody, HostPlace::Operator, HostPlace::Everybody);
        assert_eq!(project(nobody, operator, &own), Ok(PlaceKind::Project));
        assert_eq!(project(nobody, operator, &other), Err(Code::Forbidden));
        assert_eq!(project(nobody, everybody, &other), Ok(PlaceKind::Project));
        assert_eq!(project(everybody, nobody, &other), Ok(PlaceKind::Project));
        assert_eq!(project(nobody, nobody, &own), Err(Code::Forbidden));
    }
}
