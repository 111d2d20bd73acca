"""tools/completions: what bash completes behind a program of which only --help is known."""

import os
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Writes --help as CLI11 does.
PROGRAM = r"""#!/bin/sh
case "$1" in
  send) printf 'Sends\n\nOptions:\n  -h,--help                   Print this\n  --to TEXT                   as --bcc of others\n' ;;
  *) printf 'Tool\n\nOptions:\n  -h,--help                   Print this\n  -v,--verbose                more\n\nSubcommands:\n  send                        Sends, see --other\n  seek-all                    Looks\n\nExit status: 0\n' ;;
esac
"""


class CompletionsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="coordd-test-")
        self.addCleanup(folder.cleanup)
        self.program = os.path.join(folder.name, "a-tool")
        with open(self.program, "w", encoding="ascii") as file:
            file.write(PROGRAM)
        os.chmod(self.program, 0o755)
        self.script = subprocess.run([os.path.join(ROOT, "tools", "completions"), self.program], capture_output=True, text=True,
                                     check=True).stdout

    def completed(self, *words):
        """What bash offers for the last of the words."""
        run = subprocess.run(["bash", "-c", self.script + 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _a_tool; echo "${COMPREPLY[@]}"',
                              "bash", "a-tool", *words], capture_output=True, text=True, check=True)
        self.assertEqual(run.stderr, "")
        return run.stdout.split()

    def test_flags_and_subcommands_of_the_program(self):
        self.assertEqual(self.completed("--"), ["--help", "--verbose"])
        self.assertEqual(self.completed("se"), ["send", "seek-all"])

    def test_flags_of_a_subcommand_and_no_others_that_its_words_mention(self):
        self.assertEqual(self.completed("send", "-"), ["--help", "--to"])
        self.assertEqual(self.completed("send", "se"), [])

    def test_nothing_of_ours_behind_a_users_command(self):
        self.assertEqual(self.completed("--verbose", "--", "--"), [])


if __name__ == "__main__":
    unittest.main()
