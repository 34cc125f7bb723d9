"""Settings, People."""

from __future__ import annotations

from uuid import UUID

from django.db.models.functions import Lower
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from umpteenth.accounts.access import administrator_required
from umpteenth.accounts.forms import AddPersonForm, OneTimePasswordForm, RoleForm
from umpteenth.accounts.models import User
from umpteenth.accounts.services import (
    PeopleError,
    activate_user,
    create_user,
    deactivate_user,
    set_password,
    set_role,
)
from umpteenth.core.htmx import Request, hx_redirect, render_form, render_page, toast


@require_safe
def people(request: Request) -> HttpResponse:
    everybody = User.objects.order_by("-is_active", Lower("username"))
    return render_page(request, "accounts/people.html", {"people": everybody})


@sensitive_post_parameters("password")
@administrator_required
@require_http_methods(["GET", "HEAD", "POST"])
def add(request: Request) -> HttpResponse:
    form = AddPersonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            user = create_user(
                name=data["name"],
                password=data["password"],
                administrator=data["role"] == User.Role.ADMINISTRATOR,
                actor=request.user,
                temporary=True,
            )
        except PeopleError as error:
            form.add_error("name", str(error))
        else:
            return _done(request, f"{user.username} can sign in now.")
    return render_form(request, "accounts/person_add.html", {"form": form})


@administrator_required
@require_http_methods(["GET", "HEAD", "POST"])
def role(request: Request, pk: UUID) -> HttpResponse:
    person = get_object_or_404(User, pk=pk)
    form = RoleForm(request.POST or None, initial={"role": person.role})
    if request.method == "POST" and form.is_valid():
        try:
            set_role(person, form.cleaned_data["role"], actor=request.user)
        except PeopleError as error:
            form.add_error("role", str(error))
        else:
            words = person.get_role_display().lower()
            article = "an" if words.startswith("a") else "a"
            return _done(request, f"{person.username} is {article} {words} now.")
    return render_form(request, "accounts/person_role.html", {"form": form, "person": person})


@sensitive_post_parameters("password")
@administrator_required
@require_http_methods(["GET", "HEAD", "POST"])
def one_time_password(request: Request, pk: UUID) -> HttpResponse:
    person = get_object_or_404(User, pk=pk)
    form = OneTimePasswordForm(person, request.POST or None)
    if request.method == "POST" and form.is_valid():
        set_password(person, form.cleaned_data["password"], temporary=True, actor=request.user)
        return _done(request, f"{person.username} signs in with the new password from now on.")
    return render_form(request, "accounts/person_password.html", {"form": form, "person": person})


@administrator_required
@require_http_methods(["GET", "HEAD", "POST"])
def deactivate(request: Request, pk: UUID) -> HttpResponse:
    person = get_object_or_404(User, pk=pk)
    error = ""
    if request.method == "POST":
        try:
            deactivate_user(person, request.user)
        except PeopleError as refused:
            error = str(refused)
        else:
            return _done(request, f"{person.username} has been deactivated.")
    return render_form(
        request,
        "accounts/person_deactivate.html",
        {"person": person, "error": error},
        refused=bool(error),
    )


@administrator_required
@require_POST
def activate(request: Request, pk: UUID) -> HttpResponse:
    person = get_object_or_404(User, pk=pk)
    activate_user(person, request.user)
    return _done(request, f"{person.username} can sign in again.")


def _done(request: Request, words: str) -> HttpResponse:
    toast(request, words)
    return hx_redirect(request, reverse("accounts:people"))
