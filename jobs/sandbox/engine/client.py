"""The engine's API through the `docker` package, which is loaded when first asked for."""

from __future__ import annotations

import contextlib
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from jobs.sandbox.base import SandboxError
from umpteenth.core.text import clean

if TYPE_CHECKING:
    from docker import APIClient

T = TypeVar("T")

TIMEOUT = 60  # seconds for one request
BUILD_TIMEOUT = 600  # seconds between two lines of a build or a download
MAX_POOLS = 4  # the package keeps a pool of connections for each path that was asked for
MAX_WORDS = 300  # characters of the engine's own words that are passed on
# For requests of all event loops of this process; a thread waits for one answer at a time.
POOL = ThreadPoolExecutor(16, thread_name_prefix="engine")
# For what ends sandboxes, which must not wait behind those that an engine is slow to make.
ENDS = ThreadPoolExecutor(8, thread_name_prefix="engine-ends")


class EngineError(SandboxError):
    """The engine refused or did not answer. `status` is the answer's, 0 without one."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_gone(self) -> bool:
        """Podman says it as an error of its own where somebody removes it meanwhile."""
        return self.status == 404 or "no such container" in str(self)


class Client:
    """One engine. Safe to use from several threads."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._lock = threading.Lock()
        self._api: APIClient | None = None

    def call(self, work: Callable[[APIClient], T]) -> T:
        """Ask the engine something; blocks. Raises `EngineError`."""
        with self.errors():
            return work(self.api())

    def api(self) -> APIClient:
        """The connection, made when first needed. Raises what `errors` translates."""
        from docker import APIClient

        with self._lock:
            if self._api is None:
                # The package would leave a socket open that could not be connected.
                with socket.socket(socket.AF_UNIX) as trial:
                    trial.settimeout(TIMEOUT)
                    trial.connect(self.url.removeprefix("unix://"))
                self._api = APIClient(
                    self.url, version="auto", timeout=TIMEOUT, num_pools=MAX_POOLS
                )
                weakref.finalize(self, self._api.close)
            return self._api

    def for_builds(self) -> APIClient:
        """One more, for answers that come slowly; the caller closes it."""
        from docker import APIClient

        return APIClient(self.url, version="auto", timeout=BUILD_TIMEOUT)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Whatever goes wrong with the engine becomes an `EngineError`."""
        from docker.errors import APIError, DockerException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except APIError as error:
            status = int(error.status_code or 0)
            raise EngineError(_words(error.explanation or str(error)), status) from None
        # Those of requests are OSErrors; where an answer is read piece by piece urllib3's come.
        except (DockerException, HTTPError, OSError) as error:
            words = f"the engine at {self.url} does not answer ({_words(_cause(error))})"
            raise EngineError(words) from None


def _cause(error: BaseException) -> str:
    """The system's own words, of which the HTTP library wraps five times around."""
    seen: Any = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return str(seen.strerror)
        seen = seen.__cause__ or seen.__context__
    return str(error)


def _words(text: object) -> str:
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    found = " ".join(clean(str(text)).split())
    return found[:MAX_WORDS].rstrip(". ")
