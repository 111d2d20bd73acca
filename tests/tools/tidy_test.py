"""Each rule of tools/tidy on a small tree with one planted violation, and on one without."""

import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import tempfile
import unittest

TIDY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "tidy")
HAVE_CTAGS = shutil.which("ctags") is not None


def load_tidy():
    loader = importlib.machinery.SourceFileLoader("tidy", TIDY)
    spec = importlib.util.spec_from_loader("tidy", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


tidy = load_tidy()


class TidyTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="coordd-tidy-")
        self.addCleanup(shutil.rmtree, self.root)

    def findings(self, files):
        for path, text in files.items():
            whole = os.path.join(self.root, path)
            os.makedirs(os.path.dirname(whole), exist_ok=True)
            with open(whole, "w", encoding="utf-8") as out:
                out.write(text)
        return [str(finding) for finding in tidy.findings(self.root, HAVE_CTAGS)]

    def assert_found(self, files, *starts):
        found = self.findings(files)
        self.assertEqual(len(found), len(starts), found)
        for text, start in zip(sorted(found), sorted(starts)):
            self.assertTrue(text.startswith(start), f"{text!r} does not start with {start!r}")

    def test_finds_nothing_in_a_clean_tree(self):
        self.assert_found({
            "server/rank.h": "// PURE.\n#pragma once\n#include \"common/types.h\"\nint F();\n",
            "server/rank.cc": "#include \"server/rank.h\"\nint F() { return 1; }\n",
            "tests/server/rank_test.cc": "TEST(Rank, IsOne) {\n  EXPECT_EQ(F(), 1);\n}\n",
        })

    def test_long_file(self):
        self.assert_found({"common/a.cc": "int x;\n" * 501},
                          "common/a.cc:501: found a file of 501 lines, expected at most 500")

    def test_file_of_exactly_the_limit(self):
        self.assert_found({"common/a.cc": "//\n" * 500})

    def test_class_with_too_many_members(self):
        def with_members(count):
            members = "".join(f"  int a{index}_ ABSL_GUARDED_BY(mu_) = 0;\n" for index in range(count))
            return ("#pragma once\n#include <map>\n#include <utility>\nclass Rank final : public Base<int> {\n public:\n  explicit Rank(int x) : a0_(x) { b_ = x; }\n"
                    "  int Get() const { return a0_; }\n  using T_ = int;\n  static constexpr int kMost_ = 3;\n"
                    "  struct Inner { int x_; int y_; };\n"
                    f" private:\n  std::map<int, std::pair<int, int>> b_{{}}, c_;\n{members}}};\n")
        self.assert_found({"common/a.h": with_members(18)})
        self.assert_found({"common/a.h": with_members(19)}, "common/a.h:4: found Rank with 21 data members, expected at most 20")

    def test_same_function_in_two_unnamed_namespaces(self):
        def with_function(function, name="Row"):
            return f"namespace coordd {{\nnamespace {{\nstruct {name} {{\n  int a;\n}};\n{function}\n}}  // namespace\n}}  // namespace coordd\n"
        first = with_function("int CountOf(const Ranks* ranks) {\n  return 1;\n}\n")
        self.assert_found({"common/a.cc": first, "common/b.cc": with_function("long CountOf(const Ranks* all) {\n  return 2;\n}\n")},
                          "common/b.cc:3: found Row in", "common/b.cc:6: found CountOf(Ranks*) in an unnamed namespace, as in common/a.cc")
        self.assert_found({"common/a.cc": first, "common/b.cc": with_function("int CountOf(const Ranks* ranks,\n            int n) {\n  return n;\n}\n", "Other")})
        self.assert_found({"common/a.cc": first, "common/b.cc": "int x;\n", "server/a.cc": first})

    def test_class_in_too_many_files(self):
        header = "#pragma once\nclass Rank {\n  void A();\n  void B();\n  void C();\n};\n"
        files = {"common/rank.h": header, "common/a.cc": "void Rank::A() {}\n", "common/b.cc": "int Rank::B() { return Other::C(); }\n"}
        self.assert_found({**files, "common/c.cc": "int F() {\n  return Rank::A();\n}\n"})
        self.assert_found({**files, "common/c.cc": "Rank::~Rank() {}\n"},
                          "common/rank.h:2: found Rank in 3 .cc files, expected at most 2")

    @unittest.skipUnless(HAVE_CTAGS, "needs universal-ctags")
    def test_long_function(self):
        text = "void Long() {\n" + "  G();\n" * 69 + "}\n"
        self.assert_found({"common/a.cc": "\n" + text}, "common/a.cc:2: found Long of 71 lines, expected at most 70")

    @unittest.skipUnless(HAVE_CTAGS, "needs universal-ctags")
    def test_long_function_with_a_reason(self):
        text = "void Long() {\n" + "  G();\n" * 69 + "}\n"
        self.assert_found({"common/a.cc": "// long: one row of the table per error\n" + text})
        self.assert_found({"common/a.cc": "// long: \n" + text}, "common/a.cc:2: found Long of 71 lines")

    def test_long_python_function(self):
        self.assert_found({"tools/a.py": "def f():\n" + "    g()\n" * 70}, "tools/a.py:1: found f of 71 lines")

    def test_long_test_body(self):
        self.assert_found({"tests/a_test.cc": "TEST(A, B) {\n" + "  EXPECT_TRUE(G());\n" * 70 + "}\n"},
                          "tests/a_test.cc:1: found A.B of 72 lines")

    def test_server_includes_worker_and_the_other_way_round(self):
        self.assert_found({"server/a.cc": '#include "worker/work.h"\n', "worker/a.cc": '#include "server/job_state.h"\n'},
                          "server/a.cc:1: found an include of worker/ in server/, expected only common/, coordd/, server/",
                          "worker/a.cc:1: found an include of server/ in worker/")

    def test_common_includes_upwards(self):
        self.assert_found({"common/a.cc": '#include "client/c_api/coordd.h"\n'},
                          "common/a.cc:1: found an include of client/ in common/")

    def test_client_may_include_worker_but_not_server(self):
        self.assert_found({"client/a.cc": '#include "worker/worker.h"\n#include "server/server_options.h"\n'},
                          "client/a.cc:2: found an include of server/ in client/")

    def test_an_include_in_a_comment_does_not_count(self):
        self.assert_found({"server/a.cc": '// #include "worker/work.h"\n'})

    def test_a_header_that_only_a_precompiled_one_brings(self):
        text = "#pragma once\nstd::vector<int> v = absl::StrJoin(v, x);\n"
        self.assert_found({"worker/a.h": text}, "worker/a.h:2: found std::vector without its header, expected #include <vector>",
                          'worker/a.h:2: found absl::StrJoin without its header, expected #include "absl/strings/str_join.h"')

    def test_a_header_that_another_file_brings(self):
        self.assert_found({"worker/a.h": "#pragma once\n#include <vector>\n", "worker/b.h": '#pragma once\n#include "worker/a.h"\n',
                           "worker/b.cc": '#include "worker/b.h"\nstd::vector<int> v;\n'})

    def test_banned_calls(self):
        for call in ("absl::Now()", 'getenv("X")', 'std::getenv("X")', "rand()", "srand(1)", "std::random_device d",
                     "std::this_thread::sleep_for(x)", "usleep(5)", "sleep(1)", "absl::SleepFor(x)", "t.detach()",
                     "std::string_view s"):
            with self.subTest(call=call):
                self.assert_found({"worker/a.cc": f"void F() {{ {call}; }}\n"}, "worker/a.cc:1: found ")

    def test_calls_that_only_look_banned(self):
        for call in ("clock.Now()", "operand()", "my.sleep(1)", "grand()", "policy.rand()"):
            with self.subTest(call=call):
                self.assert_found({"worker/a.cc": f"void F() {{ {call}; }}\n"})

    def test_banned_words_in_comments_and_strings_do_not_count(self):
        self.assert_found({"worker/a.cc": '// getenv("X") is banned\nconst char* k = "absl::Now()";\n'
                                          '/* rand() */ const int million = 1\'000\'000;\n'})

    def test_banned_call_where_it_is_at_home(self):
        self.assert_found({"common/base/clock.cc": "auto now = absl::Now();\n"})

    def test_open_mark_without_an_issue(self):
        mark = "TO" + "DO"
        self.assert_found({"common/a.cc": f"// {mark}: later\n// {mark}(17): later\n", "docs/a.md": f"{mark} write\n"},
                          f"common/a.cc:1: found {mark} without the number of an issue", f"docs/a.md:1: found {mark}")

    def test_path_of_one_machine(self):
        for path in ("/home/" + "me/x", "/work/" + "main", "/root/" + ".cache"):
            with self.subTest(path=path):
                self.assert_found({"tools/run": f"#!/bin/bash\ncd {path}\n"}, f"tools/run:2: found the path '{path}'")

    def test_paths_that_are_everybodys(self):
        self.assert_found({"tools/run": "#!/bin/bash\ncd $HOME/work/x; ls /usr/share/work/ /tmp/root/\n"})

    def test_header_without_pragma_once(self):
        self.assert_found({"common/a.h": "int F();\n"}, "common/a.h:1: found a header without #pragma once")
        self.assert_found({"common/a.h": "#ifndef COORDD_A_H_\n#define COORDD_A_H_\n#endif\n"})

    def test_pure_file_that_talks(self):
        header = "// Which rank comes next. PURE.\n#pragma once\n"
        for include in ("<grpcpp/server.h>", '"coordd/v1/session.grpc.pb.h"', "<thread>", "<ucp/api/ucp.h>",
                        '"common/base/mutex.h"', "<sys/socket.h>"):
            with self.subTest(include=include):
                self.assert_found({"server/a.h": header, "server/a.cc": f"#include {include}\n"},
                                  f"server/a.cc:1: found #include {include} in a file that is PURE")

    def test_thread_that_the_documents_do_not_know(self):
        self.assert_found({
            "docs/architecture/threads.md": "| coordd | `coordinator` |\n",
            "server/a.cc": 'auto a = StartThread("coordinator", f);\nauto b = StartThread("other", f);\n',
        }, "server/a.cc:2: found thread other")

    @unittest.skipUnless(HAVE_CTAGS, "needs universal-ctags")
    def test_test_that_asserts_nothing(self):
        self.assert_found({"tests/a_test.cc": "TEST(A, Asserts) { EXPECT_TRUE(F()); }\n"
                                              "TEST_F(A, Does) {\n  F();\n}\n"},
                          "tests/a_test.cc:2: found test A.Does that asserts nothing")

    @unittest.skipUnless(HAVE_CTAGS, "needs universal-ctags")
    def test_test_that_asserts_through_helpers(self):
        self.assert_found({
            "tests/support/check.h": "#pragma once\ninline void Same(int a) { EXPECT_EQ(a, 1); }\n",
            "tests/a_test.cc": "void Twice(int a) { Same(a); Same(a); }\nTEST(A, B) { Twice(1); }\n",
        })

    def test_program_prints_sentences_and_fails(self):
        self.findings({"common/a.h": "int F();\n"})
        run = subprocess.run([TIDY, "--root", self.root], capture_output=True, text=True)
        self.assertEqual(run.returncode, 1)
        self.assertEqual(run.stdout, "common/a.h:1: found a header without #pragma once, "
                                     "expected #pragma once after the first comment\n")


if __name__ == "__main__":
    unittest.main()
