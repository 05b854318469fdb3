"""True records, falsified: what the sums and the judge notice, whether or not the forger made new sums."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from histories import forgotten, pulled, renumbered, repeated, swapped

from pslab.config.run import Run
from pslab.errors import RecordError
from pslab.lab.commands.finding import PROBLEM
from pslab.lab.commands.records.verify import judgement, sums
from pslab.lab.records.disk.atomic_folder import write_manifest
from pslab.lab.records.results import load
from pslab.lab.runs.run import sweep

SMALL = {"model": "tiny:net", "data": "tiny:digits", "batch_size": 16, "pushes": 40, "keep_weights": True,
         "cluster": {"preset": "lab", "slow": {0: 2.0}}}  # fmt: skip
RUNS = {
    "bsp": {"engine": "virtual", "sync": "bsp"},
    "ssp": {"engine": "virtual", "sync": "ssp:1", "prune": "static:5%", "pull": "changed"},
    "asp": {"engine": "virtual", "sync": "asp"},
    "eager": {"engine": "virtual", "sync": "eager"},
    "backup": {"engine": "virtual", "sync": "backup:1"},
    "leave": {"engine": "virtual", "sync": "asp", "cluster": {**SMALL["cluster"], "leave": {2: 0.1}}},
    "beside": {"engine": "virtual", "sync": "asp", "servers": 2, "cluster": {**SMALL["cluster"], "colocated": True}},
    "local": {"sync": "ssp:1", "cluster": {"compute_s": 0.002, "slow": {0: 3.0}}},
}
Falsify = Callable[[Path], None]


def table(name: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Falsify:
    """One table of a record is another one."""

    def falsify(folder: Path) -> None:
        path = folder / f"{name}.csv"
        change(pd.read_csv(path)).to_csv(path, index=False)

    return falsify


def cell(name: str, row: int, column: str, change: Callable[[float], float]) -> Falsify:
    """One number of a table is another one."""

    def changed(found: pd.DataFrame) -> pd.DataFrame:
        column_type = found[column].dtype
        found[column] = found[column].astype(float)
        found.loc[found.index[row], column] = change(found[column].iloc[row])
        return found.astype({column: column_type}) if column_type == np.int64 else found

    return table(name, changed)


def facts(**changed: object) -> Falsify:
    """The manifest says something else."""

    def falsify(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))

    return falsify


def relabelled(**fields: object) -> Falsify:
    """The manifest names another run, with the digest of that."""

    def falsify(folder: Path) -> None:
        path = folder / "manifest.json"
        manifest = json.loads(path.read_text())
        other = Run.of({**manifest["run"], **fields})
        path.write_text(json.dumps({**manifest, "run": other.plain(), "digest": other.digest}))

    return falsify


def both(*falsifies: Falsify) -> Falsify:
    def falsify(folder: Path) -> None:
        for each in falsifies:
            each(folder)

    return falsify


def truncated(name: str, share: float = 0.5) -> Falsify:
    def falsify(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(share * len(content))])

    return falsify


def without_arrivals(folder: Path) -> None:
    (folder / "arrivals.csv").unlink()
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["sha256"]["arrivals.csv"]
    path.write_text(json.dumps(manifest))


def hidden_drop(folder: Path) -> None:
    """The first dropped push never arrived."""
    pushes = pd.read_csv(folder / "pushes.csv")
    applied = set(zip(pushes.worker, pushes.iteration, strict=True))

    def hide(arrivals: pd.DataFrame) -> pd.DataFrame:
        names = zip(arrivals.kind, arrivals.worker, arrivals.iteration, strict=True)
        lost = [at for at, (kind, *name) in enumerate(names) if kind == "push" and tuple(name) not in applied]
        return arrivals.drop(index=lost[0])

    table("arrivals", hide)(folder)
    facts(dropped=json.loads((folder / "manifest.json").read_text())["dropped"] - 1)(folder)


def everywhere(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Falsify:
    return both(*(table(name, change) for name in ("accuracy", "phases", "pushes", "arrivals")))


def faster(found: pd.DataFrame) -> pd.DataFrame:
    """All instants are half of what they were."""
    times = {name: found[name] / 2 for name in ("seconds", "begin_s", "end_s") if name in found}
    return found.assign(**times)


def exchanged(found: pd.DataFrame) -> pd.DataFrame:
    """Workers 0 and 1 have each other's name."""
    return found.assign(worker=found.worker.replace({0: 1, 1: 0})) if "worker" in found else found


