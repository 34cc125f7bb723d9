"""Pages of runs: the list over all jobs, and one run with its timeline, outputs and raw data."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

from django import forms
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from jobs import lifecycle, queries, triggers
from jobs.forms.filters import CursorForm, RunFilterForm
from jobs.models import Run, RunEvent
from jobs.shapes import event_shape, run_details
from jobs.views.files import send_pieces
from jobs.views.json_tree import compact, json_tree, pretty
from jobs.views.panes import Pane, panes_of
from jobs.views.shelves import shelves
from jobs.views.timeline import head_context, waiting_for, window
from jobs.views.words import Line, describe
from umpteenth.core.htmx import Request, hx_redirect, render_page, toast

TABS = ("timeline", "outputs", "raw")
RAW_EVENTS = 200


class RunPageForm(forms.Form):
    """The parts of a run page's address; what makes no sense is left out."""

    tab = forms.ChoiceField(required=False, choices=[(tab, tab) for tab in TABS])
    event = forms.IntegerField(required=False, min_value=1, max_value=2**31 - 1)
    before = forms.IntegerField(required=False, min_value=2, max_value=2**31 - 1)

    @classmethod
    def read(cls, request: Request) -> dict[str, Any]:
        form = cls(request.GET)
        form.is_valid()
        return {name: form.cleaned_data.get(name) for name in form.fields}


@require_GET
def run_list(request: Request) -> HttpResponse:
    form = RunFilterForm(request.GET)
    chosen = form.to_filter()
    runs = chosen.apply(queries.runs_for_list())
    context = run_table(request, runs) | {
        "form": form,
        "is_filtered": chosen.is_set,
        "show_job": True,
        "active_section": "runs",
    }
    return render_page(request, "runs/list.html", context, partial="runs/_table.html")


def run_table(request: Request, runs: Any) -> dict[str, Any]:
    """A page of runs, and how many came since the page was loaded (for its refresh)."""
    cursors = CursorForm(request.GET).cursors()
    page = queries.run_page(runs, before=cursors["before"], after=cursors["after"])
    top = cursors["top"]
    for run in page.runs:
        run.elapsed_ms = queries.run_duration_ms(run)  # type: ignore[attr-defined]
    return {
        "page": page,
        "new_runs": queries.count_newer(runs, top) if top and not page.is_first else 0,
        "top": top or (page.runs[0].pk if page.runs else ""),
    }


@require_GET
def run_detail(request: Request, pk: UUID) -> HttpResponse:
    run = get_object_or_404(Run.objects.select_related("job", "retry_of"), pk=pk)
    asked = RunPageForm.read(request)
    tab = asked["tab"] or "timeline"
    context = head_context(run) | {"tab": tab, "active_section": "runs"}
    context |= _TABS[tab](run, asked)
    return render_page(request, "runs/detail.html", context)


def _timeline_tab(run: Run, asked: dict[str, Any]) -> dict[str, Any]:
    shown = window(run, before=asked["before"], selected=asked["event"] or 0)
    return {
        "window": shown,
        "selected": asked["event"],
        # Only the end of an unfinished run grows.
        "is_live": not run.is_finished and not shown.is_past,
        "waiting": waiting_for(run, queries.open_calls(run)) if not run.is_finished else None,
    }


def _outputs_tab(run: Run, asked: dict[str, Any]) -> dict[str, Any]:
    outputs = run.outputs if isinstance(run.outputs, dict) else {}
    values = [(name, value, json_tree(value)) for name, value in outputs.items()]
    context = shelves(run) | {"values": values, "outputs_json": pretty(outputs)}
    details = run_details(run)
    context["effects"] = [
        call | {"at": datetime.fromisoformat(call["at"])} for call in details["side_effects"]
    ]
    context["more_effects"] = details["side_effects_left_out"]
    if run.input is not None:
        context |= {"input_tree": json_tree(run.input), "input_json": pretty(run.input)}
    return context


def _raw_tab(run: Run, asked: dict[str, Any]) -> dict[str, Any]:
    events = run.events.order_by("seq")[:RAW_EVENTS]
    return {
        "run_json": pretty(_document(run)),
        "events_json": "\n".join(compact(event_shape(event)) for event in events),
        "shown_events": min(RAW_EVENTS, run.last_seq),
    }


_TABS = {"timeline": _timeline_tab, "outputs": _outputs_tab, "raw": _raw_tab}


@require_GET
def run_event(request: Request, pk: UUID, seq: int) -> HttpResponse:
    """The body of one line, fetched when somebody opens it."""
    event = get_object_or_404(RunEvent, run_id=pk, seq=seq)
    line: Line = describe(event)
    line.panes = _panes(event)
    run = get_object_or_404(Run.objects.only("pk"), pk=pk)
    return render_page(request, "runs/_body.html", {"line": line, "run": run})


def _panes(event: RunEvent) -> list[Pane]:
    if event.kind != "tool.call" or not event.span:
        return panes_of(event)
    run_id, span = event.run_id, event.span
    # By kind: the last progress, and the result.
    news = {found.kind: found for found in queries.news_of_calls(run_id, [span], event.seq)}
    result, progress = news.get("tool.result"), news.get("tool.progress")
    if result is not None and result.payload.get("ok"):
        return panes_of(event, result)
    return panes_of(event, result, progress, queries.refusals_of(run_id, [span]).get(span))


@require_GET
def run_raw(request: Request, pk: UUID) -> HttpResponseBase:
    """The run and all its events as one JSON document."""
    run = get_object_or_404(Run.objects.select_related("job"), pk=pk)

    def pieces() -> Iterator[bytes]:
        yield b'{"run": ' + compact(_document(run)).encode() + b', "events": ['
        comma = b"\n"
        for event in run.events.order_by("seq").iterator(chunk_size=200):
            yield comma + compact(event_shape(event)).encode("utf-8", "replace")
            comma = b",\n"
        yield b"\n]}\n"

    name = f"{run.job.name} {run.number}.json"
    return send_pieces(request, pieces, name=name, media_type="application/json")


@require_POST
def run_cancel(request: Request, pk: UUID) -> HttpResponse:
    run = get_object_or_404(Run, pk=pk)
    try:
        lifecycle.request_cancel(run.pk)
    except lifecycle.AlreadyFinished:
        toast(request, "This run has already ended.", "info")
    return hx_redirect(request, reverse("runs:detail", args=[pk]))


@require_POST
def run_retry(request: Request, pk: UUID) -> HttpResponse:
    run = get_object_or_404(Run.objects.select_related("job"), pk=pk)
    try:
        new = triggers.retry_run(run, actor=request.user)
    except triggers.TriggerError as error:
        toast(request, str(error), "error")
        return redirect("runs:detail", pk)
    return hx_redirect(request, reverse("runs:detail", args=[new.pk]))


def _document(run: Run) -> dict[str, Any]:
    """The run as `umpteenth run show --json` prints it, with what it was given."""
    return run_details(run) | {"input": run.input}
