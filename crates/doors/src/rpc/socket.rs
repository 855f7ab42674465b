//! One socket: reading, calls under way, subscriptions, and one writer behind a bounded queue.

use super::{calls, events, wire};
use crate::{
    fault::Refusal,
    gate::Who,
    intake::MAX_SEQ,
    metrics::Counted,
    rest::{Shared, Stopping},
    stream::frame,
};
use axum::{
    extract::{
        State, WebSocketUpgrade,
        ws::{CloseFrame, Message, Utf8Bytes, WebSocket, close_code},
    },
    response::Response,
};
use futures_util::{SinkExt as _, StreamExt as _, stream::SplitSink};
use protocol::{Code, Fault, SessionId, SessionRef};
use serde_json::json;
use session::{Caller, Follower};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    task::{AbortHandle, JoinSet},
};

/// Messages that wait for a slow reader; whoever would add one waits as well.
const QUEUE: usize = 64;
/// Calls of one socket under way at once.
const CALLS: usize = 64;
/// Sessions that one socket follows at once.
const SUBSCRIPTIONS: usize = 64;
/// A message that cannot be written for this long has no reader.
const WRITE_TIME: Duration = Duration::from_secs(60);

/// Takes the upgrade; the gate has checked the key.
pub(crate) async fn open(
    State(door): State<Arc<Shared>>,
    Who(caller): Who,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Refusal> {
    let Ok(room) = Arc::clone(&door.sockets).try_acquire_owned() else {
        return Err(Refusal(Fault::new(Code::CapacityReached, "too many sockets are open; try again later")));
    };
    let bytes = door.limits.body_bytes;
    let upgrade = upgrade.max_message_size(bytes).max_frame_size(bytes);
    Ok(upgrade.on_upgrade(move |socket| async move {
        let counted = door.metrics.stream();
        serve(door, caller, socket, (room, counted)).await;
    }))
}

async fn serve(door: Arc<Shared>, caller: Caller, socket: WebSocket, held: (OwnedSemaphorePermit, Counted)) {
    let (sink, mut incoming) = socket.split();
    let (queue, waiting) = mpsc::channel(QUEUE);
    let mut stopping = door.stopping.clone();
    let mut writer = tokio::spawn(write(sink, waiting, door.limits.heartbeat, stopping.clone()));
    let mut serving = Serving { door, caller, queue, calls: JoinSet::new(), following: HashMap::new() };
    loop {
        tokio::select! {
            biased;
            () = stopping.wait() => break,
            // The reader is gone, or too slow.
            _ = &mut writer => break,
            Some(_) = serving.calls.join_next(), if !serving.calls.is_empty() => {}
            message = incoming.next(), if serving.calls.len() < CALLS + SUBSCRIPTIONS => match message {
                Some(Ok(Message::Text(text))) => serving.take(text.as_str()),
                Some(Ok(Message::Binary(bytes))) => match std::str::from_utf8(&bytes) {
                    Ok(text) => serving.take(text),
                    Err(_) => break,
                },
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_)) | Err(_)) | None => break,
            },
        }
    }
    // What runs in sessions goes on; only its telling ends.
    serving.calls.shutdown().await;
    drop(serving);
    let _ = tokio::time::timeout(WRITE_TIME, &mut writer).await;
    writer.abort();
    drop(held);
}

