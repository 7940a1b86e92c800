"""Who may reach our nodes in ZooKeeper, and how: users by digest and by SASL, and TLS, on real servers."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, SASLException, SessionClosedRequireSaslError
from kazoo.protocol.connection import ConnectionHandler

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.errors import StateError, StateUnavailable
from dblog_core.interfaces import Entry
from dblog_core.local.servers import ports
from dblog_core.local.servers.zookeeper import ZookeeperServer
from dblog_core.state import zookeeper, zookeeper_session
from tests.certificates import Authority, authority
from tests.contract.stores import LONG


def zookeeper_config(root: Path, url: str, **state: Any) -> Config:
    source = {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.a"]}
    sections = {"staging": {"path": str(root / "staging")}, "lake": {"path": str(root / "lake")}}
    return Config.model_validate({"source": source, **sections, "state": {"url": url, "ttl": 3, **state}})


def test_nodes_of_a_user_are_closed_to_everybody_else(zookeeper_url: str, tmp_path: Path) -> None:
    own_config = zookeeper_config(tmp_path, zookeeper_url, user="dblog", password="a secret")
    with closing(wiring.open_state(own_config)) as state:
        state.create("dumps/one", b"data")
        lease = state.acquire("capture", "me", ttl=LONG)
        assert lease is not None and lease.valid()
        with closing(wiring.open_state(own_config)) as second_state:
            assert second_state.get("dumps/one") == Entry(b"data", 0)
            leader = second_state.leader("capture")
            assert leader is not None and leader.holder == "me"
        for other_config in (
            zookeeper_config(tmp_path, zookeeper_url),
            zookeeper_config(tmp_path, zookeeper_url, user="dblog", password="wrong"),
            zookeeper_config(tmp_path, zookeeper_url, user="other", password="a secret"),
        ):
            with closing(wiring.open_state(other_config)) as other:
                with pytest.raises(StateError, match="NoAuth") as refused:
                    other.get("dumps/one")
                assert "user" in refused.value.fix and "secret" not in str(refused.value)
                with pytest.raises(StateError, match="NoAuth"):
                    other.update("dumps/one", b"theirs", 0)
                with pytest.raises(StateError, match="NoAuth"):
                    other.acquire("capture", "them", ttl=3)
        assert lease.valid()
        lease.release()
        assert "a secret" not in repr(own_config)


def test_every_node_has_the_users_list_alone(zookeeper_url: str, tmp_path: Path) -> None:
    with closing(wiring.open_state(zookeeper_config(tmp_path, zookeeper_url, user="dblog", password="x"))) as state:
        state.create("dumps/one/tasks/0", b"")
        lease = state.acquire("capture", "me", ttl=LONG)
        assert lease is not None
        servers, _, chroot = zookeeper_url.removeprefix("zookeeper://").partition("/")
        client = KazooClient(servers, auth_data=[("digest", "dblog:x")])
        client.start()
        try:
            acls_by_path = {path: client.get_acls(path)[0] for path in _below(client, f"/{chroot}")}
        finally:
            client.stop()
            client.close()
        lease.release()
    assert len(acls_by_path) >= 8
    assert {len(acls) for acls in acls_by_path.values()} == {1}
    assert {acls[0].id.scheme for acls in acls_by_path.values()} == {"digest"}
    assert {acls[0].id.id.split(":")[0] for acls in acls_by_path.values()} == {"dblog"}


def _below(client: KazooClient, path: str) -> Iterator[str]:
    yield path
    for child in client.get_children(path):
        yield from _below(client, f"{path}/{child}")


@pytest.fixture
def with_logins(tmp_path: Path) -> Iterator[ZookeeperServer]:
    """A server that lets nobody in without a login of its list."""
    users = tmp_path / "users.conf"
    module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
    users.write_text(f'Server {{ {module} user_dblog="a secret" user_other="another"; }};\n')
    provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
    server = ZookeeperServer(
        tmp_path / "zookeeper",
        settings={"authProvider.1": provider, "sessionRequireClientSASLAuth": "true"},
        properties={"java.security.auth.login.config": str(users)},
    )
    server.start()
    try:
        yield server
    finally:
        server.kill()


def test_nodes_of_a_login_are_closed_to_every_other(with_logins: ZookeeperServer, tmp_path: Path) -> None:
    url = f"zookeeper://{with_logins.address()}/dblog"
    own_config = zookeeper_config(tmp_path, url, login="sasl", user="dblog", password="a secret")
    with closing(wiring.open_state(own_config)) as state:
        state.create("dumps/one", b"data")
        lease = state.acquire("capture", "me", ttl=3)
        assert lease is not None and lease.valid()
        other_config = zookeeper_config(tmp_path, url, login="sasl", user="other", password="another")
        with closing(wiring.open_state(other_config)) as other, pytest.raises(StateError, match="NoAuth"):
            other.get("dumps/one")
        with_logins.kill()
        with_logins.start()
        assert state.get("dumps/one") == Entry(b"data", 0), "it has logged in again"
        lease.release()


def test_a_wrong_login_is_told_at_once(
    with_logins: ZookeeperServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_session, "ANSWER_SECONDS", 1000.0)
    monkeypatch.setattr(zookeeper, "_PATIENCE", 2.0)
    url = f"zookeeper://{with_logins.address()}/dblog"
    wrong = zookeeper_config(tmp_path, url, login="sasl", user="dblog", password="wrong")
    with (
        closing(wiring.open_state(wrong)) as state,
        pytest.raises(StateUnavailable, match="refuses the login") as error_info,
    ):
        state.get("dumps/one")
    assert "[state] user" in error_info.value.fix and "wrong" not in str(error_info.value)


@pytest.mark.parametrize("refusal", [AuthFailedError, SASLException, SessionClosedRequireSaslError])
def test_a_login_whose_refusal_kazoo_shows_for_a_moment_only_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, refusal: type[Exception]
) -> None:
    """kazoo's state is "closed" a moment after "login refused": whoever looks at intervals misses it."""

    def refuse(*_: Any) -> None:
        raise refusal

    monkeypatch.setattr(zookeeper_session, "ANSWER_SECONDS", 1000.0)
    monkeypatch.setattr(ConnectionHandler, "_connect", refuse)
    access = zookeeper_session.Access(user="dblog", password="wrong", login="sasl")
    with pytest.raises(StateUnavailable, match="refuses the login of dblog"):
        zookeeper_session.Session("127.0.0.1:2181", seconds=5, access=access).start()


