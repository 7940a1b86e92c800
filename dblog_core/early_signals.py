"""SIGTERM and SIGINT that come before a command has begun: its imports take half a second and more.

They are remembered, so that the process neither dies of them nor forgets them. A second one ends it the hard way.
"""

from __future__ import annotations

import signal
from types import FrameType

_NUMBERS = (signal.SIGTERM, signal.SIGINT)
_USUAL = (signal.SIG_DFL, signal.default_int_handler)
_arrived: set[int] = set()


def hold() -> None:
    """From here on the signals are remembered, except for those that who started us wants to be ignored."""
    for number in _NUMBERS:
        if signal.getsignal(number) in _USUAL:
            signal.signal(number, _remember)


def _remember(number: int, _frame: FrameType | None) -> None:
    _arrived.add(number)
    signal.signal(number, signal.SIG_DFL)


def have_arrived() -> frozenset[int]:
    """The signals that were remembered."""
    return frozenset(_arrived)


def release() -> None:
    """From here on the signals end the process as usual; so do those that were remembered."""
    for number in _NUMBERS:
        if number in _arrived or signal.getsignal(number) is _remember:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    while _arrived:
        signal.raise_signal(_arrived.pop())
