"""What the pages of jobs and runs read. Every list costs the same number of queries."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Count, F, Max, Prefetch, Q, QuerySet, Sum
from django.db.models.fields.json import KT
from django.utils import timezone

from jobs.models import Attachment, Job, Run, RunEvent, StateEntry
from servers.oauth.shown import login_problem
from servers.queries import listed_servers
from umpteenth.core import clock

RUNS_A_PAGE = 50
JOBS_A_PAGE = 50
EVENTS_A_PAGE = 300
STRIP_LENGTH = 10
# Calls that still run are looked for among the newest events only.
OPEN_CALLS_WITHIN = 2000
MAX_OPEN_CALLS = 8
# The unread columns of a run can hold megabytes.
_LIST_FIELDS = (
    "id",
    "job_id",
    "number",
    "status",
    "trigger",
    "actor_name",
    "error",
    "queued_at",
    "started_at",
    "finished_at",
    "cancel_requested_at",
    "last_seq",
)


# Jobs


def jobs_for_list(search: str = "") -> QuerySet[Job]:
    jobs = Job.objects.defer("script").prefetch_related(
        Prefetch("attachments", with_servers(Attachment.objects.order_by("id")))
    )
    return jobs.filter(name__icontains=search) if search else jobs


def with_servers(attachments: QuerySet[Attachment]) -> QuerySet[Attachment]:
    """With what pages say of each server and its login, in one more query for all of them."""
    return attachments.prefetch_related(Prefetch("server", listed_servers()))


def note_logins(attachments: Iterable[Attachment], now: datetime) -> None:
    """Set `login_problem` where runs cannot use the login of a server, or soon cannot."""
    for item in attachments:
        item.login_problem = login_problem(item.server, now)


def recent_runs(jobs: Sequence[Job]) -> dict[UUID, list[Run]]:
    """The last ten runs of each job, oldest first. Numbers are counted without gaps."""
    found: dict[UUID, list[Run]] = {job.pk: [] for job in jobs}
    runs = (
        Run.objects.only(*_LIST_FIELDS)
        .filter(job__in=list(found), number__gt=F("job__last_number") - STRIP_LENGTH)
        .order_by("number")
    )
    for run in runs:
        found[run.job_id].append(run)
    return found


@dataclass(frozen=True)
class Bar:
    """One run in the strip of a job: a bar whose height tells how long it took."""

    run: Run
    x: int
    y: float
    height: float
    title: str


def strip(runs: Sequence[Run], *, height: int = 24, step: int = 7) -> list[Bar]:
    """Bars from left to right; the longest run is as high as the strip."""
    durations = [run_duration_ms(run) or 0.0 for run in runs]
    longest = max(durations, default=0.0) or 1.0
    bars = []
    for index, (run, ms) in enumerate(zip(runs, durations, strict=True)):
        tall = round(5 + (height - 5) * ms / longest, 1)
        title = f"#{run.number} {run.get_status_display().lower()}"
        bars.append(Bar(run, index * step, round(height - tall, 1), tall, title))
    return bars


def run_duration_ms(run: Run, now: datetime | None = None) -> float | None:
    """Milliseconds from the start to the end, or until now; None before the start."""
    if run.started_at is None:
        return None
    end = run.finished_at or now or clock.now()
    return max(0.0, (end - run.started_at).total_seconds() * 1000)


def state_of(job: Job) -> QuerySet[StateEntry]:
    return job.state.select_related("run").order_by("key")


# Runs


@dataclass(frozen=True)
class RunFilter:
    status: str = ""
    trigger: str = ""
    job: UUID | str | None = None
    since: date | None = None
    until: date | None = None

    def apply(self, runs: QuerySet[Run]) -> QuerySet[Run]:
        if self.status == "unfinished":
            runs = runs.filter(status__in=Run.UNFINISHED)
        elif self.status:
            runs = runs.filter(status=self.status)
        if self.trigger:
            runs = runs.filter(trigger=self.trigger)
        if self.job:
            runs = runs.filter(job_id=self.job)
        if self.since:
            runs = runs.filter(queued_at__gte=_midnight(self.since))
        if self.until:
            runs = runs.filter(queued_at__lt=_midnight(self.until + timedelta(days=1)))
        return runs

    @property
    def is_set(self) -> bool:
        return self != RunFilter()


def _midnight(day: date) -> datetime:
    return timezone.make_aware(datetime.combine(day, time.min))


@dataclass
class RunPage:
    """Runs newest first. `older` and `newer` are cursors for the neighbouring pages."""

    runs: list[Run] = field(default_factory=list)
    older: UUID | None = None
    newer: UUID | None = None
    is_first: bool = True


def runs_for_list() -> QuerySet[Run]:
    return (
        Run.objects.select_related("job")
        .only(*_LIST_FIELDS, "job__name")
        .order_by("-queued_at", "-id")
    )


def run_page(
    runs: QuerySet[Run],
    *,
    before: UUID | None = None,
    after: UUID | None = None,
    size: int = RUNS_A_PAGE,
) -> RunPage:
    """A page by cursor: page 2,000 costs what page 1 costs, and new runs shift nothing."""
    cursor = _cursor(before or after)
    if after and cursor:
        found = list(runs.filter(_newer(*cursor)).order_by("queued_at", "id")[: size + 1])
        more, found = len(found) > size, found[:size][::-1]
        if len(found) == size:
            return RunPage(found, found[-1].pk, found[0].pk if more else None, not more)
        cursor = None  # fewer than a page are newer: that is the first page
    if cursor:
        runs = runs.filter(_older(*cursor))
    found = list(runs[: size + 1])
    more, found = len(found) > size, found[:size]
    newer = found[0].pk if found and cursor else None
    return RunPage(found, found[-1].pk if more else None, newer, cursor is None)


def _cursor(run_id: UUID | None) -> tuple[datetime, UUID] | None:
    if run_id is None:
        return None
    queued_at = Run.objects.filter(pk=run_id).values_list("queued_at", flat=True).first()
    return (queued_at, run_id) if queued_at else None


def _older(queued_at: datetime, pk: UUID) -> Q:
    # The first condition follows from the others; it lets the index begin at the cursor.
    beyond = Q(queued_at__lt=queued_at) | Q(queued_at=queued_at, pk__lt=pk)
    return Q(queued_at__lte=queued_at) & beyond


def _newer(queued_at: datetime, pk: UUID) -> Q:
    later = Q(queued_at__gt=queued_at) | Q(queued_at=queued_at, pk__gt=pk)
    return Q(queued_at__gte=queued_at) & later


def count_newer(runs: QuerySet[Run], than: UUID, *, limit: int = 100) -> int:
    """How many runs came after this one, at most `limit`."""
    cursor = _cursor(than)
    if cursor is None:
        return 0
    return runs.filter(_newer(*cursor)).order_by()[:limit].count()


# One run


def run_marks(keys: Collection[str]) -> Mapping[str, Hashable]:
    """What the live hub compares, one query for all watched runs."""
    rows = Run.objects.filter(pk__in=keys).values_list(
        "pk", "last_seq", "status", "cancel_requested_at"
    )
    return {str(pk): tuple(rest) for pk, *rest in rows}


def events_after(run_id: UUID, after: int, limit: int) -> list[RunEvent]:
    return list(RunEvent.objects.filter(run_id=run_id, seq__gt=after).order_by("seq")[:limit])


def events_before(run_id: UUID, before: int | None, limit: int = EVENTS_A_PAGE) -> list[RunEvent]:
    """The `limit` newest events, or those before `before`, oldest first.

    Without progress: a hundred reports of one call would push everything else off the page.
    """
    events = RunEvent.objects.filter(run_id=run_id).exclude(kind="tool.progress")
    if before is not None:
        events = events.filter(seq__lt=before)
    return list(events.order_by("-seq")[:limit])[::-1]


def calls_of(run_id: UUID, spans: Iterable[str]) -> dict[str, RunEvent]:
    return _by_span(run_id, "tool.call", spans)


@dataclass(frozen=True)
class CallName:
    """Where a call stands on the timeline, and what it called; arguments can be 16 KiB."""

    seq: int
    server: str
    tool: str


def names_of_calls(run_id: UUID, spans: Collection[str]) -> dict[str, CallName]:
    if not spans:
        return {}
    events = RunEvent.objects.filter(run_id=run_id, kind="tool.call", span__in=spans).order_by()
    # As text: a tool may be called `null` or `1e3`.
    rows = events.values_list("span", "seq", KT("payload__server"), KT("payload__tool"))
    return {span: CallName(seq, server or "", tool or "") for span, seq, server, tool in rows}


def _by_span(run_id: UUID, kind: str, spans: Iterable[str]) -> dict[str, RunEvent]:
    wanted = {span for span in spans if span}
    if not wanted:
        return {}
    events = RunEvent.objects.filter(run_id=run_id, kind=kind, span__in=wanted)
    return {event.span: event for event in events}


def news_of_calls(run_id: UUID, spans: Iterable[str], after: int) -> list[RunEvent]:
    """Results and the last progress of calls, in order. `after`: the number of the first call."""
    wanted = {span for span in spans if span}
    if not wanted:
        return []
    events = RunEvent.objects.filter(
        run_id=run_id, seq__gt=after, span__in=wanted, kind__in=("tool.result", "tool.progress")
    )
    newest = events.order_by().values("span", "kind").annotate(last=Max("seq")).values("last")
    return list(RunEvent.objects.filter(run_id=run_id, seq__in=newest).order_by("seq"))


def refusals_of(run_id: UUID, spans: Iterable[str]) -> dict[str, RunEvent]:
    return _by_span(run_id, "tool.refused", spans)


def step_before(run_id: UUID, seq: int) -> RunEvent | None:
    """The step that an event with this number belongs to."""
    steps = RunEvent.objects.filter(run_id=run_id, kind="step", seq__lt=seq)
    return steps.order_by("-seq").first()


def console_before(run_id: UUID, seq: int, first: int = 0) -> int:
    """The first `output` event, from `first` on, of the block that goes on at `seq`; 0 if none.

    Results and progress end no block: they belong to a line that stands further up.
    """
    events = RunEvent.objects.filter(run_id=run_id, seq__lt=seq)
    other = events.exclude(kind__in=("output", "tool.result", "tool.progress")).order_by("-seq")
    last = other.values_list("seq", flat=True).first() or 0
    outputs = events.filter(kind="output", seq__gt=last, seq__gte=first).order_by("seq")
    return outputs.values_list("seq", flat=True).first() or 0


def open_calls(run: Run) -> list[RunEvent]:
    """Calls without a result, oldest first."""
    recent = RunEvent.objects.filter(run=run, seq__gt=run.last_seq - OPEN_CALLS_WITHIN)
    spans: dict[str, int] = {}
    pairs = recent.filter(kind__in=("tool.call", "tool.result")).order_by("seq")
    for kind, span, seq in pairs.values_list("kind", "span", "seq"):
        if kind == "tool.call":
            spans[span] = seq
        else:
            spans.pop(span, None)
    newest = sorted(spans.values())[-MAX_OPEN_CALLS:]
    return list(RunEvent.objects.filter(run=run, seq__in=newest).order_by("seq")) if newest else []


@dataclass(frozen=True)
class Figures:
    """The row of numbers under a run's header."""

    calls: int = 0
    failed_calls: int = 0
    refused_calls: int = 0
    servers: int = 0
    unavailable: int = 0
    artifacts: int = 0
    artifact_bytes: int = 0


