"""The site of docs/: tools/build-docs makes it without a warning, with every page of the navigation and with the interfaces' names.

Status 77, which ctest counts as skipped, where Sphinx is not installed; tools/test installs it and sets COORDD_TOOLS_TEST, and
there it has to be.
"""

import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zlib

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DOCS = os.path.join(ROOT, "docs")
SKIPPED = 77

# Some names of each interface, as the site's index of names has them; all functions of C are looked for besides.
NAMES = ["coordd_allreduce_async c:function", "coordd_comm_create c:function", "coordd_alloc c:function",
         "coordd_worker_fail c:function", "coordd_tensor_t c:type", "coordd::Comm cpp:class", "coordd::Worker cpp:class",
         "coordd::Comm::Allreduce cpp:function", "coordd::Worker::AwaitGeneration cpp:function",
         "coordd.torch.DistributedOptimizer py:function", "coordd.torch.allreduce py:function",
         "coordd.tensorflow.allreduce py:function", "coordd.keras.DistributedOptimizer py:function",
         "coordd.torch.elastic.TorchState py:class", "coordd.elastic.State py:class",
         "coordd.process_sets.ProcessSet py:class", "coordd.exceptions.CoorddError py:class"]


def read(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as page:
        return page.read()


class DocsSiteTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.out = tempfile.mkdtemp(prefix="coordd-docs-site-")
        cls.addClassCleanup(shutil.rmtree, cls.out)
        cls.run_ = subprocess.run([os.path.join(ROOT, "tools", "build-docs"), "--out", cls.out], capture_output=True, text=True,
                                  check=False)

    def text(self, page):
        return html.unescape(re.sub(r"<[^>]+>", "", read(self.out, page)))

    def test_builds_without_a_warning(self):
        self.assertEqual(self.run_.returncode, 0, self.run_.stdout + self.run_.stderr)
        self.assertNotIn("WARNING", self.run_.stdout + self.run_.stderr)

    def test_every_page_of_the_navigation_is_there(self):
        links = re.findall(r"^- \[[^\]]+\]\(([^)#:]+)\.md\)", read(DOCS, "README.md"), re.MULTILINE)
        self.assertGreater(len(links), 20)
        navigation = read(self.out, "README.html")
        for page in links:
            with self.subTest(page=page):
                self.assertTrue(os.path.isfile(os.path.join(self.out, page + ".html")))
                self.assertIn(f'href="{page}.html"', navigation)

    def test_every_page_of_docs_is_in_the_index(self):
        index = read(DOCS, "README.md")
        for folder, _, names in os.walk(DOCS):
            for name in names:
                path = os.path.relpath(os.path.join(folder, name), DOCS)
                if name.endswith(".md") and path != "README.md":
                    self.assertIn(f"]({path})", index, f"docs/README.md names every page, and not {path}")

    def test_names_of_the_interfaces(self):
        with open(os.path.join(self.out, "objects.inv"), "rb") as inventory:
            known = zlib.decompress(inventory.read().split(b"zlib.\n", 1)[1]).decode()
        entries = {" ".join(line.split()[:2]) for line in known.splitlines()}
        for name in NAMES:
            with self.subTest(name=name):
                self.assertIn(name, entries)

    def test_every_function_of_the_c_interface(self):
        text, headers = self.text("reference/api_c.html"), os.path.join(ROOT, "client", "c_api")
        functions = [name for header in ("coordd", "collectives", "comm", "memory", "leaving")
                     for name in re.findall(r"^COORDD_API[^;(]*?\b(coordd_\w+)\(", read(headers, header + ".h"), re.MULTILINE)]
        self.assertGreater(len(functions), 50)
        self.assertEqual([name for name in functions if name not in text], [])

    def test_functions_that_the_architecture_names_are_there(self):
        sources = "\n".join(read(folder, name) for top in ("common", "server", "worker", "relay", "client")
                            for folder, _, names in os.walk(os.path.join(ROOT, top)) for name in names
                            if name.endswith((".cc", ".h")))
        pages = [os.path.join(folder, name) for part in ("architecture", "developing")
                 for folder, _, names in os.walk(os.path.join(DOCS, part)) for name in names] + [os.path.join(DOCS, "GLOSSARY.md")]
        for page in pages:
            for scope, name in re.findall(r"`(?!absl|std|coordd)(\w+)::([A-Z]\w+)(?:\([\w ]*\))?`", read(page)):
                with self.subTest(page=os.path.relpath(page, DOCS), name=f"{scope}::{name}"):
                    self.assertRegex(sources, rf"\b(?:class|struct) (?:\w+ )*{scope}\b")
                    self.assertRegex(sources, rf"\b{scope}::{name}\(|[ *&]{name}\(|\bstruct {name}\b")

    def test_descriptions_came_along(self):
        self.assertIn("one sentence, never NULL", self.text("reference/api_c.html"))
        self.assertIn("Throws Error unless ok()", self.text("reference/api_cpp.html"))
        self.assertIn("whose step() uses the gradients of all ranks", self.text("reference/api_python.html"))

    def test_nothing_of_the_site_is_fetched_from_elsewhere(self):
        for folder, _, names in os.walk(self.out):
            for name in names:
                if name.endswith(".html"):
                    fetched = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="((?:https?:)?//[^"]*)"', read(folder, name))
                    self.assertEqual(fetched, [], name)


if __name__ == "__main__":
    if shutil.which("sphinx-build") is None and "COORDD_TOOLS_TEST" not in os.environ:
        print("docs_site_test: skipped, there is no sphinx-build (tools/install-deps --test installs it)")
        sys.exit(SKIPPED)
    unittest.main()
