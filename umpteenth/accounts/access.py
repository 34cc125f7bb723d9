"""Every "may this person do this" that is not simply "is signed in"."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.core.exceptions import PermissionDenied
from django.http import HttpResponse

from umpteenth.core.htmx import Request

P = ParamSpec("P")
View = Callable[Concatenate[Request, P], HttpResponse]

ADMINISTRATORS_ONLY = "Only an administrator may do this."


def administrator_required(view: View[P]) -> View[P]:
    """Members meet a 403 page that says who may. Signing in is the middleware's matter."""

    @wraps(view)
    def guarded(request: Request, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        if not request.user.is_administrator:
            raise PermissionDenied(ADMINISTRATORS_ONLY)
        return view(request, *args, **kwargs)

    return guarded
