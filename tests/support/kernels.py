"""A real ipykernel for tests, as a notebook has one."""

from __future__ import annotations

import os
import signal
import tempfile
import uuid
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager
from traitlets.config import Config

SUPPORT = Path(__file__).parent
START_LIMIT_S = REPLY_LIMIT_S = 120.0


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
        self.client.wait_for_ready(timeout=START_LIMIT_S)
        self.do("from pslab import Run, run")

    def begin(self, code: str) -> str:
        """Send a cell and wait until it is being executed; the name of its request."""
        request: str = self.client.execute(code, stop_on_error=False)  # what is sent next is not aborted
        while not self._is(self.client.get_iopub_msg(timeout=REPLY_LIMIT_S), request, "busy"):
            pass
        return request

    def ends_within(self, request: str, limit_s: float) -> bool:
        """Whether a cell's prompt is back within the limit; waits no longer than needed."""
        poll = self.client.shell_channel.socket.poll
        return bool(poll(limit_s * 1000))

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

    @staticmethod
    def _is(message: dict[str, Any], request: str, state: str) -> bool:
        mine = message["parent_header"].get("msg_id") == request
        return mine and message["content"].get("execution_state") == state
