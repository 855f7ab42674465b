//! `outlast demo-agent`: a scripted agent that speaks ACP v1 on stdio and needs no key and no network.
//!
//! The last text block of a prompt is its script; demos, tests and benchmarks are written in these words. It
//! knows nothing of the server, and nothing of the server knows it: to Outlast it is one more agent. The words
//! and flags are in [`HELP`], which `--help` prints.

mod session;

use serde_json::{Value, json};
use session::{LEVELS, MODES, Session, variable};
use std::{
    collections::HashMap,
    hash::{BuildHasher as _, Hasher as _},
    io::{self, BufRead as _, BufWriter, Write as _},
    path::PathBuf,
    process::ExitCode,
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    time::{Duration, Instant},
};

const HELP: &str = "\
A scripted agent that speaks the Agent Client Protocol on its standard input and output.

Usage: outlast demo-agent [FLAGS]

The last text block of a prompt is the script. Its first word chooses; several lines that begin with such a
word run one after another in one turn.

  stream N [SIZE]   N text deltas of SIZE bytes (8), as fast as they can be written
  tool              a tool call: pending, in progress, completed; then text
  permission        asks before a tool call; then text that says what was chosen
  sleep MS          waits, and stops when cancelled
  stubborn MS       says so, waits, and does not hear a cancel
  silent            never answers, but stops when cancelled
  crash [CODE]      one delta, then the process exits (1)
  junk              lines that are not ACP on stdout and stderr, then a normal end
  huge BYTES        one delta of that size
  error             the prompt is answered with a JSON-RPC error
  env NAME          the value of a variable
  cwd               the folder that the process runs in
  cat FILE          a file's content
  write FILE TEXT   writes a file
  echo TEXT         exactly TEXT, in one delta
  remember TEXT     keeps TEXT, also for a resumed or loaded session
  recall            what was kept
  mcp               the names of the MCP servers that the session was given
  model             the current model, mode and thought level
  think TEXT        TEXT as a thought, then text
  cost CENTS        tells that the process has cost so many cents more
  blocks            the text of every block of the prompt

Anything else is answered, word by word, with a friendly reply that quotes it. Every turn reports its usage.
What a session remembers is in $HOME/.demo-agent/SESSION.json.

Flags, for faults:
  --exit CODE    exits at once
  --hang         never answers initialize
  --junk-first   a banner on stdout before the first answer
  --no-resume    does not offer session/resume
  --no-load      does not offer session/load
  --no-list      does not offer session/list
  --no-fork      does not offer session/fork
  --forgetful    answers session/resume, session/load and session/fork with success, and has forgotten everything
  --help         this text
";

/// Messages read and not yet looked at; a client that sends more waits.
const INBOX: usize = 256;
/// How often an unpaced stream looks for a cancel.
const LOOK_EVERY: usize = 64;

/// Runs until the client closes its end.
pub(crate) fn run(args: &[String]) -> ExitCode {
    let flags = match Flags::parse(args) {
        Ok(flags) => flags,
        Err(text) => {
            let _ = writeln!(io::stderr(), "{text}\nRun `outlast demo-agent --help` for what there is.");
            return ExitCode::from(2);
        }
    };
    if flags.help {
        let _ = io::stdout().write_all(HELP.as_bytes());
        return ExitCode::SUCCESS;
    }
    if let Some(code) = flags.exit {
        return ExitCode::from(code);
    }
    let (outbox, inbox) = sync_channel(INBOX);
    // Its end is the process's: it waits in a read that nothing else can end.
    std::thread::spawn(move || read(&outbox));
    let mut agent = Agent {
        flags,
        inbox,
        out: BufWriter::with_capacity(64 * 1024, io::stdout()),
        sessions: HashMap::new(),
        requests: 0,
        cents: 0,
    };
    match agent.serve() {
        Ok(code) => code,
        // The client has gone; there is nobody to tell.
        Err(_) => ExitCode::SUCCESS,
    }
}

#[derive(Default)]
struct Flags {
    help: bool,
    exit: Option<u8>,
    hang: bool,
    junk_first: bool,
    no_resume: bool,
    no_load: bool,
    no_list: bool,
    no_fork: bool,
    forgetful: bool,
}

