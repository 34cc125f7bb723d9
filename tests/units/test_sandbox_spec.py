"""What a sandbox is told, and how it is said when there can be none (P6, P7, P20, P23)."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from jobs.network import NetworkRules
from jobs.sandbox import base, bubblewrap, disk, inside, mounts, probe, seccomp, spawner
from jobs.sandbox.base import Bind, Limits, SandboxError, SandboxSpec, SandboxUnavailable
from jobs.sandbox.bubblewrap import Bubblewrap
from jobs.sandbox.cgroups import Cgroups, Group
from jobs.sandbox.egress.base import Egress
from jobs.sandbox.egress.rules import EgressRules
from jobs.sandbox.files import NODE_PRELOAD_SOURCE, remove_tree
from jobs.sandbox.launcher_client import LauncherClient
from jobs.sandbox.places import Places
from servers.mcp.types import ServerUnavailable
from tests.fakes.sandbox_specs import BrokenLauncher, build, pairs, spec, variables
from umpteenth.core.config import load_options
from umpteenth.core.ids import new_id


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    return path


def test_no_network_is_a_namespace_without_one(data_dir: Path) -> None:
    places = Places(data_dir)
    assert "--unshare-net" in build(spec(), places)
    assert "--unshare-net" not in build(spec(network=True), places)


def test_package_managers_are_told_that_there_is_no_network(data_dir: Path) -> None:
    """P23: to fail in half a second, not in 70."""
    offline = variables(build(spec(), Places(data_dir)))
    assert (offline["npm_config_offline"], offline["UV_OFFLINE"]) == ("true", "1")
    online = variables(build(spec(network=True), Places(data_dir)))
    assert "npm_config_offline" not in online


def guarded(**changes: object) -> SandboxSpec:
    return spec(egress=Egress(EgressRules(NetworkRules("internet")), lambda event: None), **changes)


def test_a_guarded_network_is_a_namespace_with_a_proxy_in_it(data_dir: Path) -> None:
    """Issue 5, section 3; package managers may work, and find the proxy by these variables."""
    options = build(guarded(), Places(data_dir))
    assert "--unshare-net" in options
    found = variables(options)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        assert found[name] == found[name.lower()] == "http://127.0.0.1:3128"
    assert found["NO_PROXY"] == found["no_proxy"] == "127.0.0.1,localhost,::1"
    assert found["NODE_USE_ENV_PROXY"] == "1"
    assert "npm_config_offline" not in found
    shown = {inside: host for host, inside in pairs(options, "--ro-bind")}
    assert Path(shown["/ump/proxy.cjs"]).read_text() == NODE_PRELOAD_SOURCE.read_text()


def test_no_other_network_has_a_proxy(data_dir: Path) -> None:
    for network in (True, False):
        options = build(spec(network=network), Places(data_dir))
        assert not {"HTTP_PROXY", "NODE_OPTIONS", "NO_PROXY"} & variables(options).keys()
        assert "/ump/proxy.cjs" not in options


def test_own_proxies_and_options_of_node_are_kept(data_dir: Path) -> None:
    env = {"HTTP_PROXY": "http://127.0.0.1:9", "NODE_OPTIONS": "--no-warnings"}
    found = variables(build(guarded(env=env), Places(data_dir)))
    assert found["HTTP_PROXY"] == "http://127.0.0.1:9"
    assert found["NODE_OPTIONS"] == "--require=/ump/proxy.cjs --no-warnings"


def test_only_a_guarded_command_waits_for_its_listener() -> None:
    waits = bubblewrap.command_line(["true"], guarded(), privileged=False)
    at = waits.index("--")
    assert waits[1:at] == [
        *("--args", "3", "--seccomp", "4"),
        *("--info-fd", "5", "--block-fd", "6"),
    ]
    assert "--block-fd" not in bubblewrap.command_line(["true"], spec(), privileged=False)


def test_a_network_is_guarded_or_not() -> None:
    with pytest.raises(SandboxError, match="either"):
        base.check(["true"], guarded(network=True))


def test_the_environment_is_made_from_nothing(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C14: what the worker knows never reaches a sandbox."""
    monkeypatch.setenv("UMPTEENTH_DATABASE__URL", "postgresql://secret")
    options = build(spec(env={"TOKEN": "t", "PATH": "/mine"}), Places(data_dir))
    assert "--clearenv" in options
    found = variables(options)
    assert found["TOKEN"] == "t"
    assert found["PATH"] == "/mine"
    assert not any("UMPTEENTH" in name for name in found)


