"""Which room may include which (tools/rooms.py), on small trees with one planted violation, and on one without."""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import rooms  # noqa: E402

LOW = "coordd_library(coordd_low SOURCES low.cc LIBS absl::status)\n"
HIGH = "coordd_library(coordd_high\n  SOURCES high.cc\n  LIBS coordd_low)\n"
MAKES = {"worker/low/CMakeLists.txt": LOW, "worker/high/CMakeLists.txt": HIGH}
FILES = [("worker/low/low.h", ["int Low();"]), ("worker/high/high.cc", ['#include "worker/low/low.h"'])]


class RoomsTest(unittest.TestCase):
    def found(self, files, makes):
        return [f"{path}:{line}: {what}" for path, line, what, _ in rooms.check_rooms(files, makes)]

    def test_finds_nothing_where_arrows_point_down(self):
        self.assertEqual(self.found(FILES, MAKES), [])

    def test_an_include_of_a_higher_room(self):
        files = [*FILES, ("worker/low/low.cc", ["", '#include "worker/high/high.h"'])]
        self.assertEqual(self.found(files, MAKES), ["worker/low/low.cc:2: an include of worker/high/ in worker/low/"])

    def test_an_include_of_another_top_folder(self):
        makes = {**MAKES, "server/job/CMakeLists.txt": "coordd_library(coordd_job SOURCES job.cc)"}
        files = [*FILES, ("server/job/job.cc", ['#include "worker/low/low.h"'])]
        self.assertEqual(self.found(files, makes), ["server/job/job.cc:1: an include of worker/low/ in server/job/"])

    def test_a_library_of_which_nothing_is_included(self):
        self.assertEqual(self.found(FILES[:1], MAKES),
                         ["worker/high/CMakeLists.txt:3: coordd_low, of which worker/high/ includes nothing"])

    def test_a_circle(self):
        makes = {**MAKES, "worker/low/CMakeLists.txt": "coordd_library(coordd_low SOURCES low.cc LIBS coordd_high)"}
        files = [*FILES, ("worker/low/low.cc", ['#include "worker/high/high.h"'])]
        self.assertEqual(self.found(files, makes),
                         ["worker/high/CMakeLists.txt:1: a circle of rooms, worker/high -> worker/low -> worker/high"])

    def test_a_library_of_headers_only(self):
        makes = {**MAKES, "worker/low/CMakeLists.txt": "add_library(coordd_low INTERFACE)\n"
                 "target_link_libraries(coordd_low INTERFACE absl::status)"}
        self.assertEqual(self.found(FILES, makes), [])

    def test_one_name_for_all_rooms_of_a_folder(self):
        makes = {**MAKES, "worker/CMakeLists.txt": "add_library(coordd_all INTERFACE)\n"
                 "target_link_libraries(coordd_all INTERFACE coordd_low coordd_high)",
                 "client/CMakeLists.txt": "coordd_program(tool SOURCES main.cc LIBS coordd_all)"}
        self.assertEqual(self.found([*FILES, ("client/main.cc", ['#include "worker/low/low.h"'])], makes), [])

    def test_a_comment_links_nothing(self):
        makes = {**MAKES, "worker/high/CMakeLists.txt": "coordd_library(coordd_high SOURCES high.cc)  # LIBS coordd_low)"}
        self.assertEqual(self.found(FILES, makes), ["worker/high/high.cc:1: an include of worker/low/ in worker/high/"])

    def test_a_folder_below_a_room_belongs_to_it(self):
        files = [*FILES, ("worker/high/deep/deep.cc", ['#include "worker/low/low.h"'])]
        self.assertEqual(self.found(files, MAKES), [])

    def test_a_room_without_a_readme(self):
        found = [path for path, *_ in rooms.check_readmes({"worker/low/README.md"}, MAKES)]
        self.assertEqual(found, ["worker/high/CMakeLists.txt"])

    def test_a_circle_of_python_modules_also_by_an_import_within_a_function(self):
        texts = {"client/python/p/__init__.py": "from p import low\n", "client/python/p/low.py": "def f():\n    from p.high import g\n",
                 "client/python/p/high.py": "from p.low import f\n", "tests/other.py": "import p\n"}
        found = [what for _, _, what, _ in rooms.check_python(texts)]
        self.assertEqual(found, ["a circle of modules, p.low -> p.high -> p.low"])
        texts["client/python/p/low.py"] = "import os\n"
        self.assertEqual(list(rooms.check_python(texts)), [])


if __name__ == "__main__":
    unittest.main()
