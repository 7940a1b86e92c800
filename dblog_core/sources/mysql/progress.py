"""How far the log has been read: a transaction costs a list entry, and many of them become a Position at once."""

from __future__ import annotations

from dblog_core.sources.mysql.position import Position


class Progress:
    """A position that grows."""

    def __init__(self, position: Position) -> None:
        self._position = position
        self._ended: list[str] = []
        self._time = 0
        self._file, self._offset = position.file, position.offset

    @property
    def position(self) -> Position:
        if self._ended and self._position.gtids is not None:
            self._position = self._position.after(self._ended, self._time).moved(file=self._file, offset=self._offset)
            self._ended = []
        return self._position

    def move(self, **changes: object) -> None:
        """Changes single fields of the position."""
        self._position = self.position.moved(**changes)

    def ended(self, file: str, offset: int, gtid: str | None, time: int = 0) -> bool:
        """A transaction has ended here, which was committed at `time` (microseconds, 0: unknown). False where GTIDs do
        not tell how far we are: nothing is changed then."""
        if gtid is None or self._position.gtids is None:
            return False
        self._ended.append(gtid)
        self._time = time
        self._file, self._offset = file, offset
        return True
