//! Shells, as the doors ask for them: sessions whose occupant is one persistent shell.
//!
//! Questions are checked here and go to the session's own task ([`task`]), which is woken when there is none. Knows
//! nothing of MCP or HTTP, and nothing of how a place keeps a shell alive.

mod afar;
mod checkpoints;
mod chores;
mod command;
mod grip;
mod memo;
mod output;
mod project;
mod results;
mod seat;
mod task;
mod whole;

pub(crate) use command::{ShellCommand, no_shell};
pub(crate) use task::{ShellTask, serve_stored};

use crate::{
    Caller, NewWork, Sessions, faults,
    live::{Card, Reply},
    pen::Pen,
    spec::internal,
    task as agents,
};
use command::{Glimpse, Order};
use journal::{NewSession, SessionQuery};
use memo::{ShellMemo, ShellSpec};
use occupant::{
    fence::Fence,
    shell::Stdin,
    text::{Pattern, Plan, Shapes},
};
use place::remote;
use protocol::{
    Actor, Alias, Body, Budget, Checkpoint, Code, EventKind, ExecCommand, ExecResult, Fault, ListedShell,
    LiveOutput, Network, OpenShell, OpenedShell, PlaceKind, RestoredCheckpoint, SessionId, SessionKind,
    SessionRef, Status, Tenant, Timestamp, Transport, limits,
};
use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::{mpsc, oneshot};

/// Pieces of live output that may wait for a caller.
const LIVE_PIECES: usize = 64;
/// The counter that aliases are numbered by, one for the whole data folder.
const COUNTER: &str = "shells";
const NUMBERS: u32 = 32;
/// Of a part of an alias that a caller gave.
const ALIAS_PART: usize = 40;
/// The port that an alias does not name.
const SSH_PORT: &str = "22";

/// Resolved by the binary; nothing here reads the environment.
#[derive(Debug, Clone)]
pub struct ShellOptions {
    /// Live at once.
    pub sessions: usize,
    /// After this long without a command, a shell is ended.
    pub idle: Duration,
    /// The environment of shells on the bare host that bring none.
    pub host_env: BTreeMap<String, String>,
    /// Whether what looks like a secret is hidden.
    pub shapes: Shapes,
    /// What else is.
    pub patterns: Vec<Pattern>,
    /// The operator's own rules for every command.
    pub fence: Fence,
    /// Kept of one stream when a budget leaves something out; nothing when it is zero.
    pub output_bytes: u64,
    /// What shells behind walls reach, within what the operator allows sandboxes.
    pub network: Network,
    pub remote: remote::Policy,
    /// The container engine's socket.
    pub engine: PathBuf,
}

impl Default for ShellOptions {
    fn default() -> Self {
        Self {
            sessions: limits::SHELL_SESSIONS,
            idle: Duration::from_secs(limits::SHELL_IDLE_SECS),
            host_env: BTreeMap::new(),
            shapes: Shapes::Known,
            patterns: Vec::new(),
            fence: Fence::default(),
            output_bytes: limits::OUTPUT_BYTES,
            network: Network::NONE,
            remote: remote::Policy::default(),
            engine: PathBuf::from("/var/run/docker.sock"),
        }
    }
}

/// A command that was accepted. Whoever drops it lets the command go on.
#[derive(Debug)]
pub struct Execution {
    pub command: u64,
    /// What it writes, while it runs. What does not fit is left out: the result has it.
    pub live: mpsc::Receiver<LiveOutput>,
    /// Its end, or what there is after the time that the caller wanted to wait.
    pub result: oneshot::Receiver<Result<ExecResult, Fault>>,
}

