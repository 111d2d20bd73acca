#include "common/machine/build_info.h"

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/machine/ucx_library.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<std::string> Names(const std::vector<Component>& components) {
  std::vector<std::string> names;
  for (const Component& component : components) names.push_back(component.name);
  return names;
}

Component Named(const std::vector<Component>& components, const std::string& name) {
  for (const Component& component : components) {
    if (component.name == name) return component;
  }
  return {};
}

TEST(BuildInfo, WritesTheLinesThatTheConfigureStepWrites) {
  Component component;
  component.name = "NCCL";
  component.available = true;
  component.built = component.loaded = "2.28.9";
  EXPECT_EQ(ToLine(component), "[X] NCCL 2.28.9 (built), 2.28.9 (loaded)");
  component.loaded.clear();
  EXPECT_EQ(ToLine(component), "[X] NCCL 2.28.9 (built)");
  component.note = "tried";
  EXPECT_EQ(ToLine(component), "[X] NCCL 2.28.9 (built), tried");
  component.available = false;
  component.why_not = "switched off";
  EXPECT_EQ(ToLine(component), "[ ] NCCL: switched off");
}

TEST(BuildInfo, ListsEveryComponentInItsOrderWithAVersionOrAReason) {
  const std::vector<Component> components = BuildComponents({});
  EXPECT_THAT(Names(components), ElementsAre("gRPC", "Protobuf", "Abseil", "UCX", "CUDA", "NCCL",
                                             "prometheus-cpp", "OpenSSL", "SQLite"));
  for (const Component& component : components) {
    if (component.available) {
      EXPECT_THAT(component, AllOf(Field(&Component::built, Not(IsEmpty())),
                                   Field(&Component::why_not, IsEmpty())));
    } else {
      EXPECT_THAT(component.why_not, Not(IsEmpty())) << component.name;
    }
  }
  EXPECT_TRUE(Named(components, "gRPC").available);
  EXPECT_EQ(Named(components, "gRPC").built, Named(components, "gRPC").loaded);
}

// In a process of its own: a copy that is loaded already, as by the tests above, goes before the
// variable.
TEST(BuildInfoDeathTest, AnNcclThatCannotBeOpenedIsNamedWithTheVariable) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto with_a_wrong_path = [] {
    return Named(BuildComponents({{"COORDD_NCCL_LIBRARY", "/nowhere/libnccl.so.2"}}), "NCCL");
  };
  if (const Component here = with_a_wrong_path(); here.built.empty()) {
    EXPECT_FALSE(here.available);
    GTEST_SKIP() << "built without NCCL: " << here.why_not;
  }
  EXPECT_EXIT(
      {
        const Component nccl = with_a_wrong_path();
        std::cerr << nccl.why_not;
        std::exit(nccl.available ? 1 : 0);
      },
      testing::ExitedWithCode(0),
      AllOf(HasSubstr("COORDD_NCCL_LIBRARY"), HasSubstr("/nowhere/libnccl.so.2")));
}

TEST(BuildInfo, AUcxThatCannotBeUsedIsNamedWithTheVariable) {
  const auto why_not = [](const std::string& library) {
    const Component ucx = Named(BuildComponents({{"COORDD_UCX_LIBRARY", library}}), "UCX");
    EXPECT_FALSE(ucx.available) << library;
    return ucx.built.empty() ? std::string() : ucx.why_not;
  };
  if (why_not("/nowhere/libucp.so.0").empty()) GTEST_SKIP() << "built without UCX";
  EXPECT_THAT(why_not("/nowhere/libucp.so.0"),
              HasSubstr("COORDD_UCX_LIBRARY=/nowhere/libucp.so.0"));
  EXPECT_THAT(why_not("libm.so.6"), HasSubstr("COORDD_UCX_LIBRARY=libm.so.6: it has no"));
}

TEST(BuildInfo, SaysOfUcxWhetherItsVersionWasTried) {
  const Component ucx = Named(BuildComponents({}), "UCX");
  if (!ucx.available) GTEST_SKIP() << ucx.why_not;
  EXPECT_THAT(ucx.note, HasSubstr("tried"));
  EXPECT_EQ(ToLine(ucx),
            absl::StrCat("[X] UCX ", ucx.built, " (built), ", ucx.loaded, " (loaded), ", ucx.note));
  EXPECT_EQ(UcxTriedText({1, 13, 1}), "tried");
  EXPECT_EQ(UcxTriedText({1, 13, 0}), "not tried, but 1.13.1 was");
  EXPECT_THAT(UcxTriedText({1, 99, 0}), HasSubstr("not tried: coordd's tests ran with 1.13.1 to"));
}

// In a process of its own: where the library is loaded already, nothing takes the signals again.
TEST(BuildInfoDeathTest, UcxLeavesTheProgramItsSignals) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        const auto own = [](int) {};
        signal(SIGHUP, own);
        signal(SIGSEGV, own);
        // The default action; AddressSanitizer's.
        const auto before = signal(SIGBUS, SIG_DFL);
        signal(SIGBUS, before);
        BuildComponents({});
        const bool kept = signal(SIGHUP, SIG_DFL) == own && signal(SIGSEGV, SIG_DFL) == own &&
                          signal(SIGBUS, SIG_DFL) == before;
        std::exit(kept ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(BuildInfo, JsonHasTheSameRows) {
  const auto json = nlohmann::json::parse(ComponentsToJson(BuildComponents({})));
  ASSERT_EQ(json.size(), 9u);
  EXPECT_EQ(json[0]["name"], "gRPC");
  EXPECT_EQ(json[0]["available"], true);
}

TEST(NcclVersionText, ReadsBothWaysOfCounting) {
  EXPECT_EQ(NcclVersionText(22809), "2.28.9");
  EXPECT_EQ(NcclVersionText(21003), "2.10.3");
  EXPECT_EQ(NcclVersionText(2708), "2.7.8");
}

}  // namespace
}  // namespace coordd
