"""Numbers that are none, and shares of which nothing comes."""

from __future__ import annotations

import math

import pytest

import headprune as hp
from headprune.budgets.curves import Curve, Point, furthest_within
from headprune.errors import HeadpruneError, MaskError
from headprune.heads import HeadMap, HeadScores
from tests.command import invoked
from tests.families.tiny import tiny_model
from tests.strategies import site

GROUPS = HeadMap((site("decoder", 0, 6, kv_heads=3), site("decoder", 1, 6, kv_heads=3)))
SCORES = HeadScores.from_values(GROUPS, {s.id: [float(h) for h in range(6)] for s in GROUPS}, method="toy")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"prune": 0.33, "uniform": True, "unit": "group"}, r"removes nothing of 3.*prune=0\.334 \(1 of 3, 33\.4 %\)"),
        ({"keep": 0.67, "per": "site", "unit": "group"}, r"keep=0\.666 \(1 of 3"),
        ({"prune": 0.05}, r"removes nothing of 12.*prune=0\.084"),
        ({"prune": 0.1, "unit": "query"}, r"removes nothing of 4.*prune=0\.25"),
        ({"prune": 0.5, "at_least": 6}, "with at_least=6"),
    ],
)
def test_a_share_of_which_nothing_comes_is_refused(how, told):
    """With the nearest share that does something; 0 is what it says, and a count is exact."""
    with pytest.raises(MaskError, match=told):
        hp.select(SCORES, GROUPS, **how)
    assert len(hp.select(SCORES, GROUPS, prune=0.0)) == len(hp.select(SCORES, GROUPS, keep=1.0)) == 12


def test_the_named_share_does_remove_something():
    """What the message says can be typed."""
    for groups in range(2, 40):
        heads = HeadMap((site("decoder", 0, 2 * groups, kv_heads=groups),))
        scores = HeadScores.from_values(heads, {"decoder.0": [1.0] * (2 * groups)}, method="toy")
        with pytest.raises(MaskError) as refused:
            hp.select(scores, heads, prune=1e-6, unit="group")
        named = float(str(refused.value).split("something is prune=")[1].split()[0])
        assert len(hp.select(scores, heads, prune=named, unit="group")) == 2 * groups - 2


@pytest.mark.parametrize("more", [["--uniform", "--unit", "group", "--scores"], []])
def test_the_command_that_would_remove_nothing_is_an_error(more, tmp_path):
    """Nothing is saved."""
    model = tiny_model("llama")
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "scores.json").write_text(hp.score(model, method="magnitude").to_json())
    more = [*more, *([tmp_path / "scores.json"] if more else [])]
    with pytest.raises(MaskError, match="removes nothing"):
        invoked("prune", tmp_path / "model", "--prune", "3%", *more, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_pattern_that_removes_nothing_is_refused():
    """Of a share; a pattern of all heads is one."""
    with pytest.raises(MaskError, match=r"removes none: at most 91\.6% does"):
        hp.pattern(GROUPS, "99%")
    assert len(hp.pattern(GROUPS, "91.6%")) == 11
    assert len(hp.pattern(GROUPS, "100%")) == 12


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_refused(odd):
    """Wherever one enters: a comparison with NaN is never true."""
    curve = Curve("toy", "accuracy", 4, (Point(0, 0.0, 0.9, {}), Point(1, 0.25, 0.8, {})))
    broken = Curve("toy", "accuracy", 4, (Point(0, 0.0, 0.9, {}), Point(1, 0.25, odd, {})))
    model = tiny_model("bert")
    asked = [
        lambda: furthest_within(curve, odd),
        lambda: furthest_within(broken, 0.5),
        lambda: hp.select(SCORES, GROUPS, prune=odd),
        lambda: hp.select(SCORES, GROUPS, keep=odd),
        lambda: hp.HeadMask.random(GROUPS, keep=odd),
        lambda: hp.select(SCORES, GROUPS, max_drop=odd, evaluate=lambda mask: 1.0),
        lambda: hp.select(SCORES, GROUPS, max_drop=0.5, evaluate=lambda mask: odd),
        *(
            lambda name=name: hp.select(SCORES, GROUPS, model=model, **{name: odd})
            for name in ("macs", "params", "speedup")
        ),
        lambda: hp.score(model, method="curvature", ridge=odd),
        lambda: hp.masked(model, {"encoder.0": [1.0, odd, 1.0, 1.0]}).__enter__(),
        lambda: hp.HardConcrete(4, temperature=odd),
        lambda: hp.HardConcrete(4, init=odd),
        lambda: hp.BinaryConcrete(4, threshold=odd),
        lambda: hp.Objective(weight=odd),
        lambda: hp.Objective(stiffness=odd),
        lambda: hp.Objective(component_weights={"encoder": odd}),
        lambda: hp.stats.mean_interval([1.0, 2.0], level=odd),
    ]
    for ask in asked:
        with pytest.raises(HeadpruneError):
            ask()


def test_options_of_commands_are_finite(tmp_path):
    """A learning rate of nan would train for hours."""
    with pytest.raises(HeadpruneError, match="finite"):
        invoked("finetune", tmp_path, "--task", "sst2", "--lr", "nan", "--out", tmp_path / "out")
