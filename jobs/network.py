"""What a job's run may reach over the network, and how names of domains are written.

No Django here: the proxy that carries it out (`jobs.sandbox.egress`) reads the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import idna

from umpteenth.core.addresses import literal
from umpteenth.core.text import clean

NONE: Final = "none"
INTERNET: Final = "internet"
DOMAINS: Final = "domains"
UNRESTRICTED: Final = "unrestricted"
GUARDED: Final = (INTERNET, DOMAINS)  # through the proxy, which looks at each connection

MAX_DOMAINS: Final = 200
MAX_DOMAIN: Final = 253  # characters; no name in the DNS is longer
_MAX_SHOWN: Final = 80
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_DOTS: Final = str.maketrans({"\u3002": ".", "\uff0e": ".", "\uff61": "."})  # RFC 3490, 3.1


# P23. Programs that fetch what they start.
DOWNLOADERS: Final = frozenset({"npx", "npm", "pnpx", "pnpm", "bunx", "uvx", "uv", "pipx"})
NEEDS_DOWNLOAD: Final = (
    "npx -y and uvx download at each start and need the job setting Internet access. With "
    "No network the package has to be installed already, by the job's environment if not on the "
    "machine, and the command has to be the installed one."
)


class DomainError(ValueError):
    """This is no name of a domain; one sentence that names it."""


@dataclass(frozen=True)
class NetworkRules:
    """What one run may reach. `domains` are as `normalise_domain` writes them.

    `allow_private` counts for the guarded modes only; the installation's own rules and cloud
    metadata come first, whatever stands here.
    """

    mode: str
    domains: tuple[str, ...] = ()
    allow_private: bool = False

    @property
    def is_guarded(self) -> bool:
        return self.mode in GUARDED

    @property
    def is_unrestricted(self) -> bool:
        return self.mode == UNRESTRICTED

    def allows_name(self, host: str) -> bool:
        """Whether the mode lets through this name; addresses are looked at apart from that.

        Under Allowed domains only an address that is written out never passes.
        """
        if self.mode != DOMAINS:
            return self.mode in (INTERNET, UNRESTRICTED)
        try:
            name = normalise_name(host)
        except DomainError:
            return False
        return any(_covers(domain, name) for domain in self.domains)


def _covers(domain: str, name: str) -> bool:
    """`*.example.org` stands for all names below example.org, and not for itself."""
    return name.endswith(domain[1:]) if domain.startswith("*.") else name == domain


def split_domains(text: str) -> tuple[str, ...]:
    """What somebody typed: one a line, or with blanks or commas between."""
    return tuple(text.replace(",", " ").replace(";", " ").split())


def normalise_domains(domains: Iterable[str]) -> tuple[str, ...]:
    """Each once, in the order given. Raises `DomainError` for the first that is none."""
    return tuple(dict.fromkeys(normalise_domain(domain) for domain in domains))


def normalise_domain(text: str) -> str:
    """An exact name, or `*.` and a name for all below it. Raises `DomainError`."""
    text = text.strip()
    if text.startswith("*."):
        return "*." + normalise_name(text[2:], shown=text)
    return normalise_name(text)


def normalise_name(text: str, *, shown: str = "") -> str:
    """The name as the DNS knows it: lower case, ASCII (IDNA 2008), no dot at the end."""
    shown = clean(shown or text, _MAX_SHOWN)
    name = text.translate(_DOTS).removesuffix(".")
    _refuse_what_is_more(name, shown)
    ascii_name = ".".join(_label(label, shown) for label in name.split("."))
    if len(ascii_name) > MAX_DOMAIN:
        raise _too_long(shown)
    _refuse_an_address(ascii_name, shown)  # it may have been written in full-width digits
    return ascii_name


def _refuse_what_is_more(name: str, shown: str) -> None:
    if not name:
        raise DomainError("A domain is a name such as api.example.org or *.example.org.")
    if len(name) > 4 * MAX_DOMAIN:  # before anything looks at each of its characters
        raise _too_long(shown)
    if name == "*":
        raise DomainError("* alone would be all domains; choose Internet access for that.")
    if "*" in name:
        raise DomainError(
            f"{shown} has * in a place where it means nothing; it stands first and before a dot, "
            "as in *.example.org."
        )
    _refuse_an_address(name.strip("[]"), shown)
    if any(sign in name for sign in "/:@?#"):
        raise DomainError(
            f"{shown} is more than a name; write it like api.example.org, without https://, port "
            "and path."
        )


def _refuse_an_address(name: str, shown: str) -> None:
    if literal(name) is not None:
        raise DomainError(f"{shown} is an address; only names of domains can be allowed.")


def _label(label: str, shown: str) -> str:
    lower = label.lower()
    if lower.isascii() and not lower.startswith("xn--"):
        if _LABEL.fullmatch(lower):
            return lower
        raise _no_name(shown)
    try:
        # In ASCII again after the mapping: full-width letters, say.
        mapped = idna.encode(label, uts46=True).decode().lower()
    except (idna.IDNAError, UnicodeError):
        raise _no_name(shown) from None
    if not _LABEL.fullmatch(mapped):
        raise _no_name(shown)
    return mapped


def _too_long(shown: str) -> DomainError:
    return DomainError(f"{shown} is longer than a name can be ({MAX_DOMAIN} characters).")


def _no_name(shown: str) -> DomainError:
    return DomainError(
        f"{shown} is no name of a domain; write one such as api.example.org or *.example.org."
    )
