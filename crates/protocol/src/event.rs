//! The closed set of events. A journal is made of nothing else.
//!
//! On the wire an event is one flat object: `{"session","seq","at","actor","type", …body}`. In the store the
//! body is kept apart, as `{"type": …}` text, so that an envelope can be written around it without parsing.
//! Bodies are structs of their own (an internally tagged enum could not keep raw JSON raw).

use crate::{
    Actor, AgentName, Code, ContentBlock, Disposition, KeepMode, LeftRunning, OnBusy, Outcome, OutputStream,
    PlaceKind, Raw, Reason, Seq, SessionId, SessionKind, Status, Timestamp, TurnId, Usage,
};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// The version of the bodies below. A reader takes this version and every older one.
pub const SCHEMA_VERSION: u32 = 1;

macro_rules! events {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)*) => {
        /// An event's type.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum EventKind { $($variant,)* }

        impl EventKind {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)* _ => None }
            }
        }

        /// What happened.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Body { $($(#[$doc])* $variant($variant),)* }

        $(impl From<$variant> for Body {
            fn from(body: $variant) -> Self { Self::$variant(body) }
        })*

        impl Body {
            pub const fn kind(&self) -> EventKind {
                match self { $(Self::$variant(_) => EventKind::$variant,)* }
            }

            fn fields(&self) -> Result<String, serde_json::Error> {
                match self { $(Self::$variant(body) => serde_json::to_string(body),)* }
            }

            fn read(kind: EventKind, text: &str) -> Result<Self, serde_json::Error> {
                match kind { $(EventKind::$variant => serde_json::from_str(text).map(Self::$variant),)* }
            }
        }
    };
}

/// The bodies derive the same things in the same spelling.
macro_rules! body {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name { $($(#[$fdoc])* pub $field: $type,)* }
    };
}

events! {
    SessionCreated = "session_created",
    SessionStatusChanged = "session_status",
    SessionConfig = "session_config",
    SessionRenamed = "session_renamed",
    PromptAccepted = "prompt_accepted",
    TurnStarted = "turn_started",
    TurnEnded = "turn_ended",
    AgentUpdate = "agent_update",
    PermissionRequested = "permission_requested",
    PermissionAnswered = "permission_answered",
    OccupantStarted = "occupant_started",
    OccupantExited = "occupant_exited",
    CommandStarted = "command_started",
    CommandEnded = "command_ended",
    OutputKept = "output_kept",
    SnapshotTaken = "snapshot_taken",
    SnapshotRestored = "snapshot_restored",
    Notice = "notice",
    ErrorRaised = "error",
}

body!(
    /// The first event of every session.
    SessionCreated {
        kind: SessionKind,
        place: PlaceKind,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<AgentName>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent_version: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        forked_from: Option<ForkPoint>,
    }
);

/// Where a fork left its parent: the parent's events up to `seq` are its own first ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForkPoint {
    pub session: SessionId,
    pub seq: Seq,
}

body!(SessionStatusChanged {
    from: Status,
    to: Status,
    /// Why, when nobody asked for it, or what was lost on the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
});

body!(
    /// A setting that the live agent has taken.
    SessionConfig {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        thought_level: Option<String>,
    }
);

body!(SessionRenamed { name: String });

body!(
    /// A prompt is on disk; from here on it gets exactly one `turn_ended`.
    PromptAccepted {
        turn: TurnId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client_id: Option<String>,
        content: Vec<ContentBlock>,
        on_busy: OnBusy,
        disposition: Disposition,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_turns: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_budget_usd: Option<f64>,
    }
);

body!(TurnStarted { turn: TurnId });

body!(TurnEnded {
    turn: TurnId,
    outcome: Outcome,
    reason: Reason,
    /// A sentence, when there is more to say than the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
});

body!(
    /// ACP's `session/update`, the `update` object as the agent wrote it, but for registered secrets.
    AgentUpdate {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<TurnId>,
        update: Raw,
    }
);

body!(
    /// The agent asks before it acts. The request's id is this event's seq.
    PermissionRequested {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<TurnId>,
        tool_call: Raw,
        options: Vec<PermissionOption>,
    }
);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionOption {
    pub option_id: String,
    pub name: String,
    /// `allow_once`, `allow_always`, `reject_once`, `reject_always`, as the agent wrote it.
    pub kind: String,
}

body!(PermissionAnswered {
    /// The seq of the request.
    permission: Seq,
    answer: Answer,
    /// Why, when nobody was asked: a rule, a time-out, a turn that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    why: Option<String>,
});

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", rename_all_fields = "camelCase", tag = "outcome")]
pub enum Answer {
    Selected { option_id: String },
    Cancelled,
}

body!(
    /// The occupant is there and has shaken hands.
    OccupantStarted {
        how: How,
        /// What the agent said of itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent_info: Option<Raw>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        capabilities: Option<Raw>,
        /// The agent's own id for the conversation.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent_session: Option<String>,
        /// The settings it offers: ACP's `configOptions`, `modes` and `models`, as it wrote them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        offers: Option<Raw>,
    }
);

/// The way an occupant came to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// For the first time.
    New,
    /// ACP `session/resume`.
    Resumed,
    /// ACP `session/load`.
    Loaded,
    /// ACP `session/fork`: it has the parent's conversation as its own.
    Forked,
    /// Anew, with the conversation before as a transcript in its home and a pointer to it in the next prompt.
    Transcript,
    /// Anew: the conversation before is in the journal, and not in the agent's mind.
    Fresh,
}

