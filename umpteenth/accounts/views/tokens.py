"""Settings, API tokens."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.paginator import Paginator
from django.db.models import F, QuerySet
from django.http import Http404, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from umpteenth.accounts.forms import TokenForm
from umpteenth.accounts.models import ApiToken, User
from umpteenth.accounts.tokens import TokenError, create_token, revoke_token
from umpteenth.core import clock
from umpteenth.core.htmx import Request, hx_redirect, render_form, render_page, toast
from umpteenth.core.rest import PREFIX as REST

PER_PAGE = 50


@require_safe
def tokens(request: Request) -> HttpResponse:
    """One's own; administrators see everybody's, so that they can revoke them."""
    return render_page(request, "accounts/tokens.html", _list(request))


def _list(request: Request) -> dict[str, Any]:
    found = _tokens_of(request.user).select_related("owner")
    # What lets somebody in comes first.
    found = found.order_by(F("revoked_at").desc(nulls_first=True), "-created_at", "-id")
    page = Paginator(found, PER_PAGE).get_page(request.GET.get("page"))
    now = clock.now()
    rows = [{"token": token, "state": token.state_at(now)} for token in page]
    return {"page_obj": page, "rows": rows}


@require_http_methods(["GET", "HEAD", "POST"])
def create(request: Request) -> HttpResponse:
    """The answer to the form shows the token. A redirect would have to keep it somewhere."""
    form = TokenForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            token, text = create_token(
                owner=request.user,
                name=form.cleaned_data["name"],
                days=form.days(),
                actor=request.user,
            )
        except TokenError as error:
            form.add_error("name", str(error))
        else:
            shown = {"token": token, "text": text, "base": request.build_absolute_uri(REST)}
            # A dialog lies over the list, which shows the new one at once.
            context = {**shown, **_list(request)}
            return render_form(request, "accounts/token_created.html", context)
    return render_form(request, "accounts/token_create.html", {"form": form})


@require_http_methods(["GET", "HEAD", "POST"])
def revoke(request: Request, pk: UUID) -> HttpResponse:
    token = _tokens_of(request.user).select_related("owner").filter(pk=pk).first()
    if token is None:
        raise Http404("There is no such token, or it is somebody else's.")
    if request.method == "POST":
        revoked = revoke_token(token, actor=request.user)
        toast(request, f"{token.name} {'has been revoked' if revoked else 'was revoked already'}.")
        return hx_redirect(request, reverse("accounts:tokens"))
    return render_form(request, "accounts/token_revoke.html", {"token": token})


def _tokens_of(person: User) -> QuerySet[ApiToken]:
    return ApiToken.objects.all() if person.is_administrator else person.api_tokens.all()
