#include "worker/runtime/bare_comm.h"

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/status_macros.h"

namespace coordd {

BareComm::~BareComm() {
  if (fork_guard_.InChild()) {
    // Its threads are not there, and where its memory was mapped may be somebody else's: both are
    // left alone for good.
    static_cast<void>(std::make_unique<std::shared_ptr<CommOrder>>(order_).release());
    return;
  }
  order_->End();
}

absl::StatusOr<PointToPoint::Message> BareComm::MessageOf(absl::string_view what,
                                                          const CommMessage& message) const {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  constexpr int64_t kMaxCount = int64_t{1} << 44;  // so that no size overflows
  if (message.count < 0 || message.count > kMaxCount) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": count is ", message.count, ", expected 0 to ", kMaxCount));
  }
  if (message.count > 0 && message.buffer == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": a buffer of ", Counted(message.count, "element"), " is NULL"));
  }
  const bool is_any = message.peer == CommMessage::kAnySource && what == "receive";
  if (!is_any && (message.peer < 0 || message.peer >= size() || message.peer == rank())) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": the other member is ", message.peer,
                                                   ", expected 0 to ", size() - 1,
                                                   " but for this one, ", rank()));
  }
  PointToPoint::Message out;
  out.comm = order_->execution().needs().lane;
  out.name = name_;
  out.tag = message.tag;
  out.peer = is_any ? PointToPoint::kAnySource : (*members_)[static_cast<size_t>(message.peer)];
  out.members = members_;
  out.buffer = static_cast<std::byte*>(message.buffer);
  out.count = message.count;
  out.dtype = message.dtype;
  return out;
}

absl::StatusOr<std::shared_ptr<Work>> BareComm::Send(const CommMessage& message) {
  COORDD_ASSIGN_OR_RETURN(PointToPoint::Message made, MessageOf("send", message));
  return order_->execution().needs().plane->messages->Send(std::move(made));
}

absl::StatusOr<std::shared_ptr<Work>> BareComm::Receive(const CommMessage& message) {
  COORDD_ASSIGN_OR_RETURN(PointToPoint::Message made, MessageOf("receive", message));
  return order_->execution().needs().plane->messages->Receive(std::move(made));
}

void BareComm::Withdraw(const Work& receive) {
  if (!fork_guard_.InChild()) order_->execution().needs().plane->messages->Withdraw(receive);
}

}  // namespace coordd
