"""What all ranks of a group agree on before they do it. A rank that cannot do it says why, and all raise that: else it would raise alone,
and the others would wait for it."""

import struct
from typing import Any, List, Optional

_KINDS = (ValueError, TypeError, NotImplementedError, RuntimeError)
_NUMBERS, _TEXT_BYTES = 4, 480  # that each rank tells
_HEADER, _TEXT = 2 + _NUMBERS, f"{_TEXT_BYTES // 8}q"


def require_in_use(what: str, group: Any) -> None:
    if group._channel.has_ended():
        raise ValueError(f"{what}: its process group has ended (destroy_process_group(), recover()), expected one that is in use: a model "
                         "is wrapped anew in that")


def agree(what: str, group: Any, refusal: Optional[Exception], *numbers: int) -> List[List[int]]:
    """Collective. `numbers`, four at most, of each rank. ValueError: the group has ended. The first rank's refusal, where one has any,
    which then names it; where all have one, each rank's own."""
    require_in_use(what, group)
    text = str(refusal).encode()[:_TEXT_BYTES] if refusal is not None else b""
    kind = 0 if refusal is None else next((at for at, one in enumerate(_KINDS, 1) if isinstance(refusal, one)), len(_KINDS))
    own = [kind, len(text), *numbers, *[0] * (_NUMBERS - len(numbers)), *struct.unpack(_TEXT, text.ljust(_TEXT_BYTES, b"\0"))]
    everyone = [one.tolist() for one in group._everyones(own)]
    refusing = [rank for rank, one in enumerate(everyone) if one[0]]
    if refusing:
        raise _refusal(everyone, refusing, refusal) from (refusal.__cause__ if refusal is not None else None)
    return [one[2:2 + len(numbers)] for one in everyone]


def _refusal(everyone: List[List[int]], refusing: List[int], own: Optional[Exception]) -> Exception:
    if own is not None and len(refusing) == len(everyone):
        return own
    first = everyone[refusing[0]]
    text = struct.pack(_TEXT, *first[_HEADER:])[:first[1]].decode(errors="ignore")
    return _KINDS[first[0] - 1](f"{text} (rank {refusing[0]} of the group)")


def require_one(what: str, name: str, of_ranks: List[int]) -> None:
    """ValueError, on all ranks: they have said different numbers."""
    if len(set(of_ranks)) > 1:
        found = ", ".join(map(str, of_ranks[:16])) + (", ..." if len(of_ranks) > 16 else "")
        raise ValueError(f"{what}: {name}: {found} on the ranks, expected one number on all ranks")
