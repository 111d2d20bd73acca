"""tools/elf_older.py and tools/older/ on programs that g++ makes here: they ask for older versions, and do what they did."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools")
TOOL = os.path.join(TOOLS, "elf_older.py")
OLDER = "libcoordd-older.so"

# One of each kind: moved in glibc, of another version than the first, new in glibc, data, of libstdc++, of its static part.
PROGRAM = r"""
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <sstream>
static void* Nothing(void* p) { return p; }
int main(int argc, char** argv) {
  pthread_t thread;
  void* back = nullptr;
  pthread_create(&thread, nullptr, Nothing, argv);
  pthread_join(thread, &back);
  timer_t timer;
  sigevent event = {};
  event.sigev_notify = SIGEV_NONE;
  const int made = timer_create(CLOCK_MONOTONIC, &event, &timer);
  struct stat found;
  stat(argv[0], &found);
  auto shared = std::make_shared<int>(argc);
  auto copy = shared;
  std::stringstream text;
  text << std::filesystem::path(argv[0]).filename().string() << ' ' << std::pow(2.0, argc);
  std::printf("%d %d %d %ld %s\n", back == argv, made, found.st_size > 0, copy.use_count(), text.str().c_str());
  try { std::printf("%p\n", static_cast<void*>(new int[std::strtol("-1", nullptr, 10)])); }
  catch (const std::bad_alloc& e) { std::puts(e.what()); }
}
"""

# What the functions do where the machine's glibc has none of them, compared with the machine's own.
FUNCTIONS = r"""
#include <dlfcn.h>
static void* None() { return nullptr; }
#define dlvsym(...) None()
#include "glibc.cc"
#include <fcntl.h>
#include <malloc.h>
#include <spawn.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
template <typename T> T Theirs(const char* name) { return reinterpret_cast<T>(dlsym(RTLD_NEXT, name)); }
extern char** environ;
int main(int, char** argv) {
  int wrong = 0;
  struct stat mine = {}, theirs = {};
  wrong += stat(argv[0], &mine) != Theirs<int (*)(const char*, struct stat*)>("stat")(argv[0], &theirs);
  wrong += memcmp(&mine, &theirs, sizeof(mine)) != 0;
  for (int i = -1; i < 70; ++i) {
    const char* a = sigabbrev_np(i);
    const char* b = Theirs<const char* (*)(int)>("sigabbrev_np")(i);
    wrong += (a == nullptr) != (b == nullptr) || (a && strcmp(a, b) != 0);
  }
  free(malloc(1 << 20));
  const struct mallinfo2 a = mallinfo2(), b = Theirs<struct mallinfo2 (*)()>("mallinfo2")();
  wrong += memcmp(&a, &b, sizeof(a)) != 0;
  dup2(1, 7);
  dup2(1, 9);
  wrong += fcntl64(9, F_GETFD) != 0;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  wrong += posix_spawn_file_actions_addclosefrom_np(&actions, 8) != 0;
  char shell[] = "sh", option[] = "-c", script[] = "test -e /proc/self/fd/7 -a ! -e /proc/self/fd/9";
  char* command[] = {shell, option, script, nullptr};
  pid_t pid;
  int status = 1;
  wrong += posix_spawnp(&pid, "sh", &actions, nullptr, command, environ) != 0;
  waitpid(pid, &status, 0);
  std::printf("%d wrong, the child says %d\n", wrong, status);
}
"""


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def newest_glibc(path):
    versions = re.findall(r"\bGLIBC_([0-9.]+)\b", run("objdump", "-T", path).stdout)
    return max(tuple(map(int, version.split("."))) for version in versions)


@unittest.skipUnless(platform.machine() == "x86_64" and os.confstr("CS_GNU_LIBC_VERSION") == "glibc 2.36",
                     "the tables are of x86-64 and of what Debian 12 adds: on another system a wheel keeps what it asks for")
@unittest.skipUnless(all(map(shutil.which, ("g++", "patchelf", "objdump"))), "needs g++, patchelf and objdump")
class ElfOlderTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="coordd-elf-")
        self.addCleanup(shutil.rmtree, self.root)

    def path(self, name):
        return os.path.join(self.root, name)

    def compile(self, name, text, *options):
        with open(self.path(name + ".cc"), "w", encoding="utf-8") as out:
            out.write(text)
        made = run("g++", "-std=c++20", "-w", "-o", self.path(name), self.path(name + ".cc"), *options)
        self.assertEqual(made.returncode, 0, made.stderr)
        return self.path(name)

    def tool(self, *files, ours=""):
        return run(sys.executable, TOOL, f"--ours={ours}", *files)

    def older_library(self):
        made = run(os.path.join(TOOLS, "older", "make-library"), self.path(OLDER))
        self.assertEqual(made.returncode, 0, made.stderr)
        return self.path(OLDER)

    def test_a_program_asks_for_glibc_2_27_and_does_what_it_did(self):
        program, older = self.compile("program", PROGRAM, "-Wl,-rpath,$ORIGIN"), self.older_library()
        before = run(program)
        self.assertEqual((before.returncode, before.stdout), (0, "1 0 1 2 program 2\nstd::bad_array_new_length\n"), before.stderr)
        self.assertGreater(newest_glibc(program), (2, 27))
        changed = self.tool(older, program, ours=older)
        self.assertEqual(changed.returncode, 0, changed.stderr)
        self.assertNotIn("nothing older", changed.stdout)
        for path in (program, older):
            self.assertLessEqual(newest_glibc(path), (2, 27), path)
            self.assertEqual(run("readelf", "-V", path).stderr, "")
        # All symbols are looked for before it begins.
        after = run(program, env={"LD_BIND_NOW": "1"})
        self.assertEqual((after.returncode, after.stdout), (0, before.stdout), after.stderr)
        # It can be changed once more, as `auditwheel repair` does.
        run("patchelf", "--set-rpath", "$ORIGIN:/" + "x" * 1000, program)
        again = run(program, env={"LD_BIND_NOW": "1"})
        self.assertEqual((again.returncode, again.stdout), (0, before.stdout), again.stderr)
        # A second time there is nothing to do.
        self.assertIn("elf_older: 0 symbols", self.tool(program, ours=older).stdout)

    def test_says_what_it_knows_nothing_older_of(self):
        program = self.compile("program", "#include <stdlib.h>\nint main() { return arc4random() == 7; }\n")
        said = self.tool(program)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("nothing older is known of arc4random@GLIBC_2.36", said.stdout)
        self.assertLessEqual(run(program).returncode, 1)

    def test_new_functions_do_what_the_machines_own_do(self):
        self.compile("functions", FUNCTIONS, "-I", os.path.join(TOOLS, "older"), "-fno-builtin")
        said = run(self.path("functions"))
        self.assertEqual(said.stdout, "0 wrong, the child says 0\n", said.stderr)

    def test_refuses_what_it_cannot_change(self):
        with open(self.path("text"), "w", encoding="ascii") as out:
            out.write("no program")
        refused = self.tool(self.path("text"))
        self.assertEqual((refused.returncode, refused.stdout), (2, ""))
        self.assertIn(f"{self.path('text')}: not a 64-bit little-endian ELF file", refused.stderr)
        self.assertEqual(run(sys.executable, TOOL, self.path("text")).returncode, 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
