"""Put the results of a run where the pages are made from: commit.py RUNS. What was there and is not in RUNS stays."""

from __future__ import annotations

import sys
from pathlib import Path

from headprune.lab.experiments.compact import compacted
from headprune.lab.experiments.store import Store

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    target = Path(__file__).parent / "data" / "experiments"
    sys.stdout.write(f"{compacted(Store(Path(sys.argv[1])), target)} trials in {target}\n")