body!(OccupantExited {
    /// Its exit code, when it ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    /// The server asked for it.
    expected: bool,
    /// The end of what it wrote to stderr.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stderr: Option<String>,
});

body!(
    /// A shell's command is on disk, and about to be run; from here on it gets exactly one `command_ended`.
    CommandStarted {
        /// Numbered from 1 in each session.
        command: u64,
        /// Without its secrets.
        text: String,
    }
);

body!(CommandEnded {
    command: u64,
    outcome: CommandOutcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    duration_ms: u64,
    cwd: String,
    stdout: StreamShown,
    stderr: StreamShown,
    /// What it left running.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    left: Vec<LeftRunning>,
    /// What the caller was told beside the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
});

body!(
    /// The whole text of one of a command's streams is on disk, of which a budget left something out.
    OutputKept {
        command: u64,
        stream: OutputStream,
        bytes: u64,
        /// Whether that is all; else the operator's limit cut it, or its beginning was lost.
        complete: bool,
        /// What it is found by.
        blob: String,
    }
);

/// What became of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandOutcome {
    /// It returned, or ended its shell.
    Done,
    TimedOut,
    Cancelled,
    /// A policy refused it, and nothing of it was run.
    Refused,
    /// It was accepted, and nothing of it was run.
    NotRun,
    /// The shell was lost while it ran; what became of it is not known.
    Interrupted,
}

/// What a caller was shown of one of a command's streams, and how much there was.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamShown {
    pub text: String,
    pub lines_total: u64,
    pub lines_kept: u64,
    #[serde(default)]
    pub mode: KeepMode,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Bytes that are no text were there, and are spelt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub escaped: bool,
    /// The whole text is being kept; `output_kept` says when it is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
}

body!(
    /// The workspace is in the snapshot store, durably.
    SnapshotTaken {
        /// The snapshot's id, in hexadecimal.
        snapshot: String,
        /// Files, folders and links.
        files: u64,
        /// Of content, as it is read.
        bytes: u64,
        /// Sockets, devices, mounts and what could not be read: not in it.
        #[serde(default, skip_serializing_if = "is_zero")]
        left_out: u64,
        /// Changed while they were read, and kept as they were read.
        #[serde(default, skip_serializing_if = "is_zero")]
        torn: u64,
    }
);

body!(
    /// The workspace was made again from a snapshot.
    SnapshotRestored {
        snapshot: String,
        files: u64,
        bytes: u64,
        /// Owners and attributes that could not be given back.
        #[serde(default, skip_serializing_if = "is_zero")]
        lost: u64,
    }
);

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

