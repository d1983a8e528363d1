"""Where things are, whichever folder a test lies in."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SHARED = Path(os.environ.get("HEADPRUNE_DATA", ROOT.parent / "shared" / "data"))  # real data sets, where there are any
V4 = ROOT / "tests" / "data" / "v4"  # checkpoints that transformers v4 pruned
