#include "common/base/utf8.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/unseen_characters.h"

namespace coordd {
namespace {

// Of the character that `text`, which is not empty, begins with; 0: it begins with none.
size_t CharacterBytes(absl::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t length = lead < 0x80   ? 1
                        : lead < 0xc2 ? 0
                        : lead < 0xe0 ? 2
                        : lead < 0xf0 ? 3
                        : lead < 0xf5 ? 4
                                      : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t k = 1; k < length; ++k)
    if ((static_cast<unsigned char>(text[k]) & 0xc0) != 0x80) return 0;
  if (length > 2) {
    // Overlong forms, surrogates and what is beyond U+10FFFF.
    const auto second = static_cast<unsigned char>(text[1]);
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
        (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f))
      return 0;
  }
  return length;
}

uint32_t CodePoint(absl::string_view character) {
  const auto lead = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return lead;
  uint32_t code = lead & (0x7fu >> character.size());
  for (size_t k = 1; k < character.size(); ++k)
    code = code << 6 | (static_cast<unsigned char>(character[k]) & 0x3fu);
  return code;
}

// What a terminal obeys instead of showing it, or shows as nothing, so that two names look alike.
bool IsObeyed(uint32_t code) {
  const CodeRange* const range =
      std::lower_bound(std::begin(kUnseenCharacters), std::end(kUnseenCharacters), code,
                       [](const CodeRange& one, uint32_t sought) { return one.last < sought; });
  return range != std::end(kUnseenCharacters) && code >= range->first;
}

// Most of what is said: nothing in it is to be looked up.
bool IsPlainAscii(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t length = CharacterBytes(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string ShortenedText(absl::string_view text, size_t max_bytes) {
  if (text.size() > max_bytes) {
    // Not in the middle of a character.
    size_t end = max_bytes;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    text = text.substr(0, end);
  }
  if (IsUtf8(text)) return std::string(text);
  std::string ascii(text);
  for (char& c : ascii)
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  return ascii;
}

bool IsPrintable(absl::string_view text) {
  return IsPlainAscii(text) || PrintableText(text) == text;
}

std::string PrintableText(absl::string_view text, absl::string_view kept) {
  if (IsPlainAscii(text)) return std::string(text);
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const size_t length = CharacterBytes(text);
    const absl::string_view character = text.substr(0, length == 0 ? 1 : length);
    text.remove_prefix(character.size());
    if (length == 0) {
      absl::StrAppend(&shown, "\\x",
                      absl::Hex(static_cast<unsigned char>(character[0]), absl::kZeroPad2));
    } else if (const uint32_t code = CodePoint(character);
               IsObeyed(code) && kept.find(character) == absl::string_view::npos) {
      absl::StrAppend(&shown, code < 0x80 ? "\\x" : "\\u",
                      absl::Hex(code, code < 0x80 ? absl::kZeroPad2 : absl::kZeroPad4));
    } else {
      absl::StrAppend(&shown, character);
    }
  }
  return shown;
}

std::string PrintableJson(absl::string_view json) {
  const auto escape = [](uint32_t unit) {
    return absl::StrCat("\\u", absl::Hex(unit, absl::kZeroPad4));
  };
  std::string shown;
  shown.reserve(json.size());
  while (!json.empty()) {
    const size_t length = CharacterBytes(json);
    const absl::string_view character = json.substr(0, length == 0 ? 1 : length);
    json.remove_prefix(character.size());
    const uint32_t code = length == 0 ? 0xfffd : CodePoint(character);
    // Line ends and spaces between JSON's words are the only controls outside of strings.
    if (code < 0x20 || (length != 0 && !IsObeyed(code))) {
      absl::StrAppend(&shown, character);
    } else if (code < 0x10000) {
      absl::StrAppend(&shown, escape(code));
    } else {
      absl::StrAppend(&shown, escape(0xd7c0 + (code >> 10)), escape(0xdc00 + (code & 0x3ff)));
    }
  }
  return shown;
}

}  // namespace coordd
