"""What an environment holds, as somebody wrote it: a YAML file, read strictly. No Django here.

Lists of packages make a directory for bubblewrap; an image or a Dockerfile is for an engine.
Packages come by name from the registries that the machine uses, never from an address.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from umpteenth.core.strict_yaml import YamlError, load_yaml
from umpteenth.core.text import clean

MAX_BYTES: Final = 64 * 1024
MAX_NAME: Final = 100
MAX_PACKAGES: Final = 200  # of one kind
MAX_PACKAGE: Final = 200  # characters
MAX_DOCKERFILE: Final = 16 * 1024  # bytes
KINDS: Final = ("python", "npm", "debian")
KEYS: Final = ("name", *KINDS, "image", "dockerfile")

_EXTRAS = r"(?:\[[A-Za-z0-9._-]+(?:,[A-Za-z0-9._-]+)*\])?"
_VERSIONS = (
    r"(?:(?:===|[=~!<>]=|[<>])[A-Za-z0-9.*+!_-]+(?:,(?:===|[=~!<>]=|[<>])[A-Za-z0-9.*+!_-]+)*)?"
)
_PATTERNS: Final[Mapping[str, re.Pattern[str]]] = {
    "python": re.compile(rf"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?{_EXTRAS}{_VERSIONS}"),
    "npm": re.compile(
        r"(?:@[a-z0-9~][a-z0-9._~-]*/)?[a-z0-9~][a-z0-9._~-]*"
        r"(?:@(?:[~^]|[<>]=?)?[A-Za-z0-9][A-Za-z0-9.+_-]*)?"
    ),
    # A trailing - would have apt remove it.
    "debian": re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+](?::[a-z0-9]+)?(?:=[A-Za-z0-9.+:~-]+)?"),
}
_EXAMPLES: Final[Mapping[str, str]] = {
    "python": "humanize or humanize==4.9",
    "npm": "cowsay or cowsay@1.6.0",
    "debian": "jq or jq=1.6-2.1",
}
_IMAGE: Final = re.compile(
    r"[a-z0-9](?:[a-z0-9._/:-]*[a-z0-9])?(?::[\w][\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)


class DefinitionError(ValueError):
    """This is no environment; one sentence that names the key and what to write instead."""


@dataclass(frozen=True)
class Definition:
    """`python`, `npm` and `debian` are sorted, each package once. `image` and `dockerfile`
    exclude each other and the lists."""

    name: str
    python: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    debian: tuple[str, ...] = ()
    image: str = ""
    dockerfile: str = ""

    @property
    def is_for_engine(self) -> bool:
        return bool(self.image or self.dockerfile)

    @property
    def digest(self) -> str:
        """Of the content alone: two names for the same content share what was built."""
        content = {key: getattr(self, key) for key in KEYS if key != "name"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def words(self) -> str:
        """What it holds, in one line."""
        if self.is_for_engine:
            return f"Image {self.image}" if self.image else "Dockerfile"
        names = {"python": "Python", "npm": "npm", "debian": "Debian"}
        found = [(names[kind], getattr(self, kind)) for kind in KINDS if getattr(self, kind)]
        return " · ".join(f"{name}: {', '.join(packages)}" for name, packages in found)


def parse_definition(text: str) -> Definition:
    """Raises `DefinitionError`."""
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise DefinitionError("The definition is larger than 64 KiB.")
    try:
        content = load_yaml(text, "definition")
    except YamlError as error:
        raise DefinitionError(str(error)) from None
    if not isinstance(content, dict):
        raise DefinitionError(
            "An environment is a mapping with the key name and lists of packages."
        )
    for key in content:
        if key not in KEYS:
            raise DefinitionError(
                f"{clean(str(key), 100)}: unknown key; an environment has {', '.join(KEYS)}."
            )
    lists = {kind: _packages(kind, content.get(kind)) for kind in KINDS}
    found = Definition(
        name=_name(content.get("name")),
        image=_image(content.get("image")),
        dockerfile=_dockerfile(content.get("dockerfile")),
        **lists,
    )
    _check_whole(found)
    return found


def _check_whole(found: Definition) -> None:
    given = [key for key in KEYS if key != "name" and getattr(found, key)]
    if not given:
        raise DefinitionError(
            "The environment is empty; list packages under python, npm or debian, or, for an "
            "engine, name an image or write a dockerfile."
        )
    if found.is_for_engine and len(given) > 1:
        raise DefinitionError(
            f"{' and '.join(given)} do not go together; an image or a dockerfile stands alone."
        )


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise DefinitionError("name: must be text, such as data-tools.")
    name = " ".join(clean(value).split())
    if not 0 < len(name) <= MAX_NAME:
        raise DefinitionError(f"name: has 1 to {MAX_NAME} characters.")
    return name


def _packages(kind: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        example = _EXAMPLES[kind].partition(" ")[0]
        raise DefinitionError(f"{kind}: must be a list of packages, such as [{example}].")
    if len(value) > MAX_PACKAGES:
        raise DefinitionError(f"{kind}: has at most {MAX_PACKAGES} packages.")
    # Blanks have no meaning in any of the three: `humanize >= 4` is written in both ways.
    packages = sorted({"".join(item.split()) for item in value})
    for package in packages:
        if len(package) > MAX_PACKAGE or not _PATTERNS[kind].fullmatch(package):
            raise DefinitionError(
                f"{kind}: {clean(package, 80)!r} is no package; write a name, with a version if "
                f"one is wanted: {_EXAMPLES[kind]}. Addresses and paths are not taken."
            )
    return tuple(packages)


def _image(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_PACKAGE or not _IMAGE.fullmatch(value):
        raise DefinitionError("image: must be the name of an image, such as debian:12.")
    return value


def _dockerfile(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or "\0" in value:
        raise DefinitionError("dockerfile: must be text; begin it with | on the key's own line.")
    if len(value.encode("utf-8", "replace")) > MAX_DOCKERFILE:
        raise DefinitionError("dockerfile: is larger than 16 KiB.")
    if not re.search(r"^\s*FROM\s", value, re.IGNORECASE | re.MULTILINE):
        raise DefinitionError("dockerfile: has no line that begins with FROM.")
    return value.strip() + "\n"
