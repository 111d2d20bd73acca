#include "server/door/name_places.h"

#include <algorithm>

namespace coordd {

bool NamePlaces::Take(const std::string& name, Place* place, size_t* of_name) {
  MutexLock lock(&mu_);
  const auto found = taken_.find(name);
  *of_name = found == taken_.end() ? 0 : found->second;
  const size_t free = places_max_ - std::min(places_max_, all_);
  if (*of_name >= kAlways && *of_name >= kTimesFree * free) return false;
  ++taken_[name];
  ++all_;
  *place = Place(this, name);
  return true;
}

void NamePlaces::Leave(const std::string& name) {
  MutexLock lock(&mu_);
  const auto found = taken_.find(name);
  if (--found->second == 0) taken_.erase(found);
  --all_;
}

}  // namespace coordd
