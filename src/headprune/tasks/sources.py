"""Where the rows of a task come from: a folder of files, or a data set of the `datasets` library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headprune.errors import DataError, MissingExtraError
from headprune.registry import hint
from headprune.tasks.tables import KINDS, Table, read_table

# What the parts of a data set are called here and there.
SPLITS = {"train": ("train",), "dev": ("dev", "val", "valid", "validation"), "test": ("test",)}


@dataclass(frozen=True)
class Source:
    """A folder with one file a split, or the name of a data set."""

    folder: Path | None = None
    dataset: str | None = None  # NAME or NAME:CONFIG, as `datasets.load_dataset` takes them

    def __str__(self) -> str:
        return f"the data set {self.dataset}" if self.dataset is not None else f"'{self.folder}'"

    def table(self, names: Sequence[str], columns: Sequence[str] = ()) -> Table:
        """The rows of a split, which is called by one of `names`."""
        if self.dataset is not None:
            return _dataset_table(self.dataset, names)
        return read_table(self.file(names, KINDS), columns)

    def file(self, names: Sequence[str], kinds: Sequence[str]) -> Path:
        """The first file that there is."""
        if self.folder is None or self.folder.is_file():
            raise DataError(f"{self} is not a folder; expected one with a file called {names[0]}.")
        for name in names:
            for kind in (*kinds, *(f"{kind}.gz" for kind in kinds)):
                if (self.folder / f"{name}{kind}").is_file():
                    return self.folder / f"{name}{kind}"
        raise DataError(
            f"No file for the split '{names[0]}' in '{self.folder}'. Expected one of {', '.join(names)} as "
            f"{', '.join(kinds)}. Give the folder with --data-dir or HEADPRUNE_DATA."
        )


def _dataset_table(dataset: str, names: Sequence[str]) -> Table:
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError("Data sets by name need datasets: pip install 'headprune[tasks]'.") from error
    name, _, config = dataset.partition(":") if not Path(dataset).exists() else (dataset, "", "")
    try:
        parts: Any = datasets.load_dataset(name, config or None)
    except Exception as error:  # whatever the network, the hub or a damaged folder brings
        raise DataError(f"The data set '{dataset}' cannot be loaded: {error}") from error
    for split in names:
        if split in parts:
            rows = parts[split]
            if not len(rows):
                raise DataError(f"The split '{split}' of the data set '{dataset}' has no rows.")
            columns = list(rows.column_names)
            classes = {column: names for column in columns if (names := _class_names(rows.features[column]))}
            return Table(f"{dataset} {split}", [[row[column] for column in columns] for row in rows], columns, classes)
    raise DataError(f"The data set '{dataset}' has no split {' or '.join(names)}. {hint(names[0], parts)}")


def _class_names(feature: Any) -> list[str]:
    """The names behind numbered classes, or lists of them."""
    inner = getattr(feature, "feature", feature)  # of a list
    return list(getattr(inner, "names", None) or [])
