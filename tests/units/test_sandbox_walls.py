"""What of this machine is covered in a sandbox, whose user it has, what is shown of it (P3)."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

import pytest

from jobs.sandbox import accounts, mounts
from jobs.sandbox.places import CERTIFICATE_VARIABLES, Places, visible_certificates
from tests.fakes.sandbox_specs import build, pairs, spec, variables
from umpteenth.core.config import load_options


class TestCovers:
    @pytest.fixture
    def covered(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
        file, directory = tmp_path / "shadow", tmp_path / "private"
        file.touch()
        directory.mkdir()
        monkeypatch.setattr(mounts, "COVERED", (str(file), str(directory)))
        return file, directory

    @pytest.mark.parametrize("privileged", [True, False])
    def test_what_is_open_is_covered(
        self, covered: tuple[Path, Path], tmp_path: Path, privileged: bool
    ) -> None:
        file, directory = covered
        options = build(spec(), Places(tmp_path), privileged=privileged)
        assert ("/dev/null", str(file)) in pairs(options, "--ro-bind")
        at = options.index(str(directory))
        assert options[at - 1 : at + 3] == [
            *("--tmpfs", str(directory)),
            *("--remount-ro", str(directory)),
        ]

    def test_what_its_mode_closes_costs_nothing(
        self, covered: tuple[Path, Path], tmp_path: Path
    ) -> None:
        for path in covered:
            path.chmod(0o750)
            if os.geteuid() == 0:
                os.chown(path, 0, 4711)
        if os.geteuid() != 0:  # the owner's own
            return
        options = build(spec(), Places(tmp_path))
        assert not {str(path) for path in covered} & set(options)

    @pytest.mark.parametrize(
        ("mode", "owner", "group", "open_"),
        [
            (0o640, 0, 42, False),
            (0o644, 0, 42, True),
            (0o750, 0, 42, False),
            (0o711, 0, 42, True),
            (0o640, 0, 1000, True),
            (0o600, 1000, 0, True),
            (0o600, 1001, 0, False),
        ],
    )
    def test_root_gives_a_user_without_groups(
        self,
        monkeypatch: pytest.MonkeyPatch,
        mode: int,
        owner: int,
        group: int,
        open_: bool,
    ) -> None:
        found = os.stat_result((mode, 0, 0, 1, owner, group, 0, 0, 0, 0))
        monkeypatch.setattr(os, "stat", lambda path: found)
        assert mounts.is_open("/etc/shadow", 1000) is open_

    def test_what_is_not_there_is_not_open(self, tmp_path: Path) -> None:
        """bwrap would make the file, or fail where it cannot."""
        for user in (None, 1000):
            assert not mounts.is_open(str(tmp_path / "none"), user)

    def test_links_are_passed_over(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """On them bwrap fails."""
        (tmp_path / "link").symlink_to("/etc/passwd")
        monkeypatch.setattr(mounts, "COVERED", (str(tmp_path / "link"),))
        assert str(tmp_path / "link") not in build(spec(), Places(tmp_path))


class TestWhoItIs:
    @pytest.fixture(autouse=True)
    def _machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Somebody has the number 1000, and we are in two groups beside our own."""

        def account(number: int) -> pwd.struct_passwd:
            if number != 1000:
                raise KeyError(number)
            return pwd.struct_passwd(("ada", "x", 1000, 1000, "", "/home/ada", "/bin/sh"))

        def group(number: int) -> grp.struct_group:
            if number != 4:
                raise KeyError(number)
            return grp.struct_group(("adm", "x", 4, []))

        monkeypatch.setattr(pwd, "getpwuid", account)
        monkeypatch.setattr(grp, "getgrgid", group)
        monkeypatch.setattr(os, "getgroups", lambda: [4, 77, 500])
        monkeypatch.setattr(os, "getegid", lambda: 500)

    def test_root_is_told_whose_numbers_they_are(self) -> None:
        [said] = accounts.gaps(privileged=True)
        assert "the user of scripts (1000) is the account ada, " in said
        assert "start the worker as a plain user" in said

    def test_a_plain_user_is_told_which_groups_go_along(self) -> None:
        [said] = accounts.gaps(privileged=False)
        assert "groups may read (adm, 77): start the worker as a user" in said

    def test_nobody_is_told_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "getgroups", lambda: [500])
        assert accounts.gaps(privileged=False) == ()

        def nobody(number: int) -> pwd.struct_passwd:
            raise KeyError(number)

        monkeypatch.setattr(pwd, "getpwuid", nobody)
        assert accounts.gaps(privileged=True) == ()


