"""Cron schedules: five fields or a name such as `@daily`, in a time zone.

The preview on pages and the beat that fires use the same functions. Day of month together with
day of week follows cron's own rule: either may match, unless one of the two begins with `*`.
In the spring gap a fixed time runs once, at the first minute after it; in the autumn overlap a
fixed time runs once and an interval keeps its real distance. This module imports no Django.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

MAX_LENGTH = 100
DESCRIPTORS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# Name, first and last value of each field, as messages name them.
FIELDS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of month", 1, 31),
    ("month", 1, 12),
    ("day of week", 0, 7),
)
_NAMES_OF_CRONSIM = {"day-of-month": "day of month", "day-of-week": "day of week"}


class ScheduleError(ValueError):
    """A schedule that cannot be used; `field` is "cron" or "timezone"."""

    def __init__(self, message: str, field: str = "cron") -> None:
        super().__init__(message)
        self.message = message
        self.field = field


@dataclass(frozen=True)
class Schedule:
    """A schedule that was checked: at least one time lies ahead of it."""

    cron: str
    expression: str
    timezone: str

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The times after an aware moment, in UTC, each once, without end."""
        last = moment.astimezone(UTC)
        for found in CronSim(self.expression, last.astimezone(ZoneInfo(self.timezone))):
            # Around a clock change cron's rules may name a moment twice or one that has passed.
            at = found.astimezone(UTC)
            if at > last:
                last = at
                yield at

    def next(self, moment: datetime) -> datetime:
        for at in self.after(moment):
            return at
        raise ScheduleError("This schedule never runs.")


def parse(cron: str, tz: str = "UTC") -> Schedule:
    """Check an expression and a time zone. Raises `ScheduleError` that names what is wrong."""
    text = " ".join(cron.split())
    expression = _expand(text)
    _check_zone(tz)
    _check_fields(expression)
    schedule = Schedule(text, expression, tz)
    try:
        schedule.next(datetime.now(UTC))
    except CronSimError as error:
        raise _explained(error, expression) from None
    return schedule


def next_times(cron: str, tz: str, after: datetime, n: int = 5) -> list[datetime]:
    """The next n times after an aware moment, in UTC. Raises `ScheduleError`."""
    return list(islice(parse(cron, tz).after(after), n))


def explain(cron: str) -> str:
    """The schedule in plain words, such as `At 09:00 on Monday through Friday`."""
    expression = _plain_days(parse(cron).expression)
    try:
        return str(CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC)).explain())
    except (ValueError, TypeError, IndexError):  # an expression that its explainer does not know
        return f"On the cron schedule {expression}"


def _plain_days(expression: str) -> str:
    """Where either day field may match and one of them always does, say `every day`."""
    minute, hour, day, month, weekday = expression.split()
    either = not (day.startswith("*") or weekday.startswith("*"))
    parsed = CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC))
    always = parsed.days >= set(range(1, 32)) or {d % 7 for d in _plain(parsed)} == set(range(7))
    return f"{minute} {hour} * {month} *" if either and always else expression


def _plain(parsed: CronSim) -> set[int]:
    return {day for day in parsed.weekdays if isinstance(day, int)}


def _expand(text: str) -> str:
    if not text:
        raise ScheduleError("A schedule needs five fields, such as 0 9 * * 1-5.")
    if len(text) > MAX_LENGTH:
        raise ScheduleError(f"A schedule may have at most {MAX_LENGTH} characters.")
    if not text.startswith("@"):
        return text
    expression = DESCRIPTORS.get(text.lower())
    if expression is None:
        raise ScheduleError(
            f"{text} is not supported; use five fields such as 0 9 * * 1-5, or "
            f"{', '.join(DESCRIPTORS)}."
        )
    return expression


def _check_zone(tz: str) -> None:
    try:
        ZoneInfo(tz)
    except (ValueError, KeyError, OSError):
        raise ScheduleError(
            f"{tz[:64]!r} is not a time zone; use a name such as Europe/Berlin.", "timezone"
        ) from None


def _check_fields(expression: str) -> None:
    parts = expression.split()
    if parts[0].upper().startswith(("TZ=", "CRON_TZ=")):
        raise ScheduleError("The time zone does not stand in the expression; it has its own field.")
    if len(parts) == 6:
        raise ScheduleError("A schedule has five fields; a field for seconds is not supported.")
    if len(parts) != 5:
        raise ScheduleError(
            f"A schedule has five fields (minute, hour, day of month, month, day of week), "
            f"not {len(parts)}."
        )
    for (name, first, last), part in zip(FIELDS, parts, strict=True):
        _check_steps(name, first, last, part)


def _check_steps(name: str, first: int, last: int, part: str) -> None:
    """A step wider than its range is silently something else than its writer meant."""
    for term in part.split(","):
        _, slash, step = term.partition("/")
        if slash and step.isascii() and step.isdigit() and int(step) > last - first + 1:
            raise ScheduleError(
                f"The {name} field {part!r} is not valid: the step {step} is longer than "
                f"the whole range {first}-{last}."
            )


def _explained(error: CronSimError, expression: str) -> ScheduleError:
    """cronsim says `Bad minute`; name the field, what stands in it and what may."""
    named = str(error).removeprefix("Bad ")
    named = _NAMES_OF_CRONSIM.get(named, named)
    parts = dict(zip((name for name, _, _ in FIELDS), expression.split(), strict=True))
    if named == "day of month" and _fits_some_month(expression):
        return ScheduleError("This schedule never runs: that month has no such day.")
    for name, first, last in FIELDS:
        if name == named:
            return ScheduleError(
                f"The {name} field {parts[name]!r} is not valid; "
                f"it takes {first}-{last}, lists, ranges and steps."
            )
    return ScheduleError(f"The schedule is not valid: {error}.")


def _fits_some_month(expression: str) -> bool:
    minute, hour, day, _, weekday = expression.split()
    try:
        CronSim(f"{minute} {hour} {day} * {weekday}", datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError:
        return False
    return True
