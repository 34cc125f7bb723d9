"""Which program runs a script, by its first line."""

from __future__ import annotations

import pytest

from jobs import scripts


@pytest.mark.parametrize(
    ("first", "command"),
    [
        ("echo hi", ["/usr/bin/env", "bash"]),
        ("#!/bin/bash -e", ["/usr/bin/env", "bash", "-e"]),
        ("#! /usr/bin/env bash", ["/usr/bin/env", "bash"]),
        ("#!/bin/sh", ["/usr/bin/env", "sh"]),
        ("#!/usr/bin/env python", ["/usr/bin/env", "python3"]),
        ("#!/usr/bin/python3.11", ["/usr/bin/env", "python3.11"]),
        ("#!/usr/bin/env -S node --x 'a b'", ["/usr/bin/env", "node", "--x", "a b"]),
    ],
)
def test_the_first_line_decides(first: str, command: list[str]) -> None:
    assert scripts.interpreter(first + "\nmore\n") == command


@pytest.mark.parametrize("first", ["#!", "#!/usr/bin/env", "#!/usr/bin/perl", '#!/bin/sh "'])
def test_other_programs_are_refused_and_named(first: str) -> None:
    with pytest.raises(scripts.ScriptError, match="first line"):
        scripts.interpreter(first)


def test_line_ends_of_forms_become_ours() -> None:
    assert scripts.normalise("a\r\nb\rc") == "a\nb\nc\n"
    assert scripts.normalise("") == ""
