"""The table that tools/unseen.py has made agrees with Python's own data, as far as both know a character, and is in order."""

import os
import re
import sys
import unicodedata
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "tools"))

import unseen  # noqa: E402  (tools/unseen.py)

# What people write names with, and what they must not be written with.
SEEN = "aZ9 _-.:/~äßéñκжשأहनम世界한ツ\u0301№€+=😀"
NOT_SEEN = ("\0\x1b\x7f\x9b\xa0\xad\u0378\u0600\u061c\u115f\u1160\u1680\u180e\u2000\u2003\u200b\u200d\u200e\u2028\u2029\u202e\u202f\u205f"
            "\u2060\u2066\u2800\u3000\u3164\ud800\ue000\ufe0f\ufeff\uffa0\uffff\U00013430\U0001d159\U000e0041\U000f0000\U0010ffff")


def table():
    with open(os.path.join(ROOT, "common", "base", "unseen_characters.h"), encoding="utf-8") as file:
        text = file.read()
    version = re.search(r"from Unicode ([0-9.]+):", text).group(1)
    return version, [(int(first, 16), int(last, 16)) for first, last in re.findall(r"\{0x([0-9a-f]+), 0x([0-9a-f]+)\}", text)]


class UnseenTest(unittest.TestCase):
    def setUp(self):
        self.version, self.ranges = table()

    def holds(self, code):
        return any(first <= code <= last for first, last in self.ranges)

    def test_it_is_in_order_and_has_no_two_ranges_for_one(self):
        end = -2
        for first, last in self.ranges:
            self.assertGreater(first, end + 1)
            self.assertGreaterEqual(last, first)
            end = last
        self.assertEqual(end, unseen.LAST)

    def test_what_names_are_written_with(self):
        self.assertEqual([one for one in SEEN if self.holds(ord(one))], [])
        self.assertEqual([hex(ord(one)) for one in NOT_SEEN if not self.holds(ord(one))], [])

    def test_it_is_what_the_tool_makes(self):
        if unicodedata.unidata_version == self.version:
            self.assertEqual(self.ranges, unseen.ranges())
            return
        # Another version of Unicode has more or fewer characters, of the same categories.
        listed = {code for first, last in self.ranges for code in range(first, last + 1)}
        for code in range(unseen.LAST + 1):
            if unicodedata.category(chr(code)) == "Cn":
                continue
            if unseen.is_unseen(code):
                self.assertIn(code, listed, hex(code))
            elif unicodedata.unidata_version < self.version:
                self.assertNotIn(code, listed, hex(code))


if __name__ == "__main__":
    unittest.main()
