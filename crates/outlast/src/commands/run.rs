//! `run`: a conversation with an agent on the terminal.
//!
//! One prompt or many, each followed until its turn has an outcome. Ctrl-C cancels the turn; a second one
//! leaves it running. The session lives on the server: nothing here is lost when this process ends.

use super::{
    Asking,
    logs::{note_reconnect, print},
};
use crate::{
    cli::Run,
    config::Environment,
    exit::{Exit, Failure},
    reach,
    render::{Conversation, Piece},
    term::{Form, Lines, clean, read_all},
};
use client::{Client, Followed, Sent};
use protocol::{
    AgentName, AnswerPermission, Body, Content, CreateSession, Event, McpServers, PermissionRequested,
    SendMessage, Seq, Session, SessionId,
};
use std::{collections::BTreeMap, path::Path};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::JoinHandle,
};

/// What `run` was asked to say.
#[derive(Debug, PartialEq, Eq)]
enum Talk {
    Once(String),
    LineByLine,
}

/// A permission question that waits for a person.
#[derive(Debug)]
struct Question {
    seq: Seq,
    request: PermissionRequested,
}

/// A turn under way.
#[derive(Debug)]
struct Turn {
    sent: Sent,
    started: bool,
    conversation: Conversation,
    question: Option<Question>,
    cancelling: Option<JoinHandle<Result<Session, client::Error>>>,
    interrupts: u32,
}

#[derive(Debug)]
struct Talking<'a> {
    asking: &'a Asking<'a>,
    session: SessionId,
    asked: &'a Run,
    lines: Lines,
    ctrl_c: Signal,
}

impl Asking<'_> {
    pub(crate) async fn run(&self, asked: &Run, environment: &Environment) -> Result<Exit, Failure> {
        let (agent, talk) = parts(asked)?;
        let talk = match talk {
            Talk::Once(text) if text == "-" => Talk::Once(read_all()?),
            talk => talk,
        };
        if matches!(&talk, Talk::Once(text) if text.trim().is_empty()) {
            return Err(Failure::Usage(
                "the prompt is empty; say something, or leave it out to talk line by line".to_owned(),
            ));
        }
        let session = match &asked.session {
            Some(typed) => self.existing(typed, agent.as_deref()).await?,
            None => self.client.create(&request(asked, agent.as_deref(), environment)?).await?.id,
        };
        self.term.note(&self.term.note_paint().dim(&format!("session {session}")));
        let ctrl_c = signal(SignalKind::interrupt())
            .map_err(|error| Failure::Broken(format!("Ctrl-C cannot be listened for: {error}")))?;
        let mut talking = Talking { asking: self, session, asked, lines: Lines::start()?, ctrl_c };
        let exit = match talk {
            Talk::Once(text) => talking.turn(text).await?,
            Talk::LineByLine => talking.converse().await?,
        };
        if asked.end && exit != Exit::Left {
            self.client.end(session).await?;
        }
        Ok(exit)
    }

    async fn existing(&self, typed: &str, agent: Option<&str>) -> Result<SessionId, Failure> {
        let id = reach::session(&self.client, typed).await?;
        let session = self.client.session(id).await?;
        match agent {
            Some(agent) if agent != session.agent_name => Err(Failure::Usage(format!(
                "session {id} is with the agent {}, not {agent}; leave the agent out",
                session.agent_name
            ))),
            _ => Ok(id),
        }
    }
}

/// With `--session` the agent may be left out, so a single word is then what to say.
fn parts(asked: &Run) -> Result<(Option<String>, Talk), Failure> {
    let talk = |prompt: Option<&String>| prompt.map_or(Talk::LineByLine, |text| Talk::Once(text.clone()));
    Ok(match (&asked.session, &asked.agent, &asked.prompt) {
        (Some(_), Some(only), None) => (None, Talk::Once(only.clone())),
        (Some(_) | None, agent @ Some(_), prompt) => (agent.clone(), talk(prompt.as_ref())),
        (Some(_), None, prompt) => (None, talk(prompt.as_ref())),
        (None, None, _) => {
            return Err(Failure::Usage("name an agent; `outlast agent ls` lists them".to_owned()));
        }
    })
}

