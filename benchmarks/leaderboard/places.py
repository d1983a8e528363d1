"""Where the board by cost finds models and data: folders as `models.sh` and `report_data.sh` make them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.leaderboard.by_cost import DEVELOPMENT, NEIGHBOURS, OUT_OF_DOMAIN, TEXTS

from headprune.errors import DataError
from headprune.jobs.options.base import TaskOptions

LENGTHS = {"mrpc": 128, "imdb": 128, "amazon": 128, "tags": 128, "wikitext2": 256, "books": 256}  # 64 elsewhere
COLUMNS = {
    "snli": {"text": "sentence1", "pair": "sentence2", "label": "label"},
    "imdb": {"text": "text", "label": "label"},
}
SCORED = {"snli": 3000, "amazon": 2000}  # examples at most
SCORED_LARGE = 1500  # and on larger models


@dataclass(frozen=True)
class Folders:
    data: Path  # sst2, cola, mrpc, wikitext2
    report: Path  # what report_data.sh made
    models: Path  # what models.sh made, and smollm2
    untuned: dict[str, Path]  # minilm, mpnet

    def model(self, model: str, data: str, tuning: int) -> Path:
        """The folder of a model; a DataError where it is not there (yet)."""
        if data == NEIGHBOURS:
            found = self.untuned[model]
        elif data in TEXTS:
            found = self.models / model
        else:
            found = self.models / f"{model}-{OUT_OF_DOMAIN.get(data, data)}-{tuning}"
        finished = found / ("config.json" if data == NEIGHBOURS or data in TEXTS else "finetune.json")
        if not finished.is_file():
            raise DataError(f"'{found}' is not there, or not finished: run benchmarks/leaderboard/models.sh.")
        return found

    def options(self, data: str) -> TaskOptions:
        """How the examples of a task are read; `dev` is what a model is scored on."""
        length = LENGTHS.get(data, 64)
        if data in TEXTS:
            place = (self.report if data == "books" else self.data) / data
            return TaskOptions(task="causal-lm", data_dir=place, max_length=length, batch_size=8)
        if data in DEVELOPMENT["minilm"]:
            return TaskOptions(task=data, data_dir=self.data, max_length=length)
        source = OUT_OF_DOMAIN.get(data, data)
        ending = "conllu" if data == "tags" else "tsv"
        return TaskOptions(
            task=source, train_file=self.report / source / f"train.{ending}",
            dev_file=self.report / data / f"test.{ending}", max_length=length, **COLUMNS.get(source, {}),
        )  # fmt: skip

    def scored(self, model: str, data: str) -> int | None:
        """How many examples are scored at most."""
        most = SCORED.get(data)
        return most if model == "minilm" or most is None else min(most, SCORED_LARGE)