body!(
    /// Something worth keeping that is nobody's message: a junk line, a dropped setting.
    Notice {
        level: Level,
        text: String,
    }
);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Info,
    Warning,
}

body!(ErrorRaised { code: Code, message: String });

/// Why a stored body cannot be read.
#[derive(Debug)]
pub enum BodyError {
    /// Made by a newer version than this one.
    Newer {
        version: u32,
    },
    UnknownType(String),
    Json(serde_json::Error),
}

impl std::fmt::Display for BodyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Newer { version } => {
                write!(f, "the event has schema version {version}, this program reads up to {SCHEMA_VERSION}")
            }
            Self::UnknownType(kind) => write!(f, "unknown event type {kind:?}"),
            Self::Json(error) => write!(f, "the event's body is not readable: {error}"),
        }
    }
}

impl std::error::Error for BodyError {}

impl Body {
    /// The body as stored: one object whose first member is its type.
    pub fn encode(&self) -> Result<String, serde_json::Error> {
        let fields = self.fields()?;
        let kind = self.kind().as_str();
        let mut text = String::with_capacity(fields.len() + kind.len() + 12);
        text.push_str("{\"type\":\"");
        text.push_str(kind);
        text.push('"');
        if fields.len() > 2 {
            text.push(',');
        }
        text.push_str(&fields[1..]);
        Ok(text)
    }

    /// Reads a stored body of this version or an older one.
    pub fn decode(version: u32, text: &str) -> Result<Self, BodyError> {
        if version > SCHEMA_VERSION {
            return Err(BodyError::Newer { version });
        }
        #[derive(Deserialize)]
        struct Head<'a> {
            #[serde(rename = "type", borrow)]
            kind: std::borrow::Cow<'a, str>,
        }
        let head: Head<'_> = serde_json::from_str(text).map_err(BodyError::Json)?;
        let kind =
            EventKind::parse(&head.kind).ok_or_else(|| BodyError::UnknownType(head.kind.into_owned()))?;
        Self::read(kind, text).map_err(BodyError::Json)
    }
}

/// An event as clients read it.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub session: SessionId,
    pub seq: Seq,
    pub at: Timestamp,
    pub actor: Actor,
    pub body: Body,
}

impl Event {
    /// Writes the flat wire form around an encoded body.
    pub fn splice(out: &mut String, session: SessionId, seq: Seq, at: Timestamp, actor: &Actor, body: &str) {
        // Writing to a String cannot fail.
        let _ =
            write!(out, "{{\"session\":\"{session}\",\"seq\":{seq},\"at\":\"{at}\",\"actor\":\"{actor}\",");
        out.push_str(&body[1..]);
    }

