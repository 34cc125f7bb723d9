"""How the lists of an environment become a directory: one script for each kind of package.

Each runs in a sandbox of its own as a user without rights, with the directory at /ump/env and
room for what is only needed meanwhile at /ump/scratch. No Django here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from jobs.environments.definition import Definition
from jobs.sandbox.bases import DEBIAN, INSIDE, NODE, PYTHON

SCRATCH: Final = "/ump/scratch"
# What is installed on the machine, where apt expects it; without it apt would fetch everything.
INSTALLED: Final = "/ump/dpkg-status"

# apt never runs as root here and installs nothing: it finds what is missing and fetches it.
# The scripts of Debian packages are not run.
_DEBIAN = r"""
set -euo pipefail
apt=$SCRATCH/apt
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/log" "$INTO"
run() {
  apt-get -q -y -o Dir::State="$apt" -o Dir::State::lists="$apt/lists" \
    -o Dir::State::status="$INSTALLED" -o Dir::Cache="$apt/cache" -o Dir::Log="$apt/log" \
    -o Debug::NoLocking=true -o APT::Sandbox::User= -o APT::Install-Recommends=false \
    -o Acquire::Languages=none -o Acquire::Retries=2 "$@"
}
run update
run --download-only install -- "$@"
shopt -s nullglob
for package in "$apt"/cache/archives/*.deb; do
  echo "Unpacking ${package##*/}"
  dpkg-deb --extract "$package" "$INTO"
done
"""
_PYTHON = r"""
set -euo pipefail
export UV_CACHE_DIR=$SCRATCH/uv
uv --no-progress venv --quiet --python "$UV_PYTHON" "$INTO"
uv --no-progress pip install --python "$INTO/bin/python" -- "$@"
"""
_NPM = r"""
set -euo pipefail
export npm_config_cache=$SCRATCH/npm npm_config_progress=false npm_config_update_notifier=false
mkdir -p "$INTO"
cd "$INTO"
echo '{"private": true}' > package.json
npm install --no-fund --no-audit -- "$@"
"""
# For every party to read; and nothing that a party could not remove with what it is in.
_FINISH = r"""
set -euo pipefail
chmod -R u+rwX,go-w,a+rX,u-s,g-s "$INTO"
"""


@dataclass(frozen=True)
class Step:
    """`needs` is the program without which it cannot be done, `remedy` what to do then."""

    title: str
    script: str
    packages: Sequence[str]
    into: str
    needs: str
    remedy: str = ""

    @property
    def argv(self) -> list[str]:
        return ["bash", "-c", self.script, "bash", *self.packages]


def steps_of(definition: Definition) -> list[Step]:
    """In this order: what is built for Python or Node may need libraries of Debian's."""
    npm = "apt install npm, or Node's own packages"
    found = [
        Step(
            "Debian packages", _DEBIAN, definition.debian, DEBIAN, "apt-get",
            "lists of Debian packages are for workers on Debian or Ubuntu",
        ),
        Step("Python packages", _PYTHON, definition.python, PYTHON, "uv", "install uv"),
        Step("npm packages", _NPM, definition.npm, NODE, "npm", f"install it: {npm}"),
    ]  # fmt: skip
    return [
        *(step for step in found if step.packages),
        Step("Permissions", _FINISH, (), "", "chmod"),
    ]


def variables_of(step: Step) -> dict[str, str]:
    into = f"{INSIDE}/{step.into}".rstrip("/")
    return {"INTO": into, "SCRATCH": SCRATCH, "TMPDIR": SCRATCH, "INSTALLED": INSTALLED}
