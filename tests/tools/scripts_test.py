"""tools/install-deps with a dpkg and an apt of our own, and what all scripts have in common."""

import os
import shutil
import subprocess
import tempfile
import unittest

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools")

# Answers for the packages in $INSTALLED, as dpkg-query does for those that it knows.
DPKG_QUERY = """#!/bin/bash
for package in $INSTALLED; do echo "$package installed"; done
[ -n "$ALL_THERE" ]
"""

# Writes down how it was called.
APT_GET = """#!/bin/bash
echo "$*" >>"$CALLS"
case "$*" in
  *--print-uris*) echo "'http://example.invalid/a.deb' a.deb 1500000 MD5Sum:0"; echo "'http://x/b.deb' b.deb 500000 SHA:0" ;;
  *install*) echo "what apt says"; exit ${APT_STATUS:-0} ;;
esac
"""


class InstallDepsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="coordd-scripts-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.calls = os.path.join(self.folder, "calls")
        self.write("dpkg-query", DPKG_QUERY)
        self.write("apt-get", APT_GET)
        self.write("os-release", "ID=debian\nVERSION_ID=12\n")
        self.user(0)

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        os.chmod(path, 0o755)

    def user(self, number):
        self.write("id", f"#!/bin/bash\necho {number}\n")

    def install(self, *arguments, **environment):
        environment = {"PATH": f"{self.folder}:/usr/bin:/bin", "CALLS": self.calls, "INSTALLED": "", "ALL_THERE": "",
                       "COORDD_OS_RELEASE": os.path.join(self.folder, "os-release"), **environment}
        run = subprocess.run([os.path.join(TOOLS, "install-deps"), *arguments], capture_output=True, text=True,
                             env=environment)
        return run.returncode, run.stdout + run.stderr

    def apt_calls(self):
        if not os.path.exists(self.calls):
            return []
        with open(self.calls, encoding="utf-8") as calls:
            return calls.read().splitlines()

    def names(self, group):
        status, text = self.install(group, "--list")
        self.assertEqual(status, 0)
        return text.split()

    def test_does_nothing_when_all_is_there(self):
        status, text = self.install("--demo", INSTALLED=" ".join(self.names("--demo")), ALL_THERE="1")
        self.assertEqual(status, 0, text)
        self.assertIn("packages of --demo are installed", text)
        self.assertEqual(self.apt_calls(), [])

    def test_installs_exactly_what_is_missing_and_says_how_much_it_is(self):
        names = self.names("--demo")
        status, text = self.install("--demo", INSTALLED=" ".join(names[2:]))
        self.assertEqual(status, 0, text)
        self.assertIn(f"2 of {len(names)} packages of --demo are missing: {names[0]} {names[1]}", text)
        self.assertIn("2 package(s), 2.0 MB", text)
        last = self.apt_calls()[-1]
        self.assertTrue(last.endswith(f"install {names[0]} {names[1]}"), last)
        for option in ("DPkg::Lock::Timeout=300", "-y", "--no-install-recommends"):
            self.assertIn(option, last)

    def test_without_root_prints_the_one_line_for_the_administrator(self):
        self.user(1000)
        status, text = self.install("--demo")
        self.assertEqual(status, 3, text)
        self.assertIn("apt-get update && apt-get install -y --no-install-recommends g++ cmake", text)
        self.assertEqual(self.apt_calls(), [])

    def test_without_root_is_content_when_nothing_is_missing(self):
        self.user(1000)
        status, _ = self.install("--demo", INSTALLED=" ".join(self.names("--demo")), ALL_THERE="1")
        self.assertEqual(status, 0)

    def test_shows_what_apt_says_when_it_fails(self):
        status, text = self.install("--demo", APT_STATUS="100")
        self.assertEqual(status, 1, text)
        self.assertIn("what apt says", text)

    def test_elsewhere_one_clear_sentence(self):
        self.write("os-release", "ID=fedora\nVERSION_ID=41\n")
        status, text = self.install()
        self.assertEqual(status, 4)
        self.assertIn("this is fedora 41", text)
        self.assertEqual(len(text.splitlines()), 1)
        self.assertEqual(self.apt_calls(), [])

    def test_ubuntu_has_no_chromium_package(self):
        self.assertIn("chromium", self.names("--test"))
        self.write("os-release", "ID=ubuntu\nVERSION_ID=24.04\n")
        self.assertNotIn("chromium", self.names("--test"))

    def test_groups_grow(self):
        demo, build, test = (set(self.names(group)) for group in ("--demo", "--build", "--test"))
        self.assertTrue(demo < build < test)


