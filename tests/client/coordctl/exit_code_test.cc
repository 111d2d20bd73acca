#include "client/coordctl/exit_code.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

TEST(ExitCode, TellsWhoMayNotFromWhatFails) {
  EXPECT_EQ(ExitCodeOf(absl::PermissionDeniedError("viewer/a may not")), kNotAllowed);
  EXPECT_EQ(ExitCodeOf(absl::UnauthenticatedError("wrong token")), kNotAllowed);
  EXPECT_EQ(ExitCodeOfChange(absl::UnauthenticatedError("wrong token")), kNotAllowed);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("no answer")), kFailed);
  EXPECT_EQ(ExitCodeOf(absl::ResourceExhaustedError("too many")), kFailed);
}

TEST(ExitCode, TellsWhatIsNotThereFromWhatCannotBe) {
  EXPECT_EQ(ExitCodeOfChange(absl::InvalidArgumentError("no name")), kUsage);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("no job")), kNoJob);
  EXPECT_EQ(ExitCodeOfChange(absl::NotFoundError("no job")), kNoJob);
  EXPECT_EQ(ExitCodeOfChange(absl::FailedPreconditionError("too few would be left")), kRefused);
  EXPECT_EQ(ExitCodeOf(absl::FailedPreconditionError("coordd speaks TLS")), kFailed);
}

TEST(ExitCode, IsToldByHelp) {
  for (int code = kOk; code <= kNotAllowed; ++code)
    EXPECT_NE(std::string(kExitCodes).find(absl::StrCat(" ", code, " ")), std::string::npos)
        << code;
}

}  // namespace
}  // namespace coordd
