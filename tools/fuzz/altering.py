"""Valid files with some parts replaced by odd ones, so that inputs get past the parser; as Hypothesis strategies.

Hypothesis draws one source of random numbers for an input, and everything else is drawn from that: a draw of
Hypothesis's own for every choice would cost more than most loaders do.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import strategies as st


@dataclass(frozen=True)
class Raw:
    """A piece of JSON that `json.dumps` would not write."""

    text: str


LONG = "a" * 5000
ODD_JSON = [Raw(text) for text in (
    "NaN", "Infinity", "-Infinity", "1e400", "-1e308", "1e308", "1e160", "1e15", "1e-320", "-0.0", "0", "1", "-1", "2",
    "0.5", "1.0", "9" * 5000, "-" + "9" * 400, "9" * 400, "1000000000000", "2147483648", "18446744073709551616", "true",
    "false", "null", '""', '"0"', '"-1"', '"9999999999999"', f'"{"9" * 5000}"', f'"encoder.0:{"9" * 5000}"',
    '"encoder.0:999999999999"', f'"encoder.{"9" * 5000}"', '"nan"', '"../../x"', '"/etc/passwd"', '"a/../../../x"',
    '"\\u0000"', '"\\ud800"', '"\\u2028"', f'"{LONG}"', '"__class__"', '"é漢字🙂"', '"²"', '"{a}{b}"', "[]", "{}",
    "[[]]", "[null]", '[1, "a", null, {}]', "[[0, 1000000000]]", "[0, 0, 0]", "[-1]", '{"": 1}', '{"a": {"b": []}}',
    "[" * 300 + "]" * 300, '{"a":' * 300 + "0" + "}" * 300, "[" * 3000 + "]" * 3000,
)]  # fmt: skip
ODD_WORDS = [
    "", "0", "1", "-1", "1e400", "nan", "inf", "9" * 5000, "0x" + "f" * 6000, "1_000", "1000000000000", "true", '"',
    "'", "\x00", "\ufeff", "\u2028", "é漢字🙂", "²", "../../x", "/etc/passwd", LONG, "[]", "{}", "[" * 2000, "{a}",
    "{seed}", "\t\t\t", "\r", "\n\n", '"""', "#", "%", "=", ":", ",", "/", "+", "1979-05-27T07:32:00Z", "'a'", '"b"',
    "0.1", "[1, 2]", "{ a = 1 }", "<eos>", "<unk>", "_", "1-2", "1.1",
]  # fmt: skip
KEYS = ["", "a", "../../x", "\ud800", "9" * 5000, "encoder.0", "id", "kept", "schema", LONG]
LETTERS = "ab0 .:/-_\t\"'\\{}[]<&é漢🙂\u202e\x7f"
TOKENS = re.compile(r"[\w.+-]+|\s|.", re.DOTALL)


def odd_value(draw: Random) -> Any:
    if draw.random() < 0.7:
        return draw.choice(ODD_JSON)
    return draw.choice([draw.randint(-3, 20), draw.uniform(-2, 2), odd_text(draw), True, None])


def odd_text(draw: Random) -> str:
    return "".join(draw.choices(LETTERS, k=draw.randint(0, 5)))


