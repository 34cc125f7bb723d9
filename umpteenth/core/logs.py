"""Keeps secret values out of log lines, whoever writes them."""

from __future__ import annotations

import logging

from umpteenth.core.masking import known_values


class MaskingFilter(logging.Filter):
    """Masks every value that this process has resolved, in the message and in its traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        masker = known_values()
        if masker.is_empty:
            return True
        record.msg, record.args = masker.mask(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = masker.mask(record.exc_text)
        return True


class BriefFilter(logging.Filter):
    """Keeps one line of a refused request (a wrong Host, too many fields): its traceback shows
    Django's own code, and anybody could fill the log with it."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith("django.security."):
            record.exc_info = record.exc_text = None
        return True
