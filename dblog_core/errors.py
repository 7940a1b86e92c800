"""Every error that a user can meet, as one tree.

    DblogError                       what happened, where, and what to do about it
    ├── ConfigError                  the configuration file is wrong (all its faults in one)
    ├── RequestError                 a command or a dump request that cannot be carried out as asked
    │   └── TableGone                its table is not in the source, or no longer
    ├── SourceError                  the source database
    │   ├── SourceUnavailable        transient: it cannot be reached, or went away
    │   │   ├── NoWatermarkTable     no capture has made the watermark table yet
    │   │   └── TableLocked          somebody keeps a table locked for longer than we wait
    │   ├── SourceRefused            wrong password, missing grant, wrong server setting
    │   │   ├── SourceReadOnly       it takes no writes: for good, or while its primary is switched over
    │   │   ├── SourceForbids        a right on one table is missing
    │   │   ├── PublicationIncomplete  the log does not show some tables, and somebody else has to change that
    │   │   └── ServerNotSafe        a setting or grant without which no chunk of any table would be right
    │   ├── LogPositionLost          the server no longer has the log that we need
    │   ├── UnknownLogEvent          the log holds something that we cannot decode safely
    │   └── ValueOutOfRange          a value that has no exact form in the lake
    ├── StagingError                 the super-changelog on storage
    │   ├── StagingUnavailable       transient: full disk, storage away
    │   │   └── SegmentReplaced      its rows were moved while they were read
    │   ├── SegmentTaken             another capture has published this segment: we are fenced
    │   └── CorruptSegment           a manifest or file that is cut short, changed, missing or too new
    ├── StateError                   the state store
    │   ├── StateUnavailable         transient: it cannot be reached
    │   ├── VersionConflict          somebody else changed the entry first
    │   └── LeaseLost                our lease is gone or in doubt
    ├── LakeError                    the merge and the lake
    │   └── LakeBusy                 another merge holds the lake
    ├── NotToldYet                   transient: a receiver of notices does not take one
    ├── SignalsUnavailable           transient: a channel of signals cannot be read
    ├── OutputError                  a target of the super-changelog
    │   ├── OutputUnavailable        transient: it cannot be reached, or is busy
    │   ├── OutputRefused            it does not let us, or cannot be used as configured
    │   ├── OutputTaken              another relay has gone on with it: we are fenced
    │   └── PoisonLine               it will never take a line, or one of those that it was given
    └── LocalError                   the local servers and what they are fetched from

Drivers' errors are translated at the edge with the cause chained; no message ever holds a password.
"""

from __future__ import annotations


class DblogError(Exception):
    """What happened (`message`), where (`where`: source, table, position, file) and the way on (`fix`)."""

    transient = False
    """Whether the same step may succeed when tried again: read by the one retry policy (`retry.py`)."""

    def __init__(self, message: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.fix = fix

    @property
    def reason(self) -> str:
        """What happened and where, without the way on."""
        return f"{self.where}: {self.message}" if self.where else self.message

    def __str__(self) -> str:
        # `lake.table_health` takes cause and fix out of this text again: it is what the lake's status keeps.
        return f"{self.reason}\n  fix: {self.fix}" if self.fix else self.reason


class ConfigError(DblogError):
    """The configuration file is wrong; the message lists every fault with its place."""


class RequestError(DblogError):
    """A command or a dump request that cannot be carried out as asked."""


class TableGone(RequestError):
    """The source has no such table, or no longer."""


class SourceError(DblogError):
    """Something about the source database."""


class SourceUnavailable(SourceError):
    """The server cannot be reached, or the connection broke."""

    transient = True


class NoWatermarkTable(SourceUnavailable):
    """The watermark table is not there: a capture makes it when it begins, and none has yet."""

    def __init__(self, table: str) -> None:
        super().__init__("the watermark table is not there", where=table, fix="run `dblog capture`, which makes it")


class TableLocked(SourceUnavailable):
    """Somebody has kept a table, or a row, locked for longer than our statement waits."""


class SourceRefused(SourceError):
    """The server answers, and does not let us: credentials, grants or settings."""


class SourceReadOnly(SourceRefused):
    """The server takes no writes. A process that begins on such a server cannot continue; a dump that is under way
    waits, since a primary is read-only while it is switched over.
    """


class SourceForbids(SourceRefused):
    """The account may not use the table that a statement names, or not see all of its rows: that table's fault."""


class PublicationIncomplete(SourceRefused):
    """The log does not show these `tables`, and our account may not change that."""

    def __init__(self, message: str, tables: frozenset[str], *, where: str = "", fix: str = "") -> None:
        super().__init__(message, where=where, fix=fix)
        self.tables = tables


class ServerNotSafe(SourceRefused):
    """A setting or a missing grant of the server with which no chunk of any table would be right: no task's fault."""


class LogPositionLost(SourceError):
    """The server no longer has the part of its log that comes next for us."""


class UnknownLogEvent(SourceError):
    """An event, type or image in the log that cannot be decoded without a guess."""


class ValueOutOfRange(SourceError):
    """A value of the source that has no exact form in its staged column."""


class StagingError(DblogError):
    """Something about the super-changelog on storage."""


class StagingUnavailable(StagingError):
    """Storage is full or away."""

    transient = True


class SegmentReplaced(StagingUnavailable):
    """A segment was joined with others while it was read: what comes next reads its rows from their new place."""


class SegmentTaken(StagingError):
    """The manifest's number exists already: another capture leads now."""


class CorruptSegment(StagingError):
    """A manifest or data file is cut short, altered, missing, or of a newer format."""


class StateError(DblogError):
    """Something about the state store."""


class StateUnavailable(StateError):
    """The state store cannot be reached."""

    transient = True


class VersionConflict(StateError):
    """An entry was created, changed or removed by somebody else first."""


class LeaseLost(StateError):
    """The lease is gone, or our own clock says that it may be."""


class LakeError(DblogError):
    """Something about the merge or the lake."""


class LakeBusy(LakeError):
    """Another merge holds the lake path."""


class NotToldYet(DblogError):
    """A receiver of notices has not taken one: it is sent again."""

    transient = True


class SignalsUnavailable(DblogError):
    """A channel of signals cannot be read: it is tried again."""

    transient = True


class OutputError(DblogError):
    """Something about an output's target."""


class OutputUnavailable(OutputError):
    """The target cannot be reached, or asks to come later."""

    transient = True


class OutputRefused(OutputError):
    """The target answers, and cannot be used: credentials, rights, settings, or a place that is gone."""


class OutputTaken(OutputError):
    """Another relay has gone on with the output. `epoch`: the one that the target knows (0: it knows none)."""

    def __init__(self, message: str, *, where: str = "", fix: str = "", epoch: int = 0) -> None:
        super().__init__(message, where=where, fix=fix)
        self.epoch = epoch


class PoisonLine(OutputError):
    """The target will never take the line at `offset`; None: one of those that it was given together."""

    def __init__(self, message: str, *, where: str = "", fix: str = "", offset: int | None = None) -> None:
        super().__init__(message, where=where, fix=fix)
        self.offset = offset


class LocalError(DblogError):
    """A server of the local stack, or what it is made from, that cannot be had, started or stopped."""
