"""The filter of system calls, as the kernel would read it (P8, P20)."""

from __future__ import annotations

import errno
import os
import struct
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pyseccomp
import pytest

from jobs.sandbox import seccomp

ALLOW = pyseccomp.ALLOW
ARCH = pyseccomp.system_arch()
HIGH = 1 << 32


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has not written its filter yet."""
    monkeypatch.setattr(seccomp, "_filter", None)
    yield
    if seccomp._filter is not None:
        os.close(seccomp._filter)


def read() -> bytes:
    descriptor = seccomp.open_filter()
    with open(descriptor, "rb") as file:
        return file.read()


def verdict(number: int, *arguments: int, arch: int = ARCH) -> int:
    """What the filter answers: an interpreter of the few instructions that it uses."""
    given = struct.pack("<iIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    program = list(struct.iter_unpack("<HBBI", read()))
    at, a, memory = 0, 0, [0] * 16
    while True:
        code, true, false, k = program[at]
        at += 1
        if code == 0x20:  # load a word
            (a,) = struct.unpack_from("<I", given, k)
        elif code == 0x02:
            memory[k] = a
        elif code == 0x60:
            a = memory[k]
        elif code == 0x54:
            a &= k
        elif code == 0x05:
            at += k
        elif code == 0x06:
            return int(k)
        else:
            holds = {0x15: a == k, 0x25: a > k, 0x35: a >= k, 0x45: bool(a & k)}[code]
            at += true if holds else false


def number_of(name: str) -> int:
    number: int = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
    return seccomp.NUMBERS.get(name, number)


def refused(code: int) -> int:
    answer: int = pyseccomp.ERRNO(code)
    return answer


@pytest.mark.parametrize("name", seccomp.REFUSED)
def test_a_call_that_leads_out_is_refused(name: str) -> None:
    if number_of(name) >= 0:  # this architecture has it
        assert verdict(number_of(name)) == refused(errno.EPERM)


@pytest.mark.parametrize("name", seccomp.ABSENT)
def test_a_call_that_has_an_older_way_does_not_exist(name: str) -> None:
    assert verdict(number_of(name)) == refused(errno.ENOSYS)


@pytest.mark.parametrize("flag", seccomp.NEW_NAMESPACES.values(), ids=seccomp.NEW_NAMESPACES.keys())
def test_a_process_in_a_new_namespace_is_refused_whatever_else_it_shares(flag: int) -> None:
    """One rule for each bit."""
    for others in (0, 17, 0x00010F00, 0x7E02_0000 & ~flag):
        assert verdict(number_of("clone"), flag | others) == refused(errno.EPERM)


def test_processes_and_threads_are_allowed() -> None:
    fork = 0x0120_0011  # CLONE_CHILD_SETTID, CLONE_CHILD_CLEARTID, SIGCHLD
    thread = 0x003D_0F00
    assert verdict(number_of("clone"), fork) == verdict(number_of("clone"), thread) == ALLOW


@pytest.mark.parametrize("request_", seccomp.TYPING.values(), ids=seccomp.TYPING.keys())
def test_typing_on_a_terminal_is_refused(request_: int) -> None:
    ioctl = number_of("ioctl")
    assert verdict(ioctl, 0, request_) == refused(errno.EPERM)
    assert verdict(ioctl, 0, HIGH | request_) == refused(errno.EPERM)
    assert verdict(ioctl, request_, 0x5413) == ALLOW  # TIOCGWINSZ


@pytest.mark.parametrize("family", range(64))
def test_only_the_usual_families_of_sockets_are_allowed(family: int) -> None:
    allowed = family in (1, 2, 10, 16)  # Unix, IPv4, IPv6, netlink
    answer = verdict(number_of("socket"), family, 1)
    assert answer == (ALLOW if allowed else refused(errno.EAFNOSUPPORT))
    assert verdict(number_of("socket"), HIGH | family, 1) == refused(errno.EAFNOSUPPORT)


@pytest.mark.parametrize("name", ["read", "openat", "execve", "futex", "seccomp", "prctl", "kill"])
def test_what_programs_live_on_is_allowed(name: str) -> None:
    assert verdict(number_of(name)) == ALLOW


def test_calls_of_another_architecture_end_the_process() -> None:
    for arch in (pyseccomp.Arch.X86, pyseccomp.Arch.ARM, pyseccomp.Arch.S390X):
        assert verdict(20, arch=arch) == pyseccomp.KILL_PROCESS


def test_each_start_reads_the_filter_from_its_beginning() -> None:
    """bwrap reads to the end; a second start with the same descriptor would have none."""
    first = seccomp.open_filter()
    try:
        whole = os.read(first, 100_000)
        assert os.read(first, 1) == b""
        assert read() == whole
        assert len(whole) % 8 == 0
    finally:
        os.close(first)


def test_the_filter_is_written_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    write = seccomp._write

    def count() -> int:
        written.append(1)
        return write()

    monkeypatch.setattr(seccomp, "_write", count)
    threads = [threading.Thread(target=lambda: os.close(seccomp.open_filter())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seccomp.problem() == ""
    assert written == [1]


def test_nobody_can_change_the_filter() -> None:
    descriptor = seccomp.open_filter()
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(descriptor, b"x")
    finally:
        os.close(descriptor)
    held = seccomp._written()
    with pytest.raises(PermissionError):
        os.pwrite(held, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(held, 0)
    assert not os.get_inheritable(held)


def problem_of(monkeypatch: pytest.MonkeyPatch, module: Any) -> str:
    monkeypatch.setitem(sys.modules, "pyseccomp", module)
    with pytest.raises(seccomp.FilterUnavailable):
        seccomp.open_filter()
    return seccomp.problem()


def test_missing_bindings_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problem_of(monkeypatch, None) == seccomp.NO_BINDINGS


@pytest.mark.parametrize(
    "fault", [RuntimeError("Unable to find libseccomp"), OSError("no"), AttributeError("old")]
)
def test_a_missing_library_is_said_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    class Finder:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "pyseccomp":
                raise fault

    monkeypatch.delitem(sys.modules, "pyseccomp")
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    assert "apt install libseccomp2" in seccomp.problem()


def test_another_architecture_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where clone has its flags elsewhere, or numbers mean something else."""
    monkeypatch.setattr(pyseccomp, "system_arch", lambda: pyseccomp.Arch.S390X)
    monkeypatch.setattr("platform.machine", lambda: "s390x")
    assert "none for this machine (s390x)" in seccomp.problem()


def test_a_library_that_does_not_know_a_name_is_told_the_number_or_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = pyseccomp.resolve_syscall

    def resolve(arch: int, name: str) -> Any:
        return -1 if name in unknown else known(arch, name)

    unknown = {"clone3"}
    monkeypatch.setattr(pyseccomp, "resolve_syscall", resolve)
    assert verdict(435) == refused(errno.ENOSYS)
    unknown.add("keyctl")
    monkeypatch.setattr(seccomp, "_filter", None)
    assert "too old to filter keyctl" in seccomp.problem()
