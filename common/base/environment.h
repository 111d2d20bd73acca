// The only place that reads environment variables; everything else is given a map.
#pragma once

#include <map>
#include <string>

namespace coordd {

using Environment = std::map<std::string, std::string>;

// A copy of this process's environment. Called by main(), and on behalf of the C API's caller by
// its init and where it asks for memory of a GPU.
Environment ReadEnvironment();

// The value of a variable; empty when it is not set.
std::string Variable(const Environment& environment, const std::string& name);

}  // namespace coordd
