"""The environments on a machine's disk: whole or not there, kept while in use (issue 5)."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from pathlib import Path

import pytest

from jobs.environments import store as module
from jobs.environments.log import HEAD, TAIL, BuildLog
from jobs.environments.store import Store
from jobs.sandbox import bases


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def made(store: Store, digest: str, text: str = "x") -> Path:
    with store.making() as new:
        (new / "root" / "file").write_text(text)
        (new / "scratch" / "cache").write_text("much")
        return store.keep(new, digest)


def test_a_machine_keeps_its_name_and_all_its_workers_say_the_same(store: Store) -> None:
    said: list[str] = []
    threads = [threading.Thread(target=lambda: said.append(store.machine())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(said)) == 1
    assert len(said[0]) == 32
    assert sorted(path.name for path in store.place.iterdir()) == ["machine"]


def test_a_copy_of_the_data_directory_is_another_machine(store: Store, tmp_path: Path) -> None:
    before = store.machine()
    shutil.copytree(tmp_path, tmp_path / "copy")
    assert Store(tmp_path / "copy").machine() != before
    assert Store(tmp_path).machine() == before


def test_what_was_made_is_found_without_what_was_only_needed_meanwhile(store: Store) -> None:
    assert store.find("a") is None
    path = made(store, "a")
    assert store.find("a") == path
    assert sorted(p.name for p in path.parent.iterdir()) == ["made.json", "root"]
    assert path.stat().st_mode & 0o777 == 0o755


def test_hosts_of_two_systems_that_share_the_directory_keep_one_each(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, path = store.machine(), made(store, "a")
    with monkeypatch.context() as other:
        other.setattr(module, "system_words", lambda: "plan9")
        assert store.machine() != machine
        assert store.find("a") is None
        theirs = made(store, "a")
        assert store.find("a") == theirs
        # Whoever tidies removes the others', too, but speaks of its own only.
        os.utime(path.parent, (1000, 1000))
        assert store.remove_unused({"a"}, unused_since=2000) == []
        assert store.find("a") == theirs
    assert store.find("a") is None
    assert store.remove_unused(set(), unused_since=0) == []
    assert [path.name for path in store.place.iterdir()] == ["machine"]


def test_what_another_worker_removes_meanwhile_does_not_stop_one_that_tidies(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(store, "b")
    listed = [store.place / ".new-0123", store.place / "gone", *store.place.iterdir()]
    monkeypatch.setattr(Store, "_directories", lambda self: listed)
    assert store.remove_unused(set(), unused_since=0) == ["b"]


def test_a_damaged_one_is_not_used(store: Store) -> None:
    path = made(store, "a")
    for content in ("", "[1]", "{"):
        (path.parent / "made.json").write_text(content)
        assert store.find("a") is None


def test_what_was_built_anew_takes_the_place_and_the_old_one_stays_for_its_user(
    store: Store,
) -> None:
    made(store, "a", "old")
    with store.hold("a") as held:
        assert held is not None
        inside = os.open(held / "file", os.O_RDONLY)  # as a mount holds it
        made(store, "a", "new")
        assert store.remove_unused({"a"}, unused_since=0) == []
        assert os.read(inside, 10) == b"old"
        os.close(inside)
        assert len(list(store.place.glob(".old-*"))) == 1
    again = store.find("a")
    assert again is not None
    assert (again / "file").read_text() == "new"
    store.remove_unused({"a"}, unused_since=0)
    assert not list(store.place.glob(".old-*"))


def test_what_nobody_names_goes_unless_it_is_in_use(store: Store) -> None:
    made(store, "a")
    made(store, "b")
    with store.hold("a"), store.hold("a"):
        assert store.remove_unused({"b"}, unused_since=0) == []
        assert store.find("a") is not None
    assert store.remove_unused({"b"}, unused_since=0) == ["a"]
    assert store.find("a") is None
    assert store.find("b") is not None


def test_what_nobody_has_used_for_long_goes_and_holding_counts_as_use(store: Store) -> None:
    for digest in ("a", "b"):
        os.utime(made(store, digest).parent, (1000, 1000))
    with store.hold("b"):
        pass
    assert store.remove_unused({"a", "b"}, unused_since=2000) == ["a"]


def test_what_is_being_made_stays_and_what_a_killed_builder_left_goes(store: Store) -> None:
    with store.making() as new:
        os.utime(new, (1000, 1000))
        store.remove_unused(set(), unused_since=0)
        assert new.exists()
    assert not new.exists()  # it was not kept
    left = store.place / ".new-0123"
    left.mkdir()
    store.remove_unused(set(), unused_since=0)
    assert left.exists()  # this moment's
    os.utime(left, (1000, time.time() - module.LOCKED_AFTER - 1))
    store.remove_unused(set(), unused_since=0)
    assert not left.exists()


def test_holding_what_is_not_there_holds_nothing(store: Store) -> None:
    with store.hold("a") as held:
        assert held is None
    assert store.drop("a") is False


def test_variables_name_only_what_is_there(tmp_path: Path) -> None:
    path = "/ump/bin:/usr/bin"
    assert bases.variables(tmp_path, path) == {"PATH": path}
    for name in ("python/bin", "node/node_modules/.bin", "debian/usr/bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "debian/usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    (tmp_path / "debian/usr/lib/evil:-linux-gnu").mkdir()
    found = bases.variables(tmp_path, path)
    assert found["PATH"] == (
        "/ump/bin:/ump/env/python/bin:/ump/env/node/node_modules/.bin:/ump/env/debian/usr/bin:"
        "/usr/bin"
    )
    assert found["VIRTUAL_ENV"] == "/ump/env/python"
    assert found["NODE_PATH"] == "/ump/env/node/node_modules"
    assert found["LD_LIBRARY_PATH"] == (
        "/ump/env/debian/usr/lib/x86_64-linux-gnu:/ump/env/debian/usr/lib"
    )


def test_a_log_keeps_its_beginning_and_its_end() -> None:
    log = BuildLog()
    for number in range(20_000):
        log.write(f"line {number}\n".encode())
    text = log.text()
    assert text.startswith("line 0\nline 1\n")
    assert text.endswith("line 19999")
    assert "lines left out" in text
    assert len(text) < HEAD + TAIL + 100


def test_a_log_is_text_without_colours_and_passwords() -> None:
    log = BuildLog()
    log.write(b"\x1b[31mred\x1b[0m \xc3")
    log.write(b"\xa4 https://me:secret@example.org/simple\r\n50%\r100%\n\x07\xff\n")
    assert log.text().splitlines()[:3] == ["red ä https://***@example.org/simple", "50%", "100%"]
    log.write(b"x" * 10_000 + b"\nnext\n")
    assert max(map(len, log.text().splitlines())) == 2000
    assert log.text().endswith("x…\nnext")


@pytest.mark.parametrize(
    "words", ["w" * 60, "w" * 1970, "w" * 3970, f"https://{'a' * 30}:b@c/ " * 90]
)
def test_a_password_is_hidden_wherever_a_long_line_is_cut(words: str) -> None:
    for shift in range(40):
        log = BuildLog()
        line = f"{words}{'.' * shift} https://me:secret@example.org/simple {'z' * 3000}"
        for at in range(0, len(line), 17):
            log.write(line[at : at + 17].encode())
        log.write(b"\n")
        text = log.text()
        assert text.startswith(("www", "https://***@c/"))
        assert not re.search(r"me:|[^*]@|:b", text)


def test_the_last_words_of_a_log_say_what_went_wrong() -> None:
    log = BuildLog()
    log.begin("npm packages")
    log.write(b"npm error 404 Not Found: nothing here\nA complete log of this run is in x")
    assert log.last_words() == "404 Not Found: nothing here"
    assert BuildLog().last_words() == ""
