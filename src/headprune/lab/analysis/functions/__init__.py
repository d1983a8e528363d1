"""What heads do: positional, syntactic and rare-token heads (Voita et al. 2019, section 5)."""

from headprune.lab.analysis.functions.kinds import Findings, Thresholds, find_functions
from headprune.lab.analysis.functions.sentences import Sentence, parsed_sentences, read_sentences

__all__ = ["Findings", "Sentence", "Thresholds", "find_functions", "parsed_sentences", "read_sentences"]
