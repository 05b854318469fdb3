"""Tables of what is refused: the field that the error names, the call, and a pattern of the error's words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

Row = tuple[str, Callable[[], Any], str]


def check_refused(rows: Iterable[Row]) -> None:
    """Call every function of a table, and fail with all that are accepted or refused in other words.

    The field is "" where the error is no ConfigError.
    """
    wrong = []
    for field, call, words in rows:
        try:
            answer = call()
        except (ValueError, RuntimeError, OSError) as error:  # of which pslab's errors are some
            text = " ".join(str(error).split())
            if getattr(error, "field", "") != field or not re.search(words, text):
                wrong.append(f"{field}, {words!r}: {type(error).__name__}: {getattr(error, 'field', '')}, {text}")
        else:
            wrong.append(f"{field}, {words!r}: accepted, {answer!r}"[:400])
    assert not wrong, "\n".join(wrong)
