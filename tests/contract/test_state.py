"""One behaviour of all state stores: memory, SQLite, ZooKeeper."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pytest

from dblog_core.errors import StateError, StateUnavailable, VersionConflict
from dblog_core.interfaces import Entry, StateStore
from tests.contract.lease_holder import store
from tests.contract.stores import TTL, Open, every, real


@every
def test_what_one_client_creates_another_reads(open_store: Open) -> None:
    open_store().create("dumps/d1/tasks/0", b"data")
    assert open_store().get("dumps/d1/tasks/0") == Entry(b"data", 0)
    assert open_store().get("dumps/d1") == Entry(b"", 0)
    assert open_store().get("dumps/d2") is None


@every
def test_a_node_is_created_once(open_store: Open) -> None:
    state = open_store()
    state.create("a/b", b"first")
    with pytest.raises(VersionConflict):
        state.create("a/b", b"second")
    assert state.get("a/b") == Entry(b"first", 0)


@every
def test_many_nodes_are_read_at_once_as_each_alone(open_store: Open) -> None:
    state = open_store()
    for number in range(30):
        state.create(f"many/{number}", b"%d" % number)
    state.update("many/3", b"three", 0)
    paths = [f"many/{number % 40}" for number in range(1_300)]
    assert state.get_all(paths) == [state.get(path) for path in paths[:40]] * 32 + [state.get(p) for p in paths[:20]]
    assert state.get_all(["many/3", "none", "many/3"]) == [Entry(b"three", 1), None, Entry(b"three", 1)]
    assert state.get_all([]) == []
    with pytest.raises(StateError, match="not a path"):
        state.get_all(["many/3", "/a"])


@every
def test_many_nodes_are_created_at_once_and_each_once(open_store: Open) -> None:
    state = open_store()
    nodes = {f"deep/{number}/below": b"%d" % number for number in range(450)}
    state.create_all(nodes)
    assert state.get_all(list(nodes)) == [Entry(data, 0) for data in nodes.values()]
    assert len(state.children("deep")) == 450 and state.children("deep/7") == ["below"]
    with pytest.raises(VersionConflict):
        state.create_all({"deep/x/below": b"", "deep/7/below": b"another"})
    assert state.get("deep/7/below") == Entry(b"7", 0)
    state.create_all({})


@every
def test_an_update_needs_the_present_version(open_store: Open) -> None:
    state = open_store()
    state.create("a", b"0")
    assert state.update("a", b"1", 0) == 1
    with pytest.raises(VersionConflict):
        state.update("a", b"2", 0)
    with pytest.raises(VersionConflict):
        state.update("missing", b"2", 0)
    assert state.get("a") == Entry(b"1", 1)


@every
def test_delete_takes_all_below_and_nothing_beside(open_store: Open) -> None:
    state = open_store()
    for path in ("d/1", "d/1/tasks/0", "d/10", "d/1-x"):
        state.create(path, b"")
    state.delete("d/1")
    state.delete("d/1")
    assert state.children("d") == ["1-x", "10"]
    assert state.get("d/1/tasks/0") is None


@every
def test_children_are_sorted_names_right_below(open_store: Open) -> None:
    state = open_store()
    for path in ("t/b/deep/er", "t/a", "t/ü", "tt/c"):
        state.create(path, b"")
    assert state.children("t") == ["a", "b", "ü"]
    assert state.children("t/a") == [] == state.children("none")


@real
def test_sources_do_not_see_each_other(open_store: Open) -> None:
    open_store("shop").create("a", b"")
    assert open_store("shop2").get("a") is None
    first = open_store("shop")
    second = open_store("shop2")
    lease = first.acquire("capture", "x", ttl=TTL)
    two = second.acquire("capture", "y", ttl=TTL)
    assert lease is not None and two is not None
    lease.release()
    two.release()


@every
def test_the_names_of_tens_of_thousands_of_tables_fit(open_store: Open) -> None:
    state = open_store()
    first, second = (orjson.dumps([f"shop.orders_of_{year}_{n:05}" for n in range(40_000)]) for year in (2025, 2026))
    assert len(first) > 1_000_000
    state.create("tables", first)
    assert state.get("tables") == Entry(first, 0) == state.get_all(["tables"])[0]
    state.update("tables", second, 0)
    assert state.get("tables") == Entry(second, 1)
    state.create_all({"more/a": first, "more/b": b"x"})
    assert state.get("more/a") == Entry(first, 0)


@every
def test_what_does_not_fit_or_is_no_path_is_refused_clearly(open_store: Open, request: pytest.FixtureRequest) -> None:
    state = open_store()
    large = random.Random(1).randbytes(1_000_000)
    if "sqlite" in request.node.callspec.id:
        state.create("big", large)
        assert state.get("big") == Entry(large, 0)
    else:
        with pytest.raises(StateError, match="do not fit") as caught:
            state.create("big", large)
        assert not caught.value.transient
    for path in ("", "/a", "a/", "a//b", "a/../b"):
        with pytest.raises(StateError, match="not a path"):
            state.get(path)


@every
def test_concurrent_updates_lose_nothing(open_store: Open) -> None:
    open_store().create("counter", b"0")

    def count(state: StateStore) -> None:
        done = 0
        while done < 20:
            entry = state.get("counter")
            assert entry is not None
            try:
                state.update("counter", str(int(entry.data) + 1).encode(), entry.version)
            except VersionConflict:
                continue
            done += 1

    threads = [threading.Thread(target=count, args=(open_store(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert open_store().get("counter") == Entry(b"80", 80)


def test_a_new_file_is_opened_by_many_at_once(tmp_path: Path) -> None:
    for attempt in range(100):  # SQLite fails one of two that switch a file to WAL: 3 of 100 met, once
        stores = [store(f"sqlite://{tmp_path / str(attempt)}.db", "shop") for _ in range(6)]
        together = threading.Barrier(len(stores))

        def first_use(state: StateStore, together: threading.Barrier = together) -> None:
            together.wait()
            assert state.leader("capture") is None
            state.close()

        with ThreadPoolExecutor(len(stores)) as pool:
            list(pool.map(first_use, stores))


@real
def test_a_store_that_cannot_be_reached_is_a_transient_error(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dblog_core.state.zookeeper_session.ANSWER_SECONDS", 1.0)
    monkeypatch.setattr("dblog_core.state.zookeeper._PATIENCE", 1.0)
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    state = store({"zookeeper": "zookeeper://127.0.0.1:1/x", "sqlite": f"sqlite://{blocked}/state.db"}[kind], "shop")
    with pytest.raises(StateUnavailable if kind == "zookeeper" else StateError) as caught:
        state.get("a")
    assert caught.value.where and caught.value.fix
    state.close()
