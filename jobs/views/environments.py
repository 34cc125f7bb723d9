"""Pages of environments, and the tab of a job that chooses one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Count
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from jobs import presence
from jobs.definition import InvalidJob, NotAllowed
from jobs.environments import services
from jobs.forms.environment import NEW_DOCKERFILE, NEW_LISTS, ChoiceForm, DefinitionForm
from jobs.models import Environment, EnvironmentBuild, Job, Worker
from jobs.services import JobGone, OutdatedEdit, current_data, update_job
from jobs.views.jobs import get_job, job_context
from umpteenth.accounts.access import administrator_required
from umpteenth.core.clock import database_now
from umpteenth.core.config import get_options
from umpteenth.core.htmx import Request, hx_redirect, render_form, render_page, toast

TAIL = 30  # lines of the log that show while it grows


def default_image() -> str:
    """What the default environment is where an engine makes sandboxes; empty for bubblewrap."""
    options = get_options().sandbox
    return options.engine.image if options.adapter == "engine" else ""


@dataclass(frozen=True)
class Machine:
    """What the default environment has on one machine, as its worker reported it."""

    host: str
    present: list[tuple[str, str]]
    missing: list[str]


def machines(workers: list[Worker] | None = None) -> list[Machine]:
    """Those with a live worker; one that has only just started has not said yet."""
    live = presence.live_workers(database_now()) if workers is None else workers
    by_machine = {worker.machine: worker for worker in live if worker.programs}
    hosts = services.machines_of(list(by_machine.values()))
    return [
        Machine(
            hosts[worker.machine],
            [(name, version) for name, version in worker.programs if version],
            [name for name, version in worker.programs if not version],
        )
        for worker in by_machine.values()
    ]


def builds_context(environment: Environment) -> dict[str, Any]:
    """What the card of an environment's builds shows."""
    builds = services.builds_of(environment)
    is_building = any(build.status in EnvironmentBuild.UNFINISHED for build in builds)
    rows = [{"build": build, "tail": _tail(build)} for build in builds]
    return {"environment": environment, "builds": rows, "is_building": is_building}


def _tail(build: EnvironmentBuild) -> str:
    """The end of the log while it grows; nobody reads from the top of a moving text."""
    if build.status != EnvironmentBuild.Status.BUILDING:
        return ""
    return "\n".join(build.log.splitlines()[-TAIL:])


def environment_rows() -> list[dict[str, Any]]:
    """All of them with what was built, for a table."""
    environments = list(Environment.objects.annotate(uses=Count("jobs")))
    built = services.builds_by_digest(environments)
    return [
        {
            "environment": environment,
            "words": definition.words
            if (definition := services.definition_of(environment))
            else "",
            "builds": built.get(environment.digest, []),
        }
        for environment in environments
    ]


@require_http_methods(["GET", "POST"])
def job_environment(request: Request, pk: UUID) -> HttpResponse:
    """What the job uses in place of the default environment, and how it came to be."""
    job = get_job(pk)
    posted = request.POST if request.method == "POST" else None
    form = ChoiceForm(posted, initial={"environment": job.environment_id})
    if posted is not None and form.is_valid() and _choose(request, job, form):
        return hx_redirect(request, reverse("jobs:environment", args=[pk]))
    context = job_context(job, "environment") | {"form": form, "machines": machines()}
    context["default_image"] = default_image()
    if job.environment is not None:
        context |= builds_context(job.environment)
        context["definition"] = services.definition_of(job.environment)
    status = 422 if posted is not None else 200
    return render_page(request, "environments/tab.html", context, status=status)


def _choose(request: Request, job: Job, form: ChoiceForm) -> bool:
    chosen: Environment | None = form.cleaned_data["environment"]
    data = current_data(job).replace(environment=chosen.name if chosen else "")
    try:
        update_job(job, actor=request.user, data=data, version=job.version)
    except InvalidJob as error:
        form.add_error("environment", str(error))
        return False
    except (NotAllowed, OutdatedEdit, JobGone) as error:
        form.add_error(None, str(error))
        return False
    toast(request, f"{job.name} uses {chosen.name if chosen else 'the default environment'}.")
    return True


