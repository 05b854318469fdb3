"""The project about itself: one list of dependencies, no policy's name in an engine, a README that shows all."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from pslab.policies.table import ORDERS, RATES, SCHEDULES, SYNCS
from pslab.tensors.pruning.rules import PRUNERS

ROOT = Path(__file__).parent.parent
COMMON = {"none", "constant", "linear", "steps", "static", "std", "dynamic",  # words that are not only policies
          "local", "eager", "split", "stalest", "front", "needed", "range"}  # fmt: skip


def test_conda_users_get_what_pip_users_get():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["dependencies"] == ["python >=3.11,<3.14", "pip", {"pip": ["-e .[dev]"]}]


def test_no_policy_is_named_in_an_engine():
    names = ({*SYNCS, *RATES, *ORDERS, *SCHEDULES, *PRUNERS} - COMMON) | {
        cls.__name__ for table in (SYNCS, RATES, ORDERS, SCHEDULES) for cls in table.values()
    }
    pattern = re.compile(rf"\b({'|'.join(sorted(names))})\b")
    for file in sorted((ROOT / "pslab" / "engines").glob("*.py")):
        assert not (found := pattern.findall(file.read_text())), f"{file.name} names {found}"


def test_the_readme_shows_every_file():
    readme = (ROOT / "README.md").read_text()
    for file in sorted((ROOT / "pslab").rglob("*.py")):
        assert file.name == "__init__.py" or file.name in readme, f"{file} is missing in the README's tree"


def test_the_readme_names_every_policy():
    readme = (ROOT / "README.md").read_text()
    for name in (*SYNCS, *RATES, *ORDERS, *PRUNERS):
        assert re.search(rf"`{name}[`:]", readme), f"{name} is missing in the README's table"
