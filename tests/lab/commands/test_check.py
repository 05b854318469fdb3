"""pslab check: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json

from pslab.__main__ import main
from pslab.engines.check.plan import plan, resolve_sync

NEVER_WAITS = "ownpolicies:NeverWaits"  # as it is named on the command line
SMALL = ["--workers", "1,2", "--iterations", "2", "--faults", "none", "--processes", "1"]


def test_the_table_has_a_row_for_each_exploration(capsys):
    assert main(["check", "ssp:1", "asp", *SMALL]) == 0
    head, *rows, total = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert head == ["policy", "W", "ranges", "iterations", "faults", "states", "seconds", "verdict"]
    assert {(*row[:6], row[-1]) for row in rows} == {
        ("ssp:1", "2", "1", "2", "none", "301", "clean"), ("ssp:1", "1", "1", "2", "none", "17", "clean"),
        ("asp", "2", "1", "2", "none", "321", "clean"), ("asp", "1", "1", "2", "none", "17", "clean")}  # fmt: skip
    assert total[:3] == ["656", "states", "in"]


def test_a_broken_rule_is_shown_with_its_shortest_path_and_json_holds_every_exploration(tmp_path, capsys):
    file = tmp_path / "found.json"
    words = ["check", NEVER_WAITS, "asp", "--workers", "1,2,3", "--iterations", "2", "--faults", "none"]
    assert main([*words, "--json", str(file)]) == 1
    out = capsys.readouterr().out
    assert "ownpolicies:NeverWaits: 2 of 3 explorations break a rule; the shortest path to it, with W = 2, none:" in out
    assert "  9. worker 0's pull for iteration 2 arrives; the server starts worker 0 with iteration 2" in out
    assert "  => worker 0 is started with iteration 2, the slowest is at 0: bound 1 exceeded" in out
    assert out.count("=>") == 1
    content = json.loads(file.read_text())
    assert [(each["policy"], each["workers"], each["verdict"]) for each in content["explored"]] == [
        *((NEVER_WAITS, workers, "clean" if workers == 1 else "violated") for workers in (1, 2, 3)),
        *(("asp", workers, "clean") for workers in (1, 2, 3))]  # fmt: skip
    assert (content["clean"], content["states"]) == (False, sum(each["states"] for each in content["explored"]))
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
