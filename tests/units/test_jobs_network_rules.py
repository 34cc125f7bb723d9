"""The network of a job: what is stored, who may widen it, what the audit and the file say."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from jobs import definition, services
from jobs.definition import InvalidJob, JobData, NotAllowed
from jobs.jobfile import JobFileError, parse_job_file
from jobs.models import Job
from jobs.shapes import job_shape
from tests.fakes.job_forms import make
from umpteenth.accounts.models import AuditEntry, User
from umpteenth.cli.jobs import command

pytestmark = pytest.mark.django_db

DATA = JobData(name="digest", script="echo hi\n")
FILE = "name: digest\nscript: echo hi\n"


def create(actor: User | None = None, **changes: Any) -> Job:
    job = services.create_job(actor=actor, data=DATA.replace(**changes))
    job.refresh_from_db()
    return job


def update(job: Job, actor: User | None = None, **changes: Any) -> Job:
    job.refresh_from_db()
    data = services.current_data(job).replace(**changes)
    return services.update_job(job, actor=actor, data=data, version=job.version)


def stored(job: Job) -> tuple[str, list[str], bool]:
    return job.network, job.domains, job.allow_private_network


class TestWhatIsStored:
    def test_a_new_job_has_internet_access(self) -> None:
        assert stored(create()) == ("internet", [], False)
        assert Job(name="x").network == "internet"

    def test_domains_are_stored_as_the_dns_knows_them(self) -> None:
        domains = ("API.Example.org", "*.Bücher.example", "api.example.org.")
        job = create(network="domains", domains=domains)
        assert stored(job) == ("domains", ["api.example.org", "*.xn--bcher-kva.example"], False)
        assert services.current_data(job).domains == tuple(job.domains)

    @pytest.mark.parametrize("network", ["none", "unrestricted"])
    def test_what_belongs_to_another_choice_is_dropped(self, network: str) -> None:
        """A list or a tick that nobody sees must not come back with a later choice."""
        job = create(network=network, domains=("not even a domain",), allow_private_network=True)
        assert stored(job) == (network, [], False)

    def test_internet_access_keeps_the_private_network_and_no_domains(self) -> None:
        job = create(domains=("api.example",), allow_private_network=True)
        assert stored(job) == ("internet", [], True)

    @pytest.mark.parametrize(
        ("domains", "said"),
        [
            ((), "Name at least one domain"),
            (("api.example", "192.0.2.7"), "192.0.2.7 is an address"),
            (("https://api.example",), "is more than a name"),
            (tuple(f"{n}.example" for n in range(201)), "at most 200 allowed domains"),
        ],
    )
    def test_a_list_that_means_nothing_is_refused(
        self, domains: tuple[str, ...], said: str
    ) -> None:
        with pytest.raises(InvalidJob) as caught:
            create(network="domains", domains=domains)
        assert list(caught.value.errors) == ["domains"]
        assert said in caught.value.errors["domains"]
        assert not Job.objects.exists()

    def test_the_private_network_needs_the_installations_leave(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P77: a job cannot allow what `network.allow_private_targets` rules out."""
        monkeypatch.setattr(definition, "private_allowed", lambda: False)
        with pytest.raises(InvalidJob, match=r"network\.allow_private_targets is false") as caught:
            create(allow_private_network=True)
        assert list(caught.value.errors) == ["allow_private_network"]
        assert create(allow_private_network=False).network == "internet"


class TestWhoMayWidenIt:
    """design.md, section 3: network modes beyond Internet access are for administrators."""

    @pytest.mark.parametrize(
        "changes",
        [
            {"network": "none"},
            {"network": "internet"},
            {"network": "domains", "domains": ("api.example",)},
        ],
    )
    def test_members_have_all_that_is_guarded(self, member: User, changes: dict[str, Any]) -> None:
        assert create(member, **changes).network == changes["network"]

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"network": "unrestricted"}, "network"),
            ({"allow_private_network": True}, "allow_private_network"),
            (
                {"network": "domains", "domains": ("a.example",), "allow_private_network": True},
                "allow_private_network",
            ),
        ],
    )
    def test_the_rest_only_administrators_give(
        self, member: User, administrator: User, changes: dict[str, Any], field: str
    ) -> None:
        with pytest.raises(NotAllowed, match="Only administrators can") as caught:
            create(member, **changes)
        assert caught.value.field == field
        assert not Job.objects.exists()
        job = create(administrator, **changes)
        plain = update(job, network="internet", allow_private_network=False)
        with pytest.raises(NotAllowed):
            update(plain, member, **changes)

    def test_what_administrators_gave_stays_when_members_edit(self, member: User) -> None:
        job = create(network="unrestricted")
        assert update(job, member, description="new").network == "unrestricted"
        assert update(job, member, network="none").network == "none"
        with pytest.raises(NotAllowed):
            update(job, member, network="unrestricted")

    @pytest.mark.parametrize(
        ("changes", "may"),
        [
            ({"domains": ("a.example",)}, True),
            ({"domains": ("*.b.example", "a.example")}, True),
            ({"domains": ("a.example", "router.example")}, False),
            ({"network": "internet"}, False),
            ({"network": "internet", "allow_private_network": False}, True),
            ({"domains": ("router.example",), "allow_private_network": False}, True),
        ],
    )
    def test_members_do_not_lead_into_the_private_network_elsewhere(
        self, member: User, changes: dict[str, Any], may: bool
    ) -> None:
        job = create(
            network="domains", domains=("a.example", "*.b.example"), allow_private_network=True
        )
        if may:
            assert update(job, member, **changes).version == 2
        else:
            with pytest.raises(NotAllowed, match="change where it may go there"):
                update(job, member, **changes)

    def test_members_may_narrow_a_private_network(self, member: User) -> None:
        job = create(allow_private_network=True)
        changed = update(job, member, network="domains", domains=("a.example",))
        assert stored(changed) == ("domains", ["a.example"], True)


