//! Sending a prompt so that a lost connection neither loses it nor runs it twice.

use crate::{Client, Error, Target, backoff::Backoff};
use protocol::{SendMessage, Seq, TurnId};
use reqwest::{Method, Response};
use std::str::FromStr;

const TURN: &str = "x-outlast-turn";
const SEQ: &str = "x-outlast-seq";

/// A prompt that is on the server's disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    pub turn: TurnId,
    /// The seq of its `prompt_accepted` event: follow from the one before to see all of the turn.
    pub seq: Seq,
    /// The id it was sent under, the caller's or one made for it.
    pub id: String,
}

impl Client {
    /// Returns once the prompt is durable; [`Client::events`] shows what becomes of it. A message without an id
    /// gets one, and every repeat carries it, so that the server runs the prompt once however often it arrives.
    pub async fn send(&self, session: impl Into<Target>, mut message: SendMessage) -> Result<Sent, Error> {
        let path = format!("/api/sessions/{}/messages", session.into());
        let id = message.id.get_or_insert_with(|| uuid::Uuid::new_v4().to_string()).clone();
        let mut backoff = Backoff::new(self.patience());
        loop {
            let request = self.request(Method::POST, &path).json(&message);
            let error = match self.within(self.patience().answer, self.head(request)).await {
                Ok(response) => {
                    // The rest of the answer streams the turn; hanging up cancels nothing.
                    return Ok(Sent { turn: header(&response, TURN)?, seq: header(&response, SEQ)?, id });
                }
                Err(error) => error,
            };
            let wait = if error.lost() { backoff.next_wait() } else { None };
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return Err(error),
            }
        }
    }
}

fn header<T: FromStr>(response: &Response, name: &str) -> Result<T, Error> {
    response
        .headers()
        .get(name)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| Error::Protocol(format!("no usable {name} header")))
}