def test_root_makes_no_user_namespace_and_keeps_what_dropping_needs(data_dir: Path) -> None:
    options = build(spec(), Places(data_dir), privileged=True)
    assert "--unshare-user" not in options
    assert [options[at + 1] for at, item in enumerate(options) if item == "--cap-add"] == [
        "CAP_SETUID",
        "CAP_SETGID",
        "CAP_SETPCAP",
    ]
    command = bubblewrap.command_line(["true"], spec(party="mcp"), privileged=True)
    assert command[command.index("--reuid") + 1] == "1001"
    assert "--bounding-set=-all" in command


def test_a_plain_user_gets_a_user_namespace_without_capabilities(data_dir: Path) -> None:
    options = build(spec(), Places(data_dir), privileged=False)
    assert options[options.index("--uid") + 1] == "1000"
    assert "--cap-add" not in options
    command = bubblewrap.command_line(["true"], spec(), privileged=False)
    assert not any(part.endswith("setpriv") for part in command)


@pytest.mark.parametrize("name", ["setpriv", "setsid"])
def test_a_search_path_of_the_partys_own_finds_no_other_tool_of_the_sandbox(name: str) -> None:
    """What drops the privileges still has them."""
    command = bubblewrap.command_line(["true"], spec(env={"PATH": "/mine"}), privileged=True)
    found = [part for part in command if part.endswith(name)]
    assert len(found) == 1
    assert found[0].startswith(("/usr/bin/", "/bin/", "/usr/sbin/", "/sbin/"))


def test_no_variable_is_in_the_command_line() -> None:
    """Arguments can be read in /proc by every process of the machine."""
    secret = spec(env={"TOKEN": "hush-hush"})
    assert "hush-hush" not in " ".join(bubblewrap.command_line(["x"], secret, privileged=True))
    assert "hush-hush" not in repr(secret)


@pytest.mark.parametrize("knows", [True, False])
def test_a_plain_users_namespaces_are_closed_a_second_time_where_bwrap_can(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, knows: bool
) -> None:
    """P8: and never as root, where it would need a user namespace with a single id."""
    monkeypatch.setattr(mounts, "_can_close_namespaces", lambda: knows)
    places = Places(data_dir)
    assert ("--disable-userns" in build(spec(), places, privileged=False)) is knows
    assert "--disable-userns" not in build(spec(), places, privileged=True)


@pytest.mark.parametrize("privileged", [True, False])
def test_whatever_is_in_memory_has_a_size(
    data_dir: Path, privileged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "COVERED", ())
    options = build(spec(party="mcp"), Places(data_dir), privileged=privileged)
    places = {
        options[at + 1]: options[at - 2 : at]
        for at, item in enumerate(options)
        if item == "--tmpfs"
    }
    assert set(places) == {"/tmp", "/var/tmp", "/dev/shm", "/workspace", "/home/mcp"}
    assert all(given == ["--size", str(inside.memory_size())] for given in places.values())
    assert 0 < inside.memory_size() <= inside.MEMORY_SIZE
    read_only = {options[at + 1] for at, item in enumerate(options) if item == "--remount-ro"}
    assert read_only == {"/", "/dev"}


def test_on_a_small_machine_a_place_in_memory_is_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1024**3 // 4096}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    inside.memory_size.cache_clear()
    try:
        assert inside.memory_size() == 128 * 1024**2
    finally:
        inside.memory_size.cache_clear()


def test_parents_of_a_place_are_made_for_everybody_first(data_dir: Path, tmp_path: Path) -> None:
    """bwrap alone would make them 0700 and root's."""
    shown = tmp_path / "a" / "b"
    shown.mkdir(parents=True)
    options = build(spec(), Places(data_dir, readonly=(shown,)))
    at = options.index(str(shown.parent))
    assert options[at - 3 : at] == ["--perms", "0755", "--dir"]
    assert at < options.index(str(shown))


