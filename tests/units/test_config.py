"""Options: what they mean, and that a wrong one stops the start with one sentence (design 6)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from umpteenth.core import config
from umpteenth.core.config import ConfigError, Options, load_options

EXAMPLE = config.PROJECT_ROOT / "config.example.yml"


@pytest.fixture(autouse=True)
def _outside_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "PROJECT_ROOT", tmp_path / "checkout")


def load(tmp_path: Path, text: str | None = None, **variables: str) -> Options:
    if text is not None:
        (tmp_path / "config.yml").write_text(text)
    environ = {f"UMPTEENTH_{name}": value for name, value in variables.items()}
    return load_options({"UMPTEENTH_DATA_DIR": str(tmp_path), **environ})


def test_without_anything_set_the_defaults_stand(tmp_path: Path) -> None:
    options = load(tmp_path)
    assert options.app.bind == "127.0.0.1:8080"
    assert options.app_url == "http://127.0.0.1:8080"
    assert options.database.url is None
    assert options.redis.url is None
    assert options.runs.max_concurrent == 4
    assert options.sandbox.allow_unrestricted_network is True


def test_the_file_is_read_and_the_environment_wins_over_it(tmp_path: Path) -> None:
    text = "app: {bind: '127.0.0.1:1234', log_level: DEBUG}\nruns: {max_concurrent: 7}\n"
    options = load(tmp_path, text, APP__BIND="127.0.0.1:99")
    assert options.app.bind == "127.0.0.1:99"
    assert options.app.log_level == "DEBUG"
    assert options.runs.max_concurrent == 7


def test_a_variable_can_name_a_file_that_holds_the_value(tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("postgresql://u:p@db/ump\n")
    options = load(tmp_path, DATABASE__URL_FILE=str(secret))
    assert options.database.url is not None
    assert options.database.url.get_secret_value() == "postgresql://u:p@db/ump"


def test_lists_in_variables_are_separated_by_commas(tmp_path: Path) -> None:
    options = load(tmp_path, APP__TRUSTED_PROXIES="10.0.0.0/8, ::1", SANDBOX__READONLY_PATHS="/a")
    assert options.app.trusted_proxies == ("10.0.0.0/8", "::1")
    assert options.sandbox.readonly_paths == (Path("/a"),)


def test_an_empty_variable_counts_as_not_set(tmp_path: Path) -> None:
    assert load(tmp_path, DATABASE__URL="", REDIS__URL_FILE="").database.url is None


def test_secret_values_do_not_show_when_options_are_printed(tmp_path: Path) -> None:
    options = load(tmp_path, DATABASE__URL="postgresql://u:hunter22@db/ump")
    assert "hunter22" not in repr(options)


@pytest.mark.parametrize(
    ("bind", "url"),
    [
        ("0.0.0.0:80", "http://localhost:80"),
        ("[::]:81", "http://localhost:81"),
        ("[::1]:82", "http://[::1]:82"),
        ("10.1.2.3:83", "http://10.1.2.3:83"),
    ],
)
def test_the_address_for_people_follows_from_bind(tmp_path: Path, bind: str, url: str) -> None:
    assert load(tmp_path, APP__BIND=bind).app_url == url


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("APP__URL", "ump.example.org", "app.url: must be an http or https address"),
        ("APP__URL", "https://ump.example.org/sub", "app.url: must be only scheme, host and port"),
        ("APP__URL", "https://ump.example.org:99999", "app.url: must have a port"),
        ("APP__BIND", "8080", "app.bind: must be host:port"),
        ("APP__BIND", "127.0.0.1:0", "app.bind: must be host:port"),
        ("APP__TRUSTED_PROXIES", "10.0.0.0/8,proxy", "app.trusted_proxies: 'proxy' is not an IP"),
        ("APP__LOG_LEVEL", "LOUD", "app.log_level: input should be 'DEBUG'"),
        ("APP__DEBUG", "perhaps", "app.debug: input should be a valid boolean"),
        ("DATABASE__URL", "mysql://u@h/d", "database.url: must begin with postgresql://"),
        ("DATABASE__URL", "sqlite:///relative.db", "database.url: must begin with postgresql://"),
        ("REDIS__URL", "http://h", "redis.url: must begin with redis://"),
        ("RUNS__MAX_CONCURRENT", "0", "runs.max_concurrent: input should be greater than"),
        ("RUNS__MAX_CONCURRENT", "many", "runs.max_concurrent: input should be a valid integer"),
        ("SANDBOX__READONLY_PATHS", "tools", "sandbox.readonly_paths: tools is not an absolute"),
        ("STORAGE__BACKEND", "tape", "storage.backend: input should be 'directory'"),
        ("STORAGE__BACKEND", "s3", "storage: the backend s3 needs storage.s3.bucket."),
        ("STORAGE__S3__ENDPOINT", "s3.example.org", "storage.s3.endpoint: must be an http or"),
        ("STORAGE__S3__ACCESS_KEY", "k", "storage.s3: give both access_key and secret_key"),
        ("STORAGE__S3__COLOUR", "red", "storage.s3.colour is no option of Umpteenth"),
        ("APP__COLOUR", "red", "app.colour is no option of Umpteenth"),
        ("APPS__URL", "x", "UMPTEENTH_APPS__URL names no section"),
        ("DATA_DIR__X", "x", "UMPTEENTH_DATA_DIR__X names no section"),
        ("URL", "x", "UMPTEENTH_URL is no option of Umpteenth"),
        ("REDIS__URL_FILE", "/nowhere/at/all", "The file /nowhere/at/all that UMPTEENTH_REDIS__"),
    ],
)
def test_a_bad_variable_is_named_in_one_sentence(
    tmp_path: Path, variable: str, value: str, sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, **{variable: value})
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("app: {bind: 8080}", "app.bind: input should be a valid string"),
        ("app: {colour: red}", "app.colour is no option of Umpteenth"),
        ("colours: {}", "'colours' names no section"),
        ("data_dir: {}", "'data_dir' names no section"),
        ("app: 8080", "section 'app' must be a mapping of options"),
        ("- app", "must be a mapping of sections"),
        ("sandbox: {readonly_paths: /srv}", "sandbox.readonly_paths: must be a list"),
        ("app: {bind: [", "cannot be read"),
        ("database: {url: '\x00'}", "cannot be read"),
    ],
)
def test_a_bad_file_is_named_in_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)) as caught:
        load(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_an_empty_file_and_an_empty_section_are_fine(tmp_path: Path) -> None:
    assert load(tmp_path, "").runs.max_concurrent == 4
    assert load(tmp_path, "app:\n").app.debug is False


def test_a_file_that_is_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path, CONFIG=str(tmp_path / "other.yml"))


def test_a_file_behind_a_broken_link_is_missed_aloud(tmp_path: Path) -> None:
    (tmp_path / "config.yml").symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path)


def test_a_value_and_a_file_for_it_at_once_are_refused(tmp_path: Path) -> None:
    sentence = "Set only one of UMPTEENTH_REDIS__URL and UMPTEENTH_REDIS__URL_FILE."
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        load(tmp_path, REDIS__URL="redis://h", REDIS__URL_FILE=str(tmp_path / "x"))


def test_a_file_with_keys_that_others_can_read_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "config.yml").touch(0o644)
    with pytest.raises(ConfigError, match="can be read by others; run: chmod 600"):
        load(tmp_path, "security: {secret_key: abc}")
    (tmp_path / "config.yml").chmod(0o600)
    assert load(tmp_path).security.secret_key is not None


def test_a_file_with_the_key_of_a_bucket_is_kept_from_others_too(tmp_path: Path) -> None:
    text = "storage: {s3: {bucket: b, access_key: a, secret_key: hunter22}}"
    (tmp_path / "config.yml").touch(0o644)
    with pytest.raises(ConfigError, match="can be read by others; run: chmod 600"):
        load(tmp_path, text)
    (tmp_path / "config.yml").chmod(0o600)
    options = load(tmp_path)
    assert "hunter22" not in repr(options)


def test_a_file_with_the_password_of_a_proxy_is_kept_from_others_too(tmp_path: Path) -> None:
    (tmp_path / "config.yml").touch(0o644)
    with pytest.raises(ConfigError, match="can be read by others; run: chmod 600"):
        load(tmp_path, "network: {sandbox_proxy: 'http://me:hunter22@proxy.example.org:3128'}")
    proxy = load(tmp_path, "network: {sandbox_proxy: 'http://proxy.example.org:3128'}")
    assert proxy.network.sandbox_proxy is not None


def test_a_section_within_a_section_is_read_from_file_and_variables(tmp_path: Path) -> None:
    """design.md, section 3, Files."""
    options = load(
        tmp_path,
        "storage: {backend: s3, s3: {bucket: from-file, region: eu-1}}",
        STORAGE__S3__BUCKET="from-variable",
    )
    assert options.storage.backend == "s3"
    assert (options.storage.s3.bucket, options.storage.s3.region) == ("from-variable", "eu-1")
    assert load(tmp_path, "storage:\n", STORAGE__S3__PREFIX="x").storage.s3.prefix == "x"


def test_the_data_directory_lies_in_the_checkout_else_where_the_platform_keeps_data(
    tmp_path: Path,
) -> None:
    assert config.default_data_dir({"XDG_DATA_HOME": "/x"}) == Path("/x/umpteenth")
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "manage.py").touch()
    assert config.default_data_dir({}) == tmp_path / "checkout" / "data"


def names(options: Mapping[str, Any]) -> set[str]:
    """`section.option` of a file's content or of the fields of a model, with inner sections."""
    found = set()
    for name, value in options.items():
        inner = getattr(getattr(value, "annotation", None), "model_fields", value)
        below = names(inner) if isinstance(inner, Mapping) else {""}
        found |= {f"{name}.{rest}".rstrip(".") for rest in below}
    return found


