#include "worker/gpu/nccl/nccl_wishes.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace coordd {
namespace {

struct NumberWish {
  absl::string_view name;
  int NcclWishes::*member;
  int least, most;
};

constexpr NumberWish kNumbers[] = {
    {"cgaClusterSize", &NcclWishes::cga_cluster_size, 0, NcclWishes::kMaxClusterSize},
    {"minCTAs", &NcclWishes::min_ctas, 1, NcclWishes::kMaxCtas},
    {"maxCTAs", &NcclWishes::max_ctas, 1, NcclWishes::kMaxCtas},
    {"trafficClass", &NcclWishes::traffic_class, 0, NcclWishes::kMaxTrafficClass},
};

absl::Status Wrong(absl::string_view found, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", absl::CHexEscape(found), "\", expected ", expected));
}

absl::Status ReadNumber(const NumberWish& wish, absl::string_view value, NcclWishes* wishes) {
  int number = 0;
  if (!absl::SimpleAtoi(value, &number) || number < wish.least || number > wish.most) {
    return Wrong(absl::StrCat(wish.name, "=", value),
                 absl::StrCat("a number of ", wish.least, " to ", wish.most));
  }
  if (wishes->*wish.member != NcclConfig::kUndefined)
    return Wrong(absl::StrCat(wish.name, "=", value), "it once");
  wishes->*wish.member = number;
  return absl::OkStatus();
}

absl::Status ReadOne(absl::string_view name, absl::string_view value, NcclWishes* wishes) {
  for (const NumberWish& wish : kNumbers)
    if (name == wish.name) return ReadNumber(wish, value, wishes);
  if (name != "netName") {
    return Wrong(name,
                 "cgaClusterSize, minCTAs, maxCTAs, trafficClass or netName, then = and its "
                 "value, with commas between several");
  }
  if (value.empty()) return Wrong("netName=", "the name of a network, such as IB or Socket");
  wishes->net_name = std::string(value);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NcclWishes> NcclWishes::Parse(absl::string_view text) {
  NcclWishes wishes;
  for (absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::vector<absl::string_view> sides = absl::StrSplit(part, absl::MaxSplits('=', 1));
    const absl::Status read =
        ReadOne(absl::StripAsciiWhitespace(sides[0]),
                sides.size() == 2 ? absl::StripAsciiWhitespace(sides[1]) : "", &wishes);
    if (!read.ok()) return read;
  }
  const bool both = wishes.min_ctas != NcclConfig::kUndefined;
  if (both && wishes.max_ctas != NcclConfig::kUndefined && wishes.min_ctas > wishes.max_ctas) {
    return Wrong(absl::StrCat("minCTAs=", wishes.min_ctas),
                 absl::StrCat("at most maxCTAs, which is ", wishes.max_ctas));
  }
  return wishes;
}

void NcclWishes::PutInto(NcclConfig& config, int version) const {
  config.cga_cluster_size = cga_cluster_size;
  config.min_ctas = min_ctas;
  config.max_ctas = max_ctas;
  config.net_name = net_name.empty() ? nullptr : net_name.c_str();
  if (traffic_class == NcclConfig::kUndefined || version < kVersionTrafficClass) return;
  config.version = kVersionTrafficClass;  // or NCCL takes none
  config.traffic_class = traffic_class;
}

absl::string_view NcclWishes::UnknownTo(int version) const {
  const bool wants = traffic_class != NcclConfig::kUndefined;
  return wants && version < kVersionTrafficClass ? "trafficClass" : "";
}

}  // namespace coordd
