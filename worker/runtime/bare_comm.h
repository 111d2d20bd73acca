// The one implementation of Comm.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/api/comm.h"
#include "worker/base/fork_guard.h"
#include "worker/runtime/comm_execution.h"
#include "worker/runtime/comm_order.h"
#include "worker/runtime/point_to_point.h"

namespace coordd {

// A Comm: a handle of the order of its calls, which works share.
class BareComm final : public Comm {
 public:
  using Needs = CommExecution::Needs;

  explicit BareComm(Needs parts)
      : name_(std::make_shared<const std::string>(parts.name)),
        members_(std::make_shared<const std::vector<int32_t>>(parts.ranks)),
        order_(std::make_shared<CommOrder>(std::move(parts))) {}
  ~BareComm() override;
  BareComm(const BareComm&) = delete;
  BareComm& operator=(const BareComm&) = delete;

  int32_t rank() const override { return order_->execution().needs().self; }
  int32_t size() const override { return order_->execution().size(); }
  absl::Status Run(const CommCall& call) override { return order_->Run(call); }
  absl::StatusOr<std::shared_ptr<Work>> RunFor(const CommCall& call, absl::Duration most) override {
    return order_->RunFor(call, most);
  }
  absl::StatusOr<std::shared_ptr<Work>> Start(const CommCall& call) override {
    return order_->Start(call);
  }
  absl::StatusOr<std::shared_ptr<Work>> Send(const CommMessage& message) override;
  absl::StatusOr<std::shared_ptr<Work>> Receive(const CommMessage& message) override;
  void Withdraw(const Work& receive) override;

 private:
  absl::StatusOr<PointToPoint::Message> MessageOf(absl::string_view what,
                                                  const CommMessage& message) const;

  // Constant after construction.
  const std::shared_ptr<const std::string> name_;
  const std::shared_ptr<const std::vector<int32_t>> members_;
  std::shared_ptr<CommOrder> order_;
  const ForkGuard fork_guard_;
};

}  // namespace coordd
