"""The kinds of commits that the engine makes: for each a past, what is to be done, and what is right behind it."""

from __future__ import annotations

import hashlib
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import pyarrow as pa
from deltalake import DeltaTable

from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.rewriting import key_overlap, ordered_rewrite
from dblog_core.delta_writer.rewriting.cluster_files import plan_cluster
from dblog_core.lake_engine.tables.unneeded_files import find_needed
from dblog_core.lake_engine.tasks import upkeep
from tests.spark.segments import Row, table
from tests.unit.delta_writer.tables import (
    TRACKED_CONF,
    TRACKED_FEATURES,
    commit_of,
    newest,
    protocol,
    read_tracked,
    write_commit,
)
from tests.unit.lake_engine.killed_commits.world import DAY, Kind, T, World

BEFORE = table("t", id=pa.int64(), a=pa.string(), b=pa.int64(), n=pa.int32(), gone=pa.string())
AFTER = table("t", key=("no",), no=pa.int64(), b=pa.string(), a=pa.int64(), n=pa.int64(), c=pa.int32())
OTHER_KEY = table("t", key=("id", "v"), id=pa.int64(), v=pa.string(), big=pa.string())

YOUNG = "part-00000-young.parquet"
"""A file that no commit names yet."""


def item(number: int, v: str = "v", big: str = "b") -> Row:
    return {"id": number, "v": v, "big": big}


def fill(world: World, *, count: int = 6, merges: int = 2) -> None:
    """Rows that were merged, and changed by later merges: some are marked in vectors."""
    for number in range(1, count + 1):
        world.put(item(number, big=f"b{number}"))
    world.seal()
    world.lake.merge_well()
    for merge in range(1, merges):
        world.put(item(merge, f"merge {merge}", "new"))
        world.seal()
        world.lake.merge_well()


def change_rows(world: World) -> None:
    """Rows of each fate: new, changed, deleted, another key; some values are left out."""
    fill(world)
    world.put(item(1, "changed"))
    world.put(item(2, "unchanged toast"), unchanged=("big",))
    world.delete(3)
    world.move(4, item(40, "moved"), unchanged=("big",))
    world.put(item(7, "new"))
    world.delete(5)
    world.put(item(5, "born again"))
    world.seal()


def begin_table(world: World) -> None:
    """The first rows of a table that the lake does not have."""
    for number in range(1, 5):
        world.put(item(number))
    world.told.at[0] = [[]]
    world.seal()


def begin_with_dumps(world: World) -> None:
    """A table that begins with the second of two dumps: what the first one shows to be gone is in its history alone."""
    for number in range(1, 7):
        world.put(item(number))
    world.full_dump(lost=(4,))
    world.seal()
    world.put(item(7))
    world.delete(3)
    world.full_dump(lost=(5,), born=(item(8),))
    world.put(item(9))
    world.told.at[0] = [[]]
    world.seal()


def truncate(world: World) -> None:
    fill(world)
    world.truncate()
    world.seal()


def truncate_with_rows_behind(world: World) -> None:
    fill(world)
    world.put(item(1, "goes with the TRUNCATE"))
    world.truncate()
    world.put(item(2, "behind it"))
    world.put(item(9, "new"))
    world.seal()


def remove_ghosts(world: World) -> None:
    """A batch with the ends of two dumps, which show rows to be gone: as the table has them, and as the batch has
    brought, changed and moved them. Of some keys other rows are born while a dump runs."""
    fill(world)
    world.put(item(2, "unchanged toast"), unchanged=("big",))
    world.put(item(3, "changed"))
    world.move(5, item(50, "moved"), unchanged=("big",))
    world.put(item(6, "changed"))
    world.put(item(7, "new"))
    world.full_dump(lost=(1, 2, 4, 6, 7, 50), born=(item(8, "born meanwhile"), item(1, "born again")))
    world.put(item(9, "later"))
    world.full_dump(lost=(9,))
    world.put(item(10, "later"))
    world.seal()


def change_shape(world: World) -> None:
    """Renames of the key and of two columns, a wider one, one that is gone, and a new one with a constant."""
    world.told.schema = BEFORE
    for number in range(1, 5):
        world.put(_old_row(number))
    world.seal()
    world.lake.merge_well()
    world.put(_old_row(1, "again"))
    world.seal()
    world.lake.merge_well()
    world.put(_old_row(2, "older"))
    world.build.schema(AFTER, renamed={"no": "id", "b": "a", "a": "b"}, filled={"c": 5})
    rows = {key: _new_row(key, row["a"]) for key, row in world.told.rows.items()}
    world.told = replace(world.told, schema=AFTER, rows=rows)
    world.put(_new_row(3, "newer", n=2**40, c=6))
    world.delete(4)
    world.put(_new_row(5, c=None))
    world.seal()


