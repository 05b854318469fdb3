"""A notebook's kernel, interrupted and killed in the middle of a run at random moments of a fixed list."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import tempfile
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager
from processes import living, shared_names, wait_for_end
from traitlets.config import Config

from pslab.config.run import Run
from pslab.lab.records.drafts import clean
from pslab.lab.records.record import FILES, WEIGHTS
from pslab.lab.records.results import load

LIMIT_S = 2.0  # until the prompt is back
LENIENT_S = 10.0  # the same where many tests may load the machine
GONE_LIMIT_S = 10.0  # for a child that is still importing torch when the kernel dies; one that runs ends at once
MOMENTS, KILLS = 20, 100
EARLY = 3  # of the moments in a kernel that is warm, one of the first
COLD = [0, 5, 10, 15]  # in a fresh kernel: torch is being imported, or the pool spawned
FIELDS = {"model": "tiny:net", "data": "tiny:digits", "workers": 2, "batch_size": 16, "cluster": {"compute_s": 0.005},
          "keep_weights": True}  # fmt: skip
LONG = 2400  # pushes; with what comes before and after, longer than the latest moment also where a machine is fast
SUPPORT = Path(__file__).parents[2] / "support"
REPLY_LIMIT_S = 120.0


class Kernel:
    """One kernel whose runs are recorded in `results`; it and its children carry a token in their environment."""

    def __init__(self, results: Path) -> None:
        self.token = uuid.uuid4().hex
        paths = os.pathsep.join([str(SUPPORT), str(SUPPORT.parents[1])])
        given = {"PSLAB_TOKEN": self.token, "PSLAB_RESULTS": str(results), "PYTHONPATH": paths}
        self.sockets = tempfile.TemporaryDirectory(prefix="pslab-kernel-")
        where = Config(KernelManager={"transport": "ipc", "ip": f"{self.sockets.name}/socket"})
        self.manager = KernelManager(kernel_name="python3", config=where)
        self.manager.start_kernel(env={**os.environ, **given}, cwd=str(results))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=REPLY_LIMIT_S)
        self.do("from pslab import Run, run")

    def begin(self, code: str) -> str:
        """Send a cell and wait until it is being executed; the name of its request."""
        request: str = self.client.execute(code, stop_on_error=False)  # what is sent next is not aborted
        while True:
            said = self.client.get_iopub_msg(timeout=REPLY_LIMIT_S)
            if said["parent_header"].get("msg_id") == request and said["content"].get("execution_state") == "busy":
                return request

    def ends_within(self, request: str, limit_s: float) -> bool:
        """Whether a cell's prompt is back within the limit; waits no longer than needed."""
        return bool(self.client.shell_channel.socket.poll(limit_s * 1000))

    def end(self, request: str) -> dict[str, Any]:
        """What a cell came to: its reply's content."""
        while True:
            reply = self.client.get_shell_msg(timeout=REPLY_LIMIT_S)
            if reply["parent_header"].get("msg_id") == request:
                return dict(reply["content"])

    def do(self, code: str) -> dict[str, Any]:
        """Execute a cell to its end."""
        return self.end(self.begin(code))

    def kill(self) -> None:
        """SIGKILL to the kernel alone, not to its children."""
        process = self.manager.provisioner.process
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        self.close()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.sockets.cleanup()


def cell(pushes: int, seed: int) -> str:
    return f"run(Run.of({FIELDS | {'pushes': pushes, 'seed': seed}}))"


def begun(kernel: Kernel, name: str, number: int, latest_s: float) -> str:
    """A long run that has lasted until its moment, seconds after the cell's begin."""
    request = kernel.begin(cell(LONG, number))
    after_s = random.Random(f"{name} {number}").uniform(0.0, latest_s)
    assert not kernel.ends_within(request, after_s), f"the run was over {after_s:.2f} s after its begin"
    return request


def hidden(results: Path) -> list[str]:
    """The drafts that are there."""
    return [path.name for path in (results / "runs").glob(".*")]


def check_whole(path: Path) -> int:
    """A record is all there; its pushes."""
    kept = load(path)
    assert sorted(file.name for file in path.iterdir()) == sorted((*FILES, "arrivals.csv", WEIGHTS))
    assert hashlib.sha256(kept.weights.tobytes()).hexdigest() == kept.manifest["weights_sha256"]
    assert len(kept.pushes) == kept.manifest["pushes"] > 0
    assert len(kept.phases)
    return len(kept.pushes)


@pytest.mark.parametrize("number", [pytest.param(number, marks=[] if number == EARLY else pytest.mark.slow)
                                    for number in range(MOMENTS)])  # fmt: skip
def test_an_interrupt_gives_the_prompt_back_and_keeps_what_was_finished(tmp_path, number):
    with closing(Kernel(tmp_path)) as kernel:
        if number not in COLD:
            kernel.do(cell(8, MOMENTS))  # torch is imported, the pool stands
        request = begun(kernel, "interrupt", number, 6.0 if number in COLD else 3.0)
        begun_s = time.monotonic()
        kernel.manager.interrupt_kernel()
        reply = kernel.end(request)
        took_s = time.monotonic() - begun_s
        assert (reply["status"], reply.get("ename")) == ("error", "RunsInterrupted"), reply
        (line,) = reply["traceback"]
        assert line.endswith(f": {reply['evalue']}")
        kept = [*tmp_path.glob("interrupted/*")]
        assert took_s < (LENIENT_S if number == EARLY else LIMIT_S)
        assert ("kept in" in reply["evalue"]) == bool(kept)
        assert [check_whole(path) for path in kept] == [int(w) for w in reply["evalue"].split() if w.isdigit()]
        assert hidden(tmp_path) == []
        assert kernel.do(cell(8, number))["status"] == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_kernel_leaves_nothing_but_whole_records(tmp_path, number):
    before, kernel = shared_names(), Kernel(tmp_path)
    begun(kernel, "kill", number, 8.0)
    kernel.kill()
    for process in living(kernel.token):
        wait_for_end(process, GONE_LIMIT_S)
    assert living(kernel.token) == []
    assert shared_names() <= before
    for record in (tmp_path / "runs").glob("[!.]*"):
        check_whole(record)
    clean(tmp_path)
    assert hidden(tmp_path) == []
    assert not (tmp_path / "runs" / Run.of({**FIELDS, "pushes": LONG, "seed": number}).digest).exists()
    if number % 5 == 0:
        with closing(Kernel(tmp_path)) as fresh:
            assert fresh.do(cell(8, number))["status"] == "ok"
        assert len([check_whole(path) for path in (tmp_path / "runs").iterdir()]) == 1
