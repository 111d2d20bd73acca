// Process sets that their members make alone, for coordd.hpp, which it includes.
#ifndef COORDD_PROCESS_SETS_HPP_
#define COORDD_PROCESS_SETS_HPP_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "coordd/coordd.hpp"

namespace coordd {
inline namespace cpp {

// The members call it alike, the other ranks not at all; it blocks until the last member has. The
// number of the set, for whatever takes one; Worker::RemoveProcessSet by the members ends it. See
// process_sets.h.
inline Expected<int> TryAddProcessSetOfMembers(Worker& worker, const std::string& name,
                                               const std::vector<int32_t>& ranks,
                                               std::chrono::duration<double> timeout = {}) {
  int32_t set = 0;
  const coordd_status_t code = coordd_process_set_add_members(
      worker.handle(), name.c_str(), ranks.data(), ranks.size(), timeout.count(), &set);
  return code == COORDD_OK ? Expected<int>(set) : internal::Failure<int>(code);
}
inline int AddProcessSetOfMembers(Worker& worker, const std::string& name,
                                  const std::vector<int32_t>& ranks,
                                  std::chrono::duration<double> timeout = {}) {
  return TryAddProcessSetOfMembers(worker, name, ranks, timeout).value();
}

}  // namespace cpp
}  // namespace coordd

#endif  // COORDD_PROCESS_SETS_HPP_
