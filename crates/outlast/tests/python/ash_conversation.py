"""A conversation with the server through ash-ai-sdk, a client that others wrote. Arguments: URL KEY."""

import sys

import httpx
from ash_sdk import AshClient
from ash_sdk.api.sessions import get_api_sessions_id_files
from ash_sdk.client import AuthenticatedClient
from ash_sdk.streaming import DoneEvent, ErrorEvent, MessageEvent, SessionStartEvent, TextDeltaEvent

url, key = sys.argv[1:3]
client = AshClient(url, token=key, timeout=60.0)


def talk(session, text):
    events = list(client.send_message_stream(session.id, text))
    assert isinstance(events[0], SessionStartEvent), events
    assert isinstance(events[-1], DoneEvent), events
    assert events[-1].session_id == str(session.id), events
    return events


def said(events):
    return "".join(event.delta for event in events if isinstance(event, TextDeltaEvent))


assert client.health()["status"] == "ok"
assert "demo" in [agent.name for agent in client.list_agents()]
assert client.get_agent("demo").name == "demo"

session = client.create_session("demo", model="a-model", extra_env={"A": "b"})
assert session.status == "active" and session.agent_name == "demo" and session.tenant_id == "default"
other = client.create_session("demo")
assert [each.id for each in client.list_sessions(agent="demo")] == [other.id, session.id]
assert client.get_session(session.id).id == session.id

events = talk(session, "echo hello from python")
assert said(events) == "hello from python", events
assert any(isinstance(event, MessageEvent) for event in events), events
assert any(isinstance(event, ErrorEvent) for event in talk(session, "error"))

assert client.pause_session(session.id).status == "paused"
try:
    client.pause_session(session.id)
    raise AssertionError("a paused session was paused")
except httpx.HTTPStatusError as error:
    assert error.response.status_code == 400
    assert error.response.json()["error"] == 'Cannot pause session with status "paused"'
assert client.resume_session(session.id).status == "active"
assert said(talk(session, "echo again")) == "again"
assert client.stop_session(other.id).status == "paused"
assert said(talk(other, "echo lazily")) == "lazily"

files = get_api_sessions_id_files.sync(session.id, client=AuthenticatedClient(base_url=url, token=key))
assert files.source == "sandbox" and "agent.toml" in [file.path for file in files.files], files

assert client.end_session(session.id).status == "ended"
assert client.end_session(session.id).status == "ended"
assert {each.id for each in client.list_sessions(status="ended")} == {session.id}
try:
    client.resume_session(session.id)
    raise AssertionError("an ended session was resumed")
except httpx.HTTPStatusError as error:
    assert error.response.status_code == 410
print("ok")