def figures(run: Run) -> Figures:
    kinds = RunEvent.objects.filter(run=run).order_by().values("kind")
    found = kinds.annotate(n=Count("id"), of_calls=Count("id", filter=~Q(span="")))
    counts = {row["kind"]: row["n"] for row in found}
    # A call that was refused at the last moment has a result as well.
    late = sum(row["of_calls"] for row in found if row["kind"] == "tool.refused")
    files: dict[str, Any] = run.artifacts.aggregate(n=Count("id"), size=Sum("size"))
    servers = _connected_at_last(run)
    failed = run.events.filter(kind="tool.result", payload__ok=False).count() - late
    return Figures(
        calls=counts.get("tool.call", 0),
        failed_calls=max(0, failed),
        refused_calls=counts.get("tool.refused", 0),
        servers=servers.count(True),
        unavailable=servers.count(False),
        artifacts=files["n"],
        artifact_bytes=files["size"] or 0,
    )


def _connected_at_last(run: Run) -> list[bool]:
    """Of each server: a connection that ended is opened again, and may fail then."""
    told = RunEvent.objects.filter(run=run, kind__in=("server.connected", "server.unavailable"))
    pairs = told.order_by("seq").values_list("payload__server", "kind")
    return [kind == "server.connected" for kind in dict(pairs).values()]


