//! From a fresh process to a session in it: `initialize`, `authenticate` where it is wanted, then the shortest
//! way back to the conversation.
//!
//! ```text
//! initialize ─► session/list ─► session/fork ─► session/resume ─► session/load ─► session/new ─► transcript ─► ready
//!      └authenticate┘                                                 └replay┘
//!                   (any error or time-out moves on; each only where there is something to resume and the
//!                    agent says that it can; settings are applied again before it is ready)
//! ```

use super::{Acp, Before, Phase, PlaceOffers, replay::Replay, rpc};
use crate::{Cx, Done, Said};
use agent_client_protocol_schema::{
    ProtocolVersion,
    v1::{
        AuthenticateRequest, ClientCapabilities, EnvVariable, FileSystemCapabilities, HttpHeader,
        Implementation, InitializeRequest, LoadSessionRequest, McpServer as AcpServer, McpServerHttp,
        McpServerSse, McpServerStdio, NewSessionRequest, ResumeSessionRequest,
    },
};
use protocol::{
    Actor, Fault, How, McpServer, OccupantStarted, Outcome, Raw, Reason, Timestamp, limits::HANDSHAKE_SECS,
};
use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};
use std::collections::VecDeque;

/// Some agents answer `session/load` first and tell the conversation again afterwards: this long is waited for
/// it to begin, and for silence once it holds what it must.
const REPLAY_SECS: u64 = 3;
const QUIET_SECS: u64 = 1;

const NO_SESSION: &str = "the answer has no usable sessionId";

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
    replay: Replay,
    /// The answer that opened the session, while something else must come before it is used.
    answer: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Initialize,
    Authenticate,
    /// Does the agent still have the conversation?
    List,
    /// A conversation of its own, that begins as another session's.
    Fork,
    Resume,
    Load,
    /// `session/load` was answered before it told everything again.
    Replay,
    New,
    /// A new session is there; the conversation before it is being written down.
    Transcript,
}

impl Step {
    pub(super) const fn call(self) -> &'static str {
        match self {
            Self::Initialize => "initialize",
            Self::Authenticate => "authenticate",
            Self::List => "session/list",
            Self::Fork => "session/fork",
            Self::Resume => "session/resume",
            Self::Load | Self::Replay => "session/load",
            Self::New => "session/new",
            Self::Transcript => "the transcript",
        }
    }
}

/// What the agent said of itself.
#[derive(Debug, Default)]
pub(super) struct Agent {
    info: Option<Raw>,
    capabilities: Option<Raw>,
    pub(super) can_load: bool,
    pub(super) can_resume: bool,
    pub(super) can_list: bool,
    pub(super) can_fork: bool,
    /// Instructions may come with the session, and need not be in a prompt.
    takes_instructions: bool,
    takes_http: bool,
    takes_sse: bool,
    auth: Auth,
    /// What is still to be tried, the next first.
    pub(super) ways: VecDeque<Step>,
    /// Pages of its list that were asked for.
    pub(super) pages: u32,
}

/// How the agent wants to know who pays.
#[derive(Debug, Default)]
struct Auth {
    /// Methods that need nobody at a terminal.
    methods: Vec<String>,
    /// One has been called already.
    called: bool,
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
            Step::Initialize | Step::Authenticate | Step::List => Hears::Others,
            // Under whichever id it tells: it can be nothing but the conversation so far.
            Step::Fork => Hears::Replay,
            Step::Resume if before => Hears::Ours,
            Step::Load | Step::Replay if before => Hears::Replay,
            Step::Resume | Step::Load | Step::Replay => Hears::Others,
            // The tail of a load that was given up.
            Step::New | Step::Transcript if before => Hears::Replay,
            // One process has one session, so that this is the one whose id is on its way.
            Step::New | Step::Transcript => Hears::Ours,
        }
    }

    /// For a sentence about what happened then.
    pub(super) const fn when(&self) -> &'static str {
        match self.step {
            Step::Initialize => "before it answered initialize",
            Step::Authenticate => "before it answered authenticate",
            Step::List => "before it answered session/list",
            Step::Fork => "before it answered session/fork",
            Step::Resume => "before it answered session/resume",
            Step::Load | Step::Replay => "before it answered session/load",
            Step::New => "before it answered session/new",
            Step::Transcript => "before it was given its transcript",
        }
    }
}

