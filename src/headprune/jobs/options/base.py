"""Options as data: what the fields of an options class mean to a person, a command line and a preset file."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from headprune.errors import DataError, MaskError, UnknownNameError
from headprune.registry import check_finite, hint

Options = TypeVar("Options")


class OptionError(UnknownNameError):
    """An option that a job does not have, or one that it cannot read; `option` is its name as it was given."""

    def __init__(self, message: str, option: str = "") -> None:
        super().__init__(message)
        self.option = option


@dataclass(frozen=True)
class Option:
    """What is said of a field: `Annotated[int, Option("Examples a batch.")]`."""

    help: str
    flags: tuple[str, ...] = ()  # how it is written, where that is not the field's name: --lambda, --bf16/--no-bf16
    least: float | None = None
    metavar: str | None = None
    is_argument: bool = False  # given by its place, not by its name
    is_hidden: bool = False  # still understood, no longer shown
    is_read: bool = False  # a path that is only read; any other is written to, and no preset may say where
    runs_code: bool = False  # that comes with a model: a preset may only ask for it if whoever runs it does


# What many jobs take.
Model = Annotated[str, Option("A model: a folder, or a name on the hub.", is_argument=True)]
Seed = Annotated[int, Option("Seed of random choices.", least=0)]
Device = Annotated[str, Option("Where to run: cpu, cuda, mps, …")]
Picture = Annotated[Literal["html", "png", "svg"], Option("html (values on hover), png or svg.")]
Parts = Annotated[
    Literal["heads", "neurons", "both"],
    Option("What may go: attention heads, neurons of feed-forward parts, or both."),
]
RemoteCode = Annotated[bool, Option("Run code that comes with the model. Off unless you ask for it.", runs_code=True)]
Stream = Annotated[
    bool,
    Option("Work through the checkpoint on disk, one layer in memory at a time: for models that do not fit."),
]
Memory = Annotated[
    str | None, Option("How much memory a step may take beside the model, like 8GiB. Default: half of what is free.")
]
Force = Annotated[bool, Option("Write to --out whatever is there; a model there is replaced.")]
Split = Annotated[str, Option("The part of the data to evaluate on.")]
Examples = Annotated[int, Option("A random part of so many examples; 0 is all.")]


@dataclass(frozen=True)
class OptionField:
    """One option of a job. `group` is the field of the options class that holds it, where it is in a shared group."""

    name: str
    type: Any
    option: Option
    default: Any  # MISSING where it must be given
    group: str | None = None

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def names(self) -> dict[str, bool]:
        """How preset files may call it, and whether a flag of that name means yes."""
        found = {self.name.replace("_", "-"): True}
        for flag in self.option.flags:
            yes, _, no = flag.partition("/")
            found |= {yes.removeprefix("--"): True} | ({no.removeprefix("--"): False} if no else {})
        return found


def amount(text: str) -> float | int:
    """`50%` is a share, `72` a count."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    if not match or (not match[2] and "." in match[1]):
        raise MaskError(f"'{text}' is not an amount of heads. Expected a share like 50% or a count like 72.")
    return float(match[1]) / 100 if match[2] else int(match[1])


def option_fields(options: type[object]) -> tuple[OptionField, ...]:
    """Every option of a class; those of a group (a field that is an options class itself) among the others."""
    return _all_fields(cast(Any, options))


@functools.cache
def _all_fields(options: Any) -> tuple[OptionField, ...]:
    return tuple(_fields(options, None, None))


def _fields(options: type[Any], group: str | None, defaults: object) -> Iterator[OptionField]:
    hints = get_type_hints(options, include_extras=True)
    for field in fields(options):
        default = getattr(defaults, field.name) if defaults is not None else _default(field)
        hinted = hints[field.name]
        if is_dataclass(hinted):
            assert isinstance(hinted, type)
            yield from _fields(hinted, field.name, hinted() if default is MISSING else default)
            continue
        plain, *said = get_args(hinted) if get_origin(hinted) is Annotated else (hinted,)
        option = next((one for one in said if isinstance(one, Option)), Option(""))
        yield OptionField(field.name, plain, option, default, group)


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def build(options: type[Options], values: Mapping[str, object]) -> Options:
    """An options object from a value for each of its flat names."""
    check_finite("The options", {field.flag: values.get(field.name) for field in option_fields(options)})
    own: dict[str, Any] = {}
    groups: dict[str, dict[str, object]] = {}
    for field in option_fields(options):
        place = own if field.group is None else groups.setdefault(field.group, {})
        if field.name in values or field.default is not MISSING:
            place[field.name] = values.get(field.name, field.default)
    return options(**own, **{name: _group(cast(Any, options), name)(**found) for name, found in groups.items()})


@functools.cache
def _group(options: object, name: str) -> Any:
    return get_type_hints(options)[name]


def command_words(options: object) -> list[str]:
    """What a person would type for these options: arguments, then whatever is not as it is by default."""
    arguments, flags = [], []
    for field in option_fields(type(options)):
        value = getattr(options if field.group is None else getattr(options, field.group), field.name)
        if field.option.is_argument:
            arguments += [str(one) for one in (value if isinstance(value, list) else [value])]
        elif value != field.default:
            yes, _, no = (field.option.flags or (field.flag,))[0].partition("/")
            for one in value if isinstance(value, list) else [value]:
                flags += [yes if one else no] if isinstance(one, bool) else [yes, str(one)]
    return [*arguments, *flags]


