"""Settings, Secrets; and the list behind the key button."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_safe

from secrets_vault import queries
from secrets_vault.errors import BadSecret, SecretError
from secrets_vault.forms import (
    VALUE_AGAIN,
    CreateSecretForm,
    EditSecretForm,
    QuickSecretForm,
    SearchForm,
)
from secrets_vault.models import Secret
from secrets_vault.services import (
    Saved,
    create_secret,
    delete_secret,
    is_held,
    is_readable,
    update_secret,
    usages_of,
)
from umpteenth.accounts.access import administrator_required
from umpteenth.core.config import ConfigError
from umpteenth.core.htmx import Request, hx_redirect, render_form, render_page, toast


@require_safe
def secrets(request: Request) -> HttpResponse:
    words = _words(request)
    page, rows = queries.page_of(words, request.GET.get("page"))
    context = {"page_obj": page, "rows": rows, "q": words}
    return render_page(
        request, "secrets_vault/list.html", context, partial="secrets_vault/_list.html"
    )


@sensitive_post_parameters("value")
@administrator_required
@require_http_methods(["GET", "HEAD", "POST"])
def create(request: Request) -> HttpResponse:
    form = CreateSecretForm(request.POST or None)
    if request.method == "POST" and (saved := _create(request, form)):
        return _done(request, f"Secret {saved.secret.name} created.", saved)
    return render_form(request, "secrets_vault/create.html", {"form": form})


@sensitive_post_parameters("value")
@administrator_required
@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: Request, pk: UUID) -> HttpResponse:
    secret = get_object_or_404(Secret, pk=pk)
    form = EditSecretForm(request.POST or None, initial=EditSecretForm.initial_of(secret))
    if request.method == "POST" and form.is_valid():
        try:
            saved = update_secret(secret, actor=request.user, data=form.data_entered)
        except ConfigError as error:
            form.add_error(None, str(error))
        else:
            what = "has a new value" if form.cleaned_data["value"] else "saved"
            return _done(request, f"Secret {secret.name} {what}.", saved)
    return render_form(
        request,
        "secrets_vault/edit.html",
        {"form": form, "secret": secret, "readable": is_readable(secret)},
    )


@administrator_required
@require_http_methods(["GET", "HEAD", "POST"])
def delete(request: Request, pk: UUID) -> HttpResponse:
    secret = get_object_or_404(Secret, pk=pk)
    error = ""
    if request.method == "POST":
        try:
            delete_secret(secret, actor=request.user)
        except SecretError as refused:
            error = str(refused)
        else:
            return _done(request, f"Secret {secret.name} deleted.")
    context = {
        "secret": secret,
        "uses": usages_of(secret.name),
        "held": is_held(secret),
        "error": error,
    }
    return render_form(request, "secrets_vault/delete.html", context, refused=bool(error))


@require_safe
def options(request: Request) -> HttpResponse:
    """What the key button offers to this person."""
    words = _words(request)
    found, more = queries.options(words, request.user)
    context = {"options": found, "more": more, "q": words}
    return render(request, "secrets_vault/_options.html", context)


@sensitive_post_parameters("value")
@administrator_required
@require_http_methods(["GET", "HEAD", "POST"])
def quick(request: Request) -> HttpResponse:
    """`New secret…` of the key button: a small form that answers with the new name."""
    form = QuickSecretForm(request.POST or None, initial={"name": _words(request)})
    context: dict[str, Any] = {"form": form}
    if request.method == "POST":
        context["saved"] = _create(request, form)
    status = 422 if form.is_bound and form.errors else 200
    return render(request, "secrets_vault/_quick.html", context, status=status)


def _words(request: Request) -> str:
    form = SearchForm(request.GET)
    return str(form.cleaned_data["q"]) if form.is_valid() else ""


def _create(request: Request, form: CreateSecretForm | QuickSecretForm) -> Saved | None:
    """The new secret, or None where the form says what is wrong."""
    if not form.is_valid():
        return None
    name = form.cleaned_data["name"]
    try:
        return create_secret(actor=request.user, name=name, data=form.data_entered)
    except BadSecret as error:
        form.add_error(error.field, str(error))
        form.add_error("value", VALUE_AGAIN)
    except ConfigError as error:
        form.add_error(None, str(error))
        form.add_error("value", VALUE_AGAIN)
    return None


def _done(request: Request, words: str, saved: Saved | None = None) -> HttpResponse:
    toast(request, " ".join([words, *(saved.notes if saved else [])]))
    return hx_redirect(request, reverse("secrets:list"))
