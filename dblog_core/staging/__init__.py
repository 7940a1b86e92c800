"""The super-changelog on storage."""

from dblog_core.staging.store import ChunkFile, Staging

__all__ = ["ChunkFile", "Staging"]
