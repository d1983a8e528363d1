"""A report as plain Markdown, for a model card or a repository."""

from __future__ import annotations

from collections.abc import Iterator

from headprune.files import markdown_text, writable
from headprune.lab.report import tables
from headprune.lab.report.gather import Report
from headprune.lab.report.lines import marked
from headprune.lab.report.tables import Table


def markdown_page(report: Report) -> str:
    return writable("\n\n".join(_parts(report)) + "\n")


def _parts(report: Report) -> Iterator[str]:
    yield f"# {markdown_text(report.title)}"
    yield " ".join(map(markdown_text, report.summary()))
    for told in report.told:
        preset = told.run.preset
        yield f"## {markdown_text(f'{preset.study}, {preset.line}: {preset.what}')}"
        note = told.run.preset.scale(told.run.scale).note
        yield f"Scale: {markdown_text(marked(told.run.scale, told.run.made_by))}. {markdown_text(note)}".rstrip()
        yield from _shown(tables.values_table(told), tables.claims_table(told))
    for chart in report.charts:
        yield f"## {markdown_text(chart.title)}"
        yield "Means; in brackets the 95 % t interval with three or more values, else lowest and highest."
        yield from _shown(tables.chart_table(chart), tables.comparison_table(chart))
    for subject in report.subjects[: tables.MOST_DESCRIBED]:
        found = [tables.effects_table(subject), tables.components_table(subject), tables.layers_table(subject)]
        if len(report.subjects) == 1:  # of several models, the page has every head: a card would be a book
            found.append(tables.heads_table(subject))
        if any(found):
            yield f"## Heads of {markdown_text(subject.name)}"
            yield from _shown(*found)
    if report.sizes or report.speeds:
        yield "## Size and speed"
        yield from _shown(tables.sizes_table(report), tables.speeds_table(report))
    yield "## How to repeat it"
    yield from _shown(
        tables.repeat_table(report), tables.inputs_table(report), tables.versions_table(report),
        tables.failures_table(report), tables.problems_table(report),
    )  # fmt: skip


def _shown(*found: Table) -> Iterator[str]:
    for table in found:
        if table:
            yield f"**{markdown_text(table.caption)}**"
            yield _table(table)


def _table(table: Table) -> str:
    lines = [table.columns, tuple("---" for _ in table.columns), *table.rows]
    return "\n".join(f"| {' | '.join(markdown_text(cell) for cell in line)} |" for line in lines)
