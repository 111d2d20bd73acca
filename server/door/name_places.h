// How many of the door's places the connections of one name may take.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"

namespace coordd {

// Thread-safe. A name gets the next place while it has less than kTimesFree times what is free, so
// one alone has three quarters at most, two that want all have three sevenths each, and whoever
// comes new always finds room. Its first kAlways ones it gets whatever others have.
class NamePlaces {
 public:
  static constexpr size_t kAlways = 8, kTimesFree = 3;

  // A place that is taken, until it is destroyed; the NamePlaces outlives it. Not thread-safe.
  class Place {
   public:
    Place() = default;
    Place(NamePlaces* of, std::string name) : of_(of), name_(std::move(name)) {}
    Place(Place&& other) noexcept
        : of_(std::exchange(other.of_, nullptr)), name_(std::move(other.name_)) {}
    Place& operator=(Place&& other) noexcept {
      std::swap(of_, other.of_);
      std::swap(name_, other.name_);
      return *this;
    }
    ~Place() {
      if (of_ != nullptr) of_->Leave(name_);
    }

   private:
    NamePlaces* of_ = nullptr;
    std::string name_;
  };

  explicit NamePlaces(size_t places_max) : places_max_(places_max) {}

  // False: `name` has as many as it may have now; `of_name` says how many.
  bool Take(const std::string& name, Place* place, size_t* of_name);
  size_t places_max() const { return places_max_; }

 private:
  void Leave(const std::string& name);

  const size_t places_max_;

  // Guarded by mu_.
  Mutex mu_;
  absl::flat_hash_map<std::string, size_t> taken_ ABSL_GUARDED_BY(mu_);  // none is 0
  size_t all_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace coordd
