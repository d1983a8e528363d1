"""How transformers and torch are changed. No other file assigns to a class or a module of theirs.

Each patch is one function that is given what it installs: this file knows nothing of checkpoints, gates or models.
`PATCHES` lists them with what they rely on and since which version; tests/test_patches.py compares that with what is
installed. Changes of one model's own modules are made in `hooks/` and `surgery/`. `Trainer` is not patched: our
trainers are subclasses.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Method: TypeAlias = Callable[..., object]
AfterInit: TypeAlias = Callable[["PreTrainedModel"], None]
AttentionFunction: TypeAlias = Callable[..., Any]
AttentionLookup: TypeAlias = Callable[[AttentionFunction], AttentionFunction]
Function = TypeVar("Function", bound=Method)


class Patch(NamedTuple):
    """What a patch takes the place of, the parameters that it relies on, and since when it is needed and valid."""

    target: str  # module:object
    parameters: tuple[str, ...]
    since: str


PATCHES: list[Patch] = []


def patch(target: str, *parameters: str, since: str) -> Callable[[Function], Function]:
    """Note what the function below changes."""
    PATCHES.append(Patch(target, parameters, since))
    return lambda function: function


# Lasting, of `transformers.modeling_utils.PreTrainedModel`.

INSTALLED = "_headprune_installed"  # on the class; modelling files in exported checkpoints look for it


def patch_models(cls: type[PreTrainedModel], *, after_init: AfterInit, save: Method, load: Method) -> None:
    """The three patches below, once."""
    if INSTALLED not in vars(cls):
        patch_post_init(cls, after_init)
        patch_save_pretrained(cls, save)
        patch_from_pretrained(cls, load)
        setattr(cls, INSTALLED, True)


@patch("transformers.modeling_utils:PreTrainedModel.post_init", "self", since="transformers 5.1")
def patch_post_init(cls: type[PreTrainedModel], action: AfterInit) -> None:
    """`action(model)` at the end of every model's constructor.

    Why: weights are loaded into an empty skeleton, which must have the shapes of the pruned model by then, and no
    callback of transformers lies between the two.
    """

    def then(original: Method, model: PreTrainedModel) -> object:
        result = original(model)
        action(model)
        return result

    cls.post_init = _around(cls.post_init, then)


@patch(
    "transformers.modeling_utils:PreTrainedModel.save_pretrained", "self", "save_directory", "is_main_process",
    "state_dict", "push_to_hub", since="transformers 5.1",
)  # fmt: skip
def patch_save_pretrained(cls: type[PreTrainedModel], save: Method) -> None:
    """`save(original, model, save_directory, …)` instead of the method.

    Why: a model that could not be loaded again is refused; a failure leaves the old checkpoint whole; the card.
    """
    cls.save_pretrained = _around(cls.save_pretrained, save)


@patch(
    "transformers.modeling_utils:PreTrainedModel.from_pretrained", "pretrained_model_name_or_path", "model_args",
    "config", since="transformers 5.1",
)  # fmt: skip
def patch_from_pretrained(cls: type[PreTrainedModel], load: Method) -> None:
    """`load(original, cls, name, …)` instead of the class method.

    Why: transformers warns of a weight that is missing and fills in random numbers; in a pruned block it is an error.
    """
    cls.from_pretrained = classmethod(_around(vars(cls)["from_pretrained"].__func__, load))


@patch(
    "transformers.configuration_utils:PreTrainedConfig.get_config_dict", "pretrained_model_name_or_path", "kwargs",
    since="transformers 5.1",
)  # fmt: skip
def patch_config(cls: Any, before: Callable[[Any], None]) -> None:
    """`before(folder)` whenever a config is about to be read, for every class, the Auto classes included.

    Why: a save that was interrupted must be finished before anything of the folder is read, and the config is first.
    """

    def then(original: Method, cls: object, name: object, **kwargs: object) -> object:
        before(name if not kwargs.get("subfolder") else f"{name}/{kwargs['subfolder']}")
        return original(cls, name, **kwargs)

    if INSTALLED not in vars(cls):
        cls.get_config_dict = classmethod(_around(vars(cls)["get_config_dict"].__func__, then))
        setattr(cls, INSTALLED, True)


def _around(original: Method, function: Method) -> Method:
    @functools.wraps(original)
    def wrapper(*args: object, **kwargs: object) -> object:
        return function(original, *args, **kwargs)

    return wrapper


# Lasting, of Python's import system.


def when_imported(name: str, action: Callable[[ModuleType], None]) -> None:
    """Run `action` on a module now, or as soon as somebody has imported it.

    Why: importing transformers costs over a second, which `import headprune` must not. A package that does this
    (wrapt) would be one more dependency, and takes a module that is half loaded for one that is there.
    """
    module = sys.modules.get(name)
    if module is not None and not is_loading(name):
        action(module)
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.waiting[name] = action


def is_loading(name: str) -> bool:
    """Whether a module is there by half: its import has begun and not ended."""
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that somebody waits for as everybody else would, and adds the action to their loaders."""

    def __init__(self) -> None:
        self.waiting: dict[str, Callable[[ModuleType], None]] = {}
        self.asking: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.waiting or fullname in self.asking:
            return None
        self.asking.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.asking.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        action = _finder.waiting.pop(module.__name__, None)  # once; asking for the spec alone does not use it up
        if not _finder.waiting and _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
        if action is not None:
            action(module)

    def __getattr__(self, name: str) -> object:
        return getattr(self.loader, name)  # readers of source code ask the loader for it