@require_http_methods(["GET", "POST"])
@administrator_required
def environment_create(request: Request) -> HttpResponse:
    example = NEW_DOCKERFILE if default_image() else NEW_LISTS
    posted = request.POST if request.method == "POST" else None
    form = DefinitionForm(posted, initial={"definition": example})
    if request.method == "POST" and form.is_valid():
        try:
            environment = services.create_environment(
                actor=request.user, text=form.cleaned_data["definition"]
            )
        except services.InvalidEnvironment as error:
            form.add_error("definition", str(error))
        else:
            toast(request, f"{environment.name} was created.")
            return hx_redirect(request, reverse("environments:detail", args=[environment.pk]))
    status = 422 if form.is_bound else 200
    context = {"form": form, "default_image": default_image()}
    return render_page(request, "environments/create.html", context, status=status)


@require_GET
def environment_detail(request: Request, pk: UUID) -> HttpResponse:
    environment = _get_environment(pk)
    initial = {"definition": environment.definition, "version": environment.version}
    return _detail(request, environment, DefinitionForm(initial=initial))


@require_POST
@administrator_required
def environment_update(request: Request, pk: UUID) -> HttpResponse:
    environment = _get_environment(pk)
    form = DefinitionForm(request.POST)
    outdated = ""
    if form.is_valid():
        text, version = form.cleaned_data["definition"], form.cleaned_data["version"] or 0
        try:
            services.update_environment(environment, actor=request.user, text=text, version=version)
        except services.InvalidEnvironment as error:
            form.add_error("definition", str(error))
        except services.OutdatedEdit as error:
            environment = _get_environment(environment.pk)
            outdated = str(error)
            # Both are on the page now; a second Save decides.
            form = DefinitionForm({"definition": text, "version": environment.version})
        else:
            toast(request, "Saved.")
            return hx_redirect(request, reverse("environments:detail", args=[environment.pk]))
    return _detail(request, environment, form, outdated=outdated, status=422)


def _detail(
    request: Request,
    environment: Environment,
    form: DefinitionForm,
    *,
    outdated: str = "",
    status: int = 200,
) -> HttpResponse:
    context = builds_context(environment) | {
        "form": form,
        "default_image": default_image(),
        "outdated": outdated,
        "definition": services.definition_of(environment),
        "jobs": list(environment.jobs.only("name").order_by("name")),
    }
    return render_page(request, "environments/detail.html", context, status=status)


@require_GET
def environment_builds(request: Request, pk: UUID) -> HttpResponse:
    """The card by itself; it refreshes as long as something is being built."""
    return render_page(request, "environments/_builds.html", builds_context(_get_environment(pk)))


@require_POST
@administrator_required
def environment_build(request: Request, pk: UUID) -> HttpResponse:
    """Build it again, also where it is there: what has no version may be newer by now."""
    environment = _get_environment(pk)
    asked = services.request_builds(environment, again=True)
    if not asked:
        toast(request, "No worker is running; the first run builds it.", "info")
    if request.htmx:
        return render_page(
            request,
            "environments/_builds.html",
            builds_context(environment),
            partial="environments/_builds.html",
        )
    return hx_redirect(request, reverse("environments:detail", args=[pk]))


@require_http_methods(["GET", "POST"])
@administrator_required
def environment_delete(request: Request, pk: UUID) -> HttpResponse:
    environment = _get_environment(pk)
    error = ""
    if request.method == "POST":
        try:
            services.delete_environment(environment, actor=request.user)
        except services.EnvironmentInUse as used:
            error = str(used)
        else:
            toast(request, f"{environment.name} was deleted.")
            return hx_redirect(request, reverse("jobs:sandboxes"))
    context = {"environment": environment, "error": error}
    return render_form(request, "environments/delete.html", context, refused=bool(error))


def _get_environment(pk: UUID) -> Environment:
    return get_object_or_404(Environment.objects.select_related("updated_by"), pk=pk)