impl Acp {
    pub(super) fn initialize(&mut self, cx: &mut Cx) {
        let files = self.begin.terms.place >= PlaceOffers::Files;
        let capabilities = ClientCapabilities::new()
            .fs(FileSystemCapabilities::new().read_text_file(files).write_text_file(files))
            .terminal(self.begin.terms.place >= PlaceOffers::FilesAndTerminals);
        let params = InitializeRequest::new(ProtocolVersion::V1)
            .client_capabilities(capabilities)
            .client_info(Implementation::new("outlast", env!("CARGO_PKG_VERSION")));
        let call = self.call(cx);
        cx.send(rpc::request(&call, "initialize", &params));
        self.wait(Step::Initialize, call, Agent::default(), cx);
    }

    pub(super) fn tick_handshake(&mut self, cx: &mut Cx) {
        let Phase::Opening(opening) = &self.phase else { return };
        if cx.now < opening.until {
            return;
        }
        match opening.step {
            Step::Replay if opening.replay.is_found() => self.opened(How::Loaded, cx),
            Step::Replay => self.forgotten(cx),
            Step::Transcript => {
                let text = format!("it was not written within {HANDSHAKE_SECS} s");
                self.transcribed(Err(Fault::new(protocol::Code::TimedOut, text)), cx);
            }
            Step::Initialize
            | Step::Authenticate
            | Step::List
            | Step::Fork
            | Step::Resume
            | Step::Load
            | Step::New => {
                self.step_failed(&format!("no answer within {HANDSHAKE_SECS} s"), cx);
            }
        }
    }

    /// What `session/load` tells again is compared, and neither recorded nor streamed.
    pub(super) fn hear_replay(&mut self, update: &RawValue, cx: &mut Cx) {
        let Phase::Opening(opening) = &mut self.phase else { return };
        opening.replay.hear(update.get());
        match opening.step {
            // However long a conversation is, telling it is a sign of life.
            Step::Load | Step::Fork => opening.until = cx.after(HANDSHAKE_SECS),
            Step::Replay if opening.replay.is_found() => opening.until = cx.after(QUIET_SECS),
            Step::Replay => opening.until = cx.after(REPLAY_SECS),
            Step::Initialize
            | Step::Authenticate
            | Step::List
            | Step::Resume
            | Step::New
            | Step::Transcript => {}
        }
    }

    fn forgotten(&mut self, cx: &mut Cx) {
        self.step_failed("it was answered, and what was told again does not hold the last prompt", cx);
    }

    pub(super) fn handshake_reply(&mut self, reply: rpc::Reply<'_>, cx: &mut Cx) {
        let Phase::Opening(opening) = &self.phase else { return };
        let step = opening.step;
        match reply {
            Err(error) if error.code == Some(i64::from(rpc::AUTH_REQUIRED)) => {
                self.wants_auth(step, &error.message, cx);
            }
            Err(error) => self.step_failed(&error.message, cx),
            Ok(result) => self.step_done(step, result, cx),
        }
    }

    fn step_done(&mut self, step: Step, result: Option<&RawValue>, cx: &mut Cx) {
        let value = result.and_then(rpc::read).unwrap_or_default();
        let Phase::Opening(opening) = &mut self.phase else { return };
        opening.answer = value;
        match step {
            Step::Initialize => self.initialized(cx),
            Step::Authenticate => {
                let agent = std::mem::take(&mut opening.agent);
                self.go_on(agent, cx);
            }
            Step::List => {
                let (answer, agent) =
                    (std::mem::take(&mut opening.answer), std::mem::take(&mut opening.agent));
                self.listed(&answer, agent, cx);
            }
            Step::Fork => self.opened(How::Forked, cx),
            Step::Resume => self.opened(How::Resumed, cx),
            Step::Load if opening.replay.is_found() => self.opened(How::Loaded, cx),
            Step::Load => {
                opening.step = Step::Replay;
                opening.until = cx.after(REPLAY_SECS);
            }
            Step::New => match (&self.begin.terms.before, &self.begin.resume) {
                (Before::Conversation { .. }, _) => self.transcribe(cx),
                (Before::Nothing, Some(_)) => self.opened(How::Fresh, cx),
                (Before::Nothing, None) => self.opened(How::New, cx),
            },
            // Nothing is asked in these.
            Step::Replay | Step::Transcript => {}
        }
    }