impl Sessions {
    /// Opens a shell; done when it waits for its first command.
    pub async fn open_shell(&self, caller: &Caller, request: OpenShell) -> Result<OpenedShell, Fault> {
        let shared = &self.shared;
        let place = self.choose_place(caller, &request)?;
        if let Some(budget) = &request.output_budget {
            plan(budget)?;
        }
        let fence = Fence::new(&request.allow, &request.deny);
        fence.map_err(|bad| Fault::invalid(format!("the policy cannot be used: {bad}")))?;
        let mut spec = ShellSpec::check(request)?;
        if place == PlaceKind::Project {
            project::settle(shared, &mut spec).await?;
        }
        let name = self.alias_tail(&spec).await?;
        self.admit_work(&caller.tenant, NewWork::Session).await?;
        let slot = shared.shell_slots.take(&caller.tenant).map_err(|fault| match fault.code {
            Code::CapacityReached | Code::QuotaExceeded => Fault::new(
                Code::CapacityReached,
                format!(
                    "{} shells are open, which is the limit; close one with session_destroy",
                    shared.options.shells.sessions
                ),
            ),
            _ => fault,
        })?;
        let number = self.shell_number().await?;
        let alias = Alias::new(format!("{number}_{name}")).map_err(|error| internal(error.to_string()))?;
        let (id, now) = (SessionId::new(), Timestamp::now());
        let fixed = NewSession {
            id,
            tenant: caller.tenant.clone(),
            kind: SessionKind::Shell,
            place,
            sandbox: id.to_string(),
            agent: None,
            agent_version: None,
            alias: Some(alias.clone()),
            created_at: now,
            forked_from: None,
            spec: spec.seal(&shared.vault)?,
        };
        let state = agents::first_state(None, None, now);
        let writer = shared.journal.begin(fixed.clone());
        let (inbox, card) = (shared.live.open(id), Card::of(&fixed));
        let pen = Pen::new(Arc::clone(shared), writer, fixed, state, 1, None);
        let (reply, answer) = oneshot::channel();
        let mut task = ShellTask::assemble(pen, inbox, spec, ShellMemo::default());
        task.create(Actor::Key(caller.key), slot, reply);
        agents::spawn_new_shell(task, Arc::clone(shared), id);
        answer.await.unwrap_or_else(|_| Err(internal("a new shell's task ended without an answer")))?;
        shared.live.introduce(id, card);
        let glimpse = self.look(id).await?;
        Ok(OpenedShell {
            session: id,
            session_id: alias.to_string(),
            place,
            cwd: glimpse.cwd,
            lesser: glimpse.lesser,
        })
    }

    /// Never the same twice. Numbers are put by in blocks, so that not every shell waits for a commit of its own; a
    /// server that starts begins with a new block.
    async fn shell_number(&self) -> Result<u64, Fault> {
        let mut numbers = self.shared.shell_numbers.lock().await;
        if let Some(number) = numbers.next() {
            return Ok(number);
        }
        let counted = self.shared.journal.count_many(&Tenant::default_tenant(), COUNTER, NUMBERS).await;
        *numbers = counted.map_err(faults::write)?;
        numbers.next().ok_or_else(|| internal("the store has counted no shells"))
    }

    /// What an alias says of where a shell is.
    async fn alias_tail(&self, spec: &ShellSpec) -> Result<String, Fault> {
        Ok(match seat::far_target(&self.shared, spec) {
            None => "local".to_owned(),
            Some((remote::Target::Docker(docker), _)) => format!("docker_{}", alias_part(&docker.container)),
            Some((remote::Target::Ssh(ssh), _)) => {
                let account = self.shared.remotes.account(&ssh).await;
                let (user, port) = account.map_err(|error| faults::remote(&error))?;
                let port = if port == SSH_PORT { String::new() } else { format!(":{}", alias_part(&port)) };
                format!("ssh_{}@{}{port}", alias_part(&user), alias_part(&ssh.host))
            }
        })
    }

    fn choose_place(&self, caller: &Caller, request: &OpenShell) -> Result<PlaceKind, Fault> {
        let wanted = match (&request.transport, request.place) {
            (Transport::Local, Some(PlaceKind::Ssh | PlaceKind::Docker)) => {
                return Err(Fault::invalid("place is sandbox, project or host; the rest is the transport's"));
            }
            (Transport::Local, wanted) => wanted,
            (Transport::Ssh(_) | Transport::Docker(_), Some(_)) => {
                return Err(Fault::invalid("place is for local shells only"));
            }
            (Transport::Ssh(_), None) => Some(PlaceKind::Ssh),
            (Transport::Docker(_), None) => Some(PlaceKind::Docker),
        };
        self.shared.options.sandboxing.choose(&caller.tenant, wanted)
    }

