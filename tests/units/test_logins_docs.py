"""docs/logins.md says what there is: commands, badges, addresses, sentences."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

import click
import pytest
from django.urls import reverse

from servers.oauth import pending
from servers.oauth.registration import NO_REGISTRATION
from servers.status import Auth
from umpteenth.cli import mcp
from umpteenth.cli.mcp_oauth import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "logins.md").read_text(encoding="utf-8")
ONE_LINE = re.sub(r"\s+", " ", PAGE)


def test_each_badge_is_told_once() -> None:
    """P46-P51."""
    _, _, table = PAGE.partition("| Auth | Means | Do |")
    told = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    badges = [label for label in told if not label.startswith("http")]
    assert sorted(badges) == sorted(str(auth.label) for auth in Auth)


@pytest.mark.parametrize("name", ["oauth_callback", "oauth_client"])
def test_addresses_stand_there_as_they_are(name: str) -> None:
    """P40."""
    pk = UUID(int=0)
    path = reverse(f"servers_api:{name}", args=[pk]).replace(str(pk), "")
    before, after = path.split("//")
    assert re.search(rf"<app\.url>{before}/<id[^>]*>/{re.escape(after)}`", PAGE)


def test_options_of_the_command_are_those_that_there_are() -> None:
    add = mcp.command.commands["add"]
    there = {option for parameter in add.params for option in parameter.opts}
    assert set(re.findall(r"--oauth-[a-z-]+", PAGE)) <= there
    assert set(re.findall(r"oauth_[a-z]+(?:_[a-z]+)?", PAGE)) == set(SETTINGS)
    assert isinstance(mcp.command.commands["logout"], click.Command)


def test_the_sentence_of_a_provider_without_registration_is_quoted_word_for_word() -> None:
    """P55."""
    assert NO_REGISTRATION in ONE_LINE


def test_the_time_at_the_provider_is_told() -> None:
    """P42."""
    assert pending.LASTS.total_seconds() == 600
    assert "ten minutes at most at the provider" in ONE_LINE


def test_the_page_can_be_found() -> None:
    for name in ("README.md", "docs/servers.md"):
        assert "logins.md" in (ROOT / name).read_text(encoding="utf-8")
