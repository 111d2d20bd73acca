"""deploy/spack parses, and says of variants and dependencies what CMake says. Spack is no package of PyPI or Debian: what it gives a
recipe is stood in for here."""

import ast
import os
import re
import sys
import types
import unittest
import unittest.mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RECIPE = os.path.join(ROOT, "deploy", "spack", "packages", "coordd", "package.py")
# What CMake looks for, by Spack's names; nothing to depend on: what comes with the compiler.
SPACK_NAMES = {"absl": "abseil-cpp", "Protobuf": "protobuf", "gRPC": "grpc", "OpenSSL": "openssl", "prometheus-cpp": "prometheus-cpp",
               "SQLite3": "sqlite", "nlohmann_json": "nlohmann-json", "CLI11": "cli11", "GTest": "googletest", "PkgConfig": "pkgconfig",
               "Threads": None}


def text_of(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


class Recorder:
    """The directives of a recipe: each call is kept under its name."""

    def __init__(self):
        self.calls = []

    def directive(self, name):
        def call(*arguments, **options):
            self.calls.append((name, arguments, options))
        return call

    def of(self, name):
        return {arguments[0]: options for called, arguments, options in self.calls if called == name}


class StandInPackage:
    """CMakePackage as far as the recipe goes."""
    values = {}
    run_tests = False

    def define(self, name, value):
        return f"-D{name}:BOOL={'ON' if value else 'OFF'}"

    def define_from_variant(self, name, variant):
        return self.define(name, self.values[variant])


def load(recorder):
    """The recipe's class, run against the stand-ins."""
    package = types.ModuleType("spack.package")
    for name in ("license", "version", "variant", "depends_on", "extends", "conflicts"):
        setattr(package, name, recorder.directive(name))
    package.run_after = lambda _phase: lambda method: method
    package.join_path = os.path.join
    package.find_libraries = lambda *_names, **_options: []
    cmake = types.ModuleType("cmake")
    cmake.CMakePackage, cmake.generator = StandInPackage, recorder.directive("generator")
    python = types.ModuleType("python")
    python.PythonPipBuilder = object
    systems = "spack_repo.builtin.build_systems"
    modules = {"spack": types.ModuleType("spack"), "spack.package": package, "spack_repo": types.ModuleType("spack_repo"),
               "spack_repo.builtin": types.ModuleType("builtin"), systems: types.ModuleType("build_systems"),
               f"{systems}.cmake": cmake, f"{systems}.python": python}
    found = {}
    with unittest.mock.patch.dict(sys.modules, modules):
        exec(compile(text_of("deploy", "spack", "packages", "coordd", "package.py"), RECIPE, "exec"), found)
    return found["Coordd"]


class Recipe(unittest.TestCase):
    def setUp(self):
        self.recorder = Recorder()
        self.package = load(self.recorder)

    def test_it_is_one_class_named_as_its_folder(self):
        classes = [node.name for node in ast.parse(text_of("deploy", "spack", "packages", "coordd", "package.py")).body
                   if isinstance(node, ast.ClassDef)]
        self.assertEqual(classes, ["Coordd"])
        self.assertIn("namespace: coordd\n", text_of("deploy", "spack", "repo.yaml"))

    def test_its_version_is_that_of_the_tree(self):
        built = re.search(r"project\(coordd VERSION ([0-9.]+)", text_of("CMakeLists.txt")).group(1)
        self.assertEqual(list(self.recorder.of("version")), [built])

    def test_every_package_that_cmake_requires_is_a_dependency(self):
        wanted = re.findall(r"find_package\((\S+)", text_of("cmake", "CoorddDependencies.cmake"))
        dependencies = {spec.split()[0].split("@")[0] for spec in self.recorder.of("depends_on")}
        for name in wanted:
            self.assertIn(name, SPACK_NAMES, "a package that this test has no name of Spack's for")
            if SPACK_NAMES[name]:
                self.assertIn(SPACK_NAMES[name], dependencies)
        least = re.search(r"cmake_minimum_required\(VERSION ([0-9.]+)", text_of("CMakeLists.txt")).group(1)
        self.assertIn(f"cmake@{least}:", self.recorder.of("depends_on"))

    def test_variants_are_cmakes_options(self):
        options = set(re.findall(r"^set\(COORDD_WITH_(\w+) AUTO", text_of("CMakeLists.txt"), re.MULTILINE))
        variants = self.recorder.of("variant")
        self.assertEqual({name.lower() for name in options} | {"python"}, set(variants))
        self.assertEqual(self.recorder.of("depends_on")["ucx"]["when"], "+ucx")
        for on in (True, False):
            package = self.package()
            package.values = dict.fromkeys(variants, on)
            arguments = package.cmake_args()
            for name in options:
                self.assertIn(f"-DCOORDD_WITH_{name}:BOOL={'ON' if on else 'OFF'}", arguments)
        self.assertIn("-DCOORDD_BUILD_TESTS:BOOL=OFF", arguments)

    def test_the_python_package_has_what_it_asks_for(self):
        project = text_of("client", "python", "pyproject.toml")
        least = re.search(r'requires-python = ">=([0-9.]+)"', project).group(1)
        self.assertEqual(self.recorder.of("extends"), {f"python@{least}:": {"when": "+python"}})
        setuptools = re.search(r"setuptools>=(\d+)", project).group(1)
        self.assertIn(f"py-setuptools@{setuptools}:", self.recorder.of("depends_on"))


if __name__ == "__main__":
    unittest.main()
