"""Tags and filters that every template has without `{% load %}`.

Icons come from static/icons.svg, which `make vendor` (the script .ci/vendor) builds from the names
that templates and Python files use: write `{% icon "player-play" %}` or, in Python, `icon="plus"`,
then run `.ci/vendor`. Names are those of tabler.io/icons; filled ones end in `-filled`.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from django import template
from django.conf import settings
from django.forms import BoundField
from django.templatetags.static import static
from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe

from umpteenth.core import clock

register = template.Library()

MINUTE, HOUR, DAY = 60, 3600, 86_400


class UnknownIcon(Exception):
    """A template names an icon that the sprite does not hold."""


@lru_cache(maxsize=1)
def _sprite() -> tuple[frozenset[str], str]:
    """Names in the sprite, and its address with a mark that changes with its content."""
    path = Path(settings.BASE_DIR) / "static" / "icons.svg"
    text = path.read_text(encoding="utf-8")
    names = frozenset(re.findall(r'<symbol id="([^"]+)"', text))
    return names, f"{static('icons.svg')}?{len(text)}"


def render_icon(name: str, css: str = "") -> SafeString:
    """The icon as inline SVG, hidden from screen readers; a word always stands beside it."""
    names, address = _sprite()
    if name not in names:
        raise UnknownIcon(f"No icon named {name!r} in static/icons.svg; run make vendor.")
    filled = " icon-filled" if name.endswith("-filled") else ""
    return format_html(
        '<svg class="icon{}{}" aria-hidden="true" focusable="false"><use href="{}#{}"/></svg>',
        filled,
        f" {css}" if css else "",
        address,
        name,
    )


@register.simple_tag
def icon(name: str, css: str = "") -> SafeString:
    return render_icon(name, css)


@dataclass(frozen=True)
class Look:
    """How a state appears: its word, its colour (a class of umpteenth.css) and its shape."""

    label: str
    tone: str
    icon: str


STATES: dict[str, Look] = {
    # Runs
    "queued": Look("Queued", "quiet", icon="clock"),
    "provisioning": Look("Provisioning", "live", icon="loader-2"),
    "running": Look("Running", "live", icon="loader-2"),
    "succeeded": Look("Succeeded", "good", icon="circle-check"),
    "failed": Look("Failed", "bad", icon="circle-x"),
    "timed_out": Look("Timed out", "bad", icon="clock-x"),
    "cancelled": Look("Cancelled", "quiet", icon="ban"),
    "skipped": Look("Skipped", "quiet", icon="player-skip-forward"),
    # Servers and checks
    "untested": Look("Not tested", "quiet", icon="circle-dashed"),
    "connected": Look("Connected", "good", icon="circle-check"),
    "login_required": Look("Login required", "warn", icon="lock"),
    "done": Look("Done", "good", icon="circle-check"),
    # Things that are switched
    "enabled": Look("Enabled", "good", icon="circle-check"),
    "disabled": Look("Disabled", "quiet", icon="circle-minus"),
    "paused": Look("Paused", "quiet", icon="player-pause"),
    "active": Look("Active", "good", icon="circle-check"),
    "inactive": Look("Deactivated", "quiet", icon="circle-minus"),
    # Anything else that wants attention
    "warning": Look("Warning", "warn", icon="alert-triangle"),
    "info": Look("Information", "live", icon="info-circle"),
}
_PLAIN = Look("", "quiet", icon="circle-dashed")


@register.simple_tag
def status_badge(value: Any, label: str = "") -> SafeString:
    """A state as shape, word and colour; an unlisted one shows its own words, quietly."""
    key = str(value)
    look = STATES.get(key, _PLAIN)
    words = label or look.label or key.replace("_", " ").capitalize()
    return format_html(
        '<span class="state state-{}" data-state="{}">{}<span>{}</span></span>',
        look.tone,
        key,
        render_icon(look.icon),
        words,
    )


@register.simple_tag
def status_icon(value: Any, label: str = "") -> SafeString:
    """Only the shape of a state, with its word for screen readers and as a tooltip."""
    key = str(value)
    look = STATES.get(key, _PLAIN)
    words = label or look.label or key.replace("_", " ").capitalize()
    return format_html(
        '<span class="state state-{0}" data-state="{1}" title="{3}">{2}'
        '<span class="visually-hidden">{3}</span></span>',
        look.tone,
        key,
        render_icon(look.icon),
        words,
    )


def relative_words(value: datetime, now: datetime) -> str:
    """`just now`, `3 min ago`, `in 2 h`, `5 days ago`, or the date beyond 30 days."""
    seconds = (now - value).total_seconds()
    distance = abs(seconds)
    if distance < 45:
        return "just now" if seconds >= 0 else "in a moment"
    if distance < HOUR - 30:
        amount = f"{max(1, round(distance / MINUTE))} min"
    elif distance < DAY - 1800:
        amount = f"{max(1, round(distance / HOUR))} h"
    elif distance < 30 * DAY:
        days = max(1, round(distance / DAY))
        amount = f"{days} day{'' if days == 1 else 's'}"
    else:
        return f"{value:%Y-%m-%d}"
    return f"{amount} ago" if seconds >= 0 else f"in {amount}"


@register.filter
def ago(value: datetime | None) -> SafeString | str:
    """Relative words with the exact time on hover; the script keeps both current and local."""
    if value is None:
        return ""
    exact = value.astimezone(UTC)
    return format_html(
        '<time datetime="{}" title="{}" data-ago>{}</time>',
        f"{exact:%Y-%m-%dT%H:%M:%S}Z",
        f"{exact:%Y-%m-%d %H:%M:%S} UTC",
        relative_words(exact, clock.now()),
    )


@register.filter
def exact_time(value: datetime | None) -> SafeString | str:
    """The exact time in UTC; the script shows it in the reader's own zone."""
    if value is None:
        return ""
    exact = value.astimezone(UTC)
    words = f"{exact:%Y-%m-%d %H:%M:%S} UTC"
    return format_html(
        '<time datetime="{}" title="{}" data-exact>{}</time>',
        f"{exact:%Y-%m-%dT%H:%M:%S}Z",
        words,
        words,
    )


