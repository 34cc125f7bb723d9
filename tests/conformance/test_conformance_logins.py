"""The conformance suite's scenarios of logins, with the whole product as the client (`logins`).

`expected_failures.yml` lists those that do not apply.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import yaml

from tests.conformance.suite import HERE, PROJECT, SUITE, assert_passes, node, run_suite

# Required by both revisions, each at its own wire format.
LOGINS = [
    "auth/metadata-default",
    "auth/metadata-var1",
    "auth/metadata-var2",
    "auth/metadata-var3",
    "auth/basic-cimd",
    "auth/scope-from-www-authenticate",
    "auth/scope-from-scopes-supported",
    "auth/scope-omitted-when-undefined",
    "auth/scope-step-up",
    "auth/scope-retry-limit",
    "auth/token-endpoint-auth-basic",
    "auth/token-endpoint-auth-post",
    "auth/token-endpoint-auth-none",
    "auth/pre-registration",
]
# Required by 2026-07-28 alone.
NEWER_LOGINS = [
    "auth/resource-mismatch",
    "auth/offline-access-scope",
    "auth/offline-access-not-supported",
    "auth/authorization-server-migration",
    "auth/iss-supported",
    "auth/iss-not-advertised",
    "auth/iss-supported-missing",
    "auth/iss-wrong-issuer",
    "auth/iss-unexpected",
    "auth/iss-normalized",
    "auth/metadata-issuer-mismatch",
]
# Of a revision whose requirements nobody has frozen, and an extension.
OTHER_LOGINS = [
    ("auth/2025-03-26-oauth-metadata-backcompat", "2025-03-26"),
    ("auth/2025-03-26-oauth-endpoint-fallback", "2025-03-26"),
    ("auth/client-credentials-basic", ""),
    ("auth/client-credentials-jwt", ""),
]
REQUIRED_LOGINS = [
    *((scenario, "2025-11-25") for scenario in LOGINS),
    *((scenario, "2026-07-28") for scenario in LOGINS + NEWER_LOGINS),
]

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@pytest.fixture(scope="session")
def template() -> Iterator[Path]:
    """A data directory with a migrated database, which each scenario of logins copies."""
    folder = Path(mkdtemp(prefix="ump-template-"))
    environ = {**os.environ, "UMPTEENTH_DATA_DIR": str(folder)}
    migrate = [sys.executable, "-m", "umpteenth", "migrate"]
    subprocess.run(migrate, cwd=PROJECT, env=environ, check=True, capture_output=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def with_product(template: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONFORMANCE_TEMPLATE", str(template))


@pytest.mark.usefixtures("with_product")
@pytest.mark.parametrize(("scenario", "revision"), REQUIRED_LOGINS + OTHER_LOGINS)
def test_the_product_logs_in_as_a_revision_requires(
    scenario: str, revision: str, tmp_path: Path
) -> None:
    """P35-P44, P54, A01, A07, A15, A33; from adding the server to a tool's answer."""
    assert_passes(tmp_path, scenario, revision)


def expected_failures() -> list[str]:
    listed: dict[str, Any] = yaml.safe_load((HERE / "expected_failures.yml").read_text())
    return list(listed["client"])


@pytest.mark.usefixtures("with_product")
@pytest.mark.parametrize("scenario", expected_failures())
def test_what_does_not_apply_fails_as_listed(scenario: str, tmp_path: Path) -> None:
    """One that passes all the same fails this test: the list is to be kept true."""
    ended = run_suite(tmp_path, "--scenario", scenario)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said[-8000:]
    assert "Expected failures" in said


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_no_login_that_a_revision_requires_is_left_out(revision: str) -> None:
    file = SUITE.parents[1] / "requirements" / f"{revision}.yaml"
    required = yaml.safe_load(file.read_text())["client"]
    ours = [scenario for scenario, of in REQUIRED_LOGINS if of == revision]
    assert {name for name in required if name.startswith("auth/")} == set(ours)


def test_every_scenario_of_logins_is_either_run_or_listed() -> None:
    listed = subprocess.run(
        [node(), str(SUITE), "list", "--client"], capture_output=True, text=True, check=True
    ).stdout
    all_of_them = {word for word in listed.split() if word.startswith("auth/")}
    run = {scenario for scenario, _ in REQUIRED_LOGINS + OTHER_LOGINS}
    assert all_of_them == run | set(expected_failures())