def parse(options: type[Options], arguments: Sequence[object], given: Mapping[str, object], what: str) -> Options:
    """An options object from words as a preset file has them: `{"max-length": 64, "from-scratch": true}`.

    `what` names the job in errors. Names and values mean what they mean on the command line.
    """
    every = option_fields(options)
    places = [field for field in every if field.option.is_argument]
    if len(arguments) > len(places):
        expected = ", ".join(field.name for field in places) or "none"
        raise OptionError(
            f"{what} was given {len(arguments)} arguments {list(arguments)}; expected {expected}.", "arguments"
        )
    values: dict[str, object] = {
        field.name: _value(field, word, what, "arguments") for field, word in zip(places, arguments, strict=False)
    }
    known = {name: (field, yes) for field in every for name, yes in field.names.items()}
    for name, value in given.items():
        if name not in known:
            raise OptionError(f"{what} has no option '{name}'. {hint(name, known)}", name)
        field, yes = known[name]
        if value is not None:
            read = _value(field, value, what, name)
            values[field.name] = read if yes else not read
    absent = [field for field in every if field.default is MISSING and field.name not in values]
    missing = [field.name if field.option.is_argument else field.flag for field in absent]
    if missing:
        raise OptionError(f"{what} needs {', '.join(missing)}, which was not given.")
    return build(options, values)


def check_step(
    options: type[object], arguments: Sequence[object], given: Mapping[str, object], what: str, *, trusted: bool
) -> None:
    """A preset may come from anybody: its steps write into the folder of their trial alone, and run no code that comes
    with a model unless the person who runs it allows that (`trusted`)."""
    if not getattr(options, "is_step", True):
        raise OptionError(f"{what} cannot be a step of a preset: run `headprune {what}` yourself.", "command")
    every = option_fields(options)
    known = {name: field for field in every for name in field.names}
    places = [field for field in every if field.option.is_argument]
    named = [("arguments", field, word) for field, word in zip(places, arguments, strict=False)]
    for name, field, value in (*named, *((n, known[n], v) for n, v in given.items() if n in known)):
        if _holds_path(field.type) and not field.option.is_read:
            raise OptionError(
                f"{what}: {field.flag} says where to write, which a preset may not: a step writes into the folder of "
                "its trial, below the --out of `headprune run`. Leave it out.",
                name,
            )
        if field.option.runs_code and value and not trusted:
            raise OptionError(
                f"{what}: {field.flag} runs code that comes with a model, which a preset may not ask for by itself. If "
                f"you trust that model, allow it: headprune run … {field.flag}",
                name,
            )


def _holds_path(kind: object) -> bool:
    return kind is Path or any(map(_holds_path, get_args(kind)))


def _value(field: OptionField, value: object, what: str, name: str) -> object:
    try:
        return _converted(field.type, value)
    except (TypeError, ValueError) as error:
        raise OptionError(f"{what}: {field.flag} is {value!r}; expected {_expected(field.type)}.", name) from error


def _converted(kind: Any, value: object) -> object:
    """The value as the command line would read it; a ValueError or TypeError if it cannot be that."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        kinds = [one for one in get_args(kind) if one is not type(None)]
        return None if value is None else _converted(kinds[0], value)
    if origin is list:
        return [_converted(get_args(kind)[0], one) for one in (value if isinstance(value, list) else [value])]
    if origin is Literal:
        if value not in get_args(kind):
            raise ValueError(value)
        return value
    if kind is bool:
        if not isinstance(value, bool):
            raise TypeError(value)
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float | Path):
        raise TypeError(value)
    if kind is int and isinstance(value, float) and value != int(value):
        raise ValueError(value)
    return kind(value)


def _expected(kind: object) -> str:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _expected(next(one for one in get_args(kind) if one is not type(None)))
    if origin is Literal:
        return " or ".join(map(str, get_args(kind)))
    if origin is list:
        return f"a list, each {_expected(get_args(kind)[0])}"
    names: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", Path: "a path"}
    return names.get(kind, "a text")


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
            "Default: $HEADPRUNE_DATA.",
            is_read=True,
        ),
    ] = None
    train_file: Annotated[
        Path | None, Option("Your own file of examples instead of a folder, whatever it is called", is_read=True)
    ] = None
    dev_file: Annotated[Path | None, Option("and one to evaluate on", is_read=True)] = None
    test_file: Annotated[Path | None, Option("and one for the end.", is_read=True)] = None
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
        given = {"dataset": self.dataset, "data-dir": self.data_dir}
        places = [f"--{name}" for name, value in given.items() if value is not None]
        places += [f"--{part}-file" for part in self.files()][:1]
        if len(places) > 1:
            raise DataError(f"{' and '.join(places)} both say where the data is: give one of them.")

    def files(self) -> dict[str, Path]:
        """The files that were named, by the part of the data that each one is."""
        named = {"train": self.train_file, "dev": self.dev_file, "test": self.test_file}
        return {part: path for part, path in named.items() if path is not None}
