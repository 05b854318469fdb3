"""pslab bench, pslab chaos: developers' tools, which are in tests/tools of a checkout, but in no wheel."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pslab.errors import PslabError
from pslab.version import SOURCE


@dataclass(frozen=True)
class Absent:
    """A verb whose tool is not installed here."""

    verb: str

    def add(self, verbs: Any) -> None:
        """Add the verb, which takes any arguments."""
        words = "a tool of developers, in a checkout of pslab"
        parser = verbs.add_parser(self.verb, help=words, description=f"{words[0].upper()}{words[1:]}.")
        parser.add_argument("words", nargs="*")
        parser.set_defaults(unknown=[])

    def main(self, options: argparse.Namespace) -> int:
        """Raise an error that says how to get the tool.

        Raises:
            PslabError: always.
        """
        raise PslabError(
            f"{self.verb} is a tool of developers and not part of an installed pslab: clone pslab's repository, "
            f"`pip install --editable .` there, and call `pslab {self.verb}` again"
        )


def tool(verb: str) -> Any:
    """Return the module of this verb; an Absent, if pslab does not run from a checkout."""
    tests = SOURCE.parent / "tests"
    if not (tests / "tools" / verb / "command.py").is_file():
        return Absent(verb)
    if str(tests) not in sys.path:  # in sys.path, because spawned processes inherit it
        sys.path.insert(0, str(tests))
    return import_module(f"tools.{verb}.command")
