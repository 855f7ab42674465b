//! The machine, the host place and the scripted agent together: what each script word does, seen through ACP.
//! Records count as durable at once, so that effects fire in the order they were left in.
#![cfg(test)]

mod driver {
    use outlast_occupant::{Acp, Begin, Cx, Effect, Redactor, Said};
    use place::{Exit, Hold, Place, Process, Spawn, Spawned, Terms, Walls};
    use protocol::{
        Actor, Answer, Body, ContentBlock, How, McpServers, Outcome, Reason, Seq, SessionConfig, Timestamp,
        TurnId, TurnStarted, Usage,
    };
    use std::{collections::VecDeque, time::Duration};

    const ORPHAN: Duration = Duration::from_secs(20);

    pub(crate) struct Live {
        pub(crate) dir: std::sync::Arc<tempfile::TempDir>,
        process: Process,
        _hold: Hold,
        sent: Seq,
        acp: Acp,
        pub(crate) seq: Seq,
        pub(crate) records: Vec<(Seq, Actor, Body)>,
        said: VecDeque<Said>,
        open: bool,
    }

    #[derive(Debug, PartialEq)]
    pub(crate) struct Ended {
        pub(crate) outcome: Outcome,
        pub(crate) reason: Reason,
        pub(crate) message: Option<String>,
        pub(crate) usage: Option<Usage>,
        pub(crate) text: String,
    }

    impl Ended {
        pub(crate) fn how(&self) -> (Outcome, Reason) {
            (self.outcome, self.reason)
        }
    }

    pub(crate) fn begin() -> Begin {
        Begin {
            cwd: String::new(),
            mcp_servers: McpServers::new(),
            config: config(None, None),
            resume: None,
            turn_secs: None,
            redactor: Redactor::default(),
            terms: outlast_occupant::Terms::default(),
        }
    }

    pub(crate) fn config(model: Option<&str>, mode: Option<&str>) -> SessionConfig {
        let own = |text: Option<&str>| text.map(str::to_owned);
        SessionConfig { model: own(model), mode: own(mode), thought_level: None }
    }

    impl Live {
        pub(crate) async fn start(flags: &[&str], begin: Begin) -> Self {
            let dir = std::sync::Arc::new(tempfile::tempdir().unwrap());
            std::fs::create_dir(dir.path().join("agent")).unwrap();
            let place = Place::new(dir.path(), ORPHAN);
            place.create("s", &dir.path().join("agent"), Walls::None).await.unwrap();
            Self::start_in(dir, flags, begin).await
        }

        /// Another process in the same workspace.
        pub(crate) async fn again(self, flags: &[&str], begin: Begin) -> Self {
            let dir = std::sync::Arc::clone(&self.dir);
            drop(self);
            Self::start_in(dir, flags, begin).await
        }

        async fn start_in(dir: std::sync::Arc<tempfile::TempDir>, flags: &[&str], begin: Begin) -> Self {
            let place = Place::new(dir.path(), ORPHAN);
            let home = place.home("s", Walls::None).to_str().unwrap().to_owned();
            let agent = std::env::current_exe()
                .unwrap()
                .parent()
                .unwrap()
                .parent()
                .unwrap()
                .join("examples/demo_agent");
            let spawn = Spawn {
                program: agent.to_str().unwrap().to_owned(),
                args: flags.iter().map(|flag| (*flag).to_owned()).collect(),
                env: [("HOME".to_owned(), home.clone()), ("COLOUR".to_owned(), "green".to_owned())].into(),
                cwd: None,
            };
            let Spawned { process, hold } = place.spawn("s", spawn, Terms::host()).await.unwrap();
            let mut cx = Cx::new(Timestamp::now(), 0);
            let acp = Acp::begin(Begin { cwd: home, ..begin }, &mut cx);
            let mut live = Self {
                dir,
                process,
                _hold: hold,
                sent: 0,
                acp,
                seq: 0,
                records: vec![],
                said: VecDeque::new(),
                open: true,
            };
            live.take(cx);
            live
        }

        pub(crate) async fn ready(flags: &[&str]) -> Self {
            let mut live = Self::start(flags, begin()).await;
            assert_eq!(live.how().await.0, How::New);
            live
        }

