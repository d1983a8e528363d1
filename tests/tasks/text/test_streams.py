"""Running text as streams of segments."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headprune as hp
from headprune.tasks.tables import Source
from headprune.tasks.text.streams import Segments, StreamBatches, StreamExamples, StreamRows
from headprune.tasks.text.symbols import make_symbols
from headprune.tasks.text.task import StreamTask, _collate


def test_a_text_shorter_than_a_segment_is_refused(tmp_path):
    """For reading and for training."""
    (tmp_path / "dev.txt").write_text("abcabc")
    task, tokenizer = StreamTask(), make_symbols("abc", "characters")
    with pytest.raises(hp.HeadpruneError, match="has 6 tokens: shorter than one segment of 6"):
        task.load(Source(folder=tmp_path), "dev", tokenizer, 6)
    examples = task.load(Source(folder=tmp_path), "dev", tokenizer, 5)
    with pytest.raises(hp.HeadpruneError, match="too few for 4 streams with a segment of 5 each, which need 24"):
        StreamBatches(examples.segments, 4)


def test_other_models_and_tokenizers_are_refused():
    """A memory and symbols are needed."""
    with pytest.raises(hp.HeadpruneError, match="causal-lm"):
        StreamTask().for_processor(object(), None)
    from transformers import GPT2Config

    with pytest.raises(hp.HeadpruneError, match="has no memory"):
        StreamTask().for_processor(make_symbols("ab", "characters"), GPT2Config())
    with pytest.raises(hp.HeadpruneError, match="The model has 27 symbols, its tokenizer 2"):
        StreamTask().for_processor(make_symbols("ab", "characters"), hp.AllAttentionConfig(vocab_size=27))


def examples_of(length: int, segment: int) -> StreamExamples:
    return StreamExamples(Segments(np.arange(length, dtype=np.int32), segment), _collate)


@settings(max_examples=60, deadline=None)
@given(length=st.integers(12, 200), segment=st.integers(1, 9), streams=st.integers(1, 6))
def test_every_token_is_a_target_once(length, segment, streams):
    """But for the first of each stream and what does not fill the streams evenly; segments follow one another."""
    examples = examples_of(length, segment)
    ends: dict[int, int] = {}
    targets = []
    for batch in examples.batches(streams):
        for (stream, start), row in zip(batch["_place"], batch["labels"].tolist(), strict=True):
            assert start == ends.get(stream, 0)
            ends[stream] = start + len(row) - 1
            assert row[0] == -100
            targets += row[1:]
    each = length // len(ends)
    wanted = [s * each + place for s in range(len(ends)) for place in range(1, each)]
    assert sorted(targets) == wanted


@settings(max_examples=40, deadline=None)
@given(groups=st.integers(1, 3), batch=st.integers(1, 4), epoch=st.integers(0, 3))
def test_training_reads_every_stream_in_order_from_a_place_that_changes(groups, batch, epoch):
    """A row goes on where it stopped, around the end of its stream; groups have streams of their own."""
    segments = Segments(np.arange(300, dtype=np.int32), 5)
    sampler = StreamBatches(segments, batch, groups=groups, seed=3)
    sampler.set_epoch(epoch)
    rows = StreamRows(segments.tokens, sampler)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    each = 300 // (batch * groups)
    last: dict[tuple[int, int], int] = {}
    for number, names in enumerate(batches):
        for place, name in enumerate(names):
            window = rows[name]["input_ids"].tolist()
            stream = (number % groups) * batch + place
            assert all(stream * each <= token < (stream + 1) * each for token in window)
            assert all((b - a) % each == 1 % each for a, b in itertools.pairwise(window))
            assert last.get((number % groups, place), window[0]) == window[0]
            last[(number % groups, place)] = window[-1]


def test_epochs_begin_elsewhere_and_repeat_for_the_same_seed():
    """A random shift for every stream and epoch."""
    segments = Segments(np.arange(400, dtype=np.int32), 5)
    sampler = StreamBatches(segments, 4, seed=1)
    first = list(sampler)
    assert first == list(sampler)
    sampler.set_epoch(1)
    assert [row[1] for row in first[0]] != [row[1] for row in next(iter(sampler))]


def test_a_sample_is_the_beginning_and_a_half_stays_a_text():
    """Nothing is torn apart that follows one another."""
    examples = examples_of(101, 5)
    assert len(examples) == 20
    begun = list(examples.sample(4, seed=7).batches(1))
    assert [batch["_place"][0][1] for batch in begun] == [0, 5, 10, 15]
    half = list(examples.subset(range(10, 20)).batches(1))
    assert [int(batch["labels"][0, 1]) for batch in half] == [51, 56, 61, 66, 71, 76, 81, 86, 91, 96]
    apart = examples.subset([3, 9])
    assert len(apart) == 2
