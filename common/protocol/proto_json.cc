#include "common/protocol/proto_json.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/duration.pb.h"

namespace coordd {
namespace {

using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using OrderedJson = nlohmann::ordered_json;

OrderedJson MessageJson(const Message& message);

// One value: element `index` of a repeated field, or a singular field when `index` < 0.
OrderedJson ValueJson(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection& get = *message.GetReflection();
  const bool many = index >= 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return many ? get.GetRepeatedInt32(message, field, index) : get.GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_INT64:
      return many ? get.GetRepeatedInt64(message, field, index) : get.GetInt64(message, field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return many ? get.GetRepeatedUInt32(message, field, index) : get.GetUInt32(message, field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return many ? get.GetRepeatedUInt64(message, field, index) : get.GetUInt64(message, field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return many ? get.GetRepeatedDouble(message, field, index) : get.GetDouble(message, field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return many ? get.GetRepeatedFloat(message, field, index) : get.GetFloat(message, field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return many ? get.GetRepeatedBool(message, field, index) : get.GetBool(message, field);
    case FieldDescriptor::CPPTYPE_ENUM: {
      const EnumValueDescriptor* value =
          many ? get.GetRepeatedEnum(message, field, index) : get.GetEnum(message, field);
      return EnumeratorName(*value);
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return many ? get.GetRepeatedString(message, field, index) : get.GetString(message, field);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (many) return MessageJson(get.GetRepeatedMessage(message, field, index));
      if (!get.HasField(message, field)) return nullptr;
      return MessageJson(get.GetMessage(message, field));
  }
  return nullptr;
}

// By key, in order.
OrderedJson MapJson(const Message& message, const FieldDescriptor* field) {
  std::map<std::string, OrderedJson> sorted;
  const int count = message.GetReflection()->FieldSize(message, field);
  for (int k = 0; k < count; ++k) {
    OrderedJson entry = ValueJson(message, field, k);
    const OrderedJson& key = entry["key"];
    sorted[key.is_string() ? key.get<std::string>() : key.dump()] = entry["value"];
  }
  OrderedJson json = OrderedJson::object();
  for (auto& [key, value] : sorted) json[key] = std::move(value);
  return json;
}

OrderedJson MessageJson(const Message& message) {
  if (const auto* duration = dynamic_cast<const google::protobuf::Duration*>(&message))
    return static_cast<double>(duration->seconds()) + duration->nanos() * 1e-9;
  OrderedJson json = OrderedJson::object();
  const auto* type = message.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (field->type() == FieldDescriptor::TYPE_BYTES) continue;
    if (!field->is_repeated()) {
      // What is marked as optional may be not known, which is not zero.
      const bool unknown =
          field->has_optional_keyword() && !message.GetReflection()->HasField(message, field);
      json[field->name()] = unknown ? OrderedJson(nullptr) : ValueJson(message, field, -1);
      continue;
    }
    if (field->is_map()) {
      json[field->name()] = MapJson(message, field);
      continue;
    }
    OrderedJson& values = json[field->name()] = OrderedJson::array();
    const int count = message.GetReflection()->FieldSize(message, field);
    for (int k = 0; k < count; ++k) values.push_back(ValueJson(message, field, k));
  }
  return json;
}

}  // namespace

std::string ToJson(const Message& message, bool pretty) {
  // Strings that are not UTF-8 get replacement characters: a status page must not fail over one.
  return MessageJson(message).dump(pretty ? 2 : -1, ' ', false,
                                   OrderedJson::error_handler_t::replace);
}

std::string EnumeratorName(const EnumValueDescriptor& value) {
  std::string prefix;
  for (char c : value.type()->name()) {
    if (absl::ascii_isupper(c) && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_toupper(c);
  }
  prefix += '_';
  absl::string_view name = value.name();
  if (absl::StartsWith(name, prefix)) name.remove_prefix(prefix.size());
  return absl::AsciiStrToLower(name);
}

}  // namespace coordd
