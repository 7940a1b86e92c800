"""How texts for people tell them to install dblog."""

from __future__ import annotations


def with_extra(name: str) -> str:
    """The fix for a part that is not installed. By the wheel's own place: on PyPI `dblog` is another project's."""
    return (
        f"install dblog's own wheel with its extra `{name}`, by file or URL: "
        f"pip install 'dblog[{name}] @ file:///PATH/dblog-VERSION-py3-none-any.whl'"
    )
