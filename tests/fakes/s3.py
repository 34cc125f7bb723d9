"""A bucket on this machine that speaks as much S3 as boto3 needs here."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from unittest.mock import patch
from urllib.parse import parse_qs, unquote, urlsplit

from umpteenth.core.config import S3Options, StorageOptions

BUCKET = "files"
ACCESS_KEY = "the-access-key"


@dataclass
class FakeS3:
    """Objects by key; `requests` are (method, key, Range) of whatever was asked."""

    objects: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    # Answer everything with this status.
    broken: int = 0
    endpoint: str = ""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    bucket: FakeS3


@contextmanager
def fake_s3() -> Iterator[FakeS3]:
    """Nothing of this machine's own settings of AWS counts."""
    own = {"AWS_CONFIG_FILE": "/nowhere", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere"}
    own |= {"AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1"}
    with patch.dict(os.environ, own), _Server(("127.0.0.1", 0), _Handler) as server:
        server.bucket = FakeS3(endpoint=f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server.bucket
        server.shutdown()
        thread.join()


def options_for(held: FakeS3, **changes: str) -> StorageOptions:
    values = {"endpoint": held.endpoint, "access_key": ACCESS_KEY, "secret_key": "hunter22"}
    values |= {"bucket": BUCKET, "prefix": "production", "region": "eu-1", "addressing": "path"}
    return StorageOptions(backend="s3", s3=S3Options.model_validate(values | changes))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", headers.get("length") or str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode())

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        body = self._body()
        query = parse_qs(parts.query, keep_blank_values=True)
        held = cast(_Server, self.server).bucket
        held.requests.append((self.command, key, self.headers.get("Range") or ""))
        if held.broken:
            self._refuse(held.broken, "Broken")
        elif ACCESS_KEY not in (self.headers.get("Authorization") or ""):
            self._refuse(403, "InvalidAccessKeyId")
        elif bucket != BUCKET:
            self._refuse(404, "NoSuchBucket")
        else:
            getattr(self, f"_{self.command.lower()}")(held, key, query, body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

    def _body(self) -> bytes:
        """As it is, or out of the chunks with signatures that S3 knows."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" not in (self.headers.get("Content-Encoding") or ""):
            return body
        found = b""
        while match := re.match(rb"([0-9a-f]+)[^\r]*\r\n", body):
            size = int(match[1], 16)
            found += body[match.end() : match.end() + size]
            body = body[match.end() + size + 2 :]
        return found

    def _list(self, held: FakeS3, query: dict[str, list[str]]) -> None:
        """One page of the names below a prefix."""
        start = query["prefix"][0]
        below = [key[len(start) :].partition("/") for key in held.objects if key.startswith(start)]
        files = [
            f"<Contents><Key>{start}{a}</Key></Contents>" for a, slash, _ in below if not slash
        ]
        folders = {a for a, slash, _ in below if slash}
        found = [f"<CommonPrefixes><Prefix>{start}{a}/</Prefix></CommonPrefixes>" for a in folders]
        body = f"<ListBucketResult>{''.join(files + found)}</ListBucketResult>"
        self._answer(200, body.encode(), Content_Type="application/xml")

    def _get(self, held: FakeS3, key: str, query: Any, body: bytes) -> None:
        if not key:
            self._list(held, query)
            return
        if key not in held.objects:
            self._refuse(404, "NoSuchKey")
            return
        content = held.objects[key]
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if wanted is None:
            self._answer(200, content, ETag='"x"')
            return
        first, last = int(wanted[1]), min(int(wanted[2]), len(content) - 1)
        if first > last:
            self._refuse(416, "InvalidRange")
            return
        where = f"bytes {first}-{last}/{len(content)}"
        self._answer(206, content[first : last + 1], ETag='"x"', Content_Range=where)

    _head = _get

    def _put(self, held: FakeS3, key: str, query: Any, body: bytes) -> None:
        if "uploadId" in query:
            held.uploads[query["uploadId"][0]][int(query["partNumber"][0])] = body
        else:
            held.objects[key] = body
        self._answer(200, ETag='"x"')

    def _post(self, held: FakeS3, key: str, query: Any, body: bytes) -> None:
        if "uploads" in query:
            name = f"upload-{len(held.uploads)}"
            held.uploads[name] = {}
            inner = f"<Key>{key}</Key><UploadId>{name}</UploadId>"
            answer = f"<InitiateMultipartUploadResult>{inner}</InitiateMultipartUploadResult>"
        else:
            parts = held.uploads.pop(query["uploadId"][0])
            held.objects[key] = b"".join(parts[number] for number in sorted(parts))
            answer = "<CompleteMultipartUploadResult/>"
        self._answer(200, answer.encode())

    def _delete(self, held: FakeS3, key: str, query: Any, body: bytes) -> None:
        held.objects.pop(key, None)
        self._answer(204)
