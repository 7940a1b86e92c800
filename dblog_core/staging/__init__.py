"""The super-changelog on storage."""

from dblog_core.staging.changelog import ChunkFile, Staging

__all__ = ["ChunkFile", "Staging"]
