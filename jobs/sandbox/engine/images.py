"""Images of environments: pulled or built, named, removed."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from jobs.sandbox.base import SandboxError, adapter
from jobs.sandbox.engine.adapter import Engine
from jobs.sandbox.engine.client import Client, EngineError
from umpteenth.core.text import clean

if TYPE_CHECKING:
    from docker import APIClient

LOOK_EVERY = 0.5  # seconds between looks whether to stop
REPOSITORY = "ump-environment"
MAX_LINE = 2000


class Stopped(SandboxError):
    """Somebody wanted it to end."""


def _client() -> Client:
    """That of this process's adapter, which knows the engine already."""
    engine = adapter()
    assert isinstance(engine, Engine)
    return engine.client


def image_ready(tag: str) -> bool:
    """Whether the engine has it. Blocks. Raises `SandboxError`."""
    try:
        _client().call(lambda api: api.inspect_image(tag))
    except EngineError as error:
        if error.status == 404:
            return False
        raise
    return True


def make_image(
    *,
    tag: str,
    image: str = "",
    dockerfile: str = "",
    say: Callable[[str], None],
    stopping: Callable[[], bool],
) -> int:
    """Pull `image`, unless it is there, or build `dockerfile` without any files; name it `tag`.
    Where something has this name already, it is made anew from what is newest.

    `say` gets the engine's lines. The size in bytes. Blocks. Raises `SandboxError` with one
    sentence.
    """
    client = _client()
    again = image_ready(tag)
    with client.errors():
        api = client.for_builds()
        try:
            with _ended_when(api, stopping):
                if dockerfile:
                    content = io.BytesIO(dockerfile.encode())
                    wish = {"tag": tag, "rm": True, "forcerm": True, "decode": True}
                    _follow(api.build(fileobj=content, nocache=again, **wish), say)
                else:
                    _pull(api, image, say, again=again)
                    name, _, label = tag.partition(":")
                    api.tag(image, name, label)
            if stopping():
                raise Stopped("The making of the image was stopped.")
            return int(api.inspect_image(tag)["Size"])
        finally:
            api.close()


def _pull(api: APIClient, image: str, say: Callable[[str], None], *, again: bool) -> None:
    """Raises `SandboxError` where there is none in the end."""
    there = image_ready(image)
    if there and not again:
        return
    name, _, label = image.rpartition(":") if _has_label(image) else (image, "", "")
    try:
        with _client().errors():
            _follow(api.pull(name, tag=label or "latest", stream=True, decode=True), say)
    except SandboxError as error:
        if not there:
            raise
        say(f"It could not be fetched again, and stays as it is: {error}")


@contextlib.contextmanager
def _ended_when(api: APIClient, stopping: Callable[[], bool]) -> Iterator[None]:
    """What is made within ends with its connection, also where the engine says nothing more. It may
    carry the step that it is at to its end."""
    answers: list[Any] = []
    api.hooks["response"].append(lambda answer, **_: answers.append(answer))
    done = threading.Event()

    def watch() -> None:
        while not done.wait(LOOK_EVERY):
            if stopping():
                for answer in answers:
                    with contextlib.suppress(OSError, AttributeError):
                        answer.raw.connection.sock.shutdown(socket.SHUT_RDWR)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def remove_image(tag: str) -> None:
    """Take the name away, and the image where it was the last; missing is fine. Blocks."""
    try:
        _client().call(lambda api: api.remove_image(tag))
    except EngineError as error:
        if error.status != 404:
            raise


def images_of_environments() -> list[str]:
    """The names that `make_image` gave. Blocks."""
    images = _client().call(lambda api: api.images())
    # Podman puts a registry before a name that has none.
    names = [name.rpartition("/")[2] for image in images for name in image.get("RepoTags") or ()]
    return sorted({name for name in names if name.startswith(f"{REPOSITORY}:")})


def _has_label(image: str) -> bool:
    return ":" in image.rpartition("/")[2] and "@" not in image


def _follow(answers: Iterable[dict[str, Any]], say: Callable[[str], None]) -> None:
    for answer in answers:
        if words := answer.get("error"):
            raise SandboxError(f"The engine could not make the image: {_line(words)}.")
        words = answer.get("stream") or answer.get("status") or ""
        for line in str(words).splitlines():
            if line.strip():
                say(_line(line))


def _line(words: object) -> str:
    return clean(" ".join(str(words).split()), MAX_LINE).rstrip(".")
