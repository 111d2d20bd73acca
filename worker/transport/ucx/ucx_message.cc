#include "worker/transport/ucx/ucx_message.h"

#include <cstring>

#include "common/base/check.h"

namespace coordd {

static_assert(sizeof(MessageLabel) == 32 && sizeof(MessageLabel) <= kFrontBytes);

void UcxPayload::Set(const MessageLabel& label, absl::Span<const std::byte> bytes) {
  constexpr size_t kLineBytes = 64;
  static constexpr std::array<std::byte, kLineBytes> kZeros = {};
  auto part = [](const std::byte* begin, size_t size) {
    return ucp_dt_iov_t{const_cast<std::byte*>(begin), size};
  };
  std::memcpy(front_.data(), &label, sizeof(label));
  parts_[0] = part(front_.data(), front_.size());
  parts_[1] = part(bytes.data(), bytes.size());
  const size_t rest = bytes.size() % kLineBytes;
  parts_[2] = part(kZeros.data(), kLineBytes - rest);
  count_ = rest == 0 ? 2 : 3;
}

UcxArrival WithLabelApart(const void* header, size_t header_bytes, void* data, size_t size_bytes,
                          const ucp_am_recv_param_t& param) {
  UcxArrival arrival{{}, data, size_bytes, (param.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0};
  COORDD_CHECK(header_bytes == sizeof(arrival.label));
  std::memcpy(&arrival.label, header, sizeof(arrival.label));
  return arrival;
}

UcxArrival WithLabelInFront(void* data, size_t size_bytes) {
  UcxArrival arrival;
  COORDD_CHECK(size_bytes >= kFrontBytes);
  std::memcpy(&arrival.label, data, sizeof(arrival.label));
  arrival.data = static_cast<std::byte*>(data) + kFrontBytes;
  arrival.size_bytes = static_cast<size_t>(arrival.label.size_bytes);
  COORDD_CHECK(arrival.size_bytes <= size_bytes - kFrontBytes);
  return arrival;
}

}  // namespace coordd