/// Writes until nobody has anything to say, the reader is gone, or the server stops.
async fn write(
    mut sink: SplitSink<WebSocket, Message>,
    mut waiting: mpsc::Receiver<Utf8Bytes>,
    heartbeat: Duration,
    mut stopping: Stopping,
) {
    loop {
        let message = tokio::select! {
            biased;
            () = stopping.wait() => break,
            next = waiting.recv() => match next {
                Some(text) => Message::Text(text),
                None => break,
            },
            () = tokio::time::sleep(heartbeat) => Message::Ping(bytes::Bytes::new()),
        };
        match tokio::time::timeout(WRITE_TIME, sink.send(message)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
    let goodbye =
        CloseFrame { code: close_code::AWAY, reason: Utf8Bytes::from_static("the server is stopping") };
    let _ = tokio::time::timeout(WRITE_TIME, sink.send(Message::Close(Some(goodbye)))).await;
}

struct Serving {
    door: Arc<Shared>,
    caller: Caller,
    queue: mpsc::Sender<Utf8Bytes>,
    /// Calls and subscriptions; each ends by itself or with the socket.
    calls: JoinSet<()>,
    following: HashMap<SessionId, AbortHandle>,
}

impl Serving {
    fn take(&mut self, text: &str) {
        let request = match wire::read(text) {
            Ok(request) => request,
            Err(answer) => return self.say(answer),
        };
        let scope = calls::scope(&request.method);
        let refused = match scope {
            None => None,
            Some(needed) if self.caller.scope < needed => Some(Fault::new(
                Code::Forbidden,
                format!("this call needs a key with the scope {needed}; this key has {}", self.caller.scope),
            )),
            Some(_) => None,
        };
        if let (Some(id), None) = (&request.id, scope) {
            return self.say(wire::unknown(id, &request.method));
        }
        if let Some(fault) = refused {
            if let Some(id) = &request.id {
                self.say(wire::refusal(id, &fault));
            }
            return;
        }
        if scope.is_some() {
            self.start(request);
        }
    }

    fn start(&mut self, request: wire::Request) {
        let (door, caller, queue) = (Arc::clone(&self.door), self.caller.clone(), self.queue.clone());
        self.following.retain(|_, task| !task.is_finished());
        match request.method.as_str() {
            "unsubscribe" => self.unsubscribe(request),
            "subscribe" if self.following.len() >= SUBSCRIPTIONS => {
                let text = format!("a socket follows {SUBSCRIPTIONS} sessions at most; unsubscribe from one");
                let fault = Fault::new(Code::CapacityReached, text);
                if let Some(id) = &request.id {
                    self.say(wire::refusal(id, &fault));
                }
            }
            "subscribe" => self.subscribe(request),
            _ => {
                self.calls.spawn(async move {
                    let result = calls::call(&door, &caller, &request.method, request.params).await;
                    let Some(id) = &request.id else { return };
                    let answer = match &result {
                        Ok(value) => wire::result(id, value),
                        Err(fault) => wire::refusal(id, fault),
                    };
                    // A reader that is gone does not hear it.
                    let _ = queue.send(answer.into()).await;
                });
            }
        }
    }

    /// The answer goes out before the first event.
    fn subscribe(&mut self, request: wire::Request) {
        let (door, caller, queue) = (Arc::clone(&self.door), self.caller.clone(), self.queue.clone());
        let asked = wire::params::<calls::Reading>(request.params, &["sessionId", "after"]);
        let asked = match asked {
            Ok(asked) if asked.after > MAX_SEQ => {
                Err(Fault::invalid(format!("after must be 0 to {MAX_SEQ}")))
            }
            other => other,
        };
        let key = match &asked {
            Ok(calls::Reading { session_id: SessionRef::Id(id), .. }) => Some(*id),
            Ok(_) | Err(_) => None,
        };
        let id = request.id;
        let task = self.calls.spawn(async move {
            let begun = async {
                let asked = asked?;
                let (session, follower) =
                    door.sessions.follow(&caller, &asked.session_id, asked.after).await?;
                Ok::<_, Fault>((session, asked.after, follower))
            };
            let (answer, following) = match begun.await {
                Ok((session, after, follower)) => {
                    let told = json!({"sessionId": session, "after": after});
                    (id.as_ref().map(|id| wire::result(id, &told)), Some((session, after, follower)))
                }
                Err(fault) => (id.as_ref().map(|id| wire::refusal(id, &fault)), None),
            };
            if let Some(answer) = answer
                && queue.send(answer.into()).await.is_err()
            {
                return;
            }
            if let Some((session, after, follower)) = following {
                follow(session, after, follower, &queue).await;
            }
        });
        // Following a session again replaces the first time: nothing is told twice.
        if let Some(old) = key.and_then(|key| self.following.insert(key, task)) {
            old.abort();
        }
    }

    fn unsubscribe(&mut self, request: wire::Request) {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        struct Asked {
            session_id: SessionId,
        }
        let result = wire::params::<Asked>(request.params, &["sessionId"]).map(|asked| {
            let task = self.following.remove(&asked.session_id);
            json!({"sessionId": asked.session_id, "followed": task.is_some_and(|task| {
                task.abort();
                true
            })})
        });
        let Some(id) = &request.id else { return };
        self.say(match &result {
            Ok(value) => wire::result(id, value),
            Err(fault) => wire::refusal(id, fault),
        });
    }

    /// Says something from a task of its own, so that a full queue does not stop the reading of a hang-up.
    fn say(&mut self, text: String) {
        let queue = self.queue.clone();
        self.calls.spawn(async move {
            let _ = queue.send(text.into()).await;
        });
    }
}

async fn follow(session: SessionId, after: u64, mut follower: Follower, queue: &mpsc::Sender<Utf8Bytes>) {
    let mut cursor = after;
    loop {
        match follower.next().await {
            Ok(batch) => {
                for event in batch.events.iter().filter(|event| event.seq > after) {
                    if event.seq <= cursor {
                        continue;
                    }
                    cursor = event.seq;
                    if queue.send(events::notification(session, event).into()).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) => {
                let fault = frame::fault(&error);
                let told = json!({"sessionId": session, "after": cursor, "code": fault.code, "message": fault.message});
                let _ = queue.send(wire::notification("subscriptionEnded", &told).into()).await;
                return;
            }
        }
    }
}
