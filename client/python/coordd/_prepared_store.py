"""Structures of submissions that are used again, by what they were made for."""

from typing import Dict

# Prepared submissions that are kept; a program with more names than this prepares anew. Each takes some 500 bytes.
MAX_PREPARED = 8192


class PreparedStore:
    """Prepared structures by key. Thread-safe without a lock: taking one removes it, one step of the interpreter."""

    def __init__(self):
        self._free: Dict[object, object] = {}

    def take(self, key):
        """The structure of this key, or None when there is none or another thread is using it."""
        return self._free.pop(key, None)

    def give_back(self, key, prepared) -> None:
        if len(self._free) >= MAX_PREPARED:
            self._free.clear()
        self._free[key] = prepared

    def clear(self) -> None:
        self._free.clear()
