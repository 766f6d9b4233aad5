"""The official MCP SDK against a running server: ask_mcp.py URL. Prints `ok` at the end, or fails."""

import asyncio
import sys

from mcp import Client
from mcp.shared.exceptions import MCPError

ANSWER = "Goethe wrote Faust. Schiller wrote Tell."


async def refused(client, number, param, name, arguments):
    try:
        await client.call_tool(name, arguments)
        raise AssertionError("no error")
    except MCPError as error:
        assert (error.code, error.data["param"]) == (number, param), error


async def use(client):
    assert client.protocol_version == "2025-06-18", client.protocol_version
    assert client.server_info.name == "waymark"
    assert "`ask`" in client.instructions

    # Listed first, so that the SDK checks what comes against the output schemas.
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert sorted(tools) == ["ask", "search"], tools
    assert tools["search"].input_schema["required"] == ["query"]
    assert tools["ask"].output_schema["type"] == "object"
    assert tools["ask"].annotations.read_only_hint is True

    found = await client.call_tool("search", {"query": "Faust", "k": 2})
    assert found.content[0].text.startswith("[1] Faust (p1)\n"), found
    hits = found.structured_content["hits"]
    assert [hit["passage"]["id"] for hit in hits] == ["p1", "p3"], hits
    assert hits[0]["path"]["dense"] == {"rank": 1, "score": 0.5}, hits

    question = {"question": "Who wrote Faust and Tell?", "model": "routerag"}
    asked = await client.call_tool("ask", question)
    assert asked.content[0].text.startswith(ANSWER + "\n\nSources:\n[1] Faust (p1)"), asked
    answered = asked.structured_content
    assert (answered["answer"], answered["searches"]) == (ANSWER, 2), answered
    assert [cited["passage"] for cited in answered["citations"]] == ["p1", "p2"], answered

    # Several at once over one client.
    many = await asyncio.gather(*(client.call_tool("ask", question) for _ in range(8)))
    assert all(one.structured_content["answer"] == ANSWER for one in many)

    # What is wrong with a call is an error, what goes wrong in a tool is a result.
    failed = await client.call_tool("ask", {"question": "x", "model": "nobody"})
    assert failed.is_error and failed.content[0].text.startswith("model_not_found: "), failed
    await refused(client, -32602, "name", "find", {})
    await refused(client, -32602, "colour", "search", {"query": "Faust", "colour": 1})


async def main():
    # `auto` tries a newer revision of the protocol first, and is refused by name; `legacy` says hello at once.
    for mode in ["auto", "legacy"]:
        async with Client(sys.argv[1] + "/mcp", mode=mode) as client:
            await use(client)


asyncio.run(main())
print("ok")
