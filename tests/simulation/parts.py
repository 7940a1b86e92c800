"""What a world is made of: its tables, its configuration, and the fakes in the places of the real parts."""

from __future__ import annotations

import contextlib
import logging
import random
import secrets
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa

from dblog_core import wiring
from dblog_core.capture import announced_windows, dump_process
from dblog_core.config.settings import Config
from dblog_core.dumps import filing, read_only_windows, work_loop
from dblog_core.errors import DblogError
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.staging import compaction, compaction_blocks, parquet, segment
from tests.simulation import arrow_files

if TYPE_CHECKING:
    from tests.simulation.world import World

log = logging.getLogger(__name__)

INT = pa.int64()
_TEXT = pa.string()
TABLES = (
    TableSchema(
        TableName("shop", "orders"),
        (Column("id", "bigint", INT), Column("v", "bigint", INT), Column("big", "text", _TEXT)),
        ("id",),
    ),
    TableSchema(
        TableName("shop", "items"),
        (
            Column("big", "text", _TEXT),
            Column("a", "bigint", INT),
            Column("b", "text", _TEXT),
            Column("v", "bigint", INT),
        ),
        ("a", "b"),
    ),
)


def config_of(kind: str, dice: random.Random) -> Config:
    return Config.model_validate(
        {
            "source": {
                "name": "shop",
                "kind": kind,
                "database": "shop",
                "tables": ["shop.*"],
                "start": dice.choice(("latest", "initial")),
                "read_only": dice.random() < 0.4,
            },
            "staging": {"path": "/simulated", "max_age": dice.choice((0.3, 1.0))},
            "state": {"url": "sqlite:////simulated", "ttl": 2.0},
            "lake": {"path": "/simulated"},
            "dump": {
                "chunk_size": dice.choice((2, 4, 10)),
                "workers": dice.choice((1, 3)),
                "in_flight": dice.choice((1, 2, 4)),
            },
        }
    )


@contextlib.contextmanager
def instead_of_the_real_ones(world: World) -> Iterator[None]:
    """The engine's parts are the simulated ones, and its ids come from the seed."""
    ids = random.Random(world.seed)

    def system_dumps(config: Config, _state: Any, clock: Any, stop: Any, **_: Any) -> None:
        spawn = world.simulation.spawn
        by = dump_process.REQUESTED_BY
        while not clock.wait(stop, dump_process.LOOK):
            try:
                work_loop.work_here(config, stop=stop, clock=world.clock, requested_by=by, spawn=spawn)
            except DblogError as error:
                log.warning("a dump that the system or a signal requested: %s", error)

    with contextlib.ExitStack() as stack:
        for target, name, value in (
            (wiring, "open_source", lambda config: world.open_source()),
            (wiring, "open_state", lambda config: world.open_state()),
            (wiring, "open_staging", lambda config: world.open_staging()),
            (uuid, "uuid4", lambda: uuid.UUID(int=ids.getrandbits(128), version=4)),
            (secrets, "token_hex", lambda size: f"{ids.getrandbits(8 * size):0{2 * size}x}"),
            (filing, "SystemClock", lambda: world.clock),
            (dump_process, "work", system_dumps),
            # A look is a step of the simulation, and costs more there than anywhere else.
            (announced_windows, "BUSY", ids.choice((0.03, 0.1))),
            (announced_windows, "IDLE", 0.3),
            (read_only_windows, "SHORTEST_PAUSE_SECONDS", 0.02),
            (read_only_windows, "LONGEST_PAUSE_SECONDS", 0.2),
            (compaction_blocks, "FAN", ids.choice((2, 2, 3, 16))),
            (compaction, "GRACE", ids.choice((0.1, 1.0, 8.0))),
            (compaction, "_TICK", ids.choice((0.2, 1.0))),
            (compaction, "_LARGE", ids.choice((1, 1000, compaction._LARGE))),
            (segment, "INLINE_BYTES", ids.choice((0, 500, segment.INLINE_BYTES))),
            *((parquet, name, getattr(arrow_files, name)) for name in ("Encoder", "encode", "open_file", "batches")),
        ):
            stack.enter_context(mock.patch.object(target, name, value))
        yield
