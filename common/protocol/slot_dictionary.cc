#include "common/protocol/slot_dictionary.h"

#include <algorithm>

namespace coordd {

SlotBits PackSlots(absl::Span<const int64_t> slots) {
  const auto [first, last] = std::minmax_element(slots.begin(), slots.end());
  SlotBits packed{.first = *first,
                  .bits = std::string(static_cast<size_t>(*last - *first) / 8 + 1, '\0')};
  for (int64_t slot : slots) {
    const auto bit = static_cast<size_t>(slot - packed.first);
    packed.bits[bit / 8] =
        static_cast<char>(static_cast<unsigned char>(packed.bits[bit / 8]) | (1u << (bit % 8)));
  }
  return packed;
}

}  // namespace coordd
