"""What the output by HTTP does beside what all do: keys of requests, answers, signatures."""

from __future__ import annotations

import pytest

from dblog_core.errors import OutputRefused
from dblog_core.signatures import signature, verified
from tests.contract import changelog
from tests.contract.relayed import Death, Faulty, World
from tests.contract.targets import HttpOne

http = pytest.mark.parametrize("kind", ["http"])
pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@http
def test_lines_that_come_again_come_under_the_same_key(world: World, target: HttpOne) -> None:
    """So that a receiver which knows keys alone has each line once, also when more is staged in between."""
    for number in range(5):

        def die(name: str, call: int, late: bool, number: int = number) -> None:
            if (name, call, late) == ("write", 1 + 2 * (number % 2), True):
                raise Death

        with pytest.raises(Death):
            world.relay(Faulty(target.open(), die), batch_rows=1000)
        changelog.go_on(world.staging, 5 + number, 15 + 2 * number)
    world.relay(batch_rows=1000)
    assert len(target.requests) > len(dict(target.requests)), "some came again"
    assert [line for lines in dict(target.requests).values() for line in lines] == world.all()


@http
@pytest.mark.parametrize("answer", [429, 500, 503, 409])
def test_a_receiver_that_asks_to_come_later_is_asked_again(world: World, target: HttpOne, answer: int) -> None:
    target.answers = [answer, answer]
    assert world.relay()
    assert target.lines() == world.all()


@http
@pytest.mark.parametrize("answer", [301, 401, 403, 404])
def test_a_receiver_that_does_not_know_us_ends_the_relay(world: World, target: HttpOne, answer: int) -> None:
    target.answers = [answer]
    with pytest.raises(OutputRefused, match=f"HTTP {answer}") as caught:
        world.relay()
    assert "user=x" not in str(caught.value) and "not for logs" not in str(caught.value)
    assert target.lines() == []


@http
def test_a_request_that_was_altered_or_is_old_is_not_ours(target: HttpOne) -> None:
    key = "shop/out/1-2"
    body = b"{}\n"
    headers = {"Idempotency-Key": key, "Dblog-Signature": f"t=1000,v1={signature('s', '1000', key, body)}"}
    assert verified("s", headers, body, now=1200)
    assert not verified("s", headers, body, now=1400)
    assert not verified("s", headers, b"{ }\n", now=1200)
    assert not verified("s", {**headers, "Idempotency-Key": "shop/out/1-3"}, body, now=1200)
    assert not verified("t", headers, body, now=1200)
    assert not verified("s", {"Idempotency-Key": key}, body, now=1200)
