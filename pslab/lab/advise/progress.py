"""What a search does just now: a line that rewrites itself on a terminal, a table in a notebook, else plain lines."""

from __future__ import annotations

import html
import sys
import time
from typing import Any

from pslab.lab.advise.advice import shown
from pslab.lab.advise.race import LEAST, RaceAnswer
from pslab.lab.records import journal
from pslab.lab.records.merit import SECONDS, Merit
from pslab.lab.records.units import SPACE
from pslab.lab.runs.progress import has_front_end

ROWS = 6  # of the table, the soonest first


class SearchProgress:
    """Says what is tried, who leads, how sure that is, and how many minutes are left.

    Args:
        shown: whether it says anything; None: yes, unless a batch reads a journal.
        until_s: when the search ends, on the monotonic clock.
        merit: what policies are compared by.
    """

    def __init__(self, shown: bool | None, until_s: float, merit: Merit = SECONDS) -> None:
        self._shown = shown if shown is not None else not journal.active()
        self._merit = merit
        self._until_s, self._width, self._page = until_s, 0, None if not has_front_end() else _Page()
        self._tried = ""

    def say(self, tried: str, answer: RaceAnswer | None = None) -> None:
        """What is tried next, and what is known so far."""
        if tried == self._tried:
            return
        self._tried, left_s = tried, max(0.0, self._until_s - time.monotonic())
        words = f"{_leads(answer)}trying {tried}; at most {left_s / 60:.1f} min left"
        if self._shown and self._page is not None:
            self._page.show(f"<p>{html.escape(words)}</p>{self._table(answer)}")
        elif self._shown:
            live = sys.stderr.isatty()
            start, end = ("\r", "") if live else ("", "\n")
            print(start + words.ljust(self._width), end=end, file=sys.stderr, flush=True)
            self._width = len(words) if live else 0

    def _table(self, answer: RaceAnswer | None) -> str:
        if answer is None:
            return ""
        return str(shown(answer.standings[:ROWS], self._merit).to_html(index=False, border=0))

    def end(self) -> None:
        """What comes next stands on a line of its own, and the table gives way to the answer."""
        if self._shown and self._page is not None:
            self._page.show("")
        elif self._shown and self._width:
            print("\r" + " " * self._width, end="\r", file=sys.stderr, flush=True)


class _Page:
    """One place of a notebook's output, whose content is replaced."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, content: str) -> None:
        from IPython import display

        shown: Any = display
        if self._handle is None:
            self._handle = shown.display(shown.HTML(content), display_id=True)
        else:
            self._handle.update(shown.HTML(content))


def _leads(answer: RaceAnswer | None) -> str:
    if answer is None:
        return ""
    leader = answer.standing(answer.policy)
    sure = f" ({100 * leader.chance:.0f}{SPACE}% sure)" if len(leader.arrived) >= LEAST and leader.chance > 0 else ""
    return f"{answer.policy} leads{sure}; "
