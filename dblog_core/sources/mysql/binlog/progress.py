"""How far the log has been read: a transaction costs a list entry, and many of them become a Position at once."""

from __future__ import annotations

from dblog_core.sources.mysql.position import Position


class Progress:
    """A position that grows."""

    def __init__(self, position: Position) -> None:
        self._position = position
        self._ended: list[str] = []
        self._file = position.file
        self._offset = position.offset
        self._start = self._time = 0

    @property
    def position(self) -> Position:
        """The place after the last transaction. Sets of GTIDs grow here, for many transactions at once."""
        if self._ended and self._position.gtids is not None:
            self._position = self._position.after(
                self._ended, start=self._start, end=self._offset, file=self._file, time=self._time
            )
            self._ended = []
        return self._position

    def move(self, **changes: object) -> None:
        """Changes single fields of the position."""
        self._position = self.position.with_changes(**changes)

    def end_transaction(self, file: str, offset: int, gtid: str | None, *, start: int = 0, time: int = 0) -> bool:
        """A transaction has ended here, which began at `start` and was committed at `time` (microseconds, 0: unknown).
        False where GTIDs do not tell how far we are: nothing is changed then."""
        if gtid is None or self._position.gtids is None:
            return False
        self._ended.append(gtid)
        self._start = start
        self._time = time
        self._file = file
        self._offset = offset
        return True
