// UCX's library, which is opened when ranks on several nodes have to reach each other, and not
// before: loading it takes a quarter of the time in which a process starts. (io)
#pragma once

#include <compare>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/dynamic_library.h"
#include "common/base/environment.h"

namespace coordd {

inline constexpr char kUcxLibrary[] = "libucp.so.0";
// The name of a wheel's own copy, which tools/build-wheel gives it.
inline constexpr char kUcxPrivateLibrary[] = "libucp-coordd.so.0";
inline constexpr char kUcxVariable[] = "COORDD_UCX_LIBRARY";

struct UcxVersion {
  unsigned major = 0, minor = 0, release = 0;

  std::string ToString() const;  // "1.22.0"
  friend auto operator<=>(const UcxVersion&, const UcxVersion&) = default;
};

// What the library says of itself. NOT_FOUND: it cannot tell, so it is not UCX.
absl::StatusOr<UcxVersion> UcxVersionOf(const DynamicLibrary& library);

// Whether coordd's tests have run with it (docs/COMPATIBILITY.md has the table): "tried", or what
// they have run with instead. PURE.
std::string UcxTriedText(const UcxVersion& version);

// COORDD_UCX_LIBRARY of `environment`, else the wheel's own copy, else the one in this process or
// the system's. What is opened stays open. NOT_FOUND: the loader's sentence, with the variable when
// that names it, or what the library lacks. FAILED_PRECONDITION: older than the one that this
// build's headers are of, or of another major version.
//
// As it is loaded UCX takes SIGSEGV, SIGBUS, SIGFPE and SIGILL, to print a trace of its own, and
// SIGHUP, which then no longer ends a program whose terminal has gone. They belong to the program:
// each is given back right then to whoever had it, unless the user wants it so, by
// UCX_HANDLE_ERRORS and UCX_DEBUG_SIGNO of `environment`. (Setting those variables before the
// library is loaded would do the same, but the program's children would inherit them.)
absl::StatusOr<DynamicLibrary> OpenUcx(const Environment& environment);

}  // namespace coordd