def duration_words(seconds: float) -> str:
    """`0 ms`, `640 ms`, `1.2 s`, `3 min 4 s`, `2 h 5 min`, `3 d 4 h`."""
    seconds = max(0.0, seconds)
    if seconds < 0.9995:
        return f"{round(seconds * 1000)} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    for unit, name, below, short in ((DAY, "d", HOUR, "h"), (HOUR, "h", MINUTE, "min")):
        if whole >= unit:
            rest = whole % unit // below
            return f"{whole // unit} {name}" + (f" {rest} {short}" if rest else "")
    rest = whole % MINUTE
    return f"{whole // MINUTE} min" + (f" {rest} s" if rest else "")


def _number(value: Any) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


@register.filter
def duration_ms(value: Any) -> str:
    """Milliseconds in words; empty for nothing."""
    number = value.total_seconds() * 1000 if isinstance(value, timedelta) else _number(value)
    return "" if number is None else duration_words(number / 1000)


@register.filter
def duration_s(value: Any) -> str:
    """Seconds (or a timedelta) in words; empty for nothing."""
    number = _number(value)
    return "" if number is None else duration_words(number)


@register.filter
def filesize(value: Any) -> str:
    """Bytes as `640 B`, `12 KB`, `3.4 MB`; 1 KB is 1024 bytes."""
    size = _number(value)
    if size is None:
        return ""
    if size < 1024:
        return f"{int(size)} B"
    for unit in ("KB", "MB", "GB", "TB"):
        size /= 1024
        if size < 1024 or unit == "TB":
            break
    return f"{size:.1f} {unit}" if size < 9.95 else f"{size:.0f} {unit}"


@register.filter
def middle(value: Any, limit: int = 60) -> SafeString | str:
    """Cut in the middle, with the whole text on hover; both ends of an address matter."""
    text = str(value)
    if len(text) <= limit:
        return str(conditional_escape(text))
    head = (limit - 1) * 2 // 3
    tail = limit - 1 - head
    return format_html('<span title="{}">{}…{}</span>', text, text[:head], text[-tail:])


@register.filter
def break_names(value: Any) -> SafeString:
    """A name that may be broken after its underscores, and in a narrow place nowhere else."""
    return mark_safe(str(conditional_escape(value)).replace("_", "_<wbr>"))


@register.filter
def json_pretty(value: Any) -> str:
    """Indented JSON, non-ASCII characters as they are."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


@register.inclusion_tag("partials/field.html")
def field(bound: BoundField, **attributes: Any) -> dict[str, Any]:
    """Label, control, help and errors of one form field. Attributes: `placeholder="…"`.

    `required=True` marks a field that the form itself leaves to a service to ask for.
    """
    widget = bound.field.widget
    kind = type(widget).__name__
    base = {"CheckboxInput": "form-check-input", "Select": "form-select"}.get(kind, "form-control")
    css = f"{base} {widget.attrs.get('class', '')}".strip()
    described = [f"{bound.auto_id}-help"] if bound.help_text else []
    required = attributes.pop("required", bound.field.required)
    attrs: dict[str, Any] = {key.replace("_", "-"): value for key, value in attributes.items()}
    if bound.errors:
        css += " is-invalid"
        described.append(f"{bound.auto_id}-error")
        attrs["aria-invalid"] = "true"
    if described:
        attrs["aria-describedby"] = " ".join(described)
    attrs["class"] = css
    return {
        "field": bound,
        "required": required,
        "control": bound.as_widget(attrs=attrs),
        "kind": kind,
        "is_group": getattr(widget, "input_type", "") == "radio" or "Multiple" in kind,
    }
