"""Data in, batches, metric: what a task is."""

from headprune.tasks.known import find_task, task_names, tasks
from headprune.tasks.sources import Source
from headprune.tasks.task import Evaluation, Examples, Task, evaluate

__all__ = ["Evaluation", "Examples", "Source", "Task", "evaluate", "find_task", "task_names", "tasks"]
