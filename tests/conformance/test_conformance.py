"""The MCP conformance suite with the product's engine as its client.

Scenarios of logins have tests of their own (`test_conformance_logins`).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.conformance.suite import SUITE, assert_passes

# What each revision requires of clients: (scenario, revision).
REQUIRED = [
    ("initialize", "2025-11-25"),
    ("tools_call", "2025-11-25"),
    ("elicitation-sep1034-client-defaults", "2025-11-25"),
    ("sse-retry", "2025-11-25"),
    ("json-schema-2020-12-preservation", "2025-11-25"),
    ("tools_call", "2026-07-28"),
    ("request-metadata", "2026-07-28"),
    ("sep-2322-client-request-state", "2026-07-28"),
    ("http-standard-headers", "2026-07-28"),
    ("http-custom-headers", "2026-07-28"),
    ("http-invalid-tool-headers", "2026-07-28"),
    ("json-schema-ref-no-deref", "2026-07-28"),
    ("json-schema-2020-12-preservation", "2026-07-28"),
]

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("scenario", "revision"), REQUIRED)
def test_the_engine_meets_what_a_revision_requires_of_clients(
    scenario: str, revision: str, tmp_path: Path
) -> None:
    """U19, U22, A24; each scenario at its revision's own wire format."""
    assert_passes(tmp_path, scenario, revision)


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_nothing_that_a_revision_requires_is_left_out(revision: str) -> None:
    file = SUITE.parents[1] / "requirements" / f"{revision}.yaml"
    required = yaml.safe_load(file.read_text())["client"]
    ours = [scenario for scenario, of in REQUIRED if of == revision]
    others = {name for name in required if not name.startswith("auth/")}
    assert others <= set(ours)
