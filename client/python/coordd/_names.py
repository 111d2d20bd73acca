"""Names of tensors as the library takes them."""

import hashlib
import zlib
from typing import Sequence

from coordd.exceptions import InvalidArgumentError

MAX_BYTES = 512  # kMaxTensorNameBytes


def wire_name(name: str, most_bytes: int = MAX_BYTES) -> bytes:
    """The name itself; of a longer one its begin, and a hash of all of it."""
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(f"name is {name!r}: expected a string of at least one character", "INVALID_ARGUMENT")
    encoded = name.encode()
    if len(encoded) <= most_bytes:
        return encoded
    end = f"...{hashlib.sha256(encoded).hexdigest()[:32]}".encode()
    begin = encoded[:most_bytes - len(end)].decode(errors="ignore")  # without half a character
    return begin.encode() + end


def without(name: str, absent: Sequence[int]) -> str:
    """What members of a list travel by of which some are absent. Ranks on which others are absent have another name, so that they wait
    for each other and are told of it, where under one name they would add up what does not belong together."""
    if not absent:
        return name
    listed = ".".join(map(str, absent))
    return f"{name}.without.{listed}" if len(absent) <= 8 else f"{name}.without.{zlib.crc32(listed.encode()):08x}"
