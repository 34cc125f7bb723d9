"""Control groups (feasibility, section 15), on a directory that looks like version 2.

Version 1 is tried for real in tests/real/test_limits.py, where the machine has it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
from pathlib import Path

import pytest

from jobs.sandbox import cgroups
from jobs.sandbox.base import Limits
from jobs.sandbox.cgroups import LEAF, PREFIX, Cgroups
from jobs.sandbox.hierarchies import Hierarchy, find_hierarchies
from tests.fakes.cgroupfs import CgroupFs

LIMITS = Limits(cpus=0.5, memory=128 * 1024**2, processes=60)
ALL = "memory pids cpu"


@pytest.fixture
def filesystem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CgroupFs:
    return CgroupFs(tmp_path / "cgroup", monkeypatch, f"cpuset {ALL} io")


def of(filesystem: CgroupFs, own: Path | None = None) -> Cgroups:
    return Cgroups([Hierarchy(filesystem.top, own or filesystem.top, ("",), unified=True)])


def group_of(filesystem: CgroupFs, *names: str) -> Path:
    """A group that is there already, with what its parents hand on."""
    path = filesystem.top
    for name in names:
        (path / "cgroup.subtree_control").write_text(ALL)
        path /= name
        os.mkdir(path)
    return path


def ours(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.startswith(PREFIX)]


class TestVersion2:
    def test_a_sandbox_gets_its_limits(self, filesystem: CgroupFs) -> None:
        groups = of(filesystem)
        assert groups.controllers == {"memory", "pids", "cpu"}
        group = groups.make(LIMITS)
        (entrance,) = group.entrances
        place = Path(entrance).parent
        written = {
            name: (place / name).read_text()
            for name in ("memory.max", "memory.swap.max", "pids.max", "cpu.max")
        }
        assert written == {
            "memory.max": "134217728",
            "memory.swap.max": "0",
            "pids.max": "60",
            "cpu.max": "50000 100000",
        }
        assert place.parent in ours(filesystem.top)

    def test_two_sandboxes_have_one_each(self, filesystem: CgroupFs) -> None:
        groups = of(filesystem)
        assert groups.make(LIMITS).entrances != groups.make(LIMITS).entrances

    def test_what_the_kernel_did_for_them_is_read(self, filesystem: CgroupFs) -> None:
        group = of(filesystem).make(LIMITS)
        assert group.usage() == cgroups.Usage(False, False)
        place = Path(group.entrances[0]).parent
        (place / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 1\noom_kill 2\n")
        assert group.usage() == cgroups.Usage(out_of_memory=True, processes_refused=False)
        (place / "pids.events").write_text("max 61\n")
        assert group.usage() == cgroups.Usage(out_of_memory=True, processes_refused=True)

    def test_a_group_that_is_gone_tells_nothing(self, filesystem: CgroupFs) -> None:
        group = of(filesystem).make(LIMITS)
        group.remove()
        assert group.usage() == cgroups.Usage(False, False)
        assert not Path(group.entrances[0]).parent.exists()

    def test_in_a_container_what_runs_there_moves_to_a_leaf(self, filesystem: CgroupFs) -> None:
        """The top that a container sees is no real top: it may not hold processes."""
        (filesystem.top / "cgroup.procs").write_text("1\n12\n77")
        assert of(filesystem).controllers == {"memory", "pids", "cpu"}
        assert not filesystem.has_processes(filesystem.top)
        assert (filesystem.top / LEAF / "cgroup.procs").read_text().split() == ["1", "12", "77"]

    def test_a_unit_that_is_handed_to_us_is_used(
        self, filesystem: CgroupFs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unit = group_of(filesystem, "system.slice", "umpteenth.service")
        (unit / "cgroup.procs").write_text("12\n13")
        monkeypatch.setattr(cgroups, "_is_delegated", lambda group: group == unit)
        assert of(filesystem, unit).controllers == {"memory", "pids", "cpu"}
        assert len(ours(unit)) == 1
        assert (unit / LEAF / "cgroup.procs").read_text().split() == ["12", "13"]

    def test_a_worker_born_in_the_leaf_finds_the_unit(
        self, filesystem: CgroupFs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As one that the supervisor starts anew is."""
        leaf = group_of(filesystem, "umpteenth.service", LEAF)
        monkeypatch.setattr(cgroups, "_is_delegated", lambda group: group == leaf.parent)
        assert of(filesystem, leaf).controllers == {"memory", "pids", "cpu"}
        assert len(ours(leaf.parent)) == 1

    def test_somebody_elses_unit_is_left_alone(self, filesystem: CgroupFs) -> None:
        """Root then goes to the top, as engines for containers do."""
        session = group_of(filesystem, "session-1.scope")
        (session / "cgroup.procs").write_text("12")
        assert of(filesystem, session).controllers == {"memory", "pids", "cpu"}
        assert ours(session) == []
        assert (session / "cgroup.procs").read_text() == "12"
        assert len(ours(filesystem.top)) == 1

    def test_who_may_not_make_groups_has_no_limits(self, filesystem: CgroupFs) -> None:
        filesystem.closed.add(filesystem.top)
        groups = of(filesystem)
        assert groups.controllers == frozenset()
        assert groups.make(LIMITS).entrances == []
        assert ours(filesystem.top) == []

    def test_a_controller_that_is_not_there_is_not_claimed(self, filesystem: CgroupFs) -> None:
        (filesystem.top / "cgroup.controllers").write_text("cpuset pids")
        groups = of(filesystem)
        assert groups.controllers == {"pids"}
        place = Path(groups.make(LIMITS).entrances[0]).parent
        assert (place / "pids.max").read_text() == "60"
        assert not (place / "memory.max").exists()

    def test_one_controller_that_is_refused_takes_no_other_along(
        self, filesystem: CgroupFs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As cpu is while a real-time process runs."""
        write = filesystem.write

        def busy(file: Path, text: str) -> None:
            if text == "+cpu":
                raise OSError(errno.EINVAL, "Invalid argument")
            write(file, text)

        monkeypatch.setattr(cgroups, "_write", busy)
        assert of(filesystem).controllers == {"memory", "pids"}

    def test_a_group_that_cannot_be_limited_is_not_claimed(
        self, filesystem: CgroupFs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = filesystem.write

        def broken(file: Path, text: str) -> None:
            if file.name == "memory.max":
                raise OSError(errno.EINVAL, "Invalid argument")
            write(file, text)

        monkeypatch.setattr(cgroups, "_write", broken)
        assert of(filesystem).controllers == frozenset()
        assert ours(filesystem.top) == []

    def test_a_group_that_cannot_be_entered_is_not_claimed(
        self, filesystem: CgroupFs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(group: Path) -> None:
            raise OSError(errno.EPERM, "sh: cannot create cgroup.procs: Permission denied")

        monkeypatch.setattr(cgroups, "_try_to_enter", refuse)
        assert of(filesystem).controllers == frozenset()
        assert ours(filesystem.top) == []

    def test_a_sandbox_without_its_limits_is_refused(
        self, filesystem: CgroupFs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It worked at the start; now it must not go on without."""
        groups = of(filesystem)
        assert groups.controllers
        (place,) = ours(filesystem.top)
        filesystem.closed.add(place)
        with pytest.raises(PermissionError):
            groups.make(LIMITS)

    def test_at_the_end_nothing_is_left(self, filesystem: CgroupFs) -> None:
        groups = of(filesystem)
        groups.make(LIMITS)
        groups.close()
        assert ours(filesystem.top) == []
        groups.close()


class TestLeftovers:
    @pytest.fixture
    def dead(self, filesystem: CgroupFs) -> Path:
        (filesystem.top / "cgroup.subtree_control").write_text(ALL)
        path = filesystem.top / f"{PREFIX}dead"
        for folder in (path, path / "1", path / "2"):
            os.mkdir(folder)
        return path

    def test_those_of_a_dead_worker_are_removed_at_the_start(
        self, filesystem: CgroupFs, dead: Path
    ) -> None:
        assert of(filesystem).controllers
        assert not dead.exists()

    def test_also_below_another_unit(self, filesystem: CgroupFs) -> None:
        unit = group_of(filesystem, "old.service")
        os.mkdir(unit / f"{PREFIX}dead")
        assert of(filesystem).remove_leftovers() == 1
        assert list(unit.glob(f"{PREFIX}*")) == []

    def test_those_of_a_living_worker_stay(self, filesystem: CgroupFs, dead: Path) -> None:
        living = of(filesystem)
        group = living.make(LIMITS)
        assert of(filesystem).remove_leftovers() == 0
        assert Path(group.entrances[0]).exists()

    def test_those_that_somebody_else_holds_stay(self, filesystem: CgroupFs, dead: Path) -> None:
        lock = os.open(dead, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            assert of(filesystem).remove_leftovers() == 0
        finally:
            os.close(lock)
        assert of(filesystem).remove_leftovers() == 1

    def test_another_users_are_not_touched(
        self, filesystem: CgroupFs, dead: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert of(filesystem).remove_leftovers() == 0
        assert dead.exists()

    def test_what_still_runs_in_them_is_killed(
        self, filesystem: CgroupFs, dead: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """0 stands for a process of another namespace; as a number for kill it would be us."""
        procs = dead / "1" / "cgroup.procs"
        procs.write_text("0\n4194000\n")
        killed: list[tuple[int, int]] = []

        def kill(pid: int, number: int) -> None:
            killed.append((pid, number))
            procs.write_text("")

        monkeypatch.setattr(os, "kill", kill)
        assert of(filesystem).remove_leftovers() == 1
        assert killed == [(4194000, signal.SIGKILL)]

    def test_one_that_does_not_end_is_given_up(
        self, filesystem: CgroupFs, dead: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cgroups, "REMOVE_TIMEOUT", 0.01)
        (dead / "1" / "cgroup.procs").write_text("0")
        assert of(filesystem).remove_leftovers() == 0
        assert dead.exists()

    def test_a_forked_child_leaves_its_parents_alone(self, filesystem: CgroupFs) -> None:
        groups = of(filesystem)
        group = groups.make(LIMITS)
        child = of(filesystem)
        child._places = [
            cgroups._Place(p.path, p.controllers, True, os.dup(p.lock))
            for p in groups._places or []
        ]
        child.forget()
        child.close()
        assert Path(group.entrances[0]).exists()
        assert of(filesystem).remove_leftovers() == 0


class TestVersion1:
    @pytest.fixture
    def top(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Plain files in one directory each, made as a hierarchy of version 1 does."""
        mkdir = os.mkdir
        files = {
            "memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
            "pids": ("pids.max",),
            "cpu,cpuacct": ("cpu.cfs_period_us", "cpu.cfs_quota_us"),
        }

        def make(path: str | Path, *arguments: int, **options: int) -> None:
            mkdir(path, *arguments, **options)
            for name, made in files.items():
                if Path(path).is_relative_to(tmp_path / name):
                    for file in (*made, "cgroup.procs"):
                        Path(path, file).touch()

        def remove(group: Path) -> bool:
            shutil.rmtree(group)
            return True

        for name in files:
            mkdir(tmp_path / name)
        monkeypatch.setattr(os, "mkdir", make)
        monkeypatch.setattr(cgroups, "_remove_empty", remove)
        return tmp_path

    def test_each_controller_has_a_hierarchy(self, top: Path) -> None:
        found = [
            Hierarchy(top / name, top / name, tuple(name.split(",")))
            for name in ("memory", "pids", "cpu,cpuacct")
        ]
        groups = Cgroups(found)
        assert groups.controllers == {"memory", "pids", "cpu"}
        places = [Path(entrance).parent for entrance in groups.make(LIMITS).entrances]
        written = {file.name: file.read_text() for place in places for file in place.iterdir()}
        assert written == {
            "memory.limit_in_bytes": "134217728",
            "memory.memsw.limit_in_bytes": "134217728",
            "pids.max": "60",
            "cpu.cfs_period_us": "100000",
            "cpu.cfs_quota_us": "50000",
            "cgroup.procs": "",
        }

    def test_more_processors_than_a_group_above_has_are_no_fault(
        self, top: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = cgroups._write

        def narrow(file: Path, text: str) -> None:
            if file.name == "cpu.cfs_quota_us":
                raise OSError(errno.EINVAL, "Invalid argument")
            write(file, text)

        monkeypatch.setattr(cgroups, "_write", narrow)
        place = top / "cpu,cpuacct"
        assert Cgroups([Hierarchy(place, place, ("cpu", "cpuacct"))]).controllers == {"cpu"}

    def test_what_version_2_has_is_taken_from_there(self, top: Path, filesystem: CgroupFs) -> None:
        (filesystem.top / "cgroup.controllers").write_text("pids")
        groups = Cgroups(
            [
                Hierarchy(top / "memory", top / "memory", ("memory",)),
                Hierarchy(top / "pids", top / "pids", ("pids",)),
                Hierarchy(filesystem.top, filesystem.top, ("",), unified=True),
            ]
        )
        assert groups.controllers >= {"pids"}
        assert ours(top / "pids") == []
        assert len(ours(filesystem.top)) == 1


def test_entering_is_tried_by_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    cgroups._try_to_enter(tmp_path)
    assert (tmp_path / "cgroup.procs").read_text() == "0\n"
    with pytest.raises(OSError, match="gone") as caught:
        cgroups._try_to_enter(tmp_path / "gone")
    assert caught.value.errno == errno.EPERM


class TestWhereTheyAre:
    def find(self, tmp_path: Path, mountinfo: str, cgroup: str) -> list[Hierarchy]:
        (tmp_path / "mountinfo").write_text(mountinfo)
        (tmp_path / "cgroup").write_text(cgroup)
        return find_hierarchies(tmp_path)

    def test_one_of_version_2(self, tmp_path: Path) -> None:
        found = self.find(
            tmp_path,
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
            "31 23 0:27 / /tmp rw - tmpfs tmpfs rw\n",
            "0::/system.slice/umpteenth.service\n",
        )
        top = Path("/sys/fs/cgroup")
        own = top / "system.slice/umpteenth.service"
        assert found == [Hierarchy(top, own, ("",), unified=True)]

    def test_several_of_version_1_and_an_empty_one_of_version_2(self, tmp_path: Path) -> None:
        found = self.find(
            tmp_path,
            "35 31 0:32 / /c/memory rw - cgroup cgroup rw,memory\n"
            "36 31 0:33 / /c/devices rw - cgroup cgroup rw,devices\n"
            "32 31 0:29 / /c/cpu,cpuacct rw - cgroup cgroup rw,cpuacct,cpu\n"
            "40 31 0:37 / /c/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
            "41 31 0:38 / /c/unified rw - cgroup2 cgroup2 rw\n",
            "9:name=systemd:/a\n5:devices:/\n4:memory:/a/b\n1:cpu,cpuacct:/\n0::/a\n",
        )
        assert found == [
            Hierarchy(Path("/c/memory"), Path("/c/memory/a/b"), ("memory",)),
            Hierarchy(Path("/c/cpu,cpuacct"), Path("/c/cpu,cpuacct"), ("cpu", "cpuacct")),
            Hierarchy(Path("/c/unified"), Path("/c/unified/a"), ("",), unified=True),
        ]

    @pytest.mark.parametrize(
        ("root", "group", "own"),
        [
            ("/docker/1a", "/docker/1a", "/c"),
            ("/docker/1a", "/docker/1a/sub", "/c/sub"),
            ("/docker/1a", "/elsewhere", "/c"),
            ("/", "/../..", "/c"),
            ("/..", "/x", "/c"),
        ],
    )
    def test_a_part_of_a_hierarchy_in_a_container(
        self, tmp_path: Path, root: str, group: str, own: str
    ) -> None:
        line = f"35 31 0:32 {root} /c ro - cgroup cgroup rw,pids\n"
        assert self.find(tmp_path, line, f"3:pids:{group}\n")[0].own == Path(own)

    def test_one_mounted_twice_counts_once(self, tmp_path: Path) -> None:
        lines = "".join(f"3{n} 1 0:3 / /c{n} rw - cgroup2 c rw\n" for n in range(2))
        assert [item.top for item in self.find(tmp_path, lines, "0::/\n")] == [Path("/c0")]

    def test_a_blank_in_its_name(self, tmp_path: Path) -> None:
        line = "35 31 0:32 / /my\\040c rw - cgroup cgroup rw,pids\n"
        assert self.find(tmp_path, line, "3:pids:/\n")[0].top == Path("/my c")

    def test_a_machine_without_any(self, tmp_path: Path) -> None:
        assert find_hierarchies(tmp_path / "nothing") == []
        assert self.find(tmp_path, "31 23 0:27 / /tmp rw - tmpfs tmpfs rw\n", "") == []
