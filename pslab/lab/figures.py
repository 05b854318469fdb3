"""python -m pslab figures: every figure's notebook, executed by papermill; and the check of a notebook's parameters.

An executed notebook in results/notebooks/ has a stamp beside it that says from what it was made: the notebook, its
parameters, the records and the code that draws. What has an equal stamp, and its figures, is not executed again.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import inspect
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pslab.config import Run
from pslab.errors import ConfigError, PslabError, nearest
from pslab.lab.studies import STUDIES
from pslab.lab.theme import parts

#: What each notebook draws; a file is named <title>-<picture>.
PICTURES: dict[str, tuple[str, ...]] = {
    "10_pruning": ("accuracy", "bytes", "time"),
    "20_sync_policies": ("accuracy", "bytes", "time", "waiting", "staleness"),
}
FAMILIES, SYNCS = ("static", "std", "dynamic"), ("bsp", "ssp:3", "asp")
DRAWING = ("studies", "plots", "theme", "export")  # modules whose change redraws
PARAMETERS_CELL = "# Parameters"  # how papermill, and our notebooks, begin a cell of parameters
RENDERER = "plotly_mimetype+notebook"  # JupyterLab, and a converted page without network; tooling shows neither by itself


# -- parameters ------------------------------------------------------------------------------------
