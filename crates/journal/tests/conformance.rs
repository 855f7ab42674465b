//! What every store must do, written against the face alone. A second store adds a line at the end.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that breaks should stop; clippy knows helpers of tests only inside test functions"
)]

mod support;

use outlast_journal::*;
use protocol::*;
use std::sync::Arc;
use support::*;

/// A place where a journal can be opened, closed and opened again.
trait Home {
    fn open(&self) -> Journal;
}

impl Home for Store {
    fn open(&self) -> Journal {
        Store::open(self)
    }
}

macro_rules! suite {
    ($name:ident, $home:expr, [$($story:ident,)*]) => {
        mod $name {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $story() {
                super::$story(&$home).await;
            })*
        }
    };
}

macro_rules! suites {
    ($list:tt) => {
        suite!(sqlite, Store::new(), $list);
    };
}

suites!([
    events_are_numbered_read_and_kept,
    an_append_is_stored_whole_or_not_at_all,
    a_row_shows_its_state_with_its_events,
    time_never_goes_back,
    pages_are_bounded,
    large_bodies_come_back_whole,
    a_lease_fences_the_writer_before,
    a_missing_session_is_not_acquired,
    aliases_belong_to_one_session_of_a_tenant,
    tenants_do_not_see_each_other,
    lists_are_filtered_and_paged_newest_first,
    live_sessions_are_found,
    turns_are_found_by_client_id_and_while_open,
    usage_counts_what_is_there,
    what_turns_used_is_added_up,
    followers_replay_and_tail,
    forks_share_their_parents_events,
    followers_of_nothing_are_told,
    removal_takes_everything_and_wakes_followers,
    a_cut_front_expires_cursors,
    erased_bodies_are_gone,
    agents_keep_their_versions,
    keys_and_credentials_come_and_go,
    sandboxes_keep_their_snapshot_and_go_with_their_last_session,
    counters_never_repeat,
    closing_writes_what_is_enqueued,
    a_dropped_journal_can_be_opened_again,
    many_writers_at_once_lose_nothing,
]);

