"""Our checkpoints say what the log before them says: to our snapshot, to delta-rs and to DuckDB, whatever fails."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.checkpoints.checkpoint_writer import write_checkpoint
from dblog_core.delta_writer.features import TableRefused
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.snapshot import Snapshot
from dblog_core.errors import LakeError, StagingError
from dblog_core.lake_engine.tables import checkpoints
from dblog_core.storage.location import Location
from tests.duckdb_reader import read_delta
from tests.simulation.storage import Disk
from tests.unit.delta_writer.tables import (
    APP,
    FaultyStorage,
    Table,
    commit_of,
    fill_table,
    metadata,
    newest,
    protocol,
    row,
    schema_string,
    write_commit,
)
from tests.unit.lying_storage import Lying, land

DAY_MS = 86_400_000
NOW_MS = 20_000 * DAY_MS
SETTINGS: dict[str, dict[str, Any]] = {
    "no vectors": {"vectors": False},
    "vectors": {},
    "tracked rows, times in commits, a change data feed": {"tracked": True},
    "mapped columns": {"mapped": True},
    "partitions": {"partitions": ("note",)},
    "partitions of mapped columns": {"partitions": ("note",), "mapped": True},
    "v2 checkpoints": {"reader": ["v2Checkpoint"]},
    "wider types": {"reader": ["typeWidening"]},
    "a check before VACUUM": {"reader": ["vacuumProtocolCheck"]},
}
UNKNOWN_TO_RUST = {"typeWidening", "vacuumProtocolCheck"}
"""Features of tables whose rows delta-rs does not read."""
CLUSTERED = {"domain": "delta.clustering", "configuration": '{"clusteringColumns":[["id"]]}', "removed": False}


def files_of(table: Table) -> TableFiles:
    return TableFiles.at(table.location())


def log(table: Table) -> Path:
    return table.path / "_delta_log"


def write(table: Table, now_ms: int = NOW_MS) -> None:
    write_checkpoint(files_of(table), now_ms)


def checkpoint_file(table: Table, version: int | None = None) -> Path:
    return log(table) / f"{newest(table.path) if version is None else version:020d}.checkpoint.parquet"


def hint(table: Table) -> dict[str, Any]:
    return dict(json.loads((log(table) / "_last_checkpoint").read_text()))


def forget_before(table: Table, version: int) -> None:
    """Removes what a cleaning of the log removes once that version has a checkpoint."""
    for file in log(table).iterdir():
        if file.name[:20].isdecimal() and int(file.name[:20]) < version:
            file.unlink()


def content(file: Path) -> set[bytes]:
    """The actions of a checkpoint, without fields that PROTOCOL.md leaves out of checkpoints."""
    rows = [action for action in pq.read_table(file).to_pylist() if action.pop("checkpointMetadata", None) is None]
    for action in rows:
        (action["remove"] or {}).pop("tags", None)
    return {orjson.dumps(_bare(action), option=orjson.OPT_SORT_KEYS) for action in rows}


def _bare(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {k: _bare(v) for k, v in value.items() if v is not None and k != "dataChange"}


def actions(table: Table, kind: str, version: int | None = None) -> list[dict[str, Any]]:
    rows = pq.read_table(checkpoint_file(table, version)).to_pylist()
    return [row[kind] for row in rows if row[kind] is not None]


def state_of(table: Snapshot) -> tuple[Any, ...]:
    adds = {path: {k: v for k, v in live.add.items() if k != "dataChange"} for path, live in table.files.items()}
    domains = dict(table.domains)
    return table.version, adds, dict(table.txns), table.metadata["configuration"], table.protocol, domains


def check(table: Table) -> None:
    """All readers read what the model says, and the table's properties."""
    by_rust = DeltaTable(str(table.path))
    if not UNKNOWN_TO_RUST.intersection(by_rust.protocol().reader_features or ()):
        assert table.read() == table.model()
    if not (table.mapped and table.partitions):  # DuckDB reads NULL there, of Spark's tables too
        rows = sorted(read_delta(table.path).to_pylist(), key=lambda row: repr(table.key(row)))
        assert rows == table.model(), "as DuckDB reads it"
    assert by_rust.transaction_version(APP) == table.merges
    assert by_rust.metadata().configuration == snapshot.newest(files_of(table)).metadata["configuration"]


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_checkpoint_stands_for_the_log_before_it(tmp_path: Path, settings: str) -> None:
    """One that is made of commits alone, and one that is made of the first and of later commits."""
    table = Table.create_at(tmp_path, **SETTINGS[settings])
    writer = fill_table(table)
    table.merge(writer, [row(5, "new", offset=2), row(200, "a/b %20=", offset=2)], [row(7), row(80)])
    for number in range(2):
        by_commits = snapshot.newest(files_of(table))
        write(table)
        shutil.copytree(table.path, tmp_path / f"by-rust-{number}" / "table")
        by_rust = Table(tmp_path / f"by-rust-{number}")
        for file in (checkpoint_file(by_rust), log(by_rust) / "_last_checkpoint"):
            file.unlink()
        DeltaTable(str(by_rust.path)).create_checkpoint()
        assert content(checkpoint_file(table)) == content(checkpoint_file(by_rust))
        forget_before(table, by_commits.version)
        assert state_of(snapshot.newest(files_of(table))) == state_of(by_commits)
        check(table)
        table.merge(writer, [row(5, f"later {number}", offset=3 + number), row(200, offset=3)], [row(9 + number)])
        table.merge(writer, [row(300 + number, offset=3 + number)])
        check(table)