def dumped(value: Any) -> str:
    """JSON of a tree with `Raw` pieces in it; a table is a list of pairs, so that keys may come twice."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, Pairs):
        return "{" + ", ".join(f"{json.dumps(str(name))}: {dumped(inner)}" for name, inner in value.items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dumped, value)) + "]"
    return json.dumps(value)


@dataclass
class Pairs:
    """A table, in which a name may come twice."""

    items: list[list[Any]]


def tree(value: Any) -> Any:
    if isinstance(value, dict):
        return Pairs([[name, tree(inner)] for name, inner in value.items()])
    return [tree(inner) for inner in value] if isinstance(value, list) else value


def places(value: Any) -> list[tuple[list[Any], int]]:
    """Every place in which a value stands: the list that holds it and where in it."""
    found: list[tuple[list[Any], int]] = []
    if isinstance(value, Pairs):
        for pair in value.items:
            found += [(pair, 1), *places(pair[1])]
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            found += [(value, number), *places(inner)]
    return found


def lists(value: Any) -> list[list[Any]]:
    """Every list of values or of pairs."""
    if isinstance(value, Pairs):
        return [value.items, *(one for pair in value.items for one in lists(pair[1]))]
    return [value, *(one for inner in value for one in lists(inner))] if isinstance(value, list) else []


def alter_tree(draw: Random, whole: list[Any]) -> None:
    """One change somewhere in `whole`, a list around the document."""
    how = draw.randint(0, 9)
    if how <= 5:  # most often a value is replaced
        found = places(whole)
        holder, place = found[draw.randint(0, len(found) - 1)]
        if how == 5:
            other, there = found[draw.randint(0, len(found) - 1)]
            holder[place] = _copied(other[there])
        else:
            holder[place] = odd_value(draw)
        return
    chosen = [one for one in lists(whole[0]) if one]
    if not chosen:
        return
    rows = chosen[draw.randint(0, len(chosen) - 1)]
    place = draw.randint(0, len(rows) - 1)
    if how == 6:
        del rows[place]
    elif how == 7:
        rows.append(_copied(rows[place]))  # a list with one more, or a name that comes twice
    elif how == 8 and isinstance(rows[place], list) and len(rows[place]) == 2 and isinstance(rows[place][0], str):
        rows[place] = [draw.choice(KEYS), rows[place][1]]
    else:
        rows.reverse()


def _copied(value: Any) -> Any:
    """Not `deepcopy`: trees may be deep, and a tree must not hold itself."""
    if isinstance(value, Pairs):
        return Pairs([[name, _copied(inner)] for name, inner in value.items])
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def alter_bytes(draw: Random, content: bytes) -> bytes:
    """A file that was cut off, or of which some bytes were changed."""
    how = draw.randint(0, 4)
    place = draw.randint(0, len(content))
    if how == 0:
        return content[:place]
    if how == 1:
        return content[:place] + draw.randbytes(draw.randint(1, 8)) + content[place:]
    if how == 2:
        return content[:place] + draw.randbytes(draw.randint(1, 8)) + content[place + 4 :]
    if how == 3:
        return content[:place] + content[place + draw.randint(1, 40) :]
    return draw.randbytes(draw.randint(0, 80))


def json_files(draw: Random, seeds: Sequence[bytes], whole_only: bool = False) -> bytes:
    """`whole_only`: always JSON, for what another library reads before us."""
    content = draw.choice(seeds)
    broken = not whole_only and draw.randint(0, 7) == 0
    lines = content.split(b"\n") if _is_lines(content) else [content]
    place = draw.randint(0, len(lines) - 1) if len(lines) > 1 else 0
    try:
        root = [tree(json.loads(lines[place]))]
    except (ValueError, RecursionError):  # a seed that is broken on purpose
        return alter_bytes(draw, content) if not whole_only else content
    for _ in range(draw.randint(0, 3)):
        alter_tree(draw, root)
    lines[place] = dumped(root[0]).encode("utf-8", "surrogatepass")
    made = b"\n".join(lines)
    return alter_bytes(draw, made) if broken else made


def _is_lines(content: bytes) -> bool:
    """JSON lines rather than one document on several lines."""
    first = content.split(b"\n", 1)[0].strip()
    return first.startswith(b"{") and first.endswith(b"}") and b"\n" in content.strip()


def text_files(draw: Random, seeds: Sequence[bytes]) -> bytes:
    """Words replaced by odd ones, lines that are gone, doubled or swapped; then perhaps broken bytes."""
    content = draw.choice(seeds)
    text = content.decode("utf-8", "surrogateescape")
    for _ in range(draw.randint(0, 3)):
        if draw.randint(0, 3):
            tokens = TOKENS.findall(text) or [""]
            place = draw.randint(0, len(tokens) - 1)
            tokens[place] = draw.choice(ODD_WORDS) if draw.random() < 0.8 else odd_text(draw)
            text = "".join(tokens)
        else:
            lines = text.split("\n")
            place, other = draw.randint(0, len(lines) - 1), draw.randint(0, len(lines) - 1)
            how = draw.randint(0, 2)
            if how == 0:
                del lines[place]
            elif how == 1:
                lines.insert(other, lines[place])
            else:
                lines[place], lines[other] = lines[other], lines[place]
            text = "\n".join(lines)
    made = text.encode("utf-8", "surrogateescape" if "\udc80" <= max(text, default="") <= "\udcff" else "replace")
    return alter_bytes(draw, made) if draw.randint(0, 5) == 0 else made


def byte_files(draw: Random, seeds: Sequence[bytes]) -> bytes:
    made = draw.choice(seeds)
    for _ in range(draw.randint(0, 3)):
        made = alter_bytes(draw, made)
    return made


def tensor_files(draw: Random, seeds: Sequence[bytes]) -> bytes:
    """safetensors: eight bytes with the length of a JSON header, the header, the numbers."""
    content = draw.choice(seeds)
    if draw.randint(0, 2) == 0 or len(content) < 8:
        return alter_bytes(draw, content)
    (size,) = struct.unpack("<Q", content[:8])
    try:
        root = [tree(json.loads(content[8 : 8 + size]))]
    except ValueError:
        return alter_bytes(draw, content)
    for _ in range(draw.randint(1, 3)):
        alter_tree(draw, root)
    header = dumped(root[0]).encode("utf-8", "surrogatepass")
    told = len(header) if draw.randint(0, 5) else draw.randint(0, 2**64 - 1)
    return struct.pack("<Q", told) + header + content[8 + size :]


ALTERING: dict[str, Callable[[Random, Sequence[bytes]], bytes]] = {
    "json": json_files,
    "tree": lambda draw, seeds: json_files(draw, seeds, whole_only=True),
    "text": text_files,
    "bytes": byte_files,
    "tensors": tensor_files,
}


def altered(kind: str, seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Files of a kind, each made from one of the seeds."""
    return st.randoms(use_true_random=True).map(lambda draw: ALTERING[kind](draw, seeds))
