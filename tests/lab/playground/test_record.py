"""What the page shows is what was measured."""

from __future__ import annotations

import base64
import json

import pytest
from transformers import AutoModelForSequenceClassification

import headprune as hp
from headprune.errors import FileFormatError
from headprune.heads.stored import read_scores
from headprune.jobs.options.play import PlayOptions
from headprune.jobs.play import play
from headprune.lab.playground.content import Content
from headprune.tasks.data import open_task
from headprune.tasks.task import evaluate
from tests.docs.test_guides import write_llm
from tests.lab.playground.toy import task, write_page


@pytest.fixture(scope="module")
def recorded(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    return folder, write_page(trained, folder)


def test_every_point_is_measured(recorded, trained):
    """The score at a point is what the model scores with the heads that the point keeps."""
    _, content = recorded
    data = open_task(task(trained), str(trained / "tuned"))
    model = data.load_model(str(trained / "tuned"), "cpu")
    heads = hp.find_heads(model)
    batches = data.batches(data.examples("dev", 400))
    for point in content.ways[0].points:
        kept = {site: [head for head, mark in enumerate(marks) if mark == "1"] for site, marks in point.kept.items()}
        found = evaluate(model, batches, data.task, mask=hp.HeadMask.from_dict(heads, kept), heads=heads)
        assert point.score == pytest.approx(found.score)
        assert [int(one) for one in found.predictions] == list(point.chosen)
    scores = read_scores(trained / "scores" / "scores.json")
    second = content.ways[0].points[1]
    assert second.kept["encoder.0"].count("1") == len(hp.select(scores, heads, prune=2).kept("encoder.0"))


def test_the_second_slider_is_what_shrink_made(recorded):
    """Models loaded from their folders, with sizes, neurons and times that were measured."""
    folder, content = recorded
    way = content.ways[1]
    assert way.points[0].label == "the whole model"
    for point in way.points[1:]:
        assert point.macs < way.points[0].macs
        assert point.neurons < way.points[0].neurons
        assert point.speed is not None
        assert point.speed.control > 0
    stored = json.loads((folder / "small" / "macs-60pct" / "shrink.json").read_text())
    assert way.points[-1].parameters == stored["after"]["parameters"]


def test_attention_on_the_page_is_the_models(recorded, trained):
    """Byte by byte, of every head of every sentence; a row adds up to one."""
    _, content = recorded
    model = AutoModelForSequenceClassification.from_pretrained(trained / "tuned", attn_implementation="eager").eval()
    data = open_task(task(trained), str(trained / "tuned"))
    sentence = content.sentences[0]
    ids = data.processor.convert_tokens_to_ids(list(sentence.tokens))
    inputs = data.processor.pad({"input_ids": [ids]}, return_tensors="pt")
    maps = model(**inputs, output_attentions=True).attentions
    size = len(ids)
    for layer, expected in enumerate(maps):
        levels = base64.b64decode(sentence.maps[f"encoder.{layer}"])
        assert len(levels) == expected.shape[1] * size * size
        found = [level / 255 for level in levels]
        assert found == pytest.approx(expected[0].flatten().tolist(), abs=0.5 / 255 + 1e-6)


def test_the_sample_is_drawn_by_seed_alone(recorded):
    """Twelve examples, whatever the answers to them are."""
    _, content = recorded
    assert sum(example.sampled for example in content.examples) == 12
    assert all(len(point.chosen) == len(content.examples) for way in content.ways for point in way.points)


def test_the_file_beside_the_page_is_the_same(recorded):
    """JSON in and out."""
    folder, content = recorded
    assert Content.from_json((folder / "page.json").read_text()) == content


def test_a_damaged_file_is_told(recorded):
    """Which field is wrong."""
    folder, _ = recorded
    stored = json.loads((folder / "page.json").read_text())
    stored["ways"][0]["points"][0]["heads"] = "many"
    with pytest.raises(FileFormatError, match="heads"):
        Content.from_json(json.dumps(stored))


def test_a_language_model_tells_its_next_words(tmp_path):
    """With their probabilities, before and after."""
    write_llm(tmp_path)
    from headprune.jobs.options.base import TaskOptions

    data = TaskOptions(task="causal-lm", data_dir=tmp_path / "text", max_length=16)
    options = PlayOptions(model=str(tmp_path / "llm"), data=data, steps=2, page=tmp_path / "page.html", examples=6)
    content = play(options).content
    assert content.answers == "words"
    first, *_, last = content.ways[0].points
    assert len(first.words) == len(content.examples)
    assert first.words != last.words
    shares = [share for _, share in first.words[0]]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 1.001
