//! What callers ask about commands.

use super::{input::away, *};

/// What callers ask.
impl ShellTask {
    pub(super) async fn on_command(&mut self, command: Command) {
        match command {
            Command::Shell(command) => self.on_shell_command(command),
            Command::Pause { reply } => self.on_pause(reply),
            Command::Resume { reply } => self.on_resume(reply),
            Command::Stop { reply } => self.on_stop(reply),
            Command::Evict { reply } => self.on_evict(reply),
            Command::End { reply } => self.on_end(reply),
            Command::Remove { actor, reply } => self.on_remove(actor, reply).await,
            Command::Snapshot { reply } => {
                let chore = chores::copy(&self.pen.shared, &self.pen.fixed, self.grip(), reply);
                self.chore = Some((chore, Purpose::Other));
            }
            Command::Cancel { reply } => {
                let running = self.machine.as_ref().and_then(shell::Shell::running);
                if let Some(command) = running {
                    self.step(|machine, now, out| {
                        machine.cancel(command, now, out);
                    });
                }
                self.pen.answer_view(reply);
            }
            Command::Logs { reply } => drop(reply.send(Ok(None))),
            Command::Space { space } => self.on_space(space),
            Command::Wake => {}
            Command::Shutdown => self.close(),
            other @ (Command::Prompt { .. } | Command::Configure { .. } | Command::Answer { .. }) => {
                other.refuse(&no_agent());
            }
        }
    }

    pub(super) fn grip(&self) -> Option<&Grip> {
        match &self.link {
            Link::Up(up) if !up.frozen => Some(&up.grip),
            Link::Up(_) | Link::None | Link::Launching(_) | Link::Rejoining(..) => None,
        }
    }

    pub(super) fn on_shell_command(&mut self, command: ShellCommand) {
        match command {
            ShellCommand::Exec { order, reply } => self.on_exec(order, reply),
            ShellCommand::Checkpoint { label, reply } => self.on_checkpoint(label, reply),
            ShellCommand::Checkpoints { reply } => {
                let kept = self.memo.checkpoints.iter().rev();
                let _ = reply.send(Ok(kept.map(checkpoints::Kept::told).collect()));
            }
            ShellCommand::Restore { checkpoint, reply } => self.on_restore(checkpoint, reply),
            ShellCommand::Kept { reply } => self.when_kept(reply),
            ShellCommand::Cancel { command, reply } => {
                self.thaw_for(command);
                let mut known = false;
                self.step(|machine, now, out| known = machine.cancel(command, now, out));
                let _ = reply.send(Ok(known));
            }
            ShellCommand::Signal { reply, .. } if self.is_away() => drop(reply.send(Err(away()))),
            ShellCommand::Signal { command, signal, reply } => {
                self.thaw_for(command);
                let mut known = false;
                self.step(|machine, _, out| known = machine.signal(command, signal, out));
                let _ = reply.send(Ok(known));
            }
            ShellCommand::Write { command, bytes, eof, reply } => self.on_write(command, bytes, eof, reply),
            ShellCommand::Poll { command, wait, plan, reply } => self.on_poll(command, wait, plan, reply),
            ShellCommand::Remark { text, reply } => {
                self.pen.record(Actor::System, Notice { level: Level::Warning, text });
                self.pen.answer(reply, Ok(()));
            }
            ShellCommand::Look { reply } => {
                let cwd = self.machine.as_ref().map(shell::Shell::cwd).or_else(|| self.memo.cwd.clone());
                let running = self.machine.as_ref().and_then(shell::Shell::running);
                let idle = if running.is_some() { Duration::ZERO } else { self.idle_since.elapsed() };
                let lesser = match &self.link {
                    Link::Up(up) => up.shell.manner().lesser(),
                    Link::None | Link::Launching(_) | Link::Rejoining(..) => &[],
                };
                let lesser = lesser.iter().map(|text| (*text).to_owned()).collect();
                let _ = reply.send(Ok(Glimpse { cwd: cwd.unwrap_or_default(), running, idle, lesser }));
            }
        }
    }

    fn on_exec(&mut self, order: Box<Order>, reply: Reply<Execution>) {
        // What runs already changes things anyway.
        let quiet = self.open.is_empty() && self.pen.state.status != Status::Ended;
        if self.spec.auto_snapshot && quiet && self.fence.judge_bytes(&order.text).is_ok() {
            return self.checkpoint_before(order, reply);
        }
        self.start_exec(*order, None, reply);
    }

    pub(super) fn start_exec(&mut self, order: Order, hint: Option<String>, reply: Reply<Execution>) {
        match self.accept(order) {
            Ok(execution) => {
                // Whoever goes on as if nothing had happened would go wrong.
                let lost = self.memo.lost.take().map(|why| {
                    format!("the shell before this one was lost ({why}): its variables, functions and jobs are gone")
                });
                if let Some(open) = self.open.get_mut(&execution.command) {
                    open.hint = match (lost, hint) {
                        (Some(lost), Some(hint)) => Some(format!("{lost}; {hint}")),
                        (lost, hint) => lost.or(hint),
                    };
                }
                let _ = reply.send(Ok(execution));
            }
            Err(fault) => self.pen.answer(reply, Err(fault)),
        }
    }