_finder = _Finder()


# For a while: undone when the block ends.


class _WhileNeeded:
    """A change of the whole process that lasts as long as any block, of any thread, asks for it."""

    def __init__(self) -> None:
        self.lock, self.blocks = Lock(), 0
        self.undo: Callable[[], None] = lambda: None

    @contextmanager
    def made(self, change: Callable[[], Callable[[], None]]) -> Iterator[None]:
        """`change` makes it, and returns what undoes it."""
        with self.lock:
            if not self.blocks:
                self.undo = change()
            self.blocks += 1
        try:
            yield
        finally:
            with self.lock:
                self.blocks -= 1
                if not self.blocks:
                    self.undo()


_attention_lookup, _fast_path, _torch_threads = _WhileNeeded(), _WhileNeeded(), _WhileNeeded()


@patch(
    "transformers.modeling_utils:AttentionInterface.get_interface", "self", "attn_implementation", "default",
    since="transformers 5.1",
)  # fmt: skip
@contextmanager
def attention_lookup(lookup: AttentionLookup) -> Iterator[None]:
    """Models that look up their attention function by name get what `lookup` makes of it, until the last block ends.

    Why: the name stands in the config, and one that is put there would change masks and kernels; the function is what
    every model calls, with the module and its queries, keys and values. All threads see it: `lookup` must tell
    whether it is meant.
    """
    interface = getattr(sys.modules.get("transformers.modeling_utils"), "AttentionInterface", None)
    if interface is None:
        yield
        return

    def change() -> Callable[[], None]:
        original = interface.get_interface

        def get_interface(self: object, name: str, default: AttentionFunction) -> AttentionFunction:
            return lookup(original(self, name, default))

        interface.get_interface = get_interface
        return lambda: setattr(interface, "get_interface", original)

    with _attention_lookup.made(change):
        yield


@patch("torch.backends.mha:set_fastpath_enabled", "value", since="torch 2.0")
@contextmanager
def no_multihead_fast_path() -> Iterator[None]:
    """PyTorch's own encoder layers call their attention, until the last block ends.

    Why: their fast path is one fused kernel, in which no hook fires. It is a switch of the whole process: other
    models answer as before in the meantime, up to rounding.
    """
    import torch

    def change() -> Callable[[], None]:
        was = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        return lambda: torch.backends.mha.set_fastpath_enabled(was)

    with _fast_path.made(change):
        yield


@patch("torch.nn.parallel.data_parallel:parallel_apply", "modules", since="torch 2.0")
@patch("torch.utils.checkpoint:_CheckpointFrame.__init__", "self", "recompute_fn", since="torch 2.1")
@patch("torch.utils.checkpoint:CheckpointFunction.forward", "ctx", "run_function", since="torch 2.0")
@contextmanager
def torch_threads(carried: Callable[[Method], Method]) -> Iterator[None]:
    """What torch will run in threads of its own is given to `carried` first, in the thread that asks for it, until the
    last block ends: replicas of DataParallel, and what gradient checkpointing computes again (in either form).

    Why: a new thread and those of autograd know nothing of the context (contextvars) that they work for.
    """
    checkpoint: Any = importlib.import_module("torch.utils.checkpoint")
    replicas: Any = importlib.import_module("torch.nn.parallel.data_parallel")  # as an attribute, a function

    def change() -> Callable[[], None]:
        apply, frame, function = replicas.parallel_apply, checkpoint._CheckpointFrame, checkpoint.CheckpointFunction
        made, forward = frame.__init__, function.forward

        def parallel_apply(modules: Sequence[Method], *args: object, **kwargs: object) -> list[Any]:
            found: list[Any] = apply([carried(module) for module in modules], *args, **kwargs)
            return found

        def __init__(self: object, recompute_fn: Method, *args: object, **kwargs: object) -> None:  # noqa: N807
            made(self, carried(recompute_fn), *args, **kwargs)

        def forwarded(ctx: object, run_function: Method, *args: object) -> object:
            return forward(ctx, carried(run_function), *args)

        replicas.parallel_apply, frame.__init__, function.forward = parallel_apply, __init__, staticmethod(forwarded)

        def undo() -> None:
            replicas.parallel_apply, frame.__init__, function.forward = apply, made, staticmethod(forward)

        return undo

    with _torch_threads.made(change):
        yield


@patch("torch._dynamo:reset", since="torch 2.0")
def forget_compiled_code() -> None:
    """Let `torch.compile` start anew, for all models of the process.

    Why: compiled code does not look for hooks that came or went since, and that of a single model cannot be
    dropped.
    """
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()
