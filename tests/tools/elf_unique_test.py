"""tools/elf_unique.py on libraries that g++ makes here: unique symbols are found, become weak, and are then kept apart."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "elf_unique.py")

# One counter for the whole process while its symbol is unique.
LIBRARY = """
template <typename T> struct Shared { static int count; };
template <typename T> int Shared<T>::count = 0;
extern "C" int bump() { return ++Shared<int>::count; }
"""

# Loads both libraries apart, as Python loads its extension modules, and bumps each once.
PROGRAM = """
#include <dlfcn.h>
#include <cstdio>
int main(int, char** argv) {
  for (int i = 1; i <= 2; ++i) {
    void* library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) { std::puts(dlerror()); return 1; }
    std::printf("%d\\n", reinterpret_cast<int (*)()>(dlsym(library, "bump"))());
  }
}
"""


@unittest.skipUnless(shutil.which("g++"), "needs g++")
class ElfUniqueTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="coordd-elf-")
        cls.addClassCleanup(shutil.rmtree, cls.root)
        with open(cls.path("library.cc"), "w", encoding="utf-8") as out:
            out.write(LIBRARY)
        with open(cls.path("program.cc"), "w", encoding="utf-8") as out:
            out.write(PROGRAM)
        subprocess.run(["g++", "-shared", "-fPIC", "-o", cls.path("made.so"), cls.path("library.cc")], check=True)
        subprocess.run(["g++", "-o", cls.path("program"), cls.path("program.cc"), "-ldl"], check=True)

    @classmethod
    def path(cls, name):
        return os.path.join(cls.root, name)

    def setUp(self):
        for name in ("a.so", "b.so"):
            shutil.copy(self.path("made.so"), self.path(name))

    def tool(self, *arguments):
        return subprocess.run([sys.executable, TOOL, *arguments], capture_output=True, text=True)

    def counts(self):
        return subprocess.run([self.path("program"), self.path("a.so"), self.path("b.so")],
                              capture_output=True, text=True).stdout.split()

    def test_unique_symbols_are_shared_between_libraries_that_were_loaded_apart(self):
        self.assertEqual(self.counts(), ["1", "2"], "the problem that the tool is for")

    def test_keeps_libraries_apart(self):
        run = self.tool(self.path("a.so"), self.path("b.so"))
        self.assertEqual((run.returncode, run.stdout), (0, "elf_unique: 2 unique symbols in 2 files, now weak\n"))
        self.assertEqual(self.counts(), ["1", "1"])

    def test_counts_without_changing(self):
        run = self.tool("--count", self.path("a.so"))
        self.assertEqual((run.returncode, run.stdout), (1, "elf_unique: 1 unique symbols in 1 files\n"))
        with open(self.path("a.so"), "rb") as left, open(self.path("made.so"), "rb") as right:
            self.assertEqual(left.read(), right.read())

    def test_counts_none_afterwards(self):
        self.tool(self.path("a.so"))
        self.assertEqual(self.tool("--count", self.path("a.so")).returncode, 0)

    def test_refuses_what_is_not_elf(self):
        run = self.tool(self.path("library.cc"))
        self.assertEqual(run.returncode, 2)
        self.assertIn("not a 64-bit little-endian ELF file", run.stderr)

    def test_refuses_a_file_that_is_cut_off(self):
        with open(self.path("made.so"), "rb") as source, open(self.path("cut.so"), "wb") as out:
            out.write(source.read(4096))
        run = self.tool(self.path("cut.so"))
        self.assertEqual(run.returncode, 2)
        self.assertIn("section headers", run.stderr)


if __name__ == "__main__":
    unittest.main()
