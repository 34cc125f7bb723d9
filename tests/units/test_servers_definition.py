"""Rules of a server's settings; no database."""

from __future__ import annotations

import pytest

from servers.definition import (
    HTTP,
    OVER_HTTP,
    STDIO,
    UNIX,
    Entry,
    ServerData,
    check,
    split_query,
    url_problem,
)
from servers.policy import Policy


def http(**values: object) -> ServerData:
    return ServerData(**{"name": "github", "transport": HTTP, "url": "https://h/mcp", **values})  # type: ignore[arg-type]


def stdio(**values: object) -> ServerData:
    return ServerData(**{"name": "brave", "transport": STDIO, "command": "brave", **values})  # type: ignore[arg-type]


def unix(**values: object) -> ServerData:
    given = {"name": "engine", "transport": UNIX, "url": "http://localhost/mcp"}
    return ServerData(**{**given, "socket_path": "/run/engine.sock", **values})  # type: ignore[arg-type]


def of(transport: str, **values: object) -> ServerData:
    return {HTTP: http, STDIO: stdio, UNIX: unix}[transport](**values)


@pytest.mark.parametrize("transport", ["", "sse", "unix_socket", "HTTP"])
def test_there_are_three_transports_and_no_other(transport: str) -> None:
    """U7."""
    assert {check(of(known)) == {} for known in (HTTP, STDIO, UNIX)} == {True}
    errors = check(ServerData(name="a", transport=transport, options={"max_tools": 0}))
    assert errors == {"transport": "Choose HTTP, stdio or Unix socket."}


def test_the_worked_examples_are_fine() -> None:
    """P15, P19."""
    header = Entry("Authorization", "Bearer {{secret:GITHUB_TOKEN}}")
    assert check(http(url="https://api.githubcopilot.com/mcp/", headers=(header,))) == {}
    env = (Entry("BRAVE_API_KEY", "{{ secret:BRAVE }}"),)
    assert check(stdio(command="npx", args=("-y", "@brave/brave-search-mcp-server"), env=env)) == {}


@pytest.mark.parametrize("name", ["a", "A_b-9", "x" * 64])
def test_names_of_letters_digits_and_two_signs_are_fine(name: str) -> None:
    assert check(stdio(name=name)) == {}


@pytest.mark.parametrize(
    "name", ["", "x" * 65, "a b", "ä", "a.b", "a/b", "a\n", "<b>", "-", "--help"]
)
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
        ("https://h/\u202e", "space or a character"),
        ("https://h/?a=\u2066", "space or a character"),
        ("https://h/\udcff", "space or a character"),
        ("https://h/?a=\ud800", "space or a character"),
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
        (Entry("Expect", "100-continue"), "headers.0.name"),
        (Entry("TE", "trailers"), "headers.0.name"),
        (Entry("Trailer", "X"), "headers.0.name"),
        (Entry("upgrade", "h2c"), "headers.0.name"),
        (Entry("X", "a\r\nY: b"), "headers.0.value"),
        (Entry("X", "a\nb"), "headers.0.value"),
        (Entry("X", "a\rb"), "headers.0.value"),
        (Entry("X", "a\tb"), "headers.0.value"),
        (Entry("X", "a\u2028b"), "headers.0.value"),
        (Entry("X", "5 €"), "headers.0.value"),
        (Entry("X", "Ж"), "headers.0.value"),
        (Entry("X", "a\x00"), "headers.0.value"),
        (Entry("X", "a\x1bb"), "headers.0.value"),
        (Entry("X", "a\x7fb"), "headers.0.value"),
        (Entry("X", "a\x85b"), "headers.0.value"),
        (Entry("X", "x" * 9000), "headers.0.value"),
        (Entry("X", "{{secret:no good}}"), "headers.0.value"),
    ],
)
@pytest.mark.parametrize("transport", OVER_HTTP)
def test_a_header_that_cannot_be_sent_is_refused(transport: str, entry: Entry, key: str) -> None:
    """E01: a line break never reaches the HTTP library."""
    assert list(check(of(transport, headers=(entry,)))) == [key]


@pytest.mark.parametrize("value", ["sk-canary\nX: 1", "sk-canary\0", "sk-canary €" + "x" * 9000])
def test_a_sentence_about_a_value_names_the_header_and_never_the_value(value: str) -> None:
    """E01."""
    [sentence] = check(http(headers=(Entry("X-Key", value),))).values()
    assert sentence.startswith("The value of X-Key ")
    assert "canary" not in sentence


@pytest.mark.parametrize("value", ["", "a", "a b", "Grüße", "a\xa0b", " \tsk-secret\r\n"])
def test_a_header_may_hold_what_http_carries(value: str) -> None:
    """RFC 9110, section 5.5; blanks around it are dropped when it is stored."""
    assert check(http(headers=(Entry("X", value),))) == {}


