#include "common/base/text_cursor.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

// What is shown of a long text on each side of the column.
constexpr size_t kContextBytes = 30;

}  // namespace

bool TextCursor::Take(char c) {
  if (AtEnd() || Peek() != c) return false;
  Skip();
  return true;
}

absl::StatusOr<TextCursor::Number> TextCursor::TakeNumber(absl::string_view of_what,
                                                          uint64_t maximum) {
  const size_t start = position_;
  Number number;
  number.digits = TakeWhile([](char c) { return absl::ascii_isdigit(c); });
  if (number.digits.empty()) return Error(Here(), of_what);
  for (char digit : number.digits) {
    const uint64_t value = static_cast<uint64_t>(digit - '0');
    if (number.value > maximum / 10 || number.value * 10 > maximum - value) {
      return ErrorAt(start, absl::StrCat("the number ", number.digits.substr(0, kContextBytes)),
                     absl::StrCat("at most ", maximum));
    }
    number.value = number.value * 10 + value;
  }
  return number;
}

absl::Status TextCursor::ErrorAt(size_t position, absl::string_view found,
                                 absl::string_view expected) const {
  const size_t first = position > kContextBytes ? position - kContextBytes : 0;
  const absl::string_view shown = text_.substr(std::min(first, text_.size()), 2 * kContextBytes);
  return absl::InvalidArgumentError(
      absl::StrCat(what_, " \"", first > 0 ? "..." : "", absl::CHexEscape(shown),
                   first + shown.size() < text_.size() ? "..." : "", "\", column ", position + 1,
                   ": found ", found, ", expected ", expected));
}

std::string TextCursor::Here() const {
  if (AtEnd()) return "the end";
  return absl::StrCat("'", absl::CHexEscape(text_.substr(position_, 1)), "'");
}

}  // namespace coordd
