//! From a fresh process to a session in it: `initialize`, then the shortest way back to the conversation.
//!
//! ```text
//! initialize ─► session/resume ─► session/load ─► session/new ─► settings ─► ready
//!                   (any error or time-out moves on; each only where there is something to resume
//!                    and the agent says that it can)
//! ```

use super::{Acp, Phase, rpc};
use crate::{Cx, Said};
use agent_client_protocol_schema::{
    ProtocolVersion,
    v1::{
        EnvVariable, HttpHeader, Implementation, InitializeRequest, LoadSessionRequest,
        McpServer as AcpServer, McpServerHttp, McpServerSse, McpServerStdio, NewSessionRequest,
        ResumeSessionRequest,
    },
};
use protocol::{
    Actor, How, McpServer, OccupantStarted, Outcome, Raw, Reason, Timestamp, limits::HANDSHAKE_SECS,
};
use serde_json::{Value, value::RawValue};

/// An agent's own session id, kept in the session's state.
const SESSION_BYTES: usize = 1024;

/// A handshake under way.
#[derive(Debug)]
pub(super) struct Opening {
    step: Step,
    /// The id of the request that is waited for.
    pub(super) call: String,
    pub(super) until: Timestamp,
    agent: Agent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Initialize,
    Resume,
    Load,
    New,
}

/// What the agent said of itself.
#[derive(Debug, Default)]
struct Agent {
    info: Option<Raw>,
    capabilities: Option<Raw>,
    can_load: bool,
    can_resume: bool,
    takes_http: bool,
    takes_sse: bool,
}

/// What an update that comes during the handshake is.
pub(super) enum Hears {
    Ours,
    /// The conversation told again by `session/load`: the journal has it.
    Replay,
    Others,
}

impl Opening {
    pub(super) fn hears(&self, session: &str, resume: Option<&str>) -> Hears {
        let before = resume == Some(session);
        match self.step {
            Step::Initialize => Hears::Others,
            Step::Resume if before => Hears::Ours,
            Step::Load if before => Hears::Replay,
            Step::Resume | Step::Load => Hears::Others,
            // The tail of a load that was given up.
            Step::New if before => Hears::Replay,
            // One process has one session, so that this is the one whose id is on its way.
            Step::New => Hears::Ours,
        }
    }

    /// For a sentence about what happened then.
    pub(super) const fn when(&self) -> &'static str {
        match self.step {
            Step::Initialize => "before it answered initialize",
            Step::Resume => "before it answered session/resume",
            Step::Load => "before it answered session/load",
            Step::New => "before it answered session/new",
        }
    }
}

impl Acp {
    pub(super) fn initialize(&mut self, cx: &mut Cx) {
        let params = InitializeRequest::new(ProtocolVersion::V1)
            .client_info(Implementation::new("outlast", env!("CARGO_PKG_VERSION")));
        let call = self.call(cx);
        cx.send(rpc::request(&call, "initialize", &params));
        self.phase = Phase::Opening(Opening {
            step: Step::Initialize,
            call,
            until: cx.after(HANDSHAKE_SECS),
            agent: Agent::default(),
        });
    }

    pub(super) fn tick_handshake(&mut self, cx: &mut Cx) {
        let Phase::Opening(opening) = &self.phase else { return };
        if cx.now < opening.until {
            return;
        }
        let text = format!("no answer within {HANDSHAKE_SECS} s");
        self.step_failed(&text, cx);
    }

    pub(super) fn handshake_reply(&mut self, reply: rpc::Reply<'_>, cx: &mut Cx) {
        let Phase::Opening(opening) = &self.phase else { return };
        match (opening.step, reply) {
            (_, Err(error)) => self.step_failed(&error.message, cx),
            (Step::Initialize, Ok(result)) => self.initialized(result, cx),
            (Step::Resume, Ok(result)) => self.opened(How::Resumed, result, cx),
            (Step::Load, Ok(result)) => self.opened(How::Loaded, result, cx),
            (Step::New, Ok(result)) => {
                let how = if self.begin.resume.is_some() { How::Fresh } else { How::New };
                self.opened(how, result, cx);
            }
        }
    }

    fn initialized(&mut self, result: Option<&RawValue>, cx: &mut Cx) {
        let value: Value = result.and_then(rpc::read).unwrap_or_default();
        let version = value.get("protocolVersion");
        if version.is_some_and(|version| version.as_u64() != Some(1)) {
            let said = version.map(ToString::to_string).unwrap_or_default();
            let text = format!("it speaks version {said} of the protocol, and this server speaks version 1");
            return self.step_failed(&text, cx);
        }
        let capabilities = value.get("agentCapabilities").cloned().unwrap_or_default();
        let flag = |path: &str| capabilities.pointer(path).and_then(Value::as_bool) == Some(true);
        let raw = |key: &str| {
            let value = value.get(key).filter(|value| !value.is_null())?;
            Some(self.begin.redactor.raw(Raw::of(value).ok()?))
        };
        let agent = Agent {
            info: raw("agentInfo"),
            capabilities: raw("agentCapabilities"),
            can_load: flag("/loadSession"),
            // Present is advertised, whatever it holds, unless it says no.
            can_resume: capabilities
                .pointer("/sessionCapabilities/resume")
                .is_some_and(|resume| !matches!(resume, Value::Null | Value::Bool(false))),
            takes_http: flag("/mcpCapabilities/http"),
            takes_sse: flag("/mcpCapabilities/sse"),
        };
        self.warn_of_left_out(&agent, cx);
        let step = match self.begin.resume {
            Some(_) if agent.can_resume => Step::Resume,
            Some(_) if agent.can_load => Step::Load,
            _ => Step::New,
        };
        self.ask(step, agent, cx);
    }

