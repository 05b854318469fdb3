"""pslab chaos: what it prints, the command that repeats a violation, and that its runs are the seed's."""

from __future__ import annotations

import pytest

from pslab.__main__ import main
from pslab.config.table import ROWS
from tools.chaos import campaign as campaigns
from tools.chaos import sums
from tools.chaos.campaign import campaign
from tools.chaos.draw import drawn


def test_a_campaign_holds(capsys: pytest.CaptureFixture[str]):
    status = main(["chaos", "--seed", "1", "--runs", "100"])
    said = capsys.readouterr().out
    assert status == 0, said
    assert "100 runs on the virtual engine, seed 1" in said
    assert "0 violations" in said


@pytest.mark.slow
def test_ten_thousand_runs_hold(capsys: pytest.CaptureFixture[str]):
    status = main(["chaos", "--seed", "2", "--runs", "10000"])
    assert status == 0, capsys.readouterr().out


@pytest.mark.slow
def test_two_hundred_runs_of_real_processes_hold(capsys: pytest.CaptureFixture[str]):
    status = main(["chaos", "--seed", "3", "--runs", "200", "--engine", "local"])
    assert status == 0, capsys.readouterr().out


def test_a_violation_comes_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    wrong = sums.stepped
    monkeypatch.setattr(sums.SumShard, "apply", lambda self, step, rate, computing: None)  # loses every step
    assert main(["chaos", "--seed", "4", "--first", "7", "--runs", "1"]) == 1
    first = capsys.readouterr().out
    assert "a sequential replay of the applied pushes leaves" in first
    again = "python -m pslab chaos --seed 4 --first 7 --runs 1 --engine virtual"
    assert again in first
    assert main(again.split()[3:]) == 1
    assert capsys.readouterr().out.splitlines()[:3] == first.splitlines()[:3]
    assert wrong is sums.stepped


@pytest.mark.parametrize("engine", ["timing", "local"])
def test_a_run_is_its_seeds_and_numbers_alone(engine: str):
    runs = [drawn(5, number, engine) for number in range(20)]
    assert [run.digest for run in runs] == [drawn(5, number, engine).digest for number in range(20)]
    assert len({run.digest for run in runs}) == 20
    assert len({drawn(seed, 0, engine).digest for seed in range(10)}) == 10
    assert all(run.plain() for run in runs)


def test_every_policy_and_every_fault_is_drawn():
    runs = [drawn(6, number, "timing") for number in range(300)]
    assert {run.sync.partition(":")[0] for run in runs} == set(ROWS["sync"])
    assert {run.servers for run in runs} == {1, 2, 3}
    faults = [fault["what"] for run in runs for fault in run.cluster["faults"]]
    assert set(faults) == {"kill", "stop", "duplicate", "delay", "drop", "corrupt"}


def test_what_raises_is_a_violation(monkeypatch: pytest.MonkeyPatch):
    def raises(*given: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(campaigns, "exchange", raises)
    ((outcome, found, _),) = campaign(0, range(1), "virtual")
    assert outcome is None
    assert found[0].startswith("KeyError: 'lost'")


@pytest.mark.parametrize("words", [["--runs", "0"], ["--seed", "-1"], ["--minutes", "0"]], ids=" ".join)
def test_impossible_numbers_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(["chaos", *words]) == 2
    assert "must be a number" in capsys.readouterr().err
