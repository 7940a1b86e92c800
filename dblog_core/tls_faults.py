"""Which errors of TLS last until somebody changes something, and which are a connection that broke while being made."""

from __future__ import annotations

import ssl

_BROKEN = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_LIBPQ_BROKEN = ("SSL SYSCALL error", "SSL connection has been closed", "unexpected eof")
_LIBPQ = ("certificate", "private key", "SSL", "TLS")


def lasting(error: object) -> bool:
    """Whether it is an error of Python's `ssl` about certificates or versions."""
    return isinstance(error, ssl.SSLError) and not isinstance(error, _BROKEN)


def lasting_in_libpq(message: str) -> bool:
    """Whether libpq's message, which is all that it tells, is about certificates or about TLS as such."""
    return any(word in message for word in _LIBPQ) and not any(words in message for words in _LIBPQ_BROKEN)
