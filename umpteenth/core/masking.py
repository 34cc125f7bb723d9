"""Takes secret values out of text before it is stored or shown (design, section 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Masker:
    """Replaces known values of 6 or more characters with `[secret NAME]`."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})

    @property
    def is_empty(self) -> bool:
        return not self._values

    def add(self, name: str, value: str) -> None:
        self._values[name] = value

    def mask(self, text: str) -> str:
        for name, value in self._values.items():
            if len(value) >= 6:
                text = text.replace(value, f"[secret {name}]")
        return text

    def mask_json(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, dict):
            return {self.mask(str(key)): self.mask_json(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mask_json(item) for item in value]
        return value


_known = Masker()


def known_values() -> Masker:
    """What this process has resolved so far; logs are masked with it."""
    return _known
