"""Write the times that `headprune run --estimate` rests on from stored trials: times.py STORE [STORE …]."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from headprune.files import write_text
from headprune.lab import experiments
from headprune.lab.experiments.estimate import FILE, measured
from headprune.lab.experiments.store import Store


def main(stores: list[str]) -> None:
    if not stores:
        sys.exit(__doc__)
    target = Path(str(experiments.__file__)).parent / FILE
    before = json.loads(target.read_text())
    found = measured(record for folder in stores for record in Store(Path(folder)))
    for part in ("alike", "families"):  # what was not measured again stays
        found[part] = {**before[part], **found[part]}
    write_text(target, json.dumps(found, indent=1) + "\n")
    print(f"{len(found['alike'])} kinds of trials, {len(found['families'])} families: {target}")


if __name__ == "__main__":
    main(sys.argv[1:])
