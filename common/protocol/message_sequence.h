// The number that a session gives to what it sends.
#pragma once

#include <cstdint>
#include <string>

namespace coordd {

// CoordinatorMessage.sequence alone, serialised: to stand behind a message that was serialised
// without it, for many receivers. Protocol buffers allow fields in any order.
std::string SequenceField(int64_t sequence);

}  // namespace coordd
