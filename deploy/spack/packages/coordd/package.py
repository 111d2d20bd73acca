"""coordd in Spack 1.0 and later, from a clone of its repository:

    spack repo add deploy/spack
    spack dev-build coordd@0.1.0
"""

from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
from spack_repo.builtin.build_systems.python import PythonPipBuilder

from spack.package import *


class Coordd(CMakePackage):
    """Coordination and collectives for distributed training: the ranks of a job agree on what to reduce, and whoever is slow,
    missing or gone is called by name."""

    license("Apache-2.0")

    # There is no archive to download yet: dev-build and develop take the clone.
    version("0.1.0")

    variant("ucx", default=True, description="Collectives between nodes over UCX")
    variant("nccl", default=True, description="Tensors on GPUs, over CUDA and NCCL, which are opened at run time")
    variant("python", default=True, description="The Python package: coordd.torch, coordd.tensorflow, coordd.jax, ...")

    generator("ninja")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("pkgconfig", type="build")

    depends_on("abseil-cpp")
    depends_on("protobuf")
    depends_on("grpc +codegen")
    depends_on("openssl")
    depends_on("prometheus-cpp")
    depends_on("sqlite")
    depends_on("nlohmann-json")
    depends_on("cli11")
    depends_on("zlib-api")
    depends_on("googletest +gmock", type="test")
    depends_on("ucx", when="+ucx")

    extends("python@3.9:", when="+python")
    depends_on("py-pip", type="build", when="+python")
    depends_on("py-setuptools@61:", type="build", when="+python")
    depends_on("py-wheel", type="build", when="+python")
    depends_on("py-numpy", type="run", when="+python")

    conflicts("platform=darwin", msg="coordd is for Linux")
    conflicts("platform=windows", msg="coordd is for Linux")
    conflicts("%gcc@:11", msg="coordd is C++20 as GCC 12 has it")

    def cmake_args(self):
        # ON and OFF, never AUTO: what is built is what the variants say.
        return [
            self.define_from_variant("COORDD_WITH_UCX", "ucx"),
            self.define_from_variant("COORDD_WITH_NCCL", "nccl"),
            self.define("COORDD_BUILD_TESTS", self.run_tests),
        ]

    @run_after("install")
    def install_python_package(self):
        if self.spec.satisfies("+python"):
            pip = self.spec["python"].command
            pip.add_default_arg("-m", "pip")
            pip(*PythonPipBuilder.std_args(self), f"--prefix={self.prefix}", join_path(self.stage.source_path, "client", "python"))

    def setup_run_environment(self, env):
        # For the Python package, which else looks where the system's loader does.
        libraries = find_libraries("libcoordd", root=self.prefix, recursive=True)
        if libraries:
            env.set("COORDD_LIBRARY", libraries[0])
