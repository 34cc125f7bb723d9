"""Images of environments: pulled or built, named, removed."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any

from jobs.sandbox.base import SandboxError
from jobs.sandbox.engine.client import Client, EngineError
from umpteenth.core.config import get_options
from umpteenth.core.text import clean

REPOSITORY = "ump-environment"
MAX_LINE = 2000


class Stopped(SandboxError):
    """Somebody wanted it to end."""


def _client() -> Client:
    return Client(get_options().sandbox.engine.url)


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

    `say` gets the engine's lines. The size in bytes. Blocks, and looks at `stopping` with each
    line. Raises `SandboxError` with one sentence.
    """
    client = _client()
    with client.errors():
        api = client.for_builds()
        try:
            if dockerfile:
                content = io.BytesIO(dockerfile.encode())
                wish = {"tag": tag, "rm": True, "forcerm": True, "decode": True}
                _follow(api.build(fileobj=content, **wish), say, stopping)
            else:
                if not image_ready(image):
                    name, _, label = image.rpartition(":") if _has_label(image) else (image, "", "")
                    pulled = api.pull(name, tag=label or "latest", stream=True, decode=True)
                    _follow(pulled, say, stopping)
                name, _, label = tag.partition(":")
                api.tag(image, name, label)
            return int(api.inspect_image(tag)["Size"])
        finally:
            api.close()


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


def _follow(
    answers: Iterable[dict[str, Any]], say: Callable[[str], None], stopping: Callable[[], bool]
) -> None:
    for answer in answers:
        if stopping():
            raise Stopped("The making of the image was stopped.")
        if words := answer.get("error"):
            raise SandboxError(f"The engine could not make the image: {_line(words)}.")
        words = answer.get("stream") or answer.get("status") or ""
        for line in str(words).splitlines():
            if line.strip():
                say(_line(line))


def _line(words: object) -> str:
    return clean(" ".join(str(words).split()), MAX_LINE).rstrip(".")
