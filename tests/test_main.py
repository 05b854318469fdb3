"""The command line and errors: every verb has help, errors have a form, and a closed pipe is no traceback."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy
import pytest
from IPython.core.interactiveshell import InteractiveShell

import pslab
from pslab.__main__ import PIPE_CLOSED, VERBS, main
from pslab.config.run import FIELDS, Run
from pslab.errors import LONGEST, ConfigError, PslabError, ended, shortened
from pslab.lab.commands import doctor
from pslab.lab.commands.run import example


def test_a_package_that_is_only_on_the_path_works_as_an_installed_one(tmp_path: Path):
    packages, checkout = tmp_path / "packages", tmp_path / "checkout"
    for path in Path(numpy.__file__).parents[1].iterdir():
        if "pslab" not in path.name and path.suffix != ".pth":
            (packages / path.name).parent.mkdir(exist_ok=True)
            (packages / path.name).symlink_to(path)
    checkout.mkdir()
    (checkout / "pslab").symlink_to(Path(pslab.__file__).parent)

    code = ("import pslab.__main__ as pslab\n"
            "pslab.main(['--version'])\n"
            "print(pslab.main('run --engine timing --cluster lab --pushes 4 --results .'.split()))\n"
            "print(pslab.main(['bench', 'rounds', '--quick']), pslab.main([]))")  # fmt: skip
    paths = os.pathsep.join(map(str, (checkout, packages)))
    ended = subprocess.run([sys.executable, "-S", "-c", code], env={**os.environ, "PYTHONPATH": paths}, cwd=tmp_path,
                           capture_output=True, text=True, timeout=120)  # fmt: skip
    version, *said = ended.stdout.splitlines() or [ended.stderr]
    assert version == f"pslab {pslab.__version__}"
    assert said[-1] == "1 2"
    assert "0" in said
    assert "bench a tool of developers, in a checkout of pslab" in " ".join(ended.stdout.split())
    assert "pslab bench: bench is a tool of developers and not part of an installed pslab: clone" in ended.stderr


def test_a_warning_is_one_line_without_the_place_in_the_source(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert main(f"run --engine timing --pushes 4 --results {tmp_path}".split()) == 0
    line = "pslab run: engine='timing' needs a modelled cluster, and none is given: using cluster='lab'"
    assert capsys.readouterr().err.splitlines()[0] == line


def test_a_model_of_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines = "from torch import nn", "def small():", "    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))"
    (tmp_path / "model_of_this_folder.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    words = "run --engine timing --cluster lab --pushes 4 --results runs --model model_of_this_folder:small"
    assert main(words.split()) == 0


def test_help_names_every_verb_which_has_its_own(capsys: pytest.CaptureFixture):
    for words in (["--help"], ["-h"]):
        assert main(words) == 0
        out = capsys.readouterr().out
        assert all(f"\n    {verb}" in out for verb in VERBS)
    for verb in VERBS:
        assert main([verb, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"usage: pslab {verb}")


def test_help_of_run_explains_every_field_with_an_example(capsys: pytest.CaptureFixture):
    assert main(["run", "-h"]) == 0
    out = capsys.readouterr().out
    text = " ".join(out.split())
    for name, field in FIELDS.items():
        option = f"--{name.replace('_', '-')}"
        assert f"{option} {name.upper()}" in text
        assert field.doc in text
        assert f"{option} {example(name)}\n" in out  # on one line
    assert "a whole number from 1 to 1024; default: 4" in text


def test_no_verb_and_an_unknown_one_are_refused(capsys: pytest.CaptureFixture):
    assert main([]) == 2
    assert "usage: pslab" in capsys.readouterr().out
    assert main(["figurs"]) == 2
    assert "pslab: unknown verb 'figurs'; did you mean 'figures'? allowed: advise, bench, " in capsys.readouterr().err


def test_what_a_verb_raises_is_said_in_a_line(monkeypatch, capsys):
    for error, status, said in ((PslabError("no"), 1, "no"), (KeyboardInterrupt(), 130, "interrupted"),
                                (KeyboardInterrupt("kept"), 130, "kept")):  # fmt: skip
        monkeypatch.setattr(doctor, "main", Mock(side_effect=error))
        assert main(["doctor"]) == status
        assert capsys.readouterr().err == f"pslab doctor: {said}\n"


def test_a_closed_pipe_is_no_traceback():
    # the pipe is closed before anything is written
    words = ["check", "asp", "--workers", "1", "--iterations", "1", "--faults", "none", "--processes", "1"]
    code = f"import os, sys; from pslab.__main__ import main; os.close(0); sys.exit(main({words}))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b"explores one cluster\n"
        assert process.wait(60) == PIPE_CLOSED


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


def test_an_error_is_the_same_after_a_pipe_and_signals_have_names():
    error = ConfigError("workers", 0, "must be a whole number from 1 to 1024")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.field, again.value) == (str(error), "workers", 0)
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
