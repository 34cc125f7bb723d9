"""Images, sound and files in results: out of base64, true type, kept as artifacts (D15)."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.files.storage import default_storage
from django.db import DatabaseError, OperationalError
from hypothesis import given
from hypothesis import strategies as st

from jobs import lifecycle, media, timeline, triggers
from jobs.models import Artifact, Run, RunEvent
from jobs.timeline import Recorder
from tests.fakes.runs import make_job, make_run, payloads_of
from umpteenth.core.masking import Masker

SECRET = "correct-horse-battery"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(20)


def encoded(body: bytes) -> str:
    return base64.b64encode(body).decode()


def image(body: bytes = PNG, mime: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "data": encoded(body), "mimeType": mime}


class TestTrueType:
    @pytest.mark.parametrize(
        ("body", "kind", "expected"),
        [
            (PNG, "image", ("image/png", "png")),
            (b"\xff\xd8\xff\xe0" + bytes(9), "image", ("image/jpeg", "jpg")),
            (b"GIF89a" + bytes(9), "image", ("image/gif", "gif")),
            (b"RIFF\x10\0\0\0WEBPVP8 " + bytes(9), "image", ("image/webp", "webp")),
            (WAV, "audio", ("audio/wav", "wav")),
            (b"OggS" + bytes(9), "audio", ("audio/ogg", "ogg")),
            (b"fLaC" + bytes(9), "audio", ("audio/flac", "flac")),
            (b"ID3\x04" + bytes(9), "audio", ("audio/mpeg", "mp3")),
            (b"\xff\xfb\x90\x44" + bytes(9), "audio", ("audio/mpeg", "mp3")),
            (b"\xff\xf1\x50\x80" + bytes(9), "audio", ("audio/aac", "aac")),
            (b"\0\0\0\x20ftypM4A " + bytes(9), "audio", ("audio/mp4", "m4a")),
            (b"\x1a\x45\xdf\xa3" + bytes(9), "audio", ("audio/webm", "webm")),
            # Films are in the same containers: not shown in place.
            (b"\x1a\x45\xdf\xa3" + bytes(9), "image", ("application/octet-stream", "bin")),
            (b"%PDF-1.7\n\xe2\0", "resource", ("application/pdf", "pdf")),
            (b"<svg xmlns='x'><script/></svg>", "image", ("text/plain", "txt")),
            (b"<!doctype html><script>", "image", ("text/plain", "txt")),
            (b"XXXX\x10\0\0\0WEBPVP8 ", "image", ("application/octet-stream", "bin")),
            (b"\0\1\2\3", "image", ("application/octet-stream", "bin")),
            (b"\xe9t\xe9", "image", ("application/octet-stream", "bin")),
        ],
    )
    def test_the_first_bytes_decide_it_whatever_the_server_says(
        self, body: bytes, kind: str, expected: tuple[str, str]
    ) -> None:
        assert media.true_type(body, "image/png" if kind == "image" else "", kind) == expected

    @pytest.mark.parametrize(
        ("declared", "expected"),
        [
            ("application/x-xz", ("application/x-xz", "xz")),
            ("application/vnd.apache.parquet; v=1", ("application/vnd.apache.parquet", "parquet")),
            ("application/x-tar", ("application/x-tar", "tar")),
            ("application/vnd.nobody.knows", ("application/vnd.nobody.knows", "bin")),
            ("video/mp4", ("video/mp4", "mp4")),
            ("image/tiff", ("image/tiff", "tiff")),
            # These would be known by their bytes.
            ("image/png", (media.UNKNOWN, "bin")),
            ("image/jpg", (media.UNKNOWN, "bin")),
            ("application/pdf", (media.UNKNOWN, "bin")),
            # A reader might run these.
            ("text/html", (media.UNKNOWN, "bin")),
            ("image/svg+xml", (media.UNKNOWN, "bin")),
            ("application/xml", (media.UNKNOWN, "bin")),
            ("application/javascript", (media.UNKNOWN, "bin")),
            ("application/x-sh", (media.UNKNOWN, "bin")),
            ("application/x-msdownload", (media.UNKNOWN, "bin")),
            # These are no types.
            ("application", (media.UNKNOWN, "bin")),
            ("application/x\r\nset-cookie", (media.UNKNOWN, "bin")),
            ("a/b/c", (media.UNKNOWN, "bin")),
            (f"application/{'x' * 100}", (media.UNKNOWN, "bin")),
        ],
    )
    def test_what_the_bytes_do_not_tell_is_what_the_server_says_if_it_is_harmless(
        self, declared: str, expected: tuple[str, str]
    ) -> None:
        assert media.true_type(b"\0\1\2\3", declared, "resource") == expected

    @pytest.mark.parametrize(
        ("declared", "expected"),
        [
            ("application/epub+zip", ("application/epub+zip", "epub")),
            ("application/zip", ("application/zip", "zip")),
            ("text/html", ("application/zip", "zip")),
            ("", ("application/zip", "zip")),
        ],
    )
    def test_an_archive_may_be_a_document(self, declared: str, expected: tuple[str, str]) -> None:
        assert media.true_type(b"PK\x03\x04\0", declared, "resource") == expected

    def test_gzip_is_known_by_its_bytes(self) -> None:
        body = b"\x1f\x8b\x08\0\xe9"
        assert media.true_type(body, "text/plain") == ("application/gzip", "gz")


class TestDecode:
    @given(st.binary(max_size=300))
    def test_what_was_encoded_in_any_common_way_comes_back(self, body: bytes) -> None:
        plain = encoded(body)
        lines = "\r\n".join(plain[at : at + 76] for at in range(0, len(plain), 76))
        address = base64.urlsafe_b64encode(body).decode()
        forms = (plain, plain.rstrip("="), lines, address, f"data:image/png;base64,{plain}")
        assert {media.decode(form) for form in forms} == {body}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(media, "_PIECE", 8)
            assert {media.decode(form) for form in forms} == {body}

    @pytest.mark.parametrize(
        "data", ["%%%", "a", "abcde", "é" * 8, "ab=cd===", "YWE=YWE=", None, 7, ["aGk="]]
    )
    def test_anything_else_is_no_base64(
        self, data: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert media.decode(data) is None
        monkeypatch.setattr(media, "_PIECE", 4)
        assert media.decode(data) is None


@pytest.fixture
def run(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(triggers, "hint_run", lambda run_id: None)
    made = make_run(make_job())
    assert lifecycle.claim(made.pk, "w")
    made.refresh_from_db()
    return made


@pytest.fixture
def recorder(run: Run) -> Iterator[Recorder]:
    made = Recorder(run.pk, run.claim_token, Masker({"TOKEN": SECRET}))
    made.start()
    yield made
    made.close(10)


def hand_in(recorder: Recorder, *parts: dict[str, Any], span: str = "s1") -> None:
    kept = recorder.keep_media(span, parts)
    recorder.record("tool.result", {"ok": True, "text": "", "content": kept}, span=span)


def keep(recorder: Recorder, *parts: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts as the event has them in the end."""
    hand_in(recorder, *parts)
    recorder.close()
    event = RunEvent.objects.get(run=recorder.run_id, kind="tool.result")
    content: list[dict[str, Any]] = event.payload["content"]
    return content


