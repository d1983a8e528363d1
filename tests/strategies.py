"""Hypothesis strategies for the value types."""

from __future__ import annotations

from hypothesis import strategies as st

from headprune.heads import HeadMap, HeadMask, HeadScores, Site


def site(
    component: str, layer: int, heads: int, kv_heads: int | None = None, kept: tuple[int, ...] | None = None
) -> Site:
    """A site as `find_heads` would make it."""
    kv_heads = kv_heads or heads
    kept = tuple(range(heads)) if kept is None else kept
    size = heads // kv_heads
    groups = [tuple(h for h in range(g * size, (g + 1) * size) if h in kept) for g in range(kv_heads)]
    groups = [group for group in groups if group]
    return Site(
        id=f"{component}.{layer}",
        component=component,
        layer=layer,
        layers=(layer,),
        num_heads=len(kept),
        num_kv_heads=len(groups),
        head_dim=8,
        path=f"{component}.layers.{layer}.attn",
        output=f"{component}.layers.{layer}.attn.o",
        original_num_heads=heads,
        kept=kept,
        groups=tuple(groups),
    )


TWO = HeadMap((site("encoder", 0, 4), site("encoder", 1, 4)), model_type="toy")


@st.composite
def head_maps(draw: st.DrawFn, pruned: bool = False) -> HeadMap:
    components = draw(st.lists(st.sampled_from(["encoder", "decoder", "cross"]), unique=True, min_size=1))
    sites = []
    for component in components:
        for layer in range(draw(st.integers(1, 4))):
            heads = draw(st.integers(1, 6))
            kept = tuple(sorted(draw(st.sets(st.integers(0, heads - 1))))) if pruned else None
            sites.append(site(component, layer, heads, kept=kept))
    return HeadMap(tuple(sites), model_type="toy")


@st.composite
def masks(draw: st.DrawFn, heads: HeadMap) -> HeadMask:
    kept = {s.id: draw(st.sets(st.sampled_from(s.kept))) if s.kept else set() for s in heads}
    return HeadMask.from_dict(heads, kept)


@st.composite
def head_scores(draw: st.DrawFn, heads: HeadMap, count: int = 3) -> HeadScores:
    number = st.floats(-1e3, 1e3, allow_nan=False)
    sums, squares = {}, {}
    for s in heads:
        values = [draw(st.lists(number, min_size=count, max_size=count)) for _ in range(s.original_num_heads)]
        sums[s.id] = tuple(sum(v) if h in s.kept else None for h, v in enumerate(values))
        squares[s.id] = tuple(sum(x * x for x in v) if h in s.kept else None for h, v in enumerate(values))
    return HeadScores(method="toy", sums=sums, squares=squares, counts=dict.fromkeys(sums, float(count)))
