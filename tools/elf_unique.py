#!/usr/bin/env python3
"""Turns the process-wide unique symbols of ELF shared libraries into weak ones.

g++ marks static variables of inline functions and templates STB_GNU_UNIQUE. The dynamic linker then keeps one copy of
each for the whole process, even between libraries that were loaded apart (dlopen without RTLD_GLOBAL). Two different
versions of Protobuf or Abseil, one bundled with coordd and one with torch or TensorFlow, would share variables whose
layouts differ. As weak symbols they are looked up in their own group of libraries only, like all others.

Usage: elf_unique.py FILE...     changes the files in place, prints how many symbols it changed
       elf_unique.py --count FILE...   only counts; exits 1 when there is one
"""

import struct
import sys

ELF_MAGIC = b"\x7fELF"
SHT_DYNSYM = 11
STB_WEAK = 2
STB_GNU_UNIQUE = 10
SYMBOL_BYTES = 24  # of Elf64_Sym: name 4, info 1, other 1, section 2, value 8, size 8
INFO_OFFSET = 4


class NotElf(Exception):
    pass


def dynamic_symbols(image):
    """Offsets in `image` of all entries of the dynamic symbol tables."""
    if image[:4] != ELF_MAGIC or image[4] != 2 or image[5] != 1:
        raise NotElf("not a 64-bit little-endian ELF file")
    section_headers, = struct.unpack_from("<Q", image, 0x28)
    entry_bytes, count = struct.unpack_from("<HH", image, 0x3A)
    if count == 0 or section_headers + entry_bytes * count > len(image):
        raise NotElf("no section headers: it was stripped of them, or cut off")
    offsets = []
    for index in range(count):
        base = section_headers + index * entry_bytes
        kind, = struct.unpack_from("<I", image, base + 4)
        if kind == SHT_DYNSYM:
            start, size = struct.unpack_from("<QQ", image, base + 0x18)
            if start + size > len(image):
                raise NotElf("its dynamic symbols lie beyond its end")
            offsets.extend(range(start, start + size, SYMBOL_BYTES))
    return offsets


def make_weak(image):
    """Changes `image` (a bytearray) and returns the number of symbols that were unique."""
    changed = 0
    for offset in dynamic_symbols(image):
        info = image[offset + INFO_OFFSET]
        if info >> 4 == STB_GNU_UNIQUE:
            image[offset + INFO_OFFSET] = STB_WEAK << 4 | info & 0xF
            changed += 1
    return changed


def main(arguments):
    count_only = arguments[:1] == ["--count"]
    paths = arguments[1:] if count_only else arguments
    if not paths or paths[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    total = 0
    for path in paths:
        with open(path, "rb") as source:
            image = bytearray(source.read())
        try:
            changed = make_weak(image)
        except NotElf as why:
            print(f"elf_unique: {path}: {why}", file=sys.stderr)
            return 2
        if changed and not count_only:
            with open(path, "r+b") as target:
                target.write(image)
        total += changed
    print(f"elf_unique: {total} unique symbols in {len(paths)} files" + ("" if count_only else ", now weak"))
    return 1 if count_only and total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