def addition(path: str, offset: int | None = None, **fields: Any) -> dict[str, Any]:
    return {"add": {**_file(path, offset), "modificationTime": 0, **fields}}


def removal(path: str, offset: int | None = None, *, days: float | None = None) -> dict[str, Any]:
    """`days`: how long ago it was."""
    when = {} if days is None else {"deletionTimestamp": NOW_MS - int(days * DAY_MS)}
    return {"remove": {**_file(path, offset), **when}}


def _file(path: str, offset: int | None) -> dict[str, Any]:
    """`offset`: that of its deletion vector."""
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "sizeInBytes": 1, "cardinality": 1}
    about = {"path": path, "partitionValues": {}, "size": 1, "dataChange": True}
    return about if offset is None else {**about, "deletionVector": {**vector, "offset": offset}}


def files_in(table: Table, kind: str) -> set[tuple[str, int | None]]:
    """Path and offset of the vector, in the newest version's checkpoint."""
    named_files = [(a["path"], (a["deletionVector"] or {}).get("offset")) for a in actions(table, kind)]
    assert len(set(named_files)) == len(named_files)
    return set(named_files)


def test_every_file_that_was_removed_is_remembered_for_a_week(tmp_path: Path) -> None:
    """VACUUM asks for it. A file with another vector is another file, and one that came back is not removed."""
    table = Table.create_at(tmp_path)
    names = ("old", "young", "untimed", "back", "same")
    write_commit(table.path, 1, *map(addition, names))
    removals = [removal("old", days=8), removal("young", days=6), removal("untimed"), removal("back", days=0)]
    write_commit(table.path, 2, *removals, addition("young", 1))
    tagged = [addition("same"), removal("same", days=0)]  # the order means nothing
    write_commit(table.path, 3, *tagged, removal("young", 1, days=6), addition("young", 9), addition("back"))
    write(table)
    assert files_in(table, "add") == {("young", 9), ("back", None), ("same", None)}
    assert files_in(table, "remove") == {("young", None), ("young", 1)}
    assert not [a for kind in ("add", "remove") for a in actions(table, kind) if a["dataChange"]]
    write_commit(
        table.path, 4, addition("y%6Fung", 1), removal("y%6Fung", 9, days=0)
    )  # the same path, written otherwise
    write(table)
    assert files_in(table, "add") == {("y%6Fung", 1), ("back", None), ("same", None)}
    assert files_in(table, "remove") == {("young", None), ("y%6Fung", 9)}
    write_commit(table.path, 5, {"txn": {"appId": "b", "version": 1}})
    write(table, NOW_MS + 2 * DAY_MS)
    assert files_in(table, "remove") == {("y%6Fung", 9)}, "those of the older checkpoint expire too"


