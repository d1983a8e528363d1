"""Jobs are found by their names, and say which version of their results they give."""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

import headprune as hp
from headprune.cli.app import COMMANDS
from headprune.jobs.job import find_job, find_options, job_names, results_version
from headprune.jobs.options.base import OptionError, option_fields, parse

WITHOUT_A_JOB = {"demo", "bench"}  # they show what other jobs do, or say where something went


def classes(kind: Any) -> list[Any]:
    """Those of a union."""
    parts = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    return [part for part in parts if part is not type(None)]


def test_every_command_is_a_job():
    """So whatever a person can ask for, an experiment can."""
    assert set(COMMANDS) - WITHOUT_A_JOB <= set(job_names())


@pytest.mark.parametrize("name", job_names())
def test_a_job_and_its_options_agree(name):
    """It takes them, and both say the same version of the results: the options without importing the job."""
    hints = get_type_hints(find_job(name))
    assert hints["options"] is find_options(name)
    versions = {getattr(kind, "version", None) for kind in classes(hints["return"])} - {None}
    assert versions <= {results_version(name)}
    assert option_fields(find_options(name)) is not None


def test_an_unknown_job_is_told():
    """With the nearest."""
    with pytest.raises(hp.HeadpruneError, match="Did you mean 'finetune'"):
        find_options("fine-tune")


def test_options_are_read_as_on_the_command_line():
    """Numbers from texts, one value for a list, flags that mean no; what cannot be read is told with its name."""
    options = find_options("gates")
    read = parse(
        options, ["model"], {"out": "x", "lambda": "0.5", "keep": 36, "no-scaling": True, "epochs": 3}, "gates"
    )
    assert (read.weights, read.keep, read.scaling, read.training.epochs) == ([0.5], ["36"], False, 3.0)
    assert read.training.lr == 2e-5
    assert parse(find_options("train-lm"), [], {"out": "x", "bf16": False}, "train-lm").training.bf16 is False
    for wrong, told, option in (
        ({"epochs": "many"}, "--epochs is 'many'; expected a number", "epochs"),
        ({"epoch": 3}, "no option 'epoch'. Did you mean 'epochs'", "epoch"),
        ({"scaling": "yes"}, "expected true or false", "scaling"),
        ({"unit": "row"}, "expected auto or head or group", "unit"),
    ):
        with pytest.raises(OptionError, match=told) as error:
            parse(options, ["model"], {"out": "x", **wrong}, "gates")
        assert error.value.option == option
