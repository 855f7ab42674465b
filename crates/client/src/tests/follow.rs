//! The event stream: whatever breaks, every event once and in order.

use super::server::{Answer, Server, Then, broken, refusal, reply, stream};
use crate::{Error, EventStream, Followed};
use protocol::{Code, Event, SessionId};

const SESSION: &str = "019a8000-0000-7000-8000-0000000000aa";

fn session() -> SessionId {
    SESSION.parse().unwrap()
}

fn frame(seq: u64) -> String {
    format!("id: {seq}\nevent: notice\ndata: {}\n\n", event(seq, SESSION))
}

fn event(seq: u64, session: &str) -> String {
    format!(
        r#"{{"session":"{session}","seq":{seq},"at":"2026-01-01T00:00:00.000Z","actor":"system","type":"notice","level":"info","text":"n{seq}"}}"#
    )
}

fn frames(seqs: impl IntoIterator<Item = u64>) -> String {
    seqs.into_iter().map(frame).collect()
}

/// Reads until `last`, and counts the reconnects on the way.
async fn read_to(events: &mut EventStream, last: u64) -> (Vec<u64>, usize) {
    let (mut seqs, mut reconnects) = (vec![], 0);
    while seqs.last() != Some(&last) {
        match events.next().await.unwrap() {
            Followed::Event(event) => seqs.push(event.seq),
            Followed::Reconnecting { .. } => reconnects += 1,
        }
    }
    (seqs, reconnects)
}

async fn ends_with(answers: Vec<Answer>) -> (Vec<u64>, Error) {
    let server = Server::with(answers).await;
    let mut events = server.client().events(session(), 0);
    let mut seqs = vec![];
    loop {
        match events.next().await {
            Ok(Followed::Event(event)) => seqs.push(event.seq),
            Ok(Followed::Reconnecting { .. }) => {}
            Err(error) => {
                assert!(events.next().await.is_err(), "an error is final");
                return (seqs, error);
            }
        }
    }
}

#[tokio::test]
async fn resumes_after_the_last_whole_event() {
    let third = frame(3);
    let (half, _) = third.split_at(third.len() / 2);
    let mut server = Server::with(vec![
        stream(&[": beat\n\n", &frames(1..=2), half], Then::Close),
        broken(),
        reply(503, "", &refusal(503, "shutting_down")),
        reply(502, "", "<html>bad gateway</html>"),
        stream(&[&frames(3..=5)], Then::Hold),
    ])
    .await;
    let mut events = server.client().events(session(), 0);
    assert_eq!(read_to(&mut events, 5).await, ((1..=5).collect(), 4));
    for after in [0, 2, 2, 2, 2] {
        let request = server.request().await;
        assert_eq!(request.line(), format!("GET /api/sessions/{SESSION}/events?after={after} HTTP/1.1"));
        assert!(request.head.to_lowercase().contains("accept: text/event-stream"));
        assert!(request.head.contains("Bearer k"));
    }
}

#[tokio::test]
async fn takes_events_in_any_pieces() {
    let wire = frames(1..=3);
    let pieces: Vec<_> = wire.split_inclusive(|_| true).collect();
    let server = Server::with(vec![stream(&pieces, Then::Hold)]).await;
    let mut events = server.client().events(session(), 0);
    assert_eq!(read_to(&mut events, 3).await, (vec![1, 2, 3], 0));
}

#[tokio::test]
async fn a_gap_is_refilled_and_a_double_dropped() {
    let server = Server::with(vec![
        stream(&[&frames([1, 2, 4, 5])], Then::Hold),
        stream(&[&frames([1, 2, 3, 4])], Then::Hold),
    ])
    .await;
    let mut events = server.client().events(session(), 0);
    assert_eq!(read_to(&mut events, 4).await, (vec![1, 2, 3, 4], 1));
}

#[tokio::test]
async fn silence_is_a_lost_connection_and_heartbeats_are_not() {
    let server =
        Server::with(vec![stream(&[&frame(1)], Then::Hold), stream(&[": beat\n\n", &frame(2)], Then::Hold)])
            .await;
    let mut events = server.client().events(session(), 0);
    assert_eq!(read_to(&mut events, 2).await, (vec![1, 2], 1));
}

#[tokio::test]
async fn what_cannot_pass_ends_it() {
    for (status, code) in
        [(401, "unauthorized"), (403, "forbidden"), (404, "session_not_found"), (410, "cursor_expired")]
    {
        let answers = vec![stream(&[&frame(1)], Then::Close), reply(status, "", &refusal(status, code))];
        let (seqs, error) = ends_with(answers).await;
        assert_eq!(seqs, [1]);
        assert_eq!((error.status(), error.code().map(Code::as_str)), (Some(status), Some(code)));
    }
}

#[tokio::test]
async fn gives_up_when_the_server_stays_away_or_makes_no_sense() {
    let (_, error) = ends_with(vec![]).await;
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");

    let gap = || stream(&[&frame(9)], Then::Close);
    let (seqs, error) = ends_with(vec![gap(), gap(), gap(), gap(), gap(), gap()]).await;
    assert!(seqs.is_empty());
    assert!(matches!(&error, Error::Protocol(text) if text.contains("9 came after 0")), "{error:?}");

    let other = event(1, "019a8000-0000-7000-8000-0000000000bb");
    let two = format!("{}data: {}\n\n", frame(1), other);
    let (seqs, error) = ends_with(vec![stream(&[&two], Then::Close)]).await;
    assert_eq!(seqs, [1]);
    assert!(error.status().is_none());
}

#[tokio::test]
async fn a_newer_server_is_named_as_such() {
    let unknown = event(1, SESSION).replace("\"type\":\"notice\"", "\"type\":\"telepathy\"");
    let (_, error) = ends_with(vec![stream(&[&format!("data: {unknown}\n\n")], Then::Hold)]).await;
    assert!(matches!(&error, Error::Newer(text) if text.contains("telepathy")), "{error:?}");
}

#[tokio::test]
async fn the_servers_last_word_in_the_stream_counts() {
    let last = format!("event: error\ndata: {}\n\n", refusal(404, "session_not_found"));
    let (seqs, error) = ends_with(vec![stream(&[&frame(1), &last], Then::Hold)]).await;
    assert_eq!(seqs, [1]);
    assert_eq!(error.status(), Some(404));
}

#[tokio::test]
async fn reading_may_be_abandoned_and_taken_up_at_any_point() {
    let server = Server::with(vec![
        stream(&[&frames(1..=50)], Then::Close),
        broken(),
        stream(&[&frames(51..=100)], Then::Hold),
    ])
    .await;
    let mut events = server.client().events(session(), 0);
    let mut seqs = vec![];
    while seqs.last() != Some(&100) {
        tokio::select! {
            biased;
            followed = events.next() => if let Followed::Event(event) = followed.unwrap() {
                seqs.push(event.seq);
            },
            () = tokio::task::yield_now() => {}
        }
    }
    assert_eq!(seqs, (1..=100).collect::<Vec<_>>());
}

#[test]
fn the_test_events_are_events() {
    assert_eq!(Event::parse(&event(7, SESSION)).unwrap().seq, 7);
}