@dataclass(frozen=True, slots=True)
class Secure:
    """A server that speaks TLS and asks for a certificate of `ca`."""

    url: str
    ca: Authority


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Secure]:
    ca = authority(tmp_path / "ca", "DBLog tests")
    certificate, key = ca.sign("server", "127.0.0.1")
    store = tmp_path / "ca" / "keystore.pem"
    store.write_text(Path(key).read_text() + Path(certificate).read_text())
    port = ports.remember_port(tmp_path / "secure-port")
    server = ZookeeperServer(
        tmp_path / "zookeeper",
        settings={
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPort": str(port),
            "secureClientPortAddress": "127.0.0.1",
            "ssl.keyStore.location": str(store),
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": ca.file,
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "need",
        },
    )
    server.start()
    try:
        yield Secure(f"zookeeper://127.0.0.1:{port}/dblog", ca)
    finally:
        server.kill()


def test_leases_and_nodes_over_tls_with_certificates_of_both(secure: Secure, tmp_path: Path) -> None:
    certificate, key = secure.ca.sign("client")
    tls = {"tls": "verify-full", "tls_ca": secure.ca.file, "tls_cert": certificate, "tls_key": key}
    config = zookeeper_config(tmp_path, secure.url, user="dblog", password="x", **tls)
    with closing(wiring.open_state(config)) as state:
        state.create("dumps/one", b"data")
        assert state.get("dumps/one") == Entry(b"data", 0)
        lease = state.acquire("capture", "me", ttl=3)
        assert lease is not None and lease.valid()
        with closing(wiring.open_state(config)) as standby:
            assert standby.acquire("capture", "another", ttl=3, wait=4) is None
        assert lease.valid(), "it is kept alive over TLS"
        lease.release()


@pytest.mark.in_turn("wrong")
@pytest.mark.parametrize("wrong", ["clear", "authority", "no certificate", "name"])
def test_a_connection_that_is_not_as_it_should_be_is_refused(
    secure: Secure, tmp_path: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_session, "ANSWER_SECONDS", 2.0)
    monkeypatch.setattr(zookeeper, "_PATIENCE", 2.0)
    certificate, key = secure.ca.sign("client")
    tls = {"tls": "verify-full", "tls_ca": secure.ca.file, "tls_cert": certificate, "tls_key": key}
    url = secure.url
    if wrong == "clear":
        tls = {}
    elif wrong == "authority":
        tls["tls_ca"] = authority(tmp_path / "others", "somebody else").file
    elif wrong == "no certificate":
        del tls["tls_cert"], tls["tls_key"]
    else:
        url = url.replace("127.0.0.1", "localhost")  # the certificate is for the address alone
    with (
        closing(wiring.open_state(zookeeper_config(tmp_path, url, **tls))) as state,
        pytest.raises(StateUnavailable) as refused,
    ):
        state.get("dumps/one")
    assert "[state] url" in refused.value.fix
    assert ("tls_ca" in refused.value.fix) == (wrong != "clear")
    gc.collect()  # a socket that is left open is told here
