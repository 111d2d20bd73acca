#include "worker/gpu/nccl/captured_calls.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/protocol/tensor_spec.h"

namespace coordd {
namespace {

// An encoded sequence: "COUNT DIGEST\n" and the lines.
struct Sequence {
  absl::string_view head;
  std::vector<absl::string_view> lines;
};

Sequence Parse(absl::string_view encoded) {
  Sequence sequence;
  std::vector<absl::string_view> parts = absl::StrSplit(encoded, '\n');
  sequence.head = parts.front();
  sequence.lines.assign(parts.begin() + 1, parts.end());
  if (!sequence.lines.empty() && sequence.lines.back().empty()) sequence.lines.pop_back();
  return sequence;
}

std::string At(const Sequence& sequence, size_t call) {
  return call < sequence.lines.size() ? std::string(sequence.lines[call]) : std::string("nothing");
}

}  // namespace

std::string DescribeCall(const CapturedCall& call) {
  std::string text(Name(call.kind));
  if (Reduces(call.kind)) absl::StrAppend(&text, " ", Name(call.op));
  if (call.kind == CollectiveKind::kBroadcast) absl::StrAppend(&text, " from ", call.root);
  absl::StrAppend(&text, " of ", call.tensors.size(),
                  call.tensors.size() == 1 ? " tensor:" : " tensors:");
  const char* separator = " ";
  for (const CapturedTensor& tensor : call.tensors) {
    absl::StrAppend(&text, separator, Name(tensor.dtype), " ",
                    tensor.input_bytes / SizeOf(tensor.dtype));
    separator = ", ";
  }
  return text;
}

void CapturedSequence::Add(const std::string& call) {
  ++count_;
  for (const char c : call + "\n")
    digest_ = (digest_ ^ static_cast<unsigned char>(c)) * 1099511628211u;
  complete_ = complete_ && texts_.size() + call.size() < kTextBytesMax;
  if (complete_) absl::StrAppend(&texts_, call, "\n");
}

std::string CapturedSequence::Encode() const {
  return absl::StrCat(count_, " ", absl::Hex(digest_), "\n", texts_);
}

std::string FirstDifference(absl::Span<const std::string> encoded,
                            absl::Span<const int32_t> ranks) {
  if (encoded.empty()) return "";
  const Sequence first = Parse(encoded.front());
  for (size_t r = 1; r < encoded.size(); ++r) {
    const Sequence other = Parse(encoded[r]);
    if (other.head == first.head) continue;
    size_t call = 0;
    while (call < first.lines.size() && call < other.lines.size() &&
           first.lines[call] == other.lines[call]) {
      ++call;
    }
    if (call == first.lines.size() && call == other.lines.size()) {
      return absl::StrCat("rank ", ranks[r], " has captured other collectives than rank ", ranks[0],
                          " behind call ", call + 1, ", expected the same on all ranks");
    }
    return absl::StrCat("captured call ", call + 1, " is on rank ", ranks[r], " ", At(other, call),
                        ", on rank ", ranks[0], " ", At(first, call),
                        ", expected the same on all ranks");
  }
  return "";
}

}  // namespace coordd