@pytest.mark.parametrize(
    ("interval", "days"),
    [("interval 2 days", 2), ("INTERVAL 1 week 1 day", 8), ("interval 36 hours", 1.5), ("whenever", 10_000)],
)
def test_removed_files_and_transactions_are_remembered_as_the_table_says(
    tmp_path: Path, interval: str, days: float
) -> None:
    table = Table.create_at(tmp_path)
    settings = dict.fromkeys(("deletedFileRetentionDuration", "setTransactionRetentionDuration"), interval)
    ages = {"younger": days - 0.1, "older": days + 0.1 if interval != "whenever" else 19_000}
    txns = [
        {"txn": {"appId": name, "version": 1, "lastUpdated": NOW_MS - int(age * DAY_MS)}} for name, age in ages.items()
    ]
    changed = metadata(schema_string(table.fields), **{f"delta.{name}": text for name, text in settings.items()})
    write_commit(table.path, 1, changed, *txns, *(removal(name, days=age) for name, age in ages.items()))
    write(table)
    expected = {"younger"} if interval != "whenever" else {"younger", "older"}
    assert {path for path, _ in files_in(table, "remove")} == expected
    assert {txn["appId"] for txn in actions(table, "txn")} == expected


def test_what_is_forgotten_and_what_is_carried(tmp_path: Path) -> None:
    """Removed domains, old metadata and provenance are in no checkpoint; each field of a file is."""
    table = Table.create_at(tmp_path, reader=["clustering", "domainMetadata"])
    fields = {
        "stats": '{"numRecords":1}', "tags": {"a": "b", "c": None}, "baseRowId": 4, "defaultRowCommitVersion": 2,
        "clusteringProvider": "liquid", "partitionValues": {"p": None, "q": "x"},
    }  # fmt: skip
    domains = [{**CLUSTERED, "domain": name} for name in ("delta.clustering", "gone", "back")]
    write_commit(table.path, 1, addition("f", 3, **fields), *({"domainMetadata": domain} for domain in domains))
    for version in (2, 3, 4):
        write(table)
        is_removed = version == 2
        changed = [
            {"domainMetadata": {**d, "removed": is_removed}} for d in domains[1:] if is_removed or d != domains[1]
        ]
        write_commit(table.path, version, *changed, {"cdc": {"path": "c", "partitionValues": {}, "size": 1}})
    write(table)
    (add,) = actions(table, "add")
    maps = {name: sorted(pairs.items()) for name, pairs in fields.items() if isinstance(pairs, dict)}
    assert {name: sorted(v) if isinstance(v, list) else v for name, v in add.items() if name in fields} == fields | maps
    assert {a["domain"] for a in actions(table, "domainMetadata")} == {"delta.clustering", "back"}
    assert pq.read_schema(checkpoint_file(table)).names == pq.read_schema(checkpoint_file(table, 1)).names
    assert len(actions(table, "metaData")) == len(actions(table, "protocol")) == 1
    assert hint(table) == {
        "version": 4,
        "size": 5,
        "sizeInBytes": checkpoint_file(table).stat().st_size,
    }


