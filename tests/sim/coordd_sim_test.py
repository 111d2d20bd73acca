"""coordd-sim as a developer calls it: exit codes, the line that runs a failing seed again, the same history each time."""

import hashlib
import json
import os
import shlex
import subprocess
import unittest

BUILD = os.environ["COORDD_BUILD_DIR"]


def sim(*arguments):
    return subprocess.run(
        [os.path.join(BUILD, "bin", "coordd-sim"), *arguments], capture_output=True, text=True, timeout=300, check=False
    )


class CoorddSimTest(unittest.TestCase):
    def test_a_thousand_seeds_with_all_faults(self):
        seeds = 100 if os.environ.get("COORDD_SANITIZE") else 1000
        ran = sim("--seeds", str(seeds), "--json")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        said = json.loads(ran.stdout)
        self.assertEqual((said["seed"], said["seeds"], said["runs"], said["failed"]), (1, seeds, 2 * seeds, 0))
        self.assertIsNone(said["first_failed"])
        self.assertGreater(said["batches"], 0)

    def test_a_failing_seed_is_named_with_the_line_that_runs_it_again(self):
        ran = sim("--seeds", "100", "--bug", "skips-repair", "--faults", "kill", "--json")
        self.assertEqual(ran.returncode, 1)
        wrong, replay = ran.stderr.splitlines()
        seed = json.loads(ran.stdout)["first_failed"]
        self.assertTrue(wrong.startswith(f"coordd-sim: recovery, seed {seed}: "), wrong)
        again = sim(*shlex.split(replay)[1:])
        self.assertEqual(again.returncode, 1)
        self.assertIn(wrong, again.stderr.splitlines())

    def test_a_seed_is_one_history(self):
        logs = {hashlib.sha256(sim("--seeds", "3", "--log").stderr.encode()).hexdigest() for _ in range(2)}
        self.assertEqual(len(logs), 1)

    def test_wrong_flags_are_refused_by_a_sentence(self):
        for arguments, sentence in (
            (["--faults", "kill,flood"], 'no fault "flood", expected of kill,restart'),
            (["--bug", "none-such"], "there is no bug none-such"),
            (["--simulator", "schedules", "--bug", "skips-repair"], "is one of recovery"),
            (["--seeds", "0"], "--seeds"),
        ):
            ran = sim(*arguments)
            self.assertEqual(ran.returncode, 2, arguments)
            self.assertIn(sentence, ran.stderr)

    def test_help_says_what_it_checks_and_how_it_ends(self):
        ran = sim("--help")
        self.assertEqual(ran.returncode, 0)
        for word in ("--seeds", "--faults", "kill: ", "Exit codes", "--bug"):
            self.assertIn(word, ran.stdout)


if __name__ == "__main__":
    unittest.main()
