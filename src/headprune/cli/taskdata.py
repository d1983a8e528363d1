"""What the commands that need data share: the task's options, its examples, the tokenizer, batches."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headprune.checkpoint.load_model import cannot_load, load_model, quiet_transformers
from headprune.cli.widening import takes
from headprune.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    from headprune.tasks import Evaluation, Examples, Source, Task

NAMES = (
    "sst2, cola, mrpc, mnli, qqp, qnli, rte, stsb, tags, questions, images, causal-lm, masked-lm, stream-lm, "
    "translation, encoded"
)


@dataclass(frozen=True)
class TaskOptions:
    """The options as typed. Every field is an option of each command that `takes_task`."""

    task: Annotated[str | None, typer.Option(help=f"{NAMES}; or any name, with --text, for your own texts.")] = "sst2"
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the data: a folder per task, or the task's files; for stream-lm also one file of text. "
            "Default: $HEADPRUNE_DATA."
        ),
    ] = None
    dataset: Annotated[
        str | None, typer.Option(help="A data set of the datasets library instead: NAME or NAME:CONFIG.")
    ] = None
    text: Annotated[
        str | None, typer.Option(help="Column of the text: its name, or its number in a file without a header.")
    ] = None
    pair: Annotated[str | None, typer.Option(help="Column of the second text, if there are two.")] = None
    label: Annotated[str | None, typer.Option(help="Column of the label.")] = None
    metric: Annotated[str | None, typer.Option(help="Another metric than the task's own: accuracy, f1, …")] = None
    languages: Annotated[
        str | None, typer.Option(help="Translation: source and target, as en-de; endings of files, names of columns.")
    ] = None
    search: Annotated[
        str, typer.Option(help="Translation: michel (beam 5), voita or budhraja (beam 4, GNMT penalty 0.6), greedy.")
    ] = "michel"
    beams: Annotated[int | None, typer.Option(help="Translation: another width of the beam.")] = None
    length_penalty: Annotated[float | None, typer.Option(help="Translation: another length penalty.")] = None
    prefix: Annotated[str, typer.Option(help="Translation: what the model wants before a source, as T5 does.")] = ""
    batch_size: Annotated[int, typer.Option(help="Examples a batch; training may go by --batch-tokens instead.")] = 32
    max_length: Annotated[int, typer.Option(help="Tokens an example at most.")] = 128

    def find(self) -> tuple[Task, Source]:
        """The task, and where its examples are."""
        from headprune.tasks import Source, find_task

        if self.task is None:
            raise DataError("Which task? Say it with --task.")
        if self.batch_size < 1 or self.max_length < 2:
            raise DataError(
                f"--batch-size is {self.batch_size}, --max-length {self.max_length}; expected 1 and 2 or more."
            )
        if self.dataset is not None and self.data_dir is not None:
            raise DataError("--dataset and --data-dir both say where the data is: give one of them.")
        task = self._searching(
            find_task(self.task, text=self.text, pair=self.pair, label=self.label, metric=self.metric)
        )
        if self.dataset is not None:
            return task, Source(dataset=self.dataset)
        return task, Source(folder=_task_folder(self.task, self.data_dir))

    def _searching(self, task: Task) -> Task:
        """With what is said about translation; it means nothing to other tasks."""
        from headprune.registry import hint
        from headprune.tasks.translation import TranslationTask
        from headprune.tasks.translation.beam_search import SEARCHES
        from headprune.tasks.translation.pairs import Languages

        if not isinstance(task, TranslationTask):
            given = {"languages": self.languages, "beams": self.beams, "length-penalty": self.length_penalty}
            given |= {"prefix": self.prefix or None}
            wrong = ", ".join(f"--{name}" for name, value in given.items() if value is not None)
            if wrong:
                raise DataError(f"{wrong}: for translation, not for {task.name}.")
            return task
        if self.search not in SEARCHES:
            raise DataError(f"No search called '{self.search}'. {hint(self.search, SEARCHES)}")
        search = SEARCHES[self.search]
        if self.beams is not None:
            search = replace(search, beams=self.beams)
        if self.length_penalty is not None:
            search = replace(search, length_penalty=self.length_penalty)
        languages = Languages.parse(self.languages) if self.languages is not None else None
        return replace(task, languages=languages, search=search, prefix=self.prefix)

    def open(self, model: str) -> TaskData:
        """The task as a trained model does it."""
        task, source = self.find()
        config, processor = _config(model), load_processor(task, model)
        return TaskData(task.for_model(config).for_processor(processor, config), source, processor, self, config)

    def open_new(self, model: str) -> TaskData:
        """The task for a model that is to learn it: its classes are those of the training data."""
        task, source = self.find()
        config, processor = _config(model), load_processor(task, model)
        learned = task.learned_from(source).ordered_as(config).for_processor(processor, config)
        return TaskData(learned, source, processor, self, config)


def takes_task(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command whose parameter `data` is TaskOptions all of these as options of its own."""
    return takes(TaskOptions, "data", **defaults)


