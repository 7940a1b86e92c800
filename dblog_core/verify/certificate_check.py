"""The check of a certificate: what it says of each table, and whether the lake still has those rows."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.errors import DblogError
from dblog_core.interfaces import Json
from dblog_core.verify import certificate
from dblog_core.verify.certificate import UncertifiedTable
from dblog_core.verify.judge.judge import Judge


@dataclass(frozen=True, slots=True)
class ClaimCheck:
    """Whether a table was equal when its certificate was made, and the lake still has those rows. `version`: of the
    lake (None: it had no copy); `staged`: rows that were on top of that, which nothing checks; `error`: why it is not
    equal, or why that is unknown."""

    table: str
    version: int | None
    equal: bool
    error: str | None = None
    staged: int = 0
    not_compared: tuple[str, ...] = ()

    def to_json(self) -> Json:
        return {**asdict(self), "not_compared": list(self.not_compared)}


@dataclass(frozen=True, slots=True)
class CertificateCheck:
    """All tables that a certificate was asked for. `at`: when it was made; `left_out`: tables that do not count."""

    at: str
    tables: tuple[ClaimCheck, ...]
    left_out: tuple[UncertifiedTable, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether each table was equal, and the lake still has its rows; never of no table."""
        return bool(self.tables) and all(table.equal for table in self.tables)

    def to_json(self) -> Json:
        left_out = [{"table": table.table, "reason": table.reason} for table in self.left_out]
        tables = [table.to_json() for table in self.tables]
        return {"equal": self.equal, "at": self.at, "tables": tables, "left_out": left_out}


def check_certificate(config: Config, file: Path, *, stop: threading.Event) -> CertificateCheck:
    """Checks that each table that the certificate was asked for was equal, and that the lake, at the certificate's
    versions, still has its sums. Raises RequestError, Interrupted."""
    read = certificate.read_certificate(file, source=config.source.name)
    with Judge(wiring.open_staging(config), wiring.open_lake(config), stop=stop) as judge:
        checks = [_check_claim(judge, claim) for claim in read.claims]
    checks += [
        ClaimCheck(table.table, None, equal=False, error=f"nothing is certified: {table.reason}")
        for table in read.uncertified
        if table.counts
    ]
    return CertificateCheck(read.at, tuple(checks), tuple(table for table in read.uncertified if not table.counts))


def _check_claim(judge: Judge, claim: certificate.Claim) -> ClaimCheck:
    version = None if claim.pin is None else claim.pin.version
    error: str | None = None
    if not claim.equal:
        error = f"it was not equal to the source when the certificate was made: {claim.outcome}"
    elif claim.pin is not None:
        try:
            sums = judge.sum_hashes(claim.schema, claim.pin, claim.bounds)
            error = None if sums == claim.sums else f"version {version} of the lake has other rows now"
        except DblogError as fault:
            error = f"version {version} of the lake cannot be read: {fault}"
    return ClaimCheck(claim.table, version, error is None, error, claim.staged, claim.not_compared)
