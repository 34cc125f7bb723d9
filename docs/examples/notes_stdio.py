"""A small MCP server over stdio: notes that last as long as the server does.

Run it as `python notes_stdio.py`; a client speaks to it through its standard input and output.
NOTES_AUTHOR names who writes the notes.
"""

from __future__ import annotations

import os

from mcp.server import MCPServer
from mcp.types import ToolAnnotations
from pydantic import BaseModel

READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)
WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)

server = MCPServer(
    "notes",
    version="1.0",
    instructions="Keeps short notes. Search before you add a note that may exist already.",
)


class Note(BaseModel):
    number: int
    author: str
    title: str
    text: str


class Notes(BaseModel):
    notes: list[Note]


_notes: list[Note] = []


@server.tool(title="Add a note", annotations=WRITES)
def add_note(title: str, text: str) -> Note:
    """Keep a note and return it with its number."""
    author = os.environ.get("NOTES_AUTHOR", "nobody")
    note = Note(number=len(_notes) + 1, author=author, title=title, text=text)
    _notes.append(note)
    return note


@server.tool(title="Search notes", annotations=READ_ONLY)
def search_notes(query: str = "") -> Notes:
    """All notes whose title or text holds the query, whatever its case; all without one."""
    wanted = query.casefold()
    found = [note for note in _notes if wanted in f"{note.title}\n{note.text}".casefold()]
    return Notes(notes=found)


if __name__ == "__main__":
    server.run("stdio")
