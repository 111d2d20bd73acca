// Effects as lines that people read and stories hold on to.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/protocol/types.h"
#include "coordd/v1/admin.pb.h"
#include "coordd/v1/session.pb.h"
#include "server/model/effects.h"

namespace coordd {

struct EffectNames {  // what a story calls its sessions and calls
  std::function<std::string(SessionId)> session;
  std::function<std::string(CallId)> call;
};

std::string ToText(const v1::CoordinatorMessage& message);  // "abort gen=1 in_flight \"…\""
std::string ToText(const Event& event);
std::string ToText(const Outgoing& out, const EffectNames& names);
std::vector<std::string> ToText(const v1::JobState& job);

}  // namespace coordd
