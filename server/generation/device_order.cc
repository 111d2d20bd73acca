#include "server/generation/device_order.h"

#include "common/base/check.h"

namespace coordd {

void DeviceOrder::Begin(int64_t id, const MemberList& members) {
  COORDD_CHECK(schedule_ == 0 && id > 0);
  schedule_ = id;
  finished_ = RankSet(all_);
  for (Rank rank : all_.Ranks())
    if (!members.Contains(rank)) finished_.Insert(rank);
}

void DeviceOrder::Finished(Rank rank, int64_t id) {
  if (asks_ && told_.Insert(rank) && told_.full()) asks_ = false;
  if (id == 0 || id != schedule_) return;
  finished_.Insert(rank);
  if (finished_.full()) schedule_ = 0;
}

}  // namespace coordd