    fn initialized(&mut self, cx: &mut Cx) {
        let Phase::Opening(opening) = &mut self.phase else { return };
        let value = std::mem::take(&mut opening.answer);
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
        // Present is advertised, whatever it holds, unless it says no.
        let offers = |name: &str| {
            let found = capabilities.pointer(&format!("/sessionCapabilities/{name}"));
            found.is_some_and(|found| !matches!(found, Value::Null | Value::Bool(false)))
        };
        let mut agent = Agent {
            info: raw("agentInfo"),
            capabilities: raw("agentCapabilities"),
            can_load: flag("/loadSession"),
            can_resume: offers("resume"),
            can_list: offers("list"),
            can_fork: offers("fork"),
            takes_instructions: offers("systemPrompt"),
            takes_http: flag("/mcpCapabilities/http"),
            takes_sse: flag("/mcpCapabilities/sse"),
            auth: Auth { methods: auth_methods(&value), ..Auth::default() },
            ..Agent::default()
        };
        agent.ways = self.ways(&agent);
        self.warn_of_left_out(&agent, cx);
        match self.begin.terms.auth.clone() {
            Some(method) => self.authenticate(&method, agent, cx),
            None => self.go_on(agent, cx),
        }
    }

    /// Tries the next way.
    pub(super) fn go_on(&mut self, mut agent: Agent, cx: &mut Cx) {
        match agent.ways.pop_front().unwrap_or(Step::New) {
            Step::List => self.ask_list(None, agent, cx),
            step => self.ask(step, agent, cx),
        }
    }

    fn authenticate(&mut self, method: &str, mut agent: Agent, cx: &mut Cx) {
        agent.auth.called = true;
        let call = self.call(cx);
        cx.send(rpc::request(&call, "authenticate", &AuthenticateRequest::new(method.to_owned())));
        self.wait(Step::Authenticate, call, agent, cx);
    }

    /// The agent will not open a session for nobody. A way that it offers is tried when there is but one: which
    /// of several is right, only the agent's owner can say.
    fn wants_auth(&mut self, step: Step, text: &str, cx: &mut Cx) {
        let Phase::Opening(opening) = &mut self.phase else { return };
        match opening.agent.auth.methods.as_slice() {
            _ if opening.agent.auth.called => self.step_failed(text, cx),
            [only] => {
                let (method, mut agent) = (only.clone(), std::mem::take(&mut opening.agent));
                // The same way again, once it has been called.
                agent.ways.push_front(step);
                self.authenticate(&method, agent, cx);
            }
            [] => self.step_failed(text, cx),
            several => {
                let text =
                    format!("{text}; name one of its methods as auth in agent.toml: {}", several.join(", "));
                self.step_failed(&text, cx);
            }
        }
    }

    fn ask(&mut self, step: Step, agent: Agent, cx: &mut Cx) {
        let call = self.call(cx);
        let cwd = self.begin.cwd.clone();
        let servers = self.servers(&agent);
        let before = self.begin.resume.clone().unwrap_or_default();
        let instructed = agent.takes_instructions;
        cx.send(match step {
            // It has the same params as a resume.
            Step::Resume | Step::Fork => {
                let params = ResumeSessionRequest::new(before, cwd).mcp_servers(servers);
                rpc::request(&call, step.call(), &self.instructed(params, instructed))
            }
            Step::Load => {
                let params = LoadSessionRequest::new(before, cwd).mcp_servers(servers);
                rpc::request(&call, "session/load", &self.instructed(params, instructed))
            }
            Step::New
            | Step::Initialize
            | Step::Authenticate
            | Step::List
            | Step::Replay
            | Step::Transcript => {
                let params = NewSessionRequest::new(cwd).mcp_servers(servers);
                rpc::request(&call, "session/new", &self.instructed(params, instructed))
            }
        });
        self.wait(step, call, agent, cx);
    }

