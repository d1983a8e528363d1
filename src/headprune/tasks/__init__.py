"""Data in, batches, metric: what a task is."""

from headprune.tasks.classification import Evaluation, Examples, TextTask, find_task, task_names

__all__ = ["Evaluation", "Examples", "TextTask", "find_task", "task_names"]