async fn events_are_numbered_read_and_kept(home: &dyn Home) {
    let journal = home.open();
    let mut writer = journal.begin(new_session());
    assert_eq!(writer.last_seq(), 0);
    assert_eq!(writer.append(notes(1..=3)).unwrap(), 3);
    assert_eq!(writer.append(notes(4..=4)).unwrap(), 4);
    assert_eq!(settled(&writer).await, Durable::Upto(4));
    assert_eq!(writer.pending_bytes(), 0);
    let session = writer.session();
    journal.close().await;
    drop(journal);
    let journal = home.open();
    let page = journal.read(session, 1, 2).await.unwrap();
    assert_eq!(page.last_seq, 4);
    assert_eq!(page.events.iter().map(|event| event.seq).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(read_all(&journal, session).await, numbers(1..=4));
    let event = journal.event(session, 3).await.unwrap().unwrap();
    assert_eq!(text(&event), "3");
    let mut wire = String::new();
    event.write_json(session, &mut wire);
    assert_eq!(Event::parse(&wire).unwrap().seq, 3);
    assert!(journal.event(session, 5).await.unwrap().is_none());
    assert!(matches!(journal.read(SessionId::new(), 0, 1).await, Err(ReadError::NotFound)));
    // The next writer goes on where the last one stopped.
    let (mut writer, row) = journal.acquire(session).await.unwrap();
    assert_eq!((writer.last_seq(), row.last_seq), (4, 4));
    writer.append(notes(5..=5)).unwrap();
    settled(&writer).await;
    assert_eq!(read_all(&journal, session).await, numbers(1..=5));
}

async fn an_append_is_stored_whole_or_not_at_all(home: &dyn Home) {
    let journal = home.open();
    let mut writer = session_with(&journal, 1).await;
    let refused = writer.append(append(vec![note("a"), large(limits::EVENT_BYTES)]));
    assert!(matches!(refused, Err(WriteError::TooLarge { bytes }) if bytes > limits::EVENT_BYTES));
    assert_eq!(writer.last_seq(), 1);
    writer.append(notes(2..=2)).unwrap();
    settled(&writer).await;
    assert_eq!(read_all(&journal, writer.session()).await, numbers(1..=2));
}

async fn a_row_shows_its_state_with_its_events(home: &dyn Home) {
    let journal = home.open();
    let parent = session_with(&journal, 2).await.session();
    let new = NewSession {
        alias: Some(Alias::new("1_local").unwrap()),
        forked_from: Some(ForkPoint { session: parent, seq: 2 }),
        ..new_session()
    };
    let mut writer = journal.begin(new.clone());
    assert!(journal.session(new.id).await.unwrap().is_none());
    writer.append(notes(1..=1)).unwrap();
    settled(&writer).await;
    let row = journal.session(new.id).await.unwrap().unwrap();
    assert_eq!(row.state.status, Status::Starting);
    assert_eq!((row.first_seq, row.last_seq, row.epoch), (1, 1, 1));
    assert_eq!(row.fixed.forked_from, new.forked_from);
    assert_eq!((&row.fixed.spec, &row.fixed.sandbox), (&new.spec, &new.sandbox));
    let state = SessionState {
        status_reason: Some("why".to_owned()),
        name: Some("n".to_owned()),
        memo: r#"{"cursor":7}"#.to_owned(),
        usage: UsageSums { turns: 2, cost_usd: Usd::from_micros(123_456), ..UsageSums::default() },
        ..state(Status::Error, true)
    };
    writer.append(Append { state: Some(state.clone()), ..notes(2..=2) }).unwrap();
    settled(&writer).await;
    let row = journal.session(new.id).await.unwrap().unwrap();
    assert_eq!((row.state, row.last_seq), (state, 2));
}

async fn time_never_goes_back(home: &dyn Home) {
    let journal = home.open();
    let mut writer = journal.begin(new_session());
    for at in [5_000, 4_000, 6_000, -1] {
        writer.append(Append { at: Timestamp::from_millis(at), ..append(vec![note("")]) }).unwrap();
    }
    settled(&writer).await;
    let (mut writer, _) = journal.acquire(writer.session()).await.unwrap();
    writer.append(Append { at: Timestamp::from_millis(1), ..append(vec![note("")]) }).unwrap();
    settled(&writer).await;
    let page = journal.read(writer.session(), 0, 10).await.unwrap();
    let at: Vec<_> = page.events.iter().map(|event| event.at.as_millis()).collect();
    assert_eq!(at, [5_000, 5_000, 6_000, 6_000, 6_000]);
}

async fn pages_are_bounded(home: &dyn Home) {
    let journal = home.open();
    let writer = session_with(&journal, 2 * limits::PAGE_EVENTS as u64).await;
    let page = journal.read(writer.session(), 0, usize::MAX).await.unwrap();
    assert_eq!(page.events.len(), limits::PAGE_EVENTS);
    let mut writer = session_with(&journal, 1).await;
    let size = limits::PAGE_BYTES * 2 / 5;
    writer.append(append(vec![large(size), large(size), large(size)])).unwrap();
    settled(&writer).await;
    let session = writer.session();
    let lengths = async |after| journal.read(session, after, 10).await.unwrap().events.len();
    assert_eq!(lengths(0).await, 3, "one small and two large ones fit");
    assert_eq!(lengths(3).await, 1);
    writer.append(append(vec![large(limits::PAGE_BYTES + 1)])).unwrap();
    settled(&writer).await;
    assert_eq!(lengths(4).await, 1, "at least one, whatever its size");
    assert_eq!(lengths(5).await, 0);
}

async fn large_bodies_come_back_whole(home: &dyn Home) {
    let journal = home.open();
    let mut writer = journal.begin(new_session());
    let sizes = [10, limits::INLINE_BODY_BYTES - 100, limits::INLINE_BODY_BYTES + 1, 3_000_000, 10];
    for size in sizes {
        writer.append(append(vec![large(size)])).unwrap();
    }
    let session = writer.session();
    let mut follower = journal.follow(session, 0);
    let mut seen = Vec::new();
    while seen.len() < sizes.len() {
        match follower.next().await {
            Ok(batch) => seen.extend(batch.events.iter().map(|event| text(event).len())),
            // It may be asked before the first commit.
            Err(ReadError::NotFound) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(seen, sizes);
    assert_eq!(settled(&writer).await, Durable::Upto(5));
    for (index, size) in sizes.iter().enumerate() {
        let event = journal.event(session, index as u64 + 1).await.unwrap().unwrap();
        assert_eq!(text(&event).len(), *size);
    }
}

async fn a_lease_fences_the_writer_before(home: &dyn Home) {
    let journal = home.open();
    let mut old = session_with(&journal, 1).await;
    let mut bystander = session_with(&journal, 1).await;
    let (mut new, row) = journal.acquire(old.session()).await.unwrap();
    assert_eq!(row.epoch, 2);
    old.append(append(vec![note("ghost")])).unwrap();
    bystander.append(notes(2..=2)).unwrap();
    new.append(notes(2..=2)).unwrap();
    assert_eq!(settled(&old).await, Durable::Fenced);
    assert_eq!(settled(&new).await, Durable::Upto(2));
    assert_eq!(settled(&bystander).await, Durable::Upto(2));
    assert!(matches!(old.append(notes(3..=3)), Err(WriteError::Fenced)));
    assert_eq!(read_all(&journal, new.session()).await, numbers(1..=2));
    assert!(matches!(old.remove(Actor::System, Timestamp::default()).await, Err(WriteError::Fenced)));
    assert!(journal.session(new.session()).await.unwrap().is_some());
}

async fn a_missing_session_is_not_acquired(home: &dyn Home) {
    let journal = home.open();
    assert!(matches!(journal.acquire(SessionId::new()).await, Err(WriteError::NotFound)));
    let unborn = journal.begin(new_session());
    assert!(matches!(unborn.remove(Actor::System, Timestamp::default()).await, Err(WriteError::NotFound)));
}

async fn aliases_belong_to_one_session_of_a_tenant(home: &dyn Home) {
    let journal = home.open();
    let alias = Alias::new("main").unwrap();
    let begin = |tenant: Tenant| {
        let mut writer = journal.begin(NewSession { alias: Some(alias.clone()), tenant, ..new_session() });
        writer.append(notes(1..=1)).unwrap();
        writer
    };
    let first = begin(tenant("a"));
    assert_eq!(settled(&first).await, Durable::Upto(1));
    let mut second = begin(tenant("a"));
    assert_eq!(settled(&second).await, Durable::Conflict);
    assert!(matches!(second.append(notes(2..=2)), Err(WriteError::Conflict)));
    assert!(journal.session(second.session()).await.unwrap().is_none());
    let other = begin(tenant("b"));
    assert_eq!(settled(&other).await, Durable::Upto(1));
    for (tenant, writer) in [("a", &first), ("b", &other)] {
        let found = journal.find(&support::tenant(tenant), &SessionRef::Alias(alias.clone())).await.unwrap();
        assert_eq!(found.unwrap().fixed.id, writer.session());
    }
    // A removed session's alias is free again.
    first.remove(Actor::System, Timestamp::default()).await.unwrap();
    assert_eq!(settled(&begin(tenant("a"))).await, Durable::Upto(1));
}

async fn tenants_do_not_see_each_other(home: &dyn Home) {
    let journal = home.open();
    let mut writer = journal.begin(NewSession { tenant: tenant("a"), ..new_session() });
    writer.append(notes(1..=1)).unwrap();
    settled(&writer).await;
    let id = SessionRef::Id(writer.session());
    assert!(journal.find(&tenant("a"), &id).await.unwrap().is_some());
    assert!(journal.find(&tenant("b"), &id).await.unwrap().is_none());
    assert!(list(&journal, query(tenant("b"))).await.is_empty());
    assert_eq!(journal.tenant_usage(&tenant("b")).await.unwrap(), TenantUsage::default());
    let row = CredentialRow { credential: credential("a"), sealed: vec![1] };
    journal.put_credential(row.clone()).await.unwrap();
    assert!(journal.credential(&tenant("b"), row.credential.id).await.unwrap().is_none());
    assert!(journal.credentials(&tenant("b")).await.unwrap().is_empty());
    assert!(matches!(
        journal.remove_credential(&tenant("b"), row.credential.id).await,
        Err(WriteError::NotFound)
    ));
    let stolen = Credential { tenant_id: tenant("b"), ..row.credential.clone() };
    let stolen = CredentialRow { credential: stolen, sealed: vec![2] };
    assert!(matches!(journal.put_credential(stolen).await, Err(WriteError::Conflict)));
    journal.put_agent(agent("a", "x", 1)).await.unwrap();
    assert!(journal.agents(&tenant("b")).await.unwrap().is_empty());
    let name = AgentName::new("x").unwrap();
    assert!(matches!(journal.remove_agent(&tenant("b"), &name).await, Err(WriteError::NotFound)));
}

fn query(tenant: Tenant) -> SessionQuery {
    SessionQuery { tenant, agent: None, status: None, kind: None, limit: None, cursor: None }
}

async fn list(journal: &Journal, query: SessionQuery) -> Vec<SessionId> {
    journal.sessions(query).await.unwrap().sessions.iter().map(|row| row.fixed.id).collect()
}

async fn lists_are_filtered_and_paged_newest_first(home: &dyn Home) {
    let journal = home.open();
    let agents = [Some("x"), Some("y"), None];
    let statuses = [Status::Active, Status::Ended];
    let mut all = Vec::new();
    for round in 0..24 {
        let agent = agents[round % 3].map(|name| AgentName::new(name).unwrap());
        let kind = if agent.is_some() { SessionKind::Agent } else { SessionKind::Shell };
        let status = statuses[round % 2];
        let mut writer = journal.begin(NewSession { agent: agent.clone(), kind, ..new_session() });
        writer.append(Append { state: Some(state(Status::Starting, false)), ..notes(1..=1) }).unwrap();
        writer.append(Append { state: Some(state(status, false)), ..notes(2..=2) }).unwrap();
        settled(&writer).await;
        all.push((writer.session(), agent, kind, status));
    }
    all.reverse();
    for agent in agents {
        let agent = agent.map(|name| AgentName::new(name).unwrap());
        for kind in [None, Some(SessionKind::Agent), Some(SessionKind::Shell)] {
            for status in [None, Some(Status::Active), Some(Status::Ended), Some(Status::Paused)] {
                let filter =
                    SessionQuery { agent: agent.clone(), kind, status, ..query(Tenant::default_tenant()) };
                let expected: Vec<_> = all
                    .iter()
                    .filter(|row| agent.is_none() || row.1 == agent)
                    .filter(|row| kind.is_none_or(|kind| row.2 == kind))
                    .filter(|row| status.is_none_or(|status| row.3 == status))
                    .map(|row| row.0)
                    .collect();
                assert_eq!(list(&journal, filter.clone()).await, expected, "{filter:?}");
                let mut paged = Vec::new();
                let mut cursor = None;
                loop {
                    let page = SessionQuery { limit: Some(5), cursor, ..filter.clone() };
                    let page = journal.sessions(page).await.unwrap();
                    assert!(page.sessions.len() <= 5);
                    paged.extend(page.sessions.iter().map(|row| row.fixed.id));
                    cursor = page.next;
                    if cursor.is_none() {
                        break;
                    }
                }
                assert_eq!(paged, expected, "paged {filter:?}");
            }
        }
    }
}

async fn live_sessions_are_found(home: &dyn Home) {
    let journal = home.open();
    let mut one = session_with(&journal, 1).await;
    let two = session_with(&journal, 1).await;
    let live =
        || async { journal.live_sessions().await.unwrap().into_iter().map(|(id, _)| id).collect::<Vec<_>>() };
    assert_eq!(live().await, [one.session(), two.session()]);
    one.append(Append { state: Some(state(Status::Paused, false)), ..notes(2..=2) }).unwrap();
    settled(&one).await;
    assert_eq!(live().await, [two.session()]);
}

async fn turns_are_found_by_client_id_and_while_open(home: &dyn Home) {
    let journal = home.open();
    let mut writer = session_with(&journal, 1).await;
    let session = writer.session();
    let turn = |client: Option<&str>, seq| TurnRow {
        turn: TurnId::new(),
        client_id: client.map(str::to_owned),
        digest: [7; 32],
        accepted_seq: seq,
        started: false,
        ended_seq: None,
    };
    let turns = [turn(Some("c"), 2), turn(None, 3), turn(None, 4)];
    writer.append(Append { turns: turns.to_vec(), ..notes(2..=4) }).unwrap();
    settled(&writer).await;
    assert_eq!(journal.open_turns(session).await.unwrap(), turns);
    assert_eq!(journal.turn_by_client_id(session, "c").await.unwrap().as_ref(), Some(&turns[0]));
    assert_eq!(journal.turn_by_client_id(session, "d").await.unwrap(), None);
    let ended = TurnRow { started: true, ended_seq: Some(5), ..turns[0].clone() };
    writer.append(Append { turns: vec![ended.clone()], ..notes(5..=5) }).unwrap();
    settled(&writer).await;
    assert_eq!(journal.open_turns(session).await.unwrap(), turns[1..]);
    assert_eq!(journal.turn_by_client_id(session, "c").await.unwrap(), Some(ended));
    // The same client id for another turn is a mistake above: this writer is ended, the others go on.
    let mut other = session_with(&journal, 1).await;
    writer.append(Append { turns: vec![turn(Some("c"), 6)], ..notes(6..=6) }).unwrap();
    other.append(Append { turns: vec![turn(Some("c"), 2)], ..notes(2..=2) }).unwrap();
    assert!(matches!(settled(&writer).await, Durable::Lost(_)));
    assert_eq!(settled(&other).await, Durable::Upto(2));
    assert_eq!(read_all(&journal, session).await, numbers(1..=5));
}

async fn usage_counts_what_is_there(home: &dyn Home) {
    let journal = home.open();
    let tenant = Tenant::default_tenant();
    let one = session_with(&journal, 3).await;
    let two = session_with(&journal, 2).await;
    let usage = journal.tenant_usage(&tenant).await.unwrap();
    assert_eq!((usage.sessions, usage.events), (2, 5));
    let bytes: usize =
        journal.read(two.session(), 0, 10).await.unwrap().events.iter().map(|event| event.body.len()).sum();
    one.remove(Actor::System, Timestamp::default()).await.unwrap();
    let usage = journal.tenant_usage(&tenant).await.unwrap();
    assert_eq!(
        usage,
        TenantUsage { sessions: 1, events: 2, bytes: bytes as u64, used: UsageSums::default() }
    );
    let figures = journal.figures();
    assert_eq!(figures.events, 5);
    assert!(figures.commits >= 3);
}

/// What turns used is the tenant's for good, and exact: also when it is more than a column holds.
async fn what_turns_used_is_added_up(home: &dyn Home) {
    let journal = home.open();
    let tenant = Tenant::default_tenant();
    let used =
        UsageSums { turns: 1, input_tokens: 10, cost_usd: Usd::from_micros(7), ..UsageSums::default() };
    let (mut one, mut two) = (session_with(&journal, 1).await, session_with(&journal, 1).await);
    for _ in 0..3 {
        one.append(Append { used, ..notes(2..=2) }).unwrap();
    }
    two.append(Append { used, ..notes(2..=2) }).unwrap();
    settled(&one).await;
    settled(&two).await;
    one.remove(Actor::System, Timestamp::default()).await.unwrap();
    let sums =
        UsageSums { turns: 4, input_tokens: 40, cost_usd: Usd::from_micros(28), ..UsageSums::default() };
    assert_eq!(journal.tenant_usage(&tenant).await.unwrap().used, sums);
    for _ in 0..2 {
        let used = UsageSums { input_tokens: UsageSums::MOST, ..UsageSums::default() };
        two.append(Append { used, ..notes(3..=3) }).unwrap();
    }
    settled(&two).await;
    let expected = UsageSums { input_tokens: UsageSums::MOST, ..sums };
    assert_eq!(journal.tenant_usage(&tenant).await.unwrap().used, expected);
    journal.close().await;
    assert_eq!(home.open().tenant_usage(&tenant).await.unwrap().used, expected);
}

async fn followers_replay_and_tail(home: &dyn Home) {
    let journal = home.open();
    let mut writer = session_with(&journal, 5).await;
    let mut followers = [journal.follow(writer.session(), 0), journal.follow(writer.session(), 3)];
    writer.append(notes(6..=8)).unwrap();
    for (follower, from) in followers.iter_mut().zip([1, 4]) {
        let mut seen = Vec::new();
        while seen.len() < (8 - from + 1) as usize {
            seen.extend(follower.next().await.unwrap().events.iter().map(text));
        }
        assert_eq!(seen, numbers(from..=8));
    }
    // At the tail they share one batch and its encoding.
    let waiting = futures(&mut followers);
    writer.append(notes(9..=9)).unwrap();
    let (one, two) = waiting.await;
    assert!(Arc::ptr_eq(&one, &two));
    let encode = |batch: &Batch| format!("{}", batch.events.len()).into();
    assert_eq!(one.encoded(encode).as_ptr(), two.encoded(|_| unreachable!()).as_ptr());
}

async fn futures(followers: &mut [Follower; 2]) -> (Arc<Batch>, Arc<Batch>) {
    let [one, two] = followers;
    let (one, two) = tokio::join!(one.next(), two.next());
    (one.unwrap(), two.unwrap())
}

async fn followers_of_nothing_are_told(home: &dyn Home) {
    let journal = home.open();
    assert!(matches!(journal.follow(SessionId::new(), 0).next().await, Err(ReadError::NotFound)));
    let writer = session_with(&journal, 1).await;
    let mut follower = journal.follow(writer.session(), 1);
    let (closed, ()) = tokio::join!(follower.next(), journal.close());
    assert!(matches!(closed, Err(ReadError::Storage(_))));
}

async fn removal_takes_everything_and_wakes_followers(home: &dyn Home) {
    let journal = home.open();
    let mut writer = session_with(&journal, 2_000).await;
    writer.append(append(vec![large(100_000)])).unwrap();
    settled(&writer).await;
    let session = writer.session();
    let mut follower = journal.follow(session, 2_001);
    let (told, removed) =
        tokio::join!(follower.next(), writer.remove(Actor::System, Timestamp::from_millis(9)));
    removed.unwrap();
    assert!(matches!(told, Err(ReadError::NotFound)));
    assert!(journal.session(session).await.unwrap().is_none());
    assert!(matches!(journal.read(session, 0, 1).await, Err(ReadError::NotFound)));
    assert!(journal.event(session, 1).await.unwrap().is_none());
    assert!(list(&journal, query(Tenant::default_tenant())).await.is_empty());
    assert!(matches!(journal.acquire(session).await, Err(WriteError::NotFound)));
}

async fn a_cut_front_expires_cursors(home: &dyn Home) {
    let journal = home.open();
    let mut writer = session_with(&journal, 1_500).await;
    let session = writer.session();
    journal.cut(session, 1_201).await.unwrap();
    assert!(matches!(journal.read(session, 0, 9).await, Err(ReadError::Expired { first_seq: 1_201 })));
    let follower = journal.follow(session, 1_199).next().await;
    assert!(matches!(follower, Err(ReadError::Expired { first_seq: 1_201 })));
    assert_eq!(journal.read(session, 1_200, 9).await.unwrap().events[0].seq, 1_201);
    // Going back or beyond the end cuts nothing that is not there.
    journal.cut(session, 5).await.unwrap();
    journal.cut(session, 9_999).await.unwrap();
    assert!(journal.read(session, 1_500, 9).await.unwrap().events.is_empty());
    writer.append(notes(1_501..=1_501)).unwrap();
    settled(&writer).await;
    assert_eq!(journal.read(session, 1_500, 9).await.unwrap().events.len(), 1);
    assert_eq!(journal.tenant_usage(&Tenant::default_tenant()).await.unwrap().events, 1);
    assert!(matches!(journal.cut(SessionId::new(), 1).await, Err(WriteError::NotFound)));
}

async fn erased_bodies_are_gone(home: &dyn Home) {
    let journal = home.open();
    let mut writer = session_with(&journal, 2).await;
    writer.append(append(vec![large(100_000)])).unwrap();
    settled(&writer).await;
    let session = writer.session();
    for seq in [1, 3] {
        journal.erase(session, seq).await.unwrap();
        let event = journal.event(session, seq).await.unwrap().unwrap();
        assert_eq!(event.body, r#"{"type":"notice","erased":true}"#);
        let mut wire = String::new();
        event.write_json(session, &mut wire);
        assert!(wire.ends_with(r#""type":"notice","erased":true}"#));
    }
    assert_eq!(journal.read(session, 0, 9).await.unwrap().events.len(), 3);
    assert!(matches!(journal.erase(session, 4).await, Err(WriteError::NotFound)));
}

fn agent(tenant: &str, name: &str, version: u32) -> AgentRow {
    let manifest = serde_json::from_str(r#"{"command":"x"}"#).unwrap();
    AgentRow {
        agent: Agent {
            id: uuid::Uuid::nil(),
            tenant_id: support::tenant(tenant),
            name: AgentName::new(name).unwrap(),
            version,
            path: String::new(),
            created_at: Timestamp::default(),
            updated_at: Timestamp::default(),
            manifest,
        },
        digest: [u8::try_from(version).unwrap(); 32],
    }
}

async fn agents_keep_their_versions(home: &dyn Home) {
    let journal = home.open();
    let a = tenant("a");
    for (name, version) in [("x", 1), ("y", 1), ("x", 2)] {
        journal.put_agent(agent("a", name, version)).await.unwrap();
    }
    assert!(matches!(journal.put_agent(agent("a", "x", 2)).await, Err(WriteError::Conflict)));
    let listed = journal.agents(&a).await.unwrap();
    assert_eq!(
        listed.iter().map(|row| (row.agent.name.as_str(), row.agent.version)).collect::<Vec<_>>(),
        [("x", 2), ("y", 1)]
    );
    let x = AgentName::new("x").unwrap();
    let version = async |wanted| journal.agent(&a, &x, wanted).await.unwrap().map(|row| row.digest[0]);
    assert_eq!(version(None).await, Some(2));
    assert_eq!(version(Some(1)).await, Some(1));
    assert_eq!(version(Some(3)).await, None);
    journal.remove_agent(&a, &x).await.unwrap();
    assert_eq!(version(None).await, None);
    assert!(matches!(journal.remove_agent(&a, &x).await, Err(WriteError::NotFound)));
}

fn credential(tenant: &str) -> Credential {
    Credential {
        id: CredentialId::new(),
        tenant_id: support::tenant(tenant),
        kind: "env".to_owned(),
        label: None,
        variables: vec!["A".to_owned()],
        created_at: Timestamp::default(),
    }
}

async fn keys_and_credentials_come_and_go(home: &dyn Home) {
    let journal = home.open();
    let key = ApiKey {
        id: KeyId::new(),
        tenant_id: tenant("a"),
        scope: Scope::Admin,
        label: Some("l".to_owned()),
        created_at: Timestamp::from_millis(5),
    };
    let row = KeyRow { key: key.clone(), hash: [3; 32] };
    journal.put_key(row.clone()).await.unwrap();
    assert!(matches!(journal.put_key(row).await, Err(WriteError::Conflict)));
    let keys = journal.keys().await.unwrap();
    assert_eq!((keys.len(), &keys[0].key.label, keys[0].hash), (1, &key.label, [3; 32]));
    journal.remove_key(key.id).await.unwrap();
    assert!(matches!(journal.remove_key(key.id).await, Err(WriteError::NotFound)));
    assert!(journal.keys().await.unwrap().is_empty());

    let a = tenant("a");
    let credential = credential("a");
    for sealed in [vec![1], vec![2]] {
        journal.put_credential(CredentialRow { credential: credential.clone(), sealed }).await.unwrap();
    }
    assert_eq!(journal.credential(&a, credential.id).await.unwrap().unwrap().sealed, [2]);
    assert_eq!(journal.credentials(&a).await.unwrap().len(), 1);
    journal.remove_credential(&a, credential.id).await.unwrap();
    assert!(journal.credential(&a, credential.id).await.unwrap().is_none());
}

async fn sandboxes_keep_their_snapshot_and_go_with_their_last_session(home: &dyn Home) {
    let journal = home.open();
    let row = |id: &str, of: &str, key: Option<&str>| SandboxRow {
        id: id.to_owned(),
        tenant: tenant(of),
        key: key.map(str::to_owned),
        created_at: Timestamp::from_millis(5),
        snapshot: None,
    };
    let snapshot =
        |id: &str| SnapshotRow { id: id.to_owned(), taken_at: Timestamp::from_millis(6), files: 2, bytes: 3 };
    journal.put_sandbox(row("one", "a", Some("key"))).await.unwrap();
    for taken in [row("one", "b", None), row("two", "a", Some("key"))] {
        assert!(matches!(journal.put_sandbox(taken).await, Err(WriteError::Conflict)));
    }
    journal.put_sandbox(row("two", "b", Some("key"))).await.unwrap();
    journal
        .put_sandbox(SandboxRow { snapshot: Some(snapshot("s2")), ..row("three", "b", None) })
        .await
        .unwrap();
    assert!(matches!(journal.put_snapshot("none", snapshot("x")).await, Err(WriteError::NotFound)));
    journal.put_snapshot("one", snapshot("s0")).await.unwrap();
    journal.put_snapshot("one", snapshot("s1")).await.unwrap();
    let one = SandboxRow { snapshot: Some(snapshot("s1")), ..row("one", "a", Some("key")) };
    assert_eq!(journal.sandbox("one").await.unwrap(), Some(one.clone()));
    assert_eq!(journal.sandbox_by_key(&tenant("a"), "key").await.unwrap(), Some(one));
    assert_eq!(journal.sandbox_by_key(&tenant("b"), "key").await.unwrap().unwrap().id, "two");
    assert_eq!(journal.sandbox_by_key(&tenant("c"), "key").await.unwrap(), None);
    let mut kept = journal.snapshots().await.unwrap();
    kept.sort();
    assert_eq!(kept, ["s1", "s2"]);
    journal.remove_sandbox("three").await.unwrap();
    assert!(matches!(journal.remove_sandbox("three").await, Err(WriteError::NotFound)));

    // Two sessions share the first one; it stays until both are gone.
    let mut writers = Vec::new();
    for _ in 0..2 {
        let mut writer = journal.begin(NewSession { sandbox: "one".to_owned(), ..new_session() });
        writer.append(append(vec![note("first")])).unwrap();
        settled(&writer).await;
        writers.push(writer);
    }
    assert!(matches!(journal.remove_sandbox("one").await, Err(WriteError::NotFound)), "it is in use");
    for (writer, left) in writers.into_iter().zip([1, 0]) {
        writer.remove(Actor::System, Timestamp::from_millis(9)).await.unwrap();
        assert_eq!(journal.snapshots().await.unwrap().len(), left);
    }
    assert_eq!(journal.sandbox("one").await.unwrap(), None);
    assert!(journal.sandbox("two").await.unwrap().is_some(), "another's business");
}

async fn counters_never_repeat(home: &dyn Home) {
    let journal = home.open();
    let a = tenant("a");
    let (one, two) = tokio::join!(journal.count(&a, "local"), journal.count(&a, "local"));
    let mut numbers = [one.unwrap(), two.unwrap()];
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2]);
    journal.close().await;
    drop(journal);
    let journal = home.open();
    assert_eq!(journal.count(&a, "local").await.unwrap(), 3);
    assert_eq!(journal.count_many(&a, "local", 32).await.unwrap(), 4..36);
    assert_eq!(journal.count(&a, "local").await.unwrap(), 36);
    assert_eq!(journal.count_many(&a, "ssh", 2).await.unwrap(), 1..3);
    assert_eq!(journal.count(&tenant("b"), "local").await.unwrap(), 1);
}

async fn closing_writes_what_is_enqueued(home: &dyn Home) {
    let journal = home.open();
    let mut writers: Vec<_> = (0..8).map(|_| journal.begin(new_session())).collect();
    for writer in &mut writers {
        for n in 1..=50 {
            writer.append(notes(n..=n)).unwrap();
        }
        writer.append(append(vec![large(100_000)])).unwrap();
    }
    journal.close().await;
    journal.close().await;
    for writer in &mut writers {
        assert_eq!(*writer.durable().borrow(), Durable::Upto(51));
        assert!(matches!(writer.append(notes(1..=1)), Err(WriteError::Closed)));
    }
    assert!(matches!(journal.count(&tenant("a"), "x").await, Err(WriteError::Closed)));
    assert!(matches!(journal.session(SessionId::new()).await, Err(ReadError::Storage(_))));
    let journal = home.open();
    for writer in &writers {
        assert_eq!(journal.read(writer.session(), 0, 99).await.unwrap().events.len(), 51);
    }
}

async fn a_dropped_journal_can_be_opened_again(home: &dyn Home) {
    let journal = home.open();
    let mut writer = session_with(&journal, 3).await;
    writer.append(notes(4..=4)).unwrap();
    drop(journal);
    assert!(matches!(writer.append(notes(5..=5)), Err(WriteError::Closed)));
    let journal = home.open();
    let kept = journal.read(writer.session(), 0, 9).await.unwrap();
    assert!(kept.last_seq >= 3, "what was durable is there");
    assert_eq!(kept.last_seq, kept.events.len() as u64);
}

async fn many_writers_at_once_lose_nothing(home: &dyn Home) {
    const EVENTS: u64 = 300;
    let journal = home.open();
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let mut writer = journal.begin(new_session());
            tokio::spawn(async move {
                let mut n = 0;
                while n < EVENTS {
                    let step = 1 + n % 7;
                    n = writer.append(notes(n + 1..=(n + step).min(EVENTS))).unwrap();
                    if n.is_multiple_of(5) {
                        settled(&writer).await;
                    }
                }
                assert_eq!(settled(&writer).await, Durable::Upto(EVENTS));
                writer.session()
            })
        })
        .collect();
    for task in tasks {
        let session = task.await.unwrap();
        assert_eq!(read_all(&journal, session).await, numbers(1..=EVENTS));
    }
}

async fn forks_share_their_parents_events(home: &impl Home) {
    let journal = home.open();
    let parent = session_with(&journal, 5).await;
    let fork = |from: &Writer, seq| {
        let (journal, session) = (journal.clone(), from.session());
        async move {
            let from = ForkPoint { session, seq };
            let mut writer = journal.begin_fork(new_session(), from).await.unwrap();
            assert_eq!(writer.last_seq(), seq);
            writer.append(append(vec![note("own"), note("own too")])).unwrap();
            assert!(matches!(settled(&writer).await, Durable::Upto(_)));
            writer
        }
    };
    let child = fork(&parent, 3).await;
    let grandchild = fork(&child, 4).await;
    let early = fork(&child, 2).await;
    let texts = |session: SessionId| {
        let journal = journal.clone();
        async move {
            let (mut all, mut after) = (vec![], 0);
            loop {
                let page = journal.read(session, after, 2).await.unwrap();
                if page.events.is_empty() {
                    assert_eq!(page.last_seq, after);
                    return all;
                }
                for event in page.events {
                    after += 1;
                    assert_eq!(event.seq, after);
                    match event.decode().unwrap() {
                        Body::Notice(notice) => all.push(notice.text),
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    };
    assert_eq!(texts(child.session()).await, ["1", "2", "3", "own", "own too"]);
    assert_eq!(texts(grandchild.session()).await, ["1", "2", "3", "own", "own", "own too"]);
    assert_eq!(texts(early.session()).await, ["1", "2", "own", "own too"]);
    assert_eq!(texts(parent.session()).await.len(), 5, "nobody writes into the parent");
    let inherited = journal.event(grandchild.session(), 2).await.unwrap().unwrap();
    assert_eq!(inherited.seq, 2);
    assert_eq!(journal.session(child.session()).await.unwrap().unwrap().first_seq, 1);
    assert!(journal.has_forks(parent.session()).await.unwrap());
    assert!(!journal.has_forks(grandchild.session()).await.unwrap());
    let mut follower = journal.follow(grandchild.session(), 1);
    let mut seen = 1;
    while seen < 6 {
        let batch = follower.next().await.unwrap();
        seen = batch.events.last().unwrap().seq;
    }
    let gone = ForkPoint { session: SessionId::new(), seq: 1 };
    assert!(matches!(journal.begin_fork(new_session(), gone).await, Err(ReadError::NotFound)));
    let ids = (parent.session(), child.session());
    drop((parent, child, grandchild, early));
    journal.close().await;
    let again = home.open();
    let row = again.session(ids.1).await.unwrap().unwrap();
    assert_eq!(row.fixed.forked_from, Some(ForkPoint { session: ids.0, seq: 3 }));
}
