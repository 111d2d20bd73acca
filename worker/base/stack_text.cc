#include "worker/base/stack_text.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/utf8.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

constexpr absl::string_view kCurrent = "Current thread 0x", kOther = "Thread 0x";

}  // namespace

std::string StackText(absl::string_view dump) {
  std::vector<std::string> threads(1);
  size_t current = 0;
  for (absl::string_view line : absl::StrSplit(dump, '\n', absl::SkipWhitespace())) {
    const bool is_current = absl::StartsWith(line, kCurrent);
    if (is_current || absl::StartsWith(line, kOther)) {
      if (is_current) current = threads.size();
      threads.push_back(is_current ? "main thread:\n" : "another thread:\n");
    } else {
      absl::StrAppend(&threads.back(), line, "\n");
    }
  }
  std::string text = threads[current];
  for (size_t at = 0; at < threads.size(); ++at)
    if (at != current) absl::StrAppend(&text, threads[at]);
  text = ShortenedText(text, kMaxStackBytes);
  const size_t end = text.rfind('\n');
  return end == std::string::npos ? text : text.substr(0, end);
}

}  // namespace coordd
