// A position in a text that people wrote, for parsers whose errors point at the column. PURE
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coordd {

// One thread owns it. The text outlives it.
class TextCursor {
 public:
  // `what` names the text in errors: "the host list".
  TextCursor(absl::string_view what, absl::string_view text) : what_(what), text_(text) {}

  bool AtEnd() const { return position_ >= text_.size(); }
  size_t position() const { return position_; }
  // The character here; '\0' at the end.
  char Peek() const { return AtEnd() ? '\0' : text_[position_]; }
  void Skip() { ++position_; }
  // Skips `c` when it is here.
  bool Take(char c);
  // The characters from here on for which `wanted` is true.
  template <typename Predicate>
  absl::string_view TakeWhile(Predicate wanted) {
    const size_t start = position_;
    while (!AtEnd() && wanted(text_[position_])) ++position_;
    return text_.substr(start, position_ - start);
  }
  // A number without sign, with its digits. INVALID_ARGUMENT: none is here, or it exceeds
  // `maximum`.
  struct Number {
    uint64_t value = 0;
    absl::string_view digits;
  };
  absl::StatusOr<Number> TakeNumber(absl::string_view of_what, uint64_t maximum);

  // INVALID_ARGUMENT: WHAT "TEXT", column N: `found`, expected `expected`. A long text is cut to
  // the part around the column. Columns count bytes from 1.
  absl::Status Error(absl::string_view found, absl::string_view expected) const {
    return ErrorAt(position_, found, expected);
  }
  absl::Status ErrorAt(size_t position, absl::string_view found, absl::string_view expected) const;
  // What is at this position, quoted, for `found`: "'['", "the end".
  std::string Here() const;

 private:
  const absl::string_view what_;
  const absl::string_view text_;
  size_t position_ = 0;
};

}  // namespace coordd
