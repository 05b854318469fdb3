"""python -m pslab VERB: the same parameters as the notebooks."""

from __future__ import annotations

import sys
from importlib import import_module

VERBS = {
    "run": ("pslab.lab.commands.run", "one run: python -m pslab run --sync ssp:3 --prune static:1% [--file run.yaml]"),
    "figures": ("pslab.lab.commands.figures", "execute the notebooks through papermill and export their figures"),
    "list": ("pslab.lab.commands.list", "every policy, pruner, model, ... by name: pslab list [NAME] [--json]"),
    "bench": ("pslab.lab.bench.command", "speed beside limits and peers: python -m pslab bench [SECTION] [--json F]"),
    "trace": ("pslab.lab.commands.trace", "who did what when in a finished run: a picture, and for ui.perfetto.dev"),
    "check": ("pslab.lab.commands.check", "is a policy safe? every order of events in a small cluster, with faults"),
    "doctor": ("pslab.lab.commands.doctor", "what is not well here, and what to do about it [--json]"),
}


def main(arguments: list[str]) -> int:
    """Do what the command line says; the exit status."""
    if not arguments or arguments[0] not in VERBS:
        from pslab.errors import nearest

        asked_for_help = bool(arguments) and arguments[0] in ("-h", "--help", "help")
        if arguments and not asked_for_help:
            print(f"pslab: unknown verb {arguments[0]!r}; {nearest(arguments[0], VERBS)}", file=sys.stderr)
        lines = [f"  {verb:9}{words}" for verb, (_, words) in VERBS.items()]
        print("\n".join(["usage: python -m pslab VERB ...", *lines]))
        return 0 if asked_for_help else 2
    status: int = import_module(VERBS[arguments[0]][0]).main(arguments[1:])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
