"""What tools/variables.py finds, on small trees with one planted violation, and on one without."""

import os
import re
import sys
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "tools"))
import variables  # noqa: E402

PAGE = """# Environment variables

### `COORDD_ADDR`

Where coordd listens.

- Value: `HOST:PORT`
- Default: `auto`
- Read by: workers, coordctl
"""
TEXTS = {
    "docs/reference/environment.md": PAGE,
    "worker/api/options.cc": 'Find(environment, "COORDD_ADDR");\n',
    "client/coordctl/target.cc": 'Variable(environment, "COORDD_ADDR");\n',
    "client/c_api/coordd.h": "enum {\n  COORDD_OK = 0,\n};\n#define COORDD_API\n",
    "CMakeLists.txt": "set(COORDD_WITH_UCX AUTO)\n",
    "README.md": "`COORDD_ADDR=a:1 train`; `COORDD_OK`; build with `COORDD_WITH_UCX=OFF`.\n",
}


class VariablesTest(unittest.TestCase):
    def found(self, **changes):
        texts = {**TEXTS, **{path.replace("__", "/").replace("_dot_", "."): text for path, text in changes.items()}}
        return [f"{path}:{line}: {what}" for path, line, what, _ in variables.check_variables(texts)]

    def test_finds_nothing_where_all_agree(self):
        self.assertEqual(self.found(), [])

    def test_a_variable_that_the_page_lacks(self):
        self.assertEqual(self.found(worker__base__new_dot_cc='\nVariable(environment, "COORDD_NEW");\n'),
                         ["worker/base/new.cc:2: the variable COORDD_NEW",
                          "worker/base/new.cc:2: COORDD_NEW, which nothing reads or defines"])

    def test_a_reader_whom_the_page_does_not_name(self):
        self.assertEqual(self.found(server__flags_dot_cc='Variable(environment, "COORDD_ADDR");\n'),
                         ["server/flags.cc:1: COORDD_ADDR read by coordd"])

    def test_a_reader_who_does_not_read(self):
        self.assertEqual(self.found(client__coordctl__target_dot_cc="int target;\n"),
                         ["docs/reference/environment.md:3: COORDD_ADDR, read by coordctl, of which client/coordctl/ knows nothing"])

    def test_a_reader_whom_nobody_knows(self):
        self.assertEqual(self.found(docs__reference__environment_dot_md=PAGE.replace("coordctl", "coordtcl")),
                         ["docs/reference/environment.md:3: coordtcl as a reader of COORDD_ADDR",
                          "client/coordctl/target.cc:1: COORDD_ADDR read by coordctl"])

    def test_a_slip_in_a_document(self):
        self.assertEqual(self.found(docs__RUNBOOK_dot_md="\nset `COORDD_ADRESS`\n"),
                         ["docs/RUNBOOK.md:2: COORDD_ADRESS, which nothing reads or defines"])

    def test_a_slip_in_help(self):
        self.assertEqual(self.found(client__coordrun__flags_dot_cc='"  COORDD_ADRESS   where coordd is\\n"\n'),
                         ["client/coordrun/flags.cc:1: COORDD_ADRESS, which nothing reads or defines"])

    def test_the_beginning_of_names(self):
        self.assertEqual(self.found(docs__RUNBOOK_dot_md="all of `COORDD_AD_*`\n"),
                         ["docs/RUNBOOK.md:1: COORDD_AD_, which nothing reads or defines"])
        self.assertEqual(self.found(docs__RUNBOOK_dot_md="all of `COORDD_WITH_*`\n"), [])

    def test_variables_of_tests_are_no_users_business(self):
        self.assertEqual(self.found(client__python__setup_dot_py='os.environ["COORDD_WHEEL_FOLDER"]\n',
                                    worker__base__x_dot_cc='Variable(environment, "COORDD_TEST_GPU");\n'), [])

    def test_a_tree_without_the_page_is_left_alone(self):
        self.assertEqual(list(variables.check_variables({"worker/a.cc": '"COORDD_NEW"'})), [])

    def test_pythons_default_is_that_of_the_page(self):
        # Those of the workers are tried by environment_table_test.
        def text(path):
            with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                return file.read()
        row = text(variables.PAGE).split("### `COORDD_DRAIN_GRACE`")[1].split("###")[0]
        code = re.search(r'"COORDD_DRAIN_GRACE", ([\d.]+)', text("client/python/coordd/elastic.py"))
        self.assertEqual(float(re.search(r"- Default: (\d+)", row).group(1)), float(code.group(1)))


if __name__ == "__main__":
    unittest.main()
