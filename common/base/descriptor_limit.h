// How many descriptors this process may have. (io)
#pragma once

#include <cstddef>

namespace coordd {

// Raises the soft limit to the hard one: nothing of ours uses select(), for which the soft one is
// low. Called by main. A program that is started from here inherits it.
void RaiseDescriptorLimit();

struct Descriptors {
  size_t max = 1024;  // the soft limit
  size_t in_use = 0;
};
Descriptors CountDescriptors();

}  // namespace coordd
