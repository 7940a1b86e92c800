"""The buffer that messages of an output plugin lie in, end to end, from their arrival until their batch is made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

PREFIX = 4
"""Bytes before each message: its length, lowest byte first. So any run of messages describes itself."""
ROOM = 5 << 20
"""Bytes of an ordinary buffer; one message that is larger makes it grow."""
MOST = 8192
"""Messages that are held at once."""


@dataclass(slots=True)
class Messages:
    """`raw[starts[i] : ends[i]]` is message `i` of `count`; those before `next` are taken, and what was made of them
    may still point into `raw`."""

    raw: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(ROOM, dtype=np.uint8))
    starts: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(MOST, dtype=np.int64))
    ends: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(MOST, dtype=np.int64))
    count: int = 0
    next: int = 0

    @classmethod
    def of(cls, messages: Iterable[bytes]) -> Messages:
        """These messages, not taken yet."""
        listed = list(messages)
        parts = [part for message in listed for part in (len(message).to_bytes(PREFIX, "little"), message)]
        lengths = np.fromiter(map(len, listed), dtype=np.int64, count=len(listed))
        ends = np.cumsum(lengths + PREFIX)
        return cls(np.frombuffer(b"".join(parts), dtype=np.uint8).copy(), ends - lengths, ends, len(listed))

    @property
    def is_taken(self) -> bool:
        """Whether every message is."""
        return self.next == self.count

    @property
    def end(self) -> int:
        """Where the next message goes."""
        return int(self.ends[self.count - 1]) if self.count else 0

    def message(self, number: int) -> bytes:
        """A copy of the message of this number."""
        return self.raw[self.starts[number] : self.ends[number]].tobytes()

    def kind(self, number: int) -> int:
        """The first byte, which says what the message is; -1 for an empty one."""
        start = self.starts[number]
        return int(self.raw[start]) if self.ends[number] > start else -1

    def run(self, begin: int, end: int) -> memoryview:
        """Messages `begin` to `end`, with their lengths."""
        first = int(self.starts[begin]) - PREFIX if begin < end else 0
        last = int(self.ends[end - 1]) if begin < end else 0
        return self.raw[first:last].data

    def clear(self) -> None:
        """Forgets what is taken; the rest moves to the front. Nothing may point into `raw` then."""
        rest = self.run(self.next, self.count)
        shift = int(self.starts[self.next]) - PREFIX if rest else 0
        number = self.count - self.next
        if rest and shift:
            # Copied first: source and target overlap.
            self.raw[: len(rest)] = np.frombuffer(rest, dtype=np.uint8).copy()
            self.starts[:number] = self.starts[self.next : self.count] - shift
            self.ends[:number] = self.ends[self.next : self.count] - shift
        self.count = number
        self.next = 0
        # One huge message must not keep its memory for the rest of the capture's life.
        if not number and len(self.raw) > ROOM:
            self.raw = np.empty(ROOM, dtype=np.uint8)

    def grow(self, size: int) -> None:
        """Room for one more message of `size` bytes."""
        end = self.end
        raw = np.empty(end + PREFIX + size, dtype=np.uint8)
        raw[:end] = self.raw[:end]
        self.raw = raw
