"""A page to play with a model: remove heads, and watch what it answers. `record` what a page shows, `page` shows it."""

from headprune.lab.playground.content import Content, Example, Point, Sentence, SiteRow, Way, Worth
from headprune.lab.playground.page import page

__all__ = ["Content", "Example", "Point", "Sentence", "SiteRow", "Way", "Worth", "page"]
