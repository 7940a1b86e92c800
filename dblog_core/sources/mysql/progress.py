"""How far the log has been read: a transaction costs a list entry, and many of them become a Position at once."""

from __future__ import annotations

from dblog_core.sources.mysql.position import Position


class Progress:
    """A position that grows."""

    def __init__(self, position: Position) -> None:
        self._position = position
        self._ended: list[str] = []
        self._file, self._offset = position.file, position.offset

    @property
    def position(self) -> Position:
        if self._ended and self._position.gtids is not None:
            gtids = self._position.gtids.with_transactions(self._ended)
            self._position = self._position.moved(file=self._file, offset=self._offset, gtids=gtids, server=None)
            self._ended = []
        return self._position

    def move(self, **changes: object) -> None:
        """Changes single fields of the position."""
        self._position = self.position.moved(**changes)

    def ended(self, file: str, offset: int, gtid: str | None) -> bool:
        """A transaction has ended here. False where GTIDs do not tell how far we are: nothing is changed then."""
        if gtid is None or self._position.gtids is None:
            return False
        self._ended.append(gtid)
        self._file, self._offset = file, offset
        return True