def test_the_data_directory_is_covered_where_a_shown_path_holds_it(
    data_dir: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.yml"
    config.touch()
    places = Places(data_dir, readonly=(tmp_path,), hidden=(data_dir, config))
    options = build(spec(), places)
    shown = options.index(str(tmp_path))
    covered = len(options) - 1 - options[::-1].index(str(data_dir)) - 2
    assert options[covered - 1 : covered + 3] == [
        *("--tmpfs", str(data_dir)),
        *("--remount-ro", str(data_dir)),
    ]
    assert covered > shown
    assert ("/dev/null", str(config)) in pairs(options, "--ro-bind")


def test_a_workspace_below_the_data_directory_stays_visible(data_dir: Path) -> None:
    workspace = data_dir / "runs" / "1" / "workspace"
    workspace.mkdir(parents=True)
    options = build(spec(workspace=workspace), Places(data_dir, hidden=(data_dir,)))
    assert pairs(options, "--bind") == [(str(workspace), "/workspace")]
    assert str(data_dir) not in options


def test_only_the_run_itself_gets_ump(data_dir: Path) -> None:
    def inside(wanted: SandboxSpec) -> list[str]:
        return [place for _, place in pairs(build(wanted, Places(data_dir)), "--ro-bind")]

    assert "/ump/bin/ump" in inside(spec())
    assert "/ump/bin/ump" not in inside(spec(party="mcp"))


def test_uv_and_uvx_are_on_the_path(data_dir: Path, tmp_path: Path) -> None:
    """P20."""
    for name in ("uv", "uvx"):
        (tmp_path / name).touch()
    options = build(spec(party="mcp"), Places(data_dir, uv=tmp_path / "uv"))
    assert (str(tmp_path / "uvx"), "/ump/bin/uvx") in pairs(options, "--ro-bind")
    assert variables(options)["PATH"].startswith("/ump/bin:")


def test_binds_are_writable_only_where_said(data_dir: Path, tmp_path: Path) -> None:
    binds = (Bind(tmp_path, "/ump/outputs", writable=True), Bind(tmp_path, "/ump/input.json"))
    options = build(spec(binds=binds), Places(data_dir))
    assert (str(tmp_path), "/ump/outputs") in pairs(options, "--bind")
    assert (str(tmp_path), "/ump/input.json") in pairs(options, "--ro-bind")


def test_read_only_paths_are_the_operators(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/usr/share")
    options = load_options(
        {
            "UMPTEENTH_DATA_DIR": str(tmp_path),
            "UMPTEENTH_SANDBOX__READONLY_PATHS": f"{link},/nowhere",
        }
    )
    assert Places.from_options(options).readonly == (link, Path("/usr/share"))


def test_files_of_ours_that_options_name_are_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMPTEENTH_DATABASE__URL_FILE", "/etc/ump/database-url")
    hidden = Places.from_options(load_options({"UMPTEENTH_DATA_DIR": str(tmp_path)})).hidden
    assert tmp_path in hidden
    assert Path("/etc/ump/database-url") in hidden


@pytest.mark.parametrize(
    ("argv", "env", "fault"),
    [
        ([], {}, "empty"),
        ([""], {}, "empty"),
        (["a\0b"], {}, "NUL"),
        (["x" * 200_000], {}, "longer than 128 KiB"),
        (["x"], {"A": "b\0c"}, "variable A holds a NUL"),
        (["x"], {"A=B": "c"}, "cannot be the name"),
        (["x"], {"": "c"}, "cannot be the name"),
        (["x"], {"A": "x" * 131_072}, "variable A is longer"),
    ],
)
def test_what_cannot_be_started_is_refused_in_words(
    argv: list[str], env: dict[str, str], fault: str
) -> None:
    with pytest.raises(SandboxError, match=fault):
        base.check(argv, spec(env=env))


def test_options_survive_the_way_through_the_descriptor() -> None:
    descriptor = bubblewrap.pack(["--setenv", "A", "ünï\n\udcff"])
    try:
        assert os.read(descriptor, 100) == b"--setenv\0A\0\xc3\xbcn\xc3\xaf\n\xff\0"
    finally:
        os.close(descriptor)


def test_a_refusal_in_a_container_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "in_container", lambda: True)
    said = probe.explain("bwrap: Can't mount proc on /newroot/proc: Operation not permitted")
    assert "security_opt: [seccomp=unconfined, systempaths=unconfined]" in said
    assert "mount proc" in said


def test_a_refusal_to_a_plain_user_names_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "in_container", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(probe, "_remedy", lambda: "sysctl kernel.unprivileged_userns_clone=1")
    said = probe.explain("making namespaces: Operation not permitted")
    assert "sysctl kernel.unprivileged_userns_clone=1" in said


def test_another_refusal_is_given_in_the_programs_own_words() -> None:
    assert (
        probe.explain("a\nbwrap: it is odd\n") == "Sandboxes cannot start here: bwrap: it is odd."
    )
    assert "no reason was given" in probe.explain("")


@pytest.fixture
def broken(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Bubblewrap:
    monkeypatch.setattr(probe, "in_container", lambda: True)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    return Bubblewrap(Places(data_dir), BrokenLauncher())


async def test_without_a_sandbox_nothing_starts_and_the_remedy_is_said(broken: Bubblewrap) -> None:
    with pytest.raises(SandboxUnavailable, match="systempaths=unconfined"):
        await broken.start(["true"], spec())


def test_a_problem_is_looked_at_again_after_a_while(
    broken: Bubblewrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = broken._launcher
    assert isinstance(launcher, BrokenLauncher)
    assert broken.problem() == broken.problem() != ""
    assert launcher.asked == 1
    later = time.monotonic() + base.PROBLEM_KEPT + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    broken.problem()
    assert launcher.asked == 2


@pytest.mark.parametrize(
    ("missing", "said"), [("bwrap", "apt install bubblewrap"), ("setpriv", "util-linux")]
)
def test_a_missing_program_is_named(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, missing: str, said: str
) -> None:
    monkeypatch.setattr(
        shutil, "which", lambda name: None if name == missing else f"/usr/bin/{name}"
    )
    assert said in Bubblewrap(Places(data_dir), BrokenLauncher()).problem()


@pytest.mark.parametrize(
    "du", [FileNotFoundError("du"), PermissionError("du"), "du: BusyBox\n", ""]
)
def test_a_machine_whose_du_does_not_count_starts_nothing(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, du: OSError | str
) -> None:
    """Its sandboxes would be ended one after the other, once they were looked at in vain."""

    def run(command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        if isinstance(du, OSError):
            raise du
        return subprocess.CompletedProcess(command, 1, du.encode())

    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(disk, "_run", run)
    assert "coreutils" in Bubblewrap(Places(data_dir), BrokenLauncher()).problem()


def test_groups_that_cannot_be_made_are_a_problem_and_no_error(data_dir: Path) -> None:
    class Privileged(LauncherClient):
        def ensure(self) -> bool:
            return True

    class Full(Cgroups):
        def make(self, limits: Limits) -> Group:
            raise OSError(28, "No space left on device")

    adapter = Bubblewrap(Places(data_dir), Privileged(), Full([]))
    assert "limits of a sandbox could not be set: [Errno 28] No space" in adapter.problem()


def test_without_libseccomp_nothing_starts(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(seccomp, "problem", lambda: seccomp.NO_LIBRARY)
    assert "apt install libseccomp2" in Bubblewrap(Places(data_dir), BrokenLauncher()).problem()


def test_without_a_filter_no_descriptor_of_a_start_is_made(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the filter worked when the sandbox was last looked at."""

    def unavailable() -> int:
        raise seccomp.FilterUnavailable(seccomp.NO_LIBRARY)

    monkeypatch.setattr(seccomp, "open_filter", unavailable)
    with pytest.raises(SandboxUnavailable, match="libseccomp2"):
        Bubblewrap(Places(data_dir), BrokenLauncher())._descriptors(spec(), True)


@pytest.mark.parametrize("privileged", [True, False])
def test_bwrap_is_told_to_read_a_filter(privileged: bool) -> None:
    command = bubblewrap.command_line(["true"], spec(), privileged=privileged)
    assert command[1 : command.index("--")] == ["--args", "3", "--seccomp", "4"]


async def test_a_server_without_a_sandbox_is_unavailable_with_the_remedy(
    broken: Bubblewrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "adapter", lambda: broken)
    with pytest.raises(ServerUnavailable, match="systempaths=unconfined") as caught:
        await spawner.make_spawner(new_id())(["true"], {})
    # Members, who see it too, may not open that page.
    assert caught.value.hint == "Administrators find more under Settings → Sandboxes."


def test_a_tree_is_removed_however_deep_and_links_are_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.touch()
    top = tmp_path / "tree"
    top.mkdir()
    (top / "link").symlink_to(kept)
    (top / "out").symlink_to(tmp_path)
    start = os.open(".", os.O_RDONLY)
    try:
        os.chdir(top)
        for _ in range(1500):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.fchdir(start)
        os.close(start)
    remove_tree(top)
    remove_tree(top)
    assert not top.exists()
    assert kept.exists()
