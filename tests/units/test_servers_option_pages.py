"""The Advanced part of the form: every option of the catalogue, its default and its meaning."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.http import QueryDict
from django.test import Client
from django.urls import reverse

from servers import checks
from servers.forms.options import LABELS, OptionsForm, written
from servers.forms.server import ServerForm
from servers.models import Server
from servers.options import BY_NAME, CATALOGUE, Option, parse
from servers.services import update_server
from tests.fakes.server_rows import http_data, http_server, stdio_server, unix_server
from tests.units.forms_of_pages import Fields, fields_of

pytestmark = pytest.mark.django_db

CREATE = reverse("servers:create")
MAKERS = {"http": http_server, "stdio": stdio_server, "unix": unix_server}
names = [option.name for option in CATALOGUE]


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_hint", lambda pk: None)


def other_value(option: Option) -> str:
    """Something that is not the default, as people type it."""
    if option.kind == "switch":
        return written(not option.default)
    if option.kind == "choice":
        return option.choices[-1]
    if option.kind == "text":
        return {"token_ref": "@TOKEN", "actor_header": "X-Person"}[option.name]
    return str(max(int(option.minimum), 300 if option.kind != "count" else 7))


def edit_address(server: Server) -> str:
    return reverse("servers:edit", args=[server.pk])


def opened(client: Client, server: Server) -> Fields:
    text = client.get(edit_address(server)).content.decode()
    return fields_of(text, "server-form")


def saved(client: Client, server: Server, **changes: str) -> Server:
    """The server after its form was opened, changed and sent."""
    data = {**opened(client, server), **changes}
    response = client.post(edit_address(server), data)
    assert response.status_code == 303, response.content.decode()
    server.refresh_from_db()
    return server


def part(html: str) -> str:
    return html[html.index('id="advanced"') : html.index('id="policy"')]


def is_open(html: str) -> bool:
    return re.search(r'id="advanced"\s+open', html) is not None


@pytest.mark.parametrize("option", CATALOGUE, ids=names)
def test_every_option_stands_there_with_its_name_and_meaning(
    option: Option, administrator_client: Client
) -> None:
    """U14-U18, U39, U40, U44, U55-U57, U61, U62, U67, A17."""
    form = OptionsForm(stored={})
    [field] = [
        item for group in form.groups for item in group.fields if item.option.name == option.name
    ]
    meaning = option.meaning.replace("`", "")
    assert LABELS[option.name] == field.bound.label
    assert str(field.bound.help_text).startswith(meaning)
    html = administrator_client.get(CREATE).content.decode()
    # Broken only after an underscore.
    assert f"<code>{option.name.replace('_', '_<wbr>')}</code>" in html


@pytest.mark.parametrize("option", CATALOGUE, ids=names)
def test_the_default_stands_where_nothing_is_entered(option: Option) -> None:
    control = str(OptionsForm(stored={})[option.name])
    if option.kind in ("switch", "choice"):
        [first] = re.findall(r'<option value=""[^>]*>([^<]*)</option>', control)
        default = {True: "Yes", False: "No"}.get(option.default, option.default)
        assert first == f"{default} (default)"
    else:
        [placeholder] = re.findall(r'placeholder="([^"]*)"', control)
        shown = option.unset if option.default is None else written(option.default) or "@NAME"
        assert placeholder.replace("&#x27;", "'") == shown
        assert "value=" not in control


def test_limits_say_what_each_profile_means() -> None:
    """A37-A43 beside the standard of section 0."""
    help_text = OptionsForm(stored={})["max_message_bytes"].help_text
    assert help_text.endswith("By profile: standard 16 MiB, strict 256 KiB.")


@pytest.mark.parametrize("transport", ["http", "stdio", "unix"])
@pytest.mark.parametrize("option", CATALOGUE, ids=names)
def test_an_option_is_stored_for_its_transports_alone(
    option: Option, transport: str, administrator_client: Client
) -> None:
    """U15, U63: what another transport knows is not read here."""
    server = MAKERS[transport]()
    value = other_value(option)
    server = saved(administrator_client, server, **{f"option-{option.name}": value})
    mine = transport in option.transports
    assert server.options == ({option.name: parse(option.name, value)} if mine else {})
    text = administrator_client.get(edit_address(server)).content.decode()
    assert fields_of(text, "server-form")[f"option-{option.name}"] == [value if mine else ""]
    assert is_open(text) is mine


def test_what_is_set_is_counted_where_the_part_is_folded(administrator_client: Client) -> None:
    server = http_server(options={"per_actor": True, "max_tools": 7})
    text = administrator_client.get(edit_address(server)).content.decode()
    assert "2 set" in part(text)
    assert "0 set" not in administrator_client.get(CREATE).content.decode()


def test_an_emptied_field_goes_back_to_the_default(administrator_client: Client) -> None:
    server = http_server(options={"max_inflight_calls": 9, "per_actor": True})
    changes = {"option-max_inflight_calls": "", "option-per_actor": ""}
    assert saved(administrator_client, server, **changes).options == {}


def test_the_form_saved_as_it_was_opened_keeps_every_option(administrator_client: Client) -> None:
    """E08: byte for byte, floats and switches included."""
    options = {
        option.name: parse(option.name, other_value(option))
        for option in CATALOGUE
        if "http" in option.transports
    }
    options |= {"tool_timeout_secs": 0.5, "request_timeout_secs": 0.0}
    options |= {"tool_call_retry_base_ms": 300, "max_message_bytes": 16_777_215}
    server = http_server(options=options)
    before = Server.objects.values().get()
    assert before["options"] == options
    saved(administrator_client, server)
    assert Server.objects.values().get() == before


def test_a_request_without_the_part_changes_no_option(administrator_client: Client) -> None:
    server = http_server(options={"max_inflight_calls": 9})
    data = {
        name: value
        for name, value in opened(administrator_client, server).items()
        if not name.startswith(("option-", "policy-"))
    }
    administrator_client.post(edit_address(server), {**data, "description": ["New"]})
    server.refresh_from_db()
    assert (server.description, server.options) == ("New", {"max_inflight_calls": 9})


BAD: list[tuple[str, str, str]] = [
    ("start_timeout_secs", "soon", "must be a number from 0 to 86,400 seconds"),
    ("start_timeout_secs", "-1", "must be a number from 0"),
    ("tool_timeout_secs", "nan", "must be a number"),
    ("tool_timeout_secs", "inf", "must be a number"),
    ("max_inflight_calls", "0", "must be a whole number from 1 to 256"),
    ("max_inflight_calls", "2.5", "must be a whole number"),
    ("tool_call_max_attempts", "11", "from 1 to 10"),
    ("limits_profile", "loose", "must be standard or strict"),
    ("evidence_source", "perhaps", "must be true or false"),
    ("max_message_bytes", "16 MiB", "must be a whole number from 1,024"),
    ("tool_call_retry_base_ms", "5000", "must not be larger than tool_call_retry_max_ms"),
]


@pytest.mark.parametrize(("name", "value", "words"), BAD)
def test_a_bad_value_gets_a_sentence_under_its_field(
    name: str, value: str, words: str, administrator_client: Client
) -> None:
    """The part opens by itself, and nothing typed is lost."""
    data = {"name": "s", "transport": "stdio", "command": "x", f"option-{name}": value}
    response = administrator_client.post(CREATE, data)
    text = response.content.decode()
    assert response.status_code == 422
    assert not Server.objects.exists()
    [sentence] = re.findall(
        rf'id="id_option-{name}-error">\s*<p>.*?</svg>(.*?)</p>', text, flags=re.S
    )
    assert words in sentence
    assert is_open(text)
    assert fields_of(text, "server-form")[f"option-{name}"] == [
        value if BY_NAME[name].kind not in ("switch", "choice") else ""
    ]


def test_a_bad_option_and_a_bad_name_are_told_at_once(administrator_client: Client) -> None:
    data = {"name": "no good", "transport": "stdio", "command": "x", "option-max_tools": "many"}
    text = administrator_client.post(CREATE, data).content.decode()
    assert "can hold only letters, digits, _ and -" in text
    assert "max_tools must be a whole number" in text


def test_a_token_typed_in_place_of_its_name_is_refused_without_being_quoted(
    administrator_client: Client,
) -> None:
    """U24, U30: people paste the token itself here."""
    data = {"name": "s", "transport": "http", "url": "https://h.example/"}
    response = administrator_client.post(CREATE, {**data, "option-token_ref": "ghp_canary"})
    text = response.content.decode()
    assert "token_ref must name a secret as @NAME" in text
    outside = re.sub(r'<input[^>]*name="option-token_ref"[^>]*>', "", text)
    assert "canary" not in outside
    assert not Server.objects.exists()


def test_the_key_button_of_the_token_writes_a_name_and_no_reference(
    administrator_client: Client,
) -> None:
    """P12, U24."""
    text = part(administrator_client.get(CREATE).content.decode())
    assert 'data-secret-for="id_option-token_ref" data-secret-mark="@"' in text


def test_an_actor_header_that_stands_among_the_headers_is_refused(
    administrator_client: Client,
) -> None:
    """E15's neighbour."""
    data = {
        "name": "s",
        "transport": "http",
        "url": "https://h.example/",
        "header_name": ["X-Ugent-Actor"],
        "header_value": ["me"],
        "option-per_actor": "true",
    }
    text = administrator_client.post(CREATE, data).content.decode()
    assert 'id="id_option-actor_header-error"' in text
    assert not Server.objects.exists()