fn request(asked: &Run, agent: Option<&str>, environment: &Environment) -> Result<CreateSession, Failure> {
    let agent = agent.unwrap_or_default();
    let agent = AgentName::new(agent).map_err(|error| Failure::Usage(format!("{agent:?}: {error}")))?;
    let mcp_servers = asked.mcp.as_deref().map(read_mcp).transpose()?;
    let system_prompt = asked.system_prompt.as_deref().map(read_text).transpose()?;
    let extra_env = variables(&asked.env, environment)?;
    Ok(CreateSession {
        agent,
        model: asked.model.clone(),
        mcp_servers,
        system_prompt,
        additional_instructions: None,
        credential_id: asked.credential,
        extra_env: (!extra_env.is_empty()).then_some(extra_env),
        name: asked.name.clone(),
        place: asked.place,
        sandbox: asked.sandbox.clone(),
        cwd: None,
        policy: None,
    })
}

/// `NAME=VALUE`, or `NAME` for the value that it has here.
pub(super) fn variables(
    given: &[String],
    environment: &Environment,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut variables = BTreeMap::new();
    for given in given {
        let (name, value) = match given.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => {
                let value = environment.text(given)?.ok_or_else(|| {
                    Failure::Usage(format!(
                        "--env {given}: there is no such variable here; write {given}=VALUE"
                    ))
                })?;
                (given.clone(), value)
            }
        };
        variables.insert(name, value);
    }
    Ok(variables)
}

fn read_text(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::Usage(format!("{} cannot be read: {error}", path.display())))
}

/// A `.mcp.json`: the servers, or an object that holds them as `mcpServers`.
fn read_mcp(path: &Path) -> Result<McpServers, Failure> {
    let wrong =
        |error: serde_json::Error| Failure::Usage(format!("{} is not right: {error}", path.display()));
    let mut value: serde_json::Value = serde_json::from_str(&read_text(path)?).map_err(wrong)?;
    let servers = match value.get_mut("mcpServers") {
        Some(inner) => inner.take(),
        None => value,
    };
    serde_json::from_value(servers).map_err(wrong)
}

