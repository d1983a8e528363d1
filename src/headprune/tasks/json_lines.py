"""Text as people have it who train chat models: a JSON object a line, with `text` or with chat `messages`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headprune.errors import DataError
from headprune.files import loads
from headprune.types import Processor


def is_json_lines(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(".jsonl")


def text_of_lines(content: str, path: Path, processor: Processor | None) -> str:
    """The texts one after another; chats as the tokenizer's template writes them."""
    found = "\n".join(_texts(content, path, processor))
    if not found.strip():
        raise DataError(f'\'{path}\' has no text: expected lines like {{"text": …}} or {{"messages": […]}}.')
    return found


def _texts(content: str, path: Path, processor: Processor | None) -> Iterator[str]:
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row: Any = loads(line)
        except ValueError as error:
            raise DataError(f"'{path}', line {number}: not valid JSON ({error}).") from error
        if isinstance(row, dict) and isinstance(row.get("text"), str):
            yield row["text"]
        elif isinstance(row, dict) and isinstance(row.get("messages"), list):
            yield _chat(row["messages"], f"'{path}', line {number}", processor)
        else:
            raise DataError(f'\'{path}\', line {number} has neither "text" nor chat "messages".')


def _chat(messages: list[Any], where: str, processor: Processor | None) -> str:
    if not getattr(processor, "chat_template", None):
        raise DataError(
            f"{where} is a chat, and the tokenizer has no chat template to write it with. Give the text itself: "
            '{"text": …}.'
        )
    try:
        return str(processor.apply_chat_template(messages, tokenize=False))  # type: ignore[union-attr]
    except Exception as error:  # whatever a template stumbles over: roles, missing contents
        raise DataError(f"{where}: the chat template cannot write it ({type(error).__name__}: {error}).") from error
