//! What each tool does: read the arguments, ask the sessions, shape the answer.

use super::{
    arguments::{
        self, Create, Exec, Nothing, OneSession, Output, Poll, Restore, Signal, TakeCheckpoint, Write,
    },
    exec::{self, Hearing},
    own::Own,
    tools::Answer,
};
use protocol::{Code, Fault, ListedShell, PlaceKind};
use rmcp::model::JsonObject;
use serde::{Serialize, de::DeserializeOwned};
use session::{Caller, Sessions};
use std::sync::Arc;

/// A call, with who makes it and how he hears of what happens.
pub(super) struct Ask {
    pub(super) sessions: Sessions,
    pub(super) caller: Caller,
    pub(super) own: Option<Arc<Own>>,
    pub(super) arguments: Option<JsonObject>,
    pub(super) hearing: Hearing,
}

impl Ask {
    fn read<T: DeserializeOwned>(&mut self) -> Result<T, Fault> {
        arguments::read(self.arguments.take())
    }
}

fn answer(value: &impl Serialize) -> Result<Answer, Fault> {
    let spelt = |error: serde_json::Error| {
        Fault::new(Code::Internal, format!("the answer cannot be written: {error}"))
    };
    Ok(Answer {
        text: serde_json::to_string(value).map_err(spelt)?,
        data: serde_json::to_value(value).map_err(spelt)?,
    })
}

pub(super) async fn create(mut ask: Ask) -> Result<Answer, Fault> {
    #[derive(Serialize)]
    struct Created {
        session_id: String,
        place: PlaceKind,
        cwd: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        lesser: Vec<String>,
    }
    let shell = ask.read::<Create>()?.shell(ask.own.as_deref())?;
    let opened = ask.sessions.open_shell(&ask.caller, shell).await?;
    answer(&Created {
        session_id: opened.session_id,
        place: opened.place,
        cwd: opened.cwd,
        lesser: opened.lesser,
    })
}

pub(super) async fn exec(mut ask: Ask) -> Result<Answer, Fault> {
    let (session, command) = ask.read::<Exec>()?.command()?;
    let result = exec::run(&ask.sessions, &ask.caller, &session, command, ask.hearing).await?;
    answer(&result)
}

pub(super) async fn poll(mut ask: Ask) -> Result<Answer, Fault> {
    let asked: Poll = ask.read()?;
    let session = arguments::session(&asked.session_id)?;
    let wait = asked.wait()?;
    let polled = ask.sessions.poll_command(&ask.caller, &session, asked.command_id, wait, asked.budget);
    tokio::select! {
        result = polled => answer(&result?),
        // Whoever does not wait any longer stops his waiting only.
        why = ask.hearing.over() => Err(exec::unheard(why, &asked.session_id, asked.command_id)),
    }
}

pub(super) async fn output(mut ask: Ask) -> Result<Answer, Fault> {
    let asked: Output = ask.read()?;
    let session = arguments::session(&asked.session_id)?;
    let (offset, stream) = (asked.offset.unwrap_or(0), asked.stream);
    let piece = ask.sessions.output(&ask.caller, &session, asked.command_id, stream, offset, asked.limit);
    answer(&piece.await?)
}

pub(super) async fn write(mut ask: Ask) -> Result<Answer, Fault> {
    #[derive(Serialize)]
    struct Written {
        written: u64,
    }
    let asked: Write = ask.read()?;
    let session = arguments::session(&asked.session_id)?;
    let (text, eof) = (asked.text.into_bytes(), asked.eof.unwrap_or(false));
    let written = ask.sessions.write_input(&ask.caller, &session, asked.command_id, text, eof).await?;
    answer(&Written { written })
}

pub(super) async fn signal(mut ask: Ask) -> Result<Answer, Fault> {
    #[derive(Serialize)]
    struct Signalled {
        signalled: bool,
    }
    let asked: Signal = ask.read()?;
    let session = arguments::session(&asked.session_id)?;
    let signalled =
        ask.sessions.signal_command(&ask.caller, &session, asked.command_id, asked.number()?).await?;
    answer(&Signalled { signalled })
}

pub(super) async fn list(mut ask: Ask) -> Result<Answer, Fault> {
    #[derive(Serialize)]
    struct Listed {
        sessions: Vec<ListedShell>,
    }
    let Nothing {} = ask.read()?;
    answer(&Listed { sessions: ask.sessions.shells(&ask.caller).await? })
}

pub(super) async fn destroy(mut ask: Ask) -> Result<Answer, Fault> {
    #[derive(Serialize)]
    struct Destroyed {
        destroyed: bool,
    }
    let asked: OneSession = ask.read()?;
    // What cannot be an id is no session's.
    let destroyed = match arguments::session(&asked.session_id) {
        Ok(session) => ask.sessions.close_shell(&ask.caller, &session).await?,
        Err(_) => false,
    };
    answer(&Destroyed { destroyed })
}

pub(super) async fn checkpoint(mut ask: Ask) -> Result<Answer, Fault> {
    #[derive(Serialize)]
    struct Taken {
        checkpoint_id: String,
    }
    let asked: TakeCheckpoint = ask.read()?;
    let session = arguments::session(&asked.session_id)?;
    let taken = ask.sessions.checkpoint(&ask.caller, &session, asked.label).await?;
    answer(&Taken { checkpoint_id: taken.id })
}

pub(super) async fn checkpoints(mut ask: Ask) -> Result<Answer, Fault> {
    #[derive(Serialize)]
    struct Kept {
        checkpoints: Vec<protocol::Checkpoint>,
    }
    let asked: OneSession = ask.read()?;
    let session = arguments::session(&asked.session_id)?;
    answer(&Kept { checkpoints: ask.sessions.checkpoints(&ask.caller, &session).await? })
}

pub(super) async fn restore(mut ask: Ask) -> Result<Answer, Fault> {
    let asked: Restore = ask.read()?;
    let session = arguments::session(&asked.session_id)?;
    answer(&ask.sessions.restore_checkpoint(&ask.caller, &session, asked.checkpoint_id).await?)
}
