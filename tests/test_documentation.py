"""The documentation: no dead link, no page that the site does not name, no command that is none, no unfounded claim."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import posixpath
import re
import runpy
import shlex
import subprocess
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import handmade
import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from tools.bench.command import SECTIONS

import pslab
from pslab.__main__ import Verb, verb_of
from pslab.config.run import Run
from pslab.config.spec import build
from pslab.config.table import KINDS
from pslab.errors import ConfigError
from pslab.lab import plots
from pslab.lab.commands.figures import chosen
from pslab.lab.records.results import tidy
from pslab.lab.records.summary import MEASURES, summary
from pslab.lab.runs.grid import grid
from pslab.lab.studies.parameters import of_notebook
from pslab.policies.rates import Applied
from pslab.protocol.requests import View
from pslab.tensors.compression import Rule
from pslab.version import __version__

ROOT = Path(__file__).parent.parent
HOSTS = ROOT / "docs" / "hosts"
VERDICTS = ("Held", "Held in part", "Not held", "Not tried")


SITE = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "pages.py")))
TEXTS = [*SITE.TEXTS, *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))]
CLAIMS = re.split(r"(?m)^### ", (ROOT / "docs" / "claims.md").read_text())[1:]


def slugs(text: str) -> set[str]:
    """The anchors of a text's headings."""
    headings = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^```.*?^```$", "", text))
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", each).strip().lower()) for each in headings}


