#!/usr/bin/env python3
"""Prints the characters that a name may not have, as the table of common/base/unseen_characters.h.

Letters, marks, numbers, punctuation, symbols and the plain space are seen. What Unicode's general category calls a control, a format, a
surrogate, private, unassigned, a line or a space other than U+0020 is not, nor is what has another category and is drawn as nothing: then
two names would look alike, or one would change how a line around it looks.

Usage: tools/unseen.py > common/base/unseen_characters.h
"""

import unicodedata

UNSEEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"))
# Of other categories: what Unicode's property Default_Ignorable_Code_Point says of marks and letters, and blanks: the pattern of Braille
# without a dot, the musical note without a head, and Khitan's filler.
DRAWN_AS_NOTHING = ((0x34F, 0x34F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2800, 0x2800), (0x3164, 0x3164),
                    (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFFC), (0x16FE4, 0x16FE4), (0x1D159, 0x1D159), (0xE0000, 0xE0FFF))
LAST = 0x10FFFF
PER_LINE = 4

HEAD = """// Made by tools/unseen.py from Unicode {version}: what a name may not have, in ascending order.
#pragma once

#include <cstdint>

namespace coordd {{

struct CodeRange {{
  uint32_t first, last;
}};
inline constexpr CodeRange kUnseenCharacters[] = {{
    // clang-format off
"""
TAIL = """    // clang-format on
};

}  // namespace coordd"""


def is_unseen(code):
    if any(first <= code <= last for first, last in DRAWN_AS_NOTHING):
        return True
    return code != 0x20 and unicodedata.category(chr(code)) in UNSEEN


def ranges():
    """(first, last) of each run of unseen characters."""
    found = []
    for code in filter(is_unseen, range(LAST + 1)):
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return [tuple(one) for one in found]


def main():
    print(HEAD.format(version=unicodedata.unidata_version), end="")
    texts = [f"{{0x{first:x}, 0x{last:x}}}," for first, last in ranges()]
    for begin in range(0, len(texts), PER_LINE):
        print("    " + " ".join(texts[begin:begin + PER_LINE]))
    print(TAIL)


if __name__ == "__main__":
    main()
