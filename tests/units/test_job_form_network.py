"""The Network card of the job form and what the job's page says of it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from jobs import definition
from jobs.models import Job
from tests.fakes.job_forms import fields, make, posted
from tests.fakes.timelines import HOSTILE

pytestmark = pytest.mark.django_db


def card_of(html: str) -> str:
    return html.split('<section class="card" id="network">')[1].split("</section>")[0]


def card(client: Client, job: Job | None = None) -> str:
    address = f"/jobs/{job.pk}/settings/" if job else "/jobs/new/"
    return card_of(client.get(address).content.decode())


def inputs(html: str, name: str) -> dict[str, str]:
    """The tags of that name, by value."""
    tags = [tag for tag in re.findall(r"<input[^>]*>", html) if f'name="{name}"' in tag]
    return {(re.search(r'value="([^"]*)"', tag) or [tag, ""])[1]: tag for tag in tags}


def chosen(html: str) -> list[str]:
    return [value for value, tag in inputs(html, "network").items() if " checked" in tag]


def test_a_new_job_begins_with_internet_access(administrator_client: Client) -> None:
    html = card(administrator_client)
    choices = inputs(html, "network")
    assert list(choices) == ["none", "internet", "domains", "unrestricted"]
    assert chosen(html) == ["internet"]
    for words in ("No network", "Internet access", "Allowed domains only", "Unrestricted network"):
        assert words in html
    assert "disabled" not in html


def test_each_choice_says_what_it_means_and_what_it_lacks(member_client: Client) -> None:
    html = card(member_client)
    # P23
    assert "<code>npx -y</code> and <code>uvx</code> download at each start" in html
    assert "need Internet access" in html
    # P25
    assert "One that passes may still fail in a job with less" in html
    assert "the timeline of the first run shows it" in html
    # Issue 5, section 3: programs that ignore proxies.
    assert "A program that ignores them has no route" in html
    assert "It needs Unrestricted network" in html


def test_the_card_needs_no_script(administrator_client: Client) -> None:
    """All fields are in the page; the style sheet shows those of the choice."""
    html = card(administrator_client)
    assert 'name="domains"' in html
    assert 'name="allow_private_network"' in html
    assert "hx-" not in html
    assert "hidden>" not in html


def test_domains_are_saved_and_shown_again(administrator_client: Client) -> None:
    job = make()
    typed = "API.example\r\n*.Bücher.example, x.example"
    values = {"network": "domains", "domains": typed, "allow_private_network": "on"}
    assert posted(administrator_client, job, **values).status_code == 303
    job.refresh_from_db()
    domains = ["api.example", "*.xn--bcher-kva.example", "x.example"]
    assert (job.network, job.domains, job.allow_private_network) == ("domains", domains, True)
    html = card(administrator_client, job)
    assert chosen(html) == ["domains"]
    assert "api.example\n*.xn--bcher-kva.example\nx.example</textarea>" in html
    assert " checked" in inputs(html, "allow_private_network")[""]


def test_what_was_typed_for_another_choice_is_not_looked_at(member_client: Client) -> None:
    """The style sheet hides it; a fault there could not be found."""
    response = member_client.post("/jobs/new/", fields(network="internet", domains="no domain!"))
    assert response.status_code == 303
    assert Job.objects.get().domains == []


@pytest.mark.parametrize(
    ("values", "field", "said"),
    [
        ({"network": "domains"}, "domains", "Name at least one domain"),
        ({"network": "domains", "domains": "a.example 10.0.0.1"}, "domains", "is an address"),
        ({"network": "domains", "domains": "x" * 60_000}, "domains", "at most 51000 characters"),
        ({"network": "domains", "domains": "a\0b"}, "domains", "Null characters"),
        ({"network": "wifi"}, "network", "not one of the available choices"),
        ({"network": None}, "network", "required"),
        ({"network": "unrestricted"}, "network", "Only administrators can give a job"),
        (
            {"network": "internet", "allow_private_network": "on"},
            "allow_private_network",
            "Only administrators can let a job into the private network",
        ),
    ],
)
def test_a_fault_stands_under_its_field(
    member_client: Client, values: dict[str, Any], field: str, said: str
) -> None:
    response = member_client.post("/jobs/new/", fields(**values))
    assert response.status_code == 422
    html = card_of(response.content.decode())
    error = html.split(f'id="id_{field}-error"')[1].split("</div>")[0]
    assert said in error
    assert 'aria-invalid="true"' in html
    assert not Job.objects.exists()


def test_what_was_typed_stays_after_a_fault(member_client: Client) -> None:
    values = {"network": "domains", "domains": HOSTILE + " a.example"}
    response = member_client.post("/jobs/new/", fields(**values))
    html = card_of(response.content.decode())
    assert chosen(html) == ["domains"]
    assert "a.example</textarea>" in html
    assert "<img src=x" not in html


class TestWhoHasWhat:
    def test_members_see_what_only_administrators_choose(self, member_client: Client) -> None:
        html = card(member_client)
        assert " disabled" in inputs(html, "network")["unrestricted"]
        assert "Only administrators can choose this." in html
        assert " disabled" in inputs(html, "allow_private_network")[""]
        assert "Only administrators can allow it." in html

    def test_what_a_job_has_members_may_keep(self, member_client: Client) -> None:
        job = make(network="unrestricted")
        html = card(member_client, job)
        assert chosen(html) == ["unrestricted"]
        assert " disabled" not in inputs(html, "network")["unrestricted"]
        response = posted(member_client, job, network="unrestricted", description="new")
        assert response.status_code == 303
        job = make(name="other", allow_private_network=True)
        assert " disabled" not in inputs(card(member_client, job), "allow_private_network")[""]

    def test_a_choice_that_is_switched_off_is_not_offered(
        self, administrator_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = make(network="unrestricted")
        monkeypatch.setattr(definition, "unrestricted_allowed", lambda: False)
        assert list(inputs(card(administrator_client), "network")) == [
            "none",
            "internet",
            "domains",
        ]
        html = card(administrator_client, job)
        assert chosen(html) == ["unrestricted"]
        assert "so that runs of this job fail. Choose another." in html
        response = posted(administrator_client, job, network="unrestricted")
        assert response.status_code == 422
        assert "switched off on this installation" in card_of(response.content.decode())

    def test_the_private_network_that_is_switched_off_cannot_be_ticked(
        self, administrator_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(definition, "private_allowed", lambda: False)
        html = card(administrator_client)
        assert " disabled" in inputs(html, "allow_private_network")[""]
        assert "network.allow_private_targets is false" in html


def test_an_outdated_form_shows_both_networks(
    member_client: Client, administrator_client: Client
) -> None:
    job = make(network="none")
    posted(administrator_client, job, network="domains", domains="a.example b.example")
    response = posted(member_client, job, network="none", version="1")
    html = response.content.decode()
    assert response.status_code == 422
    for words in ("<pre>domains</pre>", "<pre>none</pre>", "<pre>a.example, b.example</pre>"):
        assert words in html
    assert "Allowed domains" in html


def test_the_jobs_page_says_where_it_may_go(member_client: Client) -> None:
    domains = tuple(f"{n}.example" for n in range(7))
    job = make(network="domains", domains=domains, allow_private_network=True)
    html = member_client.get(f"/jobs/{job.pk}/").content.decode()
    facts = html.split("<dt>Network</dt>")[1].split("<dt>")[0]
    assert "Allowed domains only, private network allowed" in facts
    assert "4.example" in facts
    assert "5.example" not in facts
    assert "2 more" in facts
