"""The search that looks again after every round."""

from __future__ import annotations

import pytest
import torch

import headprune as hp
from headprune.errors import HeadpruneError, MaskError
from headprune.recovery import SearchConfig
from tests.families.tiny import labelled_batches, tiny_model


def test_rounds_look_again_and_leave_the_model_alone():
    """Of two copies, one goes in the first round; the second round sees that the other is needed."""
    model = tiny_model("bert", num_labels=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batches = labelled_batches(model)
    for way in (
        SearchConfig(),
        SearchConfig(rounds=3),
        SearchConfig(method="sensitivity", recover=None, rounds=2),
        SearchConfig(rounds=2, swaps=4),
    ):
        mask = hp.search(model, batches, prune=0.5, way=way)
        assert len(mask) == 4
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    hp.prune_(hp.recover_(model, mask, batches), mask)


def test_one_round_is_score_and_select():
    """No more than that, and no less."""
    model = tiny_model("bert", num_labels=2)
    batches = labelled_batches(model)
    scores = hp.score(model, batches, method="curvature")
    chosen = hp.search(model, batches, prune=3, way=SearchConfig())
    assert chosen == hp.select(scores, hp.find_heads(model), prune=3)


def test_groups_go_together():
    """As `select` has them."""
    from transformers import AutoModelForSequenceClassification

    model = tiny_model("llama", auto=AutoModelForSequenceClassification, pad_token_id=1, num_labels=2)
    heads = hp.find_heads(model)
    mask = hp.search(model, labelled_batches(model), prune=2, unit="group", way=SearchConfig(rounds=2))
    assert len(heads) - len(mask) == 2 * len(heads.sites[0].groups[0])
    hp.prune_(model, mask, gqa="group")


def test_swaps_lower_the_loss():
    """On the data that it is given, never the other way."""
    model = tiny_model("bert", num_labels=2)
    batches = labelled_batches(model, 4)

    def loss(mask):
        import copy

        repaired = hp.recover_(copy.deepcopy(model), mask, batches)
        with torch.no_grad(), hp.masked(repaired, mask):
            return sum(float(repaired(**batch).loss) for batch in batches)

    plain = hp.search(model, batches, prune=0.5, way=SearchConfig(method="magnitude"))
    swapped = hp.search(model, batches, prune=0.5, way=SearchConfig(method="magnitude", swaps=6))
    assert loss(swapped) <= loss(plain) + 1e-6


def test_nonsense_is_refused():
    """No rounds at all, and a repair that nobody knows."""
    model = tiny_model("bert", num_labels=2)
    with pytest.raises(HeadpruneError, match="Did you mean 'least-squares'"):
        hp.search(model, labelled_batches(model), prune=0.5, way=SearchConfig(recover="least-square"))
    with pytest.raises(MaskError, match="at least one round"):
        hp.search(model, labelled_batches(model), prune=0.5, way=SearchConfig(rounds=0))


def test_swaps_keep_what_sites_must_keep():
    """`at_least` holds at the end, too."""
    model = tiny_model("bert", num_labels=2)
    heads = hp.find_heads(model)
    for seed in range(3):
        batches = labelled_batches(model, 2 + seed)
        mask = hp.search(model, batches, prune=0.5, at_least=2, way=SearchConfig(method="magnitude", swaps=8))
        assert all(len(mask.kept(site.id)) >= 2 for site in heads)


def test_scores_that_do_not_add_up_are_taken_in_one_go(tmp_path):
    """A command that works in parts gives what all batches give."""
    from headprune.scoring import resumable

    model = tiny_model("bert").eval()
    batches = labelled_batches(model, count=resumable.PART + 3)
    parts = resumable.score_in_parts(model, batches, tmp_path / "unfinished", method="curvature")
    assert parts.scores == hp.score(model, batches, method="curvature").scores


@pytest.mark.parametrize(
    ("method", "recover", "expected"),
    [
        ("best", None, ("curvature", "least-squares")),
        ("best", "bias", ("curvature", "bias")),
        ("best", "none", ("curvature", None)),
        ("magnitude", None, ("magnitude", None)),
        ("magnitude", "none", ("magnitude", None)),
        ("magnitude", "rescale", ("magnitude", "rescale")),
    ],
)
def test_names_of_methods_and_repairs_are_read_in_one_place(method, recover, expected):
    """`best` comes with its repair; another may be named, or none."""
    config = SearchConfig.named(method, recover)
    assert (config.method, config.recover) == expected
    assert config.is_choice_by_score
    assert not SearchConfig.named(method, recover, shifts=2.0).is_choice_by_score
    assert not SearchConfig(rounds=2).is_choice_by_score
