"""Models that do not fit: worked through on disk, with the weights of one layer in memory."""

from headprune.on_disk.streamed import Streamed, stream

__all__ = ["Streamed", "stream"]
