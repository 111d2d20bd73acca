#include <stdexcept>

#include "client/examples/digits/dataset.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace digits {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

template <typename F>
std::string MessageOf(F f) {
  try {
    f();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

std::string Line(int pixel, const std::string& label) {
  std::string line;
  for (int i = 0; i < kPixels; ++i) line += std::to_string(pixel) + ",";
  return line + label + "\n";
}

TEST(DigitsData, HoldsTheImagesThatItsReadmeNames) {
  const Dataset data = LoadDataset();
  EXPECT_EQ(data.train.size(), 1438u);
  EXPECT_EQ(data.test.size(), 359u);
  std::vector<int> of_class(kClasses);
  double ink = 0;
  for (const auto* images : {&data.train, &data.test}) {
    for (const Image& image : *images) {
      ++of_class[static_cast<size_t>(image.label)];
      for (const float pixel : image.pixels) ink += pixel;
    }
  }
  // Counts of the ten digits in the source, and the sum of all its pixels.
  EXPECT_THAT(of_class, ElementsAre(178, 182, 177, 183, 181, 182, 181, 179, 174, 180));
  EXPECT_DOUBLE_EQ(ink * 16, 561718.0);
}

TEST(DigitsData, ScalesInkToOne) {
  const std::vector<Image> images = ParseImages(Line(16, "7") + Line(4, "0"));
  ASSERT_EQ(images.size(), 2u);
  EXPECT_THAT(images[0].pixels, Each(1.0f));
  EXPECT_EQ(images[0].label, 7);
  EXPECT_THAT(images[1].pixels, Each(0.25f));
}

TEST(DigitsData, NamesTheLineThatIsWrong) {
  EXPECT_THAT(MessageOf([] { ParseImages(Line(3, "7") + Line(17, "1")); }), HasSubstr("line 2"));
  EXPECT_THAT(MessageOf([] { ParseImages(Line(3, "10")); }), HasSubstr("line 1"));
  EXPECT_THAT(MessageOf([] { ParseImages("1,2,3\n"); }), HasSubstr("line 1"));
}

TEST(DigitsData, RefusesABrokenGzipFile) {
  const unsigned char garbage[] = {0x1f, 0x8b, 8, 0, 1, 2, 3};
  EXPECT_THAT(MessageOf([&] { Gunzip(garbage, sizeof(garbage)); }), HasSubstr("gzip"));
  EXPECT_THAT(MessageOf([&] { Gunzip(garbage, 0); }), HasSubstr("gzip"));
}

TEST(PartOf, DealsOutEverythingOnceInPartsThatDifferByOneAtMost) {
  for (const int64_t count : {0, 1, 7, 64, 100}) {
    for (int size = 1; size <= 8; ++size) {
      int64_t next = 0;
      int64_t previous = count;
      for (int rank = 0; rank < size; ++rank) {
        const Part part = PartOf(count, rank, size);
        EXPECT_EQ(part.begin, next);
        EXPECT_LE(part.end - part.begin, previous);
        EXPECT_LE(PartOf(count, 0, size).end - (part.end - part.begin), 1);
        previous = part.end - part.begin;
        next = part.end;
      }
      EXPECT_EQ(next, count);
    }
  }
}

TEST(ShuffledOrder, IsAPermutationThatSeedAndEpochDecide) {
  const std::vector<int> order = ShuffledOrder(100, /*seed=*/1, /*epoch=*/0);
  std::vector<int> all(100);
  for (int i = 0; i < 100; ++i) all[static_cast<size_t>(i)] = i;
  EXPECT_THAT(order, UnorderedElementsAreArray(all));
  EXPECT_EQ(order, ShuffledOrder(100, 1, 0));
  EXPECT_NE(order, ShuffledOrder(100, 1, 1));
  EXPECT_NE(order, ShuffledOrder(100, 2, 0));
  EXPECT_THAT(ShuffledOrder(0, 1, 0), IsEmpty());
}

}  // namespace
}  // namespace digits