impl Flags {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut flags = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--help" | "-h" => flags.help = true,
                "--exit" => {
                    let code = args.next().and_then(|code| code.parse().ok());
                    flags.exit = Some(code.ok_or("--exit needs a code from 0 to 255")?);
                }
                "--hang" => flags.hang = true,
                "--junk-first" => flags.junk_first = true,
                "--no-resume" => flags.no_resume = true,
                "--no-load" => flags.no_load = true,
                "--no-list" => flags.no_list = true,
                "--no-fork" => flags.no_fork = true,
                "--forgetful" => flags.forgetful = true,
                other => return Err(format!("{other:?} is not a flag of the demo agent")),
            }
        }
        Ok(flags)
    }
}

/// The reader thread: it keeps reading while a turn runs, so that a cancel is seen.
fn read(outbox: &SyncSender<Value>) {
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let Ok(message) = serde_json::from_str(&line) else { continue };
        if outbox.send(message).is_err() {
            return;
        }
    }
}

struct Agent {
    flags: Flags,
    inbox: Receiver<Value>,
    out: BufWriter<io::Stdout>,
    sessions: HashMap<String, Session>,
    /// Requests of our own.
    requests: u64,
    /// Told as cost so far.
    cents: u64,
}

/// Why a turn stops before its script does.
enum Stop {
    Cancelled,
    /// A JSON-RPC error.
    Error(&'static str),
    Exit(u8),
    /// The client closed its end, or its pipe.
    Gone,
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// A JSON-RPC error to answer with.
struct Refusal(i64, String);

impl Agent {
    fn serve(&mut self) -> io::Result<ExitCode> {
        if self.flags.junk_first {
            writeln!(
                self.out,
                "demo agent 1.0, ready to serve\n{{\"level\":\"info\",\"msg\":\"starting\"}}"
            )?;
        }
        while let Ok(message) = self.inbox.recv() {
            if message["method"] == "session/prompt" {
                if let Some(code) = self.prompt(&message)? {
                    return Ok(code);
                }
            } else {
                self.answer(&message)?;
            }
            self.out.flush()?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Answers every request but a prompt.
    fn answer(&mut self, message: &Value) -> io::Result<()> {
        let (Some(id), Some(method)) = (message.get("id"), message["method"].as_str()) else { return Ok(()) };
        let params = &message["params"];
        let answer = match method {
            "initialize" if self.flags.hang => return Ok(()),
            "initialize" => Ok(self.initialize()),
            "session/new" => Ok(self.new_session(params)),
            "session/load" if !self.flags.no_load => self.load(params)?,
            "session/resume" if !self.flags.no_resume => self.bring_back(params),
            "session/list" if !self.flags.no_list => Ok(self.list()),
            "session/fork" if !self.flags.no_fork => self.fork(params),
            "session/set_mode" => self.set(params, "mode", &params["modeId"]),
            "session/set_config_option" => {
                let option = params["configId"].as_str().unwrap_or_default().to_owned();
                self.set(params, &option, &params["value"])
            }
            "session/prompt" => Err(Refusal(-32600, "a turn is running".to_owned())),
            other => Err(Refusal(-32601, format!("no method {other}"))),
        };
        self.reply(id, answer)
    }

    fn reply(&mut self, id: &Value, answer: Result<Value, Refusal>) -> io::Result<()> {
        let answer = match answer {
            Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Err(Refusal(code, message)) => {
                json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
            }
        };
        self.write(&answer)
    }

    fn write(&mut self, message: &Value) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, message)?;
        self.out.write_all(b"\n")
    }

    fn initialize(&self) -> Value {
        let mut sessions = json!({});
        let Flags { no_resume, no_list, no_fork, .. } = self.flags;
        for (name, missing) in [("resume", no_resume), ("list", no_list), ("fork", no_fork)] {
            if !missing {
                sessions[name] = json!({});
            }
        }
        json!({
            "protocolVersion": 1,
            "agentInfo": {"name": "outlast-demo", "title": "Demo agent", "version": env!("CARGO_PKG_VERSION")},
            "agentCapabilities": {
                "loadSession": !self.flags.no_load,
                "promptCapabilities": {"image": true, "audio": false, "embeddedContext": true},
                "mcpCapabilities": {"http": true, "sse": false},
                "sessionCapabilities": sessions,
            },
            "authMethods": [],
        })
    }

    fn new_session(&mut self, params: &Value) -> Value {
        self.open(Session::given(params))
    }

    fn open(&mut self, mut session: Session) -> Value {
        // The seed of a hash map is random enough for an id that only this folder knows.
        let random = || std::hash::RandomState::new().build_hasher().finish();
        let id = format!("demo-{:016x}{:016x}", random(), random());
        session.save_as(&id);
        let mut answer = session.settings();
        answer["sessionId"] = json!(id);
        self.sessions.insert(id, session);
        answer
    }

    /// A session of its own, that begins as another one is now.
    fn fork(&mut self, params: &Value) -> Result<Value, Refusal> {
        self.bring_back(params)?;
        let parent = params["sessionId"].as_str().unwrap_or_default();
        let session = self.sessions.remove(parent).unwrap_or_default();
        Ok(self.open(session))
    }

    /// Every session that was saved; a forgetful agent has none.
    fn list(&self) -> Value {
        let folder = Session::path("x").and_then(|path| Some(path.parent()?.to_owned()));
        let saved =
            folder.filter(|_| !self.flags.forgetful).and_then(|folder| std::fs::read_dir(folder).ok());
        let files = saved.into_iter().flatten().flatten().map(|file| file.path());
        let sessions: Vec<Value> = files
            .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
            .filter_map(|path| Some(json!({"sessionId": path.file_stem()?.to_str()?, "cwd": "/"})))
            .collect();
        json!({"sessions": sessions})
    }

    fn load(&mut self, params: &Value) -> io::Result<Result<Value, Refusal>> {
        let answer = self.bring_back(params);
        let id = params["sessionId"].as_str().unwrap_or_default().to_owned();
        if answer.is_ok() {
            for prompt in self.sessions.get(&id).map(|session| session.prompts.clone()).unwrap_or_default() {
                let content = json!({"type": "text", "text": prompt});
                self.update(&id, &json!({"sessionUpdate": "user_message_chunk", "content": content}))?;
            }
        }
        Ok(answer)
    }

    fn bring_back(&mut self, params: &Value) -> Result<Value, Refusal> {
        let id = params["sessionId"].as_str().unwrap_or_default();
        let given = Session::given(params);
        let session = if self.flags.forgetful {
            given
        } else {
            let known = self.sessions.get(id).cloned().or_else(|| Session::saved(id));
            let known = known.ok_or_else(|| Refusal(-32002, format!("unknown session {id}")))?;
            Session { cwd: given.cwd, servers: given.servers, ..known }
        };
        let answer = session.settings();
        self.sessions.insert(id.to_owned(), session);
        Ok(answer)
    }

    fn set(&mut self, params: &Value, option: &str, value: &Value) -> Result<Value, Refusal> {
        let id = params["sessionId"].as_str().unwrap_or_default();
        let wrong = |text: String| Refusal(-32602, text);
        let session = self.sessions.get_mut(id).ok_or_else(|| wrong(format!("unknown session {id}")))?;
        let value = value.as_str().filter(|value| !value.is_empty());
        let value = value.ok_or_else(|| wrong("the value must be a word".to_owned()))?.to_owned();
        let (place, known) = match option {
            // Any model goes: there is none behind it.
            "model" => (&mut session.model, None),
            "mode" => (&mut session.mode, Some(MODES)),
            "thought_level" => (&mut session.level, Some(LEVELS)),
            other => return Err(wrong(format!("no option {other:?}"))),
        };
        if let Some(known) = known.filter(|known| !known.contains(&value.as_str())) {
            return Err(wrong(format!("{value:?} is not one of {}", known.join(", "))));
        }
        *place = Some(value);
        session.save(id);
        Ok(json!({"configOptions": session.settings()["configOptions"]}))
    }

    fn update(&mut self, session: &str, update: &Value) -> io::Result<()> {
        let params = json!({"sessionId": session, "update": update});
        self.write(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params}))
    }

