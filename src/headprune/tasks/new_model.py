"""Models that are to learn a task: a new head on a pretrained model, random weights, a teacher beside it."""

from __future__ import annotations

import torch
import transformers
from torch import nn

from headprune.checkpoint.load_model import load_model, model_class
from headprune.errors import CheckpointError
from headprune.tasks.data import match_padding_
from headprune.tasks.task import Task
from headprune.types import Processor


def new_model(
    name: str, task: Task, processor: Processor | None, device: str, seed: int, *, from_scratch: bool = False
) -> nn.Module:
    """A model with a new head for the task, or with the one it has if it was made for such a task."""
    return match_padding_(_new_model(name, task, seed, device, from_scratch=from_scratch), processor)


def _new_model(name: str, task: Task, seed: int, device: str, *, from_scratch: bool) -> nn.Module:
    torch.manual_seed(seed)  # a new head is random
    config = transformers.AutoConfig.from_pretrained(name, **task.model_options())
    made: nn.Module
    if task.model_class == "AutoModel":  # the task takes any head: that of the checkpoint
        made = model_class(config)(config) if from_scratch else load_model(name, device)
        return made.to(device)
    cls = getattr(transformers, task.model_class)
    try:
        made = cls.from_config(config) if from_scratch else cls.from_pretrained(name, config=config)
    except RuntimeError as error:  # a head for another number of classes
        raise CheckpointError(
            f"'{name}' has a head that does not fit {task.name} ({error}). Start from a model without a head, or with "
            "the same classes."
        ) from error
    return made.to(device)


def load_teacher(name: str, learner: nn.Module, processor: Processor | None, device: str) -> nn.Module:
    """The model to learn from, if its classes are the learner's, in the same order."""
    teacher = match_padding_(load_model(name, device), processor)
    mine, theirs = (getattr(model.config, "id2label", None) for model in (learner, teacher))
    if mine != theirs:
        raise CheckpointError(f"The teacher's classes are {theirs}, the learner's {mine}: answers do not compare.")
    return teacher