UNKNOWN = {
    "a feature": ([protocol("fromTheFuture")], "feature fromTheFuture"),
    "a feature of readers": ([protocol(reader=["catalogManaged"])], "feature catalogManaged"),
    "a protocol": ([{"protocol": {"minReaderVersion": 4, "minWriterVersion": 8}}], "its protocol is 4, 8"),
    "an action": ([{"rename": {"from": "a"}}], "has the action rename"),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_no_checkpoint_is_made_of_what_is_not_known(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = Table.create_at(tmp_path)
    commit, reason = UNKNOWN[what]
    write_commit(table.path, 1, *commit)
    with pytest.raises(TableRefused, match=reason):
        write(table)
    checkpoints.write(table.location())
    (line,) = caplog.messages
    assert reason in line and "\n" not in line
    assert [file.name for file in log(table).iterdir() if file.suffix != ".json"] == []


def test_an_action_of_an_older_checkpoint_that_is_not_known_is_refused(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path)
    fill_table(table)
    write(table)
    rows = pq.read_table(checkpoint_file(table))
    unknown = [None] * (len(rows) - 1) + [{"x": 1}]
    for values, is_known in ((unknown, False), ([None] * len(rows), True)):
        pq.write_table(rows.append_column("rename", [values]), checkpoint_file(table))
        table.merge(table.writer(), [row(9, offset=table.merges)]) if is_known else write_commit(table.path, 3)
        if is_known:
            write(table)
            check(table)
            continue
        with pytest.raises(TableRefused, match="has the action rename"):
            write(table)
        (log(table) / f"{3:020d}.json").unlink()


def test_a_checkpoint_without_statistics_as_text_is_refused(tmp_path: Path) -> None:
    """Another program has made it, by a property of the table. Ours would lose them."""
    table = Table.create_at(tmp_path)
    fill_table(table)
    write(table)
    rows = pq.read_table(checkpoint_file(table))
    fields = [field for field in rows.schema.field("add").type if field.name != "stats"]
    without = rows["add"].cast(pa.struct(fields))
    pq.write_table(rows.set_column(rows.schema.names.index("add"), "add", without), checkpoint_file(table))
    write_commit(table.path, 3, {"txn": {"appId": "b", "version": 1}})
    with pytest.raises(TableRefused, match="no statistics as text"):
        write(table)


def test_storage_that_fails_is_one_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = Table.create_at(tmp_path)
    checkpoints.write(Location(FaultyStorage(table.lake, fail_at=1), "table"))
    (line,) = caplog.messages
    assert line.startswith("no checkpoint is made: ") and "storage does not answer" in line


def test_old_protocols_have_no_lists_of_features(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path)
    write_commit(
        table.path, 0, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, commit_of(table.path, 0)[2]
    )
    write(table)
    (about,) = actions(table, "protocol")
    assert about == {
        "minReaderVersion": 1, "minWriterVersion": 2, "readerFeatures": None, "writerFeatures": None
    }  # fmt: skip


def test_the_codec_is_that_of_the_table(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path)
    codecs = {"snappy": "SNAPPY", "none": "UNCOMPRESSED", "lz4": "ZSTD"}
    for version, (codec, written) in enumerate(codecs.items(), 1):
        schema = schema_string(table.fields)
        write_commit(table.path, version, metadata(schema, **{"delta.parquet.compression.codec": codec}))
        write(table)
        assert pq.ParquetFile(checkpoint_file(table)).metadata.row_group(0).column(0).compression == written


def test_a_checkpoint_that_is_there_stays_and_the_hint_never_goes_back(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path)
    fill_table(table)
    write(table)
    first = checkpoint_file(table).read_bytes()
    write(table, NOW_MS + 30 * DAY_MS)
    assert checkpoint_file(table).read_bytes() == first
    for hinted in ({"version": 9, "size": 1}, {"version": 2, "size": 99, "parts": 2}):
        (log(table) / "_last_checkpoint").write_text(json.dumps(hinted))
        write(table)
        assert hint(table) == hinted
    for stale in ('{"version": 1, "size": 1}', "nothing", None):
        (log(table) / "_last_checkpoint").unlink()
        if stale is not None:
            (log(table) / "_last_checkpoint").write_text(stale)
        (log(table) / "._last_checkpoint.crc").write_text("of the stale one")
        write(table)
        assert hint(table)["version"] == 2 and not (log(table) / "._last_checkpoint.crc").exists()
        assert checkpoint_file(table).read_bytes() == first


def test_a_log_without_commits_of_the_newest_version_has_nothing_to_write(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path)
    fill_table(table)
    write(table)
    for commit in log(table).glob("*.json"):
        commit.unlink()
    before = sorted(log(table).iterdir())
    write(table)
    assert sorted(log(table).iterdir()) == before


def test_a_log_with_a_gap_has_no_checkpoint(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path)
    fill_table(table)
    (log(table) / f"{1:020d}.json").unlink()
    with pytest.raises(LakeError, match=r"the table's log lacks _delta_log/0+1\.json"):
        write(table)
    shutil.rmtree(log(table))
    with pytest.raises(LakeError, match="there is no Delta table"):
        write(table)


def test_a_log_that_is_cleaned_meanwhile_is_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.create_at(tmp_path)
    writer = fill_table(table)
    read = TableFiles.read

    def read_late(files: TableFiles, path: str) -> bytes | None:
        if path.endswith("01.json"):
            DeltaTable(str(table.path)).create_checkpoint()
            forget_before(table, 2)
            write_commit(table.path, 3, {"txn": {"appId": "b", "version": 1}})
        return read(files, path)

    monkeypatch.setattr(TableFiles, "read", read_late)
    write(table)
    assert hint(table)["version"] == 3
    writer.refresh()
    assert writer.snapshot.txns == {APP: 2, "b": 1} and table.read() == table.model()


def test_a_table_that_was_replaced_meanwhile_gets_no_checkpoint_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process was stopped for long."""
    table = Table.create_at(tmp_path)
    fill_table(table)
    create = TableFiles.create
    other = Table(tmp_path)

    def create_late(files: TableFiles, path: str, data: Any) -> bool:
        monkeypatch.undo()
        shutil.rmtree(table.path)
        other.merge(Table.create_at(tmp_path).writer(), [row(1, "of the other table")])
        return create(files, path, data)

    monkeypatch.setattr(TableFiles, "create", create_late)
    with pytest.raises(LakeError, match="commit 2 was replaced or removed"):
        write(table)
    check(other)
    assert {file.suffix for file in log(other).iterdir()} == {".json"}


@pytest.mark.parametrize("late", [False, True])
def test_whatever_fails_the_table_is_read_and_the_next_checkpoint_is_made(tmp_path: Path, late: bool) -> None:
    """At every call of the storage, before it has done anything, and after all of it."""
    base = Table.create_at(tmp_path / "base")
    writer = fill_table(base)
    write(base)
    base.merge(writer, [row(1, "new", offset=2)], [row(2)])
    counted = FaultyStorage(shutil.copytree(base.lake, tmp_path / "counted"))
    write_checkpoint(TableFiles.at(Location(counted, "table")), NOW_MS)
    calls = counted.calls
    changes = [call.split()[0] for call in calls if call.split()[0] not in ("read", "names")]
    assert changes == ["create", "remove", "replace"]
    for number in range(1, len(calls) + 1):
        for error in (Killed(), None):
            table = Table(tmp_path / f"{number}-{error is None}", rows=base.rows, merges=base.merges)
            shutil.copytree(base.lake, table.lake)
            faulty = FaultyStorage(table.lake, fail_at=number, late=late, error=error)
            with pytest.raises((Killed, StagingError)):
                write_checkpoint(TableFiles.at(Location(faulty, "table")), NOW_MS)
            check(table)
            write(table)
            assert hint(table)["version"] == 3
            forget_before(table, 3)
            check(table)


class Killed(BaseException):
    """The process died here."""


def test_a_storage_that_lies_spoils_no_checkpoint() -> None:
    """A file that it has made is denied, or comes later, when the log has gone on."""
    dice = random.Random(4)
    count = 0
    for _ in range(20):
        disk = Disk()
        late: list[tuple[str, bytes]] = []
        storage = Lying(disk, dice, late)
        files = TableFiles(Location(storage, "table"))
        for version, commit in enumerate(random_log(dice, 12)):
            path = f"table/_delta_log/{version:020d}.json"
            disk.put(path, b"".join(orjson.dumps(action) + b"\n" for action in commit), durable=True)
            if dice.random() < 0.5:
                try:
                    write_checkpoint(files, NOW_MS)
                except StagingError:
                    land(disk, dice, late)
        by_commits = _by_commits_alone(disk)
        count += any(path.endswith(".parquet") for path in disk.files)
        assert state_of(snapshot.newest(files)) == state_of(by_commits)
        while late:
            land(disk, dice, late)
        assert state_of(snapshot.newest(files)) == state_of(by_commits)
    assert count > 10


def _by_commits_alone(disk: Disk) -> Snapshot:
    commits = Disk()
    for path, data in disk.files.items():
        if path.endswith(".json"):
            commits.put(path, data, durable=True)
    return snapshot.newest(TableFiles(Location(Lying(commits, random.Random(0), []), "table")))


@pytest.mark.parametrize("seed", range(8))
def test_checkpoints_upon_checkpoints_are_what_the_whole_log_says(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    table = Table.create_at(tmp_path / "table")
    whole = Table.create_at(tmp_path / "whole")
    now_ms = NOW_MS
    for version, commit in enumerate(random_log(dice, 30, NOW_MS)):
        for place in (table, whole):
            write_commit(place.path, version, *commit)
        now_ms += dice.randrange(2 * DAY_MS)
        if dice.random() < 0.3:
            by_checkpoints = snapshot.newest(files_of(table))
            assert state_of(by_checkpoints) == state_of(snapshot.newest(files_of(whole)))
            write(table, now_ms)
            if dice.random() < 0.5:
                forget_before(table, version)
            shutil.copytree(whole.path, alone := tmp_path / f"at-{version}" / "table")
            write_checkpoint(files_of(Table(alone.parent)), now_ms)
            assert content(checkpoint_file(table)) == content(alone / "_delta_log" / checkpoint_file(table).name)
            assert state_of(snapshot.newest(files_of(table))) == state_of(by_checkpoints)


def random_log(dice: random.Random, commits: int, now_ms: int = NOW_MS) -> Iterator[list[dict[str, Any]]]:
    """Commits of a table whose files come, go, come back and get vectors."""
    properties = {"delta.deletedFileRetentionDuration": "interval 9 days"}
    yield [protocol("domainMetadata"), metadata(schema_string({"id": "long"}), **properties)]
    live: dict[str, int | None] = {}
    for number in range(1, commits):
        commit: list[dict[str, Any]] = [{"commitInfo": {"timestamp": number}}]
        for path in dice.sample([f"f{i}%20{i}" for i in range(6)] + [f"p=a/f{i}" for i in range(6)], 4):
            change = dice.choice(("another vector", "gone", "another tag"))
            if path in live and change != "another tag":
                commit.append(removal(path, live[path], days=dice.randrange(-40, 12)))
                if change == "gone":
                    del live[path]
                    continue
                live[path] = number if live[path] is None else dice.choice((None, number))
            elif path not in live:
                live[path] = None
            commit.append(addition(path, live[path], tags={"n": str(number)}, stats=f'{{"numRecords":{number}}}'))
        if dice.random() < 0.3:
            commit.append({"txn": {"appId": dice.choice("ab"), "version": number, "lastUpdated": now_ms}})
        if dice.random() < 0.3:
            domain = {"domain": dice.choice("xy"), "configuration": str(number), "removed": dice.random() < 0.4}
            commit.append({"domainMetadata": domain})
        if dice.random() < 0.1:
            commit.append(metadata(schema_string({"id": "long"}), **properties, version=str(number)))
        yield dice.sample(commit, len(commit))


V2_NAME = "checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
FORMS = ("parts", "sidecar", "inline", "by delta-rs")


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_goes_on_from_one_of_any_form(tmp_path: Path, form: str) -> None:
    table = Table.create_at(tmp_path, reader=["v2Checkpoint"])
    writer = fill_table(table)
    table.merge(writer, [row(5, "new", offset=2)], [row(7)])
    _make_of_form(table, form)
    forget_before(table, 3)
    write(table)
    assert not checkpoint_file(table).exists() or form == "by delta-rs", "another form is as good"
    table.merge(writer, [row(6, "new", offset=3)], [row(8)])
    by_commits = snapshot.newest(files_of(table))
    write(table)
    forget_before(table, 4)
    assert state_of(snapshot.newest(files_of(table))) == state_of(by_commits)
    assert len(files_in(table, "remove")) == 2, "the file without a vector, and with its first one"
    check(table)


def _make_of_form(table: Table, form: str) -> None:
    if form == "by delta-rs":
        DeltaTable(str(table.path)).create_checkpoint()
        return
    write(table)
    classic = checkpoint_file(table)
    rows = pq.read_table(classic)
    (log(table) / "_last_checkpoint").unlink()
    if form == "parts":
        for part in (1, 2):
            chosen = rows.slice((part - 1) * 3, 3 if part == 1 else None)
            pq.write_table(chosen, log(table) / f"{3:020d}.checkpoint.{part:010d}.{2:010d}.parquet")
    else:
        of_files = [{k: v} for r in rows.to_pylist() for k, v in r.items() if v is not None]
        lines = [{"checkpointMetadata": {"version": 3}}, *map(_as_json, of_files)]
        if form == "sidecar":
            (log(table) / "_sidecars").mkdir()
            pq.write_table(rows.select(["add", "remove"]), log(table) / "_sidecars" / "a.parquet")
            small = [line for line in lines if not {"add", "remove"} & line.keys()]
            lines = [*small, {"sidecar": {"path": "a.parquet", "sizeInBytes": 1, "modificationTime": 1}}]
        (log(table) / f"{3:020d}.{V2_NAME}").write_text("".join(json.dumps(line) + "\n" for line in lines))
    classic.unlink()


def _as_json(action: Mapping[str, Any]) -> dict[str, Any]:
    """With Parquet's maps as objects."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if v is not None}
        is_map = isinstance(value, list) and all(isinstance(pair, tuple) for pair in value)
        return dict(value) if is_map else value

    features = {k: plain(v) for k, v in action.items()}
    for name in ("readerFeatures", "writerFeatures", "partitionColumns"):
        for fields in features.values():
            if fields.get(name) == {}:
                fields[name] = []
    return features
