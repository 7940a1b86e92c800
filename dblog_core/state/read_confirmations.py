"""Questions of dump workers whether what they have read may be staged, where columns of a source are hidden and its log
alone tells what a table is (MySQL, MariaDB).

    confirmations/ID          {"table": SCHEMA.TABLE, "place": …}: a worker has read the table; its SELECT saw nothing
                              of the log after the place
    confirmations/ID/answer   of a capture that has read the log up to there: whether the table was what was accepted

The worker removes both; the capture does so for a worker that is gone.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from dblog_core.errors import VersionConflict
from dblog_core.interfaces import StateStore

_ROOT = "confirmations"
_YES, _NO = b"yes", b"no"


@dataclass(frozen=True, slots=True)
class Question:
    """`place`: as `Source.current_position` gives it."""

    table: str
    place: str


def ask(state: StateStore, name: str, question: Question) -> None:
    """Files the question under an id that nobody has used. Raises StateError."""
    data = orjson.dumps({"table": question.table, "place": question.place})
    try:
        state.create(_question(name), data)
    except VersionConflict:
        if (entry := state.get(_question(name))) is None or entry.data != data:
            raise  # otherwise it is ours, and the store's answer was lost


def read_answer(state: StateStore, name: str) -> bool | None:
    """Whether it may be staged; None: nobody has answered yet."""
    entry = state.get(f"{_question(name)}/answer")
    return None if entry is None else entry.data == _YES


def list_names(state: StateStore) -> list[str]:
    """The ids of all questions."""
    return state.children(_ROOT)


def read_question(state: StateStore, name: str) -> Question | None:
    """None where it is gone, or of a version that this one cannot read: its worker waits in vain, and no other does."""
    entry = state.get(_question(name))
    if entry is None:
        return None
    try:
        data = orjson.loads(entry.data)
        return Question(str(data["table"]), str(data["place"]))
    except (ValueError, KeyError, TypeError):
        return None


def answer(state: StateStore, name: str, *, may_pass: bool) -> None:
    """Raises StateError. Another term of a capture may have answered."""
    try:
        state.create(f"{_question(name)}/answer", _YES if may_pass else _NO)
    except VersionConflict:
        return


def forget(state: StateStore, name: str) -> None:
    """Removes the question and its answer."""
    state.delete(_question(name))


def _question(name: str) -> str:
    return f"{_ROOT}/{name}"
