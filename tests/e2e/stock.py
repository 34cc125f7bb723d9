"""Fills a site with people, secrets, servers and jobs, each named for what tests do with it.

    python -m tests.e2e.stock <address of server-everything> <address of the fake server>

Prints the sessions of its people as JSON. A process of its own: it works on the site's data.
"""

from __future__ import annotations

import json
import sys

from umpteenth.cli.bootstrap import setup

PASSWORD = "correct horse battery"
PEOPLE = {"alice": True, "bob": False, "carol": True}  # whether an administrator
SECRET, SECRET_VALUE = "REPORT_TOKEN", "tok-4711-very-secret"

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
LEAVES_OUTPUTS = """#!/usr/bin/env bash
set -euo pipefail
ump step "Ask"
ump mcp call everything echo '{"message": "good morning"}'
ump mcp call everything get-sum '{"a": 19, "b": 23}'
ump step "Hand over"
ump output set answer '{"sum": 42, "parts": [19, 23]}'
echo "all is well" > /ump/outputs/report.txt
ump summary "19 and 23 are 42."
"""
# A tool call that lasts until somebody cancels the run.
WAITS = """#!/usr/bin/env bash
ump step "Wait"
ump mcp call fake echo '{"text": "before the wait"}'
ump mcp call fake hang
"""
# Lines to scroll through, then one call after the other until the run is cancelled.
TALKS = """#!/usr/bin/env python3
import json, subprocess, time
for number in range(5000):
    arguments = json.dumps({"number": number})
    subprocess.run(["ump", "mcp", "call", "fake", "echo", arguments], check=True)
    time.sleep(0.05 if number < 60 else 0.5)
"""
PRINTS = """#!/usr/bin/env bash
for number in {0..99}; do echo "line $number"; done
"""
LEAKS = f"""#!/usr/bin/env bash
echo "the token is $TOKEN"
ump mcp call fake echo "{{\\"token\\": \\"$TOKEN\\"}}"
cat > call.json <<'END'
{json.dumps({"parts": [{"type": "text", "text": HOSTILE}]})}
END
ump mcp call fake content - < call.json
"""
# A picture, a text of several pages, and at last a call that reports its progress until the end.
RETURNS = """#!/usr/bin/env bash
ump mcp call everything get-tiny-image '{}'
ump mcp call fake big '{"bytes": 150000}' > /dev/null
ump mcp call fake progress '{"steps": 500, "interval": 0.5}'
"""


def main(everything: str, fake: str) -> None:
    setup()
    _make_secret()
    _make_servers(everything, fake)
    _make_jobs()
    _make_environment()
    json.dump({"sessions": _make_people()}, sys.stdout)


def _make_environment() -> None:
    """Nobody builds it: no worker lives yet, and no job uses it."""
    from jobs.environments.services import create_environment

    create_environment(actor=None, text="name: tools\npython: [humanize]\ndebian: [jq]\n")


def _make_people() -> dict[str, str]:
    from django.test import Client

    from umpteenth.accounts.services import create_user
    from umpteenth.accounts.tokens import create_token

    sessions = {}
    for name, administrator in PEOPLE.items():
        person = create_user(name=name, password=PASSWORD, administrator=administrator)
        create_token(owner=person, name="night script", days=30, actor=None)
        client = Client()
        client.force_login(person)
        sessions[name] = client.cookies["sessionid"].value
    return sessions


def _make_secret() -> None:
    from secrets_vault.services import set_secret

    set_secret(actor=None, name=SECRET, value=SECRET_VALUE, description="For the nightly report")


def _make_servers(everything: str, fake: str) -> None:
    from servers.checks import request_check
    from servers.definition import HTTP, STDIO, ServerData
    from servers.services import create_server

    dies = "console.error('Error: API_KEY is not set'); process.exit(7)"
    mute = "console.error('warming up'); setInterval(() => {}, 1000)"
    servers = [
        ServerData("everything", HTTP, "Every kind of tool", url=everything),
        ServerData("fake", HTTP, "The tests' own server", url=fake),
        ServerData("locked", HTTP, url=f"{fake}?login=1"),
        ServerData("dies", STDIO, command="node", args=("-e", dies)),
        ServerData("mute", STDIO, "Never answers", command="node", args=("-e", mute)),
        ServerData("shared", HTTP, "Edited by two", url=fake),
    ]
    for data in servers:
        server = create_server(actor=None, data=data)
        if data.name in ("everything", "fake"):
            request_check(server, actor=None)


def _make_jobs() -> None:
    from jobs.services import AttachmentData, JobData, SecretData, create_job

    everything, fake = AttachmentData("everything"), AttachmentData("fake")
    jobs = [
        JobData("leaves outputs", LEAVES_OUTPUTS, "For reading", attachments=(everything,)),
        JobData("prints", PRINTS),
        JobData("waits", WAITS, attachments=(fake,), overlap="parallel"),
        JobData("talks", TALKS, attachments=(fake,), overlap="parallel"),
        JobData("returns things", RETURNS, attachments=(everything, fake), overlap="parallel"),
        JobData("leaks", LEAKS, attachments=(fake,), secrets=(SecretData("TOKEN", SECRET),)),
    ]
    for data in jobs:
        create_job(actor=None, data=data)


if __name__ == "__main__":
    main(*sys.argv[1:])
