"""Text in contiguous streams: one long row of tokens cut into several that are read side by side.

A batch is the same segment of all streams; the next batch is the segment after it, so that a model's memory of a row is
the text just before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from headprune.errors import DataError
from headprune.scoring.context import IGNORED, ROW
from headprune.tasks.task import Examples, Features
from headprune.tasks.text.symbols import Tokens

PLACE = "_place"  # stream and first position of a segment: tells whether it follows another


@dataclass(frozen=True)
class Segments(Sequence[Features]):
    """A text in segments of `length` targets, one after another; the last may be shorter.

    A segment has one token more than it has targets: its last token is only a target, and the first of the next.
    """

    tokens: Tokens
    length: int
    streams: int = 1

    @property
    def stream_length(self) -> int:
        """What does not fill all streams evenly is left out."""
        return len(self.tokens) // self.streams

    @property
    def in_stream(self) -> int:
        return math.ceil((self.stream_length - 1) / self.length)

    def __len__(self) -> int:
        return self.streams * self.in_stream

    def __getitem__(self, row: Any) -> Any:
        """Row by row through the streams: segment t of stream s is row t * streams + s."""
        if not 0 <= row < len(self):
            raise IndexError(row)
        segment, stream = divmod(row, self.streams)
        start = stream * self.stream_length
        return segment_at(self.tokens[start : start + self.stream_length], stream, segment * self.length, self.length)


@dataclass(frozen=True)
class StreamExamples(Examples):
    """Segments in the order of the text. Batches keep that order."""

    @property
    def segments(self) -> Segments:
        assert isinstance(self.features, Segments), "made by StreamTask"
        return self.features

    def sample(self, count: int, seed: int) -> Examples:
        """The beginning: a random choice would tear the text apart."""
        return self.subset(range(min(count, len(self))))

    def subset(self, rows: Sequence[int]) -> Examples:
        """Segments that follow one another stay a text; others are taken each by itself, without memory."""
        segments = self.segments
        if segments.streams == 1 and len(rows) and list(rows) == list(range(rows[0], rows[-1] + 1)):
            start, end = rows[0] * segments.length, (rows[-1] + 1) * segments.length + 1
            return StreamExamples(Segments(segments.tokens[start:end], segments.length), self.collate)
        return Examples([self.features[row] for row in rows], self.collate)

    def in_streams(self, streams: int) -> StreamExamples:
        """The same text for another number of streams."""
        segments = self.segments
        most = max(1, (len(segments.tokens)) // (segments.length + 1))
        return StreamExamples(Segments(segments.tokens, segments.length, min(streams, most)), self.collate)

    def batches(self, batch_size: int = 32) -> Iterator[dict[str, Any]]:
        """The same segment of `batch_size` streams, then the next; fewer streams if the text is short."""
        placed = self.in_streams(batch_size)
        for start in range(0, len(placed), placed.segments.streams):
            rows = range(start, start + placed.segments.streams)
            yield {**self.collate([placed.features[row] for row in rows]), ROW: torch.tensor(list(rows))}

    def batch_count(self, batch_size: int, accumulate: int) -> int:
        """Every accumulated batch has streams of its own."""
        return len(StreamBatches(self.segments, batch_size, groups=accumulate))


def segment_at(stream: Tokens, number: int, start: int, length: int) -> Features:
    window = stream[start : start + length + 1].astype(np.int64)
    labels = window.copy()
    labels[0] = IGNORED  # a target of the segment before
    return {"input_ids": window, "labels": labels, PLACE: (number, start)}


class StreamBatches:
    """A batch sampler for training: every epoch each stream begins at another place and runs around its end.

    With `groups`, streams are dealt to so many batches a step (accumulated, or of several processes): batch i belongs
    to group i modulo `groups`, so that each group sees its own streams in order.
    """

    def __init__(self, segments: Segments, batch_size: int, *, groups: int = 1, seed: int = 0) -> None:
        self.batch_size, self.groups, self.seed, self.epoch = batch_size, groups, seed, 0
        self.epoch_now: Callable[[], int] | None = None  # surer than `set_epoch`, which wrappers may not pass on
        self.length, self.streams = segments.length, batch_size * groups
        self.stream_length = len(segments.tokens) // self.streams
        self.steps = (self.stream_length - 1) // self.length
        if self.steps < 1:
            raise DataError(
                f"The training text has {len(segments.tokens)} tokens: too few for {self.streams} streams with a "
                f"segment of {self.length} each, which need {self.streams * (self.length + 1)}. Give more text, fewer "
                "streams (--batch-size) or shorter segments (--max-length)."
            )

    @property
    def sampler(self) -> StreamBatches:
        """accelerate looks for `set_epoch` here when it deals batches out to processes."""
        return self

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.steps * self.groups

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        """Stream, where the text begins this epoch, place in it."""
        epoch = self.epoch if self.epoch_now is None else self.epoch_now()
        shifts = np.random.default_rng((self.seed, epoch)).integers(self.stream_length, size=self.streams).tolist()
        for step in range(self.steps):
            for group in range(self.groups):
                streams = range(group * self.batch_size, (group + 1) * self.batch_size)
                yield [(stream, shifts[stream], step * self.length) for stream in streams]


class StreamRows(Dataset[Mapping[str, Any]]):
    """What a `StreamBatches` names."""

    def __init__(self, tokens: Tokens, sampler: StreamBatches) -> None:
        self.tokens, self.stream_length, self.length = tokens, sampler.stream_length, sampler.length

    def __len__(self) -> int:
        return len(self.tokens) // self.length

    def __getitem__(self, row: tuple[int, int, int]) -> Features:
        stream, shift, place = row
        start = stream * self.stream_length
        around = (shift + place + np.arange(self.length + 1)) % self.stream_length
        return segment_at(self.tokens[start + around], stream, 0, self.length)