class TestAudit:
    def test_the_log_says_where_a_job_may_go(self, administrator: User) -> None:
        job = create(administrator, network="domains", domains=("a.example", "*.b.example"))
        update(job, administrator, network="internet", allow_private_network=True)
        made, changed = AuditEntry.objects.filter(kind="job").order_by("at")
        assert made.details == {"network": "domains (a.example, *.b.example)"}
        assert changed.details == {
            "changed": ["network", "domains", "allow_private_network"],
            "network_before": "domains (a.example, *.b.example)",
            "network": "internet with private networks",
        }

    def test_a_long_list_is_bounded_and_its_end_not_overlooked(self, administrator: User) -> None:
        domains = tuple(f"{n}.example" for n in range(200))
        job = create(administrator, network="domains", domains=domains)
        update(job, administrator, domains=(*domains[:-1], "other.example"))
        entry = AuditEntry.objects.filter(action="job.update").get()
        assert entry.details["changed"] == ["domains"]
        assert entry.details["network"].endswith("19.example and 180 more)")

    def test_an_edit_of_something_else_says_nothing_of_it(self, administrator: User) -> None:
        update(create(), administrator, timeout=5)
        assert AuditEntry.objects.get(action="job.update").details == {"changed": ["timeout"]}


class TestJobFile:
    def test_a_file_that_names_none_gets_internet_access(self) -> None:
        assert parse_job_file(FILE).network == "internet"

    def test_all_of_it_can_be_written(self) -> None:
        text = 'network: domains\ndomains: [API.example, "*.b.example"]\n'
        data = parse_job_file(FILE + text + "allow_private_network: true\n")
        assert (data.network, data.domains) == ("domains", ("API.example", "*.b.example"))
        assert data.allow_private_network is True

    @pytest.mark.parametrize(
        ("lines", "said"),
        [
            ("domains: api.example\n", "domains: must be a list"),
            ("domains: [1]\n", "domains: must be a list"),
            ("domains: {a: b}\n", "domains: must be a list"),
            ("domains: [a.example]\n", "domains: belong to network: domains, and this job has int"),
            ("network: none\ndomains: [a.example]\n", "domains: belong to network: domains"),
            ("allow_private_network: 1\n", "allow_private_network: must be true or false."),
            (
                "network: none\nallow_private_network: true\n",
                "allow_private_network: belongs to network: internet or domains, and this job has",
            ),
            ("network: unrestricted\nallow_private_network: true\n", "and this job has unrestric"),
            ("network: on\n", "network: must be text"),
        ],
    )
    def test_a_fault_names_its_key(self, lines: str, said: str) -> None:
        """What would be dropped without a word may have been meant as a limit."""
        with pytest.raises(JobFileError) as caught:
            parse_job_file(FILE + lines)
        assert said in str(caught.value)

    def test_nothing_said_is_no_fault(self) -> None:
        text = "network: none\ndomains: []\nallow_private_network: false\n"
        assert parse_job_file(FILE + text).network == "none"


class TestCommandLine:
    def run(self, *words: str, input: str = "") -> Any:
        return CliRunner().invoke(command, list(words), input=input)

    def test_a_list_that_is_missing_is_told_by_its_key(self) -> None:
        result = self.run("create", "-", input=FILE + "network: domains\n")
        assert result.exit_code == 1
        assert result.stderr.startswith("domains: Name at least one domain")

    def test_replace_sets_what_the_file_says_and_nothing_stays(self) -> None:
        text = "network: domains\ndomains: [a.example]\nallow_private_network: true\n"
        assert self.run("create", "-", input=FILE + text).exit_code == 0
        assert stored(Job.objects.get()) == ("domains", ["a.example"], True)
        assert self.run("create", "-", "--replace", input=FILE).exit_code == 0
        assert stored(Job.objects.get()) == ("internet", [], False)

    def test_show_tells_it_in_the_words_of_the_file(self) -> None:
        make(network="domains", domains=("a.example", "*.b.example"))
        shown = self.run("show", "digest").stdout
        assert "network: domains\ndomains:\n- a.example\n- '*.b.example'\n" in shown
        assert "allow_private_network: false\n" in shown

    def test_what_is_shown_can_be_written_again(self) -> None:
        job = make(network="domains", domains=("a.example",), allow_private_network=True)
        shape = job_shape(job)
        keys = ("network", "domains", "allow_private_network")
        lines = "".join(f"{key}: {str(shape[key]).replace('True', 'true')}\n" for key in keys)
        data = definition.tidy(parse_job_file(FILE + lines))
        assert data.network == "domains"
        assert (data.domains, data.allow_private_network) == (("a.example",), True)