    /// Runs a turn. A code means that the process is to exit.
    fn prompt(&mut self, message: &Value) -> io::Result<Option<ExitCode>> {
        let id = &message["id"];
        let session = message["params"]["sessionId"].as_str().unwrap_or_default().to_owned();
        let blocks = message["params"]["prompt"].as_array().map(Vec::as_slice).unwrap_or_default();
        let text = blocks.iter().rev().find_map(|block| block["text"].as_str()).unwrap_or_default();
        let Some(state) = self.sessions.get_mut(&session) else {
            self.reply(id, Err(Refusal(-32602, format!("unknown session {session}"))))?;
            return Ok(None);
        };
        state.keep_prompt(&session, text);
        let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
        let mut turn = Turn { agent: self, session: &session, blocks: texts.join("|"), written: 0 };
        let stopped = turn.script(text);
        let written = turn.written;
        let reason = match stopped {
            Ok(()) => "end_turn",
            Err(Stop::Cancelled) => "cancelled",
            Err(Stop::Error(text)) => {
                self.reply(id, Err(Refusal(-32603, text.to_owned())))?;
                return Ok(None);
            }
            Err(Stop::Exit(code)) => {
                self.out.flush()?;
                return Ok(Some(ExitCode::from(code)));
            }
            Err(Stop::Gone) => return Ok(Some(ExitCode::SUCCESS)),
        };
        // A token is four bytes, near enough.
        let (input, output) = (text.len().div_ceil(4), written.div_ceil(4));
        let usage = json!({"inputTokens": input, "outputTokens": output, "totalTokens": input + output});
        self.reply(id, Ok(json!({"stopReason": reason, "usage": usage})))?;
        Ok(None)
    }
}

