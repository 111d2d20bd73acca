#include "worker/base/copy_bytes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace coordd {
namespace {

constexpr int64_t kPageBytes = 4096;

std::byte ByteAt(int64_t index) { return static_cast<std::byte>(index * 7 + index / 251); }

// Memory around a page's beginning, so that places in pages can be chosen.
class Pages {
 public:
  std::byte* at(int64_t place) {
    const auto begin = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (kPageBytes - begin % kPageBytes) + kPageBytes + place;
  }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_ = std::vector<std::byte>(8 * kPageBytes);
};

// All sizes around where the way of copying changes, and all places where it does.
TEST(CopyBytesTest, CopiesTheBytesAndNoOthersFromAnyPlaceToAnyPlace) {
  Pages from, to;
  for (size_t i = 0; i < from.bytes().size(); ++i)
    from.bytes()[i] = ByteAt(static_cast<int64_t>(i));
  for (const int64_t size : {1, 63, 64, 2047, 2048, 2049, 2111, 2112, 4096, 10007}) {
    for (const int64_t source : {0, 5, 4090}) {
      for (int64_t behind = -33; behind <= 33; ++behind) {
        std::fill(to.bytes().begin(), to.bytes().end(), std::byte{0});
        std::vector<std::byte> expected = to.bytes();
        std::byte* const target = to.at(source + behind);
        std::copy_n(from.at(source), size, expected.data() + (target - to.bytes().data()));
        CopyBytes(target, from.at(source), size);
        ASSERT_EQ(to.bytes(), expected) << size << " bytes from " << source << ", " << behind;
      }
    }
  }
}

TEST(CopyBytesTest, NothingIsCopiedOfNoBytesAndOntoThemselves) {
  CopyBytes(nullptr, nullptr, 0);
  Pages pages;
  pages.at(3)[0] = std::byte{9};
  const std::vector<std::byte> before = pages.bytes();
  CopyBytes(pages.at(3), pages.at(3), 5000);
  EXPECT_EQ(pages.bytes(), before);
}

TEST(CopyBytesTest, SlowIsATargetALittleBehindTheSourcePagesLeftOut) {
  Pages from, to;
  for (const int64_t pages : {0, 1}) {
    for (const int64_t source : {0, 4000, 4095}) {
      const auto is_slow = [&](int64_t behind) {
        return IsSlowForRepMovsb(to.at(pages * kPageBytes + source + behind), from.at(source));
      };
      EXPECT_TRUE(is_slow(1) && is_slow(16) && is_slow(31));
      EXPECT_FALSE(is_slow(0) || is_slow(32) || is_slow(64) || is_slow(-1) || is_slow(-16));
    }
  }
}

}  // namespace
}  // namespace coordd
