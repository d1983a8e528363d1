"""Data in, batches, metric: what a task is."""

from headprune.tasks.data import find_task, task_names, tasks
from headprune.tasks.tables import Source
from headprune.tasks.task import Evaluation, Examples, ScoreSummary, Task, evaluate

__all__ = ["Evaluation", "Examples", "ScoreSummary", "Source", "Task", "evaluate", "find_task", "task_names", "tasks"]
