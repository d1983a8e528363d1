"""The tables of a report: what both the page and its Markdown show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headprune.lab.report.gather import PresetResult, Report
from headprune.lab.report.lines import Chart, Point
from headprune.lab.report.subjects import Cells, Subject, component_of, layer_of, left_by_site
from headprune.tasks.metrics import metric_called

SHARES = (0.25, 0.5, 0.75)  # of heads pruned, where a table needs a few
MOST_DESCRIBED = 20  # models with tables of their own: a report of hundreds would be a book
SIGNIFICANT = 0.01  # of one head among many, as in Michel et al.
COMPARED = 0.05  # of methods


@dataclass(frozen=True)
class Table:
    """A caption, the names of columns, and rows of text; the first cell of a row names it."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __bool__(self) -> bool:
        return bool(self.rows)


def number(value: float | None) -> str:
    """Four significant digits, without a tail of zeros that were not measured."""
    return "–" if value is None else f"{value:.4g}"


def values_table(told: PresetResult) -> Table:
    rows = []
    for value in told.values:
        here = value.problem or "not done" if value.mean is None else number(value.mean)
        here += f" ± {value.half_width:.2g}" if value.half_width is not None else ""
        paper = "–" if value.paper is None else value.paper if isinstance(value.paper, str) else number(value.paper)
        spread = "–" if value.spread is None else f"{value.spread:.2%}"
        rows.append((value.name, paper, here, str(len(value.found)), spread))
    columns = ("what", "paper", "here (± 95 % t interval over seeds)", "seeds", "standard deviation / mean")
    return Table(f"{told.run.preset.line}: the paper and here", columns, tuple(rows))


def claims_table(told: PresetResult) -> Table:
    rows = []
    for claim in told.claims:
        rows.append((claim.text, claim.expected, claim.paper, claim.here, claim.told()))
    columns = ("statement", "tested as", "paper", "here (95 % interval over seeds)", "verdict")
    return Table(f"{told.run.preset.line}: what holds", columns, tuple(rows))


def chart_table(chart: Chart) -> Table:
    places = sorted({(point.share, point.left) for line in chart.lines for point in line.points})
    rows = tuple(
        (f"{share:.1%}", str(left), *(_cell(line.at(left, share)) for line in chart.lines)) for share, left in places
    )
    told = chart.metric if metric_called(chart.metric).larger_is_better else f"{chart.metric} (smaller is better)"
    columns = (f"{pruned(chart)} pruned", "heads left", *(line.name for line in chart.lines))
    return Table(f"{chart.title}: {told}", columns, rows)


def pruned(chart: Chart) -> str:
    """What a chart's shares are shares of."""
    return "heads of the component" if chart.of_component else "heads"


def _cell(point: Point | None) -> str:
    if point is None:
        return "–"
    low, high = point.band
    return number(point.mean) if low == high else f"{number(point.mean)} ({number(low)} to {number(high)})"


def comparison_table(chart: Chart) -> Table:
    rows = []
    for one in chart.compared():
        interval, verdict = "–", f"{one.seeds} seeds in common: no claim"
        if one.interval is not None and one.p is not None:
            interval = f"{one.interval[0]:+.4g} to {one.interval[1]:+.4g}"
            verdict = f"{'more than chance' if one.p < COMPARED else 'may be chance'} (p {one.p:.3f})"
        rows.append((f"{one.share:.1%}", f"{one.name} against {one.other}", f"{one.gap:+.4g}", interval, verdict))
    columns = (
        f"{pruned(chart)} pruned", "methods", f"difference in {chart.metric}", "95 % interval over seeds",
        "paired t-test over seeds, after Holm",
    )  # fmt: skip
    return Table(f"{chart.title}: methods at equal heads", columns, tuple(rows))


def components_table(subject: Subject) -> Table:
    """Heads left of each component: in each order at some shares, and where heads were removed."""
    names = list(dict.fromkeys(component_of(site) for site, _ in subject.sorted_sites()))
    return _left(subject, names, component_of, "by component")


def layers_table(subject: Subject) -> Table:
    """Heads left of each layer, all components together."""
    layers = sorted({layer_of(site) for site in subject.sites})
    return _left(subject, [f"layer {n}" for n in layers], lambda site: f"layer {layer_of(site)}", "by layer")


def _left(subject: Subject, names: Sequence[str], group: Callable[[str], str], told: str) -> Table:
    def row(title: str, left: Iterable[tuple[str, int]]) -> tuple[str, ...]:
        counts = dict.fromkeys(names, 0)
        for site, count in left:
            counts[group(site)] += count
        return (title, *(str(counts[name]) for name in names), str(sum(counts.values())))

    rows = [row("all heads", subject.sites.items())]
    for ranking in subject.rankings:
        rows += [
            row(f"{ranking.name}, {share:.0%} pruned", left_by_site(subject, ranking.order, share).items())
            for share in SHARES
        ]
    rows += [
        row(title, ((site, len(kept.get(site, range(count)))) for site, count in subject.sites.items()))
        for title, kept in subject.kept.items()
    ]
    return Table(f"{subject.name}: heads left {told}", ("", *names, "all"), tuple(rows))


