"""torchvision works with any build of torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import cloudpickle
import pytest
import torch

from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.torchvision_ops import torchvision, with_operators


@pytest.fixture
def undisturbed() -> Iterator[None]:
    """A failed import removes torchvision's modules from sys.modules: restore them for other tests."""
    loaded = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "torchvision"}
    yield
    sys.modules.update(loaded)


def test_models_of_torchvision_run() -> None:
    models = torchvision().models
    with torch.no_grad():
        assert models.resnet18(weights=None).eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 1000)
    with torch.device("meta"):  # half a gigabyte otherwise
        assert sum(p.numel() for p in models.vgg16(weights=None).parameters()) == 138_357_544


def test_a_fresh_process_unpickles_a_model_of_torchvision_which_it_imports_late_as_numba() -> None:
    resnet = torchvision().models.resnet18(weights=None)
    keyspace = Keyspace.of(resnet)
    sent = cloudpickle.dumps((keyspace, keyspace.shell(resnet), float(keyspace.flatten(resnet).sum())))
    assert len(sent) < keyspace.size // 100
    child = (
        "import sys, functools, torch, cloudpickle\n"
        "import pslab.tensors.compression, pslab.tensors.workload.data, pslab.tensors.workload.models\n"
        "assert not {'numba', 'torchvision'} & sys.modules.keys()\n"
        "from pslab.tensors.workload.torchvision_ops import with_operators\n"
        "keyspace, shell, _ = with_operators(functools.partial(cloudpickle.loads, sys.stdin.buffer.read()))\n"
        "keyspace.bind(shell, torch.zeros(keyspace.size))\n"
        "assert shell(torch.zeros(2, 3, 32, 32)).abs().sum() == 0\n"
        # a submodule left behind by a failed import would be loaded, but would not be an attribute of the package
        "package = sys.modules['torchvision']\n"
        "parts = [name.split('.') for name in sys.modules if name.startswith('torchvision.')]\n"
        "assert all(hasattr(package, part[1]) for part in parts)\n"
    )
    assert subprocess.run([sys.executable, "-c", child], input=sent, check=False).returncode == 0


@pytest.mark.usefixtures("undisturbed")
def test_a_missing_operator_is_declared_and_the_import_tried_again() -> None:
    missing = ["pslab_test_a", "pslab_test_b"]

    def load() -> str:
        for name in missing:
            if not hasattr(torch.ops.torchvision, name):
                raise RuntimeError(f"operator torchvision::{name} does not exist")
        return "loaded"

    assert with_operators(load) == "loaded"


@pytest.mark.parametrize("message", ["something else", "operator other::nms does not exist"])
def test_other_errors_are_raised(message: str) -> None:
    def load() -> None:
        raise RuntimeError(message)

    with pytest.raises(RuntimeError, match=message):
        with_operators(load)
