"""What `run` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from headprune.jobs.options.base import Force, Option


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    is_step: ClassVar[bool] = False  # of a preset
    names: Annotated[list[str] | None, Option("Presets by name, or files of your own (.toml).", is_argument=True)] = (
        None
    )
    every: Annotated[bool, Option("Every preset.", flags=("--all",))] = False
    show_all: Annotated[bool, Option("Show every preset.", flags=("--list",))] = False
    show: Annotated[bool, Option("Show a preset's file instead of running it.")] = False
    copy: Annotated[bool, Option("Copy a preset: run --copy NAME FILE.toml.")] = False
    scale: Annotated[str, Option("small (two cores) or paper (its models, data and settings).")] = "small"
    given: Annotated[list[str] | None, Option("What a preset needs, as NAME=PATH; repeatable.", flags=("--input",))] = (
        None
    )
    inputs: Annotated[
        Path | None,
        Option("A folder that holds what presets need under its names: INPUTS/sst2, INPUTS/pairs, …", is_read=True),
    ] = None
    out: Annotated[Path, Option("Folder of results; what is finished there is not run again.")] = Path("runs")
    seeds: Annotated[str | None, Option("Other seeds than the preset's, as 1,2,3.")] = None
    runner: Annotated[str, Option("inline (one trial after another) or ray (a cluster).")] = "inline"
    address: Annotated[str | None, Option("ray: of a cluster, or auto; else one is started.")] = None
    threads: Annotated[
        int, Option("Threads of a trial; another number gives other last digits. 0: as many as torch takes.")
    ] = 1
    num_cpus: Annotated[float, Option("ray: cores a trial.")] = 1
    num_gpus: Annotated[float, Option("ray: GPUs a trial.")] = 0
    retry: Annotated[bool, Option("Run trials that failed again.")] = False
    dry_run: Annotated[bool, Option("Only show what would be run.")] = False
    estimate: Annotated[bool, Option("Only tell how many hours it would take, from measured times.")] = False
    check: Annotated[bool, Option("Build the paper's models at their true size and take two steps with each.")] = False
    csv: Annotated[Path | None, Option("Write the results as a table, too.")] = None
    track: Annotated[
        list[str] | None,
        Option("Send the results to tensorboard (OUT/tensorboard), mlflow or wandb, too; repeatable."),
    ] = None
    force: Force = False
    trust_remote_code: Annotated[
        bool, Option("Let presets run code that comes with their models, where they ask for it.", runs_code=True)
    ] = False
    device: Annotated[str | None, Option("Where trials compute; default cuda if they ask for GPUs, else cpu.")] = None