impl Talking<'_> {
    /// Line by line, until the input ends or Ctrl-C is pressed between turns.
    async fn converse(&mut self) -> Result<Exit, Failure> {
        let mut exit = Exit::Done;
        loop {
            if self.asking.term.can_ask() {
                self.asking.term.prompt("> ");
            }
            let line = tokio::select! {
                line = self.lines.next() => line?,
                _ = self.ctrl_c.recv() => None,
            };
            let Some(line) = line else { break };
            if line.trim().is_empty() {
                continue;
            }
            exit = self.turn(line).await?;
            if exit == Exit::Left {
                return Ok(exit);
            }
        }
        if !self.asked.end {
            self.asking.term.note("");
            self.tell_way_back();
        }
        Ok(exit)
    }

    async fn turn(&mut self, text: String) -> Result<Exit, Failure> {
        let message = SendMessage {
            content: Content::Text(text),
            id: None,
            on_busy: self.asked.on_busy.into(),
            model: self.asked.session.as_ref().and(self.asked.model.clone()),
            include_partial_messages: true,
            max_turns: None,
            max_budget_usd: None,
        };
        let sent = tokio::select! {
            sent = self.asking.client.send(self.session, message) => sent?,
            _ = self.ctrl_c.recv() => {
                self.asking.term.note("left before the server confirmed the prompt; it may still run");
                self.tell_way_back();
                return Ok(Exit::Left);
            }
        };
        let mut events = self.asking.client.events(self.session, sent.seq.saturating_sub(1));
        let mut turn = Turn {
            sent,
            started: false,
            conversation: Conversation::new(self.asking.term.note_paint()),
            question: None,
            cancelling: None,
            interrupts: 0,
        };
        loop {
            tokio::select! {
                followed = events.next() => match followed? {
                    Followed::Event(event) => {
                        if let Some(exit) = self.show(&mut turn, &event).await? {
                            return Ok(exit);
                        }
                    }
                    Followed::Reconnecting { attempt, cause, .. } => {
                        note_reconnect(self.asking.term, attempt, &cause);
                    }
                },
                _ = self.ctrl_c.recv() => if let Some(exit) = self.interrupt(&mut turn) {
                    return Ok(exit);
                },
                Some(cancelled) = finished(&mut turn.cancelling) => if let Err(error) = cancelled {
                    self.asking.term.complain(&error.to_string());
                },
                line = self.lines.next(), if turn.question.is_some() => {
                    if let Some(question) = turn.question.take() {
                        turn.question = self.reply(question, line?).await?;
                    }
                },
            }
        }
    }

    /// Shows an event, and says how the turn ended once it has.
    async fn show(&self, turn: &mut Turn, event: &Event) -> Result<Option<Exit>, Failure> {
        let term = self.asking.term;
        match term.form {
            Form::Json => print(term, event)?,
            Form::Text => {
                for piece in turn.conversation.show(event, turn.sent.turn) {
                    match piece {
                        Piece::Words(words) if term.shows() => term.stream(&clean(&words))?,
                        Piece::Words(words) => term.stream(&words)?,
                        Piece::Line(line) => term.note(&line),
                    }
                }
            }
        }
        match &event.body {
            Body::TurnStarted(started) if started.turn == turn.sent.turn => turn.started = true,
            Body::PermissionRequested(request)
                if request.turn.is_none_or(|other| other == turn.sent.turn) =>
            {
                turn.question = self.ask(event.seq, request.clone()).await?;
            }
            Body::PermissionAnswered(answered)
                if turn.question.as_ref().is_some_and(|open| open.seq == answered.permission) =>
            {
                turn.question = None;
                term.note("(answered elsewhere)");
            }
            Body::TurnEnded(ended) if ended.turn == turn.sent.turn => {
                if term.form == Form::Text {
                    term.finish_line()?;
                }
                return Ok(Some(ended.outcome.into()));
            }
            _ => {}
        }
        Ok(None)
    }

    /// Puts a question to the person, or answers it when there is none.
    async fn ask(&self, seq: Seq, request: PermissionRequested) -> Result<Option<Question>, Failure> {
        let term = self.asking.term;
        if term.can_ask() {
            if term.form == Form::Json {
                for (number, option) in request.options.iter().enumerate() {
                    term.note(&format!("  {}  {}", number + 1, clean(&option.name)));
                }
            }
            term.prompt(&format!("answer 1 to {}, or press Enter to cancel: ", request.options.len()));
            return Ok(Some(Question { seq, request }));
        }
        term.note(&format!(
            "there is no terminal to ask on: question {seq} is answered `cancelled` (`outlast answer` answers from elsewhere)"
        ));
        self.answer(seq, None).await?;
        Ok(None)
    }

    /// Takes a person's answer; a question that was not understood stays open.
    async fn reply(&self, question: Question, line: Option<String>) -> Result<Option<Question>, Failure> {
        let line = line.unwrap_or_default();
        match choice(&question.request, &line) {
            Ok(option) => {
                self.answer(question.seq, option).await?;
                Ok(None)
            }
            Err(()) => {
                self.asking.term.prompt(&format!(
                    "answer 1 to {}, or press Enter to cancel: ",
                    question.request.options.len()
                ));
                Ok(Some(question))
            }
        }
    }

    async fn answer(&self, seq: Seq, option_id: Option<String>) -> Result<(), Failure> {
        match self.asking.client.answer(self.session, seq, &AnswerPermission { option_id }).await {
            Ok(_) => Ok(()),
            // Somebody was quicker, or the turn is over.
            Err(client::Error::Refused { status: 404 | 409, .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The first Ctrl-C cancels, the second leaves. A prompt that still waits behind another turn is not worth
    /// cancelling that turn for.
    fn interrupt(&self, turn: &mut Turn) -> Option<Exit> {
        turn.interrupts += 1;
        let term = self.asking.term;
        match (turn.interrupts, turn.started) {
            (1, true) => {
                term.note("cancelling; Ctrl-C again leaves");
                turn.cancelling = Some(tokio::spawn(cancel(self.asking.client.clone(), self.session)));
                None
            }
            (1, false) => {
                term.note("the prompt waits behind another turn; Ctrl-C again leaves it there");
                None
            }
            _ => {
                let _ = term.finish_line();
                term.note("left; the turn goes on");
                self.tell_way_back();
                Some(Exit::Left)
            }
        }
    }

    fn tell_way_back(&self) {
        let id = self.session;
        self.asking
            .term
            .note(&format!("come back with: outlast run --session {id}   watch: outlast logs -f {id}"));
    }
}

async fn cancel(client: Client, session: SessionId) -> Result<Session, client::Error> {
    client.cancel(session).await
}

/// The cancel's answer, once. Waits for ever when there is none under way.
async fn finished(
    cancelling: &mut Option<JoinHandle<Result<Session, client::Error>>>,
) -> Option<Result<Session, client::Error>> {
    match cancelling {
        Some(task) => {
            let answer = task.await;
            *cancelling = None;
            answer.ok()
        }
        None => std::future::pending().await,
    }
}

/// The option that a line names by number, id or name; an empty line cancels.
fn choice(request: &PermissionRequested, line: &str) -> Result<Option<String>, ()> {
    let line = line.trim();
    if line.is_empty() {
        return Ok(None);
    }
    let by_number = line.parse::<usize>().ok().and_then(|n| request.options.get(n.checked_sub(1)?));
    let by_word = || {
        request
            .options
            .iter()
            .find(|option| option.option_id == line || option.name.eq_ignore_ascii_case(line))
    };
    by_number.or_else(by_word).map(|option| Some(option.option_id.clone())).ok_or(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser as _;
    use protocol::{PermissionOption, Raw};

    fn run(line: &str) -> Run {
        let cli = Cli::try_parse_from(["outlast", "run"].into_iter().chain(line.split(' '))).unwrap();
        match cli.command {
            Command::Run(run) => *run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn words_mean_what_people_expect() {
        let once = |text: &str| Talk::Once(text.to_owned());
        for (line, agent, talk) in [
            ("demo", Some("demo"), Talk::LineByLine),
            ("demo hi", Some("demo"), once("hi")),
            ("demo -", Some("demo"), once("-")),
            ("--session 019a", None, Talk::LineByLine),
            ("--session 019a hi", None, once("hi")),
            ("--session 019a demo hi", Some("demo"), once("hi")),
        ] {
            assert_eq!(parts(&run(line)).unwrap(), (agent.map(str::to_owned), talk), "{line}");
        }
    }

    #[test]
    fn a_question_is_answered_by_number_id_or_name() {
        let option = |id: &str, name: &str| PermissionOption {
            option_id: id.into(),
            name: name.into(),
            kind: "allow_once".into(),
        };
        let request = PermissionRequested {
            turn: None,
            tool_call: Raw::parse("{}".into()).unwrap(),
            options: vec![option("y", "Allow"), option("n", "Reject")],
        };
        for (line, want) in [
            ("1", Ok(Some("y"))),
            (" 2 ", Ok(Some("n"))),
            ("n", Ok(Some("n"))),
            ("allow", Ok(Some("y"))),
            ("", Ok(None)),
            ("3", Err(())),
            ("0", Err(())),
            ("maybe", Err(())),
        ] {
            assert_eq!(choice(&request, line), want.map(|id| id.map(str::to_owned)), "{line:?}");
        }
    }

    #[test]
    fn the_environment_is_given_by_name_or_by_value() {
        let environment = Environment::of(&[("TOKEN", "t0ken")]);
        let created = request(&run("demo --env TOKEN --env A=b=c"), Some("demo"), &environment).unwrap();
        let env = created.extra_env.unwrap();
        assert_eq!((env["TOKEN"].as_str(), env["A"].as_str()), ("t0ken", "b=c"));
        assert!(request(&run("demo --env MISSING"), Some("demo"), &environment).is_err());
        assert!(request(&run("../x"), Some("../x"), &environment).is_err());
    }

    #[test]
    fn mcp_files_are_taken_with_and_without_their_outer_object() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mcp.json");
        for text in [r#"{"mcpServers":{"a":{"url":"http://h"}}}"#, r#"{"a":{"url":"http://h"}}"#] {
            std::fs::write(&path, text).unwrap();
            assert!(read_mcp(&path).unwrap().contains_key("a"), "{text}");
        }
        std::fs::write(&path, r#"{"a":{}}"#).unwrap();
        assert!(read_mcp(&path).unwrap_err().to_string().contains("needs a url or a command"));
    }
}
