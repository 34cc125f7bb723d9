"""Forms about people and their API tokens."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth import authenticate
from django.http import HttpRequest

from .models import User
from .services import PeopleError, check_password_rules
from .tokens import MAX_NAME

WRONG = "The name or the password is wrong."
PASSWORD_HELP = "At least 10 characters, and not a common password."
# Hashing takes time in proportion to the length; nobody types more than this.
MAX_PASSWORD = 500


def _password(label: str, *, new: bool, **kwargs: Any) -> forms.CharField:
    autocomplete = "new-password" if new else "current-password"
    return forms.CharField(
        label=label,
        strip=False,
        max_length=MAX_PASSWORD,
        widget=forms.PasswordInput(attrs={"autocomplete": autocomplete}),
        **kwargs,
    )


def _name() -> forms.CharField:
    attrs = {"autocomplete": "username", "autocapitalize": "none", "spellcheck": "false"}
    return forms.CharField(label="Name", max_length=150, widget=forms.TextInput(attrs=attrs))


class SignInForm(forms.Form):
    """Checks name and password; `user` holds the person afterwards."""

    name = _name()
    password = _password("Password", new=False)
    next = forms.CharField(required=False, max_length=2000, widget=forms.HiddenInput)

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.request = request
        self.user: User | None = None

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if not self.errors:
            # One sentence whether the name, the password or the activation is at fault.
            user = authenticate(
                self.request, username=cleaned["name"], password=cleaned["password"]
            )
            if not isinstance(user, User):
                raise forms.ValidationError(WRONG)
            self.user = user
        return cleaned


class _NewPassword(forms.Form):
    """Mixin: a new password, checked by the rules."""

    def _person(self) -> User | None:
        return None

    def clean_password(self) -> str:
        password: str = self.cleaned_data["password"]
        try:
            check_password_rules(password, self._person())
        except PeopleError as error:
            raise forms.ValidationError(str(error)) from None
        return password


class ClaimForm(_NewPassword):
    name = _name()
    password = _password("Password", new=True, help_text=PASSWORD_HELP)

    def _person(self) -> User | None:
        return User(username=self.cleaned_data.get("name", ""))


class AddPersonForm(ClaimForm):
    """A person with a password that an administrator typed."""

    password = _password(
        "One-time password",
        new=True,
        help_text="Tell it to the person. They choose their own when they first sign in. "
        + PASSWORD_HELP,
    )
    role = forms.ChoiceField(choices=User.Role.choices, initial=User.Role.MEMBER)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["name"].widget.attrs["autocomplete"] = "off"


class RoleForm(forms.Form):
    role = forms.ChoiceField(choices=User.Role.choices)


class OneTimePasswordForm(_NewPassword):
    password = _password("One-time password", new=True, help_text=PASSWORD_HELP)

    def __init__(self, person: User, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.person = person

    def _person(self) -> User | None:
        return self.person


class ChangePasswordForm(_NewPassword):
    """The current password proves that the person is still the one who signed in."""

    current = _password("Current password", new=False)
    password = _password("New password", new=True, help_text=PASSWORD_HELP)

    def __init__(self, person: User, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.person = person

    def _person(self) -> User | None:
        return self.person

    def clean_current(self) -> str:
        current: str = self.cleaned_data["current"]
        if not self.person.check_password(current):
            raise forms.ValidationError("The current password is wrong.")
        return current

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("current") and cleaned.get("current") == cleaned.get("password"):
            self.add_error("password", "The new password is the same as the current one.")
        return cleaned


class TokenForm(forms.Form):
    name = forms.CharField(
        max_length=MAX_NAME,
        help_text="What will use it, such as a script or a machine.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    expires = forms.ChoiceField(
        choices=[
            ("7", "In 7 days"),
            ("30", "In 30 days"),
            ("90", "In 90 days"),
            ("365", "In a year"),
            ("never", "Never"),
        ],
        initial="90",
    )

    def days(self) -> int | None:
        chosen: str = self.cleaned_data["expires"]
        return None if chosen == "never" else int(chosen)


class ThemeForm(forms.Form):
    theme = forms.ChoiceField(choices=[("light", "Light"), ("dark", "Dark")])
    next = forms.CharField(required=False, max_length=2000)


class SearchForm(forms.Form):
    q = forms.CharField(required=False, max_length=200)
