#include "client/coordctl/memory_bound.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

#include "absl/strings/string_view.h"
#include "client/coordctl/exit_code.h"

namespace coordd {
namespace {

// Nothing here may need memory.
[[noreturn]] void EndForWantOfMemory() {
  constexpr absl::string_view kSentence =
      "coordctl: there is not enough memory for what coordd has answered: 2 GiB are the most that "
      "it takes\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kSentence.data(), kSentence.size());
  _exit(kFailed);
}

}  // namespace

void BoundMemory([[maybe_unused]] size_t bytes) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their own memory is more
  rlimit limit = {};
  if (getrlimit(RLIMIT_DATA, &limit) == 0 && limit.rlim_cur > bytes) {
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_DATA, &limit);
  }
#endif
  std::set_new_handler(&EndForWantOfMemory);
}

}  // namespace coordd