# Dashboard


@dataclass(frozen=True)
class Overview:
    running: list[Run]
    failures: list[Run]
    counts: dict[str, int]

    @property
    def set_aside(self) -> int:
        return self.counts.get("cancelled", 0) + self.counts.get("skipped", 0)

    @property
    def failed(self) -> int:
        return self.counts.get("failed", 0) + self.counts.get("timed_out", 0)


def overview(now: datetime) -> Overview:
    """What runs now, what failed in the last seven days, and the counts of one day."""
    runs = runs_for_list()
    day = Run.objects.filter(queued_at__gte=now - timedelta(hours=24)).order_by()
    return Overview(
        running=list(runs.filter(status__in=Run.UNFINISHED)[:8]),
        failures=list(
            runs.filter(
                status__in=(Run.Status.FAILED, Run.Status.TIMED_OUT),
                queued_at__gte=now - timedelta(days=7),
            )[:8]
        ),
        counts=dict(day.values("status").annotate(n=Count("id")).values_list("status", "n")),
    )


def find_runs(text: str, limit: int = 5) -> list[Run]:
    """Runs for the palette: `#14`, or `name #14`, or a job's name."""
    name, hash_sign, number = text.rpartition("#")
    runs = runs_for_list()
    if hash_sign and number.strip().isascii() and number.strip().isdigit():
        # Longer numbers than a column can hold match nothing.
        if len(number.strip()) > 9:
            return []
        runs = runs.filter(number=int(number))
        text = name
    elif not text.strip():
        return []
    if text.strip():
        runs = runs.filter(job__name__icontains=text.strip())
    return list(runs[:limit])
