"""tools/manual: the manual page of a program of which only --help is known, with the options of its subcommands."""

import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MANUAL = os.path.join(ROOT, "tools", "manual")
COORDCTL = os.path.join(os.environ.get("COORDD_BUILD", os.path.join(ROOT, "build")), "bin", "coordctl")
# Writes --help as CLI11 does.
PROGRAM = r"""#!/bin/sh
case "$1" in
  send) printf 'Sends\n\nUsage: a-tool send [OPTIONS] FILE\n\nPositionals:\n  FILE TEXT REQUIRED          what\n\nOptions:\n' &&
        printf '  -h,--help                   Print this\n  --to HOST:PORT[,HOST:PORT...]\n                              where to [the \\usual]\n' &&
        printf '\nExit status: 0\n\n.dotted words of its own\n' ;;
  wait) printf 'Waits\nUsage: a-tool wait\n\nExit status: 0\n' ;;
  --version) echo 'a-tool 1.0' ;;
  *) printf 'Tool\nUsage: a-tool [OPTIONS] SUBCOMMAND\n\nOptions:\n  -h,--help                   Print this\n\n' &&
     printf 'Subcommands:\n  send                        Sends, see --other\n  wait                        Waits\n\nExit status: 0\n' ;;
esac
"""


class ManualTest(unittest.TestCase):
    def setUp(self):
        spec = importlib.util.spec_from_loader("manual", importlib.machinery.SourceFileLoader("manual", MANUAL))
        self.manual = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.manual)
        folder = tempfile.TemporaryDirectory(prefix="coordd-test-")
        self.addCleanup(folder.cleanup)
        self.program = os.path.join(folder.name, "a-tool")
        with open(self.program, "w", encoding="ascii") as file:
            file.write(PROGRAM)
        os.chmod(self.program, 0o755)

    def test_each_subcommand_has_what_its_help_says_and_nothing_twice(self):
        self.assertEqual(self.manual.sections(self.program), "\n".join([
            '.SS "a\\-tool send [OPTIONS] FILE"', "Sends",
            ".TP", "\\fBFILE TEXT REQUIRED\\fR", "what",
            ".TP", "\\fB\\-\\-to HOST:PORT[,HOST:PORT...]\\fR", "where to [the \\eusual]",
            ".PP", "\\&.dotted words of its own",
            '.SS "a\\-tool wait"', "Waits", ".PP", "wait has no options.", ""]))

    @unittest.skipUnless(os.path.exists(COORDCTL), "coordctl is not built")
    def test_the_page_of_coordctl_has_each_flag_of_each_subcommand(self):
        sections = dict(zip(self.subcommands(), self.manual.sections(COORDCTL).split(".SS ")[1:]))
        self.assertLessEqual({"drain", "certs", "trace"}, set(sections))
        for name, section in sections.items():
            text = subprocess.run([COORDCTL, name, "--help"], capture_output=True, text=True, check=True).stdout
            for flag in set(self.manual.completions.flags(text)) - {"--help"}:
                self.assertIn(flag.replace("-", "\\-"), section, f"{name} {flag}")

    def subcommands(self):
        return self.manual.completions.subcommands(self.manual.completions.help_of(COORDCTL))

    @unittest.skipUnless(shutil.which("help2man"), "no help2man here")
    def test_the_page_is_help2mans_and_the_subcommands(self):
        page = subprocess.run([MANUAL, self.program, "does it"], capture_output=True, text=True, check=True).stdout
        self.assertIn("a-tool \\- does it", page)
        self.assertIn(".SH \"OPTIONS OF SUBCOMMANDS\"\n" + self.manual.sections(self.program), page)


if __name__ == "__main__":
    unittest.main()
