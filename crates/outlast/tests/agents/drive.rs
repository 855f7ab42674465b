//! One session and its turns, as a caller sees them.

use crate::kit::*;
use serde_json::{Value, json};
use testkit::Sse;

/// A session being talked to.
pub(crate) struct Talk {
    pub(crate) http: Http,
    pub(crate) session: String,
    /// The last event seen.
    seen: u64,
}

/// A turn from its prompt to its outcome.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    pub(crate) text: String,
    pub(crate) outcome: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) usage: Value,
    /// Permission requests that were answered.
    pub(crate) answered: usize,
    /// Tool calls by id with their last status.
    pub(crate) tools: Vec<(String, String)>,
}

impl Talk {
    pub(crate) async fn begin(http: &Http, agent: &str) -> Result<Self, String> {
        let reply = http.post("/api/sessions", &json!({"agent": agent})).await.unwrap();
        if reply.status != 201 {
            return Err(format!("no session: {}\n{}", reply.text(), last_words(http, agent).await));
        }
        let session = reply.json().unwrap()["session"]["id"].as_str().unwrap().to_owned();
        Ok(Self { http: http.clone(), session, seen: 0 })
    }

    /// Sends a prompt and follows it to its end, allowing what the agent asks for.
    pub(crate) async fn turn(&mut self, text: &str) -> Result<Turn, String> {
        let (turn, mut stream) = self.start(text).await?;
        self.finish(&turn, &mut stream).await
    }

    /// Sends a prompt; its turn's id, and the events from there on.
    pub(crate) async fn start(&mut self, text: &str) -> Result<(String, Sse), String> {
        let opened = self.http.message(&self.session, &json!({"content": text})).await.unwrap();
        opened.ok().map_err(|error| format!("the prompt was refused: {error:#}"))?;
        let mut stream = self.follow().await;
        loop {
            let event = self.next(&mut stream).await?;
            if event["type"] == "prompt_accepted" {
                return Ok((event["turn"].as_str().unwrap().to_owned(), stream));
            }
        }
    }

    /// The events after the last one seen.
    pub(crate) async fn follow(&self) -> Sse {
        self.http.follow(&self.session, self.seen).await.unwrap()
    }

    pub(crate) async fn finish(&mut self, id: &str, stream: &mut Sse) -> Result<Turn, String> {
        let mut turn = Turn::default();
        loop {
            let event = self.next(stream).await?;
            match event["type"].as_str().unwrap() {
                "agent_update" => turn.hear(&event["update"]),
                "permission_requested" => {
                    self.allow(&event).await;
                    turn.answered += 1;
                }
                "turn_ended" if event["turn"] == id => {
                    let word = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
                    turn.outcome = word("outcome");
                    turn.reason = word("reason");
                    turn.message = word("message");
                    turn.usage = event["usage"].clone();
                    return Ok(turn);
                }
                _ => {}
            }
        }
    }

    /// Reads on until an update says this.
    pub(crate) async fn hear(&mut self, stream: &mut Sse, words: &str) -> Result<(), String> {
        let mut turn = Turn::default();
        while !turn.text.contains(words) {
            let event = self.next(stream).await?;
            match event["type"].as_str().unwrap() {
                "agent_update" => turn.hear(&event["update"]),
                "turn_ended" => return Err(format!("the turn ended first: {event}")),
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads on until an event of this type.
    pub(crate) async fn wait_for(&mut self, stream: &mut Sse, kind: &str) -> Result<(), String> {
        while self.next(stream).await?["type"] != kind {}
        Ok(())
    }

    async fn next(&mut self, stream: &mut Sse) -> Result<Value, String> {
        loop {
            let frame = stream.next().await.map_err(|error| format!("nothing came: {error:#}"))?;
            let frame = frame.ok_or("the stream ended")?;
            if frame.id.is_some() {
                let event = frame.json().unwrap();
                self.seen = event["seq"].as_u64().unwrap();
                return Ok(event);
            }
        }
    }

    async fn allow(&self, event: &Value) {
        let options = event["options"].as_array().unwrap();
        let once = options.iter().find(|option| option["kind"] == "allow_once").unwrap_or(&options[0]);
        let path = format!("/api/sessions/{}/permissions/{}", self.session, event["seq"]);
        self.http.post(&path, &json!({"optionId": once["optionId"]})).await.unwrap().expect(200).unwrap();
    }

    /// The way the agent was brought back last.
    pub(crate) async fn how(&self) -> String {
        let all = events(&self.http, &self.session).await;
        let started = of_type(&all, "occupant_started");
        started.last().and_then(|event| event["how"].as_str()).unwrap_or("never").to_owned()
    }
}

/// What the agent that could not be started said on stderr.
async fn last_words(http: &Http, agent: &str) -> String {
    let list = http.get(&format!("/api/sessions?agent={agent}")).await.unwrap().json().unwrap();
    let Some(id) = list["sessions"][0]["id"].as_str() else { return String::new() };
    let logs = http.get(&format!("/api/sessions/{id}/logs")).await.unwrap().text();
    let all = events(http, id).await;
    let notices: Vec<_> = of_type(&all, "notice").iter().map(|notice| notice["text"].to_string()).collect();
    format!("{}\n{logs}", notices.join("\n"))
}

impl Turn {
    fn hear(&mut self, update: &Value) {
        match update["sessionUpdate"].as_str().unwrap_or_default() {
            "agent_message_chunk" => {
                self.text.push_str(update["content"]["text"].as_str().unwrap_or_default());
            }
            "tool_call" | "tool_call_update" => {
                let id = update["toolCallId"].as_str().unwrap_or_default().to_owned();
                let status = update["status"].as_str().map(str::to_owned);
                match self.tools.iter_mut().find(|(known, _)| *known == id) {
                    Some((_, old)) => {
                        if let Some(status) = status {
                            *old = status;
                        }
                    }
                    None => self.tools.push((id, status.unwrap_or_else(|| "pending".to_owned()))),
                }
            }
            _ => {}
        }
    }

    /// Done, with these words in it.
    pub(crate) fn said(&self, words: &str) -> Result<(), String> {
        if self.outcome != "done" {
            return Err(format!("{} {}: {}", self.outcome, self.reason, self.message));
        }
        if self.text.contains(words) {
            return Ok(());
        }
        Err(format!("it said {:?}", self.text))
    }
}
