"""The shape of the house (docs/architecture.md): who imports whom, and how long a file is."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("umpteenth", "secrets_vault", "servers", "jobs")
# From the lowest room to the highest; a room imports itself and the rooms before it.
ROOMS = ("umpteenth.core", "umpteenth.accounts", "secrets_vault", "servers", "jobs")
# They put the rooms together and may import any of them; no room imports them.
WIRING = (
    "umpteenth.__main__",
    "umpteenth.api",
    "umpteenth.asgi",
    "umpteenth.celery",
    "umpteenth.cli",
    "umpteenth.health",
    "umpteenth.settings",
    "umpteenth.supervisor",
    "umpteenth.urls",
)
# A room sends hints; what to do then is told by the name of a task.
DOORS = ("umpteenth.celery",)
# Tested without a database: they know nothing of Django.
WITHOUT_DJANGO = (
    "umpteenth.core.addresses",
    "umpteenth.core.config",
    "umpteenth.core.deadlines",
    "umpteenth.core.guard",
    "umpteenth.core.http",
    "umpteenth.core.ids",
    "umpteenth.core.keyfiles",
    "umpteenth.core.masking",
    "umpteenth.core.process",
    "umpteenth.core.strict_yaml",
    "umpteenth.core.text",
    "umpteenth.supervisor",
    "secrets_vault.crypto",
    "secrets_vault.errors",
    "secrets_vault.references",
    "servers.changes",
    "servers.definition",
    "servers.effective",
    "servers.limits",
    "servers.mcp",
    "servers.naming",
    "servers.oauth.asking",
    "servers.oauth.assertions",
    "servers.oauth.challenge",
    "servers.oauth.clients",
    "servers.oauth.discovery",
    "servers.oauth.documents",
    "servers.oauth.grants",
    "servers.oauth.metadata",
    "servers.oauth.answer",
    "servers.oauth.operator_client",
    "servers.oauth.registration",
    "servers.oauth.replies",
    "servers.oauth.revoking",
    "servers.oauth.scopes",
    "servers.oauth.types",
    "servers.options",
    "servers.pacing",
    "servers.policy",
    "jobs.environments.definition",
    "jobs.environments.log",
    "jobs.network",
    "jobs.permission",
    "jobs.schedule",
    "jobs.sandbox.deleted",
    "jobs.sandbox.disk",
    "jobs.sandbox.locked",
    "jobs.sandbox.egress",
    "jobs.sandbox.hierarchies",
    "jobs.sandbox.launcher",
    "jobs.sandbox.seccomp",
    "jobs.ump",
)
# They run where nothing of ours is installed, or for as long as the site is up.
STANDARD_LIBRARY_ONLY = (
    "jobs.sandbox.egress.connect",
    "jobs.sandbox.engine.listen",
    "jobs.sandbox.launcher",
    "jobs.ump",
    "umpteenth.supervisor",
)
# Packages whose own __init__ holds nothing that runs.
EMPTY = ("umpteenth", "umpteenth.core", "secrets_vault", "servers", "servers.oauth", "jobs")
SDK = ("mcp", "mcp_types")
# The modules that may open connections for HTTP, and what nobody opens any with.
HTTP_DOOR = ("umpteenth.core.http", "umpteenth.core.guard")
OTHER_CLIENTS = (
    *("aiohttp", "authlib.integrations", "http.client", "httpcore2", "httpx", "requests"),
    *("mcp.client.auth", "mcp.client.sse", "mcp.client.streamable_http", "mcp.client.websocket"),
    *("urllib.request.build_opener", "urllib.request.urlopen", "urllib3"),
)
MAX_LINES = 500
MAX_MODEL_LINES = 600


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources(*directories: str) -> Iterator[Path]:
    for directory in directories:
        for path in sorted((ROOT / directory).rglob("*.py")):
            parts = path.relative_to(ROOT).parts
            if not {"migrations", "node_modules"} & set(parts) and not any(
                part.startswith(".") for part in parts
            ):
                yield path


def imports(path: Path, *, at_once: bool = False) -> set[str]:
    """Every module that the file imports when it runs, also inside functions; `at_once` without
    those."""
    found: set[str] = set()
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in _running_nodes(ast.parse(path.read_text(encoding="utf-8")), at_once=at_once):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from umpteenth import celery` names a module, too.
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return found


def _running_nodes(tree: ast.AST, *, at_once: bool = False) -> Iterator[ast.AST]:
    """All nodes but those of `if TYPE_CHECKING:`, which only mypy reads."""
    yield tree
    if at_once and isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    children = ast.iter_child_nodes(tree)
    if isinstance(tree, ast.If) and ast.unparse(tree.test) == "TYPE_CHECKING":
        children = iter(tree.orelse)
    for child in children:
        yield from _running_nodes(child, at_once=at_once)


def within(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def room_of(module: str) -> str | None:
    return next((room for room in ROOMS if within(module, (room,))), None)


def modules(names: tuple[str, ...]) -> list[Path]:
    return [path for path in sources(*PACKAGES) if within(module_name(path), names)]


CODE = list(sources(*PACKAGES))
IDS = [str(path.relative_to(ROOT)) for path in CODE]


@pytest.mark.parametrize("path", CODE, ids=IDS)
def test_a_room_imports_only_rooms_below_it(path: Path) -> None:
    room = room_of(module_name(path))
    if room is None:
        assert module_name(path) == "umpteenth" or within(module_name(path), WIRING)
        return
    above = ROOMS[ROOMS.index(room) + 1 :]
    named = imports(path)
    wrong = {name for name in named if within(name, above)}
    wrong |= {name for name in named if within(name, WIRING) and not within(name, DOORS)}
    assert not wrong


def test_no_module_needs_itself_to_be_imported() -> None:
    """Else it depends on who comes first whether a process starts."""
    known = {module_name(path) for path in CODE}
    needs = {module_name(path): imports(path, at_once=True) & known for path in CODE}
    for module, others in needs.items():
        # `from a.b import c` names a.b and a.b.c: a package that holds nothing waits for nobody.
        others -= {module, *EMPTY}
    TopologicalSorter(needs).prepare()  # raises `CycleError`, which names them


@pytest.mark.parametrize("path", CODE, ids=IDS)
def test_only_the_protocol_engine_imports_the_sdk(path: Path) -> None:
    if not within(module_name(path), ("servers.mcp",)):
        assert not {name for name in imports(path) if within(name, SDK)}


@pytest.mark.parametrize("name", WITHOUT_DJANGO)
def test_modules_that_work_without_django_do_not_name_it(name: str) -> None:
    found = modules((name,))
    assert found, f"{name} does not exist"
    for path in found:
        named = imports(path)
        assert not {other for other in named if within(other, ("django",))}
        ours = {other for other in named if within(other, PACKAGES)}
        # What they import of ours keeps to the same rule.
        assert not {
            other
            for other in ours
            if modules((other,)) and not within(other, WITHOUT_DJANGO) and other not in EMPTY
        }


@pytest.mark.parametrize("name", STANDARD_LIBRARY_ONLY)
def test_modules_that_stand_alone_import_only_the_standard_library(name: str) -> None:
    for path in modules((name,)):
        roots = {other.partition(".")[0] for other in imports(path)}
        assert roots <= sys.stdlib_module_names


@pytest.mark.parametrize("path", list(sources(*PACKAGES, "tests", "bench", "docs")), ids=str)
def test_a_file_can_be_read_in_one_sitting(path: Path) -> None:
    is_model = "models" in path.parts or path.name == "models.py"
    limit = MAX_MODEL_LINES if is_model else MAX_LINES
    assert len(path.read_text(encoding="utf-8").splitlines()) <= limit


@pytest.mark.parametrize("path", CODE, ids=IDS)
def test_time_limits_are_those_that_hold_on_every_python(path: Path) -> None:
    """`asyncio.timeout` fails in cancelled tasks on Debian 12's Python: `core.deadlines`."""
    assert "asyncio.timeout(" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", CODE, ids=IDS)
