"""At most 20 attempts to sign in a minute from one address.

django-axes' own handler counts failures after the password was checked, in rows that live on
while they are fed: a burst of simultaneous attempts passes it unchecked, and one failure every 50
seconds locks in the end. Here an attempt is written down before the password is looked at, so
that of any number at once only 20 get through.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from axes.handlers.base import AbstractAxesHandler, AxesBaseHandler
from django.http import HttpRequest

from umpteenth.core.clock import database_now
from umpteenth.core.middleware import client_address

from .models import SignInAttempt

ATTEMPTS = 20
PERIOD = timedelta(minutes=1)


def admit(address: str) -> bool:
    """Count an attempt from this address; False where it is one too many.

    A refused attempt is not counted further: who waits a minute gets in, even while somebody
    else at the same address keeps trying.
    """
    now = database_now()
    SignInAttempt.objects.filter(at__lte=now - PERIOD).delete()
    attempt = SignInAttempt.objects.create(address=address, at=now)
    recent = SignInAttempt.objects.filter(address=address, at__gt=now - PERIOD).count()
    if recent > ATTEMPTS:
        attempt.delete()
        return False
    return True


class AttemptsPerMinute(AbstractAxesHandler, AxesBaseHandler):  # type: ignore[misc]
    """Tells django-axes whether an attempt may go on to the password check."""

    def is_allowed(self, request: HttpRequest, credentials: dict[str, Any] | None = None) -> bool:
        return admit(client_address(request))

    def get_failures(self, request: HttpRequest, credentials: dict[str, Any] | None = None) -> int:
        return 0

    def user_login_failed(self, *args: Any, **kwargs: Any) -> None:
        """The attempt has been counted already."""

    def user_logged_in(self, *args: Any, **kwargs: Any) -> None:
        """A successful attempt counts as well."""

    def user_logged_out(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do."""
