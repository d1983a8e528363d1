"""Running text for language models with a memory: symbols, streams, the task, shapes and recipes."""

from headprune.tasks.text.task import StreamTask

__all__ = ["StreamTask"]
