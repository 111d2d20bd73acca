#include "client/examples/digits/dataset.h"

#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>

extern const unsigned char kDigitsCsvGz[];
extern const size_t kDigitsCsvGzSize;

namespace digits {
namespace {

constexpr int kImages = 1797;
constexpr int kMaxInk = 16;
constexpr int kTestEvery = 5;
constexpr size_t kMaxTextBytes = 1 << 20;  // the text has 264,712

// Reads a number from 0 to `max` at *at and steps behind it and the separator that follows.
int ReadNumber(const char*& at, const char* end, int max, size_t line) {
  int value = -1;
  const auto [next, error] = std::from_chars(at, end, value);
  if (error != std::errc() || value < 0 || value > max) {
    throw std::runtime_error("digits data, line " + std::to_string(line) +
                             ": expected a number from 0 to " + std::to_string(max));
  }
  at = next == end ? next : next + 1;
  return value;
}

}  // namespace

std::string Gunzip(const unsigned char* bytes, size_t size) {
  std::string text(kMaxTextBytes, '\0');
  z_stream stream{};
  stream.next_in = const_cast<unsigned char*>(bytes);
  stream.avail_in = static_cast<uInt>(size);
  stream.next_out = reinterpret_cast<unsigned char*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  constexpr int kGzip = 16 + MAX_WBITS;
  if (inflateInit2(&stream, kGzip) != Z_OK) throw std::runtime_error("zlib cannot start");
  const int result = inflate(&stream, Z_FINISH);
  text.resize(stream.total_out);
  inflateEnd(&stream);
  if (result != Z_STREAM_END) {
    throw std::runtime_error("digits data: not a whole gzip file of at most 1 MiB of text");
  }
  return text;
}

std::vector<Image> ParseImages(const std::string& csv) {
  std::vector<Image> images;
  const char* at = csv.data();
  const char* const end = at + csv.size();
  while (at < end) {
    const size_t line = images.size() + 1;
    Image image{};
    for (float& pixel : image.pixels) {
      pixel = static_cast<float>(ReadNumber(at, end, kMaxInk, line)) / kMaxInk;
    }
    image.label = ReadNumber(at, end, kClasses - 1, line);
    images.push_back(image);
  }
  return images;
}

Dataset LoadDataset() {
  const std::vector<Image> images = ParseImages(Gunzip(kDigitsCsvGz, kDigitsCsvGzSize));
  if (images.size() != kImages) {
    throw std::runtime_error("digits data: " + std::to_string(images.size()) +
                             " images, expected " + std::to_string(kImages));
  }
  Dataset dataset;
  for (size_t i = 0; i < images.size(); ++i) {
    const bool is_test = i % kTestEvery == kTestEvery - 1;
    (is_test ? dataset.test : dataset.train).push_back(images[i]);
  }
  return dataset;
}

Part PartOf(int64_t count, int rank, int size) {
  const int64_t each = count / size;
  const int64_t larger = count % size;
  const int64_t begin = rank * each + std::min<int64_t>(rank, larger);
  return {begin, begin + each + (rank < larger ? 1 : 0)};
}

std::vector<int> ShuffledOrder(int count, uint64_t seed, int epoch) {
  std::vector<int> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(epoch));
  // std::shuffle may differ between standard libraries; workers may run different ones.
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

}  // namespace digits
