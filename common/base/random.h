// Randomness as an argument: main() makes one from the operating system, tests and the simulator
// from a seed.
#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace coordd {

// Not thread-safe: one owner.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  static Random FromSystem();

  uint64_t Next() { return engine_(); }
  // Uniform in [0, bound). REQUIRES: bound > 0.
  uint64_t Below(uint64_t bound) {
    return std::uniform_int_distribution<uint64_t>(0, bound - 1)(engine_);
  }
  double Uniform() { return std::uniform_real_distribution<double>(0.0, 1.0)(engine_); }

 private:
  std::mt19937_64 engine_;
};

// `bytes` bytes of the operating system's cryptographic randomness (getrandom), in hexadecimal. For
// tokens and secrets, never from a Random.
std::string SecretHex(int bytes);

}  // namespace coordd
