// How much memory coordctl may take, and its end beyond that. (io)
#pragma once

#include <cstddef>

namespace coordd {

// A state of 300,000 workers, of 57 MiB, takes 1.4 GiB as it is written as JSON. One whose parts
// have nothing in them, each of two bytes on the wire, would take two hundred times its size.
inline constexpr size_t kMemoryMax = size_t{2} << 30;

// From now on the process takes `bytes` at most, and where it cannot have more, for this or
// another reason, it says so in a sentence and exits with kFailed. Call it before there are other
// threads.
void BoundMemory(size_t bytes);

}  // namespace coordd
