"""BLEU and its bootstrap."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stdout

import numpy as np
import pytest
import sacrebleu
from sacrebleu.significance import PairedTest

from headprune.stats import bootstrap_interval, paired_bootstrap
from headprune.tasks.metrics import metrics
from headprune.tasks.translation.quality import corpus_score, sentence_counts, signature

HYPOTHESES = [
    "the cat sat on the mat .",
    "a dog runs",
    "two men play football in the park",
    "it is red",
    "hello world !",
]

REFERENCES = ["the cat sat on a mat .", "the dog is running", "two men are playing football in a park", "it is red",
              "hello , world !"]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("bleu", ["-m", "bleu"]),
        ("bleu-lowercase", ["-m", "bleu", "-lc"]),
        ("bleu-intl", ["-m", "bleu", "--tokenize", "intl"]),
        ("bleu-char", ["-m", "bleu", "--tokenize", "char"]),
        ("bleu-tokenised", ["-m", "bleu", "--tokenize", "none", "--force"]),
        ("chrf", ["-m", "chrf"]),
        ("chrf++", ["-m", "chrf", "--chrf-word-order", "2"]),
    ],
)
def test_scores_are_those_of_the_sacrebleu_command(tmp_path, name, flags):
    """On the same files, with the same signature."""
    (tmp_path / "hypotheses").write_text("\n".join(HYPOTHESES) + "\n")
    (tmp_path / "references").write_text("\n".join(REFERENCES) + "\n")
    command = [sys.executable, "-m", "sacrebleu", str(tmp_path / "references"), "-i", str(tmp_path / "hypotheses")]
    done = subprocess.run([*command, *flags, "-w", "6"], capture_output=True, text=True, check=True)
    theirs = json.loads(done.stdout)
    rows = sentence_counts(name, HYPOTHESES, REFERENCES)
    assert corpus_score(name, rows) == pytest.approx(theirs["score"], abs=1e-6)
    assert theirs["signature"] == signature(name)
    assert metrics[name].of(rows) == corpus_score(name, rows)


def test_the_paired_bootstrap_agrees_with_sacrebleus_own():
    """The same difference, intervals that overlap by nine tenths, the same verdict."""
    generator = np.random.default_rng(0)
    references = [" ".join(generator.choice(list("abcdefgh"), 12)) for _ in range(200)]

    def spoilt(share):
        return [" ".join("x" if generator.random() < share else word for word in text.split()) for text in references]

    better, close, worse = spoilt(0.10), spoilt(0.105), spoilt(0.2)
    for other, differs in ((close, False), (worse, True)):
        bleu = sacrebleu.BLEU()
        with redirect_stdout(io.StringIO()):
            test = PairedTest([("a", better), ("b", other)], {"BLEU": bleu}, [references], "bs", n_samples=1000)
            _, found = test()
        first, second = found["BLEU"]
        rows = [sentence_counts("bleu", texts, references) for texts in (better, other)]
        ours = paired_bootstrap(*rows, statistic=metrics["bleu"].of)
        assert ours.difference == pytest.approx(second.score - first.score, abs=1e-9)
        assert (ours.p_value < 0.01) == (second.p_value < 0.01) == differs
        if not differs:  # theirs is one-sided (differences above the mean difference), ours two-sided
            assert ours.p_value / 2 == pytest.approx(second.p_value, abs=0.05)
        mine = bootstrap_interval(rows[1], metrics["bleu"].of)
        assert mine.low == pytest.approx(second.mean - second.ci, abs=0.4 * second.ci)
        assert mine.high == pytest.approx(second.mean + second.ci, abs=0.4 * second.ci)
