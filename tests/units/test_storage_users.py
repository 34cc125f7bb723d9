"""What uses the storage of files works with each of them, and says so where one is away
(issue 5, section 5)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage, storages
from django.db import OperationalError
from django.http import Http404
from django.test import Client

from jobs import services
from jobs.leftovers import remove_leftovers
from jobs.models import Blob, Run, StoredFile
from jobs.storage.removal import delete_files
from jobs.timeline import Recorder
from jobs.views import files
from tests.fakes.executions import execute, without_a_machine
from tests.fakes.runs import make_job, payloads_of
from tests.fakes.s3 import FakeS3, fake_s3, options_for
from umpteenth.cli import doctor
from umpteenth.core.config import StorageOptions, get_options
from umpteenth.core.masking import Masker
from umpteenth.settings import _storage

pytestmark = pytest.mark.django_db(transaction=True)

LINES = "".join(f"line {number}\n" for number in range(60_000))
# An artifact, and a value too large for the timeline.
SCRIPT = (
    'mkdir "$UMP_OUTPUTS/deep" && seq 100000 > "$UMP_OUTPUTS/deep/numbers.txt"\n'
    "seq -f 'line %.0f' 0 59999 | python3 \"$UMP\" output set all -\n"
)


@pytest.fixture
def bucket() -> Iterator[FakeS3]:
    with fake_s3() as bucket:
        yield bucket


def use(settings: Any, options: StorageOptions, data_dir: Path) -> None:
    settings.STORAGES = {**settings.STORAGES, "default": _storage(options, data_dir)}


@pytest.fixture(params=["directory", "database", "s3"])
def backend(request: pytest.FixtureRequest, settings: Any, tmp_path: Path) -> str:
    options = StorageOptions.model_construct(backend=request.param)
    if request.param == "s3":
        options = options_for(request.getfixturevalue("bucket"))
    use(settings, options, tmp_path)
    kind: str = request.param
    return kind


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, backend: str) -> Run:
    without_a_machine(monkeypatch)
    return execute(make_job(script=SCRIPT))


def seq_of_value(run: Run) -> int:
    seq: int = run.events.get(kind="outputs.set").seq
    return seq


def test_files_and_large_values_of_a_run_are_kept_shown_and_deleted(
    run: Run, member_client: Client
) -> None:
    assert run.status == "succeeded"
    item, blob = run.artifacts.get(), run.blobs.get()
    sent = member_client.get(f"/runs/{run.pk}/artifacts/{item.pk}/")
    assert b"".join(sent) == b"".join(b"%d\n" % number for number in range(1, 100_001))
    whole = member_client.get(f"/runs/{run.pk}/blobs/{blob.pk}/")
    assert b"".join(whole).decode() == LINES.rstrip("\n")
    page = member_client.get(f"/runs/{run.pk}/events/{seq_of_value(run)}/value/", {"page": 2})
    assert "line 9000\n" in page.content.decode()
    services.delete_job(run.job, actor=None)
    assert not any(default_storage.exists(path) for path in (item.path, blob.path))


def files_finding(monkeypatch: pytest.MonkeyPatch, options: StorageOptions) -> doctor.Finding:
    changed = get_options().model_copy(update={"storage": options})
    monkeypatch.setattr(doctor, "get_options", lambda: changed)
    return doctor.LOOKS["files"]()


def test_doctor_writes_reads_and_deletes_a_file(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (get_options().data_dir / "files").mkdir(exist_ok=True)
    options = StorageOptions.model_construct(backend=backend)
    found = files_finding(monkeypatch, options)
    assert found.state == doctor.OK
    assert found.text.endswith(": written, read and deleted")
    assert not StoredFile.objects.exists()


@pytest.mark.parametrize("backend", ["s3"], indirect=True)
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("write", "A file cannot be written: "),
        ("read", "A file cannot be read or deleted: the disk is gone."),
        ("lose", "A file is not read as it was written."),
        ("keep", "A file that was deleted is still there."),
    ],
)
def test_doctor_says_what_a_storage_cannot(
    backend: str, bucket: FakeS3, fault: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_arguments: Any) -> None:
        raise OSError("the disk is gone")

    storage: Any = storages["default"]
    if fault == "write":
        bucket.broken = 403
    elif fault == "read":
        monkeypatch.setattr(storage, "_open", gone)
    elif fault == "lose":
        monkeypatch.setattr(storage, "_open", lambda *_: ContentFile(b""))
    else:
        monkeypatch.setattr(storage, "delete", lambda name: None)
    found = files_finding(monkeypatch, options_for(bucket))
    assert found.state == doctor.PROBLEM
    assert found.text.startswith(f"in the bucket files: {sentence}")
    assert "hunter22" not in found.text + found.remedy


def test_doctor_makes_nothing_in_a_new_data_directory(
    db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = get_options().model_copy(update={"data_dir": tmp_path})
    monkeypatch.setattr(doctor, "get_options", lambda: new)
    assert doctor.LOOKS["files"]().text == f"{tmp_path}/files, made with the first file"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("backend", ["database"], indirect=True)
def test_nothing_stays_in_the_database_of_a_job_that_is_gone(run: Run) -> None:
    assert StoredFile.objects.count() == 2
    services.delete_job(run.job, actor=None)
    assert not StoredFile.objects.exists()


@pytest.mark.parametrize("backend", ["s3"], indirect=True)
def test_a_bucket_that_is_away_is_said_on_every_page(
    run: Run, bucket: FakeS3, member_client: Client
) -> None:
    """No traceback, and no word of a file that is gone: it is not."""
    bucket.broken = 500
    paths = [f"artifacts/{run.artifacts.get().pk}/", f"events/{seq_of_value(run)}/value/"]
    for path in [*paths, f"blobs/{run.blobs.get().pk}/"]:
        response = member_client.get(f"/runs/{run.pk}/{path}")
        assert response.status_code == 404
        assert "The storage of files does not answer" in response.content.decode()


@pytest.mark.parametrize("backend", ["s3"], indirect=True)
def test_a_bucket_that_breaks_off_inside_a_value_is_said_too(
    run: Run, bucket: FakeS3, member_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: Any) -> None:
        raise OSError("broken off")

    monkeypatch.setattr(type(default_storage._wrapped), "_open", broken)  # type: ignore[attr-defined]
    response = member_client.get(f"/runs/{run.pk}/events/{seq_of_value(run)}/value/")
    assert "The storage of files does not answer" in response.content.decode()


@pytest.mark.parametrize("backend", ["s3"], indirect=True)
def test_a_bucket_that_is_away_costs_a_run_its_files_and_not_its_end(
    backend: str, bucket: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_a_machine(monkeypatch)
    bucket.broken = 403
    run = execute(make_job(script=SCRIPT))
    assert run.status == "succeeded"
    assert payloads_of(run, "outputs.set")[0]["_blobs"]["value"]["id"] is None
    [error] = payloads_of(run, "error")
    assert error["message"].startswith("The files in /ump/outputs could not be kept")


@pytest.mark.parametrize("backend", ["database"], indirect=True)
def test_files_wait_for_a_database_that_is_away_as_events_do(
    backend: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H11: nothing of a run is lost while Postgres is started again."""
    StoredFile.objects.all().delete()
    Blob.objects.all().delete()
    Run.objects.update(status="running", claim_token="t")
    storage = type(default_storage._wrapped)  # type: ignore[attr-defined]
    save, away = storage.save, [OperationalError("gone"), OperationalError("gone")]

    def shaky(*arguments: Any, **options: Any) -> str:
        if len(away) == 2 or (away and StoredFile.objects.exists()):
            raise away.pop()
        name: str = save(*arguments, **options)
        return name

    monkeypatch.setattr(storage, "save", shaky)
    monkeypatch.setattr(Recorder, "RETRY", 0.01)
    recorder = Recorder(run.pk, "t", Masker({}))
    recorder.start()
    recorder.record("tool.result", {"text": LINES, "structured": [LINES]})
    recorder.close()
    [payload] = payloads_of(run, "tool.result")
    assert {note["id"] for note in payload["_blobs"].values()} == {
        str(blob.pk) for blob in Blob.objects.all()
    }
    assert {file.name for file in StoredFile.objects.all()} == {
        blob.path for blob in Blob.objects.all()
    }
    assert away == []


