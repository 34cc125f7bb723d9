"""The dashboard, search, the theme, general facts and the audit log."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core.paginator import Paginator
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST, require_safe

from umpteenth import __version__
from umpteenth.accounts import dashboard as dashboard_parts
from umpteenth.accounts.access import administrator_required
from umpteenth.accounts.forms import SearchForm, ThemeForm
from umpteenth.accounts.models import AuditEntry
from umpteenth.accounts.places import SETTINGS, open_to
from umpteenth.accounts.search import search as find
from umpteenth.core.htmx import Request, hx_redirect, render_page

from .session import safe_next

AUDIT_PAGE = 50
THEME_AGE = 365 * 24 * 3600  # seconds


@require_safe
def dashboard(request: Request) -> HttpResponse:
    steps = dashboard_parts.steps(request)
    context = {
        "panels": dashboard_parts.panels(request),
        "steps": [] if all(step["done"] for step in steps) else steps,
    }
    return render_page(request, "dashboard.html", context)


@require_safe
def search(request: Request) -> HttpResponse:
    form = SearchForm(request.GET)
    words = form.cleaned_data["q"].strip() if form.is_valid() else ""
    context = {"words": words, "hits": find(request.user, words)}
    return render_page(request, "accounts/search.html", context, partial="accounts/_hits.html")


@login_not_required
@require_POST
def theme(request: HttpRequest) -> HttpResponse:
    """Without script: remember the theme and return. The script sets the same cookie itself."""
    form = ThemeForm(request.POST)
    valid = form.is_valid()
    following = form.cleaned_data.get("next", "")
    response = hx_redirect(request, safe_next(request, following))
    if valid:
        response.set_cookie(
            "theme",
            form.cleaned_data["theme"],
            max_age=THEME_AGE,
            secure=settings.SECURE,
            samesite="Lax",
        )
    return response


@require_safe
def settings_start(request: Request) -> HttpResponse:
    """The first of the settings' pages that this person may see."""
    return redirect(next(place.view for place in SETTINGS if open_to(request.user, place)))


@require_safe
def general(request: Request) -> HttpResponse:
    options = settings.OPTIONS
    facts = [
        ("Address", options.app_url),
        ("Version", __version__),
        ("Database", "PostgreSQL" if connection.vendor == "postgresql" else "SQLite"),
        ("Queue", "Redis" if options.redis.url else "Embedded, in the data directory"),
        ("Run slots per worker", options.runs.max_concurrent),
        ("Trusted proxies", ", ".join(options.app.trusted_proxies) or "None"),
        ("Cookies only over HTTPS", "Yes" if settings.SECURE else "No"),
    ]
    return render_page(request, "accounts/general.html", {"facts": facts})


@administrator_required
@require_safe
def audit(request: Request) -> HttpResponse:
    entries = AuditEntry.objects.order_by("-at", "-id")
    page = Paginator(entries, AUDIT_PAGE).get_page(request.GET.get("page"))
    return render_page(request, "accounts/audit.html", {"page_obj": page})
