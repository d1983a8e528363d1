"""Heads one by one, by a metric."""

from __future__ import annotations

import transformers

import headprune as hp
from headprune.tasks import Source, find_task
from headprune.tasks.ablations import ablate_metric, best_single_heads
from tests.tasks.toy import sentences, tokenizer, write_model


def test_the_best_single_head_is_chosen_elsewhere(tmp_path):
    """Table 6: the head is the best one of the part chosen on; its figures are those of the other part."""
    folder = write_model(tmp_path / "model", seed=3)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    task = find_task("sst2")
    parts = []
    for split, seed in (("train", 0), ("dev", 1)):
        (tmp_path / f"{split}.tsv").write_text("\n".join(f"{text}\t{label}" for text, label in sentences(40, seed)))
        examples = task.load(Source(tmp_path), split, tokenizer(), 32)
        parts.append(ablate_metric(model, list(examples.batches(20)), task, all_but_one=True))
    best = best_single_heads(*parts)
    for site, row in best.items():
        scores = {head.index: line.score for head, line in parts[0].rows.items() if head.site == site}
        assert row.head == max(scores, key=lambda index: (scores[index], -index))
        assert row.chosen_score == max(scores.values())
        assert row.score == parts[1].rows[hp.HeadId(site, row.head)].score
