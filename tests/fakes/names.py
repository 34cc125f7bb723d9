"""Stands in for the name service: no test asks the real one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

_real = socket.getaddrinfo
_OF_THIS_MACHINE = ("localhost", socket.gethostname().lower())


class Names:
    """Instead of `socket.getaddrinfo`: knows addresses, this machine, and what a test has set."""

    def __init__(self) -> None:
        self._answers: dict[str, list[Sequence[str]]] = {}
        self.asked: list[str] = []

    def set(self, name: str, *addresses: str) -> None:
        """`name` stands for these from now on, in this order."""
        self._answers[name] = [addresses]

    def set_in_turn(self, name: str, *answers: Sequence[str]) -> None:
        """Another answer for each time that somebody asks; the last one stays."""
        self._answers[name] = list(answers)

    def __call__(
        self, host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[Any]:
        def real(host: Any, more: int = 0) -> list[Any]:
            return list(_real(host, port, family, type, proto, flags | more))

        name = host.lower().rstrip(".") if isinstance(host, str) else None
        if name is None or name in _OF_THIS_MACHINE or name.endswith(".localhost"):
            return real(host)
        answers = self._answers.get(name)
        if answers is None:
            return self._numeric(name, real)
        self.asked.append(name)
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        found = [item for address in addresses for item in real(address)]
        if not found:
            raise _unknown()
        return found

    def _numeric(self, name: str, real: Callable[..., list[Any]]) -> list[Any]:
        try:
            return real(name, socket.AI_NUMERICHOST)
        except socket.gaierror:
            self.asked.append(name)
            raise _unknown() from None


def _unknown() -> socket.gaierror:
    return socket.gaierror(socket.EAI_NONAME, "Name or service not known")
