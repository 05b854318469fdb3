"""What has a name does not outlive its process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from processes import using, wait_for_end

SCRIPT = """
import os, signal, subprocess, sys
from pslab.engines.processes.fleets.temporary_ray_folder import passing_folder
found = passing_folder("pslab-test-")
with open(found + "/log", "w") as log:
    subprocess.Popen(["sleep", "60"], stdout=log)
    told = [sys.executable, "-c", "import time; time.sleep(60)", found]
    subprocess.Popen(told, stdout=subprocess.DEVNULL)
print(found, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_passing_folder_and_who_uses_it_are_gone_with_its_process_also_if_that_is_killed(tmp_path: Path):
    given = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run([sys.executable, "-c", SCRIPT], env=given, stdout=subprocess.PIPE, text=True, check=False)
    folder = killed.stdout.strip()
    assert folder.startswith(str(tmp_path))
    for process in using(folder):
        wait_for_end(process)
    assert (using(folder), Path(folder).exists()) == ([], False)


ENDING = """
from pslab.engines.processes.fleets import temporary_ray_folder
log = open(temporary_ray_folder.passing_folder("pslab-test-") + "/log", "w")
temporary_ray_folder._lines[0].communicate()  # hangs up, and waits for the shell's end
"""


def test_a_process_that_was_not_started_here_is_left_alone(tmp_path: Path):
    """An editor, say, that has a file of the folder open."""
    given = {**os.environ, "TMPDIR": str(tmp_path)}
    script = SCRIPT.replace("os.kill(os.getpid(), signal.SIGKILL)", "sys.stdin.read()")
    parent = subprocess.Popen([sys.executable, "-c", script], env=given, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert parent.stdout is not None
    folder = parent.stdout.readline().strip()
    own = [process for process in using(folder) if process != parent.pid]
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as editor:
        parent.kill()
        parent.communicate()
        for process in own:
            wait_for_end(process)
        assert (using(folder), Path(folder).exists()) == ([editor.pid], False)
        editor.kill()


def test_a_process_that_is_ending_is_not_killed_for_what_it_has_open_there(tmp_path: Path):
    given = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", ENDING], env=given, check=False)
    assert (ended.returncode, list(tmp_path.iterdir())) == (0, [])
