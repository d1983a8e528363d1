"""Files are written whole, and read or refused in words."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headprune.errors import HeadpruneError
from headprune.files import disk_trouble, write_text
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


FULL = """
import resource, signal, sys
import torch
from safetensors.torch import save_file
from headprune.cli.app import _message
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
def plainly(tensors, path):
    with open(path, "wb") as file:
        file.write(b"x" * 100_000)
for write in (torch.save, save_file, plainly):
    try:
        write({"a": torch.zeros(100_000)}, sys.argv[1])
    except Exception as error:
        print(_message(error).splitlines()[0])
"""


def test_a_full_disk_is_told_as_one_whoever_meets_it(tmp_path):
    """PyTorch and safetensors make errors of their own of it. (A limit on file size stands in for the disk.)"""
    words = [sys.executable, "-c", FULL, str(tmp_path / "file")]
    told = subprocess.run(words, capture_output=True, text=True, check=False).stdout.splitlines()
    assert len(told) == 3
    assert all(line.startswith("error: ") for line in told), told


def test_an_error_that_is_none_of_the_disk_stays_one_of_ours():
    """What says nothing of files is not blamed on them."""
    assert disk_trouble(ZeroDivisionError("by nothing")) is None
    assert disk_trouble(RuntimeError("shapes cannot be multiplied")) is None
    assert disk_trouble(PermissionError(13, "Permission denied", "/x")) == "[Errno 13] Permission denied: '/x'"