/// A turn under way.
struct Turn<'a> {
    agent: &'a mut Agent,
    session: &'a str,
    /// The text of the whole prompt.
    blocks: String,
    /// Bytes of text so far.
    written: usize,
}

impl Turn<'_> {
    fn script(&mut self, text: &str) -> Result<(), Stop> {
        let first = text.lines().next().unwrap_or_default();
        if !self.command(first)? {
            return self.chat(text);
        }
        for line in text.lines().skip(1).filter(|line| !line.trim().is_empty()) {
            if !self.command(line)? {
                self.chat(line)?;
            }
        }
        Ok(())
    }

    /// Runs one line; false when it is none of ours.
    fn command(&mut self, line: &str) -> Result<bool, Stop> {
        let (word, rest) = line.split_once(' ').unwrap_or((line.trim_end(), ""));
        let number =
            |default: u64| rest.split_whitespace().next().map_or(Some(default), |text| text.parse().ok());
        match (word, number(1000)) {
            ("stream", Some(count)) => self.stream(count, rest)?,
            ("sleep", Some(millis)) => self.wait(Some(Duration::from_millis(millis)))?,
            ("stubborn", Some(millis)) => self.stubborn(Duration::from_millis(millis))?,
            ("huge", Some(bytes)) => self.say(&"x".repeat(usize::try_from(bytes).unwrap_or(0)))?,
            ("crash", _) => {
                self.say("about to crash")?;
                return Err(Stop::Exit(rest.trim().parse().unwrap_or(1)));
            }
            ("tool", _) => self.tool()?,
            ("permission", _) => self.permission()?,
            ("silent", _) => self.wait(None)?,
            ("junk", _) => self.junk()?,
            ("error", _) => return Err(Stop::Error("the script asked for an error")),
            ("env", _) => self.say(variable(rest.trim()).as_deref().unwrap_or("(unset)"))?,
            ("cwd", _) => {
                let cwd = std::env::current_dir()?;
                self.say(&cwd.display().to_string())?;
            }
            ("cat", _) => self.cat(rest.trim())?,
            ("write", _) => self.write_file(rest)?,
            ("echo", _) => self.say(rest)?,
            ("think", _) => {
                self.chunk("agent_thought_chunk", rest)?;
                self.say("I have thought about it.")?;
            }
            ("blocks", _) => self.say(&self.blocks.clone())?,
            ("cost", Some(cents)) => self.cost(cents)?,
            ("remember" | "recall" | "mcp" | "model", _) => self.about_session(word, rest)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Agents tell the sum over their process's life.
    fn cost(&mut self, cents: u64) -> Result<(), Stop> {
        self.agent.cents += cents;
        let cost = json!({"amount": self.agent.cents as f64 / 100.0, "currency": "USD"});
        self.agent.update(
            self.session,
            &json!({"sessionUpdate": "usage_update", "used": 1, "size": 100, "cost": cost}),
        )?;
        self.say("That was not cheap.")
    }

    fn about_session(&mut self, word: &str, rest: &str) -> Result<(), Stop> {
        let Some(session) = self.agent.sessions.get_mut(self.session) else { return Ok(()) };
        let list =
            |items: &[String]| if items.is_empty() { "(nothing)".to_owned() } else { items.join(", ") };
        let text = match word {
            "remember" => {
                session.memory.push(rest.to_owned());
                session.save(self.session);
                format!("I shall remember {rest:?}.")
            }
            "recall" => list(&session.memory),
            "mcp" => list(&session.servers),
            _ => {
                format!("model={} mode={} thought_level={}", session.model(), session.mode(), session.level())
            }
        };
        self.say(&text)
    }

    fn chat(&mut self, text: &str) -> Result<(), Stop> {
        let quoted: String = text.chars().take(200).collect();
        let reply = format!(
            "Hello! You said: \u{201c}{quoted}\u{201d}. I am the demo agent and follow a script; say \u{201c}tool\u{201d}, \
             \u{201c}permission\u{201d} or \u{201c}stream 100\u{201d} to see more."
        );
        for word in reply.split_inclusive(' ') {
            self.chunk("agent_message_chunk", word)?;
        }
        self.heard_cancel()
    }

    /// One text delta, sent at once.
    fn say(&mut self, text: &str) -> Result<(), Stop> {
        self.chunk("agent_message_chunk", text)?;
        self.agent.out.flush()?;
        self.heard_cancel()
    }

    fn chunk(&mut self, kind: &str, text: &str) -> io::Result<()> {
        self.written += text.len();
        let content = json!({"type": "text", "text": text});
        self.agent.update(self.session, &json!({"sessionUpdate": kind, "content": content}))
    }

    fn stream(&mut self, count: u64, rest: &str) -> Result<(), Stop> {
        let size: usize = rest.split_whitespace().nth(1).and_then(|size| size.parse().ok()).unwrap_or(8);
        let (head, tail) = (
            format!(
                r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{}","update":{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":""#,
                self.session
            ),
            "\"}}}}\n",
        );
        let fill = "x".repeat(size);
        for number in 0..count {
            // Numbered, so that a lost or doubled one can be told.
            let mut text = format!("{number} ");
            text.truncate(size);
            text.push_str(&fill[text.len()..]);
            for part in [head.as_str(), &text, tail] {
                self.agent.out.write_all(part.as_bytes())?;
            }
            self.written += size;
            if number % LOOK_EVERY as u64 == 0 {
                self.heard_cancel()?;
            }
        }
        self.agent.out.flush()?;
        Ok(())
    }

    fn tool(&mut self) -> Result<(), Stop> {
        let call = json!({
            "sessionUpdate": "tool_call", "toolCallId": "call-1", "title": "List the workspace", "kind": "read",
            "status": "pending", "rawInput": {"path": "."},
        });
        self.agent.update(self.session, &call)?;
        self.tool_status(json!({"status": "in_progress"}))?;
        let names: Vec<String> = std::fs::read_dir(self.cwd())
            .map(|entries| {
                entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
            })
            .unwrap_or_default();
        let text = format!("{} entries", names.len());
        let content = json!([{"type": "content", "content": {"type": "text", "text": text}}]);
        self.tool_status(
            json!({"status": "completed", "content": content, "rawOutput": {"entries": names.len()}}),
        )?;
        self.say(&format!("The tool found {text}."))
    }

    fn tool_status(&mut self, mut update: Value) -> Result<(), Stop> {
        update["sessionUpdate"] = json!("tool_call_update");
        update["toolCallId"] = json!("call-1");
        self.agent.update(self.session, &update)?;
        self.heard_cancel()
    }

    fn permission(&mut self) -> Result<(), Stop> {
        let call =
            json!({"toolCallId": "call-1", "title": "Write a file", "kind": "edit", "status": "pending"});
        let mut update = call.clone();
        update["sessionUpdate"] = json!("tool_call");
        self.agent.update(self.session, &update)?;
        self.agent.requests += 1;
        let id = json!(self.agent.requests);
        let options = json!([
            {"optionId": "allow", "name": "Allow once", "kind": "allow_once"},
            {"optionId": "reject", "name": "Reject once", "kind": "reject_once"},
        ]);
        let params = json!({"sessionId": self.session, "toolCall": call, "options": options});
        self.agent.write(
            &json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params}),
        )?;
        self.agent.out.flush()?;
        let outcome = loop {
            let message = self.agent.inbox.recv().map_err(|_| Stop::Gone)?;
            if message["id"] == id && message.get("method").is_none() {
                break message["result"]["outcome"].clone();
            }
            // Cancelled while it waits: the answer to the request follows, and says the same.
            match self.other(&message) {
                Err(Stop::Cancelled) | Ok(()) => {}
                stopped => return stopped,
            }
        };
        match outcome["optionId"].as_str() {
            Some("allow") => {
                self.tool_status(json!({"status": "completed"}))?;
                self.say("Permission: allow_once. The file is written.")
            }
            Some(_) => {
                self.tool_status(json!({"status": "failed"}))?;
                self.say("Permission: reject_once. Nothing is written.")
            }
            None => Err(Stop::Cancelled),
        }
    }

    fn junk(&mut self) -> Result<(), Stop> {
        self.agent.out.write_all(
            b"this line is not JSON\n{\"broken\":\n[1, 2, 3]\n{\"jsonrpc\":\"1.0\",\"id\":1}\n\xff\xfe\n\n\
              {\"jsonrpc\":\"2.0\",\"id\":99999,\"result\":{}}\n{\"jsonrpc\":\"2.0\",\"method\":\"_demo/unknown\"}\n",
        )?;
        let _ = writeln!(io::stderr(), "demo-agent: a line on stderr\ndemo-agent: and another");
        self.say("That was junk.")
    }

    fn cat(&mut self, file: &str) -> Result<(), Stop> {
        match std::fs::read(self.cwd().join(file)) {
            Ok(content) => self.say(&String::from_utf8_lossy(&content)),
            Err(error) => self.say(&format!("cannot read {file}: {error}")),
        }
    }

    fn write_file(&mut self, rest: &str) -> Result<(), Stop> {
        let (file, text) = rest.split_once(' ').unwrap_or((rest, ""));
        match std::fs::write(self.cwd().join(file), text) {
            Ok(()) => self.say(&format!("wrote {} bytes to {file}", text.len())),
            Err(error) => self.say(&format!("cannot write {file}: {error}")),
        }
    }

    fn cwd(&self) -> PathBuf {
        self.agent.sessions.get(self.session).map(|session| session.cwd.clone()).unwrap_or_default()
    }

    /// Looks at what has come, without waiting.
    fn heard_cancel(&mut self) -> Result<(), Stop> {
        while let Ok(message) = self.agent.inbox.try_recv() {
            self.other(&message)?;
        }
        Ok(())
    }

    /// Waits, for ever without a time, and answers what comes.
    fn wait(&mut self, time: Option<Duration>) -> Result<(), Stop> {
        let until = time.and_then(|time| Instant::now().checked_add(time));
        loop {
            self.agent.out.flush()?;
            let message = match until {
                None => self.agent.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(until) => self.agent.inbox.recv_timeout(until.saturating_duration_since(Instant::now())),
            };
            match message {
                Ok(message) => self.other(&message)?,
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => return Err(Stop::Gone),
            }
        }
    }

    fn stubborn(&mut self, time: Duration) -> Result<(), Stop> {
        self.chunk("agent_message_chunk", "Not listening.")?;
        let until = Instant::now() + time;
        loop {
            match self.wait(Some(until.saturating_duration_since(Instant::now()))) {
                Err(Stop::Cancelled) => {}
                waited => return waited,
            }
        }
    }

    /// A message that comes during the turn.
    fn other(&mut self, message: &Value) -> Result<(), Stop> {
        if message["method"] == "session/cancel" && message["params"]["sessionId"] == self.session {
            return Err(Stop::Cancelled);
        }
        self.agent.answer(message)?;
        Ok(self.agent.out.flush()?)
    }
}