def body_of(artifact: Artifact) -> bytes:
    with default_storage.open(artifact.path) as file:
        body: bytes = file.read()
    return body


class TestKeepMedia:
    def test_an_image_becomes_an_artifact_of_the_run(self, run: Run, recorder: Recorder) -> None:
        text = {"type": "text", "text": "a chart"}
        first, second = keep(recorder, text, image())
        artifact = Artifact.objects.get(run=run)
        assert first == text
        assert second == {
            "type": "image",
            "mime_type": "image/png",
            "size": len(PNG),
            "artifact": str(artifact.pk),
        }
        assert (artifact.name, artifact.span) == ("calls/s1-2.png", "s1")
        assert (artifact.media_type, artifact.size) == ("image/png", len(PNG))
        assert body_of(artifact) == PNG

    def test_a_file_is_there_before_the_event_that_names_it(
        self, run: Run, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Recorder, "BATCH", 1)
        seen: list[bool] = []
        append = timeline.append

        def watched(run_id: Any, events: Any, **options: Any) -> int:
            if any(event.kind == "tool.result" for event in events):
                seen.append(Artifact.objects.filter(run=run).exists())
            return append(run_id, events, **options)

        monkeypatch.setattr(timeline, "append", watched)
        keep(recorder, image())
        assert seen == [True]

    @pytest.mark.parametrize("size", [10, 3 * 1024 * 1024])
    def test_base64_is_decoded_in_the_recorders_thread(
        self, run: Run, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, size: int
    ) -> None:
        """Whoever hands it in is the loop that all calls of the run live in."""
        seen: list[str] = []
        decode = media.decode

        def watched(data: object) -> bytes | None:
            seen.append(threading.current_thread().name)
            return decode(data)

        monkeypatch.setattr(media, "decode", watched)
        [kept] = keep(recorder, image(PNG + b"x" * size))
        assert seen == [f"recorder-{run.pk}"]
        assert (kept["mime_type"], kept["size"]) == ("image/png", len(PNG) + size)

    def test_what_cannot_be_read_costs_only_itself(
        self, run: Run, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(_data: object) -> bytes | None:
            raise MemoryError

        monkeypatch.setattr(media, "decode", broken)
        [kept, text] = keep(recorder, image(), {"type": "text", "text": "still there"})
        assert (kept["artifact"], kept["problem"]) == (None, media.NOT_STORED)
        assert text["text"] == "still there"

    def test_a_database_that_is_away_counts_a_file_once(
        self, run: Run, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Recorder, "RETRY", 0.0)
        monkeypatch.setattr(media, "MAX_RUN_FILES", 1)
        append, left = timeline.append, iter([True, True])

        def away_at_first(*args: Any, **options: Any) -> int:
            if next(left, False):
                raise OperationalError("the database is away")
            return append(*args, **options)

        monkeypatch.setattr(timeline, "append", away_at_first)
        [kept] = keep(recorder, image())
        assert kept["artifact"] == str(Artifact.objects.get(run=run).pk)

    def test_text_alone_needs_no_parts(self, recorder: Recorder) -> None:
        assert recorder.keep_media("s1", [{"type": "text", "text": "hi"}]) == []
        assert recorder.keep_media("s1", []) == []

    @pytest.mark.parametrize(
        "part",
        [
            {"type": "hologram", "depth": 3},
            {"type": "resource_link", "uri": "file:///a", "name": "a"},
            {"type": "resource", "resource": {"uri": "file:///a", "text": "hi"}},
            {"type": "resource", "resource": None},
            {"type": "text"},
            {"type": "unknown", "value": 7},
            {"type": "unknown", "artifact": ["no id"]},
            {},
        ],
    )
    def test_other_parts_stay_as_they_are(
        self, run: Run, recorder: Recorder, part: dict[str, Any]
    ) -> None:
        assert keep(recorder, part, image())[0] == part

    def test_an_embedded_file_is_kept_as_well(self, run: Run, recorder: Recorder) -> None:
        resource = {"uri": "file:///report", "mimeType": "application/pdf"}
        blob = {"blob": encoded(b"%PDF-1.7\n\xe2")}
        [kept] = keep(recorder, {"type": "resource", "resource": resource | blob})
        artifact = Artifact.objects.get(run=run)
        assert artifact.name == "calls/s1-1.pdf"
        assert kept["resource"] == resource
        assert kept["artifact"] == str(artifact.pk)

    @pytest.mark.parametrize(
        ("part", "problem"),
        [
            ({"type": "image", "data": "%%%", "mimeType": "image/png"}, media.NOT_BASE64),
            ({"type": "image", "data": 7, "mimeType": "image/png"}, media.NOT_BASE64),
            ({"type": "audio", "data": None}, media.EMPTY),
            ({"type": "image"}, media.EMPTY),
            ({"type": "resource", "resource": {"uri": "x", "blob": "%%%"}}, media.NOT_BASE64),
            ({"type": "image", "mimeType": 7, "data": "%%%"}, media.NOT_BASE64),
        ],
    )
    def test_bad_base64_is_a_placeholder_that_says_so(
        self, run: Run, recorder: Recorder, part: dict[str, Any], problem: str
    ) -> None:
        """D15"""
        [kept] = keep(recorder, part)
        assert (kept["artifact"], kept["problem"]) == (None, problem)
        assert not Artifact.objects.exists()

    def test_a_false_type_is_noted_beside_the_true_one(self, run: Run, recorder: Recorder) -> None:
        [page, sound, right] = keep(
            recorder,
            image(b"<script>alert(1)</script>"),
            {"type": "audio", "data": encoded(PNG), "mimeType": "audio/wav"},
            {"type": "audio", "data": encoded(WAV), "mimeType": "audio/x-wav"},
        )
        assert (page["mime_type"], page["declared"]) == ("text/plain", "image/png")
        assert (sound["mime_type"], sound["declared"]) == ("image/png", "audio/wav")
        assert "declared" not in right

    def test_secrets_in_embedded_text_are_masked(self, run: Run, recorder: Recorder) -> None:
        keep(recorder, image(f"<svg>{SECRET}</svg>".encode(), "image/svg+xml"))
        assert body_of(Artifact.objects.get(run=run)) == b"<svg>[secret TOKEN]</svg>"

    def test_a_file_above_its_limit_is_named_and_not_kept(
        self, run: Run, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(media, "MAX_BYTES", 20)
        [kept] = keep(recorder, image())
        assert (kept["artifact"], kept["problem"]) == (None, media.TOO_LARGE)
        assert "data" not in kept
        assert kept["size"] == len(PNG)

    @pytest.mark.parametrize("limit", [{"MAX_RUN_BYTES": 100}, {"MAX_RUN_FILES": 2}])
    def test_a_run_keeps_so_many_and_so_much(
        self,
        run: Run,
        recorder: Recorder,
        monkeypatch: pytest.MonkeyPatch,
        limit: dict[str, int],
    ) -> None:
        for name, value in limit.items():
            monkeypatch.setattr(media, name, value)
        for number in range(3):
            hand_in(recorder, image(), span=f"s{number}")
        recorder.close()
        assert Artifact.objects.count() == 2
        kept = [payload["content"][0] for payload in payloads_of(run, "tool.result")]
        assert [part.get("problem") for part in kept] == [None, None, media.RUN_IS_FULL]

    def test_a_full_disk_is_admitted_in_the_event(
        self, run: Run, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_args: Any, **_kwargs: Any) -> str:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(default_storage, "save", full)
        [part] = keep(recorder, image())
        assert (part["artifact"], part["problem"]) == (None, media.NOT_STORED)

    def test_a_file_that_the_database_refuses_costs_only_itself(
        self, run: Run, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append = timeline.append

        def picky(run_id: Any, events: Any, **options: Any) -> int:
            if options.get("artifacts"):
                raise DatabaseError("value too long")
            return append(run_id, events, **options)

        monkeypatch.setattr(timeline, "append", picky)
        [part] = keep(recorder, image())
        assert (part["artifact"], part["problem"]) == (None, media.NOT_STORED)
        folder = f"runs/{run.pk}"
        assert not default_storage.exists(folder) or default_storage.listdir(folder)[1] == []

    def test_a_lost_claim_leaves_no_files(self, run: Run, recorder: Recorder) -> None:
        Run.objects.update(status="failed")
        hand_in(recorder, image())
        recorder.close()
        assert not Artifact.objects.exists()
        folder = f"runs/{run.pk}"
        assert not default_storage.exists(folder) or default_storage.listdir(folder)[1] == []

    def test_many_parts_keep_their_files_when_the_event_is_cut(
        self, run: Run, recorder: Recorder
    ) -> None:
        texts = [{"type": "text", "text": "x" * 30_000}, image(), {"type": "hologram"}]
        keep(recorder, *texts)
        [payload] = payloads_of(run, "tool.result")
        assert payload["content"][1]["artifact"] == str(Artifact.objects.get(run=run).pk)
        assert json.dumps(payload["_blobs"]["content"])