    pub(super) fn accept(&mut self, order: Order) -> Result<Execution, Fault> {
        if self.pen.state.status == Status::Ended {
            return Err(lifecycle::ended());
        }
        self.pen.shared.rates.check(&self.pen.fixed.tenant, Instant::now())?;
        if let Err(refusal) = self.fence.judge_bytes(&order.text) {
            return Err(self.refuse(&order, &refusal.to_string()));
        }
        if matches!(&self.link, Link::Up(up) if up.frozen) {
            self.thaw();
        }
        self.bring()?;
        let (plan, budget) = order.budget.unwrap_or_else(|| {
            let own = self.spec.output_budget.clone().unwrap_or_default();
            // It was usable when the shell was opened.
            (Plan::new(&own).unwrap_or_default(), own)
        });
        let command = self.memo.commands + 1;
        let now = Instant::now();
        let (live, pieces) = mpsc::channel(LIVE_PIECES);
        let (reply, result) = oneshot::channel();
        let exec = shell::Exec {
            command,
            text: order.text,
            stdin: order.stdin,
            plan,
            timeout_ms: u64::try_from(order.timeout.as_millis()).unwrap_or(u64::MAX),
        };
        let open = Open {
            actor: order.actor,
            mode: mode_of(&budget),
            budget,
            text: String::new(),
            since: now,
            live: Some(live),
            reply: Some(reply),
            yields: order.yields.map(|wait| now + wait),
            acknowledged: false,
            told_at: None,
            hint: None,
        };
        self.open.insert(command, open);
        let mut accepted = Ok(());
        self.step(|machine, now, out| accepted = machine.exec(exec, now, out));
        if let Err(why) = accepted {
            self.open.remove(&command);
            return Err(match why {
                shell::Unaccepted::TooMany => Fault::new(
                    Code::QueueFull,
                    format!("{} commands wait in this shell already; wait for some of them", shell::WAITING),
                ),
                shell::Unaccepted::Over => Fault::new(Code::SandboxFailed, "The shell cannot go on"),
            });
        }
        self.memo.commands = command;
        Ok(Execution { command, live: pieces, result })
    }

    /// A policy refuses it. That it was asked for is recorded all the same.
    fn refuse(&mut self, order: &Order, why: &str) -> Fault {
        self.memo.commands += 1;
        let command = self.memo.commands;
        let text = self.secrets.text(&String::from_utf8_lossy(&order.text));
        self.pen.record(order.actor.clone(), CommandStarted { command, text });
        self.pen.record(Actor::System, results::refused(command, why, self.memo.cwd.as_deref()));
        Fault::new(Code::CommandRefused, format!("A policy refuses the command: {why}"))
    }

    pub(super) fn on_poll(
        &mut self,
        command: u64,
        wait: Duration,
        plan: Option<Box<Plan>>,
        reply: Reply<ExecResult>,
    ) {
        if let Some(ended) = self.recent.iter().find(|ended| ended.command_id == command) {
            // It may still be on its way to disk.
            let result = ended.as_ref().clone();
            return self.pen.answer(reply, Ok(narrowed(result, plan.as_deref())));
        }
        let Some(so_far) = self.so_far(command) else {
            return drop(reply.send(Err(no_command(command))));
        };
        if wait.is_zero() || self.pollers.len() >= POLLERS {
            return drop(reply.send(Ok(narrowed(so_far, plan.as_deref()))));
        }
        self.pollers.push(Poller { command, until: Instant::now() + wait, plan, reply });
    }
}

/// What was shown, held against another budget. What the command's own left out stays out.
pub(in crate::shells) fn narrowed(mut result: ExecResult, plan: Option<&Plan>) -> ExecResult {
    let Some(plan) = plan else { return result };
    let secrets = Secrets::new(&Redactor::default(), Shapes::Off, &[]);
    for (text, report) in
        [(&mut result.stdout, &mut result.budget.stdout), (&mut result.stderr, &mut result.budget.stderr)]
    {
        let mut screen = Screen::new(plan.clone(), secrets.clone());
        screen.push(text.as_bytes());
        let view = screen.finish();
        *text = view.shown.text;
        result.truncated |= view.shown.truncated;
        (report.mode, report.lines_kept) = (plan.mode, view.shown.lines_kept);
    }
    result
}

pub(super) fn no_command(command: u64) -> Fault {
    Fault::new(
        Code::NotFound,
        format!("There is no command {command} in this session that can still be read"),
    )
}

pub(super) fn no_input(command: u64) -> Fault {
    Fault::new(
        Code::NotRunning,
        format!("Command {command} does not run, or was started without an open input"),
    )
}
