#include "common/protocol/message_sequence.h"

#include <google/protobuf/io/coded_stream.h>

#include "coordd/v1/session.pb.h"

namespace coordd {

std::string SequenceField(int64_t sequence) {
  using google::protobuf::io::CodedOutputStream;
  constexpr uint8_t kTag = v1::CoordinatorMessage::kSequenceFieldNumber << 3;  // wire type: varint
  uint8_t bytes[11] = {kTag};
  const uint8_t* end =
      CodedOutputStream::WriteVarint64ToArray(static_cast<uint64_t>(sequence), bytes + 1);
  return std::string(static_cast<const uint8_t*>(bytes), end);
}

}  // namespace coordd
