"""Translation: parallel text, subwords, beam search, BLEU; and new models to train."""

from headprune.tasks.translation.task import TranslationTask

__all__ = ["TranslationTask"]
