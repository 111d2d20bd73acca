#include "common/protocol/printable_message.h"

#include <string>
#include <vector>

#include "common/base/utf8.h"
#include "google/protobuf/descriptor.h"

namespace coordd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

void MakeTextPrintable(Message* message, const FieldDescriptor* field) {
  const Reflection& reflection = *message->GetReflection();
  const absl::string_view kept = field->name() == "stack" ? "\n" : "";
  if (!field->is_repeated()) {
    reflection.SetString(message, field,
                         PrintableText(reflection.GetString(*message, field), kept));
    return;
  }
  for (int i = 0; i < reflection.FieldSize(*message, field); ++i) {
    reflection.SetRepeatedString(
        message, field, i, PrintableText(reflection.GetRepeatedString(*message, field, i), kept));
  }
}

}  // namespace

void MakePrintable(Message* message) {
  const Reflection& reflection = *message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->type() == FieldDescriptor::TYPE_STRING) MakeTextPrintable(message, field);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      MakePrintable(reflection.MutableMessage(message, field));
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(*message, field); ++i)
      MakePrintable(reflection.MutableRepeatedMessage(message, field, i));
  }
}

}  // namespace coordd
