// What a run leaves on disk: the weights and what is needed to go on.
#pragma once

#include <optional>
#include <string>

#include "client/examples/digits/perceptron.h"

namespace digits {

struct Checkpoint {
  int epochs_done = 0;
  Parameters parameters{0};
  Parameters velocity{0};
};

// Whole or not at all: written beside `path`, synced, then renamed over it. Throws
// std::runtime_error, which names the file.
void SaveCheckpoint(const std::string& path, const Checkpoint& checkpoint);
// Loads a checkpoint; nullopt: there is no such file. Throws std::runtime_error when it is not a
// checkpoint.
std::optional<Checkpoint> LoadCheckpoint(const std::string& path);

// The largest difference between two weights in the same place. Throws std::runtime_error when the
// networks have different sizes.
double MaxWeightDifference(const Parameters& a, const Parameters& b);

}  // namespace digits