def test_an_outdated_form_shows_options_that_differ(administrator_client: Client) -> None:
    server = http_server(options={"max_tools": 7, "per_actor": True})
    data: dict[str, Any] = {**opened(administrator_client, server), "option-max_tools": "9"}
    theirs = http_data(options={"per_actor": True, "tool_timeout_secs": 300.0})
    update_server(server, actor=None, data=theirs, version=1)
    response = administrator_client.post(edit_address(server), data)
    found = {item.label: (item.theirs, item.yours) for item in response.context["differences"]}
    assert found == {"Tools": ("default", "9"), "One tool call": ("300", "default")}
    again = fields_of(response.content.decode(), "server-form")
    assert administrator_client.post(edit_address(server), again).status_code == 303
    server.refresh_from_db()
    assert server.options == {"max_tools": 9, "per_actor": True}


def test_an_option_that_nobody_knows_is_ignored() -> None:
    form = ServerForm(QueryDict("name=a&transport=stdio&option-warp_speed=9"))
    assert form.is_valid()
    assert form.server_data().options == {}


def test_where_no_script_hides_them_each_option_says_which_transports_have_it() -> None:
    """The page works without script, with the fields of all transports."""
    form = OptionsForm(stored={})
    words = {item.option.name: item.only_words for group in form.groups for item in group.fields}
    assert words["start_timeout_secs"] == "stdio only"
    assert words["connect_timeout_secs"] == "HTTP only"
    assert words["token_ref"] == "HTTP and Unix socket only"
    assert words["max_inflight_calls"] == ""