    /// Has a command run behind those before it. Its start is on disk when it runs, and its end when it is told.
    pub async fn exec(
        &self,
        caller: &Caller,
        session: &SessionRef,
        request: ExecCommand,
    ) -> Result<Execution, Fault> {
        let id = self.shell(caller, session).await?;
        let timeout = request.timeout_secs.unwrap_or(limits::COMMAND_SECS);
        if timeout == 0 || timeout > limits::COMMAND_SECS_MOST {
            return Err(Fault::invalid(format!("timeout_secs must be 1 to {}", limits::COMMAND_SECS_MOST)));
        }
        if request.command.len() > limits::COMMAND_BYTES {
            return Err(Fault::new(
                Code::PayloadTooLarge,
                format!("a command has at most {} bytes", limits::COMMAND_BYTES),
            ));
        }
        if request.command.contains(&0) {
            return Err(Fault::invalid("a command cannot hold a NUL byte"));
        }
        self.admit_work(&caller.tenant, NewWork::Prompt).await?;
        let order = Box::new(Order {
            actor: Actor::Key(caller.key),
            text: request.command.into(),
            stdin: if request.open_stdin { Stdin::Open } else { Stdin::Empty },
            budget: match request.budget {
                Some(budget) => Some((plan(&budget)?, budget)),
                None => None,
            },
            timeout: Duration::from_secs(timeout),
            yields: request.yield_secs.map(Duration::from_secs),
        });
        self.ask(id, |reply| ShellCommand::Exec { order, reply }).await
    }

    /// Stops a command that runs, or takes one back that waits; its result is told as ever. False if it has ended.
    pub async fn cancel_command(
        &self,
        caller: &Caller,
        session: &SessionRef,
        command: u64,
    ) -> Result<bool, Fault> {
        let id = self.shell(caller, session).await?;
        self.ask(id, |reply| ShellCommand::Cancel { command, reply }).await
    }

    /// Writes to a running command's input, and closes it when `eof`. The bytes written.
    pub async fn write_input(
        &self,
        caller: &Caller,
        session: &SessionRef,
        command: u64,
        text: Vec<u8>,
        eof: bool,
    ) -> Result<u64, Fault> {
        let id = self.shell(caller, session).await?;
        let bytes = text.into();
        self.ask(id, |reply| ShellCommand::Write { command, bytes, eof, reply }).await
    }

    /// What a command has shown by now, or its end; waits for that as long as it is told to.
    pub async fn poll_command(
        &self,
        caller: &Caller,
        session: &SessionRef,
        command: u64,
        wait: Duration,
        budget: Option<Budget>,
    ) -> Result<ExecResult, Fault> {
        let id = self.shell(caller, session).await?;
        let plan = budget.as_ref().map(plan).transpose()?.map(Box::new);
        let again = plan.clone();
        let wait = wait.min(Duration::from_secs(limits::COMMAND_SECS_MOST));
        let told = self.ask(id, |reply| ShellCommand::Poll { command, wait, plan, reply }).await;
        match told {
            Err(fault) if fault.code == Code::NotFound => {
                let row = self.row(caller, session).await?;
                let found = self.ended_command(&row, command).await?;
                found.map(|result| task::narrowed(result, again.as_deref())).ok_or(fault)
            }
            other => other,
        }
    }

    /// Looks an ended command up in the journal, from the newest event on backwards.
    async fn ended_command(
        &self,
        row: &journal::SessionRow,
        command: u64,
    ) -> Result<Option<ExecResult>, Fault> {
        let mut text = String::new();
        let mut cursor = row.first_seq.saturating_sub(1);
        loop {
            let page = self.shared.journal.read(row.fixed.id, cursor, limits::PAGE_EVENTS).await;
            let page = page.map_err(faults::read)?;
            for event in &page.events {
                cursor = event.seq;
                if !matches!(event.kind, EventKind::CommandStarted | EventKind::CommandEnded) {
                    continue;
                }
                match event.decode() {
                    Ok(Body::CommandStarted(started)) if started.command == command => text = started.text,
                    Ok(Body::CommandEnded(ended)) if ended.command == command => {
                        return Ok(Some(results::result(text, ended)));
                    }
                    Ok(_) | Err(_) => {}
                }
            }
            if page.events.is_empty() || cursor >= page.last_seq {
                return Ok(None);
            }
        }
    }

    /// Signals what a running command started, by the signal's number. False if it has ended.
    pub async fn signal_command(
        &self,
        caller: &Caller,
        session: &SessionRef,
        command: u64,
        signal: i32,
    ) -> Result<bool, Fault> {
        let id = self.shell(caller, session).await?;
        self.ask(id, |reply| ShellCommand::Signal { command, signal, reply }).await
    }

