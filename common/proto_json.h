// A protocol message as JSON for programs: field names as in the .proto, every field present,
// 64-bit integers as numbers, enumerators in lower case without their prefix ("running"), bytes
// never shown. A Duration is a number of seconds; an absent message is null.
#pragma once

#include <string>

#include "google/protobuf/message.h"

namespace coordd {

std::string ToJson(const google::protobuf::Message& message, bool pretty);

}  // namespace coordd
