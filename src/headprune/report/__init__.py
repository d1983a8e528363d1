"""Stored results as one page: `gather` what a folder holds, then `html_page` or `markdown_page`."""

from headprune.report.gathering import Report, gather
from headprune.report.html import html_page
from headprune.report.markdown import markdown_page

__all__ = ["Report", "gather", "html_page", "markdown_page"]