    /// Ends a shell with everything that it started; its record stays. False if there is none of that name.
    pub async fn close_shell(&self, caller: &Caller, session: &SessionRef) -> Result<bool, Fault> {
        match self.shell(caller, session).await {
            Ok(_) => {}
            Err(fault) if fault.code == Code::SessionNotFound => return Ok(false),
            Err(fault) => return Err(fault),
        }
        self.end(caller, session).await.map(|_| true)
    }

    /// The tenant's shells that have not ended.
    pub async fn shells(&self, caller: &Caller) -> Result<Vec<ListedShell>, Fault> {
        let mut listed = Vec::new();
        for status in [Status::Starting, Status::Active, Status::Paused, Status::Error] {
            let mut cursor = None;
            loop {
                let query = SessionQuery {
                    tenant: caller.tenant.clone(),
                    agent: None,
                    status: Some(status),
                    kind: Some(SessionKind::Shell),
                    limit: Some(limits::LIST_PAGE),
                    cursor: cursor.take(),
                };
                let page = self.shared.journal.sessions(query).await.map_err(faults::read)?;
                for row in &page.sessions {
                    listed.push(self.listed(row).await);
                }
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
        }
        Ok(listed)
    }

    async fn listed(&self, row: &journal::SessionRow) -> ListedShell {
        let fixed = &row.fixed;
        let live = if self.shared.live.has(fixed.id) { self.look(fixed.id).await.ok() } else { None };
        let since = Timestamp::now().as_millis() - row.state.last_active_at.as_millis();
        let idle = live.as_ref().map(|live| live.idle.as_secs());
        ListedShell {
            session_id: fixed.alias.as_ref().map_or_else(|| fixed.id.to_string(), ToString::to_string),
            id: fixed.id,
            transport: match fixed.place {
                PlaceKind::Sandbox | PlaceKind::Project | PlaceKind::Host => "local",
                PlaceKind::Ssh => "ssh",
                PlaceKind::Docker => "docker",
            }
            .to_owned(),
            place: fixed.place,
            status: row.state.status,
            idle_secs: idle.unwrap_or_else(|| u64::try_from(since / 1000).unwrap_or(0)),
            created_at: fixed.created_at,
            running: live.as_ref().and_then(|live| live.running),
            cwd: match live {
                Some(live) => live.cwd,
                None => ShellMemo::decode(&row.state.memo).cwd.unwrap_or_default(),
            },
        }
    }

    pub async fn checkpoint(
        &self,
        caller: &Caller,
        session: &SessionRef,
        label: Option<String>,
    ) -> Result<Checkpoint, Fault> {
        crate::check_label("label", label.as_deref())?;
        let id = self.shell(caller, session).await?;
        self.ask(id, |reply| ShellCommand::Checkpoint { label, reply }).await
    }

    /// Newest first.
    pub async fn checkpoints(&self, caller: &Caller, session: &SessionRef) -> Result<Vec<Checkpoint>, Fault> {
        let id = self.shell(caller, session).await?;
        self.ask(id, |reply| ShellCommand::Checkpoints { reply }).await
    }

    /// Takes a checkpoint, and then brings the files back to another; the newest before when none is named.
    pub async fn restore_checkpoint(
        &self,
        caller: &Caller,
        session: &SessionRef,
        checkpoint: Option<String>,
    ) -> Result<RestoredCheckpoint, Fault> {
        let id = self.shell(caller, session).await?;
        self.ask(id, |reply| ShellCommand::Restore { checkpoint, reply }).await
    }

    async fn shell(&self, caller: &Caller, session: &SessionRef) -> Result<SessionId, Fault> {
        match self.identify(caller, session).await? {
            (id, SessionKind::Shell) => Ok(id),
            (_, SessionKind::Agent) => Err(no_shell()),
        }
    }

    async fn look(&self, id: SessionId) -> Result<Glimpse, Fault> {
        self.ask(id, |reply| ShellCommand::Look { reply }).await
    }

    async fn ask<T>(
        &self,
        id: SessionId,
        command: impl FnOnce(Reply<T>) -> ShellCommand,
    ) -> Result<T, Fault> {
        self.shared.call(id, |reply| agents::Command::Shell(command(reply))).await
    }
}

fn plan(budget: &Budget) -> Result<Plan, Fault> {
    Plan::new(budget).map_err(|bad| Fault::invalid(format!("budget: {}", bad.0)))
}

fn alias_part(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    text.chars().map(plain).take(ALIAS_PART).collect()
}
