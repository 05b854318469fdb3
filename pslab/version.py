"""Which pslab this is: its version, also where it was never installed, and the folder of its source."""

from pathlib import Path

__version__ = "0.1.0"
SOURCE = Path(__file__).parent
