#include "common/protocol/member_runs.h"

namespace coordd {

void AddMember(int32_t member, MemberRuns* runs) {
  if (!runs->empty()) {
    v1::MemberRun& last = (*runs)[runs->size() - 1];
    if (last.first() + last.count() == member) return last.set_count(last.count() + 1);
  }
  v1::MemberRun* run = runs->Add();
  run->set_first(member);
  run->set_count(1);
}

}  // namespace coordd
