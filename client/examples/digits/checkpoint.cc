#include "client/examples/digits/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace digits {
namespace {

constexpr char kMagic[8] = {'d', 'i', 'g', 'i', 't', 's', '1', '\n'};
constexpr int32_t kMaxHidden = 1 << 16;

struct Header {
  char magic[8];
  int32_t epochs_done;
  int32_t hidden_units;
};

std::runtime_error SystemError(const std::string& path, const char* what) {
  return std::runtime_error(path + ": " + what + ": " + std::strerror(errno));
}

void Append(const std::vector<float>& values, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

void Read(std::istream& in, std::vector<float>& values) {
  in.read(reinterpret_cast<char*>(values.data()),
          static_cast<std::streamsize>(values.size() * sizeof(float)));
}

void WriteAndSync(const std::string& path, const std::string& bytes) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) throw SystemError(path, "cannot be created");
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t n = write(file, bytes.data() + written, bytes.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    written += static_cast<size_t>(n);
  }
  const bool ok = written == bytes.size() && fsync(file) == 0;
  const int error = errno;
  close(file);
  if (!ok) {
    unlink(path.c_str());
    errno = error;
    throw SystemError(path, "cannot be written");
  }
}

double MaxLayerDifference(const Layer<float>& a, const Layer<float>& b) {
  if (a.values.size() != b.values.size()) {
    throw std::runtime_error(
        "the networks have different sizes: " + std::to_string(a.values.size()) + " and " +
        std::to_string(b.values.size()) + " weights in a layer");
  }
  double largest = 0;
  for (size_t i = 0; i < a.values.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a.values[i]) - b.values[i]);
    // A weight that is not a number must not pass for a small difference.
    if (!(difference <= largest)) largest = difference;
    if (std::isnan(difference)) return difference;
  }
  return largest;
}

}  // namespace

void SaveCheckpoint(const std::string& path, const Checkpoint& checkpoint) {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.epochs_done = checkpoint.epochs_done;
  header.hidden_units = checkpoint.parameters.hidden.outputs;
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  for (const Parameters* p : {&checkpoint.parameters, &checkpoint.velocity}) {
    Append(p->hidden.values, bytes);
    Append(p->output.values, bytes);
  }
  const std::string partial = path + ".partial";
  WriteAndSync(partial, bytes);
  if (std::rename(partial.c_str(), path.c_str()) != 0) throw SystemError(path, "cannot be renamed");
}

std::optional<Checkpoint> LoadCheckpoint(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    if (errno == ENOENT) return std::nullopt;
    throw SystemError(path, "cannot be opened");
  }
  Header header{};
  in.read(reinterpret_cast<char*>(&header), sizeof(header));
  if (!in || std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 || header.hidden_units < 1 ||
      header.hidden_units > kMaxHidden) {
    throw std::runtime_error(path + ": not a checkpoint of this program");
  }
  Checkpoint checkpoint{header.epochs_done, Parameters(header.hidden_units),
                        Parameters(header.hidden_units)};
  for (Parameters* p : {&checkpoint.parameters, &checkpoint.velocity}) {
    Read(in, p->hidden.values);
    Read(in, p->output.values);
  }
  if (!in || in.peek() != std::ifstream::traits_type::eof()) {
    throw std::runtime_error(path + ": is longer or shorter than its header says");
  }
  return checkpoint;
}

double MaxWeightDifference(const Parameters& a, const Parameters& b) {
  const double hidden = MaxLayerDifference(a.hidden, b.hidden);
  const double output = MaxLayerDifference(a.output, b.output);
  return std::isnan(hidden) ? hidden : std::isnan(output) ? output : std::max(hidden, output);
}

}  // namespace digits
