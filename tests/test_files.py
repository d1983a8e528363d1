"""Files are written whole, and read or refused in words."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headprune.errors import HeadpruneError
from headprune.files import write_text
from headprune.heads import HeadMap, HeadMask, HeadScores

BAD_FILES = [
    "",
    "not json",
    "[]",
    "{}",
    '{"kind": "headprune.mask", "schema": 99, "original": {}, "kept": {}}',
    '{"kind": "headprune.mask", "schema": 1, "original": {"encoder.0": 2}, "kept": {"encoder.0": [5]}}',
    '{"kind": "headprune.mask", "schema": 1, "original": {"encoder.0": 2}, "kept": {"encoder.0": ["a"]}}',
    '{"kind": "headprune.mask", "schema": 1, "original": {"encoder.0": 2}, "kept": {}}',
    '{"kind": "headprune.mask", "schema": 1, "original": 3, "kept": {}}',
    "[" * 100_000,
]


@pytest.mark.parametrize("text", BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_bad_file_gets_one_of_our_errors(text):
    """Whatever is in it."""
    for kind in (HeadMask, HeadMap, HeadScores):
        with pytest.raises(HeadpruneError):
            kind.from_json(text)


@given(
    st.recursive(
        st.none() | st.integers() | st.text() | st.floats(allow_nan=False),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(
                    ["sites", "skipped", "kept", "original", "sums", "squares", "counts", "options", "encoder.0"]
                ),
                x,
            )
        ),
    )
)
def test_no_json_at_all_breaks_the_readers(content):
    """Random content under the right kind: a value or one of our errors."""
    for name, kind in (("mask", HeadMask), ("heads", HeadMap), ("scores", HeadScores)):
        body = content if isinstance(content, dict) else {"sites": content, "kept": content, "sums": content}
        text = json.dumps({"kind": f"headprune.{name}", "schema": 1, **body})
        try:
            value = kind.from_json(text)
        except HeadpruneError:
            continue
        assert kind.from_json(value.to_json()) == value


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    """A failing write leaves the old file and no litter."""
    target = tmp_path / "mask.json"
    write_text(target, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(target, "\ud800")
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["mask.json"]
