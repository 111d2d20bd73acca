#include "common/machine/ucx_library.h"

#include <dlfcn.h>
#include <signal.h>

#include <iterator>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/machine/build_components.h"

namespace coordd {
namespace {

struct TakenSignal {
  int signal;
  const char* wish;  // the variable with which a user asks for it
};
constexpr TakenSignal kTakenSignals[] = {
    {SIGSEGV, "UCX_HANDLE_ERRORS"}, {SIGBUS, "UCX_HANDLE_ERRORS"},  {SIGFPE, "UCX_HANDLE_ERRORS"},
    {SIGILL, "UCX_HANDLE_ERRORS"},  {SIGABRT, "UCX_HANDLE_ERRORS"}, {SIGHUP, "UCX_DEBUG_SIGNO"}};

// Where the library is loaded that this address is in; nullptr: nowhere.
void* LibraryOf(void* address) {
  Dl_info found = {};
  return address != nullptr && dladdr(address, &found) != 0 ? found.dli_fbase : nullptr;
}

void* HandlerOf(int signal) {
  struct sigaction action = {};
  if (sigaction(signal, nullptr, &action) != 0) return nullptr;
  if ((action.sa_flags & SA_SIGINFO) != 0) return reinterpret_cast<void*>(action.sa_sigaction);
  if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) return nullptr;
  return reinterpret_cast<void*>(action.sa_handler);
}

void GiveBackSignals(const DynamicLibrary& library, const Environment& environment) {
  auto* const give_back = library.Function<void(int)>("ucs_debug_disable_signal");
  void* const ucs = LibraryOf(reinterpret_cast<void*>(give_back));
  for (const TakenSignal& taken : kTakenSignals) {
    if (environment.contains(taken.wish)) continue;
    // Of a signal that it has not taken UCX would complain.
    if (ucs != nullptr && LibraryOf(HandlerOf(taken.signal)) == ucs) give_back(taken.signal);
  }
}

// docs/COMPATIBILITY.md says what was tried with each. 1.13 is Debian 12's.
constexpr UcxVersion kTried[] = {{1, 13, 1}, {1, 14, 1}, {1, 15, 0}, {1, 16, 0},
                                 {1, 17, 0}, {1, 18, 1}, {1, 19, 0}, {1, 20, 0},
                                 {1, 20, 1}, {1, 21, 0}, {1, 22, 0}};

// Of the headers that this build was made with.
UcxVersion BuiltUcxVersion() {
  UcxVersion built;
  for (const BuiltComponent& component : kBuiltComponents) {
    if (absl::string_view(component.name) != "UCX") continue;
    const std::vector<absl::string_view> numbers = absl::StrSplit(component.version, '.');
    if (numbers.size() < 2 || !absl::SimpleAtoi(numbers[0], &built.major) ||
        !absl::SimpleAtoi(numbers[1], &built.minor))
      return {};
  }
  return built;
}

absl::Status CheckVersion(const DynamicLibrary& library) {
  COORDD_ASSIGN_OR_RETURN(const UcxVersion found, UcxVersionOf(library));
  const UcxVersion built = BuiltUcxVersion();
  if (found.major == built.major && found.minor >= built.minor) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("UCX is ", found.ToString(), ", expected ", built.major, ".", built.minor,
                   ", with which this coordd was built, or a later ", built.major, ".x"));
}

}  // namespace

std::string UcxVersion::ToString() const { return absl::StrCat(major, ".", minor, ".", release); }

absl::StatusOr<UcxVersion> UcxVersionOf(const DynamicLibrary& library) {
  auto* const get = library.Function<void(unsigned*, unsigned*, unsigned*)>("ucp_get_version");
  if (get == nullptr) return absl::NotFoundError("it has no ucp_get_version, so it is not UCX");
  UcxVersion version;
  get(&version.major, &version.minor, &version.release);
  return version;
}

std::string UcxTriedText(const UcxVersion& version) {
  if (absl::c_linear_search(kTried, version)) return "tried";
  for (const UcxVersion& tried : kTried) {
    if (tried.major == version.major && tried.minor == version.minor)
      return absl::StrCat("not tried, but ", tried.ToString(), " was");
  }
  return absl::StrCat("not tried: coordd's tests ran with ", std::begin(kTried)->ToString(), " to ",
                      std::rbegin(kTried)->ToString());
}

absl::StatusOr<DynamicLibrary> OpenUcx(const Environment& environment) {
  const std::string named = Variable(environment, kUcxVariable);
  absl::StatusOr<DynamicLibrary> library =
      DynamicLibrary::Open(named.empty() ? kUcxPrivateLibrary : named);
  if (!library.ok() && named.empty()) library = DynamicLibrary::Open(kUcxLibrary);
  absl::Status status = library.status();
  if (status.ok()) {
    GiveBackSignals(*library, environment);
    status = CheckVersion(*library);
  }
  if (status.ok()) return library;
  if (named.empty()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(kUcxVariable, "=", named, ": ", status.message()));
}

}  // namespace coordd
