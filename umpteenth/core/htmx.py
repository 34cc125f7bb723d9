"""Whole page or fragment: the one place that decides it, and what goes along with a fragment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.utils.cache import patch_vary_headers
from django_htmx.http import HttpResponseClientRedirect
from django_htmx.middleware import HtmxDetails

if TYPE_CHECKING:
    from umpteenth.accounts.models import ApiToken, User

Level = Literal["success", "error", "info"]
_LEVELS = {"success": messages.SUCCESS, "error": messages.ERROR, "info": messages.INFO}


class Request(HttpRequest):
    """A request of a signed-in person; views name it as the type of their first argument."""

    htmx: HtmxDetails
    if TYPE_CHECKING:
        user: User
        api_token: ApiToken | None  # what the person came with; None: a browser's session


def wants_fragment(request: HttpRequest) -> bool:
    """True for htmx, but not where it asks for a page to show (boosted, or Back)."""
    htmx: HtmxDetails | None = getattr(request, "htmx", None)
    if htmx is None or not htmx:
        return False
    return not htmx.boosted and not htmx.history_restore_request


def render_page(
    request: HttpRequest,
    template: str,
    context: dict[str, Any] | None = None,
    *,
    partial: str | None = None,
    status: int = 200,
) -> HttpResponse:
    """The page, or for htmx its `partial` followed by the waiting toasts.

    Answer an invalid form with `status=422`: browsers show it and htmx swaps it in.
    """
    context = {**(context or {})}
    if partial is not None and wants_fragment(request):
        context["is_fragment"] = True
        body = render_to_string(partial, context, request)
        body += render_to_string("partials/toasts_oob.html", {}, request)
    else:
        context["is_fragment"] = False
        body = render_to_string(template, context, request)
    response = HttpResponse(body, status=status)
    patch_vary_headers(response, ["HX-Request"])
    return response


def render_form(
    request: HttpRequest, template: str, context: dict[str, Any], *, refused: bool = False
) -> HttpResponse:
    """A form as a page, or as the fragment of a dialog: `room/_name.html` beside `room/name.html`.

    Status 422 where it is `refused`, or where `context["form"]` was sent: what could be accepted
    has been answered otherwise.
    """
    room, _, name = template.rpartition("/")
    form = context.get("form")
    sent = form is not None and form.is_bound
    return render_page(
        request,
        template,
        context,
        partial=f"{room}/_{name}",
        status=422 if refused or sent else 200,
    )


def toast(
    request: HttpRequest, text: str, level: Level = "success", undo_url: str | None = None
) -> None:
    """Show a message at the bottom right, now or on the next page. `undo_url` takes a POST."""
    messages.add_message(request, _LEVELS[level], text, extra_tags=undo_url or "")


def hx_redirect(request: HttpRequest, url: str) -> HttpResponse:
    """Go to another page: HX-Redirect for htmx, else 303."""
    if getattr(request, "htmx", None):
        return HttpResponseClientRedirect(url)
    response = HttpResponseRedirect(url)
    response.status_code = 303
    return response
