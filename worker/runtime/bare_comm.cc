#include "worker/runtime/bare_comm.h"

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

}  // namespace coordd
