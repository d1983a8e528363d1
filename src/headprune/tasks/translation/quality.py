"""BLEU and chrF by sacrebleu, from counts kept for every sentence, so that a bootstrap needs no second translation.

This is the only file that talks to sacrebleu. A row holds one sentence's counts; the score of a set of sentences is
the score of the sum of their rows, which is how sacrebleu defines a corpus score.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from headprune.errors import MissingExtraError
from headprune.tasks.metrics import TOKEN_LOSSES, Floats, Metric, metrics

BLEU_COUNTS = "lengths, n-grams found and n-grams there of a translation"
CHRF_COUNTS = "character n-grams of a translation, of its reference and in both"
CHRF_WORD_COUNTS = "character and word n-grams of a translation, of its reference and in both"

# Metric -> sacrebleu's class, its options, and what a row holds. The tokenised one is for text that is tokenised
# already, as in the papers; its scores do not compare with the default's.
_KINDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bleu": ("BLEU", {}, BLEU_COUNTS),
    "bleu-tokenised": ("BLEU", {"tokenize": "none", "force": True}, BLEU_COUNTS),
    "bleu-lowercase": ("BLEU", {"lowercase": True}, BLEU_COUNTS),
    "bleu-intl": ("BLEU", {"tokenize": "intl"}, BLEU_COUNTS),
    "bleu-char": ("BLEU", {"tokenize": "char"}, BLEU_COUNTS),
    "bleu-zh": ("BLEU", {"tokenize": "zh"}, BLEU_COUNTS),
    "chrf": ("CHRF", {}, CHRF_COUNTS),
    "chrf++": ("CHRF", {"word_order": 2}, CHRF_WORD_COUNTS),
}
TEACHER_FORCED = TOKEN_LOSSES  # perplexity of the reference: one forward pass, a quick stand-in for BLEU


@functools.cache
def judge(name: str) -> Any:
    """sacrebleu's metric of ours."""
    try:
        import sacrebleu
    except ImportError as error:
        raise MissingExtraError("BLEU and chrF need sacrebleu: pip install 'headprune[tasks]'.") from error
    kind, options, _ = _KINDS[name]
    return getattr(sacrebleu, kind)(**options)


def sentence_counts(name: str, translations: Sequence[str], references: Sequence[str]) -> Floats:
    """One row a sentence."""
    metric = judge(name)
    counts = metric._extract_corpus_statistics(list(translations), [list(references)])
    return np.asarray(counts, dtype=np.float64)


def corpus_score(name: str, rows: Floats) -> float:
    """The score of all sentences together, 0 to 100."""
    total: list[int] = np.rint(rows.sum(0)).astype(np.int64).tolist()
    return float(judge(name)._compute_score_from_stats(total).score)


def signature(name: str) -> str:
    """sacrebleu's own account of how the score is made: references, tokenizer, smoothing, version."""
    metric = judge(name)
    metric.corpus_score(["a"], [["a"]])  # the number of references is known only after a score
    return str(metric.get_signature())


def is_translated(metric: Metric) -> bool:
    """Whether the metric needs translations, and not only the probability of the references."""
    return metric.name in _KINDS


for _name, (*_, _rows) in _KINDS.items():
    metrics.add(_name)(Metric(_name, functools.partial(corpus_score, _name), rows=_rows, point=1.0))
