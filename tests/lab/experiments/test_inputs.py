"""Inputs of a run are known by their contents."""

from __future__ import annotations

import pytest

import headprune as hp
from headprune.lab.experiments.inputs import fingerprint


def test_fingerprints_tell_contents_not_places(tmp_path):
    """The same files elsewhere are the same; a changed, renamed or added one is not; hidden ones do not count."""
    for name in ("a", "b", "c"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "x.txt").write_text("some text")
        (tmp_path / name / "large.bin").write_bytes(b"0" * 3_000_000)
    (tmp_path / "a" / ".hidden").write_text("x")
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "b")
    (tmp_path / "b" / "sub" / "x.txt").write_text("same size")
    (tmp_path / "c" / "large.bin").write_bytes(b"0" * 1_500_000 + b"1" + b"0" * 1_499_999)
    assert len({fingerprint(tmp_path / name) for name in ("a", "b", "c")}) == 3
    with pytest.raises(hp.HeadpruneError, match="does not exist"):
        fingerprint(tmp_path / "nowhere")