def _old_row(key: int, a: str = "a") -> Row:
    return {"id": key, "a": a, "b": key, "n": 7, "gone": "x"}


def _new_row(key: int, b: str = "a", *, n: int = 7, c: int | None = 5) -> Row:
    return {"no": key, "b": b, "a": key, "n": n, "c": c}


def reset(world: World) -> None:
    """A table that is emptied until its dump comes, while a line is staged that counts."""
    fill(world)
    world.file_task("reset", {"table": "shop.t"})
    world.told.rows.clear()
    world.note_state()


def rebuild(world: World) -> None:
    """Rows that somebody has harmed."""
    change_rows(world)
    world.lake.merge_well()
    DeltaTable(str(world.place)).delete("id = 2")
    world.told.at[world.build.offset].append([row for row in world.model() if row["id"] != 2])
    world.file_task("rebuild", {"table": "shop.t"})


def replay(world: World) -> None:
    """As `rebuild`, by the lines of an interval alone."""
    change_rows(world)
    world.lake.merge_well()
    DeltaTable(str(world.place)).delete("id in (2, 7)")
    world.told.at[world.build.offset].append([row for row in world.model() if row["id"] not in (2, 7)])
    interval = {"from": {"offset": 1}, "to": {"offset": world.build.offset}, "tables": ["shop.t"]}
    world.file_task("replay", interval)


def accept_another_key(world: World) -> None:
    """The table stops at another key, which is accepted: it is emptied until its dump comes."""
    fill(world)
    world.build.schema(OTHER_KEY)
    world.build.create(OTHER_KEY, item(1))
    world.build.seal()
    before = world.model()
    world.lake.merge()
    world.told = replace(world.told, schema=OTHER_KEY, rows={})
    world.told.at[world.build.offset] = [before, []]
    world.file_task("accept", {"table": "shop.t"})


def many_small_files(world: World) -> None:
    """Files that are joined, of which some have dead rows."""
    fill(world, merges=6)
    world.delete(4)
    world.seal()


def many_dead_rows(world: World) -> None:
    """A file that is written again without its dead rows."""
    fill(world, count=12)
    for number in (2, 3, 4, 5):
        world.delete(number)
    world.seal()


def mixed_files(world: World) -> None:
    """Large files that share their keys: rows are to stand in the order of the key."""
    for begin in range(4):
        for number in range(begin, 240, 4):
            world.put(item(number, hashlib.sha512(str(number).encode()).hexdigest()))
        world.seal()
        world.lake.merge_well()
    world.put(item(17, "changed"))
    world.delete(18)
    world.seal()


def _patch(*values: tuple[Any, str, Any]) -> AbstractContextManager[Any]:
    stack = ExitStack()
    for target, name, value in values:
        stack.enter_context(mock.patch.object(target, name, value))
    return stack


def _no_join() -> AbstractContextManager[Any]:
    return _patch((upkeep, "plan_join", lambda table, at_least: None))


def _only_order() -> AbstractContextManager[Any]:
    """Files of some 60 rows are large enough to be put in order."""
    return _patch(
        (upkeep, "plan_join", lambda table, at_least: None),
        (upkeep, "plan_cluster", partial(plan_cluster, target=5000)),
        (key_overlap, "FILES", 1),
        (ordered_rewrite, "is_worth", lambda files, new_files, others: True),
    )


def old_files(world: World) -> None:
    """Files and log of all ages, with a cut of an hour ago that names an old version; all else is maintained too."""
    for number in range(1, 7):
        world.put(item(number))
    world.merge_of_the_past(40)
    for days in (30, 20):
        world.put(item(1, f"{days} days ago"))
        world.delete(6 if days == 30 else 5)
        world.merge_of_the_past(days)
        DeltaTable(str(world.place)).create_checkpoint()
    world.put(item(2, "9 days ago"))
    world.merge_of_the_past(9)  # the oldest cut that is kept
    world.put(item(3, "2 days ago"))
    world.merge_of_the_past(2)
    (world.place / YOUNG).write_bytes(b"of a writer that is at work")
    world.file_task("maintain", {"tables": []})


def check_removed(world: World) -> None:
    """No old file is left that no kept cut needs, and no log of before the oldest one."""
    assert [cut["cut"] for cut in world.cuts()][:3] == [4, 5, 6], "the oldest cut that is kept is that of 9 days ago"
    needed = find_needed(TableFiles.at(world.lake.table(T)), world.oldest_kept())
    present = world.data_files()
    yesterday = time.time() - DAY
    assert {path for path in present if (world.place / path).stat().st_mtime < yesterday} <= needed
    assert present >= {YOUNG, *needed}
    log = world.place / "_delta_log"
    assert min(int(path.stem) for path in log.glob("*.json") if path.stem.isdigit()) > 0