class ChangedSourcesTest(unittest.TestCase):
    """What tools/check gives to clang-tidy, in a repository of our own."""

    FILES = {"worker/own.h": "", "worker/own.cc": "", "worker/alone.h": "", "worker/above.h": '#include "worker/alone.h"\n',
             "worker/above.cc": '#include "worker/above.h"\n', "worker/same.cc": "", "tests/some_test.cc": "", "README.md": ""}

    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="coordd-changed-")
        self.addCleanup(shutil.rmtree, self.root)
        for path, text in self.FILES.items():
            self.write(path, text)
        os.mkdir(os.path.join(self.root, "tools"))
        shutil.copy(os.path.join(TOOLS, "lib.sh"), os.path.join(self.root, "tools"))
        self.git("init", "-q", "-b", "main")
        self.commit()
        self.git("checkout", "-q", "-b", "topic")

    def write(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)

    def git(self, *arguments):
        subprocess.run(["git", "-C", self.root, "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments], check=True)

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "x")

    def sources(self):
        run = subprocess.run(["bash", "-c", ". tools/lib.sh && changed_files | sources_of"], cwd=self.root, capture_output=True,
                             text=True, check=True)
        return run.stdout.split()

    def test_nothing_has_changed(self):
        self.assertEqual(self.sources(), [])

    def test_what_is_committed_what_is_not_and_what_is_new(self):
        self.write("worker/same.cc", "int a;\n")
        self.commit()
        self.write("worker/own.cc", "int b;\n")
        self.write("worker/new.cc", "int c;\n")
        self.assertEqual(self.sources(), ["worker/new.cc", "worker/own.cc", "worker/same.cc"])

    def test_a_header_by_its_source_or_by_whom_it_is_included(self):
        self.write("worker/own.h", "int a();\n")
        self.write("worker/alone.h", "int b();\n")
        self.assertEqual(self.sources(), ["worker/above.cc", "worker/own.cc"])

    def test_neither_tests_nor_documents_nor_what_is_gone(self):
        self.write("tests/some_test.cc", "int a;\n")
        self.write("README.md", "b\n")
        os.remove(os.path.join(self.root, "worker/same.cc"))
        self.assertEqual(self.sources(), [])


class ScriptsTest(unittest.TestCase):
    SCRIPTS = ("install-deps", "check", "test", "demo", "package")

    def run_script(self, name, *arguments):
        run = subprocess.run([os.path.join(TOOLS, name), *arguments], capture_output=True, text=True)
        return run.returncode, run.stdout + run.stderr

    def test_help(self):
        for name in self.SCRIPTS:
            status, text = self.run_script(name, "--help")
            self.assertEqual(status, 0, name)
            self.assertIn(f"Usage: tools/{name}", text)

    def test_an_unknown_argument_is_named(self):
        for name in self.SCRIPTS:
            status, text = self.run_script(name, "--bogus")
            self.assertEqual(status, 2, name)
            self.assertIn("'--bogus'", text)

    def test_a_stage_that_does_not_exist(self):
        status, text = self.run_script("test", "--stage", "bogus")
        self.assertEqual(status, 2)
        self.assertIn("there are style release tests", text)

    def test_workers_of_the_demo_are_a_number(self):
        status, text = self.run_script("demo", "--workers", "many")
        self.assertEqual(status, 2)
        self.assertIn("'many'", text)

    def in_lib(self, command, text=""):
        run = subprocess.run(["bash", "-c", f'. "{os.path.join(TOOLS, "lib.sh")}"; {command}'], input=text, capture_output=True, text=True)
        self.assertEqual(run.stderr, "")
        return run.stdout

    def test_how_long_a_build_goes_on_is_told_after_ten_seconds(self):
        for done, seconds, said in ((0, 60, ""), (10, 9, ""), (25, 60, ", about 3 min left"), (90, 300, ", less than a minute left"),
                                    (60, 120, ", about 1 min left"), (100, 300, "")):
            with self.subTest(done=done, seconds=seconds):
                self.assertEqual(self.in_lib(f"minutes_left {done} 100 {seconds}").strip(), said)

    def test_a_build_says_how_far_it_is_and_its_log_has_every_line(self):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            lines = "".join(f"[{step}/40] Building x{step}\n" for step in range(1, 41))
            said = self.in_lib(f'show_progress "{log}"', lines)
            with open(log, encoding="utf-8") as written:
                self.assertEqual(written.read(), lines)
        self.assertEqual(said.split("\n")[0].strip(), "10 % of 40 steps")
        self.assertEqual(said.count("% of 40 steps"), 10)

    def test_a_build_that_says_nothing_is_told_of_all_the_same(self):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            slow = "printf '[1/40] Building x1\\n[2/40] Buil'; sleep 6; printf 'ding x2\\nlast'"
            said = self.in_lib(f'quiet_seconds=1; {{ {slow}; }} | show_progress "{log}"')
            with open(log, encoding="utf-8") as written:
                self.assertEqual(written.read(), "[1/40] Building x1\n[2/40] Building x2\nlast\n")
        self.assertRegex(said, r"^ +2 % of 40 steps, \d s so far\n")


if __name__ == "__main__":
    unittest.main()
