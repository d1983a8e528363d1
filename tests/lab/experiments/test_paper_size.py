"""The papers' own size, as far as a CPU can: their formats of data, and every trial's options."""

from __future__ import annotations

import pytest

import headprune as hp
from headprune.lab.experiments.data_check import check_data
from headprune.lab.experiments.expand import trials_of
from headprune.lab.experiments.library import all_presets, shared_steps
from tests.lab.analysis.test_functions import CONLLU

PAIRS = {
    "wmt": ("en", "fr", ("train", "dev", "newstest2013", "newstest2014", "mtnt")),
    "iwslt": ("de", "en", ("train", "dev", "test")),
    "enru": ("en", "ru", ("train", "dev", "newstest2014")),
    "ende": ("en", "de", ("train", "dev", "newstest2014")),
    "subtitles": ("en", "ru", ("train", "dev", "test")),
}


@pytest.fixture
def corpora(tmp_path):
    """A few lines of each corpus, in the files that the papers' data come in."""
    for name, (source, target, parts) in PAIRS.items():
        (tmp_path / name).mkdir()
        for part in parts:
            for side in (source, target):
                (tmp_path / name / f"{part}.{side}").write_text("one two three .\nfour five .\n")
    (tmp_path / "wikitext").mkdir()
    for part in ("train", "valid", "test"):
        (tmp_path / "wikitext" / f"wiki.{part}.tokens").write_text(" \n = A title = \n \n Some words <unk> here . \n")
    (tmp_path / "text8").write_text("anarchism originated as a term " * 400)
    (tmp_path / "trees.conllu").write_text(CONLLU)
    return {"trees": tmp_path / "trees.conllu", **{name: tmp_path / name for name in (*PAIRS, "wikitext", "text8")}}


def paper_trials():
    presets = [preset for preset in all_presets() if "paper" in preset.scales]
    prints = {name: f"{place:016x}" for place, name in enumerate(shared_steps()["paper"]["inputs"])}
    return [
        trial
        for preset in presets
        for trial in trials_of(preset, "paper", {name: prints[name] for name in preset.scale("paper").inputs})
    ]


def test_data_in_the_papers_formats_are_read(corpora):
    """Every part that a trial at the paper's size names, from files as the papers' corpora are published."""
    assert set(corpora) == set(shared_steps()["paper"]["inputs"])
    check_data(paper_trials(), corpora)


def test_a_part_that_is_missing_is_told(corpora):
    """Before a cluster is asked for anything."""
    (corpora["wmt"] / "mtnt.fr").unlink()
    with pytest.raises(hp.HeadpruneError, match=r"wmt \(translation\).*mtnt"):
        check_data(paper_trials(), corpora)
