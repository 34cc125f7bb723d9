"""Saving, deleting and using secrets."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.db import IntegrityError

from jobs.models import Job, JobSecret
from secrets_vault import usage
from secrets_vault.models import Secret
from secrets_vault.services import (
    BadReference,
    BadSecret,
    SecretData,
    SecretError,
    SecretNotAllowed,
    SecretNotFound,
    SecretUnreadable,
    Target,
    Usage,
    create_secret,
    delete_secret,
    encrypt_json,
    is_readable,
    may_use,
    register_usage,
    resolve,
    secret_value,
    set_secret,
    update_secret,
    usages_of,
)
from secrets_vault.usage import usages_of_many
from tests.fakes.vault import use_ring_in
from umpteenth.accounts.models import AuditEntry, User
from umpteenth.core import masking

pytestmark = pytest.mark.django_db
CANARY = "canary-value-91c2"
ANYWHERE = Target()


@pytest.fixture(autouse=True)
def ring_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(masking, "_known", masking._KnownValues())
    return use_ring_in(monkeypatch, tmp_path)


def make(name: str, value: str = CANARY, **kwargs: Any) -> Secret:
    return create_secret(actor=None, name=name, data=SecretData(value=value, **kwargs)).secret


# Saving


def test_a_secret_is_kept_encrypted_and_comes_back_as_it_was(administrator: User) -> None:
    saved = create_secret(
        actor=administrator,
        name="TOKEN",
        data=SecretData(value=CANARY, description=" for GitHub ", open_to_members=True),
    )

    secret = Secret.objects.get(name="TOKEN")
    assert (saved.created, saved.notes) == (True, [])
    assert CANARY.encode() not in bytes(secret.ciphertext)
    assert secret_value(secret, target=ANYWHERE) == CANARY
    assert (secret.description, secret.open_to_members) == ("for GitHub", True)
    assert secret.updated_by == administrator


def test_what_happened_is_in_the_audit_log_without_the_value(administrator: User) -> None:
    secret = make("TOKEN")
    update_secret(secret, actor=administrator, data=SecretData(value=CANARY))
    update_secret(secret, actor=administrator, data=SecretData())
    delete_secret(secret, actor=administrator)

    entries = list(AuditEntry.objects.order_by("at"))
    assert [(entry.action, entry.actor_name, entry.details) for entry in entries] == [
        ("secret.create", "command line", {}),
        ("secret.update", "alice", {"value": "replaced"}),
        ("secret.update", "alice", {}),
        ("secret.delete", "alice", {}),
    ]
    assert {(entry.kind, entry.object_name) for entry in entries} == {("secret", "TOKEN")}


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 101, "a/b", "{{secret:A}}", "A\n", "a\x00"])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(BadSecret, match="The name must be 1 to 100 letters") as caught:
        make(name)
    assert caught.value.field == "name"
    with pytest.raises(BadSecret):
        set_secret(actor=None, name=name, value="x")


def test_a_taken_name_is_refused_and_the_value_stays() -> None:
    make("TOKEN", "first")

    with pytest.raises(BadSecret, match="There is already a secret named TOKEN") as caught:
        make("TOKEN", "second")
    assert caught.value.field == "name"
    assert secret_value(Secret.objects.get(), target=ANYWHERE) == "first"


def test_another_fault_of_the_database_is_not_called_a_taken_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: Secret, **kwargs: Any) -> None:
        raise IntegrityError("something else")

    monkeypatch.setattr(Secret, "save", broken)

    with pytest.raises(IntegrityError, match="something else"):
        make("TOKEN")


@pytest.mark.parametrize(
    ("typed", "kept", "note"),
    [
        ("sk-secret\n", "sk-secret", "The line break at the end of the value was removed."),
        ("sk-secret\r\n", "sk-secret", "The line break at the end of the value was removed."),
        (" sk-secret", "sk-secret", "Spaces and line breaks around the value were removed."),
        ("sk-secret\t\n", "sk-secret", "Spaces and line breaks around the value were removed."),
        ("in\tside stays", "in\tside stays", None),
        ("two\nlines\n", "two\nlines", "The line break at the end of the value was removed."),
        ("\u00a0nbsp\u00a0", "\u00a0nbsp\u00a0", None),
    ],
)
def test_space_around_a_value_goes_and_the_person_is_told(
    typed: str, kept: str, note: str | None
) -> None:
    """E01."""
    saved = create_secret(actor=None, name="T", data=SecretData(value=typed))

    assert secret_value(saved.secret, target=ANYWHERE) == kept
    assert saved.notes == ([note] if note else [])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "The value is empty"),
        (" \r\n\t", "The value is empty"),
        ("a\x00b", "contains a NUL"),
        ("a\ud800b", "is not valid text"),
        ("x" * 65_537, "has 65,537 bytes; at most 65,536"),
        ("ä" * 32_769, "has 65,538 bytes"),
    ],
)
def test_a_bad_value_is_refused_without_quoting_it(value: str, words: str) -> None:
    with pytest.raises(BadSecret, match=words) as caught:
        make("T", value)
    assert caught.value.field == "value"
    assert not value.strip() or value not in str(caught.value)
    assert not Secret.objects.exists()


def test_a_value_of_64_kib_is_kept() -> None:
    assert secret_value(make("T", "ä" * 32_768), target=ANYWHERE) == "ä" * 32_768


def test_a_new_secret_needs_a_value() -> None:
    with pytest.raises(BadSecret, match="Enter a value"):
        create_secret(actor=None, name="T", data=SecretData())


def test_editing_without_a_value_keeps_it_byte_for_byte() -> None:
    """E07, E08."""
    secret = make("T")
    before = Secret.objects.values("ciphertext", "key_id").get()

    update_secret(secret, actor=None, data=SecretData(description="new words"))

    assert Secret.objects.values("ciphertext", "key_id").get() == before
    assert Secret.objects.get().description == "new words"


def test_two_edits_of_different_things_do_not_undo_each_other() -> None:
    make("T", "first")
    mine, theirs = Secret.objects.get(), Secret.objects.get()

    update_secret(theirs, actor=None, data=SecretData(value="theirs"))
    update_secret(mine, actor=None, data=SecretData(description="mine"))

    assert secret_value(Secret.objects.get(), target=ANYWHERE) == "theirs"


def test_setting_a_value_keeps_what_is_not_named() -> None:
    first = set_secret(
        actor=None,
        name="T",
        value="one",
        description="words",
        open_to_members=True,
        allowed_hosts=["a.example"],
        allowed_servers=["s"],
        allowed_jobs=["j"],
    )
    second = set_secret(actor=None, name="T", value="two")

    assert (first.created, second.created) == (True, False)
    secret = Secret.objects.get()
    assert (secret.description, secret.open_to_members) == ("words", True)
    assert (secret.allowed_hosts, secret.allowed_servers, secret.allowed_jobs) == (
        ["a.example"],
        ["s"],
        ["j"],
    )


def test_hosts_are_kept_in_one_spelling_and_once() -> None:
    secret = make("T", allowed_hosts=[" API.Example.org. ", "api.example.org", "", "*.b.example"])

    assert secret.allowed_hosts == ["api.example.org", "*.b.example"]


@pytest.mark.parametrize(
    ("scope", "entries", "words"),
    [
        ("allowed_hosts", ["https://a.example/"], "is no host name; write it like api.example.org"),
        ("allowed_hosts", ["a b"], "is no host name"),
        ("allowed_hosts", ["a.*.example"], "is no host name"),
        ("allowed_servers", ["x" * 254], "is no server name; write it like github"),
        ("allowed_jobs", [f"job {n}" for n in range(101)], "Name at most 100 jobs"),
    ],
)
def test_a_bad_scope_is_refused(scope: str, entries: list[str], words: str) -> None:
    limits: dict[str, Any] = {scope: entries}
    with pytest.raises(BadSecret, match=words) as caught:
        make("T", **limits)
    assert caught.value.field == scope


def test_a_long_description_is_refused() -> None:
    with pytest.raises(BadSecret, match="more than 500 characters"):
        make("T", description="x" * 501)


# Using


def test_references_are_replaced_and_the_secrets_named() -> None:
    make("A", "value-a")
    make("B", "value-b")

    resolved = resolve(
        {"h": "Bearer {{secret:A}}", "e": "{{ secret:B }}/{{secret:A}}", "plain": "x"},
        target=ANYWHERE,
    )

    assert resolved.values == {"h": "Bearer value-a", "e": "value-b/value-a", "plain": "x"}
    assert resolved.secrets == {"A": "value-a", "B": "value-b"}


def test_what_was_resolved_is_not_shown_by_accident() -> None:
    make("A")

    resolved = resolve({"plain": "x", "h": "{{secret:A}}"}, target=ANYWHERE)

    assert "secrets" not in repr(resolved)
    assert CANARY not in repr(SecretData(value=CANARY))


def test_texts_without_references_ask_the_database_nothing(
    django_assert_num_queries: Any,
) -> None:
    with django_assert_num_queries(0):
        assert resolve({"a": "x"}, target=ANYWHERE).values == {"a": "x"}


def test_many_references_take_one_reading_and_one_writing(django_assert_num_queries: Any) -> None:
    for number in range(5):
        make(f"S{number}")
    text = "".join(f"{{{{secret:S{number}}}}}" for number in range(5))

    with django_assert_num_queries(2):
        resolve({"a": text}, target=ANYWHERE)


def test_one_missing_secret_fails_all_and_is_named() -> None:
    make("HERE")

    with pytest.raises(SecretNotFound, match="Secret MISSING not found") as caught:
        resolve({"a": "{{secret:HERE}}", "b": "{{secret:MISSING}}"}, target=ANYWHERE)
    assert isinstance(caught.value, SecretError)
    assert masking.known_values().is_empty
    assert Secret.objects.get().last_used_at is None


def test_a_malformed_reference_fails_all() -> None:
    with pytest.raises(BadReference):
        resolve({"a": "{{secret:}}"}, target=ANYWHERE)


def test_a_value_that_holds_a_reference_is_not_looked_into() -> None:
    make("A", "{{secret:B}}")
    make("B", "inner")

    assert resolve({"x": "{{secret:A}}"}, target=ANYWHERE).values == {"x": "{{secret:B}}"}


def test_the_environment_is_never_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """E05."""
    monkeypatch.setenv("DATABASE_URL", "postgres://leak")

    text = "${DATABASE_URL} $DATABASE_URL"
    assert resolve({"x": text}, target=ANYWHERE).values == {"x": text}
    with pytest.raises(SecretNotFound):
        resolve({"x": "{{secret:DATABASE_URL}}"}, target=ANYWHERE)


def test_logs_mask_whatever_was_resolved() -> None:
    make("A")

    resolve({"x": "{{secret:A}}"}, target=ANYWHERE)

    assert masking.known_values().mask(f"token {CANARY}") == "token [secret A]"


def test_the_last_use_is_written_once_a_minute() -> None:
    start = datetime(2026, 5, 1, 12, tzinfo=UTC)
    with time_machine.travel(start, tick=False) as clock:
        secret = make("A")
        used = []
        for _ in range(4):
            secret_value(secret, target=ANYWHERE)
            used.append(Secret.objects.get().last_used_at)
            clock.shift(timedelta(seconds=25))

    seconds = [(moment - start).total_seconds() for moment in used if moment]
    assert seconds == [0, 0, 0, 75]


@pytest.mark.parametrize(
    ("target", "allowed"),
    [
        (Target(host="api.example.org", server="x"), True),
        (Target(host="API.example.org.", server="x"), True),
        (Target(host="sub.wild.example"), True),
        (Target(host="wild.example"), False),
        (Target(host="evilwild.example"), False),
        (Target(host="api.example.org.evil.example", server="x"), False),
        (Target(server="github"), True),
        (Target(server="GitHub"), False),
        (Target(job="nightly digest"), True),
        (Target(host="other.example", server="x", job="nightly digest"), True),
        (Target(host="other.example", server="x", job="y"), False),
        (Target(), False),
    ],
)
def test_a_limited_secret_resolves_only_where_it_is_for(target: Target, allowed: bool) -> None:
    make(
        "A",
        allowed_hosts=["api.example.org", "*.wild.example"],
        allowed_servers=["github"],
        allowed_jobs=["nightly digest"],
    )

    if allowed:
        assert resolve({"x": "{{secret:A}}"}, target=target).values == {"x": CANARY}
    else:
        with pytest.raises(SecretNotAllowed, match="Secret A may not be used for"):
            resolve({"x": "{{secret:A}}"}, target=target)
        with pytest.raises(SecretNotAllowed):
            secret_value(Secret.objects.get(), target=target)


@pytest.mark.parametrize(
    ("target", "where"),
    [
        (Target(host="h.example", server="s", job="j"), "server s, host h.example, job j"),
        (Target(job="j"), "job j"),
        (Target(), "this"),
    ],
)
def test_the_refusal_says_where(target: Target, where: str) -> None:
    secret = make("A", allowed_servers=["other"])

    with pytest.raises(SecretNotAllowed, match=f"may not be used for {where}\\.") as caught:
        secret_value(secret, target=target)
    assert caught.value.where == where


def test_a_secret_under_a_missing_key_says_so_and_nothing_leaves() -> None:
    """E09."""
    Secret.objects.filter(pk=make("A").pk).update(key_id="gone")

    with pytest.raises(SecretUnreadable, match="Secret A cannot be decrypted with key gone, enter"):
        resolve({"x": "{{secret:A}}"}, target=ANYWHERE)
    assert not is_readable(Secret.objects.get())
    assert masking.known_values().is_empty


def test_a_ciphertext_copied_to_another_secret_does_not_open() -> None:
    first, second = make("A"), make("B", "other value")
    Secret.objects.filter(pk=second.pk).update(ciphertext=first.ciphertext)

    assert is_readable(first)
    assert not is_readable(Secret.objects.get(name="B"))


def test_what_a_server_encrypted_does_not_open_as_a_secret() -> None:
    secret = make("A")
    ciphertext, key_id = encrypt_json("x", kind="server", row_id=secret.pk)
    Secret.objects.filter(pk=secret.pk).update(ciphertext=ciphertext, key_id=key_id)

    assert not is_readable(Secret.objects.get())


# Who may use, who uses


def test_members_may_use_what_is_open_to_them(administrator: User, member: User) -> None:
    closed = make("closed", description="words")
    opened = make("OPEN", open_to_members=True)

    assert [may_use(closed, person) for person in (administrator, member)] == [True, False]
    assert may_use(opened, member)
    assert may_use(closed, None)


@pytest.fixture
def finders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_finders", [])


def test_rooms_say_what_uses_a_secret(finders: None) -> None:
    github = Usage("server", "github", "/servers/1/")
    digest = Usage("job", "digest", "/jobs/1/")
    register_usage(lambda names: {"A": [github]})
    register_usage(lambda names: {name: [digest] for name in names if name == "A"})

    assert usages_of("A") == [github, digest]
    assert usages_of_many(["A", "B"]) == {"A": [github, digest], "B": []}
    assert str(github) == "server github"


def test_a_room_that_registers_twice_counts_once(finders: None) -> None:
    def find(names: Collection[str]) -> dict[str, list[Usage]]:
        return {name: [Usage("server", "github", "/")] for name in names}

    register_usage(find)
    register_usage(find)

    assert len(usages_of("A")) == 1


def test_deleting_takes_the_secret_away() -> None:
    secret = make("A")

    delete_secret(secret, actor=None)

    with pytest.raises(SecretNotFound):
        resolve({"x": "{{secret:A}}"}, target=ANYWHERE)


def test_a_secret_in_a_jobs_environment_is_not_deleted() -> None:
    secret = make("A")
    job = Job.objects.create(name="digest", script="#!/bin/sh")
    JobSecret.objects.create(job=job, variable="TOKEN", secret=secret)

    with pytest.raises(SecretError, match="Secret A is mapped into jobs"):
        delete_secret(secret, actor=None)
    assert Secret.objects.filter(name="A").exists()
    assert not AuditEntry.objects.filter(action="secret.delete").exists()


def test_names_are_listed_without_regard_to_case() -> None:
    for name in ("b", "A", "C"):
        make(name)

    assert [str(secret) for secret in Secret.objects.all()] == ["A", "b", "C"]
