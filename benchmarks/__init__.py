"""What is measured, side by side with peers. Every script exits non-zero when a bar is missed."""

from __future__ import annotations

import sys
from pathlib import Path

# `python benchmarks/engine.py` puts this folder first on the path, where that script would hide the package
# `engine` from every other script. Each of them imports from here before anything of the engine.
_HERE = Path(__file__).resolve().parent
sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != _HERE]
