#include "worker/transport/tcp/unspoken_ends.h"

#include <gmock/gmock.h>

#include <cstdint>

namespace coordd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr absl::Duration kAWhile = UnspokenEnds::kKnownWithin;
const absl::Time kStart = absl::UnixEpoch();

TEST(UnspokenEnds, AreRanksWhereOneIsKnownInTime) {
  UnspokenEnds ends;
  ends.NoteRankAt("10.0.0.1");
  ends.Add({"10.0.0.1", 1}, kStart);
  ends.Add({"10.0.0.2", 2}, kStart);
  ends.Add({"10.0.0.3", 3}, kStart);
  EXPECT_THAT(ends.TakeStrangers(kStart), IsEmpty());
  ends.NoteRankAt("10.0.0.2");
  EXPECT_THAT(ends.TakeStrangers(kStart + kAWhile), ElementsAre(HostPort{"10.0.0.3", 3}));
  EXPECT_THAT(ends.TakeStrangers(kStart + kAWhile), IsEmpty());
}

TEST(UnspokenEnds, WaitForNobodyWhereThereAreTooMany) {
  UnspokenEnds ends;
  for (size_t i = 0; i < UnspokenEnds::kUnknownMax + 2; ++i)
    ends.Add({"10.0.0.3", static_cast<uint16_t>(i)}, kStart);
  EXPECT_THAT(ends.TakeStrangers(kStart),
              ElementsAre(HostPort{"10.0.0.3", 0}, HostPort{"10.0.0.3", 1}));
  EXPECT_THAT(ends.TakeStrangers(kStart + kAWhile), SizeIs(UnspokenEnds::kUnknownMax));
}

}  // namespace
}  // namespace coordd
