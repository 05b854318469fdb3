"""Errors quote what was wrong, at a length that a person reads, survive a pipe, and are one sentence in a notebook."""

from __future__ import annotations

import pickle

import pytest
from IPython.core.interactiveshell import InteractiveShell

from pslab.config.run import Run
from pslab.errors import LONGEST, ConfigError, ended, shortened


def test_a_long_value_is_quoted_by_its_ends_and_no_message_echoes_what_a_person_pasted():
    assert shortened("short") == "'short'"
    text = shortened("a" * 100_000 + "b")
    assert len(text) < LONGEST + 10
    assert text.startswith("'aaa")
    assert text.endswith("ab'")
    with pytest.raises(ConfigError) as error:
        Run.of({"x" * 100_000: "y" * 100_000})
    assert len(str(error.value)) < 4 * LONGEST
    assert error.value.value == "y" * 100_000


def test_an_error_is_the_same_after_a_pipe():
    error = ConfigError("workers", 0, "must be a whole number from 1 to 1024")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.field, again.value) == (str(error), "workers", 0)


def test_signals_have_names():
    named = {-9: "killed by SIGKILL", -11: "killed by SIGSEGV", 3: "exit code 3", -999: "exit code -999"}
    assert {code: ended(code) for code in named} == named
    assert "its host may be gone" in ended(None)


def test_a_notebook_shows_the_sentence_and_the_traceback_on_demand(monkeypatch: pytest.MonkeyPatch):
    shell = InteractiveShell()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    shown: list[str] = []
    monkeypatch.setattr(shell, "_showtraceback", lambda kind, error, lines: shown.append("\n".join(lines)))
    shell.run_cell("from pslab import Run\ndef make():\n    return Run(workers=0)\nmake()")
    shell.run_line_magic("tb", "Verbose")
    assert shown[0].endswith("ConfigError\x1b[39m: workers=0: must be a whole number from 1 to 1024")
    assert "\n" not in shown[0]
    assert "Traceback" in shown[1]
    assert "parameters.py" in shown[1]
