// A protocol message as JSON for programs: field names as in the .proto, every field present,
// 64-bit integers as numbers, enumerators in lower case without their prefix ("running"), bytes
// never shown. A Duration is a number of seconds; an absent message is null.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/generated_enum_reflection.h"
#include "google/protobuf/message.h"

namespace coordd {

std::string ToJson(const google::protobuf::Message& message, bool pretty);

// The enumerator's name without its prefix: JOB_PHASE_RUNNING of enum JobPhase becomes "running".
std::string EnumeratorName(const google::protobuf::EnumValueDescriptor& value);

// The name of an enumerator; of one that this version does not know, its number.
template <typename Enum>
std::string EnumeratorName(Enum value) {
  const auto* known = google::protobuf::GetEnumDescriptor<Enum>()->FindValueByNumber(value);
  return known != nullptr ? EnumeratorName(*known) : absl::StrCat(static_cast<int>(value));
}

}  // namespace coordd
