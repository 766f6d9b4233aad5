"""The SDK of the Model Context Protocol for Python."""

from mcp import Client
from suite import QUESTION, SEARCHING, URL, feature, run


@feature("chat")
async def chat():
    async with Client(URL + "/mcp") as client:
        await client.list_tools()
        asked = await client.call_tool("ask", {"question": QUESTION, "model": SEARCHING})
        assert asked.content[0].text and asked.structured_content["answer"], asked


@feature("file search")
async def search():
    async with Client(URL + "/mcp") as client:
        assert sorted(tool.name for tool in (await client.list_tools()).tools) == ["ask", "search"]
        found = await client.call_tool("search", {"query": "Mona Lisa", "k": 3})
        assert len(found.structured_content["hits"]) == 3, found


run()
