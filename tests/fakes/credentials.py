"""Credentials of an OAuth login that tests hold in their hands: a row of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from servers.mcp.types import Challenge


class FakeCredentials:
    """Gives the first of `tokens`, and at each refusal the next one; `asked` is what happened."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)
        self.asked: list[str] = []
        self.challenges: list[Challenge] = []
        self.error: Exception | None = None  # raised when a token is asked for

    async def token(self) -> str:
        if self.error is not None:
            raise self.error
        return self.tokens[0]

    async def renewed(self, refused: str, challenge: Challenge, *, sure: bool) -> str:
        self.asked.append(f"renewed {refused}{'' if sure else ' perhaps'}")
        self.challenges.append(challenge)
        if self.tokens[0] != refused:
            return self.tokens[0]
        if len(self.tokens) == 1:
            return ""
        self.tokens.pop(0)
        return self.tokens[0]

    async def given_up(self, refused: str, challenge: Challenge) -> None:
        self.asked.append(f"given up {refused}")

    async def wants_scopes(self, challenge: Challenge) -> None:
        self.asked.append(f"wants {challenge.scope}")

    def tell(self, learn: Callable[[Mapping[str, str]], None]) -> None:
        learn({"token": self.tokens[0]})
