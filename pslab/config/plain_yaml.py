"""YAML as people write it by hand: plain values without aliases, which could grow without bound as they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

LONGEST = 10_000_000  # characters of a file that a person has written


class Unreadable(ValueError):
    """Text, or a file, that is not plain YAML; the message says why."""


class _Loader(yaml.SafeLoader):
    """Refuses aliases: in 1 kB, nested ones can stand for more values than memory holds."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise Unreadable(f"line {mark.line + 1} has an alias (*): write out what it stands for")
        return super().compose_node(parent, index)


def load(text: str) -> Any:
    """The value of a YAML text.

    Raises:
        Unreadable: it is none, or it has an alias.
    """
    try:
        return yaml.load(text, _Loader)
    except Unreadable:
        raise
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except yaml.YAMLError as error:
        raise Unreadable(str(error)) from None
    except Exception as error:  # a scalar that looks like a date or a number, and is none
        raise Unreadable(f"a value that looks like another type cannot be read ({error}): put it in quotes") from None


def read(path: Path) -> Any:
    """The value of a YAML file.

    Raises:
        Unreadable: as `load`, or the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8") as file:  # which may be a pipe
            text = file.read(LONGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(str(error)) from None
    if len(text) > LONGEST:
        raise Unreadable(f"it is longer than {LONGEST:,} characters")
    return load(text)