def checkpoints(world: World) -> None:
    """A checkpoint of the table and one of the cuts with nearly every merge."""
    fill(world, merges=1)
    for place in (world.place, world.lake.path / "_dblog" / "cuts"):
        DeltaTable(str(place)).alter.set_table_properties({"delta.checkpointInterval": "1"})
    world.put(item(1, "changed"))
    world.seal()


def withhold_rows(world: World) -> None:
    """Rows of which the log leaves out a value that the lake does not have: they wait for a dump."""
    fill(world)
    for key in (50, 51):
        world.build.update(T, item(key, big=""), unchanged=["big"])
    world.put(item(1, "changed"))
    world.seal()


def check_withheld(world: World) -> None:
    assert world.lake.withheld is not None
    assert sorted(world.lake.withheld.keys("shop.t", T)) == [(50,), (51,)]


def lose_withheld_row(world: World) -> None:
    """A row that was withheld comes whole, and is a ghost at the end of the same merge."""
    fill(world)
    world.build.update(T, item(50, big=""), unchanged=["big"])
    world.seal()
    world.lake.merge_well()
    world.build.delete(T, {"id": 50})
    world.put(item(50, "whole"))
    world.full_dump(lost=(50,))
    world.seal()


def check_nothing_withheld(world: World) -> None:
    assert world.lake.withheld is not None
    assert world.lake.withheld.keys("shop.t", T) == []


def change_tracked_rows(world: World) -> None:
    """Of a table with ids of rows, times in its commits and a change data feed."""
    world.put(item(1))
    world.seal()
    world.lake.merge_well()
    world.truncate()  # files from before have no ids
    world.seal()
    world.lake.merge_well()
    version = newest(world.place)
    actions = [action for number in range(version + 1) for action in commit_of(world.place, number)]
    about = [action for action in actions if "metaData" in action][-1]
    about["metaData"]["configuration"] |= TRACKED_CONF | {"delta.enableChangeDataFeed": "true"}
    features = protocol(*TRACKED_FEATURES, vectors=world.kind.vectors)
    info = {"commitInfo": {"timestamp": 1, "inCommitTimestamp": 1, "operation": "SET TBLPROPERTIES"}}
    write_commit(world.place, version + 1, info, features, about)
    change_rows(world)
    world.told.ids = {key: row_id for key, row_id in _ids(world).items() if key in world.told.rows}


def check_ids(world: World) -> None:
    """A row keeps its id as long as its key lives, and no two have the same."""
    ids = _ids(world)
    assert len(set(ids.values())) == len(ids) == len(world.told.rows)
    assert {key: ids[key] for key in world.told.ids} == world.told.ids


def _ids(world: World) -> dict[Any, int]:
    fields = {name: name for name in ("id", "v", "big")}
    return {key[0]: row_id for key, row_id, _ in read_tracked(world.place, fields, ("id",))}


def check_no_dump(world: World) -> None:
    """What the constant holds needs none."""
    assert world.lake.dumps.asked == []


OF_SHAPES: Any = {
    "is_one_commit": False,
    "drop_columns": True,
    "widens": True,
    "later": _new_row(100),
    "check": check_no_dump,
}

KINDS = [
    Kind("rows", change_rows),
    Kind("rows by copies", change_rows, vectors=False),
    Kind("rows that are tracked", change_tracked_rows, check=check_ids),
    Kind("rows with their history", change_rows, history=True),
    Kind("withheld rows", withhold_rows, check=check_withheld),
    Kind("a withheld ghost", lose_withheld_row, check=check_nothing_withheld),
    Kind("a new table", begin_table, history=True),
    Kind("a new table with dumps", begin_with_dumps, history=True),
    Kind("truncate", truncate, history=True),
    Kind("truncate with rows behind it", truncate_with_rows_behind, history=True),
    Kind("ghosts", remove_ghosts, history=True),
    Kind("ghosts by copies", remove_ghosts, history=True, vectors=False),
    Kind("shape", change_shape, **OF_SHAPES),
    Kind("shape by copies", change_shape, vectors=False, **OF_SHAPES),
    Kind("reset", reset),
    Kind("rebuild", rebuild),
    Kind("replay", replay),
    Kind("another key", accept_another_key, is_one_commit=False),
    Kind("joined files", many_small_files, compact_after=2),
    Kind("purged files", many_dead_rows, compact_after=2, patched=_no_join),
    Kind("files in order", mixed_files, compact_after=2, patched=_only_order),
    Kind("unneeded files", old_files, history=True, check=check_removed),
    Kind("checkpoints", checkpoints, history=True),
]
BY_NAME = {kind.name: kind for kind in KINDS}
