"""The YAML job file: read strictly, each fault named by its key."""

from __future__ import annotations

import pytest

from jobs.definition import AttachmentData, JobData, SecretData
from jobs.jobfile import JobFileError, parse_job_file

WHOLE = """
name: nightly digest
script: |
  #!/usr/bin/env bash
  ump mcp call everything echo '{"message": "hi"}'
servers: {everything: all, time: [get_current_time]}
secrets: {GITHUB_TOKEN: GITHUB_TOKEN}
network: none
schedule: {cron: "0 9 * * 1-5", timezone: Europe/Berlin}
overlap: queue
timeout: 60
description: every night
enabled: false
"""
LEAST = "name: a\nscript: echo\n"


def test_the_file_of_the_manual_is_read() -> None:
    assert parse_job_file(WHOLE) == JobData(
        name="nightly digest",
        script='#!/usr/bin/env bash\nump mcp call everything echo \'{"message": "hi"}\'\n',
        description="every night",
        network="none",
        timeout=60,
        overlap="queue",
        enabled=False,
        cron="0 9 * * 1-5",
        timezone="Europe/Berlin",
        attachments=(
            AttachmentData("everything"),
            AttachmentData("time", ("get_current_time",)),
        ),
        secrets=(SecretData("GITHUB_TOKEN", "GITHUB_TOKEN"),),
    )


def test_name_and_script_are_enough() -> None:
    assert parse_job_file(LEAST) == JobData(name="a", script="echo")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "A job file is a mapping"),
        ("- a\n", "A job file is a mapping"),
        ("name: a\n", "script: this key is missing."),
        ("script: a\n", "name: this key is missing."),
        ("name: 2024\nscript: a\n", "name: must be text; put it in quotation marks."),
        ("name: a\nscript: on\n", "script: must be text"),
        (LEAST + "shedule: {}\n", "shedule: unknown key; a job has name, "),
        (LEAST + "name: b\n", "name: this key stands twice."),
        (LEAST + "timeout: '60'\n", "timeout: must be a whole number"),
        (LEAST + "timeout: true\n", "timeout: must be a whole number"),
        (LEAST + "timeout: 1.5\n", "timeout: must be a whole number"),
        (LEAST + "enabled: maybe\n", "enabled: must be true or false."),
        (LEAST + "schedule: daily\n", "schedule: must be a mapping"),
        (LEAST + "schedule: {cron: 5}\n", "schedule.cron: must be text"),
        (LEAST + "schedule: {every: day}\n", "schedule.every: unknown key"),
        (LEAST + "schedule: {cron: '0 9 * * *', timezone: 1}\n", "schedule.timezone: must be"),
        *((LEAST + f"environment: {v}\n", "environment: must be text") for v in ("0", "off", "[]")),
        (LEAST + "servers: [everything]\n", "servers: must be a mapping"),
        (LEAST + "servers: {everything: some}\n", "servers.everything: must be all or a list"),
        (LEAST + "servers: {everything: [1]}\n", "servers.everything: must be all or a list"),
        (LEAST + "servers: {1: all}\n", "servers.1: must be text"),
        (LEAST + "secrets: [A]\n", "secrets: must be a mapping"),
        (LEAST + "secrets: {A: 1}\n", "secrets.A: must be the name of a secret."),
        ("name: [a\n", "The job file is not YAML (line"),
        ("a: &x b\nc: *x\n", "no anchors"),
        ("? [a, b]\n: c\n", "must be a word"),
        ("!!python/object/apply:os.system ['true']\n", "The job file is not YAML"),
        ("name: a\nscript: |\n  " + "x" * 2_200_000, "larger than 2 MiB"),
        ("[" * 5000, "The job file is not YAML"),
        (LEAST + "enabled: !!bool x\n", "The job file is not YAML"),
        (LEAST + "timeout: !!int ''\n", "The job file is not YAML"),
        (LEAST + "description: !!timestamp x\n", "The job file is not YAML"),
    ],
)
def test_a_fault_is_one_sentence_that_names_it(text: str, said: str) -> None:
    with pytest.raises(JobFileError) as caught:
        parse_job_file(text)
    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert len(message) < 300


def test_a_bomb_of_aliases_is_refused_at_once() -> None:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
    with pytest.raises(JobFileError, match="no anchors"):
        parse_job_file("\n".join(lines))
