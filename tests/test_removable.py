"""The core needs no capability beside it: without their files, a study of BSP and SSP runs as before."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = {  # capability: its files below pslab/, which a run that does not use it never loads
    "keys": ["engines/worker/keyed.py", "engines/server/keyed_shard.py"],
    "layers": ["engines/worker/layered.py", "engines/local/layered_worker.py", "engines/emulation/layer_progress.py"],
    "methods": ["policies/methods", "engines/worker/courses.py", *(f"tensors/update/{name}.py" for name in (
        "consensus", "elastic", "fragments", "inner", "own_weights"))],
    "planned barriers": ["policies/sync/elastic.py", "policies/planning/zipline.py", "policies/planning/baselines.py"],
    "planned ranges": ["engines/worker/range_schedule.py", "policies/planning/range_size.py"],
    "compressed answers": ["tensors/compression/downlink.py"],
    "low ranks": ["tensors/compression/matrices.py"],
    "Ray": ["engines/ray"],
    "the checker": ["engines/check"],
    "advice": ["lab/advise"],
    "the live view": ["lab/live"],
    "partitions": ["tensors/partitioning"],
}  # fmt: skip
STUDY = """
from pslab import Run, grid, plots, summary, sweep

if __name__ == "__main__":
    base = Run(model="mlp:8", data="mnist:256,64", workers=2, batch_size=16, pushes=8, eval_every=4)
    base = base.but(prune="static:10%", cluster="lab", engine="virtual")
    runs = grid(base, sync=["bsp", "ssp:3"], engine=["virtual", "local"])
    table = sweep(runs, results="results", progress=False)
    assert len(summary(table, by=["sync", "engine"])) == 4
    plots.curves(table, x="seconds")
"""


def test_a_study_of_the_core_runs_without_any_other_capability(tmp_path: Path):
    shutil.copytree(ROOT / "pslab", tmp_path / "pslab")  # with what is compiled, also of its loops
    (tmp_path / "data").symlink_to(ROOT / "data")
    for path in (tmp_path / "pslab" / name for names in PARTS.values() for name in names):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (tmp_path / "study.py").write_text(STUDY)
    ended = subprocess.run([sys.executable, "study.py"], cwd=tmp_path, capture_output=True, text=True,
                           env={**os.environ, "PYTHONPATH": str(tmp_path)})  # fmt: skip
    assert ended.returncode == 0, ended.stderr
