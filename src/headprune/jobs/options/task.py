"""A task and its data, as the jobs that need data are asked for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from headprune.errors import DataError
from headprune.jobs.options.base import Option

NAMES = (
    "sst2, cola, mrpc, mnli, qqp, qnli, rte, stsb, tags, questions, images, causal-lm, masked-lm, stream-lm, "
    "translation, encoded"
)


@dataclass(frozen=True)
class TaskOptions:
    """Which task, where its examples are, and how they become batches. `tasks.data.open_task` opens it."""

    task: Annotated[str | None, Option(f"{NAMES}; or any name, with --text, for your own texts.")] = "sst2"
    data_dir: Annotated[
        Path | None,
        Option(
            "Folder with the data: a folder per task, or the task's files; for stream-lm also one file of text. "
            "Default: $HEADPRUNE_DATA."
        ),
    ] = None
    dataset: Annotated[str | None, Option("A data set of the datasets library instead: NAME or NAME:CONFIG.")] = None
    text: Annotated[str | None, Option("Column of the text: its name, or its number in a file without a header.")] = (
        None
    )
    pair: Annotated[str | None, Option("Column of the second text, if there are two.")] = None
    label: Annotated[str | None, Option("Column of the label.")] = None
    metric: Annotated[str | None, Option("Another metric than the task's own: accuracy, f1, …")] = None
    languages: Annotated[
        str | None, Option("Translation: source and target, as en-de; endings of files, names of columns.")
    ] = None
    search: Annotated[
        str, Option("Translation: michel (beam 5), voita or budhraja (beam 4, GNMT penalty 0.6), greedy.")
    ] = "michel"
    beams: Annotated[int | None, Option("Translation: another width of the beam.")] = None
    length_penalty: Annotated[float | None, Option("Translation: another length penalty.")] = None
    prefix: Annotated[str, Option("Translation: what the model wants before a source, as T5 does.")] = ""
    batch_size: Annotated[int, Option("Examples a batch; training may go by --batch-tokens instead.")] = 32
    max_length: Annotated[int, Option("Tokens an example at most.")] = 128

    def check(self) -> None:
        """What can be told without looking at data or a model."""
        if self.task is None:
            raise DataError("Which task? Say it with --task.")
        if self.batch_size < 1 or self.max_length < 2:
            raise DataError(
                f"--batch-size is {self.batch_size}, --max-length {self.max_length}; expected 1 and 2 or more."
            )
        if self.dataset is not None and self.data_dir is not None:
            raise DataError("--dataset and --data-dir both say where the data is: give one of them.")
