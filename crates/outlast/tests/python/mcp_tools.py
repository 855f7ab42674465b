"""The official Python SDK lists and calls every tool: over stdio (a program and its arguments) or over HTTP (an
address and a key), in the protocol version that it is told to use."""

import asyncio
import json
import sys

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

TOOLS = {
    "session_create", "session_exec", "session_poll", "session_write", "session_signal", "session_list",
    "session_destroy", "session_checkpoint", "session_checkpoints", "session_restore", "session_output",
}


async def story(session: Client, folder: str) -> None:
    listed = {tool.name for tool in (await session.list_tools()).tools}
    assert listed == TOOLS, listed

    async def call(tool, progress=None, **arguments):
        result = await session.call_tool(tool, arguments, progress_callback=progress)
        assert not result.is_error, result
        assert json.loads(result.content[0].text) == result.structured_content
        return result.structured_content

    async def refused(tool, **arguments):
        result = await session.call_tool(tool, arguments)
        assert result.is_error, result
        return json.loads(result.content[0].text)["error"]["code"]

    assert await refused("session_create") == "invalid_request"
    assert await refused("session_create", transport="local", what=1) == "invalid_request"
    made = await call("session_create", transport="local", cwd=folder, place="host")
    name = made["session_id"]
    told = []

    async def progress(written, total, message):
        told.append(message)

    said = await call("session_exec", progress, session_id=name, command="echo one; sleep 0.5; echo two; exit 3")
    assert (said["stdout"], said["exit_code"], said["cwd"]) == ("one\ntwo", 3, folder), said
    assert "".join(told).startswith("one"), told
    begun = await call("session_exec", session_id=name, command="read x; echo $x; sleep 60", yield_secs=0, stdin="open")
    assert begun["running"], begun
    command = {"session_id": name, "command_id": begun["command_id"]}
    assert (await call("session_write", **command, text="hi\n"))["written"] == 3
    assert (await call("session_list"))["sessions"][0]["running"] == begun["command_id"]
    while (await call("session_poll", **command))["stdout"] != "hi":
        pass
    assert (await call("session_signal", **command, signal="KILL"))["signalled"]
    ended = await call("session_poll", **command, wait_secs=20)
    assert not ended["running"] and ended["exit_code"] == 137, ended
    cut = await call("session_exec", session_id=name, command="seq 1 9", budget={"max_chars": 3})
    assert cut["truncated"] and cut["whole"] == ["stdout"], cut
    piece = await call("session_output", session_id=name, command_id=cut["command_id"], stream="stdout", offset=16)
    assert (piece["text"], piece["bytes"], piece["complete"]) == ("9\n", 18, True), piece
    probe = await session.call_tool("session_checkpoint", {"session_id": name, "label": "before"})
    if probe.is_error and json.loads(probe.content[0].text)["error"]["code"] == "unsupported":
        for tool in ("session_checkpoints", "session_restore"):
            assert await refused(tool, session_id=name) == "unsupported"
    else:
        taken = probe.structured_content
        await call("session_exec", session_id=name, command="touch later")
        kept = (await call("session_checkpoints", session_id=name))["checkpoints"]
        assert kept[0]["id"] == taken["checkpoint_id"], kept
        restored = await call("session_restore", session_id=name, checkpoint_id=taken["checkpoint_id"])
        assert restored["restored_to"] == taken["checkpoint_id"]
        assert (await call("session_exec", session_id=name, command="ls"))["stdout"] == ""
    assert (await call("session_destroy", session_id=name))["destroyed"]
    assert not (await call("session_destroy", session_id="99_local"))["destroyed"]


async def over_stdio(mode: str, folder: str, program: str, arguments: list[str]) -> None:
    async with Client(StdioServerParameters(command=program, args=arguments), mode=mode) as client:
        await story(client, folder)


async def over_http(mode: str, folder: str, url: str, key: str) -> None:
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60) as http:
        async with Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client:
            await story(client, folder)


if __name__ == "__main__":
    way, mode, folder, *rest = sys.argv[1:]
    asyncio.run(over_stdio(mode, folder, rest[0], rest[1:]) if way == "stdio" else over_http(mode, folder, *rest))
    print("ok")