        /// Waits until the agent is ready, and says the way and its session id.
        pub(crate) async fn how(&mut self) -> (How, String) {
            match self.hear().await {
                Said::Ready { how, agent_session } => (how, agent_session),
                other => panic!("{other:?}"),
            }
        }

        fn take(&mut self, cx: Cx) {
            let drained = cx.drain();
            for (actor, body) in drained.records {
                self.seq += 1;
                self.records.push((self.seq, actor, body));
            }
            for (_, effect) in drained.effects {
                match effect {
                    // An agent that has gone is heard of on its output.
                    Effect::Send(line) => {
                        self.sent += 1;
                        let _ = self.process.stdin.send(self.sent, line);
                    }
                    Effect::Say(said) => self.said.push_back(said),
                }
            }
        }

        pub(crate) fn step<T>(&mut self, act: impl FnOnce(&mut Acp, &mut Cx) -> T) -> T {
            let mut cx = Cx::new(Timestamp::now(), self.seq);
            let value = act(&mut self.acp, &mut cx);
            self.take(cx);
            value
        }

        /// Reads once.
        async fn pump(&mut self) {
            let next = tokio::time::timeout(Duration::from_secs(30), self.process.stdout.next());
            match next.await.expect("the agent says nothing") {
                Some(chunk) => self.step(|acp, cx| acp.output(&chunk.bytes, cx)),
                None if self.open => {
                    self.open = false;
                    self.step(Acp::eof);
                }
                None => panic!("nothing more will be said"),
            }
        }

        pub(crate) async fn hear(&mut self) -> Said {
            loop {
                if let Some(said) = self.said.pop_front() {
                    return said;
                }
                self.pump().await;
            }
        }

        /// Reads until something is recorded that `found` finds.
        pub(crate) async fn until(&mut self, found: impl Fn(&Body) -> bool) -> Seq {
            let mut looked = 0;
            loop {
                if let Some((seq, _, _)) = self.records[looked..].iter().find(|(_, _, body)| found(body)) {
                    return *seq;
                }
                looked = self.records.len();
                self.pump().await;
            }
        }

        pub(crate) fn send(&mut self, text: &str) {
            self.records.clear();
            let turn = TurnId::new();
            self.step(|acp, cx| {
                cx.record(Actor::System, TurnStarted { turn });
                acp.prompt(
                    turn,
                    &[ContentBlock::Text { text: text.to_owned() }],
                    outlast_occupant::TurnLimits::default(),
                    cx,
                );
            });
        }

        pub(crate) async fn ended(&mut self) -> Ended {
            match self.hear().await {
                Said::TurnEnded { outcome, reason, message, usage, .. } => {
                    Ended { outcome, reason, message, usage, text: self.text("agent_message_chunk") }
                }
                other => panic!("{other:?}"),
            }
        }

        pub(crate) async fn prompt(&mut self, text: &str) -> Ended {
            self.send(text);
            self.ended().await
        }

        /// The reply of a turn that ended well.
        pub(crate) async fn ask(&mut self, text: &str) -> String {
            let ended = self.prompt(text).await;
            assert_eq!(ended.how(), (Outcome::Done, Reason::EndTurn), "{text}: {ended:?}");
            assert!(ended.usage.is_some(), "{text}");
            ended.text
        }

        pub(crate) fn updates(&self) -> Vec<serde_json::Value> {
            let read = |body: &Body| match body {
                Body::AgentUpdate(update) => Some(update.update.read().unwrap()),
                _ => None,
            };
            self.records.iter().filter_map(|(_, _, body)| read(body)).collect()
        }

        pub(crate) fn text(&self, kind: &str) -> String {
            let updates = self.updates();
            let texts = updates.iter().filter(|update| update["sessionUpdate"] == kind);
            texts.map(|update| update["content"]["text"].as_str().unwrap()).collect()
        }

        pub(crate) fn notices(&self) -> usize {
            self.records.iter().filter(|(_, _, body)| matches!(body, Body::Notice(_))).count()
        }

        pub(crate) async fn permission(&mut self) -> Seq {
            self.until(|body| matches!(body, Body::PermissionRequested(_))).await
        }

        pub(crate) fn answer(&mut self, permission: Seq, option: &str) {
            let answer = Answer::Selected { option_id: option.to_owned() };
            self.step(|acp, cx| acp.answer(permission, answer, Actor::System, cx)).unwrap();
        }

