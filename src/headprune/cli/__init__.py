"""The command line. One file a command; torch and transformers are imported when a command runs, not before."""

from headprune.cli.app import main

__all__ = ["main"]
