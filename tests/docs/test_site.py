"""The documentation as a site: links lead somewhere, the nav has every page, nothing is fetched from elsewhere."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys

import pytest
import yaml

from headprune.lab.experiments.library import all_presets
from tests.places import DOCS, ROOT

PAGES = sorted(DOCS.rglob("*.md"))


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_code(text):
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def anchors(path):
    """What headings are called in links, as python-markdown calls them."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL), re.M)
    plain = (re.sub(r"[^\w\s-]", "", title.encode("ascii", "ignore").decode().lower()).strip() for title in titles)
    return {re.sub(r"[\s-]+", "-", title) for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_local_links_lead_somewhere(page):
    """To a page that is part of the site, and to a heading that it has."""
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", without_code(page.read_text())):
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.is_file(), target
        assert there.is_relative_to(DOCS), f"{target} is outside of docs/, so the site has no such page"
        assert not anchor or anchor in anchors(there), target


def test_every_page_is_in_the_nav_once():
    """And the nav names no page that is not there."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    nav = load(DOCS / "site_nav.py")
    named = nav.paths(nav.expanded(config["nav"]))
    assert sorted(named) == [page.relative_to(DOCS).as_posix() for page in PAGES]


def test_the_nav_takes_new_pages_by_itself():
    """A star stands for pages that are not named elsewhere."""
    nav = load(DOCS / "site_nav.py")
    found = nav.expanded([{"Papers": ["papers/voita.md", "papers/*.md"]}])
    others = [f"papers/{name}.md" for name in ("budhraja", "decisions", "michel", "shim", "verdicts")]
    assert found == [{"Papers": ["papers/voita.md", *others]}]


def test_the_pages_of_the_papers_are_those_of_the_presets():
    """`make docs` would change nothing, and every preset is on a page."""
    from headprune.lab.experiments.library import preset_names

    pages = load(DOCS / "papers_build.py").pages()
    for path, text in pages.items():
        assert path.read_text() == text, f"{path.name} is out of date: run make docs"
    for ending in ("md", "svg"):
        there = set((DOCS / "papers").rglob(f"*.{ending}"))
        assert there == {path for path in pages if path.suffix == f".{ending}"}
    every = "\n".join(pages.values())
    assert all(f"`headprune run {name}`" in every for name in preset_names())


def test_every_statement_is_on_the_page_of_verdicts():
    """With who says it, its verdict by the one rule, and the counts of all; nothing unfinished is told as a finding."""
    pages = load(DOCS / "papers_build.py").pages()
    page, counts = pages[DOCS / "papers" / "verdicts.md"], json.loads(pages[DOCS / "papers" / "verdicts.json"])
    assert counts["sentence"] in page
    rows = [line for line in page.splitlines() if line.startswith("| [") and "](" in line and line.count("|") == 8]
    statements = sum(len(preset.scale("small").claims) for preset in all_presets())
    assert len(rows) == counts["holds"] + counts["fails"] + counts["spread"] + counts["unfinished"] == statements
    unfinished = [line for line in rows if re.search(r"open: \d of 3 seeds", line)]
    assert len(unfinished) == counts["unfinished"]
    order = ["## Does not hold", "## Holds", "## Open: seeds", "## Open: fewer"]
    assert [page.index(title) for title in order] == sorted(page.index(title) for title in order)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as mkdocs builds it, warnings being errors."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    # Not with --quiet: warnings that are not told do not count for --strict.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", ROOT / "mkdocs.yml", "-d", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_refers_to_nothing_on_the_network(site):
    """Links may lead away; scripts, styles, fonts and pictures come with the site."""
    fetched = re.compile(
        r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//[^"' >]*|"""
        r"""<link\b(?![^>]*\brel=["']?canonical)[^>]*\bhref=["']?(?:https?:)?//[^"' >]*|"""
        r"""@import[^;]*(?:https?:)?//[^;]*|url\(["']?(?:https?:)?//[^)]*""",
        re.I,
    )
    pages = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert len(pages) > len(PAGES)
    for path in pages:
        text = path.read_text()
        assert fetched.findall(text) == [], path.relative_to(site)
        # The theme would fetch what draws these.
        assert 'class="mermaid"' not in text, path.relative_to(site)
    assert fetched.search('<script src="https://example.org/a.js">')
    assert fetched.search('<link href="//example.org/font.css" rel="stylesheet">')


def test_the_site_can_be_searched_without_a_network(site):
    """The index is in the site, with the text of every page."""
    index = (site / "search" / "search_index.json").read_text()
    for page in PAGES:
        place = page.relative_to(DOCS).with_suffix(".html").as_posix()
        assert f'"location":"{place}"' in index, place
    assert list(site.glob("assets/javascripts/workers/search.*.js"))


def test_the_site_has_pages_and_no_sources(site):
    """Scripts and stored figures are not part of it."""
    assert not [path for path in site.rglob("*") if path.suffix in (".py", ".sh", ".md")]
    assert not (site / "results" / "data").exists()
