"""Which program runs a script, by its first line."""

from __future__ import annotations

import pytest

from jobs import scripts


@pytest.mark.parametrize(
    ("first", "command", "language"),
    [
        ("echo hi", ["/usr/bin/env", "bash"], "bash"),
        ("#!/bin/bash -e", ["/usr/bin/env", "bash", "-e"], "bash"),
        ("#! /usr/bin/env bash", ["/usr/bin/env", "bash"], "bash"),
        ("#!/bin/sh", ["/usr/bin/env", "sh"], "bash"),
        ("#!/usr/bin/env python", ["/usr/bin/env", "python3"], "python"),
        ("#!/usr/bin/python3.11", ["/usr/bin/env", "python3.11"], "python"),
        ("#!/usr/bin/env -S node --x 'a b'", ["/usr/bin/env", "node", "--x", "a b"], "node"),
    ],
)
def test_the_first_line_decides(first: str, command: list[str], language: str) -> None:
    assert scripts.interpreter(first + "\nmore\n") == command
    assert scripts.language(first) == language


@pytest.mark.parametrize("first", ["#!", "#!/usr/bin/env", "#!/usr/bin/perl", '#!/bin/sh "'])
def test_other_programs_are_refused_and_named(first: str) -> None:
    with pytest.raises(scripts.ScriptError, match="first line"):
        scripts.interpreter(first)
    assert scripts.language(first) == "bash"


def test_line_ends_of_forms_become_ours() -> None:
    assert scripts.normalise("a\r\nb\rc") == "a\nb\nc\n"
    assert scripts.normalise("") == ""
