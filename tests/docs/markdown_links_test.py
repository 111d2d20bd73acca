"""tools/markdown_links.py: what counts as a link and as an anchor, and what is said of one that leads nowhere."""

import os
import shutil
import sys
import tempfile
import unittest

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools")
sys.path.insert(0, TOOLS)
import markdown_links  # noqa: E402


class MarkdownLinksTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="coordd-links-")
        self.addCleanup(shutil.rmtree, self.root)

    def write(self, path, text):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as out:
            out.write(text)

    def found(self, text, path="docs/a.md"):
        self.write(path, text)
        return list(markdown_links.check(self.root, [path]))

    def test_links_to_files_folders_and_headings_that_are_there(self):
        self.write("docs/b.md", "# Two words, `code`\n")
        self.write("tools/run", "x\n")
        self.assertEqual(self.found("# Here\n[b](b.md) [t](../tools/run) [f](../tools/) [h](b.md#two-words-code) [s](#here)\n"), [])

    def test_file_that_is_not_there(self):
        self.assertEqual(self.found("one\n[b](b.md)\n"), ["docs/a.md:2: found the link b.md, expected a file docs/b.md"])

    def test_heading_that_is_not_there(self):
        self.write("docs/b.md", "# One\n")
        self.assertEqual(self.found("[b](b.md#two)\n"),
                         ["docs/a.md:1: found the link b.md#two, expected a heading with the anchor two in docs/b.md"])

    def test_heading_in_code_is_none(self):
        self.assertEqual(len(self.found("[b](#two)\n\n```\n# Two\n```\n")), 1)

    def test_link_that_is_wrapped(self):
        self.assertEqual(len(self.found("see [two\nwords](nowhere.md)\n")), 1)

    def test_image_and_reference(self):
        self.assertEqual(len(self.found("![p](p.svg)\n\n[x]: q.md\n")), 2)

    def test_code_holds_no_links(self):
        self.assertEqual(self.found("`[b](b.md)` and\n\n```\n[c](c.md)\n```\n"), [])

    def test_other_sites_are_not_followed(self):
        self.assertEqual(self.found("[x](https://example.invalid/x) [m](mailto:a@example.invalid)\n"), [])

    def test_link_out_of_the_repository(self):
        self.write("elsewhere", "x\n")
        for link in ("../../elsewhere", "/etc/hosts"):
            with self.subTest(link=link):
                self.assertIn("leaves the repository", "".join(self.found(f"[x]({link})\n")))

    def test_equal_headings_are_counted(self):
        self.assertEqual(self.found("# A\n# A\n[x](#a-1)\n"), [])

    def test_paths_in_code_that_are_there(self):
        self.write("server/job/blame.h", "x\n")
        self.write("docs/a.md", "`server/job/blame`, `server/job/blame.h`, `server/job/`, `tools/NAME`, `server/x.cc`, `build/bin/x`,"
                                " `gpu/SET`\n")
        self.assertEqual(list(markdown_links.check_paths(self.root, ["docs/a.md"])), [])

    def test_path_in_code_that_is_not_there(self):
        self.write("docs/a.md", "one\n`server/job/shame` and more\n")
        self.assertEqual(list(markdown_links.check_paths(self.root, ["docs/a.md"])),
                         ["docs/a.md:2: found the path server/job/shame, expected one that is in the repository"])

    def test_anchors_as_github_makes_them(self):
        for heading, expected in (("The hot loop", "the-hot-loop"), ("A. Durability (built)", "a-durability-built"),
                                  ("`x_y`: what, why", "x_y-what-why"), ("See [b](b.md)", "see-b")):
            with self.subTest(heading=heading):
                self.assertEqual(markdown_links.slug(heading), expected)


if __name__ == "__main__":
    unittest.main()
