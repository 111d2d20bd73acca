// What NCCL's own log and profilers call coordd's communicators.
#include <string>

#include "tests/worker/support/nccl_backend_fixture.h"
#include "worker/gpu/nccl/nccl_errors.h"

namespace coordd {
namespace {

class CommunicatorNameTest : public NcclBackendTest {};

TEST_F(CommunicatorNameTest, IsThatOfTheJobAndTheSetOfTheJobAndTheSet) {
  options_.job = "night run %s/7";
  RunTwo([&](Context& context) {
    ASSERT_TRUE(context.object.DefineGroup(ProcessSetId{3}, {Rank{0}, Rank{1}}).ok());
    Tensor tensor = NewTensor(context, 10, 1.0f);
    CollectiveArgs args = Sum(tensor);
    args.group = ProcessSetId{3};
    ASSERT_EQ(RunOne(context, args), absl::OkStatus());
  });
  EXPECT_EQ(FakeNcclLastName(), FakeNcclVersion() < 22703 ? "" : "coordd/night_run__s/7/3");
}

TEST_F(CommunicatorNameTest, IsBoundedAndEndsWithWhatItIsOf) {
  NcclPlace place;
  place.job = std::string(100, 'j');
  place.group = ProcessSetId{12345};
  place.node = 17;
  const std::string name = CommunicatorName(place);
  EXPECT_EQ(name.size(), kMaxCommunicatorName);
  EXPECT_EQ(name.substr(0, 10), "coordd/jjj");
  EXPECT_EQ(name.substr(name.size() - 14), "j/12345/node17");
  place.node = -1;
  place.for_graphs = true;
  place.job = "a";
  EXPECT_EQ(CommunicatorName(place), "coordd/a/12345/graphs");
}

}  // namespace
}  // namespace coordd