class TestCertificates:
    def test_they_are_shown_and_passed_on(self, tmp_path: Path) -> None:
        bundle = tmp_path / "ca.pem"
        bundle.touch()
        environ = {"NODE_EXTRA_CA_CERTS": str(bundle), "PIP_CERT": str(bundle), "SECRET": "/etc/x"}
        found = visible_certificates(environ)
        assert found == {"NODE_EXTRA_CA_CERTS": str(bundle), "PIP_CERT": str(bundle)}
        options = build(spec(), Places(tmp_path, certificates=found))
        assert pairs(options, "--ro-bind").count((str(bundle), str(bundle))) == 1
        assert variables(options)["PIP_CERT"] == str(bundle)

    def test_what_the_system_shows_is_not_shown_twice(self, tmp_path: Path) -> None:
        found = visible_certificates({"SSL_CERT_DIR": "/etc", "SSL_CERT_FILE": "/etc/passwd"})
        assert len(found) == 2
        options = build(spec(), Places(tmp_path, certificates=found))
        assert pairs(options, "--ro-bind").count(("/etc", "/etc")) == 1
        assert ("/etc/passwd", "/etc/passwd") not in pairs(options, "--ro-bind")

    def test_a_link_is_shown_with_what_it_leads_to(self, tmp_path: Path) -> None:
        (tmp_path / "real.pem").touch()
        (tmp_path / "ca.pem").symlink_to("real.pem")
        places = Places(tmp_path, certificates={"SSL_CERT_FILE": str(tmp_path / "ca.pem")})
        assert list(places.bundles()) == [tmp_path / "ca.pem", tmp_path / "real.pem"]

    def test_openssl_takes_several_directories(self, tmp_path: Path) -> None:
        (tmp_path / "own").mkdir()
        value = f"/etc:{tmp_path / 'own'}"
        places = Places(tmp_path, certificates=visible_certificates({"SSL_CERT_DIR": value}))
        assert list(places.bundles()) == [Path("/etc"), tmp_path / "own"]
        assert visible_certificates({"SSL_CERT_DIR": "/etc:/nowhere"}) == {"SSL_CERT_DIR": "/etc"}
        assert visible_certificates({"SSL_CERT_FILE": value}) == {}

    @pytest.mark.parametrize("value", ["", "ca.pem", "/nowhere/ca.pem", "/", "/nowhere:/"])
    def test_what_cannot_be_shown_is_left_out(self, value: str) -> None:
        assert visible_certificates({"SSL_CERT_DIR": value, "SSL_CERT_FILE": value}) == {}

    def test_what_is_left_out_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in CERTIFICATE_VARIABLES:
            monkeypatch.delenv(name, raising=False)
        assert Places(tmp_path).gaps() == ()
        monkeypatch.setenv("PIP_CERT", "/nowhere/ca.pem")
        monkeypatch.setenv("SSL_CERT_DIR", "/etc")
        places = Places(tmp_path, certificates=visible_certificates(os.environ))
        [said] = places.gaps()
        assert said.startswith("Sandboxes do not see what PIP_CERT names: ")

    def test_what_is_hidden_stays_hidden(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also by another name."""
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "keyring").touch()
        (tmp_path / "ca.pem").symlink_to("data/keyring")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        monkeypatch.setenv("PIP_CERT", str(tmp_path / "data" / "keyring"))
        options = load_options({"UMPTEENTH_DATA_DIR": str(tmp_path / "data")})
        held = Places.from_options(options).certificates or {}
        assert not {"SSL_CERT_FILE", "PIP_CERT"} & held.keys()
