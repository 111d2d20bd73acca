// Fills a table of functions from a library that was opened at run time, and remembers what the
// library lacks. (io)
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/base/dynamic_library.h"

namespace coordd {

class FunctionTable {
 public:
  // `library` outlives it.
  explicit FunctionTable(const DynamicLibrary& library) : library_(library) {}

  // REQUIRES: Function is the type that the library's documentation gives to `symbol`.
  template <typename Function>
  void Required(Function*& function, const char* symbol) {
    Load(function, symbol, missing_required_);
  }
  template <typename Function>
  void Optional(Function*& function, const char* symbol) {
    Load(function, symbol, missing_optional_);
  }

  const std::vector<std::string>& missing_required() const { return missing_required_; }
  const std::vector<std::string>& missing_optional() const { return missing_optional_; }

 private:
  template <typename Function>
  void Load(Function*& function, const char* symbol, std::vector<std::string>& missing) {
    function = library_.Function<Function>(symbol);
    if (function == nullptr) missing.emplace_back(symbol);
  }

  const DynamicLibrary& library_;
  std::vector<std::string> missing_required_, missing_optional_;
};

}  // namespace coordd
