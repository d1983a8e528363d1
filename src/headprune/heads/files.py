"""Reading and writing the JSON of values: a kind, a schema version, and clear errors."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headprune.errors import FileFormatError

SCHEMA = 1


def dump(kind: str, content: Mapping[str, Any]) -> str:
    return json.dumps({"kind": f"headprune.{kind}", "schema": SCHEMA, **content}, indent=1, allow_nan=False)


DEEPEST = 100  # lists and tables inside one another


def loads(text: str) -> Any:
    """JSON from a file that anybody may have touched: a ValueError for what is none, or is nested without end."""
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if text.count("[") + text.count("{") > DEEPEST:
        level = [content]
        for _ in range(DEEPEST):
            inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
            level = [value for values in inner for value in values]
        if level:
            raise ValueError(f"nested more than {DEEPEST} deep")
    return content


def load(kind: str, text: str) -> dict[str, Any]:
    """The content of a JSON text that `dump` wrote."""
    try:
        content = loads(text)
    except (ValueError, TypeError) as error:
        raise FileFormatError(f"Not valid JSON ({error}). Expected a headprune.{kind} file.") from error
    if not isinstance(content, dict) or content.get("kind") != f"headprune.{kind}":
        found = content.get("kind") if isinstance(content, dict) else type(content).__name__
        raise FileFormatError(f"Found {found!r}, expected a headprune.{kind} file.")
    if content.get("schema") != SCHEMA:
        raise FileFormatError(
            f"This headprune.{kind} file has schema {content.get('schema')!r}; this headprune reads schema {SCHEMA}. "
            "Write the file again, or update headprune."
        )
    return content


def _umask() -> int:
    found = os.umask(0o022)
    os.umask(found)
    return found


_UMASK = _umask()  # asked once, while there is one thread: asking sets it


def writable(text: str) -> str:
    """Half a surrogate pair may come from the JSON of a file and is no text: shown as it was written there."""
    return text.encode("utf-8", "backslashreplace").decode()


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a whole file or leave the old one: never half a file under the final name."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_UMASK)  # as any new file: a temporary one is its owner's alone
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target


def head_lists(value: object, what: str) -> dict[str, list[int]]:
    """A checked `{site id: [whole numbers]}`."""
    if not isinstance(value, Mapping):
        raise FileFormatError(f"{what}: found {type(value).__name__}, expected a table of site id to list of heads.")
    lists: dict[str, list[int]] = {}
    for site, heads in value.items():
        if not isinstance(heads, list | tuple) or not all(type(h) is int and h >= 0 for h in heads):
            raise FileFormatError(f"{what}: '{site}' has {heads!r}, expected a list of head indices counted from 0.")
        lists[str(site)] = list(heads)
    return lists


def counts(value: object, what: str) -> dict[str, int]:
    """A checked `{site id: number of heads}`."""
    if not isinstance(value, Mapping) or not all(type(n) is int and n >= 0 for n in value.values()):
        raise FileFormatError(f"{what}: expected a table of site id to number of heads, found {value!r}.")
    return {str(site): n for site, n in value.items()}