        pub(crate) async fn exit(&mut self) -> Exit {
            self.process.handle.wait().await
        }

        pub(crate) fn close_input(&self) {
            self.process.stdin.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::driver::{Live, begin, config};
    use outlast_occupant::{Begin, Said};
    use protocol::{Actor, Body, Code, How, McpServer, McpServers, Outcome, Reason};

    #[tokio::test]
    async fn words_that_answer() {
        let mut live = Live::ready(&[]).await;
        for (script, expected) in [
            ("echo  exactly this ", " exactly this "),
            ("env COLOUR", "green"),
            ("env PATH", "(unset)"),
            ("write note.txt some words", "wrote 10 bytes to note.txt"),
            ("cat note.txt", "some words"),
            ("cat none", "cannot read none: No such file or directory (os error 2)"),
            ("mcp", "(nothing)"),
            ("recall", "(nothing)"),
            ("model", "model=demo-small mode=ask thought_level=medium"),
            ("think hard", "I have thought about it."),
            ("echo one\necho two\n\nsleep 1\necho three", "onetwothree"),
            ("huge 300000", &"x".repeat(300_000)),
        ] {
            assert_eq!(live.ask(script).await, expected, "{script}");
        }
        live.ask("think hard").await;
        assert_eq!(live.text("agent_thought_chunk"), "hard");
        let home = live.dir.path().join("places/s");
        assert_eq!(live.ask("cwd").await, std::fs::canonicalize(home).unwrap().to_str().unwrap());
        let reply = live.ask("what is this?").await;
        assert!(reply.contains("what is this?"));
        assert!(live.updates().len() > 10, "word by word");
        live.close_input();
        assert_eq!(live.exit().await.code, Some(0), "it leaves when its input ends");
    }

    #[tokio::test]
    async fn a_stream_is_whole_and_in_order() {
        let mut live = Live::ready(&[]).await;
        live.ask("stream 10000 40").await;
        let updates = live.updates();
        assert_eq!(updates.len(), 10_000);
        for (number, update) in updates.iter().enumerate() {
            let text = update["content"]["text"].as_str().unwrap();
            assert!(text.len() == 40 && text.starts_with(&format!("{number} ")), "{text}");
        }
        assert_eq!(live.ask("stream 3 1").await, "012");
    }

    #[tokio::test]
    async fn tools_and_permissions() {
        let mut live = Live::ready(&[]).await;
        assert_eq!(live.ask("tool").await, "The tool found 1 entries.");
        let statuses: Vec<_> =
            live.updates().iter().filter_map(|u| u["status"].as_str().map(str::to_owned)).collect();
        assert_eq!(statuses, ["pending", "in_progress", "completed"]);
        for (option, expected) in
            [("allow", "Permission: allow_once."), ("reject", "Permission: reject_once.")]
        {
            live.send("permission");
            let permission = live.permission().await;
            live.answer(permission, option);
            let ended = live.ended().await;
            assert!(ended.text.starts_with(expected), "{ended:?}");
        }
        live.send("permission");
        live.permission().await;
        live.step(|acp, cx| acp.cancel(Reason::Cancelled, cx));
        assert_eq!(live.ended().await.how(), (Outcome::Cancelled, Reason::Cancelled));
        assert_eq!(live.ask("echo still here").await, "still here");
    }

    #[tokio::test]
    async fn cancel_is_heard_while_it_works() {
        let mut live = Live::ready(&[]).await;
        for script in ["sleep 100000", "silent", "stream 100000000"] {
            live.send(&format!("echo go\n{script}"));
            live.until(|body| matches!(body, Body::AgentUpdate(_))).await;
            live.step(|acp, cx| acp.cancel(Reason::Superseded, cx));
            let ended = live.ended().await;
            assert_eq!(ended.how(), (Outcome::Cancelled, Reason::Superseded), "{script}");
            assert!(ended.usage.is_some());
        }
        live.send("stubborn 200\necho finished");
        live.until(|body| matches!(body, Body::AgentUpdate(_))).await;
        live.step(|acp, cx| acp.cancel(Reason::Cancelled, cx));
        let ended = live.ended().await;
        assert_eq!(ended.how(), (Outcome::Cancelled, Reason::Cancelled));
        assert_eq!(ended.text, "Not listening.finished", "it did not hear");
    }

    #[tokio::test]
    async fn faults_end_the_turn_once() {
        let mut live = Live::ready(&[]).await;
        let ended = live.prompt("error").await;
        assert_eq!(ended.how(), (Outcome::Failed, Reason::AgentError));
        assert_eq!(ended.message.as_deref(), Some("the script asked for an error"));
        assert_eq!(live.ask("junk").await, "That was junk.");
        assert_eq!(live.notices(), 7);
        let ended = live.prompt("crash 3").await;
        assert_eq!(ended.how(), (Outcome::Interrupted, Reason::AgentDied));
        assert_eq!(ended.text, "about to crash");
        assert!(matches!(live.hear().await, Said::Unusable(_)));
        assert_eq!(live.exit().await.code, Some(3));
    }

    #[tokio::test]
    async fn flags_break_the_start() {
        let mut live = Live::start(&["--exit", "5"], begin()).await;
        assert!(matches!(live.hear().await, Said::Unusable(fault) if fault.code == Code::AgentFailed));
        assert_eq!(live.exit().await.code, Some(5));
        let mut live = Live::start(&["--wrong"], begin()).await;
        assert!(matches!(live.hear().await, Said::Unusable(_)));
        assert_eq!(live.exit().await.code, Some(2));
        let mut live = Live::start(&["--hang"], begin()).await;
        live.close_input();
        assert!(matches!(live.hear().await, Said::Unusable(_)));
        let mut live = Live::ready(&["--junk-first"]).await;
        assert_eq!(live.notices(), 2);
        assert_eq!(live.ask("echo fine").await, "fine");
    }

    #[tokio::test]
    async fn memory_comes_back_by_every_way() {
        let mut live = Live::start(&[], begin()).await;
        let (_, id) = live.how().await;
        live.ask("remember the milk").await;
        assert_eq!(live.ask("recall").await, "the milk");
        let resume = |resume: &str| Begin { resume: Some(resume.to_owned()), ..begin() };
        for (flags, how, recalled) in [
            (&[][..], How::Resumed, "the milk"),
            (&["--no-resume"], How::Loaded, "the milk"),
            (&["--forgetful", "--no-list"], How::Resumed, "(nothing)"),
            (&["--forgetful", "--no-resume"], How::Loaded, "(nothing)"),
            (&["--no-resume", "--no-load"], How::Fresh, "(nothing)"),
        ] {
            live = live.again(flags, resume(&id)).await;
            let (came, session) = live.how().await;
            assert_eq!(came, how, "{flags:?}");
            assert_eq!(session == id, how != How::Fresh);
            assert!(live.updates().is_empty(), "a replay is not recorded");
            assert_eq!(live.ask("recall").await, recalled, "{flags:?}");
        }
        live = live.again(&[], resume("demo-unknown")).await;
        assert_eq!(live.how().await.0, How::Fresh);
        assert_eq!(live.notices(), 2, "resume and load both said no");
    }

    #[tokio::test]
    async fn settings_reach_the_agent() {
        let server = McpServer::Command { command: "x".to_owned(), args: vec![], env: [].into() };
        let mcp_servers =
            McpServers::from([("files".to_owned(), server.clone()), ("more".to_owned(), server)]);
        let start = Begin { mcp_servers, config: config(Some("opus"), Some("plan")), ..begin() };
        let mut live = Live::start(&[], start).await;
        live.how().await;
        assert_eq!(live.ask("mcp").await, "files, more");
        assert_eq!(live.ask("model").await, "model=opus mode=plan thought_level=medium");
        live.step(|acp, cx| acp.configure(config(Some("demo-large"), Some("code")), Actor::System, cx));
        assert_eq!(live.hear().await, Said::Configured(Ok(config(Some("demo-large"), Some("code")))));
        assert_eq!(live.ask("model").await, "model=demo-large mode=code thought_level=medium");
        live.step(|acp, cx| acp.configure(config(None, Some("none")), Actor::System, cx));
        assert!(
            matches!(live.hear().await, Said::Configured(Err(fault)) if fault.code == Code::InvalidRequest)
        );
    }
}
