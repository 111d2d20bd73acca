"""The version of coordd, equal to that of CMakeLists.txt and of libcoordd.so; tests hold them together."""

__version__ = "0.1.0"
