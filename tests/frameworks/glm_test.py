"""The examples of generalized linear models, in Python and in C++: each gap that is printed is true, whoever shares the work, and
scikit-learn, where it is there, finds no better weights."""

import importlib.util
import os
import re
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
sys.path.insert(0, os.path.join(ROOT, "client", "examples", "python"))
sys.path.insert(0, os.path.join(ROOT, "client", "python"))

import processes  # noqa: E402

MISSING = next((name for name in ("numpy", "torch") if importlib.util.find_spec(name) is None), None)
LOSSES = ("ridge", "svm", "logistic")
ROWS, FEATURES, LAMBDA, GAP = 600, 20, 1e-2, 1e-4
ARGUMENTS = ["--rows", str(ROWS), "--features", str(FEATURES), "--lambda", str(LAMBDA), "--gap", str(GAP)]


@unittest.skipIf(MISSING, f"no {MISSING} here")
class GlmTest(processes.TestCase):
    @classmethod
    def setUpClass(cls):
        import glm
        import numpy
        cls.glm, cls.numpy = glm, numpy

    def objective(self, loss, weights):
        rows, labels = self.glm.make_data(loss, FEATURES, 1, 0, ROWS)
        return self.glm.LOSSES[loss][1](rows @ weights, labels) / ROWS + LAMBDA / 2 * (weights @ weights)

    def solve(self, np, *command):
        """(weights, their objective, the gap) as the program says them."""
        saved = os.path.join(self.folder, f"weights-{len(os.listdir(self.folder))}")
        command = [*command, *ARGUMENTS, "--save", saved]
        if np:
            command = [processes.program("coordrun"), "-np", str(np), "--", *command]
        environment = processes.clean_environment(COORDD_LIBRARY=os.path.join(processes.BUILD, "lib", "libcoordd.so"),
                                                  PYTHONPATH=os.path.join(ROOT, "client", "python"))
        status, said = self.run_command(*command, environment=environment)
        self.assertEqual(status, 0, said)
        objective, gap = re.findall(r"objective ([-.\d]+), bound .*, gap ([-.\de]+)", said)[-1]
        self.assertRegex(said, "certificate: ")
        return self.numpy.loadtxt(saved), float(objective), float(gap)

    def programs(self, loss):
        yield "C++, alone", (0, processes.program("glm"), loss)
        for np in (1, 2, 3, 4):
            yield f"C++, {np} workers", (np, processes.program("glm"), loss)
        for np in (1, 2):
            yield f"Python, {np} workers", (np, sys.executable, os.path.join(ROOT, "client", "examples", "python", "glm.py"), loss)

    def test_each_certificate_holds_whoever_shares_the_rows(self):
        for loss in LOSSES:
            best = None
            for name, command in self.programs(loss):
                with self.subTest(loss=loss, program=name):
                    weights, objective, gap = self.solve(*command)
                    self.assertLessEqual(gap, GAP)
                    # What is printed is that of what is saved, and both programs have the same rows.
                    self.assertAlmostEqual(self.objective(loss, weights), objective, delta=1e-8)
                    # Nobody has found anything that is better by more than another's gap.
                    if best is not None:
                        self.assertLessEqual(abs(objective - best), GAP)
                    best = objective if best is None else min(best, objective)

    def test_a_gap_that_is_not_reached_is_an_error(self):
        status, said = self.run_command(processes.program("glm"), "svm", *ARGUMENTS, "--rounds", "1")
        self.assertEqual(status, 1, said)
        self.assertIn("certificate: ", said)

    def test_help_names_the_defaults_and_wrong_usage_is_told_by_its_status(self):
        python = [sys.executable, os.path.join(ROOT, "client", "examples", "python", "glm.py")]
        environment = processes.clean_environment(COORDD_LIBRARY=os.path.join(processes.BUILD, "lib", "libcoordd.so"),
                                                  PYTHONPATH=os.path.join(ROOT, "client", "python"))
        for command, rows, default in (([processes.program("glm")], 20000, r"=%s\b"), (python, 2000, r"\[%s\]")):
            status, said = self.run_command(*command, "--help", environment=environment)
            self.assertEqual(status, 0, said)
            for value in (rows, 50, 1, 1000):  # then features, seed, rounds
                self.assertRegex(said, default % value)
            for wrong in (["--colour"], ["svm", "--rows", "many"], ["perceptron"], []):
                self.assertEqual(self.run_command(*command, *wrong, environment=environment)[0], 2, wrong)

    @unittest.skipIf(importlib.util.find_spec("sklearn") is None, "no scikit-learn here")
    def test_scikit_learn_finds_nothing_better(self):
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.svm import LinearSVC
        theirs = {
            "ridge": Ridge(alpha=LAMBDA * ROWS, fit_intercept=False, tol=1e-10),
            "svm": LinearSVC(C=1 / (LAMBDA * ROWS), loss="hinge", dual=True, fit_intercept=False, tol=1e-8, max_iter=1_000_000),
            "logistic": LogisticRegression(C=1 / (LAMBDA * ROWS), fit_intercept=False, tol=1e-10, max_iter=10_000),
        }
        for loss, model in theirs.items():
            with self.subTest(loss=loss):
                rows, labels = self.glm.make_data(loss, FEATURES, 1, 0, ROWS)
                model.fit(rows, labels)
                reference = self.objective(loss, self.numpy.ravel(model.coef_))
                _, objective, gap = self.solve(2, processes.program("glm"), loss)
                self.assertLessEqual(objective - reference, gap + 1e-9)
                self.assertLessEqual(reference - objective, 1e-6, "and ours is not a better problem than theirs")


if __name__ == "__main__":
    processes.main()
