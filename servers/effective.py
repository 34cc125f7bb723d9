"""What holds for a server, option by option, and where each value comes from.

Nothing here imports Django. The server's sheet, the command line and the documentation show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from servers.limits import KIB, MIB
from servers.options import CATALOGUE, LIMIT_FIELDS, Option, ServerOptions, read

Source = Literal["default", "profile", "set here"]

_LONG_UNITS: Final = (("GiB", 1024 * MIB), ("MiB", MIB), ("KiB", KIB))


@dataclass(frozen=True)
class InForce:
    """One option with the value that holds; `words` are the value as people read it."""

    option: Option
    value: Any
    words: str
    source: Source

    @property
    def name(self) -> str:
        return self.option.name


def in_force(options: Mapping[str, Any], transport: str) -> list[InForce]:
    """Every option that counts for the transport, in the catalogue's order."""
    values = read(options)
    return [
        _in_force(option, options, values) for option in CATALOGUE if transport in option.transports
    ]


def _in_force(option: Option, options: Mapping[str, Any], values: ServerOptions) -> InForce:
    value = _value(option, values)
    if option.name in options:
        return InForce(option, value, value_words(option, value), "set here")
    # The standard profile is the default; its call limit is the common rule.
    by_profile = option.name in LIMIT_FIELDS or option.name == "tool_timeout_secs"
    strict = values.limits_profile != "standard" and value is not None
    source: Source = "profile" if by_profile and strict else "default"
    return InForce(option, value, value_words(option, value), source)


def _value(option: Option, values: ServerOptions) -> Any:
    if option.name in LIMIT_FIELDS:
        return getattr(values.limits, LIMIT_FIELDS[option.name])
    if option.name == "tool_timeout_secs":
        return values.call_timeout
    return getattr(values, option.name)


def value_words(option: Option, value: Any) -> str:
    """`None` is told as the catalogue tells what then holds."""
    if value is None:
        return with_unit(option, option.unset)
    if option.kind == "switch":
        return "on" if value else "off"
    if option.kind == "bytes":
        return size_words(int(value))
    if option.kind in ("seconds", "milliseconds") and not value and not option.minimum:
        return "no limit"
    if option.kind in ("seconds", "milliseconds", "count"):
        return with_unit(option, f"{value:,g}" if isinstance(value, float) else f"{value:,}")
    return str(value) or "none"


def default_words(option: Option) -> str:
    """What holds where nobody set the option."""
    return value_words(option, option.default)


def with_unit(option: Option, words: str) -> str:
    """`60, tool calls excepted` of an option in seconds is `60 s, tool calls excepted`."""
    unit = {"seconds": " s", "milliseconds": " ms"}.get(option.kind, "")
    number, comma, rest = words.partition(", ")
    return f"{number}{unit}{comma}{rest}"


def size_words(size: int) -> str:
    """Whole units where the number is one, so that nothing is rounded: `16 MiB`, `1,500 bytes`."""
    for word, unit in _LONG_UNITS:
        if size and size % unit == 0:
            return f"{size // unit:,} {word}"
    return f"{size:,} bytes"
