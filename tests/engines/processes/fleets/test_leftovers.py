"""What has a name does not outlive its process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from processes import using, wait_for_end

SCRIPT = """
import os, signal
from pslab.engines.processes.fleets.leftovers import passing_folder
found = passing_folder("pslab-test-")
open(found + "/log", "w").close()
print(found, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_passing_folder_is_gone_with_its_process_also_if_that_is_killed(tmp_path: Path):
    given = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run([sys.executable, "-c", SCRIPT], env=given, capture_output=True, text=True, check=False)
    folder = killed.stdout.strip()
    assert folder.startswith(str(tmp_path))
    for process in using(folder):
        wait_for_end(process)
    assert not Path(folder).exists()
