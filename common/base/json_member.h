// Members of JSON objects that others wrote.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace coordd {

// The value of a string member; empty when it is missing or something else.
inline std::string TextMember(const nlohmann::json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace coordd