@pytest.mark.parametrize("path", TEXTS)
def test_no_link_is_dead_and_every_command_is_one(path: str):
    for link in SITE.links((ROOT / path).read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = ROOT / path if not name else (ROOT / path).parent / name
        assert target.is_file(), link
        assert not anchor or anchor in slugs(target.read_text()), link
    for command in commands((ROOT / path).read_text()):
        try:
            options_of(command)
        except SystemExit:
            pytest.fail(command)


def test_what_is_said_to_hold_when_something_fails_is_shown_by_tests():
    rows = re.findall(r"(?m)^\| .* \| .* \| (.*) \|$", (ROOT / "docs" / "reliability.md").read_text())[1:]
    assert len(rows) >= 25
    for row in rows:
        named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`( \(long\))?", row)
        assert len(named) == 1 + row.count("<br>"), row
        for path, name, long in named:
            text = (ROOT / "tests" / path).read_text()
            assert not name or f"def {name}(" in text, name
            assert not long or "slow" in text, path


# -- the site --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Every page of the site, with nothing executed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PSLAB_RESULTS", str(tmp_path_factory.mktemp("results")))
        pages = {SITE.page_of(path): SITE.linked((ROOT / path).read_text(), path) for path in TEXTS}
        return pages | {uri: write() for uri, write in SITE.generated().items()}


def test_the_navigation_names_every_page_once_and_every_link_leads_to_a_page_or_an_image(written: dict[str, str]):
    named = list(SITE.uris(SITE.navigation(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])))
    assert sorted(named) == sorted(written)
    copied = [*(ROOT / "docs").rglob("*.svg"), *HOSTS.iterdir()]
    files = {*written, *(path.relative_to(ROOT / "docs").as_posix() for path in copied)}
    for uri, text in written.items():
        for link in SITE.links(text):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(uri), link.partition("#")[0]))
            assert "://" in link or link.startswith("#") or target in files, f"{uri}: {link}"


def test_a_policy_has_a_page_with_its_rule_its_source_and_its_studies(written: dict[str, str]):
    page = written["policies/sync/dssp.md"]
    for words in ("# dssp\n", "**Dynamic SSP: ", "Source: Zhao et al. (ICDCS 2019).", "pslab check dssp:1,1",
                  "Algorithm 1 as printed", "| `cap` |", "studies/30_elastic.md", "class DSSP:"):  # fmt: skip
        assert words in page
    assert "20_sync_policies" in page  # a variant of which has it
    assert "In the studies" not in written["policies/sync/bsp.md"]  # every run's default
    assert all(f"policies/{kind}/{name}.md" in written for kind, name in SITE.listed())
    assert "](policies/prune.md)" in SITE.overview()
    assert "](prune/static.md)" in written["policies/prune.md"]


def test_a_page_shows_a_figure_only_where_its_notebook_was_executed_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PSLAB_RESULTS", str(tmp_path))
    (path,) = (each for each in SITE.notebooks() if each.stem == "00_tour")
    assert "not executed yet" in SITE.study(path)
    executed = nbformat.read(path, 4)
    for cell in executed.cells:
        if cell.cell_type == "code":
            shown = {"text/html": "<p id='00_tour-accuracy'>\n\n  a caption</p>"}
            cell.outputs = [nbformat.v4.new_output("display_data", shown)]
    for name in ("notebooks", "figures"):
        (tmp_path / name).mkdir()
    (tmp_path / "figures" / "00_tour-accuracy.svg").write_text("<svg/>")
    source = executed.cells[-2].source
    for more, seen in ((" ", False), ("", True)):
        executed.cells[-2].source = source + more
        nbformat.write(executed, tmp_path / "notebooks" / path.name)
        SITE.cells.cache_clear()
        page = SITE.study(path)
        assert ("<p id='00_tour-accuracy'> a caption</p>" in page) == seen
        assert ("![00_tour-accuracy](../figures/00_tour-accuracy.svg)" in page) == seen
    SITE.cells.cache_clear()


def test_every_policy_is_drawn_by_itself():
    drawn = of_notebook(ROOT / "notebooks" / f"{SITE.EACH}.ipynb")
    names = {kind: [name.partition(":")[0] for name in each] for kind, each in drawn["policies"].items()}
    names["order"] = drawn["orders"]
    listed = {kind: [name for known, name in SITE.listed() if known == kind] for kind in SITE.KINDS}
    assert {kind: sorted(each) for kind, each in names.items()} == {kind: sorted(each) for kind, each in listed.items()}


def test_the_site_leads_to_its_repository_where_its_address_is_known(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    public = "https://code.example/lab/pslab"
    for origin, address in (("", ""), ("/srv/pslab", ""), (public.replace("//", "//name:token@"), public)):
        if origin:
            subprocess.run(["git", "-C", tmp_path, "config", "remote.origin.url", origin], check=True)
        assert SITE.repository(tmp_path) == address
    (tmp_path / "pyproject.toml").write_text('[project]\nurls = { Repository = "https://other.example/pslab" }\n')
    assert SITE.repository(tmp_path) == "https://other.example/pslab"


def test_the_page_of_python_has_every_public_name():
    pages = [path.read_text() for path in (ROOT / "docs" / "api").glob("*.md")]
    names = [name for page in pages for name in re.findall(r"(?m)^::: (pslab\S+)$", page)]
    public = {f"pslab.{name}" for name in pslab.__all__ if name not in ("ddp", "plots")} | {"pslab.ddp.hook"}
    assert Counter(names) == Counter(public | {f"pslab.lab.plots.{name}" for name in plots.__all__})
    assert [name for name in MEASURES if f"`{name}`" not in (ROOT / "docs" / "api" / "results.md").read_text()] == []


# -- commands and claims ---------------------------------------------------------------------------


def commands(text: str) -> list[str]:
    """The lines of a text's shell code that call pslab."""
    code = re.findall(r"(?ms)^```sh\n(.*?)^```$", text)
    return [line for each in code for line in each.splitlines() if line.startswith("pslab ")]


def examples(page: str) -> list[str]:
    """The Python code of a page on how to do something, block by block."""
    return re.findall(r"(?ms)^```python\n(.*?)^```$", (ROOT / "docs" / "how-to" / f"{page}.md").read_text())


#: Runs what a page has run with its own class once more, with few pushes, on real processes and in virtual time.
AGAIN = """
from dataclasses import replace

own = next(run for run in results.run if type(run.OWN).__name__ == "NAME")
for engine in ("virtual", "local"):
    print(engine, sweep([replace(own, engine=engine, pushes=8)])[0].manifest["pushes"])
"""


def printed_by(cells: Sequence[str]) -> str:
    """What the last of some cells prints. As in a kernel, the code is of no file, and its classes are in __main__."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for source in cells:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(source, names)
    return printed.getvalue()


OWN = {"pruner": "prune", "compress": "quantize", "policy": "sync", "rate": "rate", "order": "order"}


@pytest.mark.one_of(5)
@pytest.mark.parametrize("page", OWN)
def test_the_code_of_a_how_to_runs_in_virtual_time_and_on_real_processes(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PSLAB_RESULTS", str(tmp_path))
    source = next(each for each in examples(page) if "\nclass " in each)
    (name,) = re.findall(r"(?m)^class (\w+)", source)
    said = printed_by([*examples(page), AGAIN.replace("OWN", OWN[page]).replace("NAME", name)])
    assert said.splitlines() == ["virtual 8", "local 8"]
    before = sorted(tmp_path.glob("runs/*"))
    assert len(before) > 2
    if page == "pruner":  # where the cell is executed anew, the records of its class are found
        printed_by(["# a comment\n" + source, *(each for each in examples(page) if each != source)])
        assert sorted(tmp_path.glob("runs/*")) == before


@pytest.mark.slow
def test_every_row_of_the_study_in_the_readme_reaches_its_goal_in_virtual_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PSLAB_RESULTS", str(tmp_path))
    code = re.findall(r"(?ms)^```python\n(.*?)^```$", (ROOT / "README.md").read_text())[1]
    names: dict[str, Any] = {}
    for real, ours in (('"linear")', '"linear", engine="virtual")'), ("\nsummary(", "\ntable = summary(")):
        assert code.count(real) == 1
        code = code.replace(real, ours)
    exec(code, names)
    assert names["table"].reached.tolist() == [1] * 6


def test_the_code_of_the_questions_runs_and_the_error_without_a_gpu_is_theirs(monkeypatch: pytest.MonkeyPatch):
    text = (ROOT / "docs" / "faq.md").read_text()
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError) as caught:
        pslab.run(Run(device="cuda", pushes=4))
    assert f"\n```\nConfigError: {caught.value}\n```\n" in text
    (code,) = re.findall(r"(?ms)^```python\n(.*?)^```$", text)
    results = handmade.finished(grid(Run(pushes=8, workers=2, cluster="lab"), sync=["bsp", "asp"]), [0.1, 0.5])
    names: dict[str, Any] = {"results": results, "summary": summary, "tidy": tidy}
    exec(code, names)
    found, first = summary(results, measures=["accuracy", names["gap"]]), results.result[0]
    assert found.gap["bsp"] == first.accuracy.loss.iloc[-1] - first.pushes.loss.tail(16).mean()


def test_what_an_own_object_must_have_stands_in_its_how_to():
    for kind, each in KINDS.items():
        if each.guide:
            text = (ROOT / "docs" / each.guide).read_text()
            assert all(re.search(rf"`{name}\b|\bdef {name}\b|    {name} = ", text) for name in each.methods), kind
    for page, fields in {"compress": [name for name in vars(Rule) if name[0] != "_"], "rate": Applied._fields,
                         "order": View._fields}.items():  # fmt: skip
        text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text()
        assert [name for name in fields if not re.search(rf"\| `{name}\b", text)] == []


def options_of(command: str) -> tuple[str, argparse.Namespace]:
    """The verb, and the options that its own parser reads."""
    words = shlex.split(command, comments=True)[1:]
    parser = argparse.ArgumentParser()
    verb_of(words[0]).add(parser.add_subparsers(parser_class=Verb))
    return words[0], parser.parse_args(words)


def test_several_hosts_start_the_study_by_commands_that_there_are_with_the_versions_that_the_project_allows():
    texts = {path.name: path.read_text() for path in [*HOSTS.iterdir(), ROOT / "docs" / "how-to" / "hosts.md"]}
    job, up = (yaml.safe_load(texts[f"{name}.yaml"]) for name in ("rayjob", "ray-up"))
    (started,) = re.findall(r"(?m)^ray exec .*(pslab figures .*)'$", texts["hosts.md"])
    (words,) = re.findall(r"(?m)^CMD (.*)$", texts["Dockerfile"])
    (by_slurm,) = re.findall(r"(?m)^ +(pslab figures .*)$", texts["slurm.sh"])
    for command in (shlex.join(yaml.safe_load(words)), job["spec"]["entrypoint"], by_slurm, started):
        assert [entry.notebook for entry in chosen(options_of(command)[1])] == ["85_many_machines"]
    assert all(f"](../hosts/{path.name})" in texts["hosts.md"] for path in HOSTS.iterdir())
    assert subprocess.run(["bash", "-n", HOSTS / "slurm.sh"], check=False).returncode == 0
    assert up["provider"]["type"] == "local"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (python,) = re.findall(r"(?m)^FROM python:([\d.]+)", texts["Dockerfile"])
    assert python in SpecifierSet(project["requires-python"] + ",<3.14")
    assert not any(re.search(r"\btorch[\w]*[=<>]=", text) for text in texts.values())  # what pslab itself asks for
    (allowed,) = (Requirement(each) for each in project["optional-dependencies"]["ray"])
    named = [*re.findall(r"ray(?:\[default\])?==([\d.]+)\.\*", "".join(texts.values())),
             job["spec"]["rayClusterSpec"]["rayVersion"]]  # fmt: skip
    assert len(named) == 4
    assert all(f"{version}.0" in allowed.specifier and version.startswith("2.60") for version in named)
    assert {*re.findall(r"REGISTRY/pslab:([\d.]+\d)", "".join(texts.values()))} == {__version__}


def test_there_are_at_least_twenty_claims_and_their_verdicts_are_counted():
    assert len(CLAIMS) >= 20
    said = re.findall(r"Of (\d+) claims (\d+) are held, (\d+) held in part, (\d+) not held and (\d+) not tried\.",
                      (ROOT / "docs" / "claims.md").read_text())  # fmt: skip
    verdicts = Counter(verdict for claim in CLAIMS for verdict in re.findall(r"(?m)^\*\*([^*]+)\.\*\*", claim))
    assert {*verdicts} <= {*VERDICTS}
    assert said == [tuple(map(str, (len(CLAIMS), *(verdicts[each] for each in VERDICTS))))]


def numbers(text: str) -> set[str]:
    """The numbers of a text, without commas; a share in per cent, too."""
    written = {each.replace(",", "") for each in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w)", text)}
    return written | {f"{100 * float(each):g}" for each in written if "." in each and float(each) < 1}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.partition("\n")[0])
def test_a_claim_has_a_verdict_whose_numbers_its_notebook_has_and_a_command_that_can_be_executed(claim: str):
    assert len(re.findall(r"(?m)^\*\*([^*]+)\.\*\*", claim)) == 1
    (command,) = commands(claim)
    verb, options = options_of(command)
    assert verb in ("figures", "check", "bench")
    if verb == "figures":
        (entry,) = chosen(options)  # refuses what is no notebook, no parameter of it, or no value for it
        assert f"../notebooks/{entry.notebook}.ipynb" in claim
    elif verb == "check":
        assert all(build("sync", policy) for policy in options.policies)
    else:
        assert {*options.section} <= {*SECTIONS}
    (verdict,) = re.findall(r"(?ms)^\*\*[^*]+\.\*\*.*?(?=^```)", claim)
    notebooks = [ROOT / "notebooks" / each for each in re.findall(r"notebooks/(\w+\.ipynb)", verdict)]
    cells = [cell for path in notebooks for cell in json.loads(path.read_text())["cells"]]
    said = numbers(re.sub(r"\[[^\]]*\]\([^)]*\)|`[^`]*`", " ", verdict))
    assert said <= numbers("\n".join("".join(cell["source"]) for cell in cells))
