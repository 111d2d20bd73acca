#include "common/grpc/grpc_log.h"

#include <gmock/gmock.h>
#include <google/protobuf/stubs/common.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/base/log_limit.h"
#include "coordd/v1/store.pb.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

#if GOOGLE_PROTOBUF_VERSION < 4022000
TEST(ProtobufLog, IsOursAndIsNotWrittenWithoutABound) {
  RouteGrpcLogUnlessWanted({{"GRPC_VERBOSITY", "info"}});  // which is not of protobuf
  v1::SetRequest request;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 10000; ++i) EXPECT_FALSE(request.ParseFromString("\x12\x02\xff\xfe"));
  const std::string text = testing::internal::GetCapturedStderr();
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  EXPECT_THAT(lines, AllOf(Not(IsEmpty()), Each(HasSubstr("] protobuf: String field "))));
  EXPECT_LT(lines.size(), 100u);  // a burst, and one a second
  EXPECT_GE(lines.size(), static_cast<size_t>(LogLimit::kBurst));
}
#endif

}  // namespace
}  // namespace coordd
