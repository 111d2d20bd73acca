// The images, and who takes which of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace digits {

inline constexpr int kPixels = 64;  // 8x8, row by row
inline constexpr int kClasses = 10;

struct Image {
  std::array<float, kPixels> pixels;  // 0 (paper) to 1 (ink)
  int label;                          // 0 to 9
};

struct Dataset {
  std::vector<Image> train;
  std::vector<Image> test;  // every fifth image of the file
};

// The 1,797 images that are compiled into this program from data/digits.csv.gz. Throws
// std::runtime_error when they are not what data/README.md says.
Dataset LoadDataset();

// The text of a gzip file in memory. Throws std::runtime_error.
std::string Gunzip(const unsigned char* bytes, size_t size);
// Lines of 64 pixels (0 to 16) and a label, separated by commas. Throws std::runtime_error, which
// names the line.
std::vector<Image> ParseImages(const std::string& csv);

// The part [begin, end) of `count` things that worker `rank` of `size` takes: parts follow each
// other and differ by one at most, the lower ranks have the larger ones.
struct Part {
  int64_t begin, end;
};
Part PartOf(int64_t count, int rank, int size);

// The order in which an epoch visits `count` images: equal on every worker, since it depends on
// nothing else.
std::vector<int> ShuffledOrder(int count, uint64_t seed, int epoch);

}  // namespace digits