def test_what_a_killed_worker_stored_and_never_named_is_deleted(
    backend: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory of the run tells the next worker of the machine."""
    (get_options().data_dir / "runs" / str(run.pk)).mkdir()
    unnamed = default_storage.save(f"runs/{run.pk}/unnamed", ContentFile(b"x"))
    elsewhere = default_storage.save("runs/another/unnamed", ContentFile(b"x"))
    remove_leftovers()
    assert not default_storage.exists(unnamed)
    named = (run.artifacts.get().path, run.blobs.get().path, elsewhere)
    assert all(default_storage.exists(path) for path in named)


@pytest.mark.parametrize("backend", ["s3"], indirect=True)
def test_a_bucket_that_is_away_keeps_no_worker_from_its_start(
    backend: str, run: Run, bucket: FakeS3
) -> None:
    left = get_options().data_dir / "runs" / str(run.pk)
    left.mkdir()
    bucket.broken = 403
    remove_leftovers()
    assert not left.exists()


@pytest.mark.parametrize("backend", ["s3"], indirect=True)
@pytest.mark.parametrize(("slow", "tries"), [(-1.0, 1), (60.0, 3)])
def test_events_do_not_wait_for_a_storage_that_takes_long_to_fail(
    backend: str, run: Run, slow: float, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket behind a dead network answers after many seconds, for each file."""
    asked = []

    def away(*arguments: Any, **_: Any) -> str:
        asked.append(arguments)
        raise OSError("no route")

    monkeypatch.setattr(storages["default"], "save", away)
    monkeypatch.setattr(Recorder, "SLOW_FAILURE", slow)
    Run.objects.update(status="running", claim_token="t")
    recorder = Recorder(run.pk, "t", Masker({}))
    recorder.start()
    for _ in range(3):
        recorder.record("tool.result", {"text": LINES})
    recorder.close()
    assert len(asked) == tries
    assert [payload["_blobs"]["text"]["id"] for payload in payloads_of(run, "tool.result")] == [
        None
    ] * 3


@pytest.mark.parametrize("what", ["exists", "open"])
def test_nobody_holds_a_connection_while_a_storage_answers(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def away(*_: Any) -> Any:
        order.append(what)
        raise OSError("no route")

    monkeypatch.setattr(files, "give_back", lambda: order.append("given back"))
    monkeypatch.setattr(storages["default"], what, away)
    with pytest.raises(Http404):
        files.check_stored("x") if what == "exists" else files.read_stored("x", 0, 1)
    assert order == ["given back", what]


def test_nobody_waits_for_ever_to_delete_files(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def away(name: str) -> None:
        asked.append(name)
        if name != "2":
            raise OSError("no route")

    monkeypatch.setattr(storages["default"], "delete", away)
    delete_files(map(str, range(100)))
    assert asked == ["0", "1", "2", "3", "4", "5"]
    assert "6 and what followed were not deleted" in caplog.text
