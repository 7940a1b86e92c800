"""Where numba finds kernels that an image brings compiled, in a directory that nobody may write.

numba takes a directory for its cache only if it can write there. An image whose code belongs to root names this class
in `NUMBA_CACHE_LOCATOR_CLASSES`, in front of numba's own.
"""

from __future__ import annotations

from pathlib import Path

from numba.core import caching


class ShippedKernels(caching.UserProvidedCacheLocator):
    """`NUMBA_CACHE_DIR` as it is: a module that has no directory in it is left to the next class."""

    def ensure_cache_path(self) -> None:
        """Raises NotADirectoryError, which makes numba ask the next class."""
        path: str = self.get_cache_path()  # type: ignore[no-untyped-call]
        if not Path(path).is_dir():
            raise NotADirectoryError(path)
