"""The password of the configuration that tests of commands use."""

from __future__ import annotations

PASSWORD = "hunter2secret"
