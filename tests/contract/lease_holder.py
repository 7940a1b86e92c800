"""A process that takes a lease, says so, and answers each line on its input with whether the lease is valid."""

from __future__ import annotations

import sys

from dblog_core.interfaces import StateStore
from dblog_core.state.sqlite import SqliteState
from dblog_core.state.zookeeper import ZookeeperState


def store(url: str, prefix: str) -> StateStore:
    scheme, _, rest = url.partition("://")
    return ZookeeperState(rest, prefix=prefix) if scheme == "zookeeper" else SqliteState(rest, prefix=prefix)


def main() -> None:
    url = sys.argv[1]
    ttl = float(sys.argv[2])
    lease = store(url, "shop").acquire("capture", "child", ttl=ttl, wait=10)
    assert lease is not None
    print(lease.epoch, flush=True)
    for _ in sys.stdin:
        print(lease.valid(), flush=True)


if __name__ == "__main__":
    main()
