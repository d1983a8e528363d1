"""Stored results as one page: `gather` what a folder holds, then `html_page` or `markdown_page`."""

from headprune.lab.report.gather import Report, gather
from headprune.lab.report.html import html_page
from headprune.lab.report.markdown import markdown_page

__all__ = ["Report", "gather", "html_page", "markdown_page"]
