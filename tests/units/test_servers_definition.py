"""Rules of a server's settings; no database."""

from __future__ import annotations

import pytest

from servers.definition import HTTP, STDIO, Entry, ServerData, check, split_query, url_problem


def http(**values: object) -> ServerData:
    return ServerData(**{"name": "github", "transport": HTTP, "url": "https://h/mcp", **values})  # type: ignore[arg-type]


def stdio(**values: object) -> ServerData:
    return ServerData(**{"name": "brave", "transport": STDIO, "command": "brave", **values})  # type: ignore[arg-type]


def test_the_worked_examples_are_fine() -> None:
    """P15, P19."""
    header = Entry("Authorization", "Bearer {{secret:GITHUB_TOKEN}}")
    assert check(http(url="https://api.githubcopilot.com/mcp/", headers=(header,))) == {}
    env = (Entry("BRAVE_API_KEY", "{{ secret:BRAVE }}"),)
    assert check(stdio(command="npx", args=("-y", "@brave/brave-search-mcp-server"), env=env)) == {}


@pytest.mark.parametrize("name", ["a", "A_b-9", "x" * 64])
def test_names_of_letters_digits_and_two_signs_are_fine(name: str) -> None:
    assert check(stdio(name=name)) == {}


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "ä", "a.b", "a/b", "a\n", "<b>"])
def test_other_names_are_refused_with_one_sentence(name: str) -> None:
    errors = check(stdio(name=name))
    assert list(errors) == ["name"]
    assert errors["name"].endswith(".")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "Enter the address"),
        ("ftp://h/", "must begin with https"),
        ("file:///etc/passwd", "must begin with https"),
        ("h/mcp", "must begin with https"),
        ("https://me:pw@h/", "user name or password"),
        ("http://a@127.0.0.1#@ok.example/", "# part"),
        ("https://h/#x", "# part"),
        ("https:///path", "no usable host"),
        ("https://h:99999/", "no address"),
        ("https://h:0/", "no usable host"),
        ("https://[::1/", "no address"),
        ("https://h/a b", "space"),
        ("https://h\\@evil/", "space or a character"),
        ("https://" + "x" * 64 + ".example/", "no usable host"),
        ("https://h/{{secret:A}}", "only after the question mark"),
        ("https://h/?k={{secret:}}", "not valid"),
        ("https://h/" + "x" * 2000, "too long"),
        ("https://h/?" + "x" * 5000, "too long"),
        ("https://h/?a=\x00", "space or a character"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(url: str, words: str) -> None:
    assert words in url_problem(url)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:8080/mcp", "https://[::1]/", "https://bücher.example/?k={{ secret:A }}&b=1"],
)
def test_an_ordinary_address_is_fine(url: str) -> None:
    assert url_problem(url) == ""


def test_the_query_is_cut_off_the_address() -> None:
    assert split_query(" https://h/mcp?a=1?b ") == ("https://h/mcp", "a=1?b")


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        (Entry("", "v"), "headers.0.name"),
        (Entry("X Y", "v"), "headers.0.name"),
        (Entry("X:", "v"), "headers.0.name"),
        (Entry("Host", "evil"), "headers.0.name"),
        (Entry("Mcp-Session-Id", "1"), "headers.0.name"),
        (Entry("X", "a\r\nY: b"), "headers.0.value"),
        (Entry("X", "a\nb"), "headers.0.value"),
        (Entry("X", "ä"), "headers.0.value"),
        (Entry("X", "a\x00"), "headers.0.value"),
        (Entry("X", "x" * 9000), "headers.0.value"),
        (Entry("X", "{{secret:no good}}"), "headers.0.value"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused(entry: Entry, key: str) -> None:
    """E01: a line break never reaches the HTTP library."""
    assert list(check(http(headers=(entry,)))) == [key]


def test_two_spellings_of_authorization_are_refused() -> None:
    """E15."""
    headers = (Entry("Authorization", "Bearer a"), Entry("authorization", "Bearer b"))
    assert "twice" in check(http(headers=headers))["headers.1.name"]


def test_variables_that_differ_in_case_are_two() -> None:
    assert check(stdio(env=(Entry("A", "1"), Entry("a", "2")))) == {}
    assert "twice" in check(stdio(env=(Entry("A", "1"), Entry("A", "2"))))["env.1.name"]


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "Ä"])
def test_a_variable_needs_a_proper_name(name: str) -> None:
    assert list(check(stdio(env=(Entry(name, "v"),)))) == ["env.0.name"]


def test_a_kept_value_is_not_looked_at() -> None:
    assert check(http(headers=(Entry("X", None, kept="X"),))) == {}


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"command": ""}, "command"),
        ({"command": "-y"}, "command"),
        ({"command": "npx -y x"}, "command"),
        ({"command": "a\nb"}, "command"),
        ({"command": "x" * 501}, "command"),
        ({"command": "{{secret:A}}"}, "command"),
        ({"args": ("a", "b\x00c")}, "args.1"),
        ({"args": ("x" * 4097,)}, "args.0"),
        ({"args": ("--key={{secret:A}}",)}, "args.0"),
        ({"args": tuple("x" * 101)}, "args"),
        ({"env": (Entry("A", "x\x00"),)}, "env.0.value"),
        ({"env": (Entry("A", "x" * 40_000),)}, "env.0.value"),
        ({"env": tuple(Entry(f"A{i}", "") for i in range(101))}, "env"),
        ({"description": "x" * 501}, "description"),
        ({"transport": "carrier pigeon"}, "transport"),
    ],
)
def test_what_no_process_can_be_started_with_is_refused(
    values: dict[str, object], key: str
) -> None:
    assert list(check(stdio(**values))) == [key]


@pytest.mark.parametrize("args", [(), ("-y",), ("-y", ""), ("--package=x",), ("--",)])
@pytest.mark.parametrize("command", ["npx", "uvx", "/usr/local/bin/npx"])
def test_a_runner_of_packages_needs_one(command: str, args: tuple[str, ...]) -> None:
    errors = check(stdio(command=command, args=args))
    assert list(errors) == ["args"]
    assert "needs a package to start: add its name to Arguments" in errors["args"]


@pytest.mark.parametrize("args", [("-y", "pkg"), ("--from", "git+https://h/x", "x"), ("pkg", "-v")])
def test_a_runner_of_packages_with_one_is_fine(args: tuple[str, ...]) -> None:
    for command in ("npx", "uvx"):
        assert check(stdio(command=command, args=args)) == {}
    assert check(stdio(command="my-npx", args=())) == {}


def test_a_path_with_spaces_is_a_command() -> None:
    assert (
        check(stdio(command="/opt/my tool/server", args=("", " two words ", "line\nbreak"))) == {}
    )


def test_fields_of_the_other_transport_are_ignored() -> None:
    assert check(http(command="-", args=("\x00",), env=(Entry("-", "\x00"),))) == {}
    assert check(stdio(url="nonsense", headers=(Entry("", "\n"),))) == {}
