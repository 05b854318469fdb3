"""pslab check: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
import re

import pytest

from pslab.__main__ import main
from pslab.engines.check.plan import plan, resolve_sync

NEVER_WAITS = "ownpolicies:NeverWaits"  # as it is named on the command line
SMALL = ["--workers", "1,2", "--iterations", "2", "--faults", "none", "--processes", "1"]


def test_the_table_has_a_row_for_each_exploration(capsys):
    assert main(["check", "ssp:1", "asp", *SMALL]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == "explores 4 clusters, the largest first\n"
    assert lines[0].split() == ["policy", "W", "ranges", "iterations", "faults", "states", "seconds", "verdict"]
    found = {tuple(line.split()[:6]) for line in lines[1:5]}
    assert found == {("ssp:1", "2", "1", "2", "none", "301"), ("ssp:1", "1", "1", "2", "none", "17"),
                     ("asp", "2", "1", "2", "none", "321"), ("asp", "1", "1", "2", "none", "17")}  # fmt: skip
    assert all(line.endswith("clean") for line in lines[1:5])
    assert re.fullmatch(r"656 states in \d+\.\d s", lines[5])
    assert len(lines) == 6


def test_a_broken_rule_is_shown_with_its_shortest_path_and_json_holds_every_exploration(tmp_path, capsys):
    file = tmp_path / "found.json"
    words = ["check", NEVER_WAITS, "asp", "--workers", "1,2,3", "--iterations", "2", "--faults", "none"]
    assert main([*words, "--json", str(file)]) == 1
    out = capsys.readouterr().out
    assert "ownpolicies:Ne…   2" in out
    assert "ownpolicies:NeverWaits: 2 of 3 explorations break a rule; the shortest path to it, with W = 2, none:" in out
    assert "  9. worker 0's pull for iteration 2 arrives; the server starts worker 0 with iteration 2" in out
    assert "  => worker 0 is started with iteration 2, the slowest is at 0: bound 1 exceeded" in out
    assert out.count("=>") == 1
    content = json.loads(file.read_text())
    assert [(each["policy"], each["workers"], each["verdict"]) for each in content["explored"]] == [
        *((NEVER_WAITS, workers, "clean" if workers == 1 else "violated") for workers in (1, 2, 3)),
        *(("asp", workers, "clean") for workers in (1, 2, 3))]  # fmt: skip
    assert content["clean"] is False
    assert content["states"] == sum(each["states"] for each in content["explored"])
    violation = content["explored"][1]["violation"]
    assert violation["what"].endswith("bound 1 exceeded")
    assert len(violation["path"]) == 9
    assert main(["check", "asp", *SMALL, "--json", str(tmp_path / "no" / "where.json")]) == 1
    assert "cannot be written: No such file" in capsys.readouterr().err


def test_a_given_bound_replaces_the_policys(capsys):
    words = ["check", "dssp:1,1,grant=literal", "--workers", "2", "--faults", "none", "--processes", "1"]
    assert main(words) == 0
    capsys.readouterr()
    assert main([*words, "--bound", "2"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == "  => worker 0 is started with iteration 5, the slowest is at 2: bound 2 exceeded"
    assert out[-2].startswith("  35. ")
    (far,) = plan("dssp", resolve_sync("dssp:2,4,literal"), workers=2, faults=(), bound=6)
    assert (far.bound, far.iterations) == (6, 9)


@pytest.mark.slow
def test_the_whole_check_is_clean_and_large(capsys):
    assert main(["check"]) == 0
    total = re.search(r"([\d,]+) states in", capsys.readouterr().out)
    assert total
    assert int(total[1].replace(",", "")) >= 1_000_000
