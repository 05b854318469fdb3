"""The commands of docs/many-machines.md, as they stand there, on two hosts that have nothing but the packages."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import UNABLE, Host, able, hosts
from ray_hosts import PATHS

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[4] / "docs" / "many-machines.md"
#: What a shell of a host has instead of ssh, whose other end is the home of the other host.
SHELL = """set -e
cd
ssh() { shift; (cd "$OTHER" && "$@"); }
scp() { cp "$1" "$OTHER/${2#*:}"; }
"""
#: A busy machine may need longer than Ray waits for its own processes: then once more.
RAY = f"""
for last in '' '' 1; do
    "{sys.executable}" -m ray.scripts.scripts "$@" && exit
    [ "$1$last" = start ] || exit 1
    "{sys.executable}" -m ray.scripts.scripts stop --force
done
"""


def blocks(kind: str) -> list[str]:
    """The code of the page's section on steps: the commands of the first host, of each other one, of the first."""
    section = PAGE.read_text().partition("\n## Steps\n")[2].partition("\n## ")[0]
    return re.findall(rf"(?ms)^```{kind}\n(.*?)^```$", section)


@pytest.fixture
def two_hosts() -> Iterator[list[Host]]:
    pytest.importorskip("ray")
    if not able():
        pytest.skip(UNABLE)
    with hosts(2) as found:
        yield found


def as_written(host: Host, commands: str, other: Host) -> str:
    """What the commands of the page say on a host that has `ray` and `pslab` on its path."""
    path = host.folder / "home" / "bin"
    path.mkdir(exist_ok=True)
    for name, command in {"ray": RAY, "pslab": f'exec "{sys.executable}" -m pslab "$@"'}.items():
        (path / name).write_text(f"#!/bin/sh\n{command}\n")
        (path / name).chmod(0o755)
    commands = commands.replace("FIRST_HOST", other.address)
    return host.run("sh", "-c", SHELL + commands, PATH=f"{path}:{os.environ['PATH']}", PYTHONPATH=PATHS,
                    OTHER=str(other.folder / "home"), limit_s=900.0)  # fmt: skip


def test_the_commands_of_the_page_begin_a_cluster_of_two_hosts_and_draw_its_first_figure(two_hosts: list[Host]):
    head, other = two_hosts
    begins, joins, uses = blocks("sh")
    (file,) = blocks("yaml")
    (head.folder / "home" / "cluster.yaml").write_text(file)
    as_written(head, begins, other)
    as_written(other, joins, head)
    said = as_written(head, uses.replace("85_many_machines", "85_many_machines --tiny --results r"), other)
    assert other.address in said
    assert "after 200 pushes" in said
    assert list((head.folder / "home" / "r" / "figures").glob("85_many_machines*.svg"))


def test_who_lacks_the_token_is_told_so_by_ray_and_what_to_do_by_pslab(two_hosts: list[Host]):
    head, other = two_hosts
    begins, joins, _ = blocks("sh")
    as_written(head, begins, other)
    (other.folder / "home" / ".ray" / "auth_token").unlink()
    with pytest.raises(AssertionError, match="no authentication token was found"):
        as_written(other, joins, head)
    (head.folder / "home" / ".ray" / "auth_token").unlink()
    with pytest.raises(AssertionError, match=r"need the same token: see docs/many-machines\.md"):
        as_written(head, "pslab run --fleet ray --pushes 8", other)
