#include "common/protocol/types.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <type_traits>

namespace coordd {
namespace {

static_assert(!std::is_convertible_v<Rank, Generation>);
static_assert(!std::is_convertible_v<int32_t, Rank>);

TEST(Types, NamesOfDtypesRoundTrip) {
  std::set<std::string> names;
  for (int i = 1; i <= 13; ++i) {
    const auto dtype = static_cast<DataType>(i);
    EXPECT_EQ(DataTypeFromName(Name(dtype)), dtype);
    names.insert(std::string(Name(dtype)));
  }
  EXPECT_EQ(names.size(), 13u) << "names are distinct";
}

TEST(Types, NamesOfOpsRoundTrip) {
  for (int i = 1; i <= 5; ++i) {
    const auto op = static_cast<ReduceOp>(i);
    EXPECT_EQ(ReduceOpFromName(Name(op)), op);
  }
  EXPECT_EQ(Name(ReduceOp::kNone), "none");
  EXPECT_EQ(ReduceOpFromName("none"), std::nullopt) << "nobody asks for no op by name";
}

TEST(Types, NamesOfKindsRoundTrip) {
  for (int i = 1; i <= 11; ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    EXPECT_EQ(CollectiveKindFromName(Name(kind)), kind);
  }
}

TEST(Types, UnknownNamesGiveNothing) {
  for (const char* name : {"", "float", "FLOAT32", "float32 "}) {
    EXPECT_EQ(DataTypeFromName(name), std::nullopt) << name;
    EXPECT_EQ(ReduceOpFromName(name), std::nullopt) << name;
    EXPECT_EQ(CollectiveKindFromName(name), std::nullopt) << name;
  }
}

TEST(Types, SizesAreTheElements) {
  EXPECT_EQ(SizeOf(DataType::kUint8), 1);
  EXPECT_EQ(SizeOf(DataType::kBool), 1);
  EXPECT_EQ(SizeOf(DataType::kFloat8E4m3fn), 1);
  EXPECT_EQ(SizeOf(DataType::kFloat8E5m2), 1);
  EXPECT_EQ(SizeOf(DataType::kFloat16), 2);
  EXPECT_EQ(SizeOf(DataType::kBfloat16), 2);
  EXPECT_EQ(SizeOf(DataType::kInt32), 4);
  EXPECT_EQ(SizeOf(DataType::kFloat64), 8);
}

TEST(Types, IdsCompareByValue) {
  EXPECT_EQ(Rank{3}, Rank{3});
  EXPECT_LT(Generation{1}, Generation{2});
  EXPECT_EQ(ToInt(Rank{}), 0);
}

}  // namespace
}  // namespace coordd