@pytest.mark.parametrize("transport", OVER_HTTP)
def test_two_spellings_of_authorization_are_refused(transport: str) -> None:
    """E15."""
    headers = (Entry("Authorization", "Bearer a"), Entry("authorization", "Bearer b"))
    assert "twice" in check(of(transport, headers=headers))["headers.1.name"]


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT"])
def test_no_variable_reaches_the_loader_of_programs(name: str) -> None:
    """C14's neighbour: it would act in what builds the sandbox, before rights are dropped."""
    errors = check(stdio(env=(Entry(name, "/tmp/x.so"),)))
    assert list(errors) == ["env.0.name"]
    assert name in errors["env.0.name"]


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
        ({"command": "/opt/\udcff"}, "command"),
        ({"args": ("a", "b\x00c")}, "args.1"),
        # What a terminal hands over of bytes that are no UTF-8 (C17): no page could show it.
        ({"args": ("a", "b\udcff")}, "args.1"),
        ({"env": (Entry("A", "\udcff"),)}, "env.0.value"),
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
    assert "needs a package to start: name it as an argument" in errors["args"]


@pytest.mark.parametrize("args", [("-y", "pkg"), ("--from", "git+https://h/x", "x"), ("pkg", "-v")])
def test_a_runner_of_packages_with_one_is_fine(args: tuple[str, ...]) -> None:
    for command in ("npx", "uvx"):
        assert check(stdio(command=command, args=args)) == {}
    assert check(stdio(command="my-npx", args=())) == {}


def test_a_path_with_spaces_is_a_command() -> None:
    assert (
        check(stdio(command="/opt/my tool/server", args=("", " two words ", "line\nbreak"))) == {}
    )


def test_fields_of_other_transports_are_ignored() -> None:
    process = {"command": "-", "args": ("\x00",), "env": (Entry("-", "\x00"),)}
    assert check(http(socket_path="nonsense", **process)) == {}
    assert check(unix(**process)) == {}
    assert check(stdio(url="nonsense", socket_path="x", headers=(Entry("", "\n"),))) == {}


@pytest.mark.parametrize(
    ("values", "key", "words"),
    [
        ({"socket_path": ""}, "socket_path", "Enter the path of the socket"),
        ({"socket_path": "run/mcp.sock"}, "socket_path", "beginning with /"),
        ({"socket_path": "~/mcp.sock"}, "socket_path", "~ and variables are not replaced"),
        ({"socket_path": "$HOME/mcp.sock"}, "socket_path", "variables are not replaced"),
        ({"socket_path": "/run/"}, "socket_path", "directory"),
        ({"socket_path": "/run/a\0b"}, "socket_path", "no path can hold"),
        ({"socket_path": "/run/a\udcff"}, "socket_path", "no path can hold"),
        ({"socket_path": "/run/" + "ü" * 60}, "socket_path", "107"),
        ({"url": ""}, "url", "used over the socket"),
        ({"url": "localhost/mcp"}, "url", "must begin with https:// or http://"),
        ({"url": "http://localhost/#x"}, "url", "# part"),
        ({"url": "http://me:pw@localhost/"}, "url", "user name or password"),
    ],
)
def test_a_socket_that_cannot_be_used_is_refused(
    values: dict[str, object], key: str, words: str
) -> None:
    """U12, U11: a whole path that the kernel has room for, and an address to use over it."""
    errors = check(unix(**values))
    assert list(errors) == [key]
    assert words in errors[key]


def test_a_socket_with_an_address_over_it_is_fine() -> None:
    """U12, U8."""
    assert check(unix()) == {}
    assert check(unix(socket_path="/" + "x" * 106, url="http://e/rpc?k={{secret:K}}")) == {}


@pytest.mark.parametrize("transport", [HTTP, STDIO, UNIX])
def test_options_and_policy_are_checked_with_the_rest(transport: str) -> None:
    data = of(transport, options={"max_inflight_calls": 0}, policy=Policy(allowed_trust_levels=()))
    assert list(check(data)) == ["options.max_inflight_calls", "policy.allowed_trust_levels"]
    assert check(of(transport, options={}, policy=Policy(trust="guarded"))) == {}


@pytest.mark.parametrize("header", ["x-ugent-actor", "X-Ugent-Actor"])
def test_the_actors_header_is_written_once(header: str) -> None:
    """U62, E15."""
    headers = (Entry(header, "somebody"),)
    assert check(http(headers=headers)) == {}
    assert check(http(headers=headers, options={"per_actor": False})) == {}
    errors = check(http(headers=headers, options={"per_actor": True}))
    assert "stands among the headers already" in errors["options.actor_header"]
    other = {"per_actor": True, "actor_header": "X-User"}
    assert check(http(headers=headers, options=other)) == {}