def test_the_example_shows_each_option_and_nothing_else(tmp_path: Path) -> None:
    uncommented = re.sub(r"(?m)^  # ( *[a-z0-9_]+:( |$))", r"  \1", EXAMPLE.read_text())
    assert names(yaml.safe_load(uncommented)) == names(Options.model_fields) - {"data_dir"}
    (tmp_path / "config.yml").touch(0o600)
    load(tmp_path, uncommented)


def test_the_example_as_it_stands_changes_nothing(tmp_path: Path) -> None:
    assert load(tmp_path, EXAMPLE.read_text()) == load(tmp_path, "")


def test_an_engine_is_a_socket_of_this_machine(tmp_path: Path) -> None:
    """Its containers see the worker's files and sockets."""
    options = load(
        tmp_path,
        SANDBOX__ADAPTER="engine",
        SANDBOX__ENGINE__URL="unix:///run/podman/podman.sock",
    )
    assert options.sandbox.adapter == "engine"
    assert options.sandbox.engine.image == "umpteenth-sandbox"
    for url in ("tcp://10.0.0.1:2375", "unix://relative", "ssh://host"):
        with pytest.raises(ConfigError, match=r"sandbox\.engine\.url: must be a socket of this"):
            load(tmp_path, SANDBOX__ENGINE__URL=url)


def test_blocked_targets_are_addresses_and_networks(tmp_path: Path) -> None:
    assert load(tmp_path).network.blocked_targets == ()
    options = load(tmp_path, "network: {blocked_targets: [10.0.0.0/8, 'fd00::/8', 203.0.113.7]}\n")
    assert options.network.blocked_targets == ("10.0.0.0/8", "fd00::/8", "203.0.113.7")
    options = load(tmp_path, NETWORK__BLOCKED_TARGETS="10.0.0.1/8, ::1")
    assert options.network.blocked_targets == ("10.0.0.1/8", "::1")


@pytest.mark.parametrize("target", ["example.org", "10.0.0.0/33", "10.0.0.*", "*"])
def test_what_is_no_network_cannot_be_blocked(tmp_path: Path, target: str) -> None:
    """A guard that nobody notices to be off would be worse than none."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, NETWORK__BLOCKED_TARGETS=f"10.0.0.0/8,{target}")
    assert str(caught.value) == (
        f"network.blocked_targets: {target!r} is not an IP address or network."
    )