    fn ask(&mut self, step: Step, agent: Agent, cx: &mut Cx) {
        let call = self.call(cx);
        let cwd = self.begin.cwd.clone();
        let servers = self.servers(&agent);
        let before = self.begin.resume.clone().unwrap_or_default();
        cx.send(match step {
            Step::Resume => {
                let params = ResumeSessionRequest::new(before, cwd).mcp_servers(servers);
                rpc::request(&call, "session/resume", &params)
            }
            Step::Load => {
                let params = LoadSessionRequest::new(before, cwd).mcp_servers(servers);
                rpc::request(&call, "session/load", &params)
            }
            Step::New | Step::Initialize => {
                rpc::request(&call, "session/new", &NewSessionRequest::new(cwd).mcp_servers(servers))
            }
        });
        self.phase = Phase::Opening(Opening { step, call, until: cx.after(HANDSHAKE_SECS), agent });
    }

    /// Moves on to the next way, or gives up.
    fn step_failed(&mut self, text: &str, cx: &mut Cx) {
        let Phase::Opening(opening) = &mut self.phase else { return };
        let (step, agent) = (opening.step, std::mem::take(&mut opening.agent));
        match step {
            Step::Resume | Step::Load => {
                let call = if step == Step::Resume { "session/resume" } else { "session/load" };
                self.warn(&format!("{call} did not work: {text}"), cx);
                let next = if step == Step::Resume && agent.can_load { Step::Load } else { Step::New };
                self.ask(next, agent, cx);
            }
            Step::Initialize | Step::New => {
                let call = if step == Step::Initialize { "initialize" } else { "session/new" };
                let text = format!("the agent did not start: {call}: {text}");
                self.over((Outcome::Failed, Reason::AgentNotStarted), &text, cx);
            }
        }
    }

    fn opened(&mut self, how: How, result: Option<&RawValue>, cx: &mut Cx) {
        let value: Value = result.and_then(rpc::read).unwrap_or_default();
        let session = match how {
            How::New | How::Fresh => value.get("sessionId").and_then(Value::as_str).map(str::to_owned),
            How::Resumed | How::Loaded => self.begin.resume.clone(),
        };
        let Some(session) = session.filter(|id| !id.is_empty() && id.len() <= SESSION_BYTES) else {
            return self.step_failed("the answer has no usable sessionId", cx);
        };
        let Phase::Opening(opening) = &mut self.phase else { return };
        let agent = std::mem::take(&mut opening.agent);
        self.config.advertise(&value);
        self.flush(cx);
        cx.record(
            Actor::Agent,
            OccupantStarted {
                how,
                agent_info: agent.info,
                capabilities: agent.capabilities,
                agent_session: Some(self.begin.redactor.text(&session).into_owned()),
            },
        );
        self.phase = Phase::Live { session };
        self.apply_again(how, cx);
    }

    pub(super) fn say_ready(&self, how: How, cx: &mut Cx) {
        if let Some(session) = self.session() {
            cx.say(Said::Ready { how, agent_session: session.to_owned() });
        }
    }

    fn servers(&self, agent: &Agent) -> Vec<AcpServer> {
        let server = |(name, server): (&String, &McpServer)| match server {
            McpServer::Command { command, args, env } => {
                let env = env.iter().map(|(name, value)| EnvVariable::new(name, value)).collect();
                let server = McpServerStdio::new(name, command).args(args.clone()).env(env);
                Some(AcpServer::Stdio(server))
            }
            McpServer::Url { url, headers } => {
                let headers = headers.iter().map(|(name, value)| HttpHeader::new(name, value)).collect();
                // The older transport is chosen only where the address says so, or nothing else is taken.
                let sse =
                    agent.takes_sse && (url.trim_end_matches('/').ends_with("/sse") || !agent.takes_http);
                match (sse, agent.takes_http) {
                    (true, _) => Some(AcpServer::Sse(McpServerSse::new(name, url).headers(headers))),
                    (false, true) => Some(AcpServer::Http(McpServerHttp::new(name, url).headers(headers))),
                    (false, false) => None,
                }
            }
        };
        self.begin.mcp_servers.iter().filter_map(server).collect()
    }

    fn warn_of_left_out(&self, agent: &Agent, cx: &mut Cx) {
        if agent.takes_http || agent.takes_sse {
            return;
        }
        for (name, server) in &self.begin.mcp_servers {
            if matches!(server, McpServer::Url { .. }) {
                self.warn(
                    &format!(
                        "the MCP server {name:?} was left out: the agent takes none by URL, only commands"
                    ),
                    cx,
                );
            }
        }
    }
}