    /// The session's own instructions go along where the agent takes them so.
    fn instructed<T: Serialize>(&self, params: T, takes: bool) -> Instructed<'_, T> {
        let text = self.begin.terms.instructions.as_deref().filter(|_| takes);
        let system_prompt =
            text.map(|text| SystemPrompt { mode: "append", content: [TextBlock { kind: "text", text }] });
        Instructed { params, system_prompt }
    }

    pub(super) fn wait(&mut self, step: Step, call: String, agent: Agent, cx: &Cx) {
        let last_prompt = match &self.begin.terms.before {
            Before::Conversation { last_prompt } => last_prompt.as_deref(),
            Before::Nothing => None,
        };
        let replay = Replay::new(last_prompt);
        let until = cx.after(HANDSHAKE_SECS);
        self.phase =
            Phase::Opening(Box::new(Opening { step, call, until, agent, replay, answer: Value::Null }));
    }

    fn transcribe(&mut self, cx: &mut Cx) {
        let Phase::Opening(opening) = &mut self.phase else { return };
        if session_id(&opening.answer).is_none() {
            return self.step_failed(NO_SESSION, cx);
        }
        opening.step = Step::Transcript;
        opening.until = cx.after(HANDSHAKE_SECS);
        self.ask_transcript(cx);
    }

    /// The conversation is written down, or cannot be.
    pub(super) fn transcribed(&mut self, result: Result<Done, Fault>, cx: &mut Cx) {
        if !matches!(&self.phase, Phase::Opening(opening) if opening.step == Step::Transcript) {
            return;
        }
        match result {
            Ok(Done::Text(path)) => {
                self.transcript = Some(path);
                self.opened(How::Transcript, cx);
            }
            Ok(Done::Nothing | Done::Output { .. } | Done::Exited(_)) => self.opened(How::Fresh, cx),
            Err(fault) => {
                self.warn(&format!("the agent gets no transcript of the conversation: {fault}"), cx);
                self.opened(How::Fresh, cx);
            }
        }
    }

    /// Moves on to the next way, or gives up.
    fn step_failed(&mut self, text: &str, cx: &mut Cx) {
        let Phase::Opening(opening) = &mut self.phase else { return };
        let (step, agent) = (opening.step, std::mem::take(&mut opening.agent));
        let call = step.call();
        match step {
            // An agent that cannot authenticate may do without; if not, it says so next.
            Step::Authenticate | Step::List | Step::Fork | Step::Resume | Step::Load | Step::Replay => {
                self.warn(&format!("{call} did not work: {text}"), cx);
                self.go_on(agent, cx);
            }
            Step::Initialize | Step::New | Step::Transcript => {
                let text = format!("the agent did not start: {call}: {text}");
                self.over((Outcome::Failed, Reason::AgentNotStarted), &text, cx);
            }
        }
    }

    fn opened(&mut self, how: How, cx: &mut Cx) {
        let Phase::Opening(opening) = &mut self.phase else { return };
        let session = match how {
            How::New | How::Fresh | How::Transcript | How::Forked => session_id(&opening.answer),
            How::Resumed | How::Loaded => self.begin.resume.clone(),
        };
        let Some(session) = session else { return self.step_failed(NO_SESSION, cx) };
        let (agent, value) = (std::mem::take(&mut opening.agent), std::mem::take(&mut opening.answer));
        // A conversation that goes on has heard them.
        self.instruct = self.begin.terms.instructions.is_some()
            && !agent.takes_instructions
            && matches!(how, How::New | How::Fresh | How::Transcript);
        self.config.advertise(&value);
        let offers = offers(value).and_then(|offers| Raw::of(&offers).ok());
        self.flush(cx);
        cx.record(
            Actor::Agent,
            OccupantStarted {
                how,
                agent_info: agent.info,
                capabilities: agent.capabilities,
                agent_session: Some(self.begin.redactor.text(&session).into_owned()),
                offers: offers.map(|offers| self.begin.redactor.raw(offers)),
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

/// A request's params, and beside them ACP's `systemPrompt`, which is not in the schema's stable part.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Instructed<'a, T> {
    #[serde(flatten)]
    params: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_prompt: Option<SystemPrompt<'a>>,
}

#[derive(Serialize)]
struct SystemPrompt<'a> {
    mode: &'static str,
    content: [TextBlock<'a>; 1],
}

#[derive(Serialize)]
struct TextBlock<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'a str,
}

fn session_id(answer: &Value) -> Option<String> {
    let id = answer.get("sessionId").and_then(Value::as_str)?;
    (!id.is_empty() && id.len() <= SESSION_BYTES).then(|| id.to_owned())
}

/// What an answer says of settings, and nothing else of it.
fn offers(mut answer: Value) -> Option<Map<String, Value>> {
    let fields = answer.as_object_mut()?;
    let names = ["configOptions", "modes", "models"];
    let offers: Map<_, _> = names
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), fields.remove(name)?)))
        .filter(|(_, value)| !value.is_null())
        .collect();
    (!offers.is_empty()).then_some(offers)
}

/// The ids of methods that can be called with nobody at a terminal.
fn auth_methods(answer: &Value) -> Vec<String> {
    let methods = answer.get("authMethods").and_then(Value::as_array).into_iter().flatten();
    let silent = methods.filter(|method| method["type"] != "terminal");
    silent.filter_map(|method| method["id"].as_str().map(str::to_owned)).collect()
}
