"""Signing in and out, the first administrator, and one's own password."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth import login, logout, update_session_auth_hash
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, resolve_url
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from umpteenth.accounts.forms import ChangePasswordForm, ClaimForm, SignInForm
from umpteenth.accounts.limits import admit
from umpteenth.accounts.services import (
    ClaimRefused,
    PeopleError,
    claim_is_open,
    set_password,
)
from umpteenth.accounts.services import claim as claim_link
from umpteenth.core.htmx import Request, hx_redirect, render_page, toast
from umpteenth.core.middleware import client_address

from .errors import locked_out

BACKEND = "django.contrib.auth.backends.ModelBackend"


def safe_next(request: HttpRequest, url: str, default: str = settings.LOGIN_REDIRECT_URL) -> str:
    """The address to go on to, only where it is one of ours."""
    hosts = {request.get_host()}
    if url and url_has_allowed_host_and_scheme(url, hosts, require_https=request.is_secure()):
        return url
    return resolve_url(default)


@sensitive_post_parameters("password")
@login_not_required
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        following = request.GET.get("next", "")
        if request.user.is_authenticated:
            return redirect(safe_next(request, following))
        form = SignInForm(request, initial={"next": following})
        return render_page(request, "accounts/sign_in.html", {"form": form})
    form = SignInForm(request, request.POST)
    if not form.is_valid() or form.user is None:
        return render_page(request, "accounts/sign_in.html", {"form": form}, status=422)
    login(request, form.user, backend=BACKEND)
    return hx_redirect(request, safe_next(request, form.cleaned_data["next"]))


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    logout(request)
    return hx_redirect(request, resolve_url(settings.LOGOUT_REDIRECT_URL))


@sensitive_post_parameters("password")
@login_not_required
@require_http_methods(["GET", "HEAD", "POST"])
def claim(request: HttpRequest, token: str) -> HttpResponse:
    if not claim_is_open(token):
        return render_page(request, "accounts/claim_closed.html", status=404)
    form = ClaimForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            user = claim_link(token, **form.cleaned_data)
        except ClaimRefused:
            return render_page(request, "accounts/claim_closed.html", status=404)
        except PeopleError as error:
            form.add_error("name", str(error))
        else:
            login(request, user, backend=BACKEND)
            return hx_redirect(request, resolve_url(settings.LOGIN_REDIRECT_URL))
    status = 422 if form.is_bound else 200
    return render_page(request, "accounts/claim.html", {"form": form}, status=status)


@sensitive_post_parameters("current", "password")
@require_http_methods(["GET", "HEAD", "POST"])
def password(request: Request) -> HttpResponse:
    if request.method == "POST" and not admit(client_address(request)):
        # Whoever found an open session must not try out its password.
        return locked_out(request)
    form = ChangePasswordForm(request.user, request.POST or None)
    if request.method == "POST" and form.is_valid():
        set_password(request.user, form.cleaned_data["password"], actor=request.user)
        # This session goes on; the new hash ends all others.
        update_session_auth_hash(request, request.user)
        toast(request, "Password changed. Your other sessions have ended.")
        return hx_redirect(request, resolve_url(settings.LOGIN_REDIRECT_URL))
    status = 422 if form.is_bound else 200
    return render_page(request, "accounts/password.html", {"form": form}, status=status)
