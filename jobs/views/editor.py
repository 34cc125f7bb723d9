"""Making and changing a job: one form of cards, and the fragments that follow its typing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django import forms
from django.http import Http404, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from jobs import services
from jobs.definition import InvalidJob, JobData, NotAllowed
from jobs.forms import attached
from jobs.forms.attached import AttachmentRow, SecretRow
from jobs.forms.job import JobForm, initial_of, root_problem, time_zones
from jobs.forms.network import network_choices, private_problem
from jobs.models import Job
from jobs.views import schedules
from jobs.views.jobs import get_job, job_context, job_url
from umpteenth.core.edits import Difference
from umpteenth.core.htmx import Request, hx_redirect, render_page, toast

LABELS = {
    "name": "Name",
    "description": "Description",
    "script": "Script",
    "network": "Network",
    "domains": "Allowed domains",
    "allow_private_network": "Allow private network",
    "timeout": "Time limit",
    "cpus": "Processors",
    "memory": "Memory",
    "disk": "Disk",
    "run_as_root": "Run as root",
    "environment": "Environment",
    "overlap": "Overlap",
    "enabled": "Run on schedule",
    "cron": "Cron schedule",
    "timezone": "Time zone",
    "attachments": "MCP servers",
    "secrets": "Secrets",
}
MAX_SHOWN = 300


@dataclass
class Editor:
    """The form, its rows, and what is wrong with either."""

    form: JobForm
    attachments: list[AttachmentRow]
    secrets: list[SecretRow]
    job: Job | None = None
    errors: dict[str, str] = field(default_factory=dict)
    # After an outdated edit: the sentence that says so, and what differs.
    outdated: str = ""
    differences: list[Difference] = field(default_factory=list)

    @property
    def is_refused(self) -> bool:
        return bool(self.form.errors or self.errors or self.outdated)

    def data(self) -> JobData | None:
        """What is to be stored; None where a field or row is wrong already."""
        if sentence := attached.incomplete(self.secrets):
            self.errors["secrets"] = sentence
        if not self.form.is_valid() or self.errors:
            return None
        data = self.form.to_data(
            attached.attachments_data(self.attachments), attached.secrets_data(self.secrets)
        )
        # Chosen on a tab of its own.
        environment = self.job.environment if self.job else None
        return data.replace(environment=environment.name if environment else "")

    def context(self, request: Request) -> dict[str, Any]:
        form = self.form
        return {
            "editor": self,
            "form": form,
            "attachments": self.attachments,
            "attachable": attached.attachable(self.attachments),
            "secret_rows": self.secrets,
            "secret_options": attached.secret_options(request.user),
            "networks": network_choices(form, request.user, self.job),
            "private_problem": private_problem(request.user, self.job),
            "root_problem": root_problem(request.user, self.job),
            "time_zones": time_zones(),
            "preview": schedules.preview(
                str(form["cron"].value() or ""), str(form["timezone"].value() or "")
            ),
        }


def posted(request: Request, job: Job | None = None) -> Editor:
    before = attached.stored_attachments(job) if job else ()
    rows = attached.attachment_rows(attached.posted_attachments(request.POST, before))
    return Editor(JobForm(request.POST), rows, attached.posted_secrets(request.POST), job)


def stored(request: Request, job: Job) -> Editor:
    # Without script the page itself brings the long checklist that was asked for.
    listed = [attached.uuid_of(request.GET.get("list", ""))]
    rows = attached.attachment_rows(attached.stored_attachments(job), listed)
    return Editor(JobForm(initial=initial_of(job)), rows, attached.stored_secrets(job), job)


@require_http_methods(["GET", "POST"])
def job_create(request: Request) -> HttpResponse:
    editor = posted(request) if request.method == "POST" else Editor(JobForm(), [], [])
    data = editor.data() if request.method == "POST" else None
    if data is not None:
        job = _try(editor, lambda: services.create_job(actor=request.user, data=data))
        if job is not None:
            toast(request, f"{job.name} was created.")
            return hx_redirect(request, job_url(job))
    status = 422 if editor.is_refused else 200
    return render_page(request, "jobs/create.html", editor.context(request), status=status)


@require_http_methods(["GET", "POST"])
def job_settings(request: Request, pk: UUID) -> HttpResponse:
    job = get_job(pk)
    editor = posted(request, job) if request.method == "POST" else stored(request, job)
    data = editor.data() if request.method == "POST" else None
    if data is not None:
        version = editor.form.cleaned_data["version"] or 0
        saved = _try(
            editor,
            lambda: services.update_job(job, actor=request.user, data=data, version=version),
            data,
        )
        if saved is not None:
            toast(request, "Saved.")
            return hx_redirect(request, reverse("jobs:settings", args=[pk]))
    context = job_context(job, "settings") | editor.context(request)
    status = 422 if editor.is_refused else 200
    return render_page(request, "jobs/settings.html", context, status=status)


def _try(editor: Editor, store: Any, data: JobData | None = None) -> Job | None:
    """The stored job; None where it was refused, with the reason in the editor."""
    try:
        job: Job = store()
    except InvalidJob as error:
        editor.errors |= editor.form.add_errors(error.errors)
    except NotAllowed as error:
        editor.errors |= editor.form.add_errors({error.field: str(error)})
    except services.JobGone:
        raise Http404 from None
    except services.OutdatedEdit as error:
        _show_both(editor, error, data)
    else:
        return job
    return None


def _show_both(editor: Editor, error: services.OutdatedEdit, data: JobData | None) -> None:
    """Keep what was typed, say what is stored, and let a second Save decide."""
    editor.outdated = str(error)
    typed = dict(editor.form.data.items())
    typed["version"] = str(error.current.version)
    editor.form = JobForm(typed)
    editor.form.is_valid()
    if data is None:
        return
    for name in JobData.FIELDS:
        theirs, mine = getattr(error.theirs, name), getattr(data, name)
        if _words(theirs) != _words(mine):
            editor.differences.append(Difference(LABELS[name], _words(theirs), _words(mine)))


def _words(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(_one(item) for item in value) or "None"
    if isinstance(value, bool):
        return "Yes" if value else "No"
    text = str(value).replace("\r\n", "\n").strip()
    return (text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…") or "Empty"


def _one(item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, services.AttachmentData):
        tools = "all tools" if item.allowed_tools is None else f"{len(item.allowed_tools)} tools"
        return f"{item.server} ({tools})"
    return f"{item.variable} = {item.secret}"


class ScheduleForm(forms.Form):
    cron = forms.CharField(required=False, max_length=20_000)
    timezone = forms.CharField(required=False, max_length=200)


@require_GET
def cron_preview(request: Request) -> HttpResponse:
    """Plain words and the next five times of what is being typed; stores nothing."""
    form = ScheduleForm(request.GET)
    if form.is_valid():
        shown = schedules.preview(form.cleaned_data["cron"], form.cleaned_data["timezone"])
    else:
        shown = schedules.Preview(error=str(next(iter(form.errors.values()))[0]))
    return render_page(request, "jobs/_cron_preview.html", {"preview": shown})


class AttachForm(forms.Form):
    attach = forms.UUIDField()


@require_GET
def attachment_row(request: Request) -> HttpResponse:
    """The row of a server that was chosen in `Attach a server...`; nothing is stored yet."""
    form = AttachForm(request.GET)
    rows = (
        attached.attachment_rows([(form.cleaned_data["attach"], None)]) if form.is_valid() else []
    )
    if not rows:
        raise Http404("This server does not exist any more.")
    return render_page(request, "jobs/_attachment.html", {"row": rows[0], "is_new": True})


@require_POST
def attachment_tools(request: Request, pk: UUID) -> HttpResponse:
    """The checklist of a server with very many tools, as the form stands; stores nothing."""
    posted = attached.posted_attachments(request.POST)
    chosen = [(server, names) for server, names in posted if server == pk]
    rows = attached.attachment_rows(chosen or [(pk, None)], [pk])
    if not rows:
        raise Http404("This server does not exist any more.")
    return render_page(request, "jobs/_tools_list.html", {"row": rows[0]})
