"""Who is really asking, and what goes with every page."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from functools import lru_cache
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import resolve_url
from django_htmx.http import HttpResponseClientRedirect

Handler = Callable[[HttpRequest], HttpResponse]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Headers that only a trusted proxy may set.
_FORWARDED = ("HTTP_X_FORWARDED_FOR", "HTTP_X_FORWARDED_PROTO", "HTTP_X_FORWARDED_HOST")


class ClientAddressMiddleware:
    """Sets REMOTE_ADDR to the client behind trusted proxies; drops what others forward.

    X-Forwarded-For is read from the right: each proxy appends the address that it saw, so the
    first entry that is no trusted proxy is the client, and what stands further left is hearsay.
    """

    def __init__(self, get_response: Handler) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        peer = _parse_address(str(request.META.get("REMOTE_ADDR", "")))
        trusted = _networks(tuple(settings.OPTIONS.app.trusted_proxies))
        if peer is None or not _is_trusted(peer, trusted):
            for name in _FORWARDED:
                request.META.pop(name, None)
        else:
            peer = _nearest_stranger(request.META.get("HTTP_X_FORWARDED_FOR", ""), peer, trusted)
        if peer is not None:
            request.META["REMOTE_ADDR"] = str(peer)
        return self.get_response(request)


@lru_cache(maxsize=4)
def _networks(items: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(item, strict=False) for item in items)


def _is_trusted(address: Address, trusted: Sequence[Network]) -> bool:
    return any(address.version == network.version and address in network for network in trusted)


def _parse_address(text: str) -> Address | None:
    """An address, also as `1.2.3.4:5678` or `[::1]:5678`; None for anything else."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _nearest_stranger(forwarded: str, peer: Address, trusted: Sequence[Network]) -> Address:
    nearest = peer
    for entry in reversed(forwarded.split(",")):
        address = _parse_address(entry)
        if address is None:
            break
        nearest = address
        if not _is_trusted(address, trusted):
            break
    return nearest


def client_address(request: HttpRequest) -> str:
    """The address that limits count by: whole for IPv4, the /64 of one customer for IPv6."""
    address = _parse_address(str(request.META.get("REMOTE_ADDR", "")))
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False).network_address)
    return str(address or "0.0.0.0")


class PageMiddleware:
    """No page is stored, and htmx meets sign-in as a page."""

    def __init__(self, get_response: Handler) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if not response.has_header("Cache-Control"):
            # Back must not show a page of somebody who has signed out.
            response["Cache-Control"] = "no-store"
        if getattr(request, "htmx", None) and _leads_to_sign_in(response):
            return _sign_in_as_page(request)
        return response


def _leads_to_sign_in(response: HttpResponse) -> bool:
    location = response.get("Location", "")
    sign_in = resolve_url(settings.LOGIN_URL)
    return response.status_code == 302 and urlsplit(location).path == sign_in


def _sign_in_as_page(request: HttpRequest) -> HttpResponse:
    """The session ended: a redirect would put the sign-in form inside a fragment."""
    query = QueryDict(mutable=True)
    current = urlsplit(request.headers.get("HX-Current-URL", ""))
    query[REDIRECT_FIELD_NAME] = current.path + (f"?{current.query}" if current.query else "")
    return HttpResponseClientRedirect(f"{resolve_url(settings.LOGIN_URL)}?{query.urlencode('/')}")