    /// Reads the flat wire form.
    pub fn parse(text: &str) -> Result<Self, BodyError> {
        #[derive(Deserialize)]
        struct Envelope {
            session: SessionId,
            seq: Seq,
            at: Timestamp,
            actor: Actor,
        }
        let envelope: Envelope = serde_json::from_str(text).map_err(BodyError::Json)?;
        let body = Body::decode(SCHEMA_VERSION, text)?;
        Ok(Self {
            session: envelope.session,
            seq: envelope.seq,
            at: envelope.at,
            actor: envelope.actor,
            body,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn() -> TurnId {
        "019a8000-0000-7000-8000-000000000001".parse().unwrap()
    }

    /// Bytes recorded from version 1. They must stay readable for ever: add lines, never change one.
    const RECORDED_V1: &[&str] = &[
        r#"{"type":"session_created","kind":"agent","place":"host","agent":"demo","agentVersion":1,"model":"m"}"#,
        r#"{"type":"session_status","from":"starting","to":"active"}"#,
        r#"{"type":"session_config","mode":"plan"}"#,
        r#"{"type":"session_renamed","name":"n"}"#,
        r#"{"type":"prompt_accepted","turn":"019a8000-0000-7000-8000-000000000001","clientId":"c","content":[{"type":"text","text":"hi"}],"onBusy":"queue","disposition":"started"}"#,
        r#"{"type":"turn_started","turn":"019a8000-0000-7000-8000-000000000001"}"#,
        r#"{"type":"turn_ended","turn":"019a8000-0000-7000-8000-000000000001","outcome":"done","reason":"end_turn","usage":{"inputTokens":1,"outputTokens":2}}"#,
        r#"{"type":"agent_update","turn":"019a8000-0000-7000-8000-000000000001","update":{ "sessionUpdate" : "x", "n": 1.50 }}"#,
        r#"{"type":"permission_requested","toolCall":{"toolCallId":"t"},"options":[{"optionId":"o","name":"Yes","kind":"allow_once"}]}"#,
        r#"{"type":"permission_answered","permission":9,"answer":{"outcome":"selected","optionId":"o"}}"#,
        r#"{"type":"permission_answered","permission":9,"answer":{"outcome":"cancelled"}}"#,
        r#"{"type":"occupant_started","how":"new","agentInfo":{"name":"a"},"agentSession":"s"}"#,
        r#"{"type":"occupant_exited","code":3,"expected":false,"stderr":"boom"}"#,
        r#"{"type":"command_started","command":1,"text":"true"}"#,
        r#"{"type":"command_ended","command":1,"outcome":"done","exitCode":0,"durationMs":1,"cwd":"/","stdout":{"text":"","linesTotal":0,"linesKept":0,"mode":"all"},"stderr":{"text":"","linesTotal":0,"linesKept":0,"mode":"all"},"left":[{"pid":7,"name":"sleep"}],"hint":"h"}"#,
        r#"{"type":"output_kept","command":1,"stream":"stdout","bytes":7,"complete":true,"blob":"ab"}"#,
        r#"{"type":"snapshot_taken","snapshot":"ab","files":3,"bytes":4,"leftOut":1,"torn":2}"#,
        r#"{"type":"snapshot_taken","snapshot":"ab","files":3,"bytes":4}"#,
        r#"{"type":"snapshot_restored","snapshot":"ab","files":3,"bytes":4,"lost":1}"#,
        r#"{"type":"notice","level":"warning","text":"t"}"#,
        r#"{"type":"error","code":"agent_failed","message":"m"}"#,
    ];

    #[test]
    fn recorded_bytes_stay_readable() {
        let mut seen = std::collections::HashSet::new();
        for text in RECORDED_V1 {
            let body = Body::decode(1, text).unwrap_or_else(|error| panic!("{text}: {error}"));
            seen.insert(body.kind());
            assert_eq!(&body.encode().unwrap(), text, "what is read is written the same");
        }
        assert_eq!(seen.len(), EventKind::ALL.len(), "every type has recorded bytes");
    }

    #[test]
    fn unknown_members_are_ignored_and_newer_versions_refused() {
        assert!(Body::decode(1, r#"{"type":"session_renamed","name":"n","later":1}"#).is_ok());
        assert!(matches!(Body::decode(2, r#"{"type":"notice"}"#), Err(BodyError::Newer { version: 2 })));
        assert!(matches!(Body::decode(1, r#"{"type":"later"}"#), Err(BodyError::UnknownType(_))));
    }

    #[test]
    fn the_wire_form_round_trips_and_keeps_raw_json_raw() {
        let update =
            Raw::parse(r#"{ "sessionUpdate" : "x", "big": 1e400, "dup":1, "dup":2 }"#.to_owned()).unwrap();
        let event = Event {
            session: SessionId::new(),
            seq: 7,
            at: Timestamp::from_millis(1_750_000_000_000),
            actor: Actor::Agent,
            body: AgentUpdate { turn: Some(turn()), update: update.clone() }.into(),
        };
        let mut text = String::new();
        Event::splice(
            &mut text,
            event.session,
            event.seq,
            event.at,
            &event.actor,
            &event.body.encode().unwrap(),
        );
        assert!(text.contains(update.as_str()));
        assert_eq!(Event::parse(&text).unwrap(), event);
    }
}