def phase(name: str, **by: float) -> Falsify:
    """The third phase of this name moves."""

    def moved(phases: pd.DataFrame) -> pd.DataFrame:
        row = phases.index[phases.phase == name][2]
        for column, seconds in by.items():
            phases.loc[row, column] += seconds
        return phases

    return table("phases", moved)


def other_weights(folder: Path) -> None:
    np.save(folder / "weights.npy", np.load(folder / "weights.npy") * 1.01)


#: What -> the record, whether the forger makes new sums, and how
NOTICED: dict[str, tuple[str, bool, Falsify]] = {
    "a loss is changed, sums stay": ("bsp", False, cell("pushes", 5, "loss", lambda loss: loss - 0.01)),
    "pushes are cut off, sums stay": ("asp", False, truncated("pushes.csv")),
    "phases are cut off": ("asp", True, truncated("phases.csv")),
    "arrivals are cut off": ("ssp", True, truncated("arrivals.csv", 0.9)),
    "the manifest is cut off": ("asp", False, truncated("manifest.json")),
    "a file is missing": ("asp", False, lambda folder: (folder / "phases.csv").unlink()),
    "arrivals are removed, and their sum": ("ssp", False, without_arrivals),
    "weights are others": ("bsp", True, other_weights),
    "another seed, the same digest": ("bsp", True, lambda folder: facts(
        run={**json.loads((folder / "manifest.json").read_text())["run"], "seed": 9})(folder)),
    "another seed": ("bsp", True, relabelled(seed=9)),
    "another bound": ("ssp", True, relabelled(sync="ssp:3")),
    "fewer spare workers": ("backup", True, relabelled(sync="backup:0")),
    "another policy": ("eager", True, relabelled(sync="asp")),
    "another codec": ("ssp", True, relabelled(codec="bitmap")),
    "a slower cluster": ("asp", True, relabelled(cluster={"preset": "lab", "slow": {0: 3.0}})),
    "another evaluation period": ("asp", True, relabelled(eval_every=4)),
    "two pushes are swapped": ("asp", True, table("pushes", lambda p: swapped(
        p, 12, 13, "worker", "iteration", "version_pulled", "staleness"))),
    "a push is repeated": ("asp", True, table("pushes", lambda p: repeated(p, 7))),
    "a push is forgotten": ("ssp", True, table("pushes", lambda p: forgotten(p, len(p) - 2))),
    "a push is left out": ("bsp", True, table("pushes", lambda p: renumbered(p.drop(index=9)))),
    "a push was computed on newer weights": ("asp", True, table("pushes", lambda p: pulled(p, 20, 1))),
    "a push is applied sooner": ("local", True, cell("pushes", 12, "seconds", lambda seconds: seconds - 0.05)),
    "two arrivals are swapped": ("ssp", True, table("arrivals", lambda a: swapped(
        a, 10, 14, "worker", "iteration", "version"))),
    "a drop is hidden": ("backup", True, hidden_drop),
    "drops are not counted": ("backup", True, facts(dropped=0)),
    "a worker never left": ("leave", True, table("arrivals", lambda a: a[a.kind != "leave"])),
    "a worker died": ("local", True, facts(deaths=[{"worker": 1, "seconds": 0.01, "iteration": 3, "how": "is gone"}])),
    "a loss is no number": ("bsp", True, cell("pushes", 5, "loss", lambda loss: np.nan)),
    "a density is lower": ("ssp", True, cell("pushes", 5, "density", lambda density: density / 2)),
    "a push has a byte more": ("bsp", True, cell("pushes", 5, "bytes_up", lambda size: size + 1)),
    "a sparse push has half the bytes": ("ssp", True, cell("pushes", 5, "bytes_up", lambda size: size // 2)),
    "a pull has a byte less": ("asp", True, cell("pushes", 5, "bytes_down", lambda size: size - 1)),
    "less crossed the network": ("beside", True, facts(network_bytes=200_000)),
    "what passed no link crossed the network": ("beside", True, lambda folder: facts(network_bytes=int(
        pd.read_csv(folder / "pushes.csv")[["bytes_up", "bytes_down"]].to_numpy().sum()))(folder)),
    "a pull begins sooner": ("asp", True, phase("pull", begin_s=-1e-4)),
    "a worker waits less": ("ssp", True, phase("wait", end_s=-1e-4)),
    "a computation is shorter": ("asp", True, phase("compute", begin_s=1e-4)),
    "a computation is shorter than modelled": ("local", True, table("phases", lambda p: p.assign(
        begin_s=p.begin_s.mask(p.phase == "compute", p.end_s - 0.001)))),
    "a worker's phases are gone": ("local", True, table("phases", lambda p: p[p.worker != 1])),
    "everything is twice as fast": ("asp", True, both(everywhere(faster), lambda folder: facts(
        seconds=json.loads((folder / "manifest.json").read_text())["seconds"] / 2)(folder))),
    "two workers have each other's name": ("asp", True, everywhere(exchanged)),
    "an evaluation is removed": ("bsp", True, table("accuracy", lambda a: a.drop(index=3))),
    "an evaluation is moved": ("asp", True, cell("accuracy", 3, "seconds", lambda seconds: seconds - 0.001)),
    "an accuracy is above 1": ("bsp", True, cell("accuracy", 5, "accuracy", lambda accuracy: 1.01)),
    "the run is shorter": ("asp", True, lambda folder: facts(
        seconds=json.loads((folder / "manifest.json").read_text())["seconds"] - 0.01)(folder)),
    "the run stopped by time": ("asp", True, facts(outcome="seconds")),
    "more pushes were accepted": ("asp", True, facts(accepted=41)),
}  # fmt: skip
#: What follows from the gradients alone: docs/checking.md names these, and a rerun finds them.
UNNOTICED: dict[str, tuple[str, bool, Falsify]] = {
    "a loss is a little lower": ("bsp", True, cell("pushes", 5, "loss", lambda loss: loss - 0.01)),
    "an accuracy is a little higher": ("bsp", True, cell("accuracy", 5, "accuracy", lambda accuracy: accuracy + 0.01)),
    "another learning rate": ("bsp", True, relabelled(learning_rate=0.3)),
}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    runs = [Run.of({**SMALL, **fields}) for fields in RUNS.values()]
    done = sweep(runs, results=tmp_path_factory.mktemp("true"), progress=False)
    return {name: result.path for name, result in zip(RUNS, done, strict=True)}


def noticed(folder: Path) -> str:
    """What the sums or the judge say against a record; "" if nothing."""
    try:
        result = load(folder)
        sums(result)
        judged = judgement(result)
    except RecordError as error:
        return str(error)
    return judged.found if judged.state == PROBLEM else ""


def falsified(record: Path, place: Path, forged: bool, falsify: Falsify) -> Path:
    """A copy of a record that is falsified, in the folder of its digest."""
    copy = shutil.copytree(record, place / record.name)
    falsify(copy)
    if not forged:
        return copy
    manifest = json.loads((copy / "manifest.json").read_text())
    write_manifest(copy, manifest, list(manifest["sha256"]))
    return copy.rename(copy.with_name(manifest["digest"]))


@pytest.mark.parametrize("name", RUNS)
def test_a_true_record_is_not_objected_to(records, name):
    assert noticed(records[name]) == ""


@pytest.mark.parametrize("what", NOTICED)
def test_a_falsified_record_is_noticed(records, tmp_path, what):
    name, forged, falsify = NOTICED[what]
    assert noticed(falsified(records[name], tmp_path, forged, falsify)) != ""


@pytest.mark.parametrize("what", UNNOTICED)
def test_what_follows_from_gradients_alone_needs_a_rerun(records, tmp_path, what):
    name, forged, falsify = UNNOTICED[what]
    assert noticed(falsified(records[name], tmp_path, forged, falsify)) == ""