def effects_table(subject: Subject) -> Table:
    rows = []
    for effect in subject.effects:
        for component in dict.fromkeys(component_of(site) for site in effect.change):
            sites = [site for site in effect.change if component_of(site) == component]
            changes = [change for site in sites for change in effect.change[site] if change is not None]
            if not changes:
                continue
            beyond = sum(p is not None and p < SIGNIFICANT for site in sites for p in effect.p[site])
            rows.append(
                (effect.name, component, str(len(changes)), f"{min(changes):+.4g}", f"{max(changes):+.4g}", str(beyond))
            )
    columns = ("change of", "component", "heads", "lowest", "highest", f"p < {SIGNIFICANT} after Holm")
    return Table(f"{subject.name}: one head at a time", columns, tuple(rows))


def heads_table(subject: Subject) -> Table:
    """Every head with all that is known of it: what the map shows, as a table."""
    columns = ["head", *(ranking.name for ranking in subject.rankings)]
    columns += [f"change of {effect.name} (p after Holm)" for effect in subject.effects]
    columns += ["functions"] if subject.functions is not None else []
    columns += list(subject.kept)
    rows = []
    for site, count in subject.sorted_sites():
        for head in range(count):
            row = [f"{site}:{head}"]
            for ranking in subject.rankings:
                value, error = _at(ranking.values, site, head), _at(ranking.errors, site, head)
                row.append(number(value) + (f" ± {error:.2g}" if error is not None else ""))
            for effect in subject.effects:
                change, p = _at(effect.change, site, head), _at(effect.p, site, head)
                row.append("–" if change is None else f"{change:+.4g} ({p:.3f})")
            if subject.functions is not None:
                row.append(", ".join(_at(subject.functions, site, head) or ()) or "–")
            row += ["kept" if head in kept.get(site, range(count)) else "pruned" for kept in subject.kept.values()]
            rows.append(tuple(row))
    return Table(f"{subject.name}: every head", tuple(columns), tuple(rows))


def _at(cells: Cells, site: str, head: int) -> Any:
    return cells[site][head] if site in cells and head < len(cells[site]) else None


def sizes_table(report: Report) -> Table:
    rows = [
        (
            size.name,
            f"{size.heads[0]} → {size.heads[1]}",
            f"{size.parameters[0] / 1e6:.3g} M → {size.parameters[1] / 1e6:.3g} M",
            f"{size.macs[1] / size.macs[0]:.1%}" if size.macs[0] else "–",
        )
        for size in report.sizes
    ]
    return Table("Size", ("model", "heads", "parameters", "MACs left"), tuple(rows))


def speeds_table(report: Report) -> Table:
    rows = [
        (
            speed.name,
            f"{speed.speedup:.3f} ({speed.quartiles[0]:.3f} to {speed.quartiles[1]:.3f})",
            f"{speed.control:.3f}",
        )
        for speed in report.speeds
    ]
    columns = ("measurement", "times as fast (quartiles)", "control: the same model twice")
    return Table("Measured speed", columns, tuple(rows))


def repeat_table(report: Report) -> Table:
    rows = dict.fromkeys((told.run.preset.name, command) for told in report.told for command in told.commands())
    return Table("Commands", ("preset", "command"), tuple(rows))


def inputs_table(report: Report) -> Table:
    found = {
        (name, told.run.preset.scale(told.run.scale).inputs.get(name, ""), known)
        for told in report.told
        for name, known in told.run.inputs.items()
    }
    return Table("Inputs", ("name", "what it is", "fingerprint of its content"), tuple(sorted(found)))


def versions_table(report: Report) -> Table:
    return Table("Versions and machines", ("what", "value"), tuple(report.versions()))


def trials_table(report: Report) -> Table:
    rows = [
        (record.trial.label or record.trial.work, record.status, f"{record.seconds:.1f}", record.trial.key())
        for record in report.records
    ]
    return Table("Trials", ("trial", "status", "seconds", "key"), tuple(rows))


def problems_table(report: Report) -> Table:
    rows = [(one.trial, one.field, one.found[:300], one.expected) for one in report.problems]
    return Table("Stored, and not shown", ("trial", "field", "found", "expected"), tuple(rows))


def failures_table(report: Report) -> Table:
    rows = [(record.trial.label, record.reason[:300]) for record in report.failed]
    return Table("Failed", ("trial", "error"), tuple(rows))
