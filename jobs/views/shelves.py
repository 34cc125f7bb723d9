"""The files of a run on its Outputs tab: those of the script, and those that tools returned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jobs import queries
from jobs.models import Artifact, Run
from jobs.queries import CallName
from jobs.views.files import may_be_inline

MAX_SHOWN = 1000


@dataclass(frozen=True)
class File:
    item: Artifact
    # The call whose result held it; None for what the script left in /ump/outputs.
    call: CallName | None = None

    @property
    def is_image(self) -> bool:
        return self._is_shown("image/")

    @property
    def is_audio(self) -> bool:
        return self._is_shown("audio/")

    def _is_shown(self, kind: str) -> bool:
        return self.item.media_type.startswith(kind) and may_be_inline(self.item.media_type)


def shelves(run: Run) -> dict[str, Any]:
    """Context of the template: `artifacts`, `from_calls`, and how many are not shown."""
    items = list(run.artifacts.all()[: MAX_SHOWN + 1])
    calls = queries.names_of_calls(run.pk, {item.span for item in items if item.span})
    files = [File(item, calls.get(item.span)) for item in items[:MAX_SHOWN]]
    return {
        "artifacts": [file for file in files if not file.item.span],
        # In the order of the calls; within one, in the server's.
        "from_calls": sorted(
            (file for file in files if file.item.span),
            key=lambda file: (file.call.seq if file.call else 0, len(file.item.name)),
        ),
        "has_more_files": len(items) > MAX_SHOWN,
    }