@dataclass(frozen=True)
class TaskData:
    """A task with its data and a tokenizer: everything between a file and a batch."""

    task: Task
    source: Source
    processor: Any
    options: TaskOptions
    config: Any

    def longest(self) -> int:
        """The most tokens that the model can take."""
        known = (
            getattr(self.config, "max_position_embeddings", None),
            getattr(self.processor, "model_max_length", None),
        )
        return min((limit for limit in known if isinstance(limit, int) and limit > 0), default=self.options.max_length)

    def load_model(self, name: str, device: str) -> Any:
        """The model, which pads as its tokenizer does, if it is one for the task."""
        model = padded_as(load_model(name, device), self.processor)
        head = self.task.model_class.removeprefix("AutoModel")
        if head.endswith(("Classification", "Answering", "MaskedLM")) and head not in type(model).__name__:
            raise DataError(
                f"'{name}' is a {type(model).__name__}; {self.task.name} needs a model {head}. Fine-tune it first: "
                "headprune finetune."
            )
        if head == "Seq2SeqLM" and not model.can_generate():
            raise DataError(
                f"'{name}' is a {type(model).__name__}, which cannot generate: it has no language-model head."
            )
        return model

    def examples(self, split: str, count: int = 0, seed: int = 0) -> Examples:
        """A part of the data, or a random sample of it."""
        rows = self.task.load(self.source, split, self.processor, min(self.options.max_length, self.longest()))
        return rows.sample(count, seed) if count else rows

    def batches(self, examples: Examples) -> list[dict[str, Any]]:
        """Batches that know which example is in which row."""
        return list(examples.batches(self.options.batch_size))

    def inputs(self, examples: Examples) -> list[dict[str, Any]]:
        """Batches as the model takes them."""
        from headprune.scoring.context import model_inputs

        return [model_inputs(batch) for batch in self.batches(examples)]


def _config(model: str) -> Any:
    from transformers import AutoConfig

    quiet_transformers()
    try:
        return AutoConfig.from_pretrained(model)
    except (OSError, ValueError, KeyError) as error:
        raise cannot_load(model, error) from error


def _task_folder(task: str, data_dir: Path | None) -> Path:
    """`DIR/task` if it is there, else DIR itself."""
    root = data_dir or (Path(os.environ["HEADPRUNE_DATA"]) if os.environ.get("HEADPRUNE_DATA") else None)
    if root is None:
        raise DataError("Where is the data? Give its folder with --data-dir, or set HEADPRUNE_DATA.")
    if root.is_file():
        return root  # a text in one file
    if not root.is_dir():
        raise DataError(f"The data folder '{root}' does not exist.")
    return root / task if (root / task).is_dir() else root


def padded_as(model: Any, processor: Any) -> Any:
    """Classifiers on decoders look for the last token before the padding, so the model must know it."""
    config, token = getattr(model, "config", None), getattr(processor, "pad_token_id", None)
    if config is not None and getattr(config, "pad_token_id", None) is None and token is not None:
        config.pad_token_id = token
    return model


def load_processor(task: Task, name: str) -> Any:
    """The tokenizer or image processor that comes with a model."""
    import transformers

    if not task.processor_class:
        return None
    quiet_transformers()
    try:
        processor = getattr(transformers, task.processor_class).from_pretrained(name)
    except ImportError as error:
        raise MissingExtraError(f"The tokenizer of '{name}' needs a package that is not installed: {error}") from error
    except (OSError, ValueError, KeyError) as error:
        kind = "tokenizer" if task.processor_class == "AutoTokenizer" else "image processor"
        raise DataError(f"'{name}' has no {kind} ({error}). Save one into the model's folder.") from error
    if task.processor_class != "AutoTokenizer":
        return processor
    return ready_tokenizer(processor, takes_words=task.takes_words)


def ready_tokenizer(tokenizer: Any, *, takes_words: bool) -> Any:
    """Pads on the right, with something; for texts that come as lists of words, keeps the words apart.

    Only for these: elsewhere another way of putting spaces would change what the model reads.
    """
    from headprune.tasks.tags import splits_words

    if takes_words and not splits_words(tokenizer):  # byte-level tokenizers would read "the film" as "thefilm"
        import transformers

        again = transformers.AutoTokenizer.from_pretrained(tokenizer.name_or_path, add_prefix_space=True)
        tokenizer = again if splits_words(again) else tokenizer
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # padded positions are masked and have no label
    return tokenizer


def heads_left(model: Any) -> dict[str, Any]:
    """Which heads a model has and had, for JSON."""
    from headprune.structure import find_heads

    heads = find_heads(model)
    return {"kept": {site.id: list(site.kept) for site in heads}, "original": heads.original_counts()}


def p_told(p: float) -> str:
    """Bootstraps of a thousand resamples tell nothing smaller than a thousandth."""
    return f"p {p:.3f}" if p >= 0.001 else "p < 0.001"


def described(evaluation: Evaluation) -> dict[str, Any]:
    """A score with its interval, for JSON."""
    interval = evaluation.interval()
    loss = float(evaluation.losses.mean())
    return {
        "metric": evaluation.metric.name,
        "score": evaluation.score,
        "interval": [interval.low, interval.high],
        "level": interval.level,
        "examples": len(evaluation.rows),
        "loss": loss if loss == loss else None,
    }
