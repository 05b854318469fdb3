"""The command line, pslab VERB or python -m pslab VERB, with the same parameters as the notebooks."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

from pslab.errors import ConfigError, PslabError, nearest
from pslab.version import __version__

TOOL = "pslab.lab.commands.developer"
VERBS = {  # the module of each verb
    "run": "pslab.lab.commands.run",
    "advise": "pslab.lab.commands.advise",
    "figures": "pslab.lab.commands.figures",
    "lab": "pslab.lab.commands.lab",
    "init": "pslab.lab.commands.init",
    "list": "pslab.lab.commands.list",
    "check": "pslab.lab.commands.check",
    "verify": "pslab.lab.commands.verify",
    "export": "pslab.lab.commands.export",
    "bench": TOOL,
    "chaos": TOOL,
    "doctor": "pslab.lab.commands.doctor",
}
PIPE_CLOSED = 141  # exit status that a shell reports for a process that wrote to a closed pipe


def verb_of(name: str) -> Any:
    """Return the module of a verb: its `add` adds the verb's parser, its `main` executes the verb."""
    module = import_module(VERBS[name])
    return module.tool(name) if VERBS[name] == TOOL else module


class Verb(argparse.ArgumentParser):
    """The parser of one verb; options must be written in full."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute the command line. Return the exit status: 2 for bad parameters, 1 for a failure, 130 for an interrupt."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    verb = words[0] if words else ""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = partial(_warn, verb)
            return _main(verb, words)
    except SystemExit as ended:  # argparse has printed the help or the error
        return int(ended.code or 0)
    except PslabError as error:
        print(f"pslab {verb}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt as interrupt:
        print(f"pslab {verb}: {str(interrupt) or 'interrupted'}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout once more when it exits
        return PIPE_CLOSED


def _warn(verb: str, message: Warning | str, *_: object) -> None:
    print(f"pslab {verb}: {message}", file=sys.stderr)


def _main(verb: str, words: list[str]) -> int:
    parser = argparse.ArgumentParser("pslab", description="A workbench for parameter-server training.")
    parser.add_argument("--version", action="version", version=f"pslab {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True, parser_class=Verb)
    for name in [verb] if verb in VERBS else VERBS:  # a single verb loads only its own module
        verb_of(name).add(verbs)
    if not verb:
        parser.print_help()
        return 2
    if verb not in VERBS and not verb.startswith("-"):
        print(f"pslab: unknown verb {verb!r}; {nearest(verb, VERBS)}", file=sys.stderr)
        return 2
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # the user's model may be a module there, as for `python -m pslab`
    options, unknown = parser.parse_known_args(words)
    if unknown and "unknown" in options:
        options.unknown = unknown  # this verb passes them on
    elif unknown:
        name = unknown[0].lstrip("-").partition("=")[0].replace("_", "-")
        raise ConfigError("option", unknown[0], nearest(name, (option.replace("_", "-") for option in vars(options))))
    status: int = verb_of(verb).main(options)
    sys.stdout.flush()
    return status


if __name__ == "__main__":
    sys.exit(main())
