#!/usr/bin/env python3
"""The demo's job: asks one MCP server for the weather and has another one keep a note of it."""

import json
import os
import subprocess
from typing import Any


def ump(*arguments: str) -> str:
    """Run `ump`, the command that every run has, and return what it prints."""
    done = subprocess.run(["ump", *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def call(server: str, tool: str, **arguments: Any) -> Any:
    return json.loads(ump("mcp", "call", server, tool, json.dumps(arguments)))


with open("/ump/input.json", encoding="utf-8") as file:
    city = (json.load(file) or {}).get("city", "Berlin")

ump("step", f"Ask for the weather in {city}")
# A secret is masked wherever a run is recorded or shown.
print("Asking with the token", os.environ["WEATHER_TOKEN"], flush=True)
days = call("weather", "forecast", city=city, days=3)["days"]
text = ", ".join(f"{day['sky']} at {day['celsius']} °C" for day in days)

ump("step", "Keep a note")
note = call("notes", "add_note", title=f"Weather in {city}", text=text)
found = call("notes", "search_notes", query=city)["notes"]

runs = (int(ump("state", "get", "runs")) if "runs" in ump("state", "list") else 0) + 1
ump("state", "set", "runs", json.dumps(runs))
ump("output", "set", "note", json.dumps(note))
with open("/ump/outputs/notes.json", "w", encoding="utf-8") as file:
    json.dump(found, file, indent=2)
ump("summary", f"{city}: {text}. Run {runs} of this job.")
