"""Logging in to a server at its provider: begin, come back, log out (P38-P42, P52).

These are actions under `/api`, whose addresses providers know; what they show stands on the pages.
"""

from __future__ import annotations

from typing import cast
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_POST

from servers import checks
from servers.access import NotAllowed, require_to_log_in
from servers.models import Server
from servers.oauth import binding, clients
from servers.oauth.types import OAuthError
from servers.views.common import get_server
from umpteenth.accounts.views.errors import error_page
from umpteenth.core.htmx import Request, hx_redirect, toast
from umpteenth.core.rest import refusal, wants_json

UNPROCESSABLE = 422
NO_TOKENS = (
    "An API token can neither begin nor end a login: a person does that in a browser, on the page "
    "MCP Servers."
)


@require_POST
def login(request: Request, pk: UUID) -> HttpResponse:
    """Go to the provider. Without a way there, back to the list with the reason."""
    from servers.oauth.login import begin_login

    server = _get_server(request, pk)
    try:
        address = begin_login(
            server,
            person=request.user,
            session_key=_session_key(request),
            base_url=binding.base_url(_browser(request)),
            register_again=request.POST.get("register_again") == "on",
        )
    except OAuthError as error:
        return _refused(request, server, error)
    return hx_redirect(request, address)


@login_not_required
@require_GET
def callback(request: HttpRequest, pk: UUID) -> HttpResponse:
    """The browser comes back. Where this leads to, no parameter of the answer is left."""
    from servers.oauth.login import finish_login

    _refuse_tokens(request)
    if not request.user.is_authenticated:
        return error_page(
            request,
            403,
            "You are not signed in",
            "A login can be finished only by the person who began it, in the same browser. "
            "Sign in, and start the login again on the page MCP Servers.",
        )
    request = cast(Request, request)
    params = dict(request.GET.lists())
    try:
        outcome = finish_login(
            pk, person=request.user, session_key=_session_key(request), params=params
        )
    except (OAuthError, NotAllowed) as error:
        toast(request, _words(pk, error), "error")
        return hx_redirect(request, reverse("servers:list"))
    if outcome.again:
        return hx_redirect(request, outcome.again)
    toast(request, f"Logged in to {outcome.server.name}.")
    return hx_redirect(request, _list_with_test(outcome.server.pk, request))


@require_POST
def logout(request: Request, pk: UUID) -> HttpResponse:
    from servers.oauth.ending import log_out

    server = _get_server(request, pk)
    if log_out(server, actor=request.user):
        toast(request, f"Logged out of {server.name}.")
    else:
        toast(request, f"Nobody was logged in to {server.name}.", "info")
    return hx_redirect(request, _next(request))


@login_not_required
@require_GET
def client_document(request: HttpRequest, pk: UUID) -> HttpResponse:
    """What a provider reads of us: the document whose address is the client's ID."""
    app_url = settings.OPTIONS.app.url or ""
    is_there = clients.document_url(app_url, pk) is not None
    if not is_there or not Server.objects.filter(pk=pk, transport=Server.Transport.HTTP).exists():
        raise Http404("There is no such client.")
    document = clients.client_document(app_url, pk, binding.callback_url(app_url, pk))
    return JsonResponse(document, headers={"Cache-Control": "public, max-age=3600"})


def _get_server(request: Request, pk: UUID) -> Server:
    """The server, for those who may log in to it: people in a browser (P41)."""
    _refuse_tokens(request)
    try:
        require_to_log_in(request.user)
    except NotAllowed as error:
        raise PermissionDenied(str(error)) from None
    return get_server(pk)


def _refuse_tokens(request: HttpRequest) -> None:
    if getattr(request, "api_token", None) is not None:
        raise PermissionDenied(NO_TOKENS)


def _session_key(request: Request) -> str:
    return request.session.session_key or ""


def _browser(request: Request) -> str:
    """Scheme, host and port in the browser's address bar.

    Its header `Origin` says so, whatever proxies made of the request; Django has compared it with
    the addresses that are ours. Old browsers leave it out.
    """
    origin = request.headers.get("Origin", "")
    if origin:
        return origin
    host = request.get_host()
    app_url = settings.OPTIONS.app.url
    if app_url and urlsplit(app_url).netloc == host:
        return str(app_url)
    return f"{request.scheme}://{host}"


def _list_with_test(server_id: UUID, request: Request) -> str:
    """P39: the dialog opens with the tools that the login has unlocked."""
    servers = reverse("servers:list")
    server = Server.objects.filter(pk=server_id).first()
    try:
        check = server and checks.request_check(server, actor=request.user)
    except Server.DoesNotExist:  # deleted in this very moment
        check = None
    return f"{servers}?check={check.pk}" if check else servers


def _refused(request: Request, server: Server, error: OAuthError) -> HttpResponse:
    if wants_json(request):
        return refusal(UNPROCESSABLE, _words(server.pk, error))
    toast(request, _words(server.pk, error), "error")
    return hx_redirect(request, _next(request))


def _next(request: Request) -> str:
    """The page that asked, if it is one of ours."""
    target = request.POST.get("next", "")
    if target.startswith("/") and url_has_allowed_host_and_scheme(target, allowed_hosts=None):
        return target
    return reverse("servers:list")


def _words(pk: UUID, error: OAuthError | NotAllowed) -> str:
    """It may be read after the page of the server is left, or with several logins under way."""
    name = Server.objects.filter(pk=pk).values_list("name", flat=True).first()
    words = error.words if isinstance(error, OAuthError) else str(error)
    return f"Login to {name} failed: {words}" if name else words
