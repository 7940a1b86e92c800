"""Files of a table without deletion vectors, written again without the rows that go (copy-on-write).

What a change costs follows the files that it touches. Small ones become one file, so that a table of which the same
rows change again and again does not end in many.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from dblog_core.delta_writer.data_file import KeptKeys, StoredFile
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.rewrite import Source, by_partition, plan_rewrite

_SMALL = 16 << 20
_TOGETHER = 32 << 20
"""Bytes of small files that become one."""
_AT_ONCE = 2
"""Files that are written beside each other."""

Copies = dict[bytes, tuple[StoredFile, ...]]
"""Files that were written, by a digest of what they are copies of: other commits have a change planned again."""


def copy_files(table: OpenTable, touched: Sequence[Source], copies: Copies) -> list[StoredFile]:
    """Writes what is left of the touched files; every one of them has a row that stays. `copies`: of earlier plans of
    the change, and then of this one."""
    groups = list(_group(touched))
    plans = [_digest(table, group) for group in groups]
    kept_keys = KeptKeys()
    copied: list[StoredFile] = []
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="copy") as pool:
        written = pool.map(lambda plan, group: _copy(table, group, copies.get(plan, ())), plans, groups)
        for plan, files in zip(plans, written, strict=True):
            copies[plan] = tuple(map(kept_keys.limit, files))
            copied += copies[plan]
    return copied


def _group(touched: Sequence[Source]) -> Iterator[list[Source]]:
    """Which files become one: small ones of a partition, up to a size; any other stays one."""
    by_path = {source.live.path: source for source in touched}
    for files in by_partition(source.live for source in touched):
        together: list[Source] = []
        for source in (by_path[live.path] for live in files):
            if source.live.size >= _SMALL:
                yield [source]
                continue
            if together and sum(other.live.size for other in together) + source.live.size > _TOGETHER:
                yield together
                together = []
            together.append(source)
        if together:
            yield together


def _digest(table: OpenTable, group: Sequence[Source]) -> bytes:
    digest = hashlib.blake2b(str(table.snapshot.metadata).encode(), digest_size=16)
    for source in group:
        digest.update(source.live.path.encode() + source.dead.encode())
    return digest.digest()


def _copy(table: OpenTable, group: Sequence[Source], before: Sequence[StoredFile]) -> tuple[StoredFile, ...]:
    # A VACUUM of somebody else may have taken a file that no version names yet.
    if before and all(table.files.exists(file.name) for file in before):
        return tuple(before)
    return replace(plan_rewrite(table, group), keeps_places=False).carry_out().files
