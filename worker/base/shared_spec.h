// A TensorSpec on its way through the worker's tables.
#pragma once

#include <memory>
#include <utility>

#include "common/protocol/tensor_spec.h"

namespace coordd {

// A spec that nobody changes any more, so copies share it: a tensor passes from the caller to the
// end of its batch at the price of a pointer, whatever its name and shape. Thread-safe as a
// shared_ptr is.
class SharedSpec {
 public:
  SharedSpec() = default;  // none, which must not be read
  SharedSpec(TensorSpec spec) : spec_(std::make_shared<const TensorSpec>(std::move(spec))) {}

  const TensorSpec& operator*() const { return *spec_; }
  const TensorSpec* operator->() const { return spec_.get(); }
  // Whether it is one and the same, not only equal.
  bool Is(const SharedSpec& other) const { return spec_ == other.spec_; }

 private:
  std::shared_ptr<const TensorSpec> spec_;
};

}  // namespace coordd
