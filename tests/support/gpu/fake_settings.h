// Numbers by name that tests set in a fake library, directly or through an environment variable.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>

namespace coordd {

// Thread-safe.
class FakeSettings {
 public:
  // `variable`: "name=value,name=value"; what it names replaces the defaults.
  FakeSettings(const char* variable, std::map<std::string, long> defaults)
      : values_(std::move(defaults)) {
    const char* text = getenv(variable);
    std::istringstream in(text != nullptr ? text : "");
    for (std::string entry; std::getline(in, entry, ',');) {
      const size_t equals = entry.find('=');
      if (equals != std::string::npos)
        Set(entry.substr(0, equals), std::strtol(entry.c_str() + equals + 1, nullptr, 10));
    }
  }

  long Get(const std::string& name) {
    std::lock_guard lock(mu_);
    return values_.at(name);
  }
  // A name that the fake does not have is a mistake of the test.
  void Set(const std::string& name, long value) {
    std::lock_guard lock(mu_);
    const auto it = values_.find(name);
    if (it == values_.end()) {
      std::fprintf(stderr, "the fake has no setting %s\n", name.c_str());
      std::abort();
    }
    it->second = value;
  }
  // What it was; 0 from now on, so that one caller alone gets it.
  long Take(const std::string& name) {
    std::lock_guard lock(mu_);
    return std::exchange(values_.at(name), 0);
  }
  // Counts down to 0; returns whether it was 0 already.
  bool CountDown(const std::string& name) {
    std::lock_guard lock(mu_);
    long& value = values_.at(name);
    if (value == 0) return true;
    --value;
    return false;
  }

 private:
  std::mutex mu_;
  std::map<std::string, long> values_;
};

}  // namespace coordd