def test_http_goes_out_through_one_door(path: Path) -> None:
    """I02, I05: a client made anywhere else would go past the guard (`core.http`)."""
    if module_name(path) in HTTP_DOOR:
        return
    # Errors of a client make no connection; they come out of the package of the engine.
    named = {name for name in imports(path) if not within(name, ("urllib3.exceptions",))}
    assert not {name for name in named if within(name, OTHER_CLIENTS)}
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    called = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
    makes_one = re.compile(r"httpx2\.(\w*(Client|Transport)|[a-z]+)")
    assert not [name for name in called if makes_one.fullmatch(name)]


@pytest.mark.parametrize("path", sorted((ROOT / "tests/units").glob("test_*.py")), ids=str)
def test_what_fast_tests_share_is_in_no_file_of_tests(path: Path) -> None:
    """It is in `tests.fakes` or beside them, where a reader looks for it."""
    assert not {name for name in imports(path) if ".test_" in name}


@pytest.mark.parametrize("name", EMPTY)
def test_the_packages_themselves_import_nothing(name: str) -> None:
    assert imports(ROOT / name.replace(".", "/") / "__init__.py") == set()


@pytest.mark.parametrize("path", sorted((ROOT / "templates").rglob("*.html")), ids=str)
def test_what_a_form_is_for_comes_before_the_way_out(path: Path) -> None:
    """The same order of buttons at the end of every form and dialog."""
    text = path.read_text(encoding="utf-8")
    for foot in re.findall(r'class="(?:\S+-foot|unsaved-bar)"(.*?)</div>', text, flags=re.S):
        buttons = re.findall(r'class="(btn(?: btn-(?:primary|danger))?)"', foot)
        assert buttons == sorted(buttons, key=lambda button: button == "btn")


def test_the_lock_names_no_registry() -> None:
    assert "://" not in (ROOT / "requirements.lock").read_text()
