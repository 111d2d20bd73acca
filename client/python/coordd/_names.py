"""Names of tensors as the library takes them."""

import hashlib

MAX_BYTES = 512  # kMaxTensorNameBytes


def wire_name(name: str, most_bytes: int = MAX_BYTES) -> bytes:
    """The name itself; of a longer one its begin, and a hash of all of it."""
    encoded = name.encode()
    if len(encoded) <= most_bytes:
        return encoded
    end = f"...{hashlib.sha256(encoded).hexdigest()[:32]}".encode()
    begin = encoded[:most_bytes - len(end)].decode(errors="ignore")  # without half a character
    return begin.encode() + end
