"""What a figure claims, and when it may."""

from __future__ import annotations

import pytest

import headprune as hp
from headprune.lab.experiments.claims import Counts, verdicts
from headprune.lab.experiments.library import shared_steps
from headprune.lab.experiments.preset_file import read_preset
from headprune.lab.experiments.runs import read_runs
from headprune.lab.experiments.store import Store
from headprune.lab.experiments.values import Observed
from tests.lab.experiments.toy import ONE, PRESET, preset, ran


def test_a_claim_needs_three_seeds(tmp_path):
    """Two are told as what was seen; three with an interval on the right side are a finding."""
    store = Store(tmp_path)
    for seeds, finding, told in (([1, 2], False, "open: 2 of 3 seeds"), ([1, 2, 3], True, "holds")):
        ran(store, preset(), seeds=seeds)
        (run,) = read_runs(store)
        (claim,) = run.claims(run.values(run.records(store)))
        assert (claim.is_finding, claim.told()) == (finding, told)
        assert claim.gaps == (3.0,) * len(seeds)
        assert claim.expected == "'four' above 'one' + 2"


@pytest.mark.parametrize(
    ("relation", "by", "found", "verdict"),
    [
        ("above", 0.0, (1.5, 1.6, 1.4), "holds"),
        ("above", 1.0, (1.5, 1.6, 1.4), "does not hold"),
        ("above", 0.5, (1.5, 1.7, 1.3), "open"),  # the gap is 0.5 ± 0.2
        ("above", -1.0, (0.5, 0.6, 0.4), "holds"),  # a loss of less than 1 is allowed
        ("below", 0.2, (0.5, 0.6, 0.4), "holds"),
        ("below", 0.0, (1.5, 1.6, 1.4), "does not hold"),
        ("within", 0.1, (1.0, 1.1, 0.9), "holds"),
        ("within", 0.1, (1.5, 1.6, 1.4), "does not hold"),
        ("within", 0.1, (1.5, 0.6, 1.4), "open"),
    ],
)
def test_claims_can_come_out_false_or_open(relation, by, found, verdict):
    """The whole interval of the gap must lie on one side."""
    extra = f"""
[[small.claims]]
text = "x"
value = "four"
is = "{relation}"
against = "one"
by = {by}
"""
    four = Observed("four", None, found, (1, 2, 3), planned=3)
    assert verdicts(preset(extra=extra), "small", [ONE, four])[-1].verdict == verdict


def test_seeds_are_paired_and_one_model_serves_all():
    """Gaps are within seeds; a value that is there once is compared with every seed's."""
    four = Observed("four", None, (4.0, 5.0), (2, 3), planned=3)
    assert verdicts(preset(), "small", [ONE, four])[0].gaps == pytest.approx((2.9, 4.1))
    single = Observed("one", None, (1.0,), (1,), planned=1)
    assert verdicts(preset(), "small", [single, four])[0].gaps == (3.0, 4.0)
    once = Observed("four", None, (4.0,), (1,), planned=1)
    assert verdicts(preset(), "small", [ONE, once])[0].gaps == pytest.approx((3.0, 2.9, 3.1))
    half_done = Observed("one", None, (1.0,), (2,), planned=3)  # two seeds of it are still to come
    assert verdicts(preset(), "small", [half_done, four])[0].gaps == (3.0,)
    assert verdicts(preset(), "small", [Observed("one", None, ()), four])[0].told() == "open: 0 of 3 seeds"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('is = "above"', 'is = "abov"', r"mine.toml, line \d+: is = 'abov'. Did you mean 'above'"),
        ('against = "one"', 'against = "on"', r"line \d+: 'on' is 0 values"),
        ('against = "one"', "", "another value .against. or with a number"),
        ("by = 2", 'by = "2"', "expected a number"),
    ],
)
def test_a_wrong_claim_is_told_with_its_line(old, new, told):
    """As for any other field."""
    text = PRESET.format(name="mine", step="say").replace(old, new)
    with pytest.raises(hp.HeadpruneError, match=told):
        read_preset(text, "mine.toml", shared_steps())


def test_arithmetic_needs_no_seeds():
    """What no seed changes is a finding at once."""
    four = Observed("four", None, (4.0,), (1,), planned=1, exact=True)
    (claim, *_) = verdicts(preset(), "small", [Observed("one", None, (1.0,), (1,), planned=1, exact=True), four])
    assert (claim.verdict, claim.told()) == ("holds", "holds")


def test_statements_are_counted_in_words():
    """One rule for pages, reports and the README."""
    three = Observed("four", None, (4.0, 4.1, 3.9), (1, 2, 3), planned=3)
    few = Observed("four", None, (4.0,), (1,), planned=3)
    found = [verdicts(preset(), "small", [ONE, value])[0] for value in (three, few)]
    told = "Of 2 statements of the papers, 1 hold, 0 do not, 1 are open (1 with fewer than 3 seeds)."
    assert Counts.of(found).message() == told
    assert Counts.of([]).message() == "No statement of a paper was tested."


def test_the_papers_value_is_its_own_gap():
    """Where both numbers are printed, their difference; otherwise its words."""
    one, four = Observed("one", 1.5, (1.0,), (1,)), Observed("four", 4.0, (4.0,), (1,))
    assert verdicts(preset(), "small", [one, four])[0].paper == "+2.5"
    assert verdicts(preset(), "small", [one, Observed("four", "about 4", (4.0,), (1,))])[0].paper == "about 4"
    assert verdicts(preset(), "small", [ONE, four])[0].paper == "–"


def test_a_claim_may_compare_with_a_share_of_a_value():
    """`times` is of what it is compared with, seed by seed."""
    extra = """
[[small.claims]]
text = "x"
value = "four"
is = "above"
against = "one"
times = 3
cited = "page 1"
"""
    four = Observed("four", None, (4.0, 4.2, 4.1), (1, 2, 3), planned=3)
    found = verdicts(preset(extra=extra), "small", [ONE, four])[-1]
    assert found.gaps == pytest.approx((1.0, 0.9, 1.4))
    assert (found.expected, found.claim.cited) == ("'four' above 3 x 'one'", "page 1")
