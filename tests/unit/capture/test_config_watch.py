"""The look at the configuration's file: what comes into force, and what is told of once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dblog_core.capture import config_reload
from dblog_core.capture.config_reload import Newcomers, Watch
from dblog_core.config.settings import Config
from dblog_core.errors import SourceRefused
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


def test_a_new_table_that_is_locked_begins_no_term_and_is_told_of_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Others that came with it are taken in at once; the term that does so leaves it for later."""
    clock = Clock()
    source = FakeSource(world.database)
    source.kind = "postgres"
    settings_in_force.put_shown(world.state, {"shop.a@1"})
    locked = frozenset({"shop.b"})
    newcomers = Newcomers(world.state, clock, ready=lambda config: locked)
    for _ in range(5):
        clock.now += config_reload.NEWCOMERS
        assert not newcomers.look(world.config, source)
    assert len(warnings(caplog)) == 1 and "somebody has locked shop.b" in warnings(caplog)[0]
    settings_in_force.put_shown(world.state, set())
    clock.now += config_reload.NEWCOMERS
    assert newcomers.look(world.config, source), "the other one is not locked"
    settings_in_force.put_shown(world.state, {"shop.a@1"})
    locked = frozenset()
    clock.now += config_reload.NEWCOMERS
    assert newcomers.look(world.config, source), "it is free"
