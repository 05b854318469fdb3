"""pslab --completion: what bash completes, asked of bash itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pslab.__main__ import VERBS, main
from pslab.config.table import ROWS

EXAMPLES = [row.example for row in ROWS["sync"].values() if row.example]
BASH = shutil.which("bash")
ASK = """source "$1"; shift; COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; _pslab
echo "${COMPREPLY[@]}"; complete -p pslab"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file: Path = tmp_path_factory.mktemp("completion") / "script"
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr("builtins.print", said.append)
        assert main(["--completion"]) == 0
    file.write_text("\n".join(said))
    return file


@pytest.mark.skipif(BASH is None, reason="there is no bash")
@pytest.mark.parametrize(("words", "offered"), [
    ([""], {*VERBS, "--help", "--version"}), (["fig"], {"figures"}), (["run", "--see"], {"--seed"}),
    (["run", "--sync", ""], {*ROWS["sync"], *EXAMPLES}), (["run", "--pull", "ch"], {"changed"}),
    (["run", "--cluster", "lab"], {"lab", "lab-slow-net"}), (["run", "--keep-weights", ""], {"on", "off"}),
    (["run", "--results", ""], set()), (["trace", "0123"], {"0123456789abcdef"}),
    (["chaos", "--engine", ""], {"virtual", "local"}), (["run", "--sync", "ssp:"], {"3"}),
    (["list", "sched"], {"schedule"}), (["list", "ss"], {"ssp"}),
    (["figures", "--only", "02"], {"02_first_study", "02_first_study-mine"}),
])  # fmt: skip
def test_bash_offers_what_may_stand_there(words: list[str], offered: set[str], script: Path, tmp_path: Path):
    (tmp_path / "runs" / "0123456789abcdef").mkdir(parents=True)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "batch.yaml").write_text(
        "- notebook: 02_first_study\n  main: true\n- notebook: 02_first_study\n  variant: mine\n")
    asked = subprocess.run([str(BASH), "-c", ASK, "bash", str(script), "pslab", *words], capture_output=True, text=True,
                           check=True, cwd=tmp_path, env={"PSLAB_RESULTS": str(tmp_path), "PATH": "/usr/bin:/bin"})
    found, registered = asked.stdout.splitlines()
    assert set(found.split()) == offered
    assert registered == "complete -o default -F _pslab pslab"
    assert asked.stderr == ""
