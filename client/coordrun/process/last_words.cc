#include "client/coordrun/process/last_words.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"

namespace coordd {
namespace {

constexpr size_t kMaxLines = 3;
constexpr size_t kMaxBytes = 200;  // of a line; below kMaxLastWordBytes with its dots

bool EndsEscape(char c) { return c >= '@' && c <= '~'; }

// Behind an ESC: the number of bytes that belong to it (ECMA-48: "[31m", or one byte).
size_t EscapeLength(absl::string_view rest) {
  if (rest.empty()) return 0;
  if (rest[0] != '[') return 1;
  size_t length = 1;
  while (length < rest.size() && !EndsEscape(rest[length])) ++length;
  return std::min(length + 1, rest.size());
}

}  // namespace

std::string WithoutEscapes(absl::string_view line) {
  // Of a progress bar, what one would see.
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  if (const size_t last = line.rfind('\r'); last != absl::string_view::npos)
    line.remove_prefix(last + 1);
  std::string clean;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      i += EscapeLength(line.substr(i + 1));
    } else {
      clean.push_back(line[i]);
    }
  }
  return clean;
}

std::string CleanLine(absl::string_view line) {
  std::string clean = WithoutEscapes(line);
  for (char& c : clean)
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = ' ';
  const absl::string_view trimmed = absl::StripAsciiWhitespace(clean);
  return absl::StrCat(ShortenedText(trimmed, kMaxBytes), trimmed.size() > kMaxBytes ? "..." : "");
}

std::vector<std::string> LastWords(const std::deque<std::string>& tail) {
  std::vector<std::string> words;
  for (auto line = tail.rbegin(); line != tail.rend() && words.size() < kMaxLines; ++line) {
    std::string clean = CleanLine(*line);
    if (!clean.empty()) words.push_back(std::move(clean));
  }
  std::reverse(words.begin(), words.end());
  return words;
}

v1::ProcessExit ToProto(const ProcessEnd& end, const std::deque<std::string>& tail,
                        const std::string& reason) {
  v1::ProcessExit exit;
  exit.set_unreachable(end.lost);
  if (!end.lost) {
    exit.set_signal(end.signal);
    exit.set_code(end.code);
  }
  exit.set_reason(reason);
  for (std::string& line : LastWords(tail)) exit.add_last_words(std::move(line));
  return exit;
}

}  // namespace coordd
