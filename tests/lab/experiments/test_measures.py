"""Measurements and made data that no command makes."""

from __future__ import annotations

from headprune.lab.experiments.work import Context, works


def test_noisy_pairs_are_the_same_sentences_written_carelessly(tmp_path):
    """Source in lower case with typing errors, target as it was, the same on every machine."""
    (tmp_path / "test.en").write_text("Two young men, smiling, are standing outside.\nA dog runs.\n" * 20)
    (tmp_path / "test.de").write_text("Zwei junge Männer stehen draußen.\nEin Hund rennt.\n" * 20)
    options = {"pairs": "{pairs}", "languages": "en-de", "split": "test", "examples": 30}

    def made(name):
        context = Context({"options": options}, 1, tmp_path / name, {}, {"pairs": tmp_path})
        assert works["noisy-pairs"].run(context) == {"sentences": 30}
        return [(tmp_path / name / "out" / f"noisy.{side}").read_text().splitlines() for side in ("en", "de")]

    (sources, targets), again = made("one"), made("two")
    assert [sources, targets] == again
    assert targets[:2] == ["Zwei junge Männer stehen draußen.", "Ein Hund rennt."]
    clean = "two young men smiling are standing outside"
    longer = sources[::2]
    assert all(text == text.lower() and "," not in text for text in sources)
    assert any(text != clean for text in longer)
    assert all(len(text.split()) == 7 for text in longer)
