"""WhiteNoise under ASGI: style sheets, scripts and icons, answered whole."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import StaticFile


class StaticFilesMiddleware(WhiteNoiseMiddleware):  # type: ignore[misc]  # it has no types
    """Answers requests for static files; WhiteNoise decides about ranges, age and encoding.

    WhiteNoise's own answer streams the file by a plain iterator, of which Django under ASGI makes
    a list first, with a warning for each request. Our largest file has 0.6 MB, so that nothing is
    lost by reading it at once.
    """

    @staticmethod
    def serve(static_file: StaticFile, request: HttpRequest) -> HttpResponse:
        found = static_file.get_response(request.method, request.META)
        body = b""
        if found.file is not None:
            with found.file:
                body = found.file.read()
        response = HttpResponse(body, status=int(found.status))
        # WhiteNoise says what it is, and says nothing where nothing was sent.
        del response["Content-Type"]
        for name, value in found.headers:
            response[name] = value
        return response
