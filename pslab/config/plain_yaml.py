"""YAML as people write it by hand: plain values without aliases, because nested aliases can expand without bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

LONGEST = 10_000_000  # most characters of a file that a person has written


class Unreadable(ValueError):
    """The text or file is not plain YAML; the message says why."""


class _Loader(yaml.SafeLoader):
    """A loader that refuses aliases: nested aliases in 1 kB of text can expand to more values than fit in memory."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise Unreadable(f"line {mark.line + 1} has an alias (*): write out the value that it refers to")
        return super().compose_node(parent, index)


def load(text: str) -> Any:
    """Return the value of a YAML text.

    Raises:
        Unreadable: the text is not YAML, or it has an alias.
    """
    try:
        return yaml.load(text, _Loader)
    except Unreadable:
        raise
    except RecursionError:
        raise Unreadable("its values are nested too deeply: use fewer levels") from None
    except yaml.YAMLError as error:
        raise Unreadable(str(error)) from None
    except Exception as error:  # a scalar that looks like a date or a number but is not one
        problem = "a value without quotes looks like a date or a number, but is neither"
        raise Unreadable(f"{problem} ({error}): put it in quotes") from None


def read(path: Path) -> Any:
    """Return the value of a YAML file.

    Raises:
        Unreadable: as `load`, or the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8") as file:  # limited, because the path may be a pipe
            text = file.read(LONGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(str(error)) from None
    if len(text) > LONGEST:
        raise Unreadable(f"it is longer than {LONGEST:,} characters, too long for YAML written by hand")
    return load(text)
