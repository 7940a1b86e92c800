"""The look at the configuration's file: what comes into force, and what is told of once."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dblog_core.capture import config_reload
from dblog_core.capture.config_reload import Handover, Newcomers, Watch
from dblog_core.config.settings import Config
from dblog_core.errors import PublicationIncomplete, SourceRefused
from dblog_core.staging.table_records import TableRecords
from dblog_core.state import settings_in_force
from tests.fake_source import FakeSource
from tests.unit.reload_world import Clock, World, world

__all__ = ["world"]


def watch(
    world: World, *, ready: Callable[[Config], frozenset[str]] = lambda config: frozenset()
) -> tuple[Watch, Clock]:
    clock = Clock()
    return Watch(world.config, world.config_file, clock, ready=ready), clock


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_file_that_does_not_change_changes_nothing(world: World) -> None:
    looking, _ = watch(world)
    assert [looking.look() for _ in range(3)] == [None] * 3


def test_a_broken_file_is_told_of_once_and_ignored_until_it_is_right(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    looking, clock = watch(world)
    world.file.write_text("[source")
    for _ in range(40):
        clock.now += config_reload.LOOK
        assert looking.look() is None
    assert len(warnings(caplog)) == 1 and "is not TOML" in warnings(caplog)[0]
    world.file.unlink()
    assert looking.look() is None and looking.look() is None
    assert len(warnings(caplog)) == 2 and "cannot be read" in warnings(caplog)[1]
    world.write("shop.?")
    assert looking.look() == world.config
    assert looking.look() is None


def test_a_change_elsewhere_is_told_of_once_and_keeps_the_rest_from_coming_into_force(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    looking, clock = watch(world)
    world.write("shop.?", staging="min_age = 0.04")
    for _ in range(40):
        clock.now += config_reload.LOOK
        assert looking.look() is None
    (warning,) = warnings(caplog)
    assert "more has changed than tables, columns and keys of [source]" in warning
    world.write("shop.?")
    assert looking.look() == world.config


def test_what_the_source_refuses_is_tried_again_without_another_change(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    refused = [True]

    def ready(config: Config) -> frozenset[str]:
        if refused[0]:
            raise SourceRefused("may not change the publication", fix="ALTER PUBLICATION …")
        return frozenset()

    looking, clock = watch(world, ready=ready)
    world.write("shop.?")
    assert looking.look() is None and looking.look() is None
    assert len(warnings(caplog)) == 1 and "ALTER PUBLICATION" in warnings(caplog)[0]
    refused[0] = False
    assert looking.look() is None
    clock.now += config_reload.AGAIN
    assert looking.look() == world.config


def test_a_new_table_that_is_locked_is_not_taken_in_and_is_told_of_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Others that came with it are taken in at once."""
    clock = Clock()
    source = FakeSource(world.database)
    source.kind = "postgres"
    records = TableRecords()
    settings_in_force.put_shown(records, {"shop.a@1"})
    locked = frozenset({"shop.b"})
    newcomers = Newcomers(world.state, clock, ready=lambda config: locked)

    def look() -> list[str]:
        clock.now += config_reload.NEWCOMERS
        found = newcomers.look(world.config, source, records)
        assert not found.needs_term
        return [] if found.new is None else list(map(str, found.new.dumpable))

    for _ in range(5):
        assert look() == []
    assert len(warnings(caplog)) == 1 and "somebody has locked shop.b" in warnings(caplog)[0]
    settings_in_force.put_shown(records, set())
    assert look() == ["shop.a"], "the other one is not locked"
    settings_in_force.put_shown(records, {"shop.a@1"})
    locked = frozenset()
    assert look() == ["shop.b"], "it is free"


def test_a_publication_that_somebody_else_has_to_complete_keeps_no_other_table_out(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    source = FakeSource(world.database)
    source.kind = "postgres"
    records = TableRecords()
    settings_in_force.put_shown(records, set())

    def ready(config: Config) -> frozenset[str]:
        raise PublicationIncomplete("publication p is incomplete", frozenset({"shop.b"}), fix="ALTER PUBLICATION p")

    newcomers = Newcomers(world.state, clock, ready=ready)
    for _ in range(2):
        clock.now += config_reload.NEWCOMERS
        found = newcomers.look(world.config, source, records).new
        assert found is not None and list(map(str, found.dumpable)) == ["shop.a"]
    (warning,) = warnings(caplog)
    assert "ALTER PUBLICATION p" in warning


def test_nothing_that_is_handed_over_is_lost_with_what_is_taken() -> None:
    """A configuration that comes while another is taken stays; one that is kept for later replaces no newer one."""
    handover = Handover[int]()
    taken: list[int] = []
    over = threading.Event()

    def take() -> None:
        while not over.is_set() or not handover.is_empty:
            if (value := handover.take()) is not None:
                taken.append(value)

    thread = threading.Thread(target=take)
    thread.start()
    for number in range(20_000):
        handover.put(number)
    over.set()
    thread.join()
    assert taken[-1] == 19_999
    handover.put(1)
    handover.put_if_empty(0)
    assert handover.take() == 1 and handover.take() is None
